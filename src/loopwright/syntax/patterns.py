"""Regular expressions: compiled when a definition is loaded, so that none fails during a run.

The linear engine (RE2) matches in time linear in the text; it has no look-around, back-references
or large repetitions. A pattern of a check that needs them runs in the JavaScript engine instead,
which backtracks, so the search runs in a process with a time limit. In other places such a pattern
is rejected with a workaround, and so is a pattern that would match any output.
"""

import re
from typing import Literal, NamedTuple, TypeAlias

import re2
import regress

Engine: TypeAlias = Literal["linear", "javascript"]

MAX_PATTERN = 1_000
MAX_REPETITION = 1_000
MAX_PROGRAM = 20_000

# A pattern that matches each of these ends a loop after the first iteration, whatever its output.
_ANY_OUTPUT = ("a", "Z", "0", " ", "~", "é")

_TOKEN = re.compile(
    r"""
      \\Q.*?(?:\\E|$)                           # quoted text
    | \\(?P<escape>[1-9]|k[<{']|g[<{'\d]|[ZGKR]|.|$)
    | \[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]?  # a class, also one that is not closed
    | \((?P<group>\?(?:<?[=!]|>|\(|\#|R\)|\||P[=>]|&|[+-]?\d+\)))?
    | (?P<possessive>(?:[*+?]|\{\d+(?:,\d*)?\})\+)
    | \{(?P<low>\d+)(?:,(?P<high>\d*))?\}
    | (?P<close>\))
    | .
    """,
    re.VERBOSE | re.DOTALL,
)

_STACKED = re.compile(r"\{(\d+)(?:,\d*)?\}\{(\d+)(?:,\d*)?\}")
_BACK_REFERENCE = ("back-references", "write out what the group may be, or use a command check")
_ENDS = ("anchors such as \\Z", r"use \z for the end and \A for the beginning of the output")
_ATOMIC = ("atomic groups", "leave the ?> out: the engine never backtracks")
_GROUPS = {
    "?=": ("look-aheads", "combine two checks with all: [{regex: …}, {regex: …}]"),
    "?!": ("negative look-aheads", "name what must be there, or use a command check"),
    "?<=": ("look-behinds", "match the text before it as well"),
    "?<!": ("negative look-behinds", "name what may precede it, or use a command check"),
    "?>": _ATOMIC,
    "?#": ("comments", "put the comment into the file, behind a #"),
}
_OTHER_GROUP = ("conditional, recursive and branch-reset groups", "use a command check")


class PatternFault(NamedTuple):
    """Why a pattern is rejected; `column` counts from 1, 0 means the whole pattern."""

    code: str
    message: str
    hint: str | None = None
    column: int = 0

    def sentence(self) -> str:
        """The message with the position in the pattern."""
        place = f" at column {self.column} of the pattern" if self.column else ""
        return f"{self.message}{place}"


def compiled(pattern: str, *, ignore_case: bool) -> "re2._Regexp":
    """The compiled pattern; raises `re2.error`. Never writes to stderr."""
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    return re2.compile(pattern, options)


def pattern_fault(pattern: str, *, ignore_case: bool = False) -> PatternFault | None:
    """Why a pattern is rejected, or None."""
    if not pattern:
        return PatternFault(
            "matches-everything", "an empty pattern matches any output", _BE_SPECIFIC
        )
    if len(pattern) > MAX_PATTERN:
        message = f"the pattern has {len(pattern):,} characters; at most {MAX_PATTERN:,} are taken"
        return PatternFault("regex-too-big", message, _USE_SCRIPT)
    return _scan(pattern) or engine_fault(pattern, ignore_case=ignore_case)


def pattern_engine(pattern: str, *, ignore_case: bool = False) -> Engine | PatternFault:
    """The engine for the pattern of a check, or why there is none. Escapes that only languages
    other than JavaScript know are rejected: they would be plain letters.
    """
    found = pattern_fault(pattern, ignore_case=ignore_case)
    if found is None:
        return "linear"
    if found.code not in ("regex-feature", "regex-too-big") or len(pattern) > MAX_PATTERN:
        return found
    if _has_unknown_escapes(pattern) or javascript_problem(pattern) is not None:
        return found
    return "javascript"


def javascript_problem(pattern: str) -> str | None:
    """Why a pattern is not valid in JavaScript, or None."""
    try:
        regress.Regex(pattern)
    except regress.RegressError as error:
        return str(error)
    except UnicodeEncodeError:
        return "it has half of a surrogate pair"
    return None


def _has_unknown_escapes(pattern: str) -> bool:
    escapes = (token[0][1:2] for token in re.finditer(r"\\.", pattern, re.DOTALL))
    unknown = any(one.isalpha() and one not in _JAVASCRIPT_ESCAPES for one in escapes)
    return unknown or "[[:" in pattern


def engine_fault(pattern: str, *, ignore_case: bool) -> PatternFault | None:
    """Why the engine rejects a pattern, or why it would be useless."""
    try:
        program = compiled(pattern, ignore_case=ignore_case)
    except re2.error as error:
        return _refused(pattern, error)
    if program.programsize > MAX_PROGRAM:
        return PatternFault(
            "regex-too-big", "the pattern is too big once repetitions are written out"
        )
    if all(program.search(text) for text in _ANY_OUTPUT):
        return PatternFault("matches-everything", "the pattern matches any output", _BE_SPECIFIC)
    return None


_JAVASCRIPT_ESCAPES = frozenset("dDwWsSbBfnrtvcxuk")
_BE_SPECIFIC = "say what the output must contain"
_USE_SCRIPT = "use a command check with a script of yours"


def _scan(pattern: str) -> PatternFault | None:
    """Problems that can be found without the engine: features it lacks, repetitions beyond its
    range.
    """
    for token in _TOKEN.finditer(pattern):
        column = token.start() + 1
        feature = _feature(token)
        if feature:
            name, hint = feature
            return PatternFault("regex-feature", f"{name} are not supported", hint, column)
        counts = [int(n[:9]) for n in (token["low"], token["high"]) if n]
        if counts and max(counts) > MAX_REPETITION:
            message = f"{token[0]} repeats more than {MAX_REPETITION:,} times"
            return PatternFault("regex-too-big", message, _USE_SCRIPT, column)
    return None


def _feature(token: "re.Match[str]") -> tuple[str, str] | None:
    if token["group"]:
        if token["group"].startswith("?P"):
            return _BACK_REFERENCE
        return _GROUPS.get(token["group"], _OTHER_GROUP)
    if token["possessive"]:
        return ("possessive repetitions", "leave the last + out: the engine never backtracks")
    escape = token["escape"] or ""
    if escape[:1] in ("Z", "G"):
        return _ENDS
    if escape[:1] in ("K", "R"):
        return (f"escapes such as \\{escape}", "write out the characters that are meant")
    is_reference = escape.isdigit() or len(escape) > 1
    return _BACK_REFERENCE if is_reference else None


def _refused(pattern: str, error: Exception) -> PatternFault:
    """The engine's message, with its column."""
    raw = error.args[0]
    words = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    problem, _, fragment = words.partition(": ")
    if problem == "missing )":
        return PatternFault(
            "bad-regex", "a ( is not closed", "close it, or write \\(", _open(pattern)
        )
    if problem == "unexpected )":
        return PatternFault(
            "bad-regex", "a ) closes nothing", "remove it, or write \\)", _open(pattern)
        )
    column = max(pattern.rfind(fragment), 0) + 1 if fragment else 1
    if times := repeated_times(fragment):
        return _stacked(times, column)
    if "too large" in problem:
        return PatternFault("regex-too-big", "repetitions of repetitions", _USE_SCRIPT, column)
    if problem == "invalid repetition size" and not _is_reversed(fragment):
        message = "the repetitions multiply to more than the engine takes"
        return PatternFault("regex-too-big", message, _USE_SCRIPT, column)
    return PatternFault("bad-regex", f"{problem} {fragment}".strip(), None, column)


def repeated_times(fragment: str) -> int:
    """The minimum number of repetitions of `{2}{3}`, a nested repetition; 0 for others."""
    found = _STACKED.match(fragment)
    # Cut, so that numbers of any length are processed quickly: they are too large anyway.
    return max(int(found[1][:9]), 1) * max(int(found[2][:9]), 1) if found else 0


def _stacked(times: int, column: int) -> PatternFault:
    if times > MAX_REPETITION:
        return PatternFault("regex-too-big", "repetitions of repetitions", _USE_SCRIPT, column)
    hint = "put what is repeated into a group: (?:a{2}){3}"
    return PatternFault("bad-regex", "a repetition cannot be repeated", hint, column)


def _is_reversed(fragment: str) -> bool:
    low, _, high = fragment.strip("{}").partition(",")
    return bool(high) and int(low) > int(high)


def _open(pattern: str) -> int:
    """Column of the first parenthesis without a partner."""
    opened: list[int] = []
    for token in _TOKEN.finditer(pattern):
        if token[0].startswith("("):
            opened.append(token.start() + 1)
        elif token["close"]:
            if not opened:
                return token.start() + 1
            opened.pop()
    return opened[0] if opened else 1
