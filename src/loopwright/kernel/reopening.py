"""Reopening: what a run that has ended keeps when it goes on, and what begins anew.

Steps of the plan that completed keep their results, and everything that was spent stays spent. All
others begin anew as a whole, a loop with its first pass, and a condition is looked at again. What
begins a second time goes by a name of its own inside (`build~2`), so no effect and no gate has the
name of an earlier one.

A conversation with a chat model is the exception: it goes on with its next turn, and its turns and
what they cost stay counted. Only a turn that was never taken to its end is taken again.
"""

from collections import deque
from collections.abc import Mapping

import msgspec

from loopwright.kernel.facts import Outcome, RunReopened, StepStatus
from loopwright.kernel.frames import (
    Body,
    Conversation,
    RepeatBody,
    Result,
    Spent,
    StepOwner,
)
from loopwright.kernel.messages import mail_reopened
from loopwright.kernel.state import State
from loopwright.model.actions import Cycle, Step

REOPENED: tuple[Outcome, ...] = ("failed", "exhausted")
"""How a run must have ended to go on; one that somebody stopped has ended for good."""


def run_reopened(state: State, fact: RunReopened) -> None:
    """Let a run go on; one that has not ended so is left alone."""
    if state.finished is None or state.finished.outcome not in REOPENED:
        state.ignored += 1
        return
    state.finished = None
    state.paused = False
    state.reopened += 1
    state.slots.clear()
    for talk in state.talks.values() if fact.limits is not None else ():
        talk.spent, talk.spent_by_step = Spent(), Spent()  # the new budget is of the whole run
    if fact.limits is not None:
        state.plan = msgspec.structs.replace(state.plan, limits=fact.limits)
        state.note_limits()
    _reset(state)
    mail_reopened(state)


def _reset(state: State) -> None:
    """Time limits begin anew too: they are about how long something takes, not about when."""
    root = state.root
    root.closed = root.queued = root.deadline_hit = False
    root.deadline = None
    body, index = root.body, root.body.index
    body.results = {k: kept for k, kept in body.results.items() if kept.status == "completed"}
    body.failed = None
    body.missing = [_missing(step, body.results) for step in index.action.steps]
    body.ready = deque(number for number, missing in enumerate(body.missing) if missing == 0)
    state.touch(root)


def _missing(step: Step, results: Mapping[str, Result]) -> int:
    """How many ends a step waits for; what has completed waits for none, however many come."""
    return -1 if step.id in results else sum(need not in results for need in step.needs)


def name_at_the_top(state: State, owner: StepOwner) -> None:
    """Count a step of the plan that begins; the second time it gets a new name for its inside."""
    count = state.begun.get(owner.path, 0) + 1
    state.begun[owner.path] = count
    if count > 1:
        owner.tries = owner.first_try = count
        owner.inside = f"{owner.path}~{count}"
        state.owners[owner.inside] = owner
        _go_on(owner, state.talks.pop(owner.path, None))


def keep_conversation(state: State, owner: StepOwner, status: StepStatus) -> None:
    """Keep a conversation at the top of the plan that ended without completing."""
    body = owner.body
    if owner.parent.owner is not state.root or not _is_conversation(body):
        return
    if status == "completed":
        state.talks.pop(owner.path, None)
        return
    assert isinstance(body, RepeatBody)
    last = body.last if body.turns else None
    state.talks[owner.path] = Conversation(
        turns=body.turns,
        last=Result("completed", output=last.output, result=last.result) if last else None,
        history=list(body.history),
        summaries=body.summaries,
        extra=body.extra,
        spent=msgspec.structs.replace(body.spent),
        spent_by_step=msgspec.structs.replace(owner.spent),
    )


def _is_conversation(body: Body) -> bool:
    return isinstance(body, RepeatBody) and isinstance(body.action.body, Cycle)


def _go_on(owner: StepOwner, talk: Conversation | None) -> None:
    body = owner.body
    if talk is None or not isinstance(body, RepeatBody) or not _is_conversation(body):
        return
    body.started = body.finished = body.turns = talk.turns
    body.last, body.history = talk.last, list(talk.history)
    body.summaries, body.extra = talk.summaries, talk.extra
    body.spent, owner.spent = talk.spent, talk.spent_by_step
