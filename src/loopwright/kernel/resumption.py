"""Resumption: steps and iterations that continue where they stopped, and edits of a run.

The frame of a step or iteration that ended without completing is kept by the frame around it.
When the run is reopened with the mode `continue`, each of them is due again: the usual events
(`step.started`, `iteration.started`) start it under its old name, and folding one of them
restores the kept frame instead of making a new one. So completed steps, items and iterations
stay, recorded answers are kept, and only what failed, was withdrawn or was never requested is
requested, with the next number of its effect.

An edit of a run applies to everything that starts after it.
"""

from collections.abc import Iterator
from typing import assert_never

import msgspec

from loopwright.kernel.bodies import dispatch
from loopwright.kernel.bodies.repeat import is_at_cap
from loopwright.kernel.events import (
    AgentChanged,
    EffectFailed,
    IterationFinished,
    RunEdited,
    StepStatus,
)
from loopwright.kernel.frames import (
    Body,
    CycleBody,
    IterationOwner,
    LeafBody,
    Owner,
    RepeatBody,
    StepOwner,
    StepsBody,
    UnfinishedIteration,
    value_of,
)
from loopwright.kernel.gates import kept_gate
from loopwright.kernel.limits import renew_spent, with_time
from loopwright.kernel.state import State, opening
from loopwright.model.actions import ModelCycle
from loopwright.model.plan import chat_agents
from loopwright.model.record import JsonValue


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


# -- keeping frames --------------------------------------------------------------------------------


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


# -- taking frames up again ------------------------------------------------------------------------


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
