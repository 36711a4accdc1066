"""From a plan to the native definition that says the same: what `lower` makes of it is that plan.

What equals its default is left out, so that a small plan becomes a small definition.
"""

from loopwright.dialects.native.lower_parts import DEFAULT_RETRY
from loopwright.dialects.native.templates import write, write_ref
from loopwright.errors import LoopwrightError
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    Decision,
    Each,
    Repeat,
    RunCommand,
    Step,
    Steps,
    Stop,
    Wait,
)
from loopwright.model.checks import (
    AllOf,
    AnyOf,
    Cap,
    Check,
    Command,
    Contains,
    OutputSchema,
    Person,
    Regex,
    Signal,
)
from loopwright.model.ids import MAIN
from loopwright.model.memory import Memory, NoMemory, PreviousOutput, ProgressLog, SameSession
from loopwright.model.plan import Agent, Input, Plan
from loopwright.model.policy import Limits, Retry
from loopwright.model.record import JsonValue
from loopwright.model.template import Items, ItemsFrom

Made = dict[str, JsonValue]

_ALL_ANSWERS: tuple[Decision, ...] = ("approve", "reject", "continue")
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))


class NotExpressible(LoopwrightError):
    """The native language has no words yet for a part of this plan."""

    code = "not-expressible"


def export(plan: Plan) -> Made:
    """The definition, as plain values."""
    if plan.outcome != "worst":
        raise _no_words(f"outcome {plan.outcome}")
    made: Made = {"name": plan.name}
    _put(made, "description", plan.description, unless="")
    _put(made, "goal", write(plan.message), unless="")
    _put(made, "inputs", {name: _input(one) for name, one in plan.inputs.items()}, unless={})
    _put(made, "agents", {name: _agent(one) for name, one in plan.agents.items()}, unless={})
    if len(plan.steps) == 1 and _is_plain(plan.steps[0]) and plan.on_failure == "cascade":
        made |= _action(plan.steps[0].action)
    else:
        made["steps"] = [_step(step) for step in plan.steps]
        _put(made, "on_failure", plan.on_failure, unless="cascade")
    _put(made, "budget", _limits(plan.limits), unless={})
    _put(made, "parallel", plan.parallel, unless=None)
    return made


def _is_plain(step: Step) -> bool:
    """Whether a step needs no entry of its own: the definition is just this action."""
    plain = step == Step(id=MAIN, action=step.action, retry=DEFAULT_RETRY, origin=step.origin)
    return plain and isinstance(step.action, CallAgent | RunCommand | Repeat)


def _put(made: Made, key: str, value: JsonValue, *, unless: JsonValue) -> None:
    if value != unless:
        made[key] = value


def _no_words(what: str) -> NotExpressible:
    return NotExpressible(f"native definitions cannot say this yet: {what}")


def _time(ms: int) -> str:
    text = ""
    for unit, size in _UNITS:
        count, ms = divmod(ms, size)
        text += f"{count}{unit}" if count else ""
    return text


# -- agents, inputs, policies ----------------------------------------------------------------------


def _agent(agent: Agent) -> Made:
    made: Made = {}
    _put(made, "use", agent.spec, unless=None)
    _put(made, "system", agent.system, unless="")
    _put(made, "model", agent.model, unless=None)
    if agent.tools is not None:
        made["tools"] = list(agent.tools)
    _put(made, "deny_tools", list(agent.deny_tools), unless=[])
    for key in ("permission", "max_turns", "max_usd", "temperature"):
        _put(made, key, getattr(agent, key), unless=None)
    _put(made, "env", dict(agent.env), unless={})
    _put(made, "pass_env", list(agent.pass_env), unless=[])
    if agent.idle_ms is not None:
        made["idle"] = _time(agent.idle_ms)
    if agent.wall_ms is not None:
        made["wall"] = _time(agent.wall_ms)
    _put(made, "options", agent.options, unless={})
    return made


def _input(value: Input) -> Made:
    made: Made = {}
    _put(made, "description", value.description, unless="")
    _put(made, "required", value.required, unless=value.default is None)
    _put(made, "default", value.default, unless=None)
    return made


def _limits(limits: Limits) -> Made:
    if limits.no_progress is not None:
        raise _no_words("a limit on passes without progress")
    made: Made = {}
    for key, ms in (
        ("time", limits.wall_ms),
        ("pass_time", limits.pass_wall_ms),
        ("idle", limits.idle_ms),
    ):
        if ms is not None:
            made[key] = _time(ms)
    for key in ("tokens", "usd", "identical"):
        _put(made, key, getattr(limits, key), unless=None)
    return made


def _retry(retry: Retry) -> Made:
    made: Made = {}
    _put(made, "attempts", retry.attempts, unless=DEFAULT_RETRY.attempts)
    _put(made, "delay", _time(retry.base_ms), unless=_time(DEFAULT_RETRY.base_ms))
    _put(made, "max_delay", _time(retry.cap_ms), unless=_time(DEFAULT_RETRY.cap_ms))
    _put(made, "on", list(retry.on), unless=list(DEFAULT_RETRY.on))
    return made


# -- steps and actions -----------------------------------------------------------------------------


def _step(step: Step) -> Made:
    if step.when is not None:
        raise _no_words(f"the condition of {step.id}")
    made: Made = {"id": step.id}
    _put(made, "needs", list(step.needs), unless=[])
    _put(made, "join", step.join, unless="all_success")
    made |= _action(step.action)
    _put(made, "retry", _retry(step.retry), unless={})
    _put(made, "limits", _limits(step.limits), unless={})
    _put(made, "on_error", step.on_error, unless="fail")
    return made


def _action(action: Action) -> Made:
    match action:
        case AskPerson():
            gate = _question(write(action.message), action.answers, _ALL_ANSWERS[:2])
            _put(gate, "capture", action.capture, unless=False)
            return {"gate": gate or True}
        case Wait(ms=ms):
            return {"wait": _time(ms)}
        case Stop(reason=reason):
            return {"stop": write(reason)}
        case Repeat():
            return {"repeat": _repeat(action)}
        case _:
            return _body(action)


def _body(action: Action) -> Made:
    made: Made = {}
    match action:
        case CallAgent(context_files=()):
            made["agent"] = action.agent
            _put(made, "prompt", write(action.prompt), unless="")
            _put(made, "schema", action.schema, unless=None)
            _put(made, "session", action.session, unless="fresh")
        case RunCommand():
            made["run"] = list(action.argv)
            _put(made, "timeout", _time(action.timeout_ms), unless="10m")
            _put(made, "env", dict(action.env), unless={})
        case Steps(parallel=None):
            made["steps"] = [_step(step) for step in action.steps]
            _put(made, "on_failure", action.on_failure, unless="cascade")
        case _:
            raise _no_words(f"{type(action).__name__} in this place")
    return made


def _question(message: str, answers: tuple[Decision, ...], usual: tuple[Decision, ...]) -> Made:
    made: Made = {}
    _put(made, "message", message, unless="")
    _put(made, "answers", list(answers), unless=list(usual))
    return made


def _repeat(action: Repeat) -> Made:
    made: Made = {}
    _put(made, "max", action.max, unless=None)
    if action.each is not None:
        made["for_each"] = _each(action.each)
    if action.until != Cap():
        made["until"] = _check(action.until)
    _put(made, "memory", _memory(action.memory), unless="none")
    if action.gate is not None:
        gate = _question(write(action.gate.message), action.gate.answers, _ALL_ANSWERS)
        made["gate"] = gate or True
    counted = action.each is None and action.gate is None and action.until == Cap()
    _put(made, "at_cap", action.at_cap, unless="complete" if counted else "exhaust")
    _put(made, "output", action.output, unless="last")
    if action.delay_ms:
        made["delay"] = _time(action.delay_ms)
    _put(made, "limits", _limits(action.limits), unless={})
    _put(made, "broken_after", action.broken_after, unless=3)
    _put(made, "check_first", action.check_first, unless=False)
    return made | _body(action.body)


def _each(each: Each) -> Made:
    made: Made = {}
    match each.items:
        case Items(values=values):
            made["items"] = list(values)
        case ItemsFrom(ref=ref):
            made["from"] = write_ref(ref)
        case _:
            raise _no_words("items by an expression")
    _put(made, "parallel", each.parallel, unless=None)
    _put(made, "max_items", each.max_items, unless=1_000)
    _put(made, "on_item_error", each.on_item_error, unless="stop")
    return made


def _memory(memory: Memory) -> JsonValue:
    match memory:
        case NoMemory():
            return "none"
        case ProgressLog(chars=chars):
            return "progress-log" if chars == 300 else {"kind": "progress-log", "chars": chars}
        case PreviousOutput():
            return "previous-output"
        case SameSession():
            return "session"
        case _:
            raise _no_words(f"the memory {type(memory).__name__}")


def _check(check: Check) -> Made:
    match check:
        case AnyOf(parts=parts):
            return {"any": [_check(part) for part in parts]}
        case AllOf(parts=parts):
            return {"all": [_check(part) for part in parts]}
        case Person():
            person = _question(write(check.message), check.answers, _ALL_ANSWERS)
            _put(person, "rejected", check.rejected, unless=Person().rejected)
            return {"person": person or True}
        case Command():
            made: Made = {"command": list(check.argv)}
            _put(made, "timeout", _time(check.timeout_ms), unless="10m")
            _put(made, "done_codes", list(check.done_codes), unless=[0])
            return made
        case _:
            return _text_check(check)


def _text_check(check: Check) -> Made:
    made: Made = {}
    match check:
        case Cap():
            made["cap"] = True
        case Signal(word=word):
            made["signal"] = word
        case OutputSchema(schema=schema):
            made["schema"] = schema
        case Regex():
            made["regex"] = check.pattern
            _put(made, "ignore_case", check.ignore_case, unless=False)
            _put(made, "invalid", check.invalid, unless=False)
        case Contains():
            made["contains"] = check.text
            _put(made, "ignore_case", check.ignore_case, unless=False)
        case _:
            raise _no_words(f"the check {type(check).__name__}")
    return made
