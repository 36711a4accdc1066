"""Names of places in messages."""

import pytest

from loopwright.views.formats import place_words


@pytest.mark.parametrize(
    ("path", "words"),
    [
        pytest.param("", "", id="the run"),
        pytest.param("main", "", id="the only step"),
        pytest.param("main.2", "iteration 3", id="an iteration"),
        pytest.param("main.-1", "before iteration 1", id="checked first"),
        pytest.param("main~2.0", "iteration 1", id="after a restart"),
        pytest.param("main.0.plan", "iteration 1, step plan", id="a step of an iteration"),
        pytest.param("main[3]", "item 4", id="an item"),
        pytest.param("each[0].deploy", "step each, item 1, step deploy", id="a step of an item"),
        pytest.param(
            "dev.0.review.1", "step dev, iteration 1, step review, iteration 2", id="deep"
        ),
        pytest.param("a.main", "step a, step main", id="an inner step called main"),
        pytest.param("odd[x]", "odd[x]", id="not a path"),
    ],
)
def test_people_count_from_one(path: str, words: str) -> None:
    """Numbers of iterations and items in a path count from 0, in words from 1."""
    assert place_words(path) == words
