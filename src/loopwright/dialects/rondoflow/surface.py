"""The form of a RondoFlow document: where its assistants are, and what each may contain.

A document is a single assistant, a list, a response of the API or an exported workspace. The
persona of an assistant from a catalog is in a file next to the document. One assistant has a
persona, tools, a budget and loop settings.

The JSON Schema of the format, for editors, is generated from these models.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeGuard, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from loopwright.model.record import JsonValue
from loopwright.syntax.document import check_text

Path: TypeAlias = tuple[str | int, ...]

PERSONA = "persona.md"
MAX_PERSONA_BYTES = 262_144
WORKSPACE = "rondoflow-canvas"
POLICY_BUDGET = "maxBudgetUsd"
CHOICE = "assistant"
"""The input that chooses an assistant if a document has several."""

_CRITERIA = "loopCriteria"
_AROUND = ("bundle", "data", "agents")  # the keys that contain assistants
_SIGNS = ("loopEnabled", "loopCriteria", "maxIterations")
_USUAL = frozenset(("persona", "allowedTools", "purpose", "scope", "permissionMode"))

_CATALOG = frozenset(("icon", "category", "tags", "order"))


class RondoflowFileProblem(Protocol):
    """Why a file could not be read."""

    @property
    def code(self) -> str: ...

    @property
    def message(self) -> str: ...


Files: TypeAlias = Mapping[str, bytes | RondoflowFileProblem]


class RondoflowFileRequest(NamedTuple):
    """A file to read beside the document."""

    path: str
    kind: str = "text"
    limit: int = MAX_PERSONA_BYTES


class AssistantPlace(NamedTuple):
    """An assistant in a document: its place, and its fields."""

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


def assistants_of(value: JsonValue) -> list[AssistantPlace] | None:
    """The assistants of a document; None if it is a single one or something else."""
    path: Path = ()
    if isinstance(value, dict) and isinstance(value.get("bundle"), dict):
        value, path = value["bundle"], ("bundle",)
    if isinstance(value, dict) and "success" in value and "data" in value:
        value, path = value["data"], ("data",)
        if isinstance(value, dict) and not isinstance(value.get("agents"), list):
            return [AssistantPlace(path, value)]
    if isinstance(value, dict) and "name" not in value and isinstance(value.get("agents"), list):
        value, path = value["agents"], (*path, "agents")
    if not isinstance(value, list):
        return None
    return [AssistantPlace((*path, n), one) for n, one in enumerate(value) if isinstance(one, dict)]


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
    """The cost limit of one iteration in the policies of an assistant, and its place."""
    policies = value.get("policies")
    found: list[tuple[Path, object]] = []
    for number, one in enumerate(policies if isinstance(policies, list) else ()):
        rules = one.get("rules") if isinstance(one, dict) else None
        if isinstance(rules, dict) and rules.get(POLICY_BUDGET) is not None:
            found.append((("policies", number, "rules", POLICY_BUDGET), rules[POLICY_BUDGET]))
    return found


def choose_assistant(places: list[AssistantPlace], wanted: JsonValue) -> AssistantPlace | None:
    """The assistant that runs: the one requested by name or id, else the only one, else the only
    one with looping enabled. None if that is not clear.
    """
    if wanted is not None:
        found = [one for one in places if wanted in (one.id, one.name)]
    else:
        found = places if len(places) == 1 else [one for one in places if one.loops]
    return found[0] if len(found) == 1 else None


def recognise(value: object) -> int:
    """Confidence that a document is of this dialect, from 0 (another format) to 100."""
    if not isinstance(value, dict | list):
        return 0
    if isinstance(value, dict) and value.get("format") == WORKSPACE:
        return 100
    places = assistants_of(value)
    if places is None:
        places = [AssistantPlace((), value)] if isinstance(value, dict) else []
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


CriterionType: TypeAlias = Literal["max_iterations", "regex", "test_pass", "manual"]

_MOST_CHARACTERS = {"regex": 500}
_DEFAULT_MOST = 200
_NEEDS_VALUE = {"regex": "a pattern, for example DONE", "test_pass": "for example npm test"}

EXPORTED: frozenset[str] = frozenset(
    (
        *("agentId", "avatar", "canvasX", "canvasY", "category", "createdAt", "externalFolders"),
        *("icon", "isFacilitator", "isFavorite", "mcpAssignments", "mcpServers", "memories"),
        *("memoryEnabled", "moderatedTables", "nodeId", "order", "participations"),
        *("permissionMode", "policies", "provider", "providerConfig", "purpose", "scope"),
        *("sessions", "skills", "status", "tags", "teamEnabled", "updatedAt", "user", "userId"),
        "version",
    )
)
"""Fields of an assistant in exports, responses and catalogs that are not about its loop."""

UNAPPLIED: frozenset[str] = frozenset(
    (
        *("externalFolders", "mcpAssignments", "mcpServers", "memories", "policies", "provider"),
        *("providerConfig", "scope", "skills"),
    )
)
"""Those that would change what the assistant may do or knows."""


class RondoflowModel(BaseModel):
    """Base: nothing is coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ExportedModel(RondoflowModel):
    """Base class for exports of other systems: unknown fields are allowed."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class Criteria(ExportedModel):
    """When the loop is done."""

    type: CriterionType = Field(description="Kind of criterion.")
    value: str | None = Field(
        default=None,
        description="A pattern for regex, a command for test_pass; the others need none.",
    )

    @model_validator(mode="after")
    def _value_fits_type(self) -> "Criteria":
        if self.value is None:
            if self.type in _NEEDS_VALUE:
                message = f"value is required for {self.type}"
                raise _fault("missing_field", message, hint=_NEEDS_VALUE[self.type])
            return self
        most = _MOST_CHARACTERS.get(self.type, _DEFAULT_MOST)
        if len(self.value) > most:
            message = f"value must be text of at most {most} characters, not of {len(self.value)}"
            raise _fault("out_of_range", message)
        if self.type == "test_pass":
            _check_command(self.value)
        return self


def _check_command(value: str) -> None:
    hidden = check_text(re.sub(r"\s", " ", value))
    if hidden:
        raise _fault("hidden_character", hidden, hint="delete it and type the word again")
    if not value.strip():
        raise _fault("bad_command", "the command is empty", hint=_NEEDS_VALUE["test_pass"])


def _fault(code: str, message: str, *, hint: str | None = None) -> PydanticCustomError:
    context: dict[str, object] = {"text": message, "at": "value"}
    return PydanticCustomError(code, "{text}", context | ({"hint": hint} if hint else {}))


class LoopBudget(RondoflowModel):
    """The budget of the whole loop; the budget of the assistant is for one iteration."""

    usd: Annotated[float, Field(gt=0, le=1_000_000)] | None = Field(
        default=None, description="Money."
    )
    tokens: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Tokens.")
    minutes: Annotated[int, Field(ge=1, le=525_600)] | None = Field(
        default=None, description="Time."
    )


def is_budget(value: object) -> TypeGuard[float]:
    """Whether a value of a policy is an amount of USD."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value < float("inf")


def _off_if_null(value: object) -> object:
    return False if value is None else value


class Assistant(ExportedModel):
    """One assistant, many attempts."""

    id: str | None = Field(default=None, description="Id in the system it comes from.")
    name: Annotated[str, Field(min_length=1, max_length=200)] = Field(description="Its name.")
    description: str | None = Field(default=None, description="What it is for.")
    persona: str | None = Field(default=None, description="Standing instructions.")
    system_prompt: str | None = Field(
        default=None, alias="systemPrompt", description="Another word for persona."
    )
    model: str | None = Field(default=None, description="Model to use.")
    tools: list[str] | None = Field(default=None, description="The only tools it may use.")
    allowed_tools: list[str] | None = Field(
        default=None,
        alias="allowedTools",
        description="Another word for tools; none or * is all that the agent has.",
    )
    budget: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        default=None, description="USD that one iteration may cost."
    )
    loop_budget: LoopBudget | None = Field(
        default=None, alias="loopBudget", description="What the whole loop may use."
    )
    loop_enabled: Annotated[
        bool, BeforeValidator(_off_if_null, json_schema_input_type=bool | None)
    ] = Field(default=False, alias="loopEnabled", description="Must be true to start a loop.")
    loop_criteria: Criteria | None = Field(
        default=None, alias="loopCriteria", description="Null: only the number of iterations."
    )
    max_iterations: Annotated[int, Field(ge=1, le=100)] = Field(
        default=10, alias="maxIterations", description="The most iterations."
    )


_EXAMPLE: JsonValue = {
    "name": "Fixer",
    "persona": "You repair failing tests.",
    "loopEnabled": True,
    "loopCriteria": {"type": "test_pass", "value": "npm test"},
    "maxIterations": 10,
}


def json_schema() -> dict[str, JsonValue]:
    """Draft 7, which every editor knows."""
    template = "#/definitions/{model}"
    made = cast("dict[str, JsonValue]", Assistant.model_json_schema(ref_template=template))
    definitions = made.pop("$defs", {})
    head: dict[str, JsonValue] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "RondoFlow assistant",
    }
    one: JsonValue = {"$ref": "#/definitions/Assistant"}
    several: JsonValue = {"type": "array", "items": one, "minItems": 1}
    named = {**cast("dict[str, JsonValue]", definitions), "Assistant": made}
    agents: JsonValue = {
        "type": "object",
        "required": ["agents"],
        "properties": {"agents": several},
    }
    data: JsonValue = {"anyOf": [one, several, agents]}
    response: JsonValue = {
        "type": "object",
        "required": ["success", "data"],
        "properties": {"data": data},
    }
    bundle: JsonValue = {"type": "object", "required": ["bundle"], "properties": {"bundle": agents}}
    kinds: JsonValue = [one, several, agents, response, bundle]
    return {**head, "anyOf": kinds, "examples": [_EXAMPLE], "definitions": named}
