"""The kinds of value that a workflow is made of, each with its own refusal."""

import re
import unicodedata
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, WithJsonSchema

from loopwright.syntax.characters import check_text, name_character
from loopwright.syntax.fields import fault, leads_away, ref_loop, visible
from loopwright.syntax.words import show

MAX_TEXT = 2_000
MAX_ID = 64
STRICT_ID = re.compile(rf"[a-z][a-z0-9_-]{{0,{MAX_ID - 1}}}")
_LOOSE_ID = re.compile(rf"[a-zA-Z][a-zA-Z0-9_-]{{0,{MAX_ID - 1}}}")

# What turns the order of characters around: a text that reads otherwise than it is.
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


# -- texts -----------------------------------------------------------------------------------------


def prose_problem(text: str) -> str | None:
    """Why a longer text may not be shown to an agent; signs that join letters are fine in it."""
    for at, char in enumerate(text):
        unsafe = unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t\r"
        if unsafe or char in _TURNING:
            return f"hidden character {name_character(char)} at character {at + 1}"
    return None


def _prose(text: str) -> str:
    problem = None if text.isascii() and text.isprintable() else prose_problem(text)
    if problem:
        raise fault("hidden-character", problem, hint="delete it and type the word again")
    return text


def _id(text: str) -> str:
    visible(text)
    if not _LOOSE_ID.fullmatch(text):
        raise fault("bad-id", f'"{text[:40]}" cannot be an id', hint=ID_HINT)
    return text


def _agent_name(text: str) -> str:
    visible(text)
    if not STRICT_ID.fullmatch(text):
        raise fault("bad-id", f'"{text[:40]}" cannot be the name of an agent', hint=ID_HINT)
    return text


def _expression(text: str) -> str:
    if not text.strip():
        raise fault("empty-expression", "an expression must say something", hint="or leave it out")
    return _prose(text)


ID_HINT = f"use a-z, 0-9, _ and -, first a letter, at most {MAX_ID} characters"

Prose: TypeAlias = Annotated[str, AfterValidator(_prose)]
Word: TypeAlias = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(visible)]
Name: TypeAlias = Annotated[str, Field(max_length=500), AfterValidator(visible)]
StepId: TypeAlias = Annotated[
    str,
    AfterValidator(_id),
    WithJsonSchema({"type": "string", "pattern": f"^{_LOOSE_ID.pattern}$"}),
]
AgentName: TypeAlias = Annotated[
    str,
    AfterValidator(_agent_name),
    WithJsonSchema({"type": "string", "pattern": f"^{STRICT_ID.pattern}$"}),
]
Expression: TypeAlias = Annotated[str, AfterValidator(_expression)]

# -- amounts ---------------------------------------------------------------------------------------

_DURATION = re.compile(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?")
_DURATION_HINT = "write whole hours, minutes and seconds, in this order: 45s, 10m, 1h30m"
MAX_DURATION_MS = 365 * 86_400_000


def milliseconds(value: object) -> int | None:
    """The length of a time, or None for what is no time."""
    found = _DURATION.fullmatch(value) if isinstance(value, str) and value else None
    if found is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return (hours * 3_600 + minutes * 60 + seconds) * 1_000


def _duration(value: object) -> int:
    length = milliseconds(value)
    if length is None:
        hint = _DURATION_HINT
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            hint += f'; is "{value}s" meant?'
        raise fault("bad-duration", f"{show(value)} is no time", hint=hint)
    if length > MAX_DURATION_MS:
        raise fault("out-of-range", "a time may be 8760h at most, which is a year")
    return length


def _not_negative(value: int) -> int:
    if value < 0:
        raise fault("negative-value", f"{value} is below 0", hint="0 is the same as leaving it out")
    return value


def _positive(value: int) -> int:
    if value < 1:
        message = f"{value} passes make no loop"
        raise fault("negative-value", message, hint="1 is the least")
    return value


Duration: TypeAlias = Annotated[
    int,
    BeforeValidator(_duration),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^(?=.)(\d+h)?(\d+m)?(\d+s)?$",
            "examples": ["45s", "1h30m"],
        }
    ),
]
NotNegative: TypeAlias = Annotated[
    int, AfterValidator(_not_negative), WithJsonSchema({"type": "integer", "minimum": 0})
]
Positive: TypeAlias = Annotated[
    int, AfterValidator(_positive), WithJsonSchema({"type": "integer", "minimum": 1})
]

# -- schemas and files -----------------------------------------------------------------------------

_DRIVE = re.compile(r"[A-Za-z]:")


def _local_schema(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if leads_away(schema):
        hint = "copy it into $defs and refer to #/$defs/NAME"
        raise fault("remote-ref", "a $ref must stay inside the schema", hint=hint)
    circle = ref_loop(schema)
    if circle is not None:
        hint = "let it lead into properties or items, so that each round is about a part"
        raise fault("ref-loop", f"$ref {circle} leads back to itself", hint=hint)
    return schema


def inside(folder: str, written: str) -> str | None:
    """A path from the folder of the first file on, or None when it leads out of that folder."""
    if not written or written.startswith(("/", "~")) or "\\" in written or "://" in written:
        return None
    if _DRIVE.match(written) or check_text(written) or "\n" in written:
        return None
    parts = [part for part in folder.split("/") if part]
    for part in written.split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts) or None


JsonSchema: TypeAlias = Annotated[dict[str, JsonValue], AfterValidator(_local_schema)]
