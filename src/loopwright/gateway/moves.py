"""What follows on a failed attempt: a decision, made of values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loopwright.model.exchange import CallLimits, ModelFailure, ModelFailureKind

Dice: TypeAlias = Callable[[], float]
"""A number from 0 up to 1, by chance."""

# Another try of the same model may work.
PASSING: tuple[ModelFailureKind, ...] = (
    "bad_answer",
    "first_token_timeout",
    "idle_timeout",
    "network",
    "overloaded",
    "rate_limited",
    "server",
)
# The same model will not work, another one may. What stands in neither list ends the exchange:
# a prompt that does not fit, a request that is wrong, a content that is refused, no time left.
ELSEWHERE: tuple[ModelFailureKind, ...] = ("auth", "no_model", "no_price", "quota")


@dataclass(frozen=True, slots=True)
class Again:
    """The same model once more, after a pause."""

    wait_ms: int


@dataclass(frozen=True, slots=True)
class Next:
    """The next model of the list, at once."""


@dataclass(frozen=True, slots=True)
class Stop:
    """No further attempt."""


Move: TypeAlias = Again | Next | Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far an exchange has come: tries of this model, models after it, and the time now."""

    tries: int
    models_left: int
    now_ms: int


def after(failure: ModelFailure, standing: Standing, limits: CallLimits, dice: Dice) -> Move:
    """What to do now that an attempt has failed."""
    if failure.kind in PASSING and standing.tries < limits.tries:
        wait = _pause(failure, standing, limits, dice)
        if wait <= limits.longest_wait_ms:
            return Again(wait)
    elif failure.kind not in PASSING + ELSEWHERE:
        return Stop()
    return Next() if standing.models_left else Stop()


def _pause(failure: ModelFailure, standing: Standing, limits: CallLimits, dice: Dice) -> int:
    """A time that doubles with each try, half of it by chance, so that clients that failed
    together do not come back together. A service that names its time is believed, and a little
    is added by chance for the same reason.
    """
    full = min(limits.cap_ms, limits.base_ms * 2 ** min(standing.tries - 1, 20))
    if failure.retry_at_ms is None:
        return int(full / 2 + dice() * full / 2)
    return max(failure.retry_at_ms - standing.now_ms, 0) + int(dice() * limits.base_ms)


def worth_telling(failures: Sequence[ModelFailure]) -> ModelFailure:
    """Of the last failures of all models, the one that says most about when it may work: the
    earliest time that a service has named, else the newest one.
    """
    timed = [one for one in failures if one.retry_at_ms is not None]
    return min(timed, key=lambda one: one.retry_at_ms or 0) if timed else failures[-1]
