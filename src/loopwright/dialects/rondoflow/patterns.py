r"""Patterns of this dialect: JavaScript's, searched without regard to case.

They are rewritten for the linear-time engine where the two spell the same thing differently
(`\u0041`, `[^]`, needless escapes). A pattern that JavaScript itself would not take never matches;
one that it would take but our engine cannot do is refused.
"""

import re
from typing import NamedTuple

from loopwright.syntax.patterns import MAX_REPETITION, engine_fault, repeated_times

_TOKEN = re.compile(
    r"""
      \\u(?P<unit>[0-9a-fA-F]{4})
    | \\x(?P<byte>[0-9a-fA-F]{2})
    | \\c(?P<control>[A-Za-z])
    | \\(?P<reference>[1-9]|k<)
    | \\(?P<escape>.)
    | (?P<nothing>\[\]) | (?P<anything>\[\^\])
    | (?P<open>\[\^?) | (?P<close>\])
    | \((?P<look>\?<?[=!])
    | (?P<foreign>\(\?(?!:|<[A-Za-z_$]|[ims]+(?:-[ims]+)?:|-[ims]+:))
    | \{(?P<low>\d+)(?:,(?P<high>\d*))?\}
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_SCRIPT = "use test_pass with a script"
_SAY = "say what the output must contain, or use max_iterations"
# Letters that mean something behind a backslash; any other is just itself.
_MEANINGFUL = frozenset("dDwWsSbBfnrtv0")


class Pattern(NamedTuple):
    """What became of a pattern: usable, refused (`code`), or kept although it never matches."""

    text: str
    code: str | None = None
    says: str = ""
    hint: str | None = None
    never: bool = False


def translate(pattern: str) -> Pattern:
    """The pattern for our engine, or why there is none."""
    if not pattern:
        return Pattern(pattern, "matches-everything", "an empty pattern matches any output", _SAY)
    found = _refusal(pattern)
    if found:
        return found
    text = _rewritten(pattern)
    fault = engine_fault(text, ignore_case=True)
    if fault is None:
        return Pattern(text)
    if fault.code == "bad-regex":
        return Pattern(pattern, says=fault.message, never=True)
    hint = _SCRIPT if fault.code == "regex-too-big" else _SAY
    return Pattern(pattern, fault.code, fault.message, hint)


def _refusal(pattern: str) -> Pattern | None:
    """What our engine cannot do, and what JavaScript does not know."""
    inside = False
    for token in _TOKEN.finditer(pattern):
        was_inside, inside = inside, _inside_after(token, inside=inside)
        if was_inside:
            continue
        if token["look"]:
            says = f"({token['look']} is not supported: no looking ahead or behind"
            hint = "match the text around it as well, or use test_pass with a script"
            return Pattern(pattern, "regex-feature", says, hint)
        if token["reference"]:
            says = f"{token[0]} is not supported: no references back to a group"
            hint = "write out what the group may be, or use test_pass with a script"
            return Pattern(pattern, "regex-feature", says, hint)
        if token["foreign"]:
            says = f"this kind of group at column {token.start() + 1} is unknown"
            return Pattern(pattern, says=says, never=True)
        found = _repetition(pattern, token) if token["low"] else None
        if found:
            return found
    return None


def _inside_after(token: "re.Match[str]", *, inside: bool) -> bool:
    """Whether a class is open behind a token; inside one, [ is a plain character."""
    if inside:
        return not (token["close"] or token["nothing"])
    return bool(token["open"])


def _repetition(pattern: str, token: "re.Match[str]") -> Pattern | None:
    # Cut, so that a number of any length stays cheap: it is too big anyway.
    low, high = (int((token[name] or "0")[:9]) for name in ("low", "high"))
    times = repeated_times(pattern[token.start() :])
    if times:
        code = "regex-too-big" if times > MAX_REPETITION else None
        return Pattern(pattern, code, "a repetition cannot be repeated", never=True)
    if token["high"] and low > high:
        return Pattern(pattern, says=f"{token[0]} has its numbers in the wrong order", never=True)
    if max(low, high) > MAX_REPETITION:
        says = f"{token[0]} repeats more than {MAX_REPETITION:,} times"
        return Pattern(pattern, "regex-too-big", says, _SCRIPT)
    return None


def _rewritten(pattern: str) -> str:
    text, inside = "", False
    for token in _TOKEN.finditer(pattern):
        text += _spelled(token, inside=inside)
        inside = _inside_after(token, inside=inside)
    return text


def _spelled(token: "re.Match[str]", *, inside: bool) -> str:
    """One token the way our engine spells it."""
    if token["unit"]:
        return f"\\x{{{token['unit']}}}"
    if token["control"]:
        return f"\\x{ord(token['control'].upper()) - 64:02x}"
    escape = token["escape"]
    if escape == "b" and inside:
        return "\\x08"
    if escape and escape.isalpha() and escape not in _MEANINGFUL:
        return escape
    if inside and (token["open"] or token["nothing"] or token["anything"]):
        return "\\" + token[0]
    if token["nothing"]:
        return r"[^\s\S]"
    return r"[\s\S]" if token["anything"] else token[0]
