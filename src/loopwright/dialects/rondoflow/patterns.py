r"""Patterns of this dialect: JavaScript's, searched without regard to case.

They are rewritten for the linear-time engine where the two spell the same thing differently
(`\u0041`, `[^]`, needless escapes). What that engine cannot do runs in the JavaScript engine, as it
is written. A pattern that JavaScript itself would not take never matches.
"""

import re
from typing import NamedTuple

from loopwright.syntax.patterns import Engine, engine_fault, javascript_problem

_TOKEN = re.compile(
    r"""
      \\u(?P<unit>[0-9a-fA-F]{4})
    | \\x(?P<byte>[0-9a-fA-F]{2})
    | \\c(?P<control>[A-Za-z])
    | \\(?P<reference>[1-9]|k<|B)
    | \\(?P<escape>.)
    | (?P<nothing>\[\]) | (?P<anything>\[\^\])
    | (?P<open>\[\^?) | (?P<close>\])
    | \((?P<look>\?<?[=!])
    | \{(?P<many>\d{4,}|\d+,\d{4,})
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
# Letters that mean something behind a backslash; any other is just itself.
_MEANINGFUL = frozenset("dDwWsSbfnrtv0")
# White space of JavaScript beyond that of the linear engine: models write such blanks.
_BLANKS = r"\s\x0b\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"


class Pattern(NamedTuple):
    """What became of a pattern: the text for its engine, what to warn of (`code`), and whether it
    never matches or cannot be run at all.
    """

    text: str
    engine: Engine = "linear"
    code: str | None = None
    says: str = ""
    never: bool = False
    refused: bool = False


def translate(pattern: str) -> Pattern:
    """The pattern for the engine that runs it."""
    problem = javascript_problem(pattern)
    if problem is not None:
        deep = "nested" in problem
        code = "regex-too-big" if deep else "bad-regex"
        return Pattern(pattern, code=code, says=problem, never=not deep, refused=deep)
    if _backtracks(pattern):
        return Pattern(pattern, "javascript")
    text = _rewritten(pattern)
    fault = engine_fault(text, ignore_case=True)
    if fault is None:
        return Pattern(text)
    if fault.code == "matches-everything":
        return Pattern(pattern, "javascript", fault.code, fault.message)
    return Pattern(pattern, "javascript")


def _backtracks(pattern: str) -> bool:
    """Whether a pattern looks around, refers back to a group, or repeats a thousand times; `\\B` of
    RE2 also matches inside of a character.
    """
    inside = False
    for token in _TOKEN.finditer(pattern):
        was_inside, inside = inside, _inside_after(token, inside=inside)
        if not was_inside and (token["look"] or token["reference"] or token["many"]):
            return True
    return False


def _inside_after(token: "re.Match[str]", *, inside: bool) -> bool:
    """Whether a class is open behind a token; inside one, [ is a plain character."""
    if inside:
        return not (token["close"] or token["nothing"])
    return bool(token["open"])


def _rewritten(pattern: str) -> str:
    text, inside = "", False
    for token in _TOKEN.finditer(pattern):
        text += _spelled(token, inside=inside)
        inside = _inside_after(token, inside=inside)
    return text


def _spelled(token: "re.Match[str]", *, inside: bool) -> str:
    """One token the way the linear engine spells it."""
    if token["unit"]:
        return f"\\x{{{token['unit']}}}"
    if token["control"]:
        return f"\\x{ord(token['control'].upper()) - 64:02x}"
    if token["escape"]:
        return _escape(token["escape"], inside=inside)
    if inside and (token["open"] or token["nothing"] or token["anything"]):
        return "\\" + token[0]
    if token["nothing"]:
        return r"[^\s\S]"
    return r"[\s\S]" if token["anything"] else token[0]


def _escape(letter: str, *, inside: bool) -> str:
    if letter == "b" and inside:
        return "\\x08"
    if letter == "s":
        return _BLANKS if inside else f"[{_BLANKS}]"
    if letter == "S" and not inside:
        return f"[^{_BLANKS}]"
    if letter.isalpha() and letter not in _MEANINGFUL:
        return letter
    return f"\\{letter}"
