"""Stages that say they cannot go on, or that did not leave what they had to: a person is asked
before anything else begins.
"""

import re
from typing import assert_never

import msgspec

from loopwright.kernel.calls import LookupCall
from loopwright.kernel.facts import AnyFact, Failure, StepRetried
from loopwright.kernel.frames import Result, StepOwner
from loopwright.kernel.gates import open_gate
from loopwright.kernel.state import Senses, State, enclosing_pass
from loopwright.kernel.trying import request
from loopwright.model.actions import Gate
from loopwright.model.template import literal

NO_ARTIFACT = (
    "Blocked: it left no artifact, and one is required. Leave one and try again, go on without it, "
    "or end it?"
)
NO_OUTPUT = "the agent answered with no text, and a later step needs its output"
LINES = 5
"""So many lines at the beginning are looked at."""
_BLOCKED = re.compile(r"[\W_]*status[\W_]*:[\W_]*(?:blocked|needs[ _-]context)\b", re.IGNORECASE)


def says_blocked(text: str) -> bool:
    """Whether one of the first lines says so."""
    return any(_BLOCKED.match(line) for line in text.lstrip().splitlines()[:LINES])


def held(state: State, owner: StepOwner, ended: Result, senses: Senses) -> Result | list[AnyFact]:
    """How a step ended, or what is asked and done first: its agent says that it is blocked, or did
    not leave the artifact that it had to.
    """
    if ended.status != "completed":
        return ended
    if owner.step.needs_output and not senses.read(ended.output).strip():
        error = Failure("no-output", NO_OUTPUT)
        return msgspec.structs.replace(ended, status="failed", reason="no_output", error=error)
    blocked = owner.step.on_blocked == "ask" and says_blocked(senses.read(ended.output))
    if owner.gate is None and not blocked and owner.step.needs_artifact:
        return _look(state, owner, ended, senses)
    if owner.gate is None:
        return _ask(state, owner, ended, senses, Gate()) if blocked else ended
    match owner.gate.decision:
        case None:
            return []
        case "approve":
            return ended
        case "continue":
            return _again(state, owner, ended, blocked=blocked)
        case "reject":
            error = Failure("rejected", owner.gate.text or "blocked, and given up by a person")
            return msgspec.structs.replace(ended, status="failed", reason="rejected", error=error)
        case never:
            assert_never(never)


def _ask(
    state: State, owner: StepOwner, ended: Result, senses: Senses, gate: Gate
) -> list[AnyFact]:
    return [open_gate(state, owner, "blocked", gate, senses, output=ended.output)]


def _look(state: State, owner: StepOwner, ended: Result, senses: Senses) -> Result | list[AnyFact]:
    """See whether an artifact is there; a person is asked when it is not."""
    if owner.found:
        return ended
    if owner.found is None:
        return _lookup(state, owner)
    return _ask(state, owner, ended, senses, Gate(message=literal(NO_ARTIFACT)))


def _lookup(state: State, owner: StepOwner) -> list[AnyFact]:
    if owner.look is not None:
        return []
    inside = enclosing_pass(owner)
    since = inside.started_at if inside is not None else 0
    call = LookupCall(since=since)
    return [request(state, owner, "artifact", owner.looks + 1, call)]


def _again(
    state: State, owner: StepOwner, ended: Result, *, blocked: bool
) -> Result | list[AnyFact]:
    """Try a step again. One that only lacked an artifact is complete when somebody has left it
    meanwhile.
    """
    if not blocked and (owner.looks == 1 or owner.look is not None):
        return _lookup(state, owner)
    if not blocked and owner.found:
        return ended
    again = StepRetried(
        at=state.now, path=owner.path, iteration=owner.iteration, attempt=owner.tries + 1
    )
    return [again]
