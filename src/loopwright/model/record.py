"""The base of every record of the model, and the two text shapes that facts carry."""

from typing import TYPE_CHECKING, Any, TypeAlias

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
    """A text that stands in the blob store; `head` is enough for a list or a headline."""

    blob: str
    size: int
    head: str = ""


# A text in a fact: itself while it is short, a reference to stored content when it is long.
Text: TypeAlias = str | Blob
