"""Forking: a new run that begins with what another one has recorded up to the end of a place.

What is copied is a prefix of the log, which is what a crash at that point would have left. So
nothing that has an answer is asked again, and what was under way elsewhere is asked anew. Three
things are different from a crash, since it is another run and another time: timers that still run
keep the time that was left, questions to people are asked under names of the new run, and what one
run was allowed or knew for itself (tools let through, sessions of agents) is not handed on.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from loopwright.kernel.calls import SleepCall
from loopwright.kernel.facts import (
    AnyFact,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateClosed,
    GateOpened,
    IterationFinished,
    IterationStarted,
    RunForked,
    RunStarted,
    StepFinished,
    StepSkipped,
    StepStarted,
    StepStatus,
)
from loopwright.kernel.frames import Entry, RepeatBody
from loopwright.kernel.gates import call_gate
from loopwright.kernel.reopening import note_coverage
from loopwright.kernel.snapshots import begin_again
from loopwright.kernel.state import State
from loopwright.model.actions import Cycle
from loopwright.model.ids import logical_path, parent_path
from loopwright.model.plan import only_repeat

Standing: TypeAlias = StepStatus | Literal["running"]


def places(facts: Sequence[AnyFact]) -> dict[str, Standing]:
    """Every step and pass that these facts speak of, in the order in which they began, with how it
    stands or has ended last. A run can be forked where one completed.
    """
    found: dict[str, Standing] = {}
    for fact in facts:
        if isinstance(fact, StepStarted | IterationStarted):
            found[fact.path] = "running"
        elif isinstance(fact, StepFinished | IterationFinished | StepSkipped):
            found[fact.path] = fact.status
    return found


def end_of(facts: Sequence[AnyFact], place: str) -> int:
    """How many facts there are up to and with the end of a place that completed."""
    ends = [
        number
        for number, fact in enumerate(facts, start=1)
        if isinstance(fact, StepFinished | IterationFinished)
        and fact.path == place
        and fact.status == "completed"
    ]
    return ends[-1]


def copied(facts: Sequence[AnyFact], first: RunStarted, now: int) -> list[AnyFact]:
    """These facts as the beginning of another run, which begins with `first`."""
    over = {fact.effect for fact in facts if isinstance(fact, EffectDone | EffectFailed)}
    decided = {fact.gate for fact in facts if isinstance(fact, GateAnswered | GateClosed)}
    gap = max(0, now - max(fact.at for fact in facts))
    kept: list[AnyFact] = [first]
    for fact in facts[1:]:
        if isinstance(fact, EffectRequested) and fact.effect not in over:
            kept.append(_under_way(fact, gap))
        elif isinstance(fact, GateOpened) and fact.gate not in decided:
            kept += _asked(fact, first.run)
        else:
            kept.append(fact)
    return kept


def _under_way(fact: EffectRequested, gap: int) -> EffectRequested:
    """A request without an answer; a timer among them has as long to go as it had."""
    if not isinstance(fact.call, SleepCall):
        return fact
    later = SleepCall(until=fact.call.until + gap)
    return msgspec.structs.replace(fact, call=later)


def _asked(fact: GateOpened, run: str) -> Iterator[GateOpened]:
    """A question that nobody has answered. One about a tool call belongs to the turn that is kept;
    all others are asked again by whoever asked.
    """
    if fact.call is not None:
        yield msgspec.structs.replace(fact, gate=call_gate(run, fact.path, fact.call))


def run_forked(state: State, fact: RunForked) -> None:
    """From here on the run is its own."""
    state.paused = False
    state.worked_ms, state.working_since = 0, fact.at
    state.forked_at = fact.at
    state.remembered.clear()
    state.mail.sessions.clear()
    begin_again(state)
    note_coverage(state, fact)
    for owner in list(state.owners.values()):
        if isinstance(owner.body, RepeatBody):
            owner.body.sessions.clear()
        state.touch(owner)
    around = state.owners.get(parent_path(fact.place))
    if around is None or not isinstance(around.body, RepeatBody):
        return
    if fact.text:
        _tell(around.body, fact.text)
    if fact.passes is None or around.body.action.max is None:
        return
    steps = [step.id for step in state.plan.steps]
    if only_repeat(state.plan) is not None and logical_path(around.path) in steps:
        state.passes = fact.passes  # also when the loop has ended, or begins again
    around.body.extra = fact.passes - around.body.action.max


def _tell(repeat: RepeatBody, text: str) -> None:
    """Somebody says something to a loop, which is therefore not done."""
    repeat.last_done = False
    if isinstance(repeat.action.body, Cycle):
        repeat.history.append(Entry(kind="user", text=text))
    else:
        repeat.feedback = text
