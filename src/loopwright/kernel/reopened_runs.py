"""Reopened runs and forks: what a new opening or a new run keeps of the events before it.

With the mode `continue`, everything that did not complete continues where it stopped. The frame of
a step or iteration that ended without completing is kept by the frame around it. When the run is
reopened, each of them is due again: the usual events (`step.started`, `iteration.started`) start it
under its old name, and folding one of them restores the kept frame instead of making a new one. So
completed steps, items and iterations stay, recorded answers are kept, and only what failed, was
withdrawn or was never requested is requested, with the next number of its effect.

An edit of a run applies to everything that starts after it.

With `restart`, all steps start again. The rest is about the empty mode, which older logs and the
stages of a loop use.

Completed steps of the plan keep their results, and usage stays counted. All other steps start
again as a whole, a loop with its first iteration, and conditions are evaluated again. A step
that starts a second time has a name of its own inside (`build~2`), so no effect or gate reuses
an earlier name.

Exceptions: a conversation with a chat model continues with its next turn, and its turns and
their cost stay counted; only a turn that did not finish is repeated. A loop that ended at its
limit continues with the next iteration when a person allows more. A loop that stopped in the
middle of an iteration of steps continues there if requested: completed steps are kept, and only
the step that did not complete is run again or skipped.

A fork copies a prefix of the log, which is what a crash at that point would have left. So
recorded answers are not requested again, and effects that were open are requested again. Three
things differ from a crash, because it is another run at another time: running timers keep the
time that was left, gates get ids of the new run, and permissions and sessions of one run
(remembered tools, sessions of agents) are not passed on.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias, assert_never

import msgspec

from loopwright.kernel.bodies import dispatch, steps
from loopwright.kernel.bodies.repeat import is_at_cap
from loopwright.kernel.event_parts import SleepCall
from loopwright.kernel.events import (
    AgentChanged,
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateClosed,
    GateOpened,
    IterationFinished,
    IterationStarted,
    Outcome,
    RunEdited,
    RunForked,
    RunReopened,
    RunStarted,
    StepFinished,
    StepSkipped,
    StepStarted,
    StepStatus,
)
from loopwright.kernel.frames import (
    Body,
    CarriedResult,
    CycleBody,
    HistoryEntry,
    InterruptedIteration,
    IterationOwner,
    KeptLoop,
    LeafBody,
    Owner,
    RepeatBody,
    Result,
    Spent,
    StepOwner,
    StepsBody,
    UnfinishedIteration,
    set_value,
    value_of,
)
from loopwright.kernel.gates import call_gate, kept_gate
from loopwright.kernel.limits import renew_spent, with_time
from loopwright.kernel.messages import REOPENED, mail_reopened
from loopwright.kernel.snapshots import begin_again
from loopwright.kernel.state import State, cap, index_plan, opening
from loopwright.model.actions import ModelCycle
from loopwright.model.ids import child_path, logical_path, parent_path
from loopwright.model.plan import chat_agents
from loopwright.model.record import JsonValue

_REOPENED_AS_A_WHOLE: tuple[Outcome, ...] = ("failed", "exhausted")
"""The same for the empty mode."""


def run_reopened(state: State, event: RunReopened) -> None:
    """Let a run continue; one that has not ended, or that completed, is left alone."""
    allowed = REOPENED if event.mode else _REOPENED_AS_A_WHOLE
    if state.finished is None or state.finished.outcome not in allowed:
        state.ignored += 1
        return
    state.finished = state.control.cancel = None
    state.times.working_since = event.at
    state.control.paused = False
    state.reopenings.count += 1
    state.queues.slots.clear()
    state.reopenings.raised = event.passes
    state.reopenings.last = event
    if event.mode and event.passes is not None:
        state.control.passes = event.passes
    state.reopenings.kept = {
        path: kept for path, kept in state.reopenings.kept.items() if _is_wanted(kept, event)
    }
    for kept in state.reopenings.kept.values() if event.limits is not None else ():
        kept.spent, kept.spent_by_step = Spent(), Spent()  # the new budget is of the whole run
    if event.limits is not None:
        state.plan = msgspec.structs.replace(state.plan, limits=event.limits)
        state.plan_index = index_plan(state.plan)
    note_coverage(state, event)
    if event.sandbox is not None:
        state.plan = msgspec.structs.replace(state.plan, sandbox=event.sandbox)
    _reset(state, event)
    begin_again(state, accept_changes=event.accept_changes)
    mail_reopened(state)


def note_coverage(state: State, event: RunReopened | RunForked) -> None:
    """Which agents limits in USD do not cover from now on, and whether a person allowed that."""
    plan = state.plan
    if event.uncovered is not None:
        plan = msgspec.structs.replace(plan, uncovered=event.uncovered)
    if event.allow_unknown_cost:
        plan = msgspec.structs.replace(plan, allow_unknown_cost=True)
    state.plan = plan


def _is_wanted(kept: KeptLoop, event: RunReopened) -> bool:
    """Whether a loop continues in the empty mode; all others restart."""
    if event.mode:
        return False
    if kept.spoilt is not None:
        return event.stage is not None
    return kept.talk or event.passes is not None


def _reset(state: State, event: RunReopened) -> None:
    """Time limits start again too: they limit a duration, not a point in time."""
    root, body = state.root, state.root.body
    root.closed = root.queued = root.deadline_hit = False
    root.deadline = None
    match event.mode:
        case "continue":
            failed = [] if event.passes is not None else loops_that_failed_at_cap(body)
            for name in failed:
                del body.unfinished[name]
            steps.resume(body)
        case "restart":
            body.results, body.unfinished = {}, {}
            steps.reset_graph(body)
        case _:
            done = {k: kept for k, kept in body.results.items() if kept.status == "completed"}
            body.results, body.unfinished = done, {}
            steps.reset_graph(body)
    state.touch(root)


def at_cap(state: State) -> dict[str, KeptLoop]:
    """The loops of a run that has ended which stopped at their cap, by step."""
    return {path: kept for path, kept in state.reopenings.kept.items() if kept.capped}


def name_at_the_top(state: State, owner: StepOwner) -> None:
    """Count a step of the plan that begins; the second time it gets a new name for its inside."""
    count = state.reopenings.begun.get(owner.path, 0) + 1
    state.reopenings.begun[owner.path] = count
    set_cap(state, owner)
    if count > 1:
        owner.tries = owner.first_try = count
        owner.inside = f"{owner.path}~{count}"
        state.owners[owner.inside] = owner
        _go_on(state, owner, state.reopenings.kept.pop(owner.path, None))


_OF_TALKS = ("progress.last", "talk.history", "talk.summaries", "progress.extra", "talk.turns")
_OF_LOOPS = (
    *_OF_TALKS,
    *("progress.last_checks", "progress.last_steps"),
    *("memory.learnings", "memory.forgotten", "memory.outputs"),
    *("progress.feedback", "memory.sessions", "memory.talks"),
    *("progress.identical", "progress.unmet", "progress.broken"),
    "checked_first",
)
"""The values that a loop keeps when it continues, by their place in the loop."""


def keep_loop(state: State, owner: StepOwner, event: StepFinished) -> None:
    """Keep a top-level loop that ended without completing, if it can continue."""
    body = owner.body
    if owner.parent.owner is not state.root or not isinstance(body, RepeatBody):
        return
    talk, capped = isinstance(body.action.body, ModelCycle), _is_capped(body, event)
    if event.status == "completed" or not (talk or capped or body.carry.spoilt):
        state.reopenings.kept.pop(owner.path, None)
        return
    values = {name: value_of(body, name) for name in (_OF_TALKS if talk else _OF_LOOPS)}
    last = body.progress.last if body.talk.turns or not talk else None
    values["progress.last"] = (
        Result("completed", output=last.output, result=last.result) if last else None
    )
    kept = KeptLoop(
        passes=body.talk.turns if talk else body.finished,
        most=cap(body),
        talk=talk,
        capped=capped,
        values=values,
        spent=msgspec.structs.replace(body.spent),
        spent_by_step=msgspec.structs.replace(owner.spent),
        spoilt=body.carry.spoilt,
    )
    if (
        body.carry.spoilt is not None and body.carry.spoilt.stuck is not None
    ):  # that iteration is repeated
        kept.passes, kept.values = body.carry.spoilt.number, body.carry.spoilt.values
    state.reopenings.kept[owner.path] = kept


def note_spoilt(repeat: RepeatBody, owner: IterationOwner, event: IterationFinished) -> None:
    """Remember how an iteration of steps stopped before its end, and the state of its loop
    before it.
    """
    body = owner.body
    repeat.carry.spoilt, repeat.carry.keeps, repeat.carry.note = None, {}, ""
    if event.status == "completed" or not isinstance(body, StepsBody) or repeat.action.each:
        return
    names = [step.id for step in body.index.action.steps]
    done = {
        name: CarriedResult(of=child_path(owner.inside, name), ended=body.results[name])
        for name in names
        if name in body.results and body.results[name].status == "completed"
    }
    repeat.carry.spoilt = InterruptedIteration(
        number=owner.number,
        values={name: copy_value(value_of(repeat, name)) for name in _OF_LOOPS},
        done=done,
        stuck=next((name for name in names if name not in done), None),
    )


def stopped_half_way(state: State) -> dict[str, InterruptedIteration]:
    """The loops of a run that has ended which stopped in the middle of an iteration, by step."""
    return {
        path: kept.spoilt for path, kept in state.reopenings.kept.items() if kept.spoilt is not None
    }


def _is_capped(body: RepeatBody, event: StepFinished) -> bool:
    """Whether a loop ended at its own cap, and not at that of a loop in its last iteration."""
    most = cap(body)
    made = body.action.each is None and most is not None and body.finished >= most
    last_one = body.progress.last is not None and body.progress.last.status == "completed"
    ended = event.status in _REOPENED_AS_A_WHOLE and event.reason == "max_iterations"
    return made and last_one and ended


def _go_on(state: State, owner: StepOwner, kept: KeptLoop | None) -> None:
    body = owner.body
    if kept is None or not isinstance(body, RepeatBody):
        return
    body.started = body.finished = kept.passes
    for name, value in kept.values.items():
        set_value(body, name, value)
    body.spent, owner.spent = kept.spent, kept.spent_by_step
    if kept.capped and state.reopenings.raised is not None and body.action.max is not None:
        body.progress.extra = max(body.progress.extra, state.reopenings.raised - body.action.max)
    if kept.spoilt is not None and state.reopenings.last is not None:
        _reopen_place(body, kept.spoilt, state.reopenings.last)


def _reopen_place(body: RepeatBody, spoilt: InterruptedIteration, opening: RunReopened) -> None:
    """Let the next iteration keep what completed in the one that stopped half-way. One in which
    every step completed, and which a person rejected, is followed by another.
    """
    most = cap(body)
    if spoilt.stuck is None:
        body.progress.extra += most is not None and body.finished >= most
        body.progress.unmet = 0
    else:
        body.carry.keeps = dict(spoilt.done)
    if opening.stage == "skip" and spoilt.stuck is not None:
        body.carry.keeps[spoilt.stuck] = CarriedResult(note=opening.note)
    else:
        body.carry.note = opening.note


Standing: TypeAlias = StepStatus | Literal["running"]


def places(events: Sequence[AnyEvent]) -> dict[str, Standing]:
    """Every step and iteration in these events, in the order in which they began, with its
    newest status. A run can be forked where one completed.
    """
    found: dict[str, Standing] = {}
    for event in events:
        if isinstance(event, StepStarted | IterationStarted):
            found[event.path] = "running"
        elif isinstance(event, StepFinished | IterationFinished | StepSkipped):
            found[event.path] = event.status
    return found


def end_of(events: Sequence[AnyEvent], place: str) -> int:
    """How many events there are up to the end of a completed path, including it."""
    ends = [
        number
        for number, event in enumerate(events, start=1)
        if isinstance(event, StepFinished | IterationFinished)
        and event.path == place
        and event.status == "completed"
    ]
    return ends[-1]


def copied(events: Sequence[AnyEvent], first: RunStarted, now: int) -> list[AnyEvent]:
    """These events as the start of another run, whose first event is `first`."""
    over = {event.effect for event in events if isinstance(event, EffectDone | EffectFailed)}
    decided = {event.gate for event in events if isinstance(event, GateAnswered | GateClosed)}
    gap = max(0, now - max(event.at for event in events))
    kept: list[AnyEvent] = [first]
    for event in events[1:]:
        if isinstance(event, EffectRequested) and event.effect not in over:
            kept.append(_under_way(event, gap))
        elif isinstance(event, GateOpened) and event.gate not in decided:
            kept += _open_gates(event, first.run)
        else:
            kept.append(event)
    return kept


def _under_way(event: EffectRequested, gap: int) -> EffectRequested:
    """A request without an answer; a timer among them has as long to go as it had."""
    if not isinstance(event.call, SleepCall):
        return event
    later = SleepCall(until=event.call.until + gap)
    return msgspec.structs.replace(event, call=later)


def _open_gates(event: GateOpened, run: str) -> Iterator[GateOpened]:
    """An unanswered question. One about a tool call belongs to the turn that is kept;
    the others are asked again by the step that asked them.
    """
    if event.call is not None:
        yield msgspec.structs.replace(event, gate=call_gate(run, event.path, event.call))


def run_forked(state: State, event: RunForked) -> None:
    """From here on the run is its own."""
    state.control.paused = False
    state.times.worked_ms, state.times.working_since = 0, event.at
    state.times.forked_at = event.at
    state.agents.remembered.clear()
    state.mail.sessions.clear()
    begin_again(state)
    note_coverage(state, event)
    for owner in list(state.owners.values()):
        if isinstance(owner.body, RepeatBody):
            owner.body.memory.sessions.clear()
        state.touch(owner)
    around = state.owners.get(parent_path(event.place))
    if around is None or not isinstance(around.body, RepeatBody):
        return
    if event.text:
        _add_user_text(around.body, event.text)
    if event.passes is None or around.body.action.max is None:
        return
    steps = [step.id for step in state.plan.steps]
    if state.plan_index.loop is not None and logical_path(around.path) in steps:
        state.control.passes = event.passes  # also when the loop has ended, or begins again
    around.body.progress.extra = event.passes - around.body.action.max


def _add_user_text(repeat: RepeatBody, text: str) -> None:
    """Add a message of a person to a loop, which is therefore not done."""
    repeat.progress.last_done = False
    if isinstance(repeat.action.body, ModelCycle):
        repeat.talk.history.append(HistoryEntry(kind="user", text=text))
    else:
        repeat.progress.feedback = text


def run_edited(state: State, event: RunEdited) -> None:
    """Let an edit count from now on."""
    if event.message is not None and state.started is not None:
        state.started = msgspec.structs.replace(state.started, message=event.message)
    if event.metadata is not None:
        state.control.metadata = merge_objects(state.control.metadata, event.metadata)
    if event.labels is not None:
        state.control.labels = event.labels
    if event.passes is not None:
        state.control.passes = event.passes
        for owner in state.root.body.active.values():
            set_cap(state, owner)
            state.touch(owner)


def set_cap(state: State, owner: StepOwner) -> None:
    """Let a loop of the plan make as many iterations as were set since the run started."""
    body = owner.body
    if state.control.passes is None or not isinstance(body, RepeatBody):
        return
    if body.action.each is None and not isinstance(body.action.body, ModelCycle):
        body.action = msgspec.structs.replace(body.action, max=state.control.passes or None)
        body.progress.extra = 0


def merge_objects(
    before: dict[str, JsonValue], patch: dict[str, JsonValue]
) -> dict[str, JsonValue]:
    """An object with another laid over it: objects key by key, null takes a key away, and anything
    else, lists too, replaces the earlier value.
    """
    made = dict(before)
    for name, value in patch.items():
        old = made.get(name)
        if value is None:
            made.pop(name, None)
        elif isinstance(value, dict):
            made[name] = merge_objects(old if isinstance(old, dict) else {}, value)
        else:
            made[name] = value
    return made


_SETTLED = (
    *("progress.last", "progress.last_done", "progress.last_checks", "progress.last_steps"),
    *("memory.learnings", "memory.outputs", "progress.feedback", "progress.identical"),
    *("progress.unmet", "progress.broken", "progress.extra", "talk.history", "talk.turns"),
)
"""What the end of an iteration changes in its loop."""


def keep_step(owner: StepOwner, status: StepStatus) -> None:
    """Keep the frame of a step that ended without completing."""
    if status != "completed":
        owner.parent.unfinished[owner.step.id] = owner


def keep_iteration(repeat: RepeatBody, owner: IterationOwner, event: IterationFinished) -> None:
    """Keep the frame of an iteration that ended without completing, and the values that its loop
    has before that end is folded.
    """
    owner.ended_at = event.at
    names = () if repeat.action.each is not None else _SETTLED
    values = {name: copy_value(value_of(repeat, name)) for name in names}
    repeat.unfinished[owner.number] = UnfinishedIteration(owner=owner, values=values)


def copy_value(value: object) -> object:
    """A value that does not change when that of the loop does."""
    return value.copy() if isinstance(value, list | dict) else value


def resume_step(state: State, owner: StepOwner) -> None:
    """Open the frame of a step again."""
    _open(state, owner)
    hit, owner.deadline, owner.deadline_hit = owner.deadline_hit, None, False
    last = opening(state)
    if hit and last.time_ms is not None:
        owner.step = msgspec.structs.replace(
            owner.step, limits=with_time(owner.step.limits, last.time_ms)
        )
    renew_spent(last, owner, owner.step.limits)
    owner.first_try = owner.tries
    owner.gate = kept_gate(owner.gate)
    owner.look = None
    owner.found = owner.found or None
    dispatch.resume(state, owner.body)
    if owner.parent.owner is state.root and last.passes is not None:
        _raise_cap(state, owner, last.passes)


def resume_iteration(state: State, owner: IterationOwner, at: int) -> None:
    """Open the frame of an iteration again."""
    _open(state, owner)
    owner.deadline, owner.deadline_hit = None, False
    owner.idle_ms += max(0, at - owner.ended_at)
    owner.checks.pending = None
    if isinstance(owner.checks.answer, EffectFailed):
        owner.checks.answer = None
    if owner.checks.tries:  # a check before this one may have to be asked first
        owner.checks.numbers[owner.checks.index] = owner.checks.tries
        owner.checks.tries = 0
    asked_again = {
        index
        for index, verdict in owner.checks.verdicts.items()
        if verdict in ("error", "rejected")
    }
    owner.checks.verdicts = {
        k: said for k, said in owner.checks.verdicts.items() if k not in asked_again
    }
    owner.checks.notes = [note for note in owner.checks.notes if note.index not in asked_again]
    owner.gate = kept_gate(owner.gate)
    owner.answered_gate = kept_gate(owner.answered_gate)
    if owner.number >= 0:
        dispatch.resume(state, owner.body)


def _open(state: State, owner: StepOwner | IterationOwner) -> None:
    owner.closed = owner.queued = False
    owner.openings += 1
    state.owners[owner.path] = state.owners[owner.inside] = owner
    state.touch(owner)


def _raise_cap(state: State, owner: StepOwner, most: int) -> None:
    """Let a loop of the plan make as many iterations as a person has set."""
    body = owner.body
    if isinstance(body, RepeatBody) and isinstance(body.action.body, ModelCycle):
        body.progress.extra = most - (body.action.max or most)
    else:
        set_cap(state, owner)


def unfinished_places(body: Body) -> Iterator[Owner]:
    """Every place inside a body that ended without completing, a place before those in it."""
    match body:
        case StepsBody():
            for step in body.unfinished.values():
                yield step
                yield from unfinished_places(step.body)
        case RepeatBody():
            for kept in body.unfinished.values():
                yield kept.owner
                yield from unfinished_places(kept.owner.body)
        case LeafBody() | CycleBody():
            return
        case _:
            assert_never(body)


def loops_that_failed_at_cap(body: StepsBody) -> list[str]:
    """The steps of a graph that are loops which failed because they had made all their iterations:
    what counts as a failure is tried again as a whole, unless a person allows more iterations.
    """
    return [
        name
        for name, owner in body.unfinished.items()
        if isinstance(owner.body, RepeatBody)
        and owner.body.action.at_cap == "fail"
        and is_at_cap(owner.body)
    ]


def _agent_changed(state: State, event: AgentChanged) -> None:
    """The plan is shared between runs, so a changed one is a new one; its steps stay the same."""
    before = state.plan.agents.get(event.agent)
    agents = {**state.plan.agents, event.agent: event.becomes}
    if before is not None and before.spec != event.becomes.spec:
        _leave_marks(state, event.agent, before.spec)
    state.plan = msgspec.structs.replace(state.plan, agents=agents)
    chats = chat_agents(state.plan)
    has_budget = state.plan_index.has_budget or (
        event.agent in chats and event.becomes.max_usd is not None
    )
    state.plan_index = msgspec.structs.replace(state.plan_index, chats=chats, has_budget=has_budget)


def _leave_marks(state: State, name: str, spec: str | None) -> None:
    """Usage and limits belong to the backend of an agent, and to other agents with that backend."""
    used = state.agents.marks.pop(name, set())
    for other, agent in state.plan.agents.items():
        if other != name and agent.spec == spec and used:
            state.agents.marks.setdefault(other, set()).update(used)
