"""Reopening: what a run that has ended keeps when it goes on, and what begins anew.

Steps of the plan that completed keep their results, and everything that was spent stays spent. All
others begin anew as a whole, a loop with its first pass, and a condition is looked at again. What
begins a second time goes by a name of its own inside (`build~2`), so no effect and no gate has the
name of an earlier one.
"""

from collections import deque
from collections.abc import Mapping

import msgspec

from loopwright.kernel.facts import Outcome, RunReopened
from loopwright.kernel.frames import Result, StepOwner
from loopwright.kernel.messages import mail_reopened
from loopwright.kernel.state import State
from loopwright.model.actions import Step

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
