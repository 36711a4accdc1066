"""A definition in a few words, for lists: its roles, what ends it, its parameters."""

from collections.abc import Mapping

from loopwright.dialects.coqui.rules import items, mapping
from loopwright.model.record import JsonValue


def described(value: object) -> dict[str, JsonValue]:
    """What a list shows of a definition, as far as it has the right types."""
    top = mapping(value)
    condition = mapping(top.get("termination_condition"))
    return {
        "name": _text(top, "name"),
        "description": _text(top, "description"),
        "roles": [_stage(mapping(one)) for one in items(top.get("roles"))],
        "termination": {"type": _text(condition, "type"), "value": _plain(condition.get("value"))},
        "parameters": [_parameter(mapping(one)) for one in items(top.get("parameters"))],
    }


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
