"""Whether and when a failed call is tried again: a decision, not a deed."""

import re
from functools import lru_cache

import msgspec

from loopwright.kernel.facts import Failure
from loopwright.kernel.reasons import HOME_BUDGET
from loopwright.model.policy import FailureKind, Retry

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
    """Whether one of these stands in the words about a failure, as a word of its own."""
    return bool(words) and _pattern(words).search(detail) is not None


@lru_cache(maxsize=32)
def _pattern(words: tuple[str, ...]) -> "re.Pattern[str]":
    listed = "|".join(re.escape(word) for word in words)
    return re.compile(rf"(?<![A-Za-z0-9])(?:{listed})(?![A-Za-z0-9])", re.IGNORECASE)


def parked_until(failure: Failure, *, parks: int, now: int) -> int | None:
    """When a call that met a used-up allowance goes on, or None when it did not meet one.

    A provider that names the time has not failed us: the call waits for it, and that is neither a
    try nor a pass. Only one that puts us off again and again is believed no longer. The same holds
    for a machine that has no file descriptors, processes or memory left, with growing waits.
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
