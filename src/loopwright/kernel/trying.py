"""Asking for an effect, and asking again: the same for a single call and for a turn of a model."""

from loopwright.kernel.calls import AnyCall, SleepCall
from loopwright.kernel.facts import EffectRequested, Failure
from loopwright.kernel.frames import CycleBody, LeafBody, Owner
from loopwright.kernel.retry import after_failure, parked_until
from loopwright.kernel.state import State
from loopwright.model.ids import effect_id


def request(
    state: State, owner: Owner, purpose: str, number: int, call: AnyCall
) -> EffectRequested:
    """The fact that asks for an effect at a place."""
    return EffectRequested(
        at=state.now,
        path=owner.inside,
        iteration=owner.iteration,
        effect=effect_id(owner.inside, purpose, number),
        call=call,
    )


def goes_on(body: LeafBody | CycleBody, error: Failure) -> bool:
    """Whether a failed call is tried again, at once or when an allowance is renewed."""
    if body.backoff >= body.attempt:
        return True  # the wait for the next try is over
    if parked_until(error, parks=body.parks, now=0) is not None:
        return True
    return after_failure(body.retry, body.tries, error) is not None


def back_off(state: State, body: LeafBody | CycleBody) -> EffectRequested:
    """The wait before the next try."""
    assert body.failure is not None
    error = body.failure.error
    until = parked_until(error, parks=body.parks, now=state.now)
    if until is None:
        wait = after_failure(body.retry, body.tries, error)
        assert wait is not None, "a failure without a retry is an outcome"
        until = state.now + wait.ms
    return request(state, body.owner, "backoff", body.attempt, SleepCall(until=until))


def waited(body: LeafBody | CycleBody, attempt: int, at: int) -> None:
    """Fold that the wait is over; one for an allowance is no try."""
    assert body.failure is not None
    body.backoff = attempt
    if parked_until(body.failure.error, parks=body.parks, now=at) is not None:
        body.parks += 1
