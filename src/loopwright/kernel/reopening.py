"""Reopening: what a run that has ended keeps when it runs again, and what begins anew.

With the mode `continue`, every place that did not complete begins again where it stopped (see
`resumption`). With `restart`, all steps begin anew. What follows is about the empty mode, which
older logs and the stages of a loop have.

Steps of the plan that completed keep their results, and everything that was spent stays spent. All
others begin anew as a whole, a loop with its first pass, and a condition is looked at again. What
begins a second time goes by a name of its own inside (`build~2`), so no effect and no gate has the
name of an earlier one.

A conversation with a chat model is the exception: it goes on with its next turn, and its turns and
what they cost stay counted. Only a turn that was never taken to its end is taken again. The other
one is a loop that ended at its cap: where somebody allows it more passes, it goes on with the next
one, with all that it knows. And a loop that stopped in the middle of a pass of steps goes on there,
if that is wanted: what completed in that pass is kept, and only the step that did not is run again
or left out.
"""

import msgspec

from loopwright.kernel.editing import set_cap
from loopwright.kernel.facts import IterationFinished, Outcome, RunForked, RunReopened, StepFinished
from loopwright.kernel.frames import (
    Carried,
    KeptLoop,
    PassOwner,
    RepeatBody,
    Result,
    Spent,
    Spoilt,
    StepOwner,
    StepsBody,
)
from loopwright.kernel.limits import cap
from loopwright.kernel.messages import REOPENED, mail_reopened
from loopwright.kernel.resumption import (
    copy_value,
    loops_that_failed_at_cap,
    reset_graph,
    resume_graph,
)
from loopwright.kernel.snapshots import begin_again
from loopwright.kernel.state import State
from loopwright.model.actions import Cycle
from loopwright.model.ids import child_path

_REOPENED_AS_A_WHOLE: tuple[Outcome, ...] = ("failed", "exhausted")
"""The same for the empty mode."""


def run_reopened(state: State, fact: RunReopened) -> None:
    """Let a run continue; one that has not ended, or that completed, is left alone."""
    allowed = REOPENED if fact.mode else _REOPENED_AS_A_WHOLE
    if state.finished is None or state.finished.outcome not in allowed:
        state.ignored += 1
        return
    state.finished = state.cancel = None
    state.working_since = fact.at
    state.paused = False
    state.reopened += 1
    state.slots.clear()
    state.raised = fact.passes
    state.opening = fact
    if fact.mode and fact.passes is not None:
        state.passes = fact.passes
    state.kept = {path: kept for path, kept in state.kept.items() if _is_wanted(kept, fact)}
    for kept in state.kept.values() if fact.limits is not None else ():
        kept.spent, kept.spent_by_step = Spent(), Spent()  # the new budget is of the whole run
    if fact.limits is not None:
        state.plan = msgspec.structs.replace(state.plan, limits=fact.limits)
        state.note_limits()
    note_coverage(state, fact)
    if fact.sandbox is not None:
        state.plan = msgspec.structs.replace(state.plan, sandbox=fact.sandbox)
    _reset(state, fact)
    begin_again(state, accept_changes=fact.accept_changes)
    mail_reopened(state)


def note_coverage(state: State, fact: RunReopened | RunForked) -> None:
    """Which agents limits in USD do not cover from now on, and whether a person allowed that."""
    plan = state.plan
    if fact.uncovered is not None:
        plan = msgspec.structs.replace(plan, uncovered=fact.uncovered)
    if fact.allow_unknown_cost:
        plan = msgspec.structs.replace(plan, allow_unknown_cost=True)
    state.plan = plan


def _is_wanted(kept: KeptLoop, fact: RunReopened) -> bool:
    """Whether a loop goes on in the empty mode; all others begin anew."""
    if fact.mode:
        return False
    if kept.spoilt is not None:
        return fact.stage is not None
    return kept.talk or fact.passes is not None


def _reset(state: State, fact: RunReopened) -> None:
    """Time limits begin anew too: they are about how long something takes, not about when."""
    root, body = state.root, state.root.body
    root.closed = root.queued = root.deadline_hit = False
    root.deadline = None
    match fact.mode:
        case "continue":
            failed = [] if fact.passes is not None else loops_that_failed_at_cap(body)
            for name in failed:
                del body.unfinished[name]
            resume_graph(body)
        case "restart":
            body.results, body.unfinished = {}, {}
            reset_graph(body)
        case _:
            done = {k: kept for k, kept in body.results.items() if kept.status == "completed"}
            body.results, body.unfinished = done, {}
            reset_graph(body)
    state.touch(root)


def at_cap(state: State) -> dict[str, KeptLoop]:
    """The loops of a run that has ended which stopped at their cap, by step."""
    return {path: kept for path, kept in state.kept.items() if kept.capped}


def name_at_the_top(state: State, owner: StepOwner) -> None:
    """Count a step of the plan that begins; the second time it gets a new name for its inside."""
    count = state.begun.get(owner.path, 0) + 1
    state.begun[owner.path] = count
    set_cap(state, owner)
    if count > 1:
        owner.tries = owner.first_try = count
        owner.inside = f"{owner.path}~{count}"
        state.owners[owner.inside] = owner
        _go_on(state, owner, state.kept.pop(owner.path, None))


_OF_TALKS = ("last", "history", "summaries", "extra", "turns")
_OF_LOOPS = (
    *_OF_TALKS,
    "last_checks",
    "last_steps",
    "learnings",
    "forgotten",
    "outputs",
    "feedback",
    "sessions",
    "talks",
    "identical",
    "unmet",
    "broken",
    "checked_first",
)


def keep_loop(state: State, owner: StepOwner, fact: StepFinished) -> None:
    """Keep a loop at the top of the plan that ended without completing, if it can go on."""
    body = owner.body
    if owner.parent.owner is not state.root or not isinstance(body, RepeatBody):
        return
    talk, capped = isinstance(body.action.body, Cycle), _is_capped(body, fact)
    if fact.status == "completed" or not (talk or capped or body.spoilt):
        state.kept.pop(owner.path, None)
        return
    values = {name: getattr(body, name) for name in (_OF_TALKS if talk else _OF_LOOPS)}
    last = body.last if body.turns or not talk else None
    values["last"] = Result("completed", output=last.output, result=last.result) if last else None
    kept = KeptLoop(
        passes=body.turns if talk else body.finished,
        most=cap(body),
        talk=talk,
        capped=capped,
        values=values,
        spent=msgspec.structs.replace(body.spent),
        spent_by_step=msgspec.structs.replace(owner.spent),
        spoilt=body.spoilt,
    )
    if body.spoilt is not None and body.spoilt.stuck is not None:  # that pass is made once more
        kept.passes, kept.values = body.spoilt.number, body.spoilt.values
    state.kept[owner.path] = kept


def note_spoilt(repeat: RepeatBody, owner: PassOwner, fact: IterationFinished) -> None:
    """Remember how a pass of steps stopped that did not come to its end, and how its loop stood
    before it.
    """
    body = owner.body
    repeat.spoilt, repeat.keeps, repeat.note = None, {}, ""
    if fact.status == "completed" or not isinstance(body, StepsBody) or repeat.action.each:
        return
    steps = [step.id for step in body.index.action.steps]
    done = {
        name: Carried(of=child_path(owner.inside, name), ended=body.results[name])
        for name in steps
        if name in body.results and body.results[name].status == "completed"
    }
    repeat.spoilt = Spoilt(
        number=owner.number,
        values={name: copy_value(getattr(repeat, name)) for name in _OF_LOOPS},
        done=done,
        stuck=next((name for name in steps if name not in done), None),
    )


def stopped_half_way(state: State) -> dict[str, Spoilt]:
    """The loops of a run that has ended which stopped in the middle of a pass, by step."""
    return {path: kept.spoilt for path, kept in state.kept.items() if kept.spoilt is not None}


def _is_capped(body: RepeatBody, fact: StepFinished) -> bool:
    """Whether a loop ended at its own cap, and not at that of a loop in its last pass."""
    most = cap(body)
    made = body.action.each is None and most is not None and body.finished >= most
    last_one = body.last is not None and body.last.status == "completed"
    ended = fact.status in _REOPENED_AS_A_WHOLE and fact.reason == "max_iterations"
    return made and last_one and ended


def _go_on(state: State, owner: StepOwner, kept: KeptLoop | None) -> None:
    body = owner.body
    if kept is None or not isinstance(body, RepeatBody):
        return
    body.started = body.finished = kept.passes
    for name, value in kept.values.items():
        setattr(body, name, value)
    body.spent, owner.spent = kept.spent, kept.spent_by_step
    if kept.capped and state.raised is not None and body.action.max is not None:
        body.extra = max(body.extra, state.raised - body.action.max)
    if kept.spoilt is not None and state.opening is not None:
        _take_up(body, kept.spoilt, state.opening)


def _take_up(body: RepeatBody, spoilt: Spoilt, opening: RunReopened) -> None:
    """Let the next pass keep what completed in the one that stopped half-way. One in which every
    step completed, and which a person rejected, is followed by another.
    """
    most = cap(body)
    if spoilt.stuck is None:
        body.extra += most is not None and body.finished >= most
        body.unmet = 0
    else:
        body.keeps = dict(spoilt.done)
    if opening.stage == "skip" and spoilt.stuck is not None:
        body.keeps[spoilt.stuck] = Carried(note=opening.note)
    else:
        body.note = opening.note
