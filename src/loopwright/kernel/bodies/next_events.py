"""The next events of a body that has not ended, and the conditions of its steps.

One function for each kind of body. A condition decides whether a step whose dependencies have
ended runs at all.
"""

from typing import assert_never

import msgspec

from loopwright.kernel.bodies.conversation import proceed_cycle
from loopwright.kernel.bodies.outcome import MAX_PARALLEL_ITEMS, is_worked_on
from loopwright.kernel.effects import request_backoff, request_effect
from loopwright.kernel.event_parts import AgentCall, CommandCall, Failure, SleepCall
from loopwright.kernel.events import (
    AnyEvent,
    CancelRequested,
    IterationStarted,
    StepKept,
    StepSkipped,
    StepStarted,
)
from loopwright.kernel.frames import (
    Body,
    CarriedResult,
    CycleBody,
    IterationOwner,
    LeafBody,
    Owner,
    RepeatBody,
    Result,
    RunOwner,
    StepsBody,
)
from loopwright.kernel.gates import open_gate
from loopwright.kernel.limits import cap, is_out_of_time, loop_over_budget
from loopwright.kernel.messages import deliver
from loopwright.kernel.references import fill, items_of, resolve, scope_at
from loopwright.kernel.state import KernelServices, State, has_to_wait
from loopwright.model.actions import (
    UNREADABLE,
    AskPerson,
    CallAgent,
    Cel,
    Compare,
    Condition,
    EveryOf,
    LoopGate,
    RunCommand,
    RunScript,
    SomeOf,
    Step,
    StopRun,
    Wait,
)
from loopwright.model.effect_ids import (
    AGENT_CALL,
    COMMAND_CALL,
    DELAY,
    LOOP_DEADLINE,
    REWORK,
    SCRIPT_CALL,
    WAIT_CALL,
)
from loopwright.model.ids import child_path, item_path, iteration_path
from loopwright.model.record import Blob, JsonValue


class ConditionValue(msgspec.Struct, frozen=True):
    """The condition has an answer."""

    yes: bool


class UndecidedCondition(msgspec.Struct, frozen=True):
    """The condition cannot be evaluated, and why."""

    why: str


def evaluate_condition(
    state: State, owner: Owner, condition: Condition, senses: KernelServices
) -> ConditionValue | UndecidedCondition:
    """Whether a condition holds, seen from a place."""
    match condition:
        case Cel():
            return _cel(state, owner, condition, senses)
        case Compare():
            return _compare(state, owner, condition, senses)
        case EveryOf(parts=parts):
            return _combined(state, owner, parts, senses, decided_by=False)
        case SomeOf(parts=parts):
            return _combined(state, owner, parts, senses, decided_by=True)
        case _:
            assert_never(condition)


def _combined(
    state: State,
    owner: Owner,
    parts: tuple[Condition, ...],
    senses: KernelServices,
    *,
    decided_by: bool,
) -> ConditionValue | UndecidedCondition:
    for part in parts:
        said = evaluate_condition(state, owner, part, senses)
        if isinstance(said, UndecidedCondition) or said.yes is decided_by:
            return said
    return ConditionValue(not decided_by)


def _cel(
    state: State, owner: Owner, condition: Cel, senses: KernelServices
) -> ConditionValue | UndecidedCondition:
    said = senses.evaluate(condition.text, scope_at(state, owner, senses), wants="bool")
    if said.missing and condition.missing == "false":
        return ConditionValue(yes=False)
    if said.problem:
        return UndecidedCondition(said.problem)
    return ConditionValue(said.value is True)


def _compare(
    state: State, owner: Owner, condition: Compare, senses: KernelServices
) -> ConditionValue | UndecidedCondition:
    found = resolve(state, owner, condition.ref, senses)
    left = senses.read(found) if isinstance(found, Blob) else found
    if condition.op in ("==", "!="):
        same = _text(left) == _text(condition.value)
        return ConditionValue(same is (condition.op == "=="))
    one, other = _number(left), _number(condition.value)
    written = str(condition.value)
    if condition.ref.of == "run" and written.startswith(UNREADABLE):
        return UndecidedCondition(f"{written.removeprefix(UNREADABLE)} is not a condition")
    if one is None or other is None:
        shown = _text(left)[:60]
        return UndecidedCondition(
            f"{shown!r} {condition.op} {_text(condition.value)!r} needs two numbers"
        )
    match condition.op:
        case "<":
            return ConditionValue(one < other)
        case ">":
            return ConditionValue(one > other)
        case "<=":
            return ConditionValue(one <= other)
        case _:
            return ConditionValue(one >= other)


def _text(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def _number(value: JsonValue) -> float | None:
    if isinstance(value, bool) or value is None or isinstance(value, list | dict):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def proceed(state: State, body: Body, senses: KernelServices) -> list[AnyEvent]:
    """The next facts of a body that is under way; none while it waits for an answer."""
    if type(body) is LeafBody:
        return proceed_leaf(state, body, senses)
    if type(body) is RepeatBody:
        if body.action.each is not None:
            return proceed_each(state, body, senses)
        return proceed_repeat(state, body, senses)
    if type(body) is StepsBody:
        return proceed_steps(state, body, senses)
    assert type(body) is CycleBody
    return proceed_cycle(state, body, senses)


# -- a single call ---------------------------------------------------------------------------------


def proceed_leaf(state: State, body: LeafBody, senses: KernelServices) -> list[AnyEvent]:
    if body.pending is not None:
        return []
    if type(body.action) is AskPerson:
        return _proceed_gate(state, body, body.action, senses)
    if type(body.action) is StopRun:
        reason = fill(state, body.owner, body.action.reason, senses) or "stopped"
        return [] if state.control.cancel else [CancelRequested(at=state.now, reason=reason)]
    if body.failure is not None and body.backoff < body.attempt:
        return [request_backoff(state, body)]
    return _next_try(state, body)


def _proceed_gate(
    state: State, body: LeafBody, action: AskPerson, senses: KernelServices
) -> list[AnyEvent]:
    """Ask; after a rejection that is to be worked on, let the agent work and ask again."""
    if body.gate is None:
        gate = LoopGate(message=action.message, answers=action.answers)
        return [open_gate(state, body.owner, "step", gate, senses)]
    if body.gate.decision != "reject" or "reject" in action.choices:
        return []
    if action.on_reject is not None and is_worked_on(body, action):
        if has_to_wait(state, body.owner):
            return []
        call = AgentCall(agent=action.on_reject.agent)
        return [request_effect(state, body.owner, REWORK, body.rejections, call)]
    assert action.reject == "cancel", "any other rejection has ended the step"
    return [CancelRequested(at=state.now, reason="rejected")]


def _next_try(state: State, body: LeafBody) -> list[AnyEvent]:
    owner, number, action = body.owner, body.attempt + 1, body.action
    if type(action) is CallAgent:
        if has_to_wait(state, owner):
            return []
        request = request_effect(state, owner, AGENT_CALL, number, AgentCall(agent=action.agent))
        if state.mail.inboxes:
            return [*deliver(state, owner, request.effect), request]
        return [request]
    match action:
        case RunCommand(argv=argv, timeout_ms=timeout_ms, env=env):
            call = CommandCall(argv=argv, timeout_ms=timeout_ms, env=env)
            return [request_effect(state, owner, COMMAND_CALL, number, call)]
        case RunScript() as script:
            return [request_effect(state, owner, SCRIPT_CALL, number, _script_call(script))]
        case wait:
            assert isinstance(wait, Wait), f"no decider for {type(wait).__name__}"
            return [
                request_effect(
                    state, owner, WAIT_CALL, number, SleepCall(until=state.now + wait.ms)
                )
            ]


def _script_call(script: RunScript) -> CommandCall:
    argv = (script.interpreter, *script.flags)
    if script.by_stdin:
        return CommandCall(argv=argv, timeout_ms=script.timeout_ms, stdin=script.text)
    return CommandCall(argv=(*argv, script.text), timeout_ms=script.timeout_ms)


# -- a graph of steps ------------------------------------------------------------------------------


def proceed_steps(state: State, body: StepsBody, senses: KernelServices) -> list[AnyEvent]:
    if state.control.paused or not body.ready or is_out_of_time(body):
        return []
    facts: list[AnyEvent] = []
    keeps = body.owner.parent.keeps if isinstance(body.owner, IterationOwner) else {}
    for number in body.ready:
        step = body.index.action.steps[number]
        path = child_path(body.owner.inside, step.id)
        if step.id in keeps:
            facts.append(_kept(state, body, path, keeps[step.id], senses))
        elif not _may_start(step, [body.results[need] for need in step.needs]):
            facts.append(_skipped(state, body, step, path))
        elif step.when is not None:
            facts.append(_under_condition(state, body, step, path, senses))
        else:
            facts.append(StepStarted(at=state.now, path=path, iteration=body.owner.iteration))
    return facts


def _kept(
    state: State, body: StepsBody, path: str, carried: CarriedResult, senses: KernelServices
) -> StepKept:
    """A step that is not run again, since it completed before or a person leaves it out."""
    at, iteration, ended = state.now, body.owner.iteration, carried.ended
    if ended is not None:
        return StepKept(
            at=at,
            path=path,
            iteration=iteration,
            of=carried.of,
            output=ended.output,
            result=ended.result,
        )
    words = f"SKIPPED by a person: {carried.note}" if carried.note else "SKIPPED by a person"
    return StepKept(
        at=at, path=path, iteration=iteration, output=senses.keep(words), reason="skipped"
    )


def _under_condition(
    state: State, body: StepsBody, step: Step, path: str, senses: KernelServices
) -> AnyEvent:
    """A condition is looked at once, when everything before the step has ended."""
    assert step.when is not None
    at, iteration = state.now, body.owner.iteration
    said = evaluate_condition(state, body.owner, step.when, senses)
    if isinstance(said, ConditionValue):
        if said.yes:
            return StepStarted(at=at, path=path, iteration=iteration)
        return StepSkipped(at=at, path=path, iteration=iteration, reason="condition")
    error = Failure(type="condition", detail=said.why)
    return StepSkipped(
        at=at,
        path=path,
        iteration=iteration,
        reason="condition",
        status="skipped" if step.when_error == "skip" else "failed",
        error=error,
    )


def _skipped(state: State, body: StepsBody, step: Step, path: str) -> StepSkipped:
    """Under `cascade` what a failure spoils is cancelled, else it is only left out."""
    cascade = body.index.action.on_failure == "cascade"
    spoiled = any(_spoils(body, need) for need in step.needs)
    return StepSkipped(
        at=state.now,
        path=path,
        iteration=body.owner.iteration,
        reason="dependency",
        status="cancelled" if cascade and spoiled else "skipped",
    )


def _spoils(body: StepsBody, need: str) -> bool:
    tolerated = body.index.action.steps[body.index.at[need]].on_error == "continue"
    return body.results[need].status not in ("completed", "skipped") and not tolerated


def _may_start(step: Step, before: list[Result]) -> bool:
    """Whether what a step needs ended in a way that lets it start."""
    good = sum(result.status == "completed" for result in before)
    skipped = sum(result.status == "skipped" for result in before)
    bad = len(before) - good - skipped
    match step.join:
        case "all_success":
            return good == len(before)
        case "finished_ok":
            return good + sum(map(_left_out_on_purpose, before)) == len(before)
        case "one_success":
            return good > 0 or not before
        case "none_failed_min_one_success":
            return bad == 0 and (good > 0 or not before)
        case "all_done":
            return True
        case never:
            assert_never(never)


def _left_out_on_purpose(result: Result) -> bool:
    """Skipped by a condition; what was skipped for a failure before it spoils what follows."""
    return result.status == "skipped" and result.reason != "dependency"


# -- a loop ----------------------------------------------------------------------------------------


def proceed_repeat(state: State, body: RepeatBody, senses: KernelServices) -> list[AnyEvent]:
    if body.active:
        return []
    facts = _loop_deadline(state, body)
    owner, action = body.owner, body.action
    most = cap(body)
    if body.finished and most is not None and body.finished >= most:
        return [*facts, *_ask_at_cap(state, body, senses)]
    if state.control.paused or body.delay is not None:
        return facts
    if action.delay_ms and body.finished and body.delayed < body.finished:
        call = SleepCall(until=state.now + action.delay_ms)
        return [*facts, request_effect(state, owner, DELAY, body.finished, call)]
    number = -1 if action.check_first and not body.checked_first else body.started
    path = iteration_path(owner.inside, number)
    resumed = number in body.unfinished
    facts.append(
        IterationStarted(at=state.now, path=path, iteration=number + 1, of=most, resumed=resumed)
    )
    return facts


def _ask_at_cap(state: State, body: RepeatBody, senses: KernelServices) -> list[AnyEvent]:
    if body.action.at_cap != "ask" or body.cap_gate is not None:
        return []
    output = body.last.output if body.last else None
    gate = LoopGate(answers=("approve", "reject", "continue"))
    return [open_gate(state, body.owner, "cap", gate, senses, output=output)]


def _loop_deadline(state: State, body: RepeatBody) -> list[AnyEvent]:
    limits = body.action.limits
    if body.deadline is not None or (limits.wall_ms is None and limits.ends_at is None):
        return []
    owner, ends_at = body.owner, limits.ends_at
    openings = 1 if isinstance(owner, RunOwner) else owner.openings
    if ends_at is not None and openings > 1 and ends_at <= state.now:
        ends_at = None  # a run resumed after that time must be able to work
    wall = None if limits.wall_ms is None else state.now + limits.wall_ms
    times = [at for at in (wall, ends_at) if at is not None]
    if not times:
        return []
    return [request_effect(state, owner, LOOP_DEADLINE, openings, SleepCall(until=min(times)))]


# -- one pass for each item ------------------------------------------------------------------------


def proceed_each(state: State, body: RepeatBody, senses: KernelServices) -> list[AnyEvent]:
    each = body.action.each
    assert each is not None
    items = items_of(state, body, each, senses)
    assert isinstance(items, list), "a loop without a list is an outcome"
    facts = _loop_deadline(state, body)
    if state.control.paused or (body.spoiled is not None and each.on_item_error == "stop"):
        return facts
    if body.active and loop_over_budget(state, body) is not None:
        return facts
    room = (each.parallel or MAX_PARALLEL_ITEMS) - len(body.active)
    again = body.again[:room]
    first, last = body.started, min(body.started + room - len(again), len(items))
    crowded = each.parallel is None and len(items) > MAX_PARALLEL_ITEMS
    held = f"{len(items)} items, of which {MAX_PARALLEL_ITEMS} at most are under way at once"
    facts += [
        IterationStarted(
            at=state.now,
            path=item_path(body.owner.inside, number),
            iteration=number + 1,
            note=held if crowded and number == 0 else "",
            resumed=number in body.again,
        )
        for number in (*again, *range(first, last))
    ]
    return facts
