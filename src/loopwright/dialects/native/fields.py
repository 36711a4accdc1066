"""The kinds of value in a native definition, each with its own error message and its hints.

A hint is for a natural mistake: a value that is easily understood but not in its right form.
"""

import json
import re
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema

from loopwright.model.actions import MAX_ITERATIONS
from loopwright.model.ids import is_id
from loopwright.model.sandbox import is_reserved, is_variable_name
from loopwright.syntax.document import show
from loopwright.syntax.notations import (
    MAX_TOKENS,
    CommandFault,
    checked_words,
    is_duration,
    is_token_count,
    parse_duration,
    parse_tokens,
    point_ms,
    split_command,
    split_commands,
)
from loopwright.syntax.validation import HIDE, fault, visible

_SIGNAL = re.compile(r"[A-Z][A-Z0-9_]*")
_TIME = re.compile(r"(\d+(d|h|m|s|ms))+")
_TOKENS = re.compile(r"\d+(\.\d)?[kM]")
_MONEY = re.compile(r"\$?\s*(\d+(?:\.\d+)?)\s*(?:usd|\$)?", re.IGNORECASE)
_MODELS = (
    ("gpt-", "openai"),
    ("o1", "openai"),
    ("o3", "openai"),
    ("o4", "openai"),
    ("claude-", "anthropic"),
    ("gemini-", "google"),
    ("mistral-", "mistral"),
    ("deepseek-", "deepseek"),
    ("grok-", "xai"),
)
_MEMORIES = ("none", "progress-log", "previous-output", "stages", "session", "history")


def _refuse(name: str, value: object, form: str) -> Exception:
    return fault("wrong-type", f"{name} must be a mapping, not {show(value)}", hint=form)


def _written(text: str) -> str:
    """A text as YAML would have it inside of braces."""
    return text if re.fullmatch(r"[\w./ -]*[\w./-]", text) else json.dumps(text, ensure_ascii=False)


def _check(value: object, info: ValidationInfo) -> object:
    name = info.field_name or "until"
    if isinstance(value, list) and name == "until":
        raise _refuse(name, value, "write until: {all: […]} or until: {any: […]}")
    if not isinstance(value, str) or not value.strip() or len(value) > 200:
        return value
    text = value.strip()
    kind = "signal" if _SIGNAL.fullmatch(text) else "command"
    form = f"{{{kind}: {_written(text)}}}"
    if name == "until":
        raise _refuse(name, value, f"write until: {form}")
    raise _refuse("a check", value, f"write {form}")


def _amount(value: object, info: ValidationInfo) -> object:
    name = info.field_name or "budget"
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        raise _refuse(name, value, f"write {name}: {{usd: {value}}}")
    if not isinstance(value, str):
        return value
    text = value.strip()
    if _TIME.fullmatch(text):
        raise _refuse(name, value, f"write {name}: {{time: {text}}}")
    if _TOKENS.fullmatch(text):
        raise _refuse(name, value, f"write {name}: {{tokens: {text}}}")
    if found := _MONEY.fullmatch(text):
        raise _refuse(name, value, f"write {name}: {{usd: {found[1]}}}")
    return value


def _count(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        name = info.field_name or "max"
        most = f" from 1 to {MAX_ITERATIONS}" if name == "max" else ""
        message = f"{name} must be a whole number{most}, not {show(value)}"
        raise fault(
            "wrong-type", message, hint=f"write {name}: {value.strip()[:20]} without quotes"
        )
    return value


def _loop(value: object, info: ValidationInfo) -> object:
    name = info.field_name or "repeat"
    if isinstance(value, int) and not isinstance(value, bool):
        raise _refuse(name, value, f"write {name}: {{max: {value}}}")
    return value


def _agents(value: object) -> object:
    if isinstance(value, list) and value and isinstance(value[0], str):
        named = value[0]
    elif isinstance(value, str) and value.strip():
        named = value.strip()
    else:
        return value
    form = f"write agent: {_written(named)}, or agents: {{worker: {{use: {_written(named)}}}}}"
    raise _refuse("agents", value, form)


def _agent(value: object) -> object:
    """The backend of an agent, given in place of the whole agent."""
    if isinstance(value, str) and value.strip():
        raise _refuse("an agent", value, f"write {{use: {_written(value.strip())}}}")
    return value


def _hint_problem(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str) and value.strip() and len(value) <= 200:
        name = info.field_name or "judge"
        raise _refuse(name, value, f"write {name}: {{prompt: {json.dumps(value.strip())}}}")
    return value


def _memory(value: object) -> object:
    if not isinstance(value, dict) or "kind" in value or len(value) != 1:
        return value
    (kind, options), *_ = value.items()
    if kind not in _MEMORIES:
        return value
    more = "".join(f", {key}: {one}" for key, one in options.items()) if _is_map(options) else ""
    message = "memory names its kind in the field kind"
    raise fault("missing-field", message, hint=f"write memory: {{kind: {kind}{more}}}")


def _is_map(value: object) -> bool:
    return isinstance(value, dict)


def model_hint(name: str) -> str | None:
    """The spec of a chat model that is named as its maker names it."""
    made_by = next((who for start, who in _MODELS if name.lower().startswith(start)), None)
    return f"write model:{made_by}/{name[:60]} for a chat model" if made_by else None


CHECK_HINT = BeforeValidator(_check)
AMOUNT_HINT = BeforeValidator(_amount)
COUNT_HINT = BeforeValidator(_count)
LOOP_HINT = BeforeValidator(_loop)
AGENTS_HINT = BeforeValidator(_agents)
AGENT_HINT = BeforeValidator(_agent)
CHECKED_HINT = BeforeValidator(_hint_problem)
MEMORY_HINT = BeforeValidator(_memory)


def _in_repeat(value: object, info: ValidationInfo) -> None:
    name = info.field_name
    shown = value if isinstance(value, int | float) or (isinstance(value, str) and value) else "…"
    hint = f"it belongs to a loop: write repeat: {{{name}: {shown}}}"
    raise fault("unknown-field", f"{name} has no place here", hint=hint)


IN_REPEAT = BeforeValidator(_in_repeat)


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
    """An id; after a conversion also `coder@model` and `review.coder`."""
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


def _is_not_blank(text: str) -> str:
    if not text.strip():
        raise fault("empty-expression", "an expression must say something", hint="or leave it out")
    return text


Expression: TypeAlias = Annotated[str, AfterValidator(_is_not_blank)]

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
    raise fault("bad-duration", f"{shown} is not a time", hint=hint)


def _point(value: object) -> int:
    found = point_ms(value)
    if found is None:
        hint = "write it with its zone: 2027-01-31T18:00:00Z"
        raise fault("bad-format", f"{_shown(value)} is not a point in time", hint=hint)
    return found


def _tokens(value: object) -> int:
    total = parse_tokens(value)
    if total is None:
        hint = "write 2M, 500k or 120000"
        raise fault("wrong-type", f"{_shown(value)} is not a number of tokens", hint=hint)
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
Count: TypeAlias = Annotated[int, Field(ge=1, le=MAX_ITERATIONS)]

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
