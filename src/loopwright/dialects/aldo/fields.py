"""The kinds of value that an agent is made of, each with its own refusal."""

import re
from typing import Annotated, Any, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from loopwright.dialects.aldo.files import inside
from loopwright.dialects.aldo.paths import parse_path
from loopwright.syntax.characters import check_text
from loopwright.syntax.words import clip

MAX_NAME = 63
OUTPUTS = "#/outputs/"
"""How a reference to an answer of the same file begins."""
_KEBAB = re.compile(r"[a-z0-9][a-z0-9-]*")
_SEMVER = re.compile(r"\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


class Surface(BaseModel):
    """Base: unknown keys are refused, nothing is coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class OpenSurface(BaseModel):
    """Base of blocks in which an unknown key changes nothing that an agent may do."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


def fault(
    code: str, message: str, *, hint: str | None = None, at: str | None = None
) -> PydanticCustomError:
    """The error to raise; `code` is the slug that the author sees, `at` a key below."""
    # The message goes in as a value: braces in it are the author's, not placeholders.
    context: dict[str, object] = {"text": message}
    context |= {"hint": hint} if hint else {}
    return PydanticCustomError(
        code.replace("-", "_"), "{text}", context | ({"at": at} if at else {})
    )


# -- texts -----------------------------------------------------------------------------------------


def _visible(text: str) -> str:
    problem = check_text(text)
    if problem:
        raise fault("hidden-character", problem, hint="delete it and type the word again")
    return text


def _kebab(text: str) -> str:
    _visible(text)
    if _KEBAB.fullmatch(text) and len(text) <= MAX_NAME:
        return text
    hint = f"use a-z, 0-9 and hyphens, at most {MAX_NAME} characters"
    better = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if _KEBAB.fullmatch(better) and len(better) <= MAX_NAME:
        hint += f": {better}"
    raise fault("bad-id", f'"{clip(text)}" is not in kebab-case', hint=hint)


def _semver(text: str) -> str:
    if not _SEMVER.fullmatch(text):
        message = f'"{clip(text)}" is no version'
        raise fault("bad-format", message, hint="three numbers with dots between: 0.1.0")
    return text


def _variable(text: str) -> str:
    if not _VARIABLE.fullmatch(text):
        message = f'"{clip(text)}" cannot be the name of a variable'
        raise fault("bad-id", message, hint="use letters, digits, _ . and -, first a letter or _")
    return text


def _file(text: str) -> str:
    path = inside(text)
    if path is None:
        message = f'"{clip(text)}" is not a file in the folder of the agent'
        raise fault(
            "file-outside", message, hint="name a file beside it or below: prompts/coder.md"
        )
    return path


def _schema_ref(text: str) -> str:
    return text if text.startswith(OUTPUTS) else _file(text)


def _unquoted(value: object) -> object:
    """true and false need no quotes."""
    return str(value).lower() if isinstance(value, bool) else value


def _terminate(text: str) -> str:
    if parse_path(text) is None:
        message = f'"{clip(text)}" is no path of the output'
        hint = "write true, false, $, $.done, $['done'] or $[0]"
        raise fault("bad-path", message, hint=hint)
    return text


Word: TypeAlias = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_visible)]
Prose: TypeAlias = Annotated[str, Field(min_length=1, max_length=100_000)]
Kebab: TypeAlias = Annotated[
    str,
    AfterValidator(_kebab),
    WithJsonSchema({"type": "string", "pattern": f"^{_KEBAB.pattern}$", "maxLength": MAX_NAME}),
]
Semver: TypeAlias = Annotated[
    str,
    AfterValidator(_semver),
    WithJsonSchema({"type": "string", "pattern": f"^{_SEMVER.pattern}$"}),
]
Variable: TypeAlias = Annotated[
    str,
    AfterValidator(_variable),
    WithJsonSchema({"type": "string", "pattern": f"^{_VARIABLE.pattern}$"}),
]
File: TypeAlias = Annotated[str, AfterValidator(_file)]
SchemaRef: TypeAlias = Annotated[str, AfterValidator(_schema_ref)]
Terminate: TypeAlias = Annotated[
    str,
    BeforeValidator(_unquoted),
    AfterValidator(_terminate),
    WithJsonSchema({"type": ["string", "boolean"], "examples": ["$.done"]}),
]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
Usd: TypeAlias = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]

# -- blocks that have no effect --------------------------------------------------------------------


def says_nothing(value: object) -> bool:
    """Whether a block is empty: null, an empty list, or a mapping of nothing else."""
    if isinstance(value, dict):
        return all(says_nothing(one) for one in value.values())
    return value is None or value == []


Json: TypeAlias = Annotated[Any, WithJsonSchema({})]
Inert: TypeAlias = Annotated[Any, WithJsonSchema({})]
"""A block that loads and has no effect here."""
