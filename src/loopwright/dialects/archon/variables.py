"""Variables in texts: `$USER_MESSAGE`, `$setup.output.field`, `$INPUTS.branch` and their kin.

All of them are found in one pass, and what is filled in is never looked at again. In scripts a
variable ends at a boundary; in other texts a word character may follow, as in Archon:
`$WORKFLOW_ID_x` is the id of the run and `_x`. `$$` in front of a variable is a plain `$`:
`$$USER_MESSAGE` gives `$USER_MESSAGE`.
A workflow that is run for each item of a list has one variable more, by the name that the item has.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from loopwright.model.template import Lit, Ref, Template

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
    """What a variable looks like where the item of a list has this name."""
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
    """A variable as it is written, and where in its text it stands."""

    written: str
    at: int
    ref: Ref
    variable: str | None = None
    escaped: bool = False
    source: str = ""  # the variable whose value a variable of the script holds

    @property
    def end(self) -> int:
        """Offset behind it."""
        return self.at + len(self.written)


def marks(text: str, item: str | None = None, *, is_prose: bool = False) -> list[Mark]:
    """Every variable of a text in order, also those that are escaped; `item` is the name of the
    item where there is one. In prose a variable may be the beginning of a longer word.
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
    """The text with its places to fill. What names a node that is not among the `known` ones is
    text: an example in a prompt, for instance.
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
