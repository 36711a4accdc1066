"""Whether and when a failed call is tried again: a decision, not a deed."""

import msgspec

from loopwright.kernel.facts import Failure
from loopwright.model.policy import Retry


class RetryAfter(msgspec.Struct, frozen=True):
    """Try again after so many milliseconds."""

    ms: int


def after_failure(policy: Retry, attempt: int, failure: Failure) -> RetryAfter | None:
    """The wait before the next try, or None when this was the last one.

    The wait doubles with each try up to the cap; a provider that names its own time is believed.
    """
    if attempt >= policy.attempts or failure.type not in policy.on:
        return None
    wait = min(policy.cap_ms, policy.base_ms * 2 ** min(attempt - 1, 20))
    return RetryAfter(ms=max(wait, failure.retry_after_ms or 0))
