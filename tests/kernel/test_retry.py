"""Whether and when a failed call is tried again."""

from __future__ import annotations

import pytest

from loopwright.kernel.effects import RetryAfter, after_failure, is_retried
from loopwright.kernel.event_parts import Failure
from loopwright.model.policy import Retry

POLICY = Retry(attempts=4, base_ms=100, cap_ms=350)


@pytest.mark.parametrize(
    ("attempt", "failure", "wait"),
    [
        pytest.param(1, Failure("rate_limited"), 100, id="first wait"),
        pytest.param(2, Failure("rate_limited"), 200, id="doubled"),
        pytest.param(3, Failure("overloaded"), 350, id="capped"),
        pytest.param(4, Failure("rate_limited"), None, id="last try"),
        pytest.param(9, Failure("rate_limited"), None, id="beyond the last"),
        pytest.param(1, Failure("agent"), None, id="not a failure to retry"),
        pytest.param(1, Failure("internal"), None, id="our own defect"),
        pytest.param(1, Failure("rate_limited", "", 5_000), 5_000, id="told to come back later"),
        pytest.param(2, Failure("rate_limited", "", 5), 200, id="told too short a time"),
    ],
)
def test_after_failure(attempt: int, failure: Failure, wait: int | None) -> None:
    """The wait doubles to its cap, a provider's own time is believed, and tries end."""
    expected = None if wait is None else RetryAfter(ms=wait)
    assert after_failure(POLICY, attempt, failure) == expected


def test_waits_do_not_overflow() -> None:
    """A policy with very many tries still has a wait that is a sane number."""
    policy = Retry(attempts=10_000, base_ms=1, cap_ms=10**12)
    assert after_failure(policy, 9_999, Failure("overloaded")) == RetryAfter(ms=2**20)


def test_by_default_nothing_is_retried() -> None:
    """One try is one try."""
    assert after_failure(Retry(), 1, Failure("rate_limited")) is None


@pytest.mark.parametrize(
    ("kind", "meant"),
    [
        ("agent", True),
        ("exit", True),
        ("cancelled", False),
        ("rejected", False),
        ("internal", False),
    ],
)
def test_any_means_what_went_wrong(kind: str, meant: bool) -> None:
    """A stop, a person's rejection and a defect of ours are not tried again by a word for all."""
    assert is_retried(Retry(attempts=2, on=("any",)), Failure(kind)) == meant
