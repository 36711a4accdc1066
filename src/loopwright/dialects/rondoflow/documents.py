"""Where the assistants are in a document: alone, in a list, in a response of the API, or in an
exported workspace. One that came from a catalog has its persona in a file beside it.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from loopwright.model.record import JsonValue

Path: TypeAlias = tuple[str | int, ...]

PERSONA = "persona.md"
MAX_PERSONA_BYTES = 262_144
WORKSPACE = "rondoflow-canvas"
POLICY_BUDGET = "maxBudgetUsd"
CHOICE = "assistant"
"""The input that chooses an assistant where a document has several."""

_CRITERIA = "loopCriteria"
_AROUND = ("bundle", "data", "agents")  # what assistants are in
_SIGNS = ("loopEnabled", "loopCriteria", "maxIterations")
_USUAL = frozenset(("persona", "allowedTools", "purpose", "scope", "permissionMode"))

_CATALOG = frozenset(("icon", "category", "tags", "order"))


class FileProblem(Protocol):
    """Why a file could not be read."""

    @property
    def code(self) -> str: ...

    @property
    def message(self) -> str: ...


Files: TypeAlias = Mapping[str, bytes | FileProblem]


class Wanted(NamedTuple):
    """A file to read beside the document."""

    path: str
    kind: str = "text"
    limit: int = MAX_PERSONA_BYTES


class Place(NamedTuple):
    """An assistant in a document: where it is, and its fields."""

    path: Path
    value: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.value.get("name") or self.value.get("id") or "")

    @property
    def loops(self) -> bool:
        return self.value.get("loopEnabled") is True

    @property
    def id(self) -> str | None:
        own = self.value.get("id") or self.value.get("nodeId")
        return own if isinstance(own, str) and own else None


def assistants_of(value: JsonValue) -> list[Place] | None:
    """The assistants of a document; None where it is a single one or something else."""
    path: Path = ()
    if isinstance(value, dict) and isinstance(value.get("bundle"), dict):
        value, path = value["bundle"], ("bundle",)
    if isinstance(value, dict) and "success" in value and "data" in value:
        value, path = value["data"], ("data",)
        if isinstance(value, dict) and not isinstance(value.get("agents"), list):
            return [Place(path, value)]
    if isinstance(value, dict) and "name" not in value and isinstance(value.get("agents"), list):
        value, path = value["agents"], (*path, "agents")
    if not isinstance(value, list):
        return None
    return [Place((*path, n), one) for n, one in enumerate(value) if isinstance(one, dict)]


def with_decoded_criteria(value: JsonValue) -> JsonValue:
    """The same document with every `loopCriteria` that is a JSON text decoded: a row of the
    database has it so. A text that is not a JSON object or null stays as it is.
    """
    if isinstance(value, list):
        return [with_decoded_criteria(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _decoded(one) if key == _CRITERIA else _within(key, one) for key, one in value.items()
    }


def _within(key: str, value: JsonValue) -> JsonValue:
    return with_decoded_criteria(value) if key in _AROUND else value


def _decoded(value: JsonValue) -> JsonValue:
    if not isinstance(value, str):
        return value
    try:
        decoded: JsonValue = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return decoded if decoded is None or isinstance(decoded, dict) else value


def policy_budgets(value: Mapping[str, Any]) -> list[tuple[Path, object]]:
    """What the policies of an assistant allow one iteration to cost, and where they say it."""
    policies = value.get("policies")
    found: list[tuple[Path, object]] = []
    for number, one in enumerate(policies if isinstance(policies, list) else ()):
        rules = one.get("rules") if isinstance(one, dict) else None
        if isinstance(rules, dict) and rules.get(POLICY_BUDGET) is not None:
            found.append((("policies", number, "rules", POLICY_BUDGET), rules[POLICY_BUDGET]))
    return found


def chosen(places: list[Place], wanted: JsonValue) -> Place | None:
    """The assistant that runs: the one that was asked for by name or id, else the only one, else
    the only one whose looping is on. None where that is not clear.
    """
    if wanted is not None:
        found = [one for one in places if wanted in (one.id, one.name)]
    else:
        found = places if len(places) == 1 else [one for one in places if one.loops]
    return found[0] if len(found) == 1 else None


def recognise(value: object) -> int:
    """How sure this dialect is that a document is its own, from 0 (not mine) to 100."""
    if not isinstance(value, dict | list):
        return 0
    if isinstance(value, dict) and value.get("format") == WORKSPACE:
        return 100
    places = assistants_of(value)
    if places is None:
        places = [Place((), value)] if isinstance(value, dict) else []
    if any(sign in place.value for place in places for sign in _SIGNS):
        return 100
    usual = [place for place in places if "name" in place.value and _is_usual(place.value)]
    return 60 if usual and len(usual) == len(places) else 0


def _is_usual(value: Mapping[str, Any]) -> bool:
    return len(_USUAL & value.keys()) > 1


def wants_persona(value: JsonValue) -> bool:
    """Whether the persona of an assistant may be in a file beside its document."""
    if not isinstance(value, dict) or assistants_of(value) is not None:
        return False
    if value.get("persona") is not None or value.get("systemPrompt") is not None:
        return False
    return bool(_CATALOG & value.keys())
