"""Rules between the parts of a loop definition.

Unknown fields, duplicate names, parameters without a value, numbers that come from a parameter.
The rules examine the raw value, so that their findings are in the same report as the findings
about single values. Values of the wrong type are left to `surface.py`.

`described` is a definition in a few words, for lists.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from pydantic import BaseModel

from loopwright.dialects.coqui.surface import (
    DEFAULT_ITERATIONS,
    MAX_STEPS,
    CoquiDefinition,
    GoalValue,
    Iterations,
    ParameterSpec,
    Review,
    StageSpec,
    Time,
    ToolValue,
    moment_ms,
    names_in,
    only_name,
    whole,
)
from loopwright.model.record import JsonValue
from loopwright.syntax.document import (
    Diagnostic,
    Document,
    Value,
    clip,
    did_you_mean,
    items,
    mapping,
)
from loopwright.syntax.notations import point_ms, span_ms
from loopwright.syntax.validation import keys_of

Path: TypeAlias = tuple[str | int, ...]

NUMBERS = (
    "max_review_rounds",
    "max_iterations",
    "max_rework_attempts",
    "max_seconds",
    "max_silence",
    "threshold",
    "limit",
    "value",
)
"""Keys that are set to a number, or to a parameter that is one."""
COMMENTS = ("$", "_", "//")
"""Prefixes of keys that people use for schemas and comments."""
BLOCK = "block"
"""The value of `on_question` that says what happens here: a question waits for a person."""
RECORD_KEYS = frozenset({"version", "builtin"})
"""Keys that the API of the system adds to a definition; they say nothing about the loop."""


def declared(value: object) -> dict[str, dict[str, object]]:
    """The parameters of a definition by name."""
    listed = [mapping(one) for one in items(mapping(value).get("parameters"))]
    return {str(one["name"]): one for one in listed if isinstance(one.get("name"), str)}


# -- before validation -----------------------------------------------------------------------------

_CONDITIONS: dict[str, type[BaseModel]] = {
    "evaluation_bound": Review,
    "iteration_bound": Iterations,
    "goal_bound": GoalValue,
    "time_bound": Time,
    "tool_bound": ToolValue,
}
"""The value of a condition, by its type."""
_CONDITION_KEYS = frozenset({"type", "value"})


def prepare(document: Document) -> tuple[Document, list[Diagnostic]]:
    """The definition with the fields that are known here, and a warning for each other one. A
    condition that has its value beside its type (`"max_iterations": 5`) has it in `value` then.
    """
    if not isinstance(document.value, dict):
        return document, []
    warnings: list[Diagnostic] = []
    top = _known_only(document, document.value, (), keys_of(CoquiDefinition), warnings)
    for key, model in (("roles", StageSpec), ("parameters", ParameterSpec)):
        listed = top.get(key)
        if isinstance(listed, list):
            top[key] = [
                _known_only(document, one, (key, n), keys_of(model), warnings)
                if isinstance(one, dict)
                else one
                for n, one in enumerate(listed)
            ]
    condition = top.pop("termination_condition", None)
    if condition is not None:
        top["termination_condition"] = _condition(document, condition, warnings)
    else:
        count = "1 iteration" if DEFAULT_ITERATIONS == 1 else f"{DEFAULT_ITERATIONS} iterations"
        message = f"without termination_condition the loop ends after {count}"
        hint = 'add one: "termination_condition": {"type": "evaluation_bound", "value": "CRITERIA"}'
        warnings.append(document.warning("no-termination", message, hint=hint))
    return replace(document, value=top), warnings


def _known_only(
    document: Document,
    value: dict[str, Value],
    at: Path,
    known: frozenset[str],
    warnings: list[Diagnostic],
) -> dict[str, Value]:
    """The mapping without fields that mean nothing here, and without those that are null; a
    comment needs no warning.
    """
    for key in value:
        if not at and key in RECORD_KEYS:
            continue
        if key not in known and not key.startswith(COMMENTS):
            hint = did_you_mean(key, known)
            message = f"{clip(key)} is not a field of a loop definition and has no effect"
            line, column = document.key_at((*at, key))
            warnings.append(
                Diagnostic(document.file, line, column, "unknown-field", message, hint, "warning")
            )
    return {key: one for key, one in value.items() if key in known and one is not None}


def _condition(document: Document, value: Value, warnings: list[Diagnostic]) -> Value:
    at: Path = ("termination_condition",)
    if isinstance(value, str):
        return {"type": value}
    if not isinstance(value, dict):
        return value
    found = dict(value)
    kind = found.get("type")
    model = _CONDITIONS.get(kind) if isinstance(kind, str) else None
    inside = keys_of(model) if model is not None else frozenset[str]()
    if "value" not in found:
        beside = {key: one for key, one in found.items() if key in inside}
        known = _CONDITION_KEYS | inside
        found = {"type": kind} | ({"value": beside} if beside else {})
        _known_only(document, value, at, known, warnings)
        return found if "type" in value else {key: found[key] for key in found if key != "type"}
    found = _known_only(document, found, at, _CONDITION_KEYS, warnings)
    if isinstance(found["value"], dict) and model is not None:
        found["value"] = _known_only(document, found["value"], (*at, "value"), inside, warnings)
    return found


# -- rules -----------------------------------------------------------------------------------------


def structure(document: Document) -> Iterator[Diagnostic]:
    """All that breaks a rule between parts."""
    value = mapping(document.value)
    yield from _parameters(document, items(value.get("parameters")))
    yield from _stages(document, items(value.get("roles")))
    yield from _places(document, declared(value))
    yield from _without_effect(document, value)


def _without_effect(document: Document, value: Mapping[str, object]) -> Iterator[Diagnostic]:
    """Fields that are read and change nothing, and times without a zone."""
    condition = mapping(value.get("termination_condition"))
    if condition.get("type") == "tool_bound":
        message = "Loopwright does not measure with a tool: the loop ends at max_iterations"
        at = ("termination_condition", "type")
        yield document.warning("ignored-field", message, at=at, hint="use goal_bound")
    if condition.get("type") == "time_bound":
        limit = condition.get("value")
        limit = limit.get("limit") if isinstance(limit, dict) else limit
        if span_ms(limit) is None and point_ms(limit) is None and moment_ms(limit) is not None:
            message = f"{limit} has no time zone: it is taken as UTC"
            at = ("termination_condition", "value")
            yield document.warning("no-zone", message, at=at, hint=f'write "{limit}Z"')
    if value.get("on_question") not in (None, BLOCK):
        message = "on_question has no effect: STATUS: NEEDS_CONTEXT blocks the loop for a person"
        hint = f'"{BLOCK}" says what is done'
        yield document.warning("ignored-field", message, at=("on_question",), hint=hint)


def _parameters(document: Document, listed: list[object]) -> Iterator[Diagnostic]:
    seen: set[str] = set()
    for number, one in enumerate(map(mapping, listed)):
        name = one.get("name")
        at: Path = ("parameters", number)
        if isinstance(name, str) and name in seen:
            yield document.error("bad-id", f"{name} is declared twice", at=(*at, "name"))
        seen |= {name} if isinstance(name, str) else set()
        if one.get("required") is False and "default" not in one:
            message = (
                f"{name if isinstance(name, str) else 'an optional parameter'} needs a default"
            )
            hint = "give default, or leave out required: false"
            yield document.error("missing-field", message, at=at, hint=hint)


def _stages(document: Document, listed: list[object]) -> Iterator[Diagnostic]:
    stages = [mapping(one) for one in listed]
    gates = [number for number, one in enumerate(stages) if one.get("gate") is True]
    if len(gates) > 1:
        message = "several stages have gate: the last of them decides"
        yield document.warning("mutually-exclusive", message, at=("roles", gates[0], "gate"))
    place = {number: index for index, number in enumerate(in_sequence(stages))}
    for number, one in enumerate(stages):
        at: Path = ("roles", number)
        if one and "role" not in one and "name" not in one:
            hint = 'name the role that works here: "role": "coder"'
            yield document.error("missing-field", "role is required", at=at, hint=hint)
        cap = whole(one.get("max_iterations"), 10_000)
        if isinstance(cap, int) and cap > MAX_STEPS:
            message = f"a stage may make {MAX_STEPS} steps at most, so {cap} is {MAX_STEPS}"
            yield document.warning("out-of-range", message, at=(*at, "max_iterations"))
        yield from _evidence(document, one, at, place[number])


def _evidence(
    document: Document, stage: Mapping[str, object], at: Path, index: int
) -> Iterator[Diagnostic]:
    """Inputs that a stage needs from earlier stages exist, as far as the definition shows it."""
    needs = order_of(stage.get("requires_artifact_from"))
    if needs is not None and not 0 <= needs < index:
        message = f"requires_artifact_from has no effect: stage {needs} is not before stage {index}"
        yield document.warning("ignored-field", message, at=(*at, "requires_artifact_from"))
    if stage.get("requires_explicit_evidence") is True and index == 0:
        message = "requires_explicit_evidence has no effect: there is no stage before this one"
        yield document.warning("ignored-field", message, at=(*at, "requires_explicit_evidence"))
    if stage.get("memory_required") is True:
        message = "memory_required has no effect: Loopwright does not check memories"
        yield document.warning("ignored-field", message, at=(*at, "memory_required"))


def in_sequence(stages: Sequence[Mapping[str, object]]) -> list[int]:
    """The places in the list of the stages, in the order in which they run."""
    numbers = range(len(stages))

    def key(number: int) -> tuple[int, int]:
        order = order_of(stages[number].get("order"))
        return (number if order is None else order, number)

    return sorted(numbers, key=key)


def order_of(value: object) -> int | None:
    """A whole number, also in quotes."""
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# -- places ----------------------------------------------------------------------------------------


def _places(document: Document, known: Mapping[str, object]) -> Iterator[Diagnostic]:
    """A place that no parameter fills stays as it is, which is rarely meant."""
    for path, text in _texts(document.value, ()):
        for name in dict.fromkeys(names_in(text)):
            if name in known:
                continue
            few = f"its parameters are {', '.join(known)}" if known else "it has no parameters"
            hint = did_you_mean(name, known) or few
            if path[-1] in NUMBERS:
                message = f"a number is needed here, and there is no parameter {name}"
                yield document.error("unknown-parameter", message, at=path, hint=hint)
            else:
                message = f"{{{{{name}}}}} stays as it is: there is no such parameter"
                yield document.warning("unknown-parameter", message, at=path, hint=hint)


def with_numbers(value: Value, values: Mapping[str, object], key: str | int = "") -> Value:
    """The definition with known parameters inserted where a number is required: a number must be
    valid before anything else is computed from it.
    """
    if isinstance(value, dict):
        return {name: with_numbers(one, values, name) for name, one in value.items()}
    if isinstance(value, list):
        return [with_numbers(one, values) for one in value]
    name = only_name(value) if isinstance(value, str) and key in NUMBERS else None
    found = values.get(name) if name is not None else None
    return found if isinstance(found, str | int | float) else value


def _texts(value: object, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _texts(one, (*path, key))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _texts(one, (*path, number))


def described(value: object) -> dict[str, JsonValue]:
    """The fields of a definition in lists, if they have the right types."""
    top = mapping(value)
    stages = [mapping(one) for one in items(top.get("roles"))]
    kind, value = _termination(top)
    return {
        "name": _text(top, "name"),
        "description": _text(top, "description"),
        "roles": [_stage(stages[number]) for number in in_sequence(stages)],
        "termination": {"type": kind, "value": _plain(value)},
        "parameters": [_parameter(mapping(one)) for one in items(top.get("parameters"))],
    }


def _termination(top: Mapping[str, object]) -> tuple[str, object]:
    """What ends it: the type and its value, including the default."""
    written = top.get("termination_condition")
    if written is None:
        return "iteration_bound", DEFAULT_ITERATIONS
    if isinstance(written, str):
        return written, None
    found = mapping(written)
    beside = {key: one for key, one in found.items() if key != "type"}
    return _text(found, "type"), found.get("value", beside or None)


def _text(value: Mapping[str, object], key: str) -> str:
    found = value.get(key)
    return found if isinstance(found, str) else ""


def _stage(value: Mapping[str, object]) -> dict[str, JsonValue]:
    role = _text(value, "role") or _text(value, "name")
    return {
        "role": role,
        "name": _text(value, "name") or role,
        "prompt": _text(value, "prompt"),
        "max_iterations": _plain(value.get("max_iterations")),
    }


def _parameter(value: Mapping[str, object]) -> dict[str, JsonValue]:
    return {
        "name": _text(value, "name"),
        "description": _text(value, "description"),
        "required": value.get("required", True) is not False and "default" not in value,
        "default": _plain(value.get("default")),
    }


def _plain(value: object) -> JsonValue:
    """A value as it was read."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool) else None
