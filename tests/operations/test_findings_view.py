"""Findings keep their identity from round to round, and a loop's direction is told from them."""

import pytest

from loopwright.model.record import JsonValue
from loopwright.views.metrics import compared, finding_key, trend

A: JsonValue = {"file": "a.py", "message": "No test for the empty list."}
A_AGAIN: JsonValue = {"file": "a.py", "message": "no test for the empty list", "severity": "low"}
B: JsonValue = {"id": "B-1", "message": "slow"}
B_REWORDED: JsonValue = {"id": "B-1", "message": "still far too slow"}
C = "The name is misleading"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param(A, A_AGAIN, True, id="another spelling"),
        pytest.param(B, B_REWORDED, True, id="its id counts"),
        pytest.param(A, B, False, id="different"),
        pytest.param(
            {"message": "slow"}, {"file": "a.py", "message": "slow"}, False, id="elsewhere"
        ),
        pytest.param(C, "the name is MISLEADING!", True, id="plain texts"),
        pytest.param("42", "43", False, id="nothing but numbers"),
        pytest.param(
            {"message": "line 3 is long"}, {"message": "line 9 is long"}, True, id="moved"
        ),
    ],
)
def test_who_is_who(one: JsonValue, other: JsonValue, same: bool) -> None:
    """The same finding is known again however it is worded."""
    assert (finding_key(one) == finding_key(other)) is same


def test_rounds_against_each_other() -> None:
    """New, gone and back are told apart; a round without a review changes nothing."""
    rounds = compared([[A, B], None, [B_REWORDED, C], [A_AGAIN]])
    told = [(one.open, one.new, one.gone, one.back) if one else None for one in rounds]
    assert told == [(2, 2, 0, 0), None, (2, 1, 1, 0), (1, 0, 2, 1)]
    last = rounds[-1]
    assert last is not None
    assert last.by_severity == {"low": 1}


@pytest.mark.parametrize(
    ("rounds", "leads"),
    [
        pytest.param([], "", id="nothing"),
        pytest.param([[A, B]], "", id="one round"),
        pytest.param([[A, B], [B]], "converging", id="fewer"),
        pytest.param([[B], []], "converging", id="none left"),
        pytest.param([[], []], "converging", id="none at all"),
        pytest.param([[A], [A, B]], "diverging", id="more"),
        pytest.param([[A], [A]], "plateau", id="the same"),
        pytest.param([[A], None, [A]], "plateau", id="with a gap"),
        pytest.param([[A], [B], [A]], "oscillating", id="back again"),
    ],
)
def test_where_it_leads(rounds: list[list[JsonValue] | None], leads: str) -> None:
    """The newest rounds say whether a loop comes nearer to its end."""
    assert trend(compared(rounds)) == leads
