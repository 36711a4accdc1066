"""What a word without quotes means: the core schema of YAML 1.2, which contains JSON's numbers.

Unlike YAML 1.1 there are no yes/no/on/off, no sexagesimal numbers and no octal `010`.
"""

import math
import re
from typing import NamedTuple

from loopwright.syntax.words import clip

_FIRST = frozenset("-+.0123456789~nNtTfF")
_WORDS: dict[str, bool | None] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_DECIMAL = re.compile(r"[-+]?[0-9]+")
_PREFIXED = re.compile(r"0o(?P<oct>[0-7]+)|0x(?P<hex>[0-9a-fA-F]+)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")

MIN_INT = -(2**63)
MAX_INT = 2**63 - 1
# No 64-bit number has more digits in any base used here (octal: 21 and the one that fails).
_MOST_DIGITS = 22


class BadScalar(NamedTuple):
    """A number that has no place in a definition."""

    code: str
    message: str


def resolve(text: str) -> str | int | float | bool | BadScalar | None:
    """The value of a plain YAML scalar."""
    if text and text[0] not in _FIRST:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _DECIMAL.fullmatch(text):
        return whole(text)
    if _FLOAT.fullmatch(text):
        return fraction(text)
    prefixed = _PREFIXED.fullmatch(text)
    if prefixed:
        digits, base = (prefixed["oct"], 8) if prefixed["oct"] else (prefixed["hex"], 16)
        return whole(digits, base=base)
    return not_finite(text) if _NOT_FINITE.fullmatch(text) else text


def whole(text: str, *, base: int = 10) -> int | BadScalar:
    """A whole number that fits 64 bits, or the reason why not."""
    # Counting first: converting very long numbers is slow and limited by the interpreter.
    digits = text.lstrip("+-").lstrip("0") or "0"
    if len(digits) <= _MOST_DIGITS:
        value = int(digits, base) * (-1 if text.startswith("-") else 1)
        if MIN_INT <= value <= MAX_INT:
            return value
    how = "small" if text.startswith("-") else "large"
    return BadScalar("out-of-range", f"{clip(text)} is too {how} for a number of a definition")


def fraction(text: str) -> float | BadScalar:
    """A floating-point number, unless it is too large to be one."""
    value = float(text)
    return value if math.isfinite(value) else not_finite(text)


def not_finite(text: str) -> BadScalar:
    """The refusal of infinity and not-a-number."""
    return BadScalar("not-finite", f"{clip(text)} is not a finite number")
