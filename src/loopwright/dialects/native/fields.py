"""The kinds of value that a native definition is made of, each with its own refusal."""

import re
from typing import Annotated, Any, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
)

from loopwright.model.actions import MAX_PASSES
from loopwright.model.environment import is_reserved, is_variable_name
from loopwright.model.ids import is_id
from loopwright.syntax.amounts import (
    MAX_TOKENS,
    is_duration,
    is_token_count,
    parse_duration,
    parse_tokens,
)
from loopwright.syntax.commands import (
    CommandFault,
    checked_words,
    split_command,
    split_commands,
)
from loopwright.syntax.fields import HIDE, fault, visible
from loopwright.syntax.moments import point_ms

# -- ids and names ---------------------------------------------------------------------------------


LOOSE = "loose"
"""The context of a definition that was converted: names are kept as another system allows them."""

_LOOSE_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def _id(text: str, info: ValidationInfo) -> str:
    visible(text)
    if is_id(text) or (info.context == LOOSE and _LOOSE_ID.fullmatch(text)):
        return text
    shown = text if len(text) <= 40 else f"{text[:39]}…"
    better = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-_")[:63]
    hint = "use a-z, 0-9, _ and -, first a letter, at most 63 characters"
    if text.isascii() and is_id(better) and ".." not in text:
        hint += f": {better}"
    raise fault("bad-id", f'"{shown}" cannot be an id', hint=hint)


def _agent_name(text: str, info: ValidationInfo) -> str:
    """An id; behind a conversion also `coder@model` and `review.coder`."""
    loose = info.context == LOOSE and text and text == text.strip() and "\n" not in text
    return visible(text) if loose else _id(text, info)


def _line(text: str, info: ValidationInfo) -> str:
    visible(text)
    if not text.strip() or "\n" in text or "\t" in text:
        raise fault("bad-value", f"{info.field_name or 'it'} must be one line of text")
    return text


Id: TypeAlias = Annotated[
    str,
    AfterValidator(_id),
    WithJsonSchema({"type": "string", "pattern": f"^{_LOOSE_ID.pattern}$"}),
]
AgentName: TypeAlias = Annotated[
    str, AfterValidator(_agent_name), WithJsonSchema({"type": "string", "minLength": 1})
]
SpecLine: TypeAlias = Annotated[str, Field(min_length=1, max_length=4_096), AfterValidator(_line)]
Line: TypeAlias = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_line)]
InputName: TypeAlias = Annotated[
    str, AfterValidator(visible), Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,62}$")
]
Prose: TypeAlias = Annotated[str, Field(max_length=100_000)]


def _says_something(text: str) -> str:
    if not text.strip():
        raise fault("empty-expression", "an expression must say something", hint="or leave it out")
    return text


Expression: TypeAlias = Annotated[str, AfterValidator(_says_something)]

# -- amounts ---------------------------------------------------------------------------------------


def duration_ms(value: object) -> int:
    """A length of time as people write it, in milliseconds."""
    total = parse_duration(value) if isinstance(value, str) else None
    if total is not None:
        if is_duration(total):
            return total
        raise fault("out-of-range", "a time must be above 0 and at most 365d")
    hint = "write a number and its unit: 500ms, 30s, 5m, 2h or 1h30m"
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        hint += f'; is "{value}s" meant?'
    shown = f'"{value[:40]}"' if isinstance(value, str) else _shown(value)
    raise fault("bad-duration", f"{shown} is no time", hint=hint)


def _point(value: object) -> int:
    found = point_ms(value)
    if found is None:
        hint = "write it with its zone: 2027-01-31T18:00:00Z"
        raise fault("bad-format", f"{_shown(value)} is no point in time", hint=hint)
    return found


def _tokens(value: object) -> int:
    total = parse_tokens(value)
    if total is None:
        hint = "write 2M, 500k or 120000"
        raise fault("wrong-type", f"{_shown(value)} is no number of tokens", hint=hint)
    if not is_token_count(total):
        raise fault("out-of-range", f"tokens must be from 1 to {MAX_TOKENS}, not {_shown(value)}")
    return total


def _shown(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case dict() | list():
            return "a mapping" if isinstance(value, dict) else "a list"
        case _:
            return str(value)[:40]


Duration: TypeAlias = Annotated[
    int,
    BeforeValidator(duration_ms),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?$",
            "minLength": 2,
            "examples": ["30s", "1h30m"],
        }
    ),
]
PointInTime: TypeAlias = Annotated[
    int,
    BeforeValidator(_point),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2027-01-31T18:00:00Z"]}),
]
Tokens: TypeAlias = Annotated[
    int,
    BeforeValidator(_tokens),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^\d+(\.\d)?[kM]$"},
            ],
            "examples": ["2M", 120000],
        }
    ),
]
Usd: TypeAlias = Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=MAX_PASSES)]

# -- commands, environment, files ------------------------------------------------------------------


def _argv(value: object) -> list[str]:
    if isinstance(value, str):
        words = split_command(visible(value))
    elif isinstance(value, list) and all(isinstance(word, str) for word in value):
        words = [visible(word) for word in value]
    else:
        hint = "put numbers and true or false in quotes" if isinstance(value, list) else None
        raise fault("wrong-type", "a command must be a list of texts, or a line", hint=hint)
    checked = words if isinstance(words, CommandFault) else checked_words(words)
    if isinstance(checked, CommandFault):
        raise fault(checked.code, checked.message, hint=checked.hint)
    return checked


def _commands(value: object) -> list[list[str]]:
    """A check may be several programs, one after the other."""
    parts = split_commands(value) if isinstance(value, str) else []
    if len(parts) < 2:
        return [_argv(value)]
    if not all(part.strip() for part in parts):
        raise fault("bad-command", "&& needs a command before and after it")
    return [_argv(part.strip()) for part in parts]


_COMMAND_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {"type": "string", "minLength": 1},
    ],
}
Argv: TypeAlias = Annotated[
    list[str],
    BeforeValidator(_argv),
    WithJsonSchema({**_COMMAND_SCHEMA, "examples": [["pytest", "-q"], "npm test"]}),
]
Commands: TypeAlias = Annotated[
    list[list[str]],
    BeforeValidator(_commands),
    WithJsonSchema(
        {**_COMMAND_SCHEMA, "examples": [["pytest", "-q"], "npm test", "ruff check && pytest -q"]}
    ),
]


def _env_name(name: str) -> str:
    if is_reserved(name):
        message = f"{visible(name)} decides what programs load and run, so no definition sets it"
        raise fault("reserved-env", message, hint="remove it, or use a name of your own")
    if not is_variable_name(visible(name)):
        raise fault("bad-env", f'"{name}" cannot be the name of a variable')
    return name


EnvName: TypeAlias = Annotated[str, AfterValidator(_env_name)]

_DRIVE = re.compile(r"[A-Za-z]:")


def _inside(path: str) -> str:
    visible(path)
    parts = path.replace("\\", "/").split("/")
    if not path or path.startswith(("/", "\\", "~")) or ".." in parts or _DRIVE.match(path):
        message = f'"{path[:60]}" is not a path inside the workspace'
        hint = "name it from the workspace on, without ..: docs/notes.md"
        raise fault("outside-workspace", message, hint=hint)
    return path


WorkspacePath: TypeAlias = Annotated[str, AfterValidator(_inside)]


def _list_of_paths(value: object) -> object:
    return [value] if isinstance(value, str) else value


WorkspacePaths: TypeAlias = Annotated[
    list[WorkspacePath],
    BeforeValidator(_list_of_paths, json_schema_input_type=WorkspacePath | list[WorkspacePath]),
]
"""One pattern or several of them."""


def _script(text: str) -> str:
    if not text.strip():
        raise fault("bad-command", "the script is empty")
    return text


ScriptText: TypeAlias = Annotated[str, Field(max_length=100_000), AfterValidator(_script)]

# -- words that are known and refused --------------------------------------------------------------


def _not_available(_: object, info: ValidationInfo) -> None:
    message = f"{info.field_name} has its place, but this version cannot run it yet"
    raise fault("not-available", message, hint="leave it out for now")


def _on_the_agent(_: object, info: ValidationInfo) -> None:
    message = f"{info.field_name} cannot be enforced here"
    hint = f"set it on the agent: agents: {{NAME: {{{info.field_name}: …}}}}"
    raise fault("unsupported-here", message, hint=hint)


NotYet: TypeAlias = Annotated[Any, BeforeValidator(_not_available), HIDE]
OnAgentOnly: TypeAlias = Annotated[Any, BeforeValidator(_on_the_agent), HIDE]
