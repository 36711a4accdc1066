"""Closing: the facts that end everything inside a place, innermost first.

Every request gets exactly one answer and every start exactly one end, also when a deadline, a stop
or a failing sibling ends a place from outside.
"""

from typing import assert_never

from loopwright.kernel.facts import (
    AnyFact,
    EffectFailed,
    Failure,
    GateClosed,
    IterationFinished,
    StepFinished,
    StepSkipped,
    Usage,
)
from loopwright.kernel.frames import (
    Body,
    CycleBody,
    GateState,
    LeafBody,
    Owner,
    PassOwner,
    RepeatBody,
    StepOwner,
    StepsBody,
    passes_made,
)
from loopwright.kernel.state import Pending, State
from loopwright.model.ids import child_path


def close_try(state: State, owner: StepOwner, why: str) -> list[AnyFact]:
    """End what is open inside a step that is about to begin anew; its time goes on."""
    return _close_body(state, owner.body, why)


def close_inside(state: State, owner: Owner, why: str) -> list[AnyFact]:
    """End what is open inside a place, but not the place itself."""
    if type(owner.body) is LeafBody and not state.pending and not state.gates:
        return []
    asked = owner.gate if isinstance(owner, StepOwner) else None
    facts = [] if _has_no_body(owner) else _close_body(state, owner.body, why)
    facts += withdraw(state, owner, owner.deadline, why)
    if state.snapshots.asked:
        facts += withdraw(state, owner, state.snapshots.asked.get(owner.inside), why)
    facts += _close_gate(state, asked, why)
    facts += withdraw(state, owner, owner.look if isinstance(owner, StepOwner) else None, why)
    if isinstance(owner, PassOwner):
        facts += withdraw(state, owner, owner.check_pending, why)
        facts += _close_gate(state, owner.gate, why)
    return facts


def _has_no_body(owner: Owner) -> bool:
    """A look before the first pass asks the checks alone: nothing of its body ever begins."""
    return isinstance(owner, PassOwner) and owner.number < 0


def _close_owner(state: State, owner: StepOwner | PassOwner, why: str) -> list[AnyFact]:
    at, path, iteration = state.now, owner.path, owner.iteration
    inside = close_inside(state, owner, why)
    if isinstance(owner, PassOwner):
        ended: AnyFact = IterationFinished(
            at=at,
            path=path,
            iteration=iteration,
            status="cancelled",
            reason=why,
            ms=at - owner.started_at - owner.idle_ms,
        )
    else:
        ended = StepFinished(
            at=at,
            path=path,
            iteration=iteration,
            status="cancelled",
            reason=why,
            iterations=passes_made(owner.body),
            usage=owner.spent.usage,
        )
    return [*inside, ended]


def _close_body(state: State, body: Body, why: str) -> list[AnyFact]:
    facts: list[AnyFact] = []
    match body:
        case LeafBody():
            facts += withdraw(state, body.owner, body.pending, why)
            facts += _close_gate(state, body.gate, why)
        case CycleBody():
            facts += withdraw(state, body.owner, body.pending, why)
            for effect in body.asked.values():
                facts += withdraw(state, body.owner, effect, why)
            for gate in body.gates.values():
                facts += _close_gate(state, gate, why)
        case StepsBody():
            for step in list(body.active.values()):
                facts += _close_owner(state, step, why)
            facts += _never_started(state, body, why)
        case RepeatBody():
            for number in sorted(body.active):
                facts += _close_owner(state, body.active[number], why)
            facts += withdraw(state, body.owner, body.deadline, why)
            facts += withdraw(state, body.owner, body.delay, why)
            facts += _close_gate(state, body.cap_gate, why)
        case _:
            assert_never(body)
    return facts


def _never_started(state: State, body: StepsBody, why: str) -> list[AnyFact]:
    return [
        StepSkipped(
            at=state.now,
            path=child_path(body.owner.inside, step.id),
            iteration=body.owner.iteration,
            reason=why,
            status="cancelled",
        )
        for step in body.index.action.steps
        if step.id not in body.results and step.id not in body.active
    ]


def withdraw(state: State, owner: Owner, effect: str | None, why: str) -> list[AnyFact]:
    """Answer an effect that nobody waits for any more, and close what it has asked people."""
    if effect is None or effect not in state.pending:
        return []
    asked = (state.pending[effect].gates or {}).values()
    return [
        *(fact for gate in asked for fact in _close_gate(state, gate, why)),
        EffectFailed(
            at=state.now,
            path=owner.inside,
            iteration=owner.iteration,
            effect=effect,
            error=Failure(type="cancelled", detail=why),
            usage=_used(state.pending[effect]),
        ),
    ]


def _used(pending: Pending) -> Usage | None:
    """What a call has used that is ended: a program that reported nothing, an unknown amount."""
    return Usage(unpriced=1) if pending.has_unknown_cost else pending.used


def close_stale(state: State) -> list[AnyFact]:
    """Questions that an effect asked while it was under way, and that nobody needs answered."""
    stale = list(state.stale.values())
    return [fact for gate in stale for fact in _close_gate(state, gate, "answered without it")]


def _close_gate(state: State, gate: GateState | None, why: str) -> list[AnyFact]:
    if gate is None or not gate.open:
        return []
    return [
        GateClosed(
            at=state.now,
            path=gate.path,
            iteration=gate.owner.iteration,
            gate=gate.gate,
            reason=why,
        )
    ]
