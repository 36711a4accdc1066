"""What a person decides about, with nothing hidden in it: every sign can be seen, long blanks are
counted, nothing is cut, and what somebody could have hidden with is named.
"""

import json
import re
import unicodedata

from loopwright.model.record import JsonValue

# Change the order in which text is drawn, so that a person decides about what is not there.
DIRECTION = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
SELECTORS = frozenset(map(chr, range(0xFE00, 0xFE10)))
MANY_BLANKS = 20
MANY_LINES = 10
_LINE_ENDS = re.compile(r"\r\n?|[\v\f\x85\u2028\u2029]")
_ESCAPES = frozenset("\x1b\x90\x98\x9b\x9d\x9e\x9f")
_BLANKS = re.compile(rf"[^\S\n]{{{MANY_BLANKS},}}")
_EMPTY = re.compile(rf"(?:[^\S\n]*\n){{{MANY_LINES},}}")


def exposed(text: str) -> list[str]:
    """Every line of a text, whole; what cannot be seen is written as its code."""
    plain = _LINE_ENDS.sub("\n", text)
    counted = _EMPTY.sub(lambda found: f"\n[{found[0].count(chr(10))} line ends]\n", plain)
    counted = _BLANKS.sub(lambda found: f"[{len(found[0])} blanks]", counted)
    return ["".join(map(seen, line)) for line in counted.split("\n")]


def marks(text: str) -> list[str]:
    """What in a text could hide something from whoever reads it."""
    plain = _LINE_ENDS.sub("\n", text)
    signs = set(plain)
    found = []
    if signs & DIRECTION:
        found.append("signs that turn the direction of the text around")
    if signs & _ESCAPES:
        found.append("escape sequences for a terminal")
    if any(_is_hidden(one) for one in signs - DIRECTION - _ESCAPES):
        found.append("signs that cannot be seen")
    if _BLANKS.search(plain) or _EMPTY.search(plain):
        found.append("a long row of blanks or empty lines")
    return found


def exposed_value(value: JsonValue, name: str = "") -> list[str]:
    """A value of JSON line by line; every text of it whole, the words of a command one by one."""
    if isinstance(value, dict):
        return [
            line for key, one in value.items() for line in exposed_value(one, _joined(name, key))
        ]
    if isinstance(value, list):
        numbered = enumerate(value)
        return [line for key, one in numbered for line in exposed_value(one, f"{name}[{key}]")]
    first, *more = exposed(value if isinstance(value, str) else json.dumps(value))
    return [f"{name}: {first}", *(f"  {line}" for line in more)]


def value_marks(value: JsonValue) -> list[str]:
    """The same for everything in a value."""
    if isinstance(value, str):
        return marks(value)
    inside: list[JsonValue] = []
    if isinstance(value, dict):
        inside = [*value, *value.values()]
    elif isinstance(value, list):
        inside = value
    return list(dict.fromkeys(mark for one in inside for mark in value_marks(one)))


def exposure(message: str, call: dict[str, JsonValue] | None = None) -> dict[str, JsonValue]:
    """`marks` and `shown` for a question that could hide something; nothing for any other."""
    asked: list[JsonValue] = [message]
    if call is not None:
        asked += [call["tool"], call["arguments"]]
    found = value_marks(asked)
    if not found:
        return {}
    lines = exposed(message)
    if call is not None:
        tool = exposed_value(call["tool"], "tool")
        lines = [*lines, *tool, *exposed_value(call["arguments"], "arguments")]
    return {"marks": list(found), "shown": list(lines)}


def seen(char: str) -> str:
    """A sign, or its code when it cannot be seen as what it is."""
    if char == "\t":
        return "    "
    number = ord(char)
    if not _is_hidden(char):
        return char
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def _is_hidden(char: str) -> bool:
    if char in "\n\t" or (char.isascii() and char.isprintable()):
        return False
    return char in SELECTORS or unicodedata.category(char) in ("Cc", "Cs", "Cf", "Cn", "Co")


def _joined(name: str, key: str) -> str:
    label = "".join(map(seen, key))
    return f"{name}.{label}" if name else label
