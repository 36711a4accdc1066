"""Variables in texts: `$USER_MESSAGE`, `$setup.output.field`, `$INPUTS.branch` and their kin.

All of them are found in one pass, each with a boundary behind it, and what is filled in is never
looked at again. `$$` in front of a variable is a plain `$`: `$$USER_MESSAGE` gives `$USER_MESSAGE`.
A workflow that is run for each item of a list has one variable more, by the name that the item has.
"""

import re
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
    "CONTEXT": _CONTEXT,
    "EXTERNAL_CONTEXT": _CONTEXT,
    "ISSUE_CONTEXT": _CONTEXT,
    "LOOP_USER_INPUT": Ref(of="feedback"),
    "LOOP_PREV_OUTPUT": Ref(of="previous"),
    "REJECTION_REASON": Ref(of="rejection"),
}
# Made by Loopwright itself: neither an agent nor a message has a say in them.
TRUSTED = frozenset({"ARTIFACTS_DIR", "WORKFLOW_ID"})
RESERVED_IDS = frozenset({*VARIABLES, "INPUTS", "LOOP_PREV"})

_END = r"(?![A-Za-z0-9_])"
_OUTPUT = rf"\.output{_END}(?:\.(?P<{{}}>{FIELD_PATTERN}))?"
_NOBODY = r"(?!)"


@lru_cache(maxsize=256)
def _pattern(item: str | None) -> "re.Pattern[str]":
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


def marks(text: str, item: str | None = None) -> list[Mark]:
    """Every variable of a text in order, also those that are escaped; `item` is the name of the
    item where there is one.
    """
    if "$" not in text:
        return []
    return [
        Mark(found[0], found.start(), _ref(found), found["variable"], bool(found["escape"]))
        for found in _pattern(item).finditer(text)
    ]


def _ref(found: "re.Match[str]") -> Ref:
    if found["variable"]:
        return VARIABLES[found["variable"]]
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


def template(text: str, item: str | None = None) -> Template:
    """The text with its places to fill."""
    parts: list[Lit | Ref] = []
    literal, at = "", 0
    for mark in marks(text, item):
        literal += text[at : mark.at]
        at = mark.end
        if mark.escaped:
            literal += mark.written[1:]
            continue
        parts += [Lit(text=literal), mark.ref] if literal else [mark.ref]
        literal = ""
    literal += text[at:]
    return (*parts, Lit(text=literal)) if literal else tuple(parts)
