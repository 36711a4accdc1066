"""The decision after a failed attempt."""

import pytest

from loopwright.gateway.client import (
    EndExchange,
    ExchangeProgress,
    Move,
    RetryModel,
    TryNextModel,
    decide_next_move,
    most_useful_failure,
)
from loopwright.model.chat import CallLimits, ModelFailure, ModelFailureKind

LIMITS = CallLimits(tries=3, base_ms=1_000, cap_ms=10_000, longest_wait_ms=30_000)


def move(
    kind: ModelFailureKind,
    *,
    tries: int = 1,
    left: int = 0,
    retry_in: int | None = None,
    dice: float = 0.0,
) -> Move:
    now = 5_000
    at = None if retry_in is None else now + retry_in
    standing = ExchangeProgress(tries=tries, models_left=left, now_ms=now)
    return decide_next_move(ModelFailure(kind=kind, retry_at_ms=at), standing, LIMITS, lambda: dice)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(move("server"), RetryModel(500), id="half of the pause is sure"),
        pytest.param(move("server", dice=1.0), RetryModel(1_000), id="the other half is chance"),
        pytest.param(move("server", tries=2), RetryModel(1_000), id="it doubles"),
        pytest.param(move("server", tries=3), EndExchange(), id="tries used up"),
        pytest.param(
            move("server", tries=3, left=1), TryNextModel(), id="tries used up, another model"
        ),
        pytest.param(move("rate_limited", retry_in=8_000), RetryModel(8_000), id="named time"),
        pytest.param(
            move("rate_limited", retry_in=8_000, dice=0.5), RetryModel(8_500), id="never earlier"
        ),
        pytest.param(move("rate_limited", retry_in=-100), RetryModel(0), id="named time is over"),
        pytest.param(move("rate_limited", retry_in=40_000), EndExchange(), id="too long to wait"),
        pytest.param(
            move("rate_limited", retry_in=40_000, left=1), TryNextModel(), id="too long, another"
        ),
        pytest.param(move("auth"), EndExchange(), id="key"),
        pytest.param(move("auth", left=2), TryNextModel(), id="key, another model"),
        pytest.param(move("no_price", left=1), TryNextModel(), id="price, another model"),
        pytest.param(move("overflow", left=1), EndExchange(), id="prompt too long"),
        pytest.param(move("bad_request", left=1), EndExchange(), id="wrong request"),
        pytest.param(move("wall_timeout", left=1), EndExchange(), id="no time left"),
    ],
)
def test_moves(made: Move, expected: Move) -> None:
    """The kind of a failure, the tries and the time that a service names decide."""
    assert made == expected


def test_the_pause_has_a_cap() -> None:
    """However many tries there were."""
    limits = CallLimits(tries=100, base_ms=1_000, cap_ms=10_000)
    standing = ExchangeProgress(tries=60, models_left=0, now_ms=0)
    made = decide_next_move(ModelFailure(kind="network"), standing, limits, lambda: 1.0)
    assert made == RetryModel(10_000)


def test_the_earliest_time_is_worth_telling() -> None:
    """A run can be parked until then; without any time the newest failure is told."""
    early = ModelFailure(kind="rate_limited", retry_at_ms=10)
    late = ModelFailure(kind="rate_limited", retry_at_ms=20)
    plain = ModelFailure(kind="auth")
    assert most_useful_failure([late, early, plain]) is early
    assert most_useful_failure([ModelFailure(kind="server"), plain]) is plain
