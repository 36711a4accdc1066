"""The base class of all records of the model, and its text types: Text, Blob and Template.

A `Text` is a string or, when it is long, a `Blob`: the name of content that is stored
separately. A `Template` is a sequence of literal texts and references. Dialects parse their own
placeholder syntax into it, so substitution happens once, by structure: values that were filled
in are not scanned again for placeholders.
"""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    JsonValue: TypeAlias = (
        bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"] | None
    )
else:
    # msgspec has no recursive aliases; for it a JSON value is whatever JSON can hold.
    JsonValue: TypeAlias = Any


class Record(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Immutable data; equality is by value; unknown fields are refused when decoding."""


class Blob(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A text in the blob store; `head` is enough for a list or a headline."""

    blob: str
    size: int
    head: str = ""


# A text in an event: a string if it is short, a reference to stored content if it is long.
Text: TypeAlias = str | Blob


Source: TypeAlias = Literal[
    "message",  # what the user asked for when the run started
    "input",  # a named input of the run
    "output",  # the text of an earlier step
    "result",  # a field of the structured result of an earlier step
    "item",  # the item of the enclosing `for_each` iteration
    "index",  # its index, from 0
    "iteration",  # number of the enclosing iteration, from 1
    "max",  # maximum number of iterations of the enclosing loop
    "previous",  # output of the previous iteration
    "previous_output",  # the text of a step in the previous iteration
    "previous_result",  # a field of the structured result of a step in the previous iteration
    "rejection",  # the text of a rejection
    "setting",  # a named value of the environment: artifacts folder, base branch, docs folder
    "feedback",  # a person's text at the last gate
    "run",  # id of the run
    "workspace",  # the working directory
]


class Ref(Record, frozen=True, kw_only=True, tag="ref", tag_field="part"):
    """A place to fill. `name` is a step id or an input's name, `field` a dotted path inside. `up`
    selects a loop that many levels further out; with `json` the value is filled in as JSON, so that
    a text cannot break the structure around it. `if_skipped` replaces the value if the step did not
    run. With `structured`, the output of a step is its structured result as JSON, if it has one.
    """

    of: Source
    name: str | None = None
    field: str | None = None
    up: int = 0
    json: bool = False
    if_skipped: str | None = None
    structured: bool = False


class Lit(Record, frozen=True, kw_only=True, tag="text", tag_field="part"):
    """Literal text."""

    text: str


Template: TypeAlias = tuple[Lit | Ref, ...]


def literal(text: str) -> Template:
    """A template of one literal text."""
    return (Lit(text=text),) if text else ()


# A list to iterate over: literal, or at the target of a reference.
class LiteralItems(Record, frozen=True, kw_only=True, tag="items", tag_field="list"):
    """A list written in the definition."""

    values: tuple[JsonValue, ...]


class ItemsFrom(Record, frozen=True, kw_only=True, tag="from", tag_field="list"):
    """A list found in the structured result of an earlier step, or in an input."""

    ref: Ref


class ItemsExpr(Record, frozen=True, kw_only=True, tag="expr", tag_field="list"):
    """A list computed by an expression when the step starts."""

    expr: str


ItemSource: TypeAlias = LiteralItems | ItemsFrom | ItemsExpr
