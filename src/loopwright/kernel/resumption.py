"""Resumption: steps and iterations that continue where they stopped, and edits of a run.

The frame of a step or iteration that ended without completing is kept by the frame around it.
When the run is reopened with the mode `continue`, each of them is due again: the usual events
(`step.started`, `iteration.started`) start it under its old name, and folding one of them
restores the kept frame instead of making a new one. So completed steps, items and iterations
stay, recorded answers are kept, and only what failed, was withdrawn or was never requested is
requested, with the next number of its effect.

An edit of a run applies to everything that starts after it.
"""

from collections import deque
from collections.abc import Iterator, Mapping

import msgspec

from loopwright.kernel.bodies.history import keep_talk
from loopwright.kernel.bodies.outcome import says_nothing
from loopwright.kernel.events import (
    EffectDone,
    EffectFailed,
    IterationFinished,
    RunEdited,
    RunReopened,
    StepStatus,
)
from loopwright.kernel.frames import (
    Body,
    CycleBody,
    GateState,
    IterationOwner,
    LeafBody,
    Owner,
    RepeatBody,
    Result,
    Spent,
    StepOwner,
    StepsBody,
    UnfinishedIteration,
)
from loopwright.kernel.limits import cap, used_up
from loopwright.kernel.state import State
from loopwright.model.actions import Action, ModelCycle, RunScript, Step
from loopwright.model.policy import Limits
from loopwright.model.record import JsonValue


def run_edited(state: State, fact: RunEdited) -> None:
    """Let an edit count from now on."""
    if fact.message is not None and state.started is not None:
        state.started = msgspec.structs.replace(state.started, message=fact.message)
    if fact.metadata is not None:
        state.control.metadata = merge_objects(state.control.metadata, fact.metadata)
    if fact.labels is not None:
        state.control.labels = fact.labels
    if fact.passes is not None:
        state.control.passes = fact.passes
        for owner in state.root.body.active.values():
            set_cap(state, owner)
            state.touch(owner)


def set_cap(state: State, owner: StepOwner) -> None:
    """Let a loop of the plan make as many passes as somebody has said since the run started."""
    body = owner.body
    if state.control.passes is None or not isinstance(body, RepeatBody):
        return
    if body.action.each is None and not isinstance(body.action.body, ModelCycle):
        body.action = msgspec.structs.replace(body.action, max=state.control.passes or None)
        body.extra = 0


def merge_objects(
    before: dict[str, JsonValue], patch: dict[str, JsonValue]
) -> dict[str, JsonValue]:
    """An object with another laid over it: objects key by key, null takes a key away, and anything
    else, a list too, stands in place of what was there.
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
    "last",
    "last_done",
    "last_checks",
    "last_steps",
    "learnings",
    "outputs",
    "feedback",
    "identical",
    "unmet",
    "broken",
    "extra",
    "history",
    "turns",
)
"""What the end of an iteration changes in its loop."""


# -- keeping frames --------------------------------------------------------------------------------


def keep_step(owner: StepOwner, status: StepStatus) -> None:
    """Keep the frame of a step that ended without completing."""
    if status != "completed":
        owner.parent.unfinished[owner.step.id] = owner


def keep_iteration(repeat: RepeatBody, owner: IterationOwner, fact: IterationFinished) -> None:
    """Keep the frame of an iteration that ended without completing, and the values that its loop
    has before that end is folded.
    """
    owner.ended_at = fact.at
    names = () if repeat.action.each is not None else _SETTLED
    values = {name: copy_value(getattr(repeat, name)) for name in names}
    repeat.unfinished[owner.number] = UnfinishedIteration(owner=owner, values=values)


def copy_value(value: object) -> object:
    """A value that does not change when that of the loop does."""
    return value.copy() if isinstance(value, list | dict) else value


# -- taking frames up again ------------------------------------------------------------------------


def resume_graph(body: StepsBody) -> None:
    """Let the steps of a graph that did not complete be ready again. A step that was skipped stays
    so when everything that it needs stays as it is.
    """
    steps = body.index.action.steps
    kept = {name for name, ended in body.results.items() if ended.status == "completed"}
    while more := {one.id for one in steps if _stays_skipped(one, body.results, kept)}:
        kept |= more
    body.results = {name: ended for name, ended in body.results.items() if name in kept}
    reset_graph(body)


def _stays_skipped(step: Step, results: Mapping[str, Result], kept: set[str]) -> bool:
    if step.id in kept or step.id not in results or results[step.id].status != "skipped":
        return False
    return bool(step.needs) and kept.issuperset(step.needs)


def reset_graph(body: StepsBody) -> None:
    """Find out which steps are ready, from those that have a result."""
    body.failed = None
    body.missing = [_missing(step, body.results) for step in body.index.action.steps]
    body.ready = deque(number for number, missing in enumerate(body.missing) if missing == 0)


def _missing(step: Step, results: Mapping[str, Result]) -> int:
    """How many ends a step waits for; what has completed waits for none, however many come."""
    return -1 if step.id in results else sum(need not in results for need in step.needs)


def resume_step(state: State, owner: StepOwner) -> None:
    """Open the frame of a step again."""
    _open(state, owner)
    hit, owner.deadline, owner.deadline_hit = owner.deadline_hit, None, False
    opening = _opening(state)
    if hit and opening.time_ms is not None:
        owner.step = msgspec.structs.replace(
            owner.step, limits=_with_time(owner.step.limits, opening.time_ms)
        )
    _renew_spent(opening, owner, owner.step.limits)
    owner.first_try = owner.tries
    owner.gate = _asked(owner.gate)
    owner.look = None
    owner.found = owner.found or None
    _resume_body(state, owner.body)
    if owner.parent.owner is state.root and opening.passes is not None:
        _raise_cap(state, owner, opening.passes)


def resume_iteration(state: State, owner: IterationOwner, at: int) -> None:
    """Open the frame of an iteration again."""
    _open(state, owner)
    owner.deadline, owner.deadline_hit = None, False
    owner.idle_ms += max(0, at - owner.ended_at)
    owner.check_pending = None
    if isinstance(owner.check_answer, EffectFailed):
        owner.check_answer = None
    owner.check_earlier = owner.check_tries
    asked_again = {
        index for index, verdict in owner.verdicts.items() if verdict in ("error", "rejected")
    }
    owner.verdicts = {k: said for k, said in owner.verdicts.items() if k not in asked_again}
    owner.notes = [note for note in owner.notes if note.index not in asked_again]
    owner.gate = _asked(owner.gate)
    owner.heard = _asked(owner.heard)
    if owner.number >= 0:
        _resume_body(state, owner.body)


def _open(state: State, owner: StepOwner | IterationOwner) -> None:
    owner.closed = owner.queued = False
    owner.openings += 1
    state.owners[owner.path] = state.owners[owner.inside] = owner
    state.touch(owner)


def _opening(state: State) -> RunReopened:
    assert state.reopenings.last is not None, "only a reopened run has frames that were kept"
    return state.reopenings.last


def _asked(gate: GateState | None) -> GateState | None:
    """A gate with a decision that stays; one that was closed or rejected is asked again."""
    return gate if gate is not None and gate.decision in ("approve", "continue") else None


def _resume_body(state: State, body: Body) -> None:
    match body:
        case LeafBody():
            _resume_leaf(body)
        case CycleBody():
            _resume_cycle(body)
        case StepsBody():
            resume_graph(body)
        case RepeatBody():
            _resume_repeat(state, body)


def _resume_leaf(body: LeafBody) -> None:
    body.pending = body.failure = None
    body.earlier = body.attempt - body.parks
    if body.answer is not None and _failed_with(body.action, body.answer):
        body.answer = None
    body.gate = _asked(body.gate)


def _failed_with(action: Action, answer: EffectDone) -> bool:
    """Whether an answer is why a step has failed: nothing, or what does not fit a schema."""
    if isinstance(action, RunScript):
        return action.schema is not None
    return says_nothing(action, answer)


def _resume_cycle(body: CycleBody) -> None:
    """The turn that has an answer is kept, with the tool calls that have one."""
    body.pending = body.failure = None
    body.earlier = body.attempt - body.parks
    body.overflowed = False
    if isinstance(body.summary, EffectFailed):
        body.summary = None
    for number in body.withdrawn:
        body.said.pop(number, None)
        body.asked.pop(number, None)
    body.withdrawn.clear()
    body.gates = {number: gate for number, gate in body.gates.items() if gate.decision is not None}


def _resume_repeat(state: State, body: RepeatBody) -> None:
    opening = _opening(state)
    if body.deadline_hit and opening.time_ms is not None:
        limits = _with_time(body.action.limits, opening.time_ms)
        body.action = msgspec.structs.replace(body.action, limits=limits)
    body.deadline = body.delay = body.no_items = None
    body.deadline_hit = False
    body.cap_gate = _asked(body.cap_gate)
    _renew_spent(opening, body, body.action.limits)
    if body.action.each is not None:
        _resume_items(body)
        return
    for number, kept in body.unfinished.items():
        for name, value in kept.values.items():
            setattr(body, name, value)
        if body.thread is not None:
            keep_talk(body)
        if number < 0:
            body.checked_first = False
        else:
            body.started = body.finished = number
    _renew_patience(body)
    if opening.passes is not None and is_at_cap(body):
        body.extra += max(0, opening.passes - (cap(body) or 0))


def _renew_patience(body: RepeatBody) -> None:
    """A loop that ended because it was stalled, or because its check was broken, is given as many
    iterations as it had at first. One that ended with an empty answer takes another turn.
    """
    identical, broken = body.action.limits.identical, body.action.broken_after
    if identical is not None and body.identical >= identical:
        body.identical = 0
    if broken and body.broken >= broken:
        body.broken = 0
    body.last_done = False


def _resume_items(body: RepeatBody) -> None:
    """Items that completed stay; all others that had begun begin again, in their order."""
    body.again = sorted(body.unfinished)
    body.finished -= len(body.again)
    for number in body.again:
        body.item_results[number] = None
    body.spoiled = None


def _renew_spent(opening: RunReopened, place: StepOwner | RepeatBody, limits: Limits) -> None:
    """A new budget is one of the whole run: what a place inside has used up begins anew."""
    if opening.limits is not None and used_up(limits, place.spent) is not None:
        place.spent = Spent()


def _with_time(limits: Limits, wall_ms: int) -> Limits:
    return msgspec.structs.replace(limits, wall_ms=wall_ms, ends_at=None)


def _raise_cap(state: State, owner: StepOwner, most: int) -> None:
    """Let a loop of the plan make as many iterations as a person has said."""
    body = owner.body
    if isinstance(body, RepeatBody) and isinstance(body.action.body, ModelCycle):
        body.extra = most - (body.action.max or most)
    else:
        set_cap(state, owner)


# -- what is left to do ----------------------------------------------------------------------------


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
        case _:
            return


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


def is_at_cap(body: RepeatBody) -> bool:
    """Whether a loop that ended has made all its iterations, without a person who could be asked
    for more.
    """
    most = cap(body)
    if most is None or body.action.each is not None or body.action.at_cap == "ask":
        return False
    return not body.unfinished and body.finished >= most and not body.last_done
