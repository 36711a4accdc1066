"""Learnings: one short line for each iteration."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.kernel.bodies.repeat import learning_of
from loopwright.model.record import Blob


@pytest.mark.item("rondoflow-16")
@pytest.mark.parametrize(
    ("output", "learning"),
    [
        pytest.param("short", "short", id="short"),
        pytest.param("one\ntwo\r\n\r\nthree", "one two three", id="line ends become a blank"),
        pytest.param("\n\n first\n", "first", id="trimmed"),
        pytest.param("x" * 301, "x" * 300, id="cut at 300"),
        pytest.param("\n" + "x" * 300, "x" * 299, id="cut before it is cleaned"),
        pytest.param("", "(iteration 4 produced no output)", id="no output"),
        pytest.param("\n\n\n", "(iteration 4 produced no output)", id="only line ends"),
        pytest.param(None, "(iteration 4 produced no output)", id="nothing at all"),
        pytest.param(
            "\n" * 300 + "late", "(iteration 4 produced no output)", id="beyond the first 300"
        ),
        pytest.param(Blob("h", 9_999, "head\nof it"), "head of it", id="stored text: its head"),
    ],
)
def test_learning(output: object, learning: str) -> None:
    """A learning is the head of the output on one line, or says that there was none."""
    assert learning_of(output, 4, 300) == learning


@given(output=st.text(), chars=st.integers(1, 400))
def test_learning_is_short_and_one_line(output: str, chars: int) -> None:
    """No output makes a learning longer than allowed or longer than a line."""
    learning = learning_of(output, 1, chars)
    assert learning
    assert len(learning) <= chars or learning == "(iteration 1 produced no output)"
    assert not {"\n", "\r"} & set(learning)
