"""Proceed: what a body that has not ended asks for next. One function for each kind of body."""

from typing import assert_never

from loopwright.kernel.calls import AgentCall, CommandCall, SleepCall
from loopwright.kernel.conditions import Holds, evaluate
from loopwright.kernel.cycles import proceed_cycle
from loopwright.kernel.facts import (
    AnyFact,
    CancelRequested,
    Failure,
    IterationStarted,
    StepKept,
    StepSkipped,
    StepStarted,
)
from loopwright.kernel.frames import (
    Body,
    Carried,
    CycleBody,
    LeafBody,
    PassOwner,
    RepeatBody,
    Result,
    RunOwner,
    StepsBody,
)
from loopwright.kernel.gates import open_gate
from loopwright.kernel.limits import cap, is_out_of_time, loop_over_budget
from loopwright.kernel.messages import deliver
from loopwright.kernel.outcome import MAX_PARALLEL_ITEMS, is_worked_on
from loopwright.kernel.state import Senses, State, has_to_wait
from loopwright.kernel.texts import fill, items_of
from loopwright.kernel.trying import back_off, request
from loopwright.model.actions import (
    AskPerson,
    CallAgent,
    Gate,
    RunCommand,
    RunScript,
    Step,
    Stop,
    Wait,
)
from loopwright.model.ids import child_path, effect_id, item_path, pass_path


def proceed(state: State, body: Body, senses: Senses) -> list[AnyFact]:
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


def proceed_leaf(state: State, body: LeafBody, senses: Senses) -> list[AnyFact]:
    if body.pending is not None:
        return []
    if type(body.action) is AskPerson:
        return _proceed_gate(state, body, body.action, senses)
    if type(body.action) is Stop:
        reason = fill(state, body.owner, body.action.reason, senses) or "stopped"
        return [] if state.cancel else [CancelRequested(at=state.now, reason=reason)]
    if body.failure is not None and body.backoff < body.attempt:
        return [back_off(state, body)]
    return _next_try(state, body)


def _proceed_gate(state: State, body: LeafBody, action: AskPerson, senses: Senses) -> list[AnyFact]:
    """Ask; after a rejection that is to be worked on, let the agent work and ask again."""
    if body.gate is None:
        gate = Gate(message=action.message, answers=action.answers)
        return [open_gate(state, body.owner, "step", gate, senses)]
    if body.gate.decision != "reject" or "reject" in action.choices:
        return []
    if action.on_reject is not None and is_worked_on(body, action):
        if has_to_wait(state, body.owner):
            return []
        call = AgentCall(agent=action.on_reject.agent)
        return [request(state, body.owner, "rework", body.rejections, call)]
    assert action.reject == "cancel", "any other rejection has ended the step"
    return [CancelRequested(at=state.now, reason="rejected")]


def _next_try(state: State, body: LeafBody) -> list[AnyFact]:
    owner, number, action = body.owner, body.attempt + 1, body.action
    if type(action) is CallAgent:
        if has_to_wait(state, owner):
            return []
        asked = request(state, owner, "agent", number, AgentCall(agent=action.agent))
        if state.mail.inboxes:
            effect = effect_id(owner.inside, "agent", number)
            return [*deliver(state, owner, effect), asked]
        return [asked]
    match action:
        case RunCommand(argv=argv, timeout_ms=timeout_ms, env=env):
            call = CommandCall(argv=argv, timeout_ms=timeout_ms, env=env)
            return [request(state, owner, "command", number, call)]
        case RunScript() as script:
            return [request(state, owner, "script", number, _script_call(script))]
        case wait:
            assert isinstance(wait, Wait), f"no decider for {type(wait).__name__}"
            return [request(state, owner, "wait", number, SleepCall(until=state.now + wait.ms))]


def _script_call(script: RunScript) -> CommandCall:
    argv = (script.interpreter, *script.flags)
    if script.by_stdin:
        return CommandCall(argv=argv, timeout_ms=script.timeout_ms, stdin=script.text)
    return CommandCall(argv=(*argv, script.text), timeout_ms=script.timeout_ms)


# -- a graph of steps ------------------------------------------------------------------------------


def proceed_steps(state: State, body: StepsBody, senses: Senses) -> list[AnyFact]:
    if state.paused or not body.ready or is_out_of_time(body):
        return []
    facts: list[AnyFact] = []
    keeps = body.owner.parent.keeps if isinstance(body.owner, PassOwner) else {}
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


def _kept(state: State, body: StepsBody, path: str, carried: Carried, senses: Senses) -> StepKept:
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
    state: State, body: StepsBody, step: Step, path: str, senses: Senses
) -> AnyFact:
    """A condition is looked at once, when everything before the step has ended."""
    assert step.when is not None
    at, iteration = state.now, body.owner.iteration
    said = evaluate(state, body.owner, step.when, senses)
    if isinstance(said, Holds):
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


def proceed_repeat(state: State, body: RepeatBody, senses: Senses) -> list[AnyFact]:
    if body.active:
        return []
    facts = _loop_deadline(state, body)
    owner, action = body.owner, body.action
    most = cap(body)
    if body.finished and most is not None and body.finished >= most:
        return [*facts, *_ask_at_cap(state, body, senses)]
    if state.paused or body.delay is not None:
        return facts
    if action.delay_ms and body.finished and body.delayed < body.finished:
        call = SleepCall(until=state.now + action.delay_ms)
        return [*facts, request(state, owner, "delay", body.finished, call)]
    number = -1 if action.check_first and not body.checked_first else body.started
    path = pass_path(owner.inside, number)
    resumed = number in body.unfinished
    facts.append(
        IterationStarted(at=state.now, path=path, iteration=number + 1, of=most, resumed=resumed)
    )
    return facts


def _ask_at_cap(state: State, body: RepeatBody, senses: Senses) -> list[AnyFact]:
    if body.action.at_cap != "ask" or body.cap_gate is not None:
        return []
    output = body.last.output if body.last else None
    gate = Gate(answers=("approve", "reject", "continue"))
    return [open_gate(state, body.owner, "cap", gate, senses, output=output)]


def _loop_deadline(state: State, body: RepeatBody) -> list[AnyFact]:
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
    return [request(state, owner, "loop-deadline", openings, SleepCall(until=min(times)))]


# -- one pass for each item ------------------------------------------------------------------------


def proceed_each(state: State, body: RepeatBody, senses: Senses) -> list[AnyFact]:
    each = body.action.each
    assert each is not None
    items = items_of(state, body, each, senses)
    assert isinstance(items, list), "a loop without a list is an outcome"
    facts = _loop_deadline(state, body)
    if state.paused or (body.spoiled is not None and each.on_item_error == "stop"):
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
