"""From a plan to the native definition that says the same: what `lower` makes of it is that plan.

What equals its default is left out, so that a small plan becomes a small definition. Where a step
was written is not part of what it says.
"""

from loopwright.dialects.native.export_parts import (
    ALL_ANSWERS,
    Made,
    NotExpressible,
    no_words,
    put,
    question,
    write,
    write_agent,
    write_check,
    write_condition,
    write_env,
    write_input,
    write_limits,
    write_memory,
    write_retry,
    write_time,
    write_workspace,
)
from loopwright.dialects.native.lower import states_criteria
from loopwright.dialects.native.lower_checks import COMMAND_MS, SCRIPT_MS
from loopwright.dialects.native.lower_parts import DEFAULT_RETRY
from loopwright.dialects.native.recognise import NAME
from loopwright.dialects.native.templates import write_ref
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    Cycle,
    Each,
    FailStep,
    Gate,
    Given,
    Repeat,
    Rework,
    RunCommand,
    RunScript,
    Step,
    Steps,
    Stop,
    Wait,
)
from loopwright.model.checks import Cap
from loopwright.model.ids import MAIN
from loopwright.model.plan import Coordinator, Plan
from loopwright.model.template import Items, ItemsFrom

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
    """Whether a step needs no entry of its own: the definition is just this action."""
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
                raise no_words(f"the output of a wait ({step.id})")
            return {"wait": write_time(ms)}
        case Stop(reason=reason):
            return {"stop": write(reason)}
        case FailStep(reason=reason):
            raise no_words(f"a step that cannot run ({step.id}: {reason})")
        case Repeat():
            return {"repeat": _repeat(action, step.id)}
        case Cycle():
            raise no_words(f"a cycle of {step.id} that is no pass of a loop")
        case _:
            return _body(action, step.id)


def _ask(action: AskPerson) -> Made:
    if action.choices:
        raise no_words("the decisions of a gate")
    if action.approved is not None or action.expired is not None:
        raise no_words("a gate with an output of its own")
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
        case Cycle():
            made["cycle"] = _cycle(action)
        case RunCommand():
            made["run"] = list(action.argv)
            put(made, "timeout", write_time(action.timeout_ms), unless=write_time(COMMAND_MS))
            put(made, "env", dict(action.env), unless={})
        case RunScript():
            if action.on_timeout != "fail":
                raise no_words(f"a script of {step} that is skipped when it takes too long")
            if action.schema is not None:
                raise no_words(f"a script of {step} whose output has a schema")
            made["script"] = action.text
            put(made, "interpreter", action.interpreter, unless="bash")
            put(made, "flags", list(action.flags), unless=["-c"])
            put(made, "by_stdin", action.by_stdin, unless=False)
            put(made, "timeout", write_time(action.timeout_ms), unless=write_time(SCRIPT_MS))
            put(made, "env", write_env(action.env), unless={})
        case Steps():
            made["steps"] = [_step(one) for one in action.steps]
            put(made, "on_failure", action.on_failure, unless="cascade")
            put(made, "parallel", action.parallel, unless=None)
            put(made, "speaker", action.output, unless="last")
            put(made, "returns", action.returns, unless=None)
            if action.given is not None:
                made["given"] = _given(action.given)
        case _:
            tag = type(action).__struct_config__.tag
            raise no_words(f"a {tag} as the body of {step}")
    return made


def _cycle(action: Cycle) -> Made:
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
    usual = "history" if isinstance(action.body, Cycle) else "none"
    put(made, "memory", write_memory(action.memory), unless=usual)
    if action.gate is not None:
        made["gate"] = _gate(action.gate) or True
    counted = action.each is None and action.gate is None and action.until == Cap()
    put(made, "at_cap", action.at_cap, unless="complete" if counted else "exhaust")
    put(made, "output", action.output, unless="last")
    if action.delay_ms:
        made["delay"] = write_time(action.delay_ms)
    put(made, "limits", write_limits(action.limits), unless={})
    put(made, "broken_after", action.broken_after, unless=3)
    put(made, "check_first", action.check_first, unless=False)
    put(made, "on_deadline", action.on_deadline, unless="stop")
    told = states_criteria(action.until, gated=action.gate is not None)
    put(made, "criteria", action.criteria, unless=told)
    put(made, "checks", action.checks, unless="all")
    return made | _body(action.body, step)


def _gate(gate: Gate) -> Made:
    made = question(write(gate.message), gate.answers, ALL_ANSWERS)
    put(made, "first_always", gate.first_always, unless=False)
    put(made, "approve_continues", gate.approve_continues, unless=False)
    put(made, "grants", gate.grants, unless=False)
    put(made, "reject", gate.reject, unless="fail")
    put(made, "after", gate.after, unless=0)
    return made


def _given(given: Given) -> Made:
    made: Made = {}
    put(made, "message", write(given.message), unless="")
    put(made, "inputs", write_env(given.inputs), unless={})
    return made


def _each(each: Each) -> Made:
    made: Made = {}
    match each.items:
        case Items(values=values):
            made["items"] = list(values)
        case ItemsFrom(ref=ref):
            made["from"] = write_ref(ref)
        case _:
            made["expr"] = each.items.expr
    put(made, "parallel", each.parallel, unless=None)
    put(made, "max_items", each.max_items, unless=1_000)
    put(made, "on_item_error", each.on_item_error, unless="stop")
    return made
