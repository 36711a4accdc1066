"""The kinds of value that a workflow is made of, each with its own refusal."""

import re
from typing import Annotated, Any, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
)

from loopwright.dialects.archon.variables import FIELD_PATTERN, ID_PATTERN, RESERVED_IDS
from loopwright.syntax.fields import HIDE, fault, visible

_ID = re.compile(ID_PATTERN)
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_LONGEST_ID = 63
_EMOJI = r"[\u2600-\u27bf\U0001f000-\U0001faff]"
_JOINED = re.compile(rf"(?<={_EMOJI})(?:\ufe0f)?\u200d(?={_EMOJI})")


class Surface(BaseModel):
    """Base: nothing is coerced. Unknown keys are reported by `keys.py`."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


def _filled(text: str, info: ValidationInfo) -> str:
    if not text.strip():
        raise fault("bad-value", f"{info.field_name} must not be empty")
    return text


def _line(text: str, info: ValidationInfo) -> str:
    if "\n" in visible(_filled(text, info)):
        raise fault("bad-value", f"{info.field_name} must be one line of text")
    return text


def _id(text: str) -> str:
    visible(text)
    if text in RESERVED_IDS:
        message = f"{text} is the name of a variable"
        raise fault("bad-id", message, hint=f"call it {text.lower()} or the like")
    if _ID.fullmatch(text) and len(text) <= _LONGEST_ID:
        return text
    shown = text if len(text) <= 40 else f"{text[:39]}…"
    hint = f"use letters, digits, _ and -, first a letter, at most {_LONGEST_ID} characters"
    better = re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-")[:_LONGEST_ID]
    if text.isascii() and _ID.fullmatch(better):
        hint += f": {better}"
    raise fault("bad-id", f'"{shown}" cannot be an id', hint=hint)


def _file_name(text: str, info: ValidationInfo) -> str:
    visible(text)
    if not is_file_name(text):
        message = f'"{text[:60]}" cannot be the name of a {info.field_name}'
        hint = f"name a file in .archon/{info.field_name}s without its ending: review-code"
        raise fault("bad-name", message, hint=hint)
    return text


def _visible_script(text: str) -> str:
    """The text, if a reader sees all of it; one emoji may be joined from several."""
    visible(_JOINED.sub("", text))
    return text


def is_file_name(text: str) -> bool:
    """Whether a text names a file of a folder and nothing outside of it."""
    return _FILE_NAME.fullmatch(text) is not None and ".." not in text and len(text) <= 200


Id: TypeAlias = Annotated[
    str, AfterValidator(_id), WithJsonSchema({"type": "string", "pattern": f"^{ID_PATTERN}$"})
]
Line: TypeAlias = Annotated[str, Field(max_length=200), AfterValidator(_line)]
Prose: TypeAlias = Annotated[str, Field(max_length=100_000), AfterValidator(_filled)]
ScriptText: TypeAlias = Annotated[Prose, AfterValidator(_visible_script)]
CommandName: TypeAlias = Annotated[str, AfterValidator(_file_name)]
WorkflowName: TypeAlias = Annotated[str, AfterValidator(_file_name)]
FieldName: TypeAlias = Annotated[
    str, AfterValidator(visible), Field(pattern=f"^{FIELD_PATTERN}$", max_length=_LONGEST_ID)
]
ToolName: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(visible)]
InputName: TypeAlias = Annotated[
    str, AfterValidator(visible), Field(pattern=f"^{ID_PATTERN}$", max_length=_LONGEST_ID)
]
Usd: TypeAlias = Annotated[float, Field(gt=0, le=1_000_000)]
Milliseconds: TypeAlias = Annotated[float, Field(gt=0, le=31_536_000_000, allow_inf_nan=False)]

# -- words that are known and refused --------------------------------------------------------------


def _old_form(_: object, info: ValidationInfo) -> None:
    message = f"{info.field_name}: belongs to the old form of workflows"
    hint = "write nodes: with - {id: NAME, command: NAME, depends_on: [BEFORE]} for each of them"
    raise fault("old-workflow", message, hint=hint)


OldForm: TypeAlias = Annotated[Any, BeforeValidator(_old_form), HIDE]
