"""Variables and conditions of a workflow, and the environment variables of its scripts.

Variables in texts (`$USER_MESSAGE`, `$setup.output.field`, `$INPUTS.branch`) are all found in
one search, and inserted values are never searched again. In scripts a variable ends at a
boundary; in other texts a word character may follow, as in Archon: `$WORKFLOW_ID_x` is the id
of the run and `_x`. `$$` in front of a variable is a plain `$`: `$$USER_MESSAGE` gives
`$USER_MESSAGE`. A workflow that runs once per item of a list has one more variable, with the
name of the item.

In scripts each value has an environment variable: `LW_SETUP_OUTPUT`, `LW_SETUP_OUTPUT_FIELD`.

Conditions of nodes are `$review.output.verdict == 'ok' && $count.output > 3 || …`: `&&` binds
tighter than `||`, quotes protect both, and there are no parentheses. A clause that cannot be
parsed is kept as a clause that cannot be evaluated: the node is skipped when it is reached,
unless an earlier clause has decided.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, cast

from loopwright.model.actions import UNREADABLE, Compare, Condition, EveryOf, Operator, SomeOf
from loopwright.model.record import JsonValue, Lit, Ref, Source, Template

ID_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*(?:-+[A-Za-z0-9_]+)*"
FIELD_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*"

_CONTEXT = Ref(of="input", name="context")
VARIABLES: dict[str, Ref] = {
    "ARGUMENTS": Ref(of="message"),
    "USER_MESSAGE": Ref(of="message"),
    "WORKFLOW_ID": Ref(of="run"),
    "ARTIFACTS_DIR": Ref(of="setting", name="artifacts"),
    "BASE_BRANCH": Ref(of="setting", name="base_branch"),
    "DOCS_DIR": Ref(of="setting", name="docs_dir"),
    "STATE_DIR": Ref(of="setting", name="state"),
    "CONTEXT": _CONTEXT,
    "EXTERNAL_CONTEXT": _CONTEXT,
    "ISSUE_CONTEXT": _CONTEXT,
    "LOOP_USER_INPUT": Ref(of="feedback"),
    "LOOP_PREV_OUTPUT": Ref(of="previous"),
    "REJECTION_REASON": Ref(of="rejection"),
}
# Made by Loopwright itself: neither an agent nor a message has a say in them.
TRUSTED = frozenset({"ARTIFACTS_DIR", "STATE_DIR", "WORKFLOW_ID"})
RESERVED_IDS = frozenset({*VARIABLES, "INPUTS", "LOOP_PREV"})

_END = r"(?![A-Za-z0-9_])"
_OUTPUT = rf"\.output{_END}(?:\.(?P<{{}}>{FIELD_PATTERN}))?"
_NOBODY = r"(?!)"
_CODE = re.compile(r"^[ \t]*(```+|~~~+).*?^[ \t]*\1|`[^`\n]+`", re.MULTILINE | re.DOTALL)


_LONGEST_FIRST = "|".join(sorted(VARIABLES, key=len, reverse=True))
_BEGINS = re.compile(_LONGEST_FIRST)


@lru_cache(maxsize=256)
def _pattern(item: str | None, *, is_prose: bool) -> "re.Pattern[str]":
    """The pattern of a variable if the item of a list has this name."""
    own = rf"{item}{_END}(?!-[A-Za-z0-9_-]*\.output{_END})" if item else _NOBODY
    return re.compile(
        rf"""
        (?P<escape>\$)?\$(?:
            (?P<variable>{"|".join(VARIABLES)}){_END}
          | INPUTS\.(?P<input>{ID_PATTERN})
          | LOOP_PREV\.(?P<before>{ID_PATTERN}){_OUTPUT.format("before_field")}
          | (?P<item>{own})(?:\.(?P<item_field>{FIELD_PATTERN}))?
          | (?P<node>{ID_PATTERN}){_OUTPUT.format("field")}
          | (?P<begin>{_LONGEST_FIRST if is_prose else _NOBODY})
        )
        """,
        re.VERBOSE,
    )


@dataclass(frozen=True, slots=True)
class Mark:
    """A variable as written, and its position in its text."""

    written: str
    at: int
    ref: Ref
    variable: str | None = None
    escaped: bool = False
    source: str = ""  # the variable whose value a variable of the script holds

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.at + len(self.written)


def marks(text: str, item: str | None = None, *, is_prose: bool = False) -> list[Mark]:
    """Every variable of a text in order, including escaped ones; `item` is the name of the item, if
    there is one. In prose a variable may be the beginning of a longer word.
    """
    if "$" not in text:
        return []
    return [
        Mark(found[0], found.start(), _ref(found), _variable(found), bool(found["escape"]))
        for found in _pattern(item, is_prose=is_prose).finditer(text)
    ]


def longest_variable(word: str) -> str | None:
    """The longest variable with which a word begins."""
    found = _BEGINS.match(word)
    return found[0] if found else None


def _variable(found: "re.Match[str]") -> str | None:
    return found["variable"] or found["begin"]


def _ref(found: "re.Match[str]") -> Ref:
    variable = _variable(found)
    if variable:
        return VARIABLES[variable]
    if found["input"]:
        return Ref(of="input", name=found["input"])
    if found["item"]:
        return Ref(of="item", field=found["item_field"])
    if found["before"]:
        field = found["before_field"]
        return Ref(
            of="previous_result" if field else "previous_output", name=found["before"], field=field
        )
    field = found["field"]
    return Ref(of="result" if field else "output", name=found["node"], field=field)


def template(text: str, item: str | None = None, known: Collection[str] | None = None) -> Template:
    """The text with its references. The name of a node that is not among the `known` ones is text:
    an example in a prompt, for instance.
    """
    parts: list[Lit | Ref] = []
    literal, at = "", 0
    for mark in marks(text, item, is_prose=True):
        if known is not None and mark.ref.of in ("output", "result") and mark.ref.name not in known:
            continue
        literal += text[at : mark.at]
        at = mark.end
        if mark.escaped:
            literal += mark.written[1:]
            continue
        parts += [Lit(text=literal), mark.ref] if literal else [mark.ref]
        literal = ""
    literal += text[at:]
    return (*parts, Lit(text=literal)) if literal else tuple(parts)


def is_in_code(text: str, at: int) -> bool:
    """Whether a place of a prompt is inside a block of code or in backquotes."""
    return any(found.start() < at < found.end() for found in _CODE.finditer(text))


OWN = "LW_"
INPUTS = "INPUTS_"
"""The prefix of variables of inputs in Archon."""
# Given to every script: what a program that the script starts expects to find.
_ALWAYS = ("ARGUMENTS", "USER_MESSAGE", "WORKFLOW_ID")
_NOT_IN_NAMES = re.compile(r"[^A-Z0-9]+")
_KINDS: tuple[tuple[str, Source, Source], ...] = (
    (OWN, "output", "result"),
    (f"{OWN}PREV_", "previous_output", "previous_result"),
)
_WHOLE: dict[Source, Source] = {part: whole for _, whole, part in _KINDS}
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def find_value_names(*texts: str) -> list[str]:
    """The variables with values that texts name, such as code for another interpreter."""
    words = [word for text in texts for word in re.findall(r"[A-Za-z_]\w*", text)]
    return [word for word in words if _is_value_name(word)]


def _is_value_name(word: str) -> bool:
    return word.startswith((OWN, INPUTS)) or (word in VARIABLES and word not in TRUSTED)


class EnvNames:
    """The names of one workflow: each node has its own, the same everywhere."""

    def __init__(
        self, ids: Iterable[str], inputs: Iterable[str] = (), item: str | None = None
    ) -> None:
        self.item = item
        self._nodes: dict[str, str] = {}
        self._inputs: dict[str, str] = {}
        for table, names in ((self._nodes, ids), (self._inputs, inputs)):
            taken: set[str] = set()
            for name in dict.fromkeys(names):
                table[name] = _free(upper_name(name), taken)
                taken.add(table[name])

    def name(self, ref: Ref, variable: str | None = None) -> str:
        """The name for the value of a reference."""
        if variable:
            return variable
        own = ref.name or ""
        if ref.of == "item":
            return self._of_item(ref.field)
        if ref.of == "input":
            return f"{OWN}INPUT_{self._inputs.get(own) or upper_name(own)}"
        prefix = f"{OWN}PREV_" if ref.of.startswith("previous_") else OWN
        field = f"_{upper_name(ref.field)}" if ref.field else ""
        return f"{prefix}{self._nodes.get(own) or upper_name(own)}_OUTPUT{field}"

    def has_node(self, name: str) -> bool:
        """Whether there is a node of this name."""
        return name in self._nodes

    def _of_item(self, field: str | None) -> str:
        name = f"{OWN}{upper_name(self.item or '')}"
        return f"{name}_{upper_name(field)}" if field else name

    def mentioned(self, text: str) -> dict[str, Ref]:
        """The values that a text asks for by their names."""
        words = set(_WORD.findall(text))
        words |= {word.removesuffix("_FILE") for word in words if not word.startswith(OWN)}
        found = {name: VARIABLES[name] for name in VARIABLES if name in words or name in _ALWAYS}
        own = sorted(word for word in words if word.startswith(OWN))
        for node, upper in self._nodes.items() if own else ():
            for word in own:
                ref = _question_ref(word, node, upper)
                if ref and ref.field == "file" and ".output.file" not in text:
                    stem = word.removesuffix("_FILE")  # the name of a file that holds the value
                    found[stem] = Ref(of=_WHOLE[ref.of], name=node)
                elif ref:
                    found[word] = ref
        for name, upper in self._inputs.items():
            ref = Ref(of="input", name=name)
            for stem in (self.name(ref), f"{INPUTS}{upper}"):
                if stem in words or f"{stem}_FILE" in words:
                    found[stem] = ref
        for word in own if self.item else ():
            if word not in found and f"{word}_".startswith(f"{self._of_item(None)}_"):
                field = word.removeprefix(self._of_item(None))[1:].lower()
                found[word] = Ref(of="item", field=field or None)
        return found


def _question_ref(word: str, node: str, upper: str) -> Ref | None:
    """What a word asks of a node, if it does."""
    for prefix, whole, part in _KINDS:
        stem = f"{prefix}{upper}_OUTPUT"
        if word == stem:
            return Ref(of=whole, name=node)
        if word.startswith(f"{stem}_"):
            return Ref(of=part, name=node, field=word.removeprefix(f"{stem}_").lower())
    return None


class Environment:
    """The values of one script, under names of which each has one meaning."""

    def __init__(self, names: EnvNames, text: str) -> None:
        self.item = names.item
        self._names = names
        self._values = names.mentioned(text)

    def add(self, ref: Ref, variable: str | None = None) -> str:
        """Give the script a value; the name under which it finds it."""
        name = self._names.name(ref, variable)
        number = 1
        while self._values.get(_numbered(name, number), ref) != ref:
            number += 1
        self._values[_numbered(name, number)] = ref
        return _numbered(name, number)

    def knows(self, node: str) -> bool:
        """Whether the workflow has a node of this name."""
        return self._names.has_node(node)

    def is_file(self, name: str) -> bool:
        """Whether a name is that of a file with a value, which is a path and not the value."""
        stem = name.removesuffix("_FILE")
        return stem != name and stem in self._values and name not in self._values

    def templates(self) -> dict[str, Template]:
        """The values as the plan holds them."""
        return {name: (ref,) for name, ref in sorted(self._values.items())}


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}_{number}"


def _free(name: str, taken: set[str]) -> str:
    number = 1
    while _numbered(name, number) in taken:
        number += 1
    return _numbered(name, number)


def upper_name(name: str) -> str:
    """A name as part of the name of a variable."""
    return _NOT_IN_NAMES.sub("_", name.upper())


@lru_cache(maxsize=256)
def _left_side_pattern(item: str | None) -> "re.Pattern[str]":
    """The pattern of a clause if the item of a list has this name."""
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
    # An order needs numbers: a text in its place is an error whenever it is evaluated.
    return Compare(ref=Ref(of="run"), op="<", value=f"{UNREADABLE}{clause.written}")


def _is_there(ref: Ref, known: Collection[str] | None) -> bool:
    return known is None or ref.name in known


def _split(text: str, sign: str, start: int) -> Iterator[tuple[str, int]]:
    """The parts between signs that are outside of quotes."""
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
    found = _left_side_pattern(item).fullmatch(part)
    if found is None:
        return Clause(written, place, problem="it is not a comparison")
    if found["before"]:
        return Clause(written, place, problem="a condition cannot use the previous iteration")
    ref = _left_side_ref(found)
    op = cast("Operator", found["op"])
    value = _value(found, ordered=op not in ("==", "!="))
    if value is None:
        return Clause(written, place, ref, problem=f"{op} compares numbers only")
    return Clause(written, place, ref, compare=Compare(ref=ref, op=op, value=value))


def _left_side_ref(found: "re.Match[str]") -> Ref:
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
