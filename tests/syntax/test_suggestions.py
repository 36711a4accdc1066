"""Suggestions for misspelt words, and values in messages."""

import pytest

from loopwright.syntax.document import did_you_mean, misspelt, one_of, show, suggest

KNOWN = ["name", "max_iterations", "memory", "for_each", "until", "agents"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("max_iteration", "max_iterations"),
        ("maxIterations", "max_iterations"),
        ("MAX-ITERATIONS", "max_iterations"),
        ("nmae", "name"),
        ("foreach", "for_each"),
        ("untill", "until"),
        ("agent", "agents"),
        ("name_of_it", "name"),
        ("untilSomethingElse", "until"),
        ("_", None),
        ("zzz", None),
        ("", None),
        ("x" * 100_000, None),
    ],
    ids=lambda word: str(word)[:20],
)
def test_suggestions(word: str, expected: str | None) -> None:
    """A misspelt or differently written word finds the one that was meant, others find none."""
    assert suggest(word, KNOWN) == expected
    assert did_you_mean(word, KNOWN) == (f"did you mean {expected}?" if expected else None)


@pytest.mark.parametrize(
    ("word", "expected"),
    [("maximum", "max"), ("max_passes", "max"), ("timeouts", "timeout"), ("tixxxxxx", None)],
)
def test_a_longer_word_finds_the_one_that_it_begins_with(word: str, expected: str | None) -> None:
    """Of several, the longest. A word of two letters is too short for that."""
    assert suggest(word, ["max", "time", "timeout", "ti"]) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["nmae", "until"], True),
        (["memroy", "zzz"], False),
        (["name"], False),
        ([], False),
    ],
)
def test_a_misspelt_key_explains_a_missing_one(keys: list[str], expected: bool) -> None:
    """Only an unknown key that was meant to be the missing one does."""
    assert misspelt(keys, KNOWN, "name", "for_each") is expected


def test_a_word_is_not_its_own_correction() -> None:
    """A known word is not suggested in place of itself."""
    assert suggest("name", ["name"]) is None
    assert suggest("name", []) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ("10", '"10"'),
        ({}, "an empty mapping"),
        ({"a": 1}, "a mapping"),
        ([], "an empty list"),
        ([1], "a list"),
        ("é" * 100, '"' + "é" * 59 + '…"'),
        ((1, 2), "(1, 2)"),
        (tuple(range(100)), str(tuple(range(100)))[:59] + "…"),
    ],
)
def test_values_in_words(value: object, expected: str) -> None:
    """Values are shown as their author wrote them, long ones by their beginning."""
    assert show(value) == expected


def test_alternatives() -> None:
    """One, two or many."""
    assert [one_of(["a"]), one_of(["a", "b"]), one_of(["a", "b", "c"])] == [
        "a",
        "a or b",
        "a, b or c",
    ]
