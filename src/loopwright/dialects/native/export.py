"""Export of a plan to a native definition that `lower` turns back into the same plan.

Default values are omitted, so that a small plan becomes a small definition. The source position of
a step is not exported.
"""

import shlex
from typing import TypeAlias, assert_never

from loopwright.dialects.native.checks import COMMAND_MS, OPERATORS, SCRIPT_MS
from loopwright.dialects.native.lower import (
    DEFAULT_RETRY,
    HISTORY,
    LOG_CHARS,
    STAGE_CHARS,
    states_criteria,
)
from loopwright.dialects.native.surface import NAME
from loopwright.dialects.native.templates import write as write_template
from loopwright.dialects.native.templates import write_ref
from loopwright.errors import LoopwrightError
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    Cel,
    Compare,
    Condition,
    Decision,
    Each,
    EveryOf,
    FailStep,
    LoopGate,
    ModelCycle,
    Repeat,
    Rework,
    RunCommand,
    RunScript,
    Step,
    Steps,
    StopRun,
    Wait,
    WorkflowInputs,
)
from loopwright.model.checks import (
    AllOf,
    AnyOf,
    Approval,
    Cap,
    Check,
    CommandCheck,
    Contains,
    Expr,
    Goal,
    Judge,
    NoCalls,
    OutputSchema,
    PersonCheck,
    Regex,
    ResultField,
    ResultPath,
    ScriptCheck,
    Signal,
    SpendCheck,
    ToolResultCheck,
)
from loopwright.model.ids import MAIN
from loopwright.model.plan import Agent, Coordinator, Input, Plan
from loopwright.model.policy import (
    ConversationHistory,
    Limits,
    Memory,
    NoMemory,
    PreviousOutput,
    ProgressLog,
    Retry,
    SameSession,
    StageOutputs,
    WorkspacePolicy,
)
from loopwright.model.record import ItemsExpr, ItemsFrom, JsonValue, LiteralItems, Ref, Template
from loopwright.syntax.notations import write_duration, write_point

Made = dict[str, JsonValue]
_OfTexts: TypeAlias = (
    Cap | Regex | Contains | Signal | OutputSchema | Expr | ResultField | ResultPath
)

ALL_ANSWERS: tuple[Decision, ...] = ("approve", "reject", "continue")
_COMPARISONS = {sign: word for word, sign in OPERATORS.items()}


class NotExpressible(LoopwrightError):
    """The native language has no words for a part of this plan."""

    code = "not-expressible"


def put(made: Made, key: str, value: JsonValue, *, unless: JsonValue) -> None:
    """Say something unless it is the default."""
    if value != unless or type(value) is not type(unless):
        made[key] = value


def put_time(made: Made, key: str, ms: int | None, *, unless: int | None = None) -> None:
    """The same for a duration."""
    if ms is not None and ms != unless:
        made[key] = write_duration(ms)


def not_expressible(what: str) -> NotExpressible:
    """The error; `what` names the part and its place."""
    return NotExpressible(f"native definitions cannot say this: {what}")


def write(template: Template) -> str:
    """A text with its references, unless one of them has a value for a skipped step."""
    if any(isinstance(part, Ref) and part.if_skipped is not None for part in template):
        raise not_expressible("a value that replaces the output of a skipped step")
    return write_template(template)


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
    put_time(made, "idle", agent.idle_ms)
    put_time(made, "wall", agent.wall_ms)
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
        raise not_expressible("a limit on passes without progress")
    made: Made = {}
    put_time(made, "time", limits.wall_ms)
    put_time(made, "pass_time", limits.pass_wall_ms)
    put_time(made, "idle", limits.idle_ms)
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
    put_time(made, "delay", retry.base_ms, unless=DEFAULT_RETRY.base_ms)
    put_time(made, "max_delay", retry.cap_ms, unless=DEFAULT_RETRY.cap_ms)
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
        case ConversationHistory():
            return _history(memory)
        case _:
            assert_never(memory)


def _history(memory: ConversationHistory) -> JsonValue:
    made: Made = {"kind": "history"}
    for name in ConversationHistory.__struct_fields__:
        put(made, name, getattr(memory, name), unless=getattr(HISTORY, name))
    return made if len(made) > 1 else "history"


# -- checks ----------------------------------------------------------------------------------------


def question(message: str, answers: tuple[Decision, ...], usual: tuple[Decision, ...]) -> Made:
    """The question to a person."""
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
        case PersonCheck():
            person = question(write(check.message), check.answers, ALL_ANSWERS)
            put(person, "rejected", check.rejected, unless=PersonCheck().rejected)
            return {"person": person or True}
        case Judge() | Goal():
            return _judge(check)
        case Approval():
            return {"approval": _approval(check) or True}
        case CommandCheck() | ScriptCheck():
            return _program_check(check)
        case ToolResultCheck() | NoCalls() | SpendCheck():
            return _cycle_check(check)
        case (
            Cap()
            | Contains()
            | Expr()
            | OutputSchema()
            | Regex()
            | ResultField()
            | ResultPath()
            | Signal()
        ):
            return _text_check(check)
        case _:
            assert_never(check)


def _in_order(parts: tuple[Check, ...]) -> Made:
    """Programs that run one after the other, joined by `&&`."""
    made = [write_check(part) for part in parts]
    programs = [part for part in parts if isinstance(part, CommandCheck)]
    line: Made = {"command": " && ".join(shlex.join(one.argv) for one in programs)}
    if len(programs) < len(parts) or any({**one, **line} != {**made[0], **line} for one in made):
        raise not_expressible("checks that end with the first failure and are not alike")
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


def _program_check(check: CommandCheck | ScriptCheck) -> Made:
    made: Made = {}
    if isinstance(check, CommandCheck):
        made["command"] = list(check.argv)
        put_time(made, "timeout", check.timeout_ms, unless=COMMAND_MS)
        put(made, "done_codes", list(check.done_codes), unless=[0])
        return made
    made["script"] = check.text
    put(made, "interpreter", check.interpreter, unless="bash")
    put_time(made, "timeout", check.timeout_ms, unless=SCRIPT_MS)
    put(made, "env", write_env(check.env), unless={})
    put(made, "on_timeout", check.on_timeout, unless="fail")
    put(made, "on_missing", check.on_missing, unless="error")
    return made


def _cycle_check(check: ToolResultCheck | NoCalls | SpendCheck) -> Made:
    match check:
        case NoCalls():
            return {"no_calls": True}
        case SpendCheck(usd=usd):
            return {"spend": usd}
        case ToolResultCheck(tool=tool):
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


__all__ = ["NotExpressible", "export"]


def export(plan: Plan) -> Made:
    """The definition, as plain values."""
    made: Made = {"name": plan.name}
    if plan.dialect != NAME:
        made["converted_from"] = plan.dialect
    put(made, "description", plan.description, unless="")
    put(made, "goal", write(plan.message), unless="")
    put(made, "inputs", {name: write_input(one) for name, one in plan.inputs.items()}, unless={})
    put(made, "settings", dict(plan.settings), unless={})
    put(made, "agents", {name: write_agent(one) for name, one in plan.agents.items()}, unless={})
    if plan.coordinator is not None:
        made["coordinator"] = _coordinator(plan.coordinator)
    usual = plan.on_failure == "cascade" and plan.output == "last" and plan.returns is None
    if len(plan.steps) == 1 and _is_plain(plan.steps[0]) and usual:
        made |= _action(plan.steps[0])
    else:
        made["steps"] = [_step(step) for step in plan.steps]
        put(made, "on_failure", plan.on_failure, unless="cascade")
        put(made, "speaker", plan.output, unless="last")
        put(made, "returns", plan.returns, unless=None)
    put(made, "budget", write_limits(plan.limits), unless={})
    put(made, "parallel", plan.parallel, unless=None)
    put(made, "outcome", plan.outcome, unless="worst")
    put(made, "missing", plan.missing, unless="empty")
    put(made, "pass_env", list(plan.pass_env), unless=[])
    put(made, "exclusive", plan.exclusive, unless=None)
    put(made, "sandbox", plan.sandbox, unless=None)
    put(made, "workspace", write_workspace(plan.workspace), unless={})
    put(made, "protect", list(plan.workspace.protect), unless=[])
    return made


def _coordinator(coordinator: Coordinator) -> Made:
    made: Made = {"agent": coordinator.agent}
    put(made, "prompt", write(coordinator.prompt), unless="")
    put(made, "narrates", coordinator.narrates, unless=True)
    return made


def _is_plain(step: Step) -> bool:
    """Whether a step needs no separate entry: the definition is just this action."""
    plain = step == Step(id=MAIN, action=step.action, retry=DEFAULT_RETRY, origin=step.origin)
    return plain and isinstance(step.action, CallAgent | RunCommand | RunScript | Repeat)


# -- steps and actions -----------------------------------------------------------------------------


def _step(step: Step) -> Made:
    made: Made = {"id": step.id}
    put(made, "needs", list(step.needs), unless=[])
    put(made, "join", step.join, unless="all_success")
    if step.when is not None:
        made["when"] = write_condition(step.when)
        put(made, "when_error", step.when_error, unless="fail")
    made |= _action(step)
    put(made, "retry", write_retry(step.retry), unless={})
    put(made, "limits", write_limits(step.limits), unless={})
    put(made, "on_error", step.on_error, unless="fail")
    put(made, "on_blocked", step.on_blocked, unless="go_on")
    put(made, "needs_artifact", step.needs_artifact, unless=False)
    put(made, "needs_output", step.needs_output, unless=False)
    return made


def _action(step: Step) -> Made:
    action = step.action
    match action:
        case AskPerson():
            return {"gate": _ask(action) or True}
        case Wait(ms=ms, output=output):
            if output is not None:
                raise not_expressible(f"the output of a wait ({step.id})")
            return {"wait": write_duration(ms)}
        case StopRun(reason=reason):
            return {"stop": write(reason)}
        case FailStep(reason=reason):
            raise not_expressible(f"a step that cannot run ({step.id}: {reason})")
        case Repeat():
            return {"repeat": _repeat(action, step.id)}
        case ModelCycle():
            raise not_expressible(f"a cycle of {step.id} that is not an iteration of a loop")
        case CallAgent() | RunCommand() | RunScript() | Steps():
            return _body(action, step.id)
        case _:
            assert_never(action)


def _ask(action: AskPerson) -> Made:
    if action.choices:
        raise not_expressible("the decisions of a gate")
    if action.approved is not None or action.expired is not None:
        raise not_expressible("a gate with an output of its own")
    made = question(write(action.message), action.answers, ALL_ANSWERS[:2])
    put(made, "capture", action.capture, unless=False)
    if action.on_reject is not None:
        made["on_reject"] = _rework(action.on_reject)
    put(made, "reject", action.reject, unless="fail")
    return made


def _rework(rework: Rework) -> Made:
    made: Made = {"agent": rework.agent}
    put(made, "prompt", write(rework.prompt), unless="")
    put(made, "attempts", rework.attempts, unless=3)
    return made


def _script(action: RunScript, step: str) -> Made:
    if action.on_timeout != "fail":
        raise not_expressible(f"a script of {step} that is skipped when it takes too long")
    if action.schema is not None:
        raise not_expressible(f"a script of {step} whose output has a schema")
    made: Made = {"script": action.text}
    put(made, "interpreter", action.interpreter, unless="bash")
    put(made, "flags", list(action.flags), unless=["-c"])
    put(made, "by_stdin", action.by_stdin, unless=False)
    put_time(made, "timeout", action.timeout_ms, unless=SCRIPT_MS)
    put(made, "env", write_env(action.env), unless={})
    return made


def _body(action: Action, step: str) -> Made:
    made: Made = {}
    match action:
        case CallAgent():
            made["agent"] = action.agent
            put(made, "prompt", write(action.prompt), unless="")
            put(made, "schema", action.schema, unless=None)
            put(made, "session", action.session, unless="fresh")
            put(made, "files", list(action.context_files), unless=[])
            put(made, "show_needs", action.show_needs, unless=False)
            put(made, "on_idle", action.on_idle, unless="fail")
            put(made, "on_empty", action.on_empty, unless="answer")
        case ModelCycle():
            made["cycle"] = _cycle(action)
        case RunCommand():
            made["run"] = list(action.argv)
            put_time(made, "timeout", action.timeout_ms, unless=COMMAND_MS)
            put(made, "env", dict(action.env), unless={})
        case RunScript():
            made |= _script(action, step)
        case Steps():
            made["steps"] = [_step(one) for one in action.steps]
            put(made, "on_failure", action.on_failure, unless="cascade")
            put(made, "parallel", action.parallel, unless=None)
            put(made, "speaker", action.output, unless="last")
            put(made, "returns", action.returns, unless=None)
            if action.given is not None:
                made["given"] = _given(action.given)
        case AskPerson() | Wait() | StopRun() | FailStep() | Repeat():
            raise not_expressible(f"a {type(action).__struct_config__.tag} as the body of {step}")
        case _:
            assert_never(action)
    return made


def _cycle(action: ModelCycle) -> Made:
    made: Made = {"agent": action.agent}
    put(made, "prompt", write(action.prompt), unless="")
    put(made, "nudge", action.nudge, unless=None)
    put(made, "schema", action.schema, unless=None)
    put(made, "one_call", action.one_call, unless=False)
    return made


def _repeat(action: Repeat, step: str) -> Made:
    made: Made = {}
    put(made, "max", action.max, unless=None)
    if action.each is not None:
        made["for_each"] = _each(action.each)
    if action.until != Cap():
        made["until"] = write_check(action.until)
    usual = "history" if isinstance(action.body, ModelCycle) else "none"
    put(made, "memory", write_memory(action.memory), unless=usual)
    if action.gate is not None:
        made["gate"] = _gate(action.gate) or True
    counted = action.each is None and action.gate is None and action.until == Cap()
    put(made, "at_cap", action.at_cap, unless="complete" if counted else "exhaust")
    put(made, "output", action.output, unless="last")
    put_time(made, "delay", action.delay_ms, unless=0)
    put(made, "limits", write_limits(action.limits), unless={})
    put(made, "broken_after", action.broken_after, unless=3)
    put(made, "check_first", action.check_first, unless=False)
    put(made, "on_deadline", action.on_deadline, unless="stop")
    criteria = states_criteria(action.until, gated=action.gate is not None)
    put(made, "criteria", action.criteria, unless=criteria)
    put(made, "checks", action.checks, unless="all")
    return made | _body(action.body, step)


def _gate(gate: LoopGate) -> Made:
    made = question(write(gate.message), gate.answers, ALL_ANSWERS)
    put(made, "first_always", gate.first_always, unless=False)
    put(made, "approve_continues", gate.approve_continues, unless=False)
    put(made, "grants", gate.grants, unless=False)
    put(made, "reject", gate.reject, unless="fail")
    put(made, "after", gate.after, unless=0)
    return made


def _given(given: WorkflowInputs) -> Made:
    made: Made = {}
    put(made, "message", write(given.message), unless="")
    put(made, "inputs", write_env(given.inputs), unless={})
    return made


def _each(each: Each) -> Made:
    made: Made = {}
    match each.items:
        case LiteralItems(values=values):
            made["items"] = list(values)
        case ItemsFrom(ref=ref):
            made["from"] = write_ref(ref)
        case ItemsExpr(expr=expr):
            made["expr"] = expr
        case _:
            assert_never(each.items)
    put(made, "parallel", each.parallel, unless=None)
    put(made, "max_items", each.max_items, unless=1_000)
    put(made, "on_item_error", each.on_item_error, unless="stop")
    put(made, "failed_key", each.failed_key, unless="")
    return made
