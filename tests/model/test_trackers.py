"""Rules of the trackers: how sprints move, how slugs are made."""

import pytest

from loopwright.model.trackers import (
    MOST_REVIEW_ROUNDS,
    SPRINT_STATUSES,
    Item,
    slug_of,
    sprint_moved,
    sprint_problem,
)

ALLOWED = {
    ("planned", "in_progress"),
    ("in_progress", "review"),
    ("review", "complete"),
    ("review", "rejected"),
    ("rejected", "in_progress"),
}


def sprint(status: str, **values: int) -> Item:
    return Item(scope="s", kind="sprint", id="x", values={"status": status, **values})


@pytest.mark.item("coqui-61")
@pytest.mark.parametrize("to", SPRINT_STATUSES)
@pytest.mark.parametrize("now", SPRINT_STATUSES)
def test_only_these_moves_are_possible(now: str, to: str) -> None:
    """Every other one is refused, with what is possible instead."""
    assert (sprint_problem(sprint(now), to) is None) is ((now, to) in ALLOWED)


def test_words_that_are_no_status() -> None:
    """They are refused, whichever side they stand on."""
    assert "is not a status" in (sprint_problem(sprint("planned"), "done") or "")
    assert "it has ended" in (sprint_problem(sprint("odd"), "planned") or "")


def test_reviews_are_counted_and_come_to_an_end() -> None:
    """Three by default, five at most whatever was said."""
    moved = sprint_moved(sprint("in_progress"), "review", "")
    assert (moved["review_round"], moved["status"]) == (1, "review")
    assert sprint_moved(sprint("review", review_round=1), "rejected", "why")["summary"] == "why"
    assert sprint_problem(sprint("in_progress", review_round=2), "review") is None
    assert "3 is the most" in (
        sprint_problem(sprint("in_progress", review_round=3), "review") or ""
    )
    many = sprint("in_progress", review_round=MOST_REVIEW_ROUNDS, max_review_rounds=99)
    assert "5 is the most" in (sprint_problem(many, "review") or "")


def test_values_of_an_item() -> None:
    """What is not of the kind that is asked for counts as missing."""
    item = Item(scope="s", kind="todo", id="x", values={"a": 1, "b": "t", "c": True})
    assert (item.text("a"), item.text("b")) == ("", "t")
    assert (item.number("a", 7), item.number("b", 7), item.number("c", 7)) == (1, 7, 7)


@pytest.mark.parametrize(
    ("title", "slug"), [("Loop: harness", "loop-harness"), ("Ü!", "untitled"), ("a" * 99, "a" * 60)]
)
def test_slugs(title: str, slug: str) -> None:
    """Small letters, digits and dashes, and never nothing."""
    assert slug_of(title) == slug
