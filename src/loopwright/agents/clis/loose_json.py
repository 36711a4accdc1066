"""Read JSON in a foreign format: a value that is missing or of another type is ignored."""

import json
from collections.abc import Iterator

import msgspec

from loopwright.kernel.events import Usage
from loopwright.model.record import JsonValue

MOST = 10**15  # of tokens or dollars; larger numbers are errors


def decode_object(line: bytes) -> JsonValue:
    """The JSON object on a line, or None. Bytes that are not UTF-8 and halves of surrogate pairs
    are replaced: a program may print what it has read from any file.
    """
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        value: JsonValue = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode_repaired(line)
    except RecursionError:
        return None
    return value


def _decode_repaired(line: bytes) -> JsonValue:
    broken = not _is_utf8(line)
    if not broken and b"\\u" not in line:
        return None  # malformed for another reason
    try:
        value: JsonValue = json.loads(line.decode(errors="replace"), parse_constant=_refuse)
        text = json.dumps(value, ensure_ascii=False).encode(errors="replace")
        repaired: JsonValue = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
    return repaired


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _refuse(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON")


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
    """The increase since an earlier report; never negative."""
    return Usage(
        input_tokens=max(0, total.input_tokens - before.input_tokens),
        output_tokens=max(0, total.output_tokens - before.output_tokens),
        usd=max(0.0, round(total.usd - before.usd, 9)),
        unpriced=total.unpriced,
        cache_read_tokens=max(0, total.cache_read_tokens - before.cache_read_tokens),
        cache_write_tokens=max(0, total.cache_write_tokens - before.cache_write_tokens),
    )
