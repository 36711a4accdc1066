"""Tests in scripts which prove that a value is harmless.

A test such as `[[ $n =~ ^[0-9]+$ ]] || exit 1` proves that `n` is a number from there on. Each
list of commands has two sets of such variables: those proven when it succeeds, and when it
fails.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from loopwright.dialects.archon.shell.state import Word

# `None` means all variables: the place is never reached.
Proven: TypeAlias = frozenset[str] | None
NOTHING: frozenset[str] = frozenset()

_LOOPS = ("while", "until", "for", "select")
_DIGIT_CLASS = r"\[(?:0-9|1-9|\[:digit:\])\](?:[+*?]|\{\d*,?\d*\})?"
_IS_NUMBER = re.compile(
    rf"(?P<no>!\s+)?\"?\$\{{?(?P<name>\w+)\}}?\"?\s+=~\s+\^-?\??(?:{_DIGIT_CLASS})+\$"
)
_HAS_OTHERS = re.compile(
    r"(?P<no>!\s+)?\"?\$\{?(?P<name>\w+)\}?\"?\s+(?P<sign>==|=|!=)\s+\*\[[!^]0-9\]\*"
)
_NOT_A_NUMBER = frozenset({"*[!0-9]*", "*[^0-9]*"})
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
_COMPARES = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


class Proof(NamedTuple):
    """What a command proves when it succeeds, and when it fails."""

    success: frozenset[str] = NOTHING
    failure: frozenset[str] = NOTHING
    cleaned: frozenset[str] = NOTHING  # variables that it gives a harmless value
    spoiled: frozenset[str] = NOTHING  # variables that may hold a value from outside afterwards
    leaves: bool = False  # it never comes back


@dataclass(slots=True)
class _Block:
    kind: str
    start: Proven
    current: Proven
    true: Proven = NOTHING  # when the list so far has succeeded
    false: Proven = NOTHING
    seen: bool = False  # the list has a command
    sign: str = ""
    negated: bool = False
    piped: bool = False
    result: tuple[Proven, Proven] | None = None  # of the group that has just ended
    ends: list[Proven] = field(default_factory=list)  # what holds at the end of each branch
    otherwise: Proven = NOTHING
    has_else: bool = False
    subject: str = ""  # of a case: its variable


def _meet(one: Proven, other: Proven) -> Proven:
    return other if one is None else one if other is None else one & other


def _join(one: Proven, names: frozenset[str]) -> Proven:
    return None if one is None else one | names


def _without(one: Proven, names: Iterable[str]) -> Proven:
    return None if one is None else one.difference(names)


class Guards:
    """Tracks what is proven while a script is read from left to right."""

    def __init__(self) -> None:
        self.blocks = [_Block("{", NOTHING, NOTHING)]

    def is_proven(self, name: str) -> bool:
        """Whether a variable holds a harmless value at this place."""
        current = self.blocks[-1].current
        return current is None or name in current

    def is_left(self, name: str, words: Sequence[Word]) -> bool:
        """Whether a command never comes back to this place."""
        if len(words) > 1 or any(one.many for one in words):
            return False
        around = [one.kind for one in reversed(self.blocks)]
        inside = around[: around.index("(")] if "(" in around else around
        if name in ("break", "continue"):
            body = inside[: inside.index("function")] if "function" in inside else inside
            return any(kind in _LOOPS for kind in body)
        return name == "exit" or (name == "return" and "function" in inside)

    # -- lists of commands -------------------------------------------------------------------------

    def negate(self) -> None:
        """A ! before the next command."""
        self.blocks[-1].negated = not self.blocks[-1].negated

    def finish(self, outcome: Proof, separator: str) -> None:
        """A command has ended with `separator`."""
        block = self.blocks[-1]
        true, false = self._result(block, outcome)
        apart = block.piped or separator in ("|", "|&", "&")
        if apart:  # it runs in a separate process
            true = false = _without(_meet(block.current, _meet(true, false)), outcome.spoiled)
        block.piped = separator in ("|", "|&")
        if block.piped:
            return
        if block.negated:
            true, false, block.negated = false, true, False
        if block.sign == "&&":
            false = _meet(block.false, false)
        elif block.sign == "||":
            true = _meet(block.true, true)
        block.true, block.false, block.seen = true, false, True
        block.sign = separator if separator in ("&&", "||") else ""
        after = {"&&": true, "||": false}
        block.current = after[block.sign] if block.sign else _meet(true, false)

    def _result(self, block: _Block, outcome: Proof) -> tuple[Proven, Proven]:
        if block.result is not None:
            result, block.result = block.result, None
            return result
        if outcome.leaves:
            return None, None
        left = _without(block.current, outcome.spoiled)
        kept = _join(left, outcome.cleaned)
        return _join(kept, outcome.success), _join(kept, outcome.failure)

    # -- groups ------------------------------------------------------------------------------------

    def open(self, kind: str, spoiled: Iterable[str] = ()) -> None:
        """A group starts; `spoiled` are the variables to which a loop assigns values from
        outside.
        """
        current = self.blocks[-1].current
        start = NOTHING if kind == "function" else _without(current, spoiled)
        self.blocks.append(_Block(kind, start, start))

    def open_case(self, written: str) -> None:
        """The word of a case is known."""
        block, found = self.blocks[-1], _VARIABLE.fullmatch(written)
        block.subject = found[1] if found else ""
        block.otherwise = block.current

    def open_clause(self, patterns: Sequence[str]) -> None:
        """The commands for some patterns of a case start; later ones are for all other words."""
        block = self.blocks[-1]
        block.current, block.seen, block.sign = block.otherwise, False, ""
        if block.subject and _NOT_A_NUMBER.intersection(patterns):
            block.otherwise = _join(block.otherwise, frozenset({block.subject}))

    def end_clause(self, separator: str) -> None:
        """The commands for some patterns have ended."""
        block = self.blocks[-1]
        block.ends.append(block.current)
        if separator != ";;":  # the next commands run after these, too
            block.otherwise = NOTHING

    def branch(self, word: str) -> None:
        """`then`, `elif`, `else` or `do` starts another part of a group."""
        block = self.blocks[-1]
        true = block.true if block.seen else block.current
        false = block.false if block.seen else block.current
        if word == "then":
            block.otherwise, block.current = false, true
        elif word == "do":
            block.current = {"while": true, "until": false}.get(block.kind, block.current)
        else:
            block.ends.append(block.current)
            block.current, block.has_else = block.otherwise, word == "else"
        block.seen, block.sign = False, ""

    def close(self, *, captured: bool = False) -> None:
        """A group has ended; what it prints may be part of a word."""
        block = self.blocks.pop()
        around = self.blocks[-1]
        if captured:
            return
        around.result = (around.current, around.current)
        if block.kind == "{":
            seen = (block.true, block.false) if block.seen else (block.current, block.current)
            around.result = seen
        elif block.kind in ("if", "case"):
            end = block.current
            for one in [*block.ends, *([] if block.has_else else [block.otherwise])]:
                end = _meet(end, one)
            around.result = (end, end)
        elif block.kind in _LOOPS:
            around.result = (block.start, block.start)


def find_tested(text: str) -> Proof:
    """What a condition in `[[ … ]]` proves about numbers."""
    parts = [one.strip() for one in text.split("&&")] if "||" not in text else []
    found = [_test_part(one) for one in parts]
    success = frozenset(name for one in found for name in one.success)
    return Proof(success, found[0].failure if len(found) == 1 else NOTHING)


def _test_part(text: str) -> Proof:
    number, others = _IS_NUMBER.fullmatch(text), _HAS_OTHERS.fullmatch(text)
    if number:
        names = frozenset({number["name"]})
        return Proof(failure=names) if number["no"] else Proof(names)
    if others:
        names = frozenset({others["name"]})
        differs = (others["sign"] == "!=") != bool(others["no"])
        return Proof(names) if differs else Proof(failure=names)
    return Proof()


def find_compared(words: Sequence[Word]) -> frozenset[str]:
    """The variables that are numbers when `[ A -gt B ]` succeeds."""
    operands = [one for one in words if one.literal != "]" or one.marks]
    if len(operands) != 3 or operands[1].literal not in _COMPARES:
        return NOTHING
    found = (_VARIABLE.fullmatch(one.source) for one in (operands[0], operands[2]))
    return frozenset(one[1] for one in found if one)
