"""Hints for natural mistakes: a value that is easily understood, but not in its right form."""

import json
import re

from pydantic import BeforeValidator, ValidationInfo

from loopwright.model.actions import MAX_PASSES
from loopwright.syntax.fields import fault
from loopwright.syntax.words import show

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
        most = f" from 1 to {MAX_PASSES}" if name == "max" else ""
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


def _asked(value: object, info: ValidationInfo) -> object:
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
ASKED_HINT = BeforeValidator(_asked)
MEMORY_HINT = BeforeValidator(_memory)


def _in_repeat(value: object, info: ValidationInfo) -> None:
    name = info.field_name
    shown = value if isinstance(value, int | float) or (isinstance(value, str) and value) else "…"
    hint = f"it belongs to a loop: write repeat: {{{name}: {shown}}}"
    raise fault("unknown-field", f"{name} has no place here", hint=hint)


IN_REPEAT = BeforeValidator(_in_repeat)
