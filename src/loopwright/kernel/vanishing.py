"""Calls whose process is gone without an answer: they are made again, and in a loop of stages not
for ever. One that takes its driver down with it each time would otherwise never end.
"""

from loopwright.kernel.calls import CALLED
from loopwright.kernel.facts import AnyFact, EffectFailed, EffectRepeated, Failure
from loopwright.kernel.state import Pending, State, enclosing_pass
from loopwright.model.memory import StageOutputs

MOST_REPEATS = 2
"""So often the call of a stage is made again."""


def vanished(state: State, at: int) -> list[EffectRepeated]:
    """What is recorded before calls of agents that another process had begun are made again."""
    return [
        EffectRepeated(
            at=max(at, state.now),
            path=pending.owner.inside,
            iteration=pending.owner.iteration,
            effect=pending.effect,
        )
        for pending in state.pending.values()
        if state.cancel is None and isinstance(pending.call, CALLED)
    ]


def effect_repeated(state: State, fact: EffectRepeated) -> None:
    """Count one more time that a call is made."""
    pending = state.pending.get(fact.effect)
    if pending is None:
        state.ignored += 1
        return
    pending.repeats += 1
    if pending.repeats > MOST_REPEATS and _is_counted(pending):
        state.lost[fact.effect] = pending


def close_lost(state: State) -> list[AnyFact]:
    """The end of calls that have vanished too often."""
    return [
        EffectFailed(
            at=state.now,
            path=pending.owner.inside,
            iteration=pending.owner.iteration,
            effect=effect,
            error=Failure("vanished", _words(pending)),
            usage=pending.used,
        )
        for effect, pending in state.lost.items()
    ]


def _words(pending: Pending) -> str:
    return f"it was begun {pending.repeats} times, and each time its process vanished"


def _is_counted(pending: Pending) -> bool:
    """Whether a call is one of a stage: those of other loops are made again however often."""
    inside = enclosing_pass(pending.owner)
    while inside is not None and not isinstance(inside.parent.action.memory, StageOutputs):
        inside = enclosing_pass(inside.parent.owner)
    return inside is not None and isinstance(pending.call, CALLED)
