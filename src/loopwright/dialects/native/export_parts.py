"""From the parts of a plan to the words of a definition: agents, policies, checks, conditions.

What equals its default is left out.
"""

import shlex
from typing import TypeAlias, assert_never

from loopwright.dialects.native.lower_checks import COMMAND_MS, OPERATORS, SCRIPT_MS
from loopwright.dialects.native.lower_parts import DEFAULT_RETRY, HISTORY, LOG_CHARS, STAGE_CHARS
from loopwright.dialects.native.templates import write as write_template
from loopwright.dialects.native.templates import write_ref
from loopwright.errors import LoopwrightError
from loopwright.model.actions import Decision
from loopwright.model.checks import (
    AllOf,
    AnyOf,
    Approval,
    Cap,
    Check,
    Command,
    Contains,
    Expr,
    Goal,
    Judge,
    NoCalls,
    OutputSchema,
    Person,
    Regex,
    ResultField,
    ResultPath,
    Script,
    Signal,
    Spend,
    ToolResult,
)
from loopwright.model.expr import Cel, Compare, Condition, EveryOf
from loopwright.model.memory import (
    History,
    Memory,
    NoMemory,
    PreviousOutput,
    ProgressLog,
    SameSession,
    StageOutputs,
)
from loopwright.model.plan import Agent, Input
from loopwright.model.policy import Limits, Retry, WorkspacePolicy
from loopwright.model.record import JsonValue
from loopwright.model.template import Ref, Template
from loopwright.syntax.moments import write_point

Made = dict[str, JsonValue]
_OfTexts: TypeAlias = (
    Cap | Regex | Contains | Signal | OutputSchema | Expr | ResultField | ResultPath
)

ALL_ANSWERS: tuple[Decision, ...] = ("approve", "reject", "continue")
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_COMPARISONS = {sign: word for word, sign in OPERATORS.items()}


class NotExpressible(LoopwrightError):
    """The native language has no words for a part of this plan."""

    code = "not-expressible"


def put(made: Made, key: str, value: JsonValue, *, unless: JsonValue) -> None:
    """Say something unless it is the default."""
    if value != unless or type(value) is not type(unless):
        made[key] = value


def no_words(what: str) -> NotExpressible:
    """The refusal; `what` names the part and where it is."""
    return NotExpressible(f"native definitions cannot say this: {what}")


def write(template: Template) -> str:
    """A text with its references, unless one of them has a value for a skipped step."""
    if any(isinstance(part, Ref) and part.if_skipped is not None for part in template):
        raise no_words("a value that replaces the output of a skipped step")
    return write_template(template)


def write_time(ms: int) -> str:
    """A time as people write it."""
    text = ""
    for unit, size in _UNITS:
        count, ms = divmod(ms, size)
        text += f"{count}{unit}" if count else ""
    return text or "0ms"


def write_env(env: dict[str, Template]) -> Made:
    """Variables of a script."""
    return {name: write(text) for name, text in env.items()}


# -- agents, inputs, policies ----------------------------------------------------------------------


def write_agent(agent: Agent) -> Made:
    made: Made = {}
    put(made, "use", agent.spec, unless=None)
    put(made, "system", agent.system, unless="")
    put(made, "model", agent.model, unless=None)
    if agent.tools is not None:
        made["tools"] = list(agent.tools)
    put(made, "deny_tools", list(agent.deny_tools), unless=[])
    for key in ("role", "access", "sandbox", "permission", "max_turns", "max_usd", "temperature"):
        put(made, key, getattr(agent, key), unless=None)
    put(made, "loops", list(agent.loops), unless=[])
    put(made, "env", dict(agent.env), unless={})
    put(made, "pass_env", list(agent.pass_env), unless=[])
    if agent.idle_ms is not None:
        made["idle"] = write_time(agent.idle_ms)
    if agent.wall_ms is not None:
        made["wall"] = write_time(agent.wall_ms)
    put(made, "approvals", dict(agent.approvals), unless={})
    put(made, "options", agent.options, unless={})
    return made


def write_input(value: Input) -> Made:
    made: Made = {}
    put(made, "description", value.description, unless="")
    put(made, "required", value.required, unless=value.default is None)
    put(made, "default", value.default, unless=None)
    return made


def write_limits(limits: Limits) -> Made:
    if limits.no_progress is not None:
        raise no_words("a limit on passes without progress")
    made: Made = {}
    for key, ms in (
        ("time", limits.wall_ms),
        ("pass_time", limits.pass_wall_ms),
        ("idle", limits.idle_ms),
    ):
        if ms is not None:
            made[key] = write_time(ms)
    if limits.ends_at is not None:
        made["until"] = write_point(limits.ends_at)
    for key in ("tokens", "usd", "identical"):
        put(made, key, getattr(limits, key), unless=None)
    return made


def write_workspace(policy: WorkspacePolicy) -> Made:
    made: Made = {}
    put(made, "snapshots", policy.snapshots, unless=None)
    put(made, "worktree", policy.worktree, unless=False)
    return made


def write_retry(retry: Retry) -> Made:
    made: Made = {}
    put(made, "attempts", retry.attempts, unless=DEFAULT_RETRY.attempts)
    put(made, "delay", write_time(retry.base_ms), unless=write_time(DEFAULT_RETRY.base_ms))
    put(made, "max_delay", write_time(retry.cap_ms), unless=write_time(DEFAULT_RETRY.cap_ms))
    put(made, "on", list(retry.on), unless=list(DEFAULT_RETRY.on))
    put(made, "if_says", list(retry.if_says), unless=[])
    put(made, "unless_says", list(retry.unless_says), unless=[])
    return made


def write_memory(memory: Memory) -> JsonValue:
    match memory:
        case NoMemory():
            return "none"
        case ProgressLog(chars=chars, total=total):
            log: Made = {"kind": "progress-log"}
            put(log, "chars", chars, unless=300)
            put(log, "total", total, unless=LOG_CHARS)
            return log if len(log) > 1 else "progress-log"
        case PreviousOutput(by_step=True):
            return {"kind": "previous-output", "by_step": True}
        case PreviousOutput():
            return "previous-output"
        case StageOutputs(chars=chars):
            return "stages" if chars == STAGE_CHARS else {"kind": "stages", "chars": chars}
        case SameSession():
            return "session"
        case History():
            return _history(memory)
        case _:
            assert_never(memory)


def _history(memory: History) -> JsonValue:
    made: Made = {"kind": "history"}
    for name in History.__struct_fields__:
        put(made, name, getattr(memory, name), unless=getattr(HISTORY, name))
    return made if len(made) > 1 else "history"


# -- checks ----------------------------------------------------------------------------------------


def question(message: str, answers: tuple[Decision, ...], usual: tuple[Decision, ...]) -> Made:
    """What a person is asked."""
    made: Made = {}
    put(made, "message", message, unless="")
    put(made, "answers", list(answers), unless=list(usual))
    return made


def write_check(check: Check) -> Made:
    match check:
        case AnyOf(parts=parts):
            return {"any": [write_check(part) for part in parts]}
        case AllOf(parts=parts):
            if check.order == "until_decided":
                return _in_order(parts)
            return {"all": [write_check(part) for part in parts]}
        case Person():
            person = question(write(check.message), check.answers, ALL_ANSWERS)
            put(person, "rejected", check.rejected, unless=Person().rejected)
            return {"person": person or True}
        case Judge() | Goal():
            return _judge(check)
        case Approval():
            return {"approval": _approval(check) or True}
        case Command() | Script():
            return _program_check(check)
        case ToolResult() | NoCalls() | Spend():
            return _cycle_check(check)
        case _:
            return _text_check(check)


def _in_order(parts: tuple[Check, ...]) -> Made:
    """Programs that run one after the other, joined by `&&`."""
    made = [write_check(part) for part in parts]
    programs = [part for part in parts if isinstance(part, Command)]
    line: Made = {"command": " && ".join(shlex.join(one.argv) for one in programs)}
    if len(programs) < len(parts) or any({**one, **line} != {**made[0], **line} for one in made):
        raise no_words("checks that end with the first failure and are not alike")
    return {**made[0], **line}


def _approval(check: Approval) -> Made:
    made: Made = {}
    put(made, "stage", check.stage, unless=None)
    put(made, "words", check.words, unless=False)
    put(made, "criteria", write(check.criteria), unless="")
    return made


def _judge(check: Judge | Goal) -> Made:
    made: Made = {"agent": check.agent}
    put(made, "prompt", write(check.prompt), unless="")
    if isinstance(check, Goal):
        return {"goal": made}
    put(made, "schema", check.schema, unless=None)
    put(made, "on_error", check.on_error, unless="continue")
    return {"judge": made}


def _program_check(check: Command | Script) -> Made:
    made: Made = {}
    if isinstance(check, Command):
        made["command"] = list(check.argv)
        put(made, "timeout", write_time(check.timeout_ms), unless=write_time(COMMAND_MS))
        put(made, "done_codes", list(check.done_codes), unless=[0])
        return made
    made["script"] = check.text
    put(made, "interpreter", check.interpreter, unless="bash")
    put(made, "timeout", write_time(check.timeout_ms), unless=write_time(SCRIPT_MS))
    put(made, "env", write_env(check.env), unless={})
    put(made, "on_timeout", check.on_timeout, unless="fail")
    put(made, "on_missing", check.on_missing, unless="error")
    return made


def _cycle_check(check: ToolResult | NoCalls | Spend) -> Made:
    match check:
        case NoCalls():
            return {"no_calls": True}
        case Spend(usd=usd):
            return {"spend": usd}
        case ToolResult(tool=tool):
            made: Made = {"name": tool}
            put(made, "exit_code", check.exit_code, unless=None)
            put(made, "contains", check.contains, unless=None)
            return {"tool": made if len(made) > 1 else tool}
        case never:
            assert_never(never)


def _text_check(check: _OfTexts) -> Made:
    made: Made = {}
    match check:
        case Cap():
            made["cap"] = True
        case Signal():
            made["signal"] = check.word
            put(made, "anywhere", check.anywhere, unless=False)
        case ResultField(field=field):
            made["result_field"] = field
        case ResultPath(path=path):
            made["result_path"] = list(path)
        case OutputSchema(schema=schema):
            made["schema"] = schema
        case Expr():
            made["expr"] = check.text
            put(made, "on_error", check.on_error, unless="fail")
        case Regex():
            made["regex"] = check.pattern
            put(made, "ignore_case", check.ignore_case, unless=False)
            put(made, "engine", check.engine, unless="linear")
            put(made, "invalid", check.invalid, unless=False)
        case Contains():
            made["contains"] = check.text
            put(made, "ignore_case", check.ignore_case, unless=False)
        case _:
            assert_never(check)
    return made


# -- conditions ------------------------------------------------------------------------------------


def write_condition(condition: Condition) -> JsonValue:
    if isinstance(condition, Cel):
        text = condition.text
        return text if condition.missing == "error" else {"expr": text, "missing": False}
    if isinstance(condition, Compare):
        comparison = _COMPARISONS[condition.op]
        return {"value": write_ref(condition.ref), comparison: condition.value}
    key = "all" if isinstance(condition, EveryOf) else "any"
    return {key: [write_condition(part) for part in condition.parts]}
