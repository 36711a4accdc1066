"""Rules between the parts of a loop definition: names used twice, places nobody fills, numbers that
come from a parameter.

Made from the raw value, before it is known to be right, so that they stand in the same report as
the values themselves. Whatever has the wrong type is left out here: `surface.py` speaks of it.
"""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from loopwright.dialects.coqui.parameters import names_in, only_name
from loopwright.dialects.coqui.surface import MAX_STEPS, whole
from loopwright.syntax import Diagnostic, Document, did_you_mean
from loopwright.syntax.document import Value

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


def mapping(value: object) -> dict[str, object]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[object]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def declared(value: object) -> dict[str, dict[str, object]]:
    """The parameters of a definition by name."""
    listed = [mapping(one) for one in items(mapping(value).get("parameters"))]
    return {str(one["name"]): one for one in listed if isinstance(one.get("name"), str)}


def structure(document: Document) -> Iterator[Diagnostic]:
    """All that breaks a rule between parts."""
    value = mapping(document.value)
    yield from _parameters(document, items(value.get("parameters")))
    yield from _stages(document, items(value.get("roles")))
    yield from _places(document, declared(value))
    if mapping(value.get("termination_condition")).get("type") == "tool_bound":
        message = "tool_bound has its place, but this version cannot do it"
        at = ("termination_condition", "type")
        yield document.error("not-available", message, at=at, hint="use goal_bound")


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
    gates = 0
    for number, one in enumerate(map(mapping, listed)):
        at: Path = ("roles", number)
        if one and "role" not in one and "name" not in one:
            hint = 'name the role that works here: "role": "coder"'
            yield document.error("missing-field", "role is required", at=at, hint=hint)
        order = one.get("order")
        if isinstance(order, int) and not isinstance(order, bool) and order != number:
            message = f"order has no effect: this is stage {number} by its place in the list"
            yield document.warning("ignored-field", message, at=(*at, "order"))
        cap = whole(one.get("max_iterations"), 10_000)
        if isinstance(cap, int) and cap > MAX_STEPS:
            message = f"a stage may make {MAX_STEPS} steps at most, so {cap} is {MAX_STEPS}"
            yield document.warning("out-of-range", message, at=(*at, "max_iterations"))
        gates += one.get("gate") is True
        if one.get("gate") is True and gates > 1:
            message = "one stage reviews, and there is one already"
            yield document.error("mutually-exclusive", message, at=(*at, "gate"), on_key=True)


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
    """The definition with parameters that stand for a number in their place, where they are known:
    a number must be right before anything else can be made of it.
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
