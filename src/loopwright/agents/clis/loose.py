"""Reading JSON that somebody else defines: what is not there, or is of another kind, is nothing."""

from collections.abc import Iterator

from loopwright.kernel.facts import Usage
from loopwright.model.record import JsonValue

MOST = 10**15  # of tokens or dollars; beyond that it is no report but a mistake


def at(value: JsonValue, *path: str) -> JsonValue:
    """The value at the end of a path of names, or None."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def text(value: JsonValue, *path: str) -> str:
    """The text at the end of a path, or an empty one."""
    found = at(value, *path)
    return found if isinstance(found, str) else ""


def whole(value: JsonValue, *path: str) -> int | None:
    """The whole number at the end of a path; one that cannot be an amount is none."""
    found = amount(value, *path)
    return None if found is None else int(found)


def amount(value: JsonValue, *path: str) -> float | None:
    """The amount at the end of a path: a number from 0 up to what can be meant."""
    found = at(value, *path)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return found if 0 <= found <= MOST else None


def items(value: JsonValue, *path: str) -> Iterator[JsonValue]:
    """The elements of the list at the end of a path."""
    found = at(value, *path)
    return iter(found if isinstance(found, list) else [])


def minus(total: Usage, before: Usage) -> Usage:
    """What came on top of an earlier report; never less than nothing."""
    return Usage(
        input_tokens=max(0, total.input_tokens - before.input_tokens),
        output_tokens=max(0, total.output_tokens - before.output_tokens),
        usd=max(0.0, round(total.usd - before.usd, 9)),
        unpriced=total.unpriced,
        cache_read_tokens=max(0, total.cache_read_tokens - before.cache_read_tokens),
        cache_write_tokens=max(0, total.cache_write_tokens - before.cache_write_tokens),
    )
