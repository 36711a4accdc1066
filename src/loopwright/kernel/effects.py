"""Effects from request to end: requests, retries, concurrency slots, lost and withdrawn effects.

An effect whose process disappeared without an answer is requested again. In a loop of stages
this is limited, because a call that crashes its driver each time would otherwise never end.
"""

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from loopwright.kernel.event_parts import CALLED, HOME_BUDGET, Failure, SleepCall
from loopwright.kernel.events import (
    AnyEvent,
    EffectFailed,
    EffectRepeated,
    EffectRequested,
    GateClosed,
    Usage,
)
from loopwright.kernel.frames import (
    CycleBody,
    GateState,
    LeafBody,
    Owner,
)
from loopwright.kernel.state import (
    PendingEffect,
    State,
    enclosing_iteration,
    is_full,
    request_effect,
)
from loopwright.model.actions import AskPerson, CallAgent
from loopwright.model.ids import BACKOFF
from loopwright.model.policy import FailureKind, Retry, StageOutputs

LEAST_PARK_MS = 1_000
MOST_PARKS = 100
SHORTAGE: FailureKind = "host_shortage"
MOST_SHORTAGES = 2_000  # more than a day
MOST_SHORTAGE_MS = 60_000


class RetryAfter(msgspec.Struct, frozen=True):
    """Try again after so many milliseconds."""

    ms: int


def is_retried(policy: Retry, failure: Failure) -> bool:
    """Whether a policy speaks of this failure. What was stopped from outside, what a person
    rejected and a defect of ours are not meant by "any".
    """
    if failure.outer:
        return False
    if policy.unless_says and _says(failure.detail, policy.unless_says):
        return False
    if failure.type in ("cancelled", "rejected", "internal", HOME_BUDGET):
        return failure.type in policy.on
    if failure.type in policy.on or "any" in policy.on:
        return True
    return _says(failure.detail, policy.if_says)


def _says(detail: str, words: tuple[str, ...]) -> bool:
    """Whether the text of a failure contains one of these as a separate word."""
    return bool(words) and _pattern(words).search(detail) is not None


@lru_cache(maxsize=32)
def _pattern(words: tuple[str, ...]) -> "re.Pattern[str]":
    listed = "|".join(re.escape(word) for word in words)
    return re.compile(rf"(?<![A-Za-z0-9])(?:{listed})(?![A-Za-z0-9])", re.IGNORECASE)


def parked_until(failure: Failure, *, parks: int, now: int) -> int | None:
    """When a call that met a rate limit continues, or None if it did not meet one.

    A provider that names the time has not failed us: the call waits for it, and that is neither a
    try nor an iteration. Only one that puts us off again and again is believed no longer. The same
    holds for a machine that has no file descriptors, processes or memory left, with growing waits.
    """
    if failure.type == SHORTAGE:
        wait = min(MOST_SHORTAGE_MS, LEAST_PARK_MS * 2 ** min(parks, 20))
        return now + wait if parks < MOST_SHORTAGES else None
    if failure.type != "rate_limited" or failure.resets_at is None or parks >= MOST_PARKS:
        return None
    return max(failure.resets_at, now + LEAST_PARK_MS)


def after_failure(policy: Retry, attempt: int, failure: Failure) -> RetryAfter | None:
    """The wait before the next try, or None when this was the last one.

    The wait doubles with each try up to the cap; a provider that names its own time is believed.
    """
    if failure.type == "bad_result" and attempt == 1:
        return RetryAfter(ms=0)  # an answer that does not fit is asked for once more, at once
    if attempt >= policy.attempts or not is_retried(policy, failure):
        return None
    wait = min(policy.cap_ms, policy.base_ms * 2 ** min(attempt - 1, 20))
    return RetryAfter(ms=max(wait, failure.retry_after_ms or 0))


def has_next_attempt(body: LeafBody | CycleBody, error: Failure) -> bool:
    """Whether a failed call is tried again, at once or when a rate limit is reset."""
    if body.backoff >= body.attempt:
        return True  # the wait for the next try is over
    if parked_until(error, parks=body.parks, now=0) is not None:
        return True
    return after_failure(body.retry, body.tries, error) is not None


def request_backoff(state: State, body: LeafBody | CycleBody) -> EffectRequested:
    """The wait before the next try."""
    assert body.failure is not None
    error = body.failure.error
    until = parked_until(error, parks=body.parks, now=state.now)
    if until is None:
        wait = after_failure(body.retry, body.tries, error)
        assert wait is not None, "a failure without a retry is an outcome"
        until = state.now + wait.ms
    return request_effect(state, body.owner, BACKOFF, body.attempt, SleepCall(until=until))


def note_backoff_end(body: LeafBody | CycleBody, attempt: int, at: int) -> None:
    """Fold the end of a wait; a rate-limit wait does not count as an attempt."""
    assert body.failure is not None
    body.backoff = attempt
    if parked_until(body.failure.error, parks=body.parks, now=at) is not None:
        body.parks += 1


def free_slot(state: State) -> None:
    """Decide about the next call that waits for a concurrency slot, if there is
    one that fits. If only the plan has a limit, the first one fits or none does.
    """
    done: list[str] = []
    for name, owner in _in_order(state):
        fits = owner.closed or not is_full(state, owner)
        if fits:
            done.append(name)
            state.touch(owner)
        if not owner.closed and (fits or not state.plan_index.has_caps):
            break
    for name in done:
        del state.queues.slots[name]


def _in_order(state: State) -> Iterable[tuple[str, Owner]]:
    """Those who wait: as they came; or first whose agent was called longest ago (`round-robin`);
    or whose agent has the fewest calls under way (`least-busy`). As they came where that is equal.
    """
    waiting = state.queues.slots.items()
    match state.plan.settings.get("scheduler"):
        case "round-robin":
            return sorted(waiting, key=lambda one: state.agents.served.get(_agent(one[1]), 0))
        case "least-busy":
            calls = (one.call for one in state.pending.values())
            busy = Counter(call.agent for call in calls if isinstance(call, CALLED))
            return sorted(waiting, key=lambda one: busy[_agent(one[1])])
        case _:
            return waiting


def _agent(owner: Owner) -> str:
    """The agent that is called at a path; None for a check."""
    body = owner.body
    if isinstance(body, CycleBody):
        return body.action.agent
    action = body.action if isinstance(body, LeafBody) else None
    if isinstance(action, CallAgent):
        return action.agent
    rework = action.on_reject if isinstance(action, AskPerson) else None
    return rework.agent if rework is not None else ""


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
        if state.control.cancel is None and isinstance(pending.call, CALLED)
    ]


def effect_repeated(state: State, event: EffectRepeated) -> None:
    """Count one more time that a call is made."""
    pending = state.pending.get(event.effect)
    if pending is None:
        state.ignored += 1
        return
    pending.repeats += 1
    if pending.repeats > MOST_REPEATS and _is_counted(pending):
        state.queues.lost[event.effect] = pending


def close_lost(state: State) -> list[AnyEvent]:
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
        for effect, pending in state.queues.lost.items()
    ]


def _words(pending: PendingEffect) -> str:
    return f"it was begun {pending.repeats} times, and each time its process vanished"


def _is_counted(pending: PendingEffect) -> bool:
    """Whether a call is one of a stage: those of other loops are made again however often."""
    inside = enclosing_iteration(pending.owner)
    while inside is not None and not isinstance(inside.parent.action.memory, StageOutputs):
        inside = enclosing_iteration(inside.parent.owner)
    return inside is not None and isinstance(pending.call, CALLED)


def withdraw(state: State, owner: Owner, effect: str | None, why: str) -> list[AnyEvent]:
    """Answer an effect whose result is no longer needed, and close its open gates."""
    if effect is None or effect not in state.pending:
        return []
    gates = (state.pending[effect].gates or {}).values()
    return [
        *(event for gate in gates for event in close_gate(state, gate, why)),
        EffectFailed(
            at=state.now,
            path=owner.inside,
            iteration=owner.iteration,
            effect=effect,
            error=Failure(type="cancelled", detail=why),
            usage=_used(state.pending[effect]),
        ),
    ]


def _used(pending: PendingEffect) -> Usage | None:
    """What a call has used that is ended: a program that reported nothing, an unknown amount."""
    return Usage(unpriced=1) if pending.has_unknown_cost else pending.used


def close_stale(state: State) -> list[AnyEvent]:
    """Gates that an effect opened while it was active, and whose answers are no longer needed."""
    stale = list(state.queues.stale.values())
    return [event for gate in stale for event in close_gate(state, gate, "answered without it")]


def close_gate(state: State, gate: GateState | None, why: str) -> list[AnyEvent]:
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
