"""Which project a loop belongs to."""

import pytest

from loopwright.errors import LoopwrightError, NotFound
from loopwright.model.trackers import Item, TrackerChange, Trackers
from loopwright.operations.run_groups import ACTIVE, ProjectChoice, make_project, project_for
from tests.support.memory_trackers import MemoryTrackers


def activate(trackers: Trackers, session: str, project: Item, *, now_ms: int) -> None:
    """Record that a session works on a project."""

    def work(book: TrackerChange) -> str:
        values = {"id": project.id}
        book.put(Item(scope=session, kind="active", id=ACTIVE, at=now_ms, values={**values}))
        return project.id

    trackers.change(f"active/{session}/{now_ms}", work)


def options(**more: str) -> ProjectChoice:
    return ProjectChoice(definition="harness", goal="Build a cache", **more)


@pytest.mark.item("coqui-14")
def test_without_a_word_a_project_is_made() -> None:
    """Titled after the loop, with the goal as its description; the same key makes it once."""
    trackers = MemoryTrackers()
    made = project_for(trackers, options(), now_ms=1, key="k")
    assert made.text("title") == "Loop: harness"
    assert made.text("description") == "Build a cache"
    assert made.text("slug") == "loop-harness"
    assert project_for(trackers, options(), now_ms=2, key="k") == made
    other = project_for(trackers, options(), now_ms=2)
    assert other.text("slug") == f"loop-harness-{other.id[:8]}"


@pytest.mark.item("coqui-14")
def test_a_named_project_is_taken() -> None:
    """By id or by slug, never by both; one that is not there is an error and nothing is made."""
    trackers = MemoryTrackers()
    mine = make_project(trackers, "My Work", now_ms=1)
    assert project_for(trackers, options(id=mine.id), now_ms=2) == mine
    assert project_for(trackers, options(slug=mine.text("slug")), now_ms=2) == mine
    with pytest.raises(LoopwrightError, match="not by both"):
        project_for(trackers, options(id=mine.id, slug="x"), now_ms=2)
    with pytest.raises(NotFound, match="no project 'zz'") as caught:
        project_for(trackers, options(slug="zz"), now_ms=2)
    assert mine.text("slug") in (caught.value.hint or "")
    assert len(trackers.all("", "project")) == 1


@pytest.mark.item("coqui-14")
def test_the_active_project_of_the_session_is_next() -> None:
    """It counts for that session alone, and the newest choice counts."""
    trackers = MemoryTrackers()
    first, second = (make_project(trackers, name, now_ms=1) for name in ("a", "b"))
    activate(trackers, "s", first, now_ms=2)
    activate(trackers, "s", second, now_ms=3)
    assert project_for(trackers, options(session="s"), now_ms=4) == second
    assert project_for(trackers, options(session="t"), now_ms=4) not in (first, second)
