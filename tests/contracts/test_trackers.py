"""The contract of `Trackers`, over every store: what holds for one holds for all."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from loopwright.model.trackers import Item, TrackerChange, Trackers, Values
from loopwright.stores.sqlite.log import open_sqlite_log
from loopwright.stores.trackers import SqliteTrackers
from tests.support.memory_trackers import MemoryTrackers

Reopen = Callable[[], Trackers]


@pytest.fixture(params=["memory", "sqlite"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopen]:
    """The same trackers as another process would have them."""
    if request.param == "memory":
        kept = MemoryTrackers()
        yield lambda: MemoryTrackers(items=kept.items, receipts=kept.receipts)
        return
    loop = asyncio.new_event_loop()
    logs = []

    def opened() -> Trackers:
        log = open_sqlite_log(tmp_path / "log.db", alive=lambda _: True, durability="normal")
        logs.append(log)
        return SqliteTrackers(log)

    yield opened
    for log in logs:
        with closing(log):
            pass
    loop.close()


def item(name: str, scope: str = "s", **values: str) -> Item:
    return Item(scope=scope, kind="todo", id=name, at=5, values=dict[str, object](values))  # type: ignore[arg-type]


def put(*items: Item) -> Callable[[TrackerChange], str]:
    def work(book: TrackerChange) -> str:
        for one in items:
            book.put(one)
        return ",".join(one.id for one in items)

    return work


def test_what_is_put_is_there(reopen: Reopen) -> None:
    """In the order in which it was made, and for every process that looks."""
    trackers = reopen()
    assert trackers.change("k1", put(item("b", title="B"), item("a", title="A"))) == "b,a"
    assert [one.id for one in trackers.all("s", "todo")] == ["b", "a"]
    found = trackers.get("s", "todo", "a")
    assert found is not None
    assert (found.version, found.at, found.values) == (1, 5, {"title": "A"})
    assert trackers.get("s", "todo", "none") is None
    assert trackers.get("s", "artifact", "a") is None


def test_scopes_are_apart(reopen: Reopen) -> None:
    """What belongs to one session nobody finds in another."""
    trackers = reopen()
    trackers.change("k1", put(item("a"), item("a", scope="other", title="mine")))
    assert trackers.all("nobody", "todo") == []
    assert [one.values for one in trackers.all("other", "todo")] == [{"title": "mine"}]


def test_a_change_is_made_once(reopen: Reopen) -> None:
    """Under a key that was used nothing is done, and the answer is the one of then."""
    trackers = reopen()
    trackers.change("k1", put(item("a")))
    assert trackers.change("k1", put(item("b"))) == "a"
    assert [one.id for one in trackers.all("s", "todo")] == ["a"]
    assert trackers.change("k2", put(item("b"))) == "b"


def test_a_change_that_fails_leaves_nothing(reopen: Reopen) -> None:
    """Neither what it put nor its key: it may be tried again."""
    trackers = reopen()

    def work(book: TrackerChange) -> str:
        book.put(item("a"))
        raise KeyError("no")

    with pytest.raises(KeyError):
        trackers.change("k1", work)
    assert trackers.all("s", "todo") == []
    assert trackers.change("k1", put(item("a"))) == "a"


def test_versions_stay(reopen: Reopen) -> None:
    """Putting a thing again is its next version; dropping it takes all of them."""
    trackers = reopen()
    for number in range(1, 4):
        trackers.change(f"k{number}", put(item("a", title=str(number))))
    values: list[Values] = [one.values for one in trackers.versions("s", "todo", "a")]
    assert values == [{"title": "1"}, {"title": "2"}, {"title": "3"}]
    assert [one.version for one in trackers.versions("s", "todo", "a")] == [1, 2, 3]
    assert trackers.all("s", "todo")[0].version == 3

    def drop(book: TrackerChange) -> str:
        assert book.get("s", "todo", "a") is not None
        book.drop("s", "todo", "a")
        assert book.all("s", "todo") == []
        return "gone"

    trackers.change("k4", drop)
    assert trackers.get("s", "todo", "a") is None
    assert trackers.versions("s", "todo", "a") == []
    trackers.change("k5", put(item("a")))
    assert trackers.all("s", "todo")[0].version == 1


def test_another_process_sees_it(reopen: Reopen) -> None:
    """Nothing is kept in the process alone; receipts neither."""
    first = reopen()
    first.change("k1", put(item("a")))
    if isinstance(first, MemoryTrackers):
        pytest.skip("memory is that of one process")
    second = reopen()
    assert [one.id for one in second.all("s", "todo")] == ["a"]
    assert second.change("k1", put(item("b"))) == "a"


def test_many_are_put_as_one_by_one(reopen: Reopen) -> None:
    """In their order, the same thing twice as two versions, also where some are known already."""
    trackers = reopen()
    trackers.change("k1", put(item("i3", title="before")))
    many = [item(f"i{n}", title=str(n)) for n in range(30)] + [item("i5", title="again")]

    def work(book: TrackerChange) -> str:
        book.put_all(many)
        return ""

    trackers.change("k2", work)
    found = {one.id: one for one in trackers.all("s", "todo")}
    assert set(found) == {f"i{n}" for n in range(30)}
    assert {one.id for one in found.values() if one.version == 2} == {"i3", "i5"}
    texts = [one.text("title") for one in trackers.versions("s", "todo", "i3")]
    assert texts == ["before", "3"]
    assert [one.text("title") for one in trackers.versions("s", "todo", "i5")] == ["5", "again"]


def test_who_has_a_text(reopen: Reopen) -> None:
    """Of every scope and version, with their time; what has none under that name is not among
    them.
    """
    trackers = reopen()
    trackers.change("k1", put(item("a", title="1"), item("b", scope="t", title="2"), item("c")))
    trackers.change("k2", put(item("a", title="3")))
    found = sorted(trackers.having("todo", "title"))
    assert found == [("s", "a", 5, "1"), ("s", "a", 5, "3"), ("t", "b", 5, "2")]
    assert trackers.having("artifact", "title") == []
    assert trackers.having("todo", "name") == []


def test_a_change_aside(reopen: Reopen) -> None:
    """It is made once, and what goes wrong in it is raised."""
    trackers = reopen()

    def broken(_: TrackerChange) -> str:
        raise ZeroDivisionError

    async def twice() -> list[str]:
        with pytest.raises(ZeroDivisionError):
            await trackers.change_aside("k0", broken)
        first = await trackers.change_aside("k1", put(item("a")))
        return [first, await trackers.change_aside("k1", put(item("b")))]

    assert asyncio.run(twice()) == ["a", "a"]
    assert [one.id for one in trackers.all("s", "todo")] == ["a"]
