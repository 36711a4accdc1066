"""A definition in a few words, for lists: its roles, what ends it, its parameters."""

from collections.abc import Mapping

from loopwright.dialects.coqui.rules import in_sequence, items, mapping
from loopwright.dialects.coqui.surface import DEFAULT_ITERATIONS
from loopwright.model.record import JsonValue


def described(value: object) -> dict[str, JsonValue]:
    """What a list shows of a definition, as far as it has the right types."""
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
    """What ends it: the type and its value, with what counts where nothing is written."""
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
