"""Conditions of nodes: `$review.output.verdict == 'ok' && $count.output > 3 || …`.

`&&` binds tighter than `||`, quotes protect both, there are no parentheses. A clause that cannot
be understood is kept as one that cannot be evaluated: the node is left out when it is reached, and
not when a clause in front of it has decided.
"""

import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import NamedTuple, cast

from loopwright.dialects.archon.variables import FIELD_PATTERN, ID_PATTERN
from loopwright.model.expr import Compare, Condition, EveryOf, Operator, SomeOf
from loopwright.model.record import JsonValue
from loopwright.model.template import Ref


@lru_cache(maxsize=256)
def _pattern(item: str | None) -> "re.Pattern[str]":
    """What a clause looks like where the item of a list has this name."""
    own = rf"{item}(?![A-Za-z0-9_-])(?:\.(?P<item_field>{FIELD_PATTERN}))?" if item else "(?!)"
    return re.compile(
        rf"""\s*(?P<subject>
            \$INPUTS\.(?P<input>{ID_PATTERN})
          | \$LOOP_PREV\.(?P<before>{ID_PATTERN})\.output(?:\.{FIELD_PATTERN})?
          | \$(?P<item>{own})
          | \$(?P<node>{ID_PATTERN})\.output(?:\.(?P<field>{FIELD_PATTERN}))?
          | \$(?P<short>{ID_PATTERN})\.(?P<short_field>{FIELD_PATTERN})
        )
        \s*(?P<op>==|!=|<=|>=|<|>)\s*
        (?:'(?P<text>[^']*)' | (?P<number>[-+]?(?:\d+(?:\.\d+)?|\.\d+))
          | (?P<word>true|false))\s*""",
        re.VERBOSE,
    )


_NUMBER = re.compile(r"\s*[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?\s*")


class Clause(NamedTuple):
    """One comparison as it is written; `problem` says why it cannot be evaluated."""

    written: str
    at: int
    ref: Ref | None = None
    problem: str | None = None
    compare: Compare | None = None


def clauses(text: str, item: str | None = None) -> list[list[Clause]]:
    """The clauses: the inner lists must hold as a whole, one of the outer ones is enough."""
    return [
        [_clause(part, at, item) for part, at in _split(some, "&&", start)]
        for some, start in _split(text, "||", 0)
    ]


def condition(
    text: str, item: str | None = None, *, known: Collection[str] | None = None
) -> Condition:
    """The condition that the engine evaluates; `known` are the nodes there are."""
    some = [_joined([_evaluable(one, known) for one in every]) for every in clauses(text, item)]
    return some[0] if len(some) == 1 else SomeOf(parts=tuple(some))


def _joined(every: list[Condition]) -> Condition:
    return every[0] if len(every) == 1 else EveryOf(parts=tuple(every))


def _evaluable(clause: Clause, known: Collection[str] | None) -> Condition:
    compare = clause.compare
    if compare is not None and (compare.ref.of != "result" or _is_there(compare.ref, known)):
        return compare
    # An order needs numbers: a text in its place is an error whenever it is looked at.
    return Compare(ref=Ref(of="run"), op="<", value=f"unreadable: {clause.written}")


def _is_there(ref: Ref, known: Collection[str] | None) -> bool:
    return known is None or ref.name in known


def _split(text: str, sign: str, start: int) -> Iterator[tuple[str, int]]:
    """The parts between signs that stand outside of quotes."""
    at = begin = 0
    quoted = False
    while at < len(text):
        if text[at] == "'":
            quoted = not quoted
        elif not quoted and text.startswith(sign, at):
            yield text[begin:at], start + begin
            at = begin = at + len(sign)
            continue
        at += 1
    yield text[begin:], start + begin


def _clause(part: str, at: int, item: str | None) -> Clause:
    written = part.strip()
    place = at + len(part) - len(part.lstrip())
    found = _pattern(item).fullmatch(part)
    if found is None:
        return Clause(written, place, problem="it is no comparison")
    if found["before"]:
        return Clause(written, place, problem="a condition cannot look at the pass before")
    ref = _ref(found)
    op = cast("Operator", found["op"])
    value = _value(found, ordered=op not in ("==", "!="))
    if value is None:
        return Clause(written, place, ref, problem=f"{op} compares numbers only")
    return Clause(written, place, ref, compare=Compare(ref=ref, op=op, value=value))


def _ref(found: "re.Match[str]") -> Ref:
    if found["input"]:
        return Ref(of="input", name=found["input"])
    if found["item"]:
        return Ref(of="item", field=found.groupdict().get("item_field"))
    if found["short"]:
        return Ref(of="result", name=found["short"], field=found["short_field"])
    field = found["field"]
    return Ref(of="result" if field else "output", name=found["node"], field=field)


def _value(found: "re.Match[str]", *, ordered: bool) -> JsonValue:
    if found["word"]:
        return None if ordered else found["word"] == "true"
    text = found["number"] or found["text"]
    if not ordered and found["number"] is None:
        return str(text)
    if not _NUMBER.fullmatch(text):
        return None
    return int(text) if re.fullmatch(r"\s*[-+]?\d{1,15}\s*", text) else float(text)
