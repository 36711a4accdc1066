"""Stages that say they cannot go on: a person is asked before anything else begins."""

import re

import msgspec

from loopwright.kernel.facts import AnyFact, Failure, StepRetried
from loopwright.kernel.frames import Result, StepOwner
from loopwright.kernel.gates import open_gate
from loopwright.kernel.state import Senses, State
from loopwright.model.actions import Gate

LINES = 5
"""So many lines at the beginning are looked at."""
_BLOCKED = re.compile(r"[\W_]*status[\W_]*:[\W_]*(?:blocked|needs[ _-]context)\b", re.IGNORECASE)


def says_blocked(text: str) -> bool:
    """Whether one of the first lines says so."""
    return any(_BLOCKED.match(line) for line in text.lstrip().splitlines()[:LINES])


def held(state: State, owner: StepOwner, ended: Result, senses: Senses) -> Result | list[AnyFact]:
    """How a step ended, or what is asked and done first because its agent says it is blocked."""
    if owner.step.on_blocked != "ask" or ended.status != "completed":
        return ended
    if not says_blocked(senses.read(ended.output)):
        return ended
    if owner.gate is None:
        return [open_gate(state, owner, "blocked", Gate(), senses, output=ended.output)]
    match owner.gate.decision:
        case None:
            return []
        case "approve":
            return ended
        case "continue":
            again = StepRetried(
                at=state.now, path=owner.path, iteration=owner.iteration, attempt=owner.tries + 1
            )
            return [again]
        case "reject":
            error = Failure("rejected", owner.gate.text or "blocked, and given up by a person")
            return msgspec.structs.replace(ended, status="failed", reason="rejected", error=error)
