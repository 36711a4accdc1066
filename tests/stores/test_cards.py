"""Small records and audit rows: versions, lists, one transaction for a change and its audit."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from loopwright.errors import StorageError, VersionConflict
from loopwright.ports import Append, AuditRow, StoredRecord
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log
from tests.contracts.event_log_suite import event, headline


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    """A log with its cards."""
    opened = open_sqlite_log(tmp_path / "log.db", alive=lambda _: True, durability="normal")
    yield opened
    opened.close()


def record(key: str, body: bytes = b"{}", owner: str = "", due: int | None = None) -> StoredRecord:
    return StoredRecord(kind="token", key=key, body=body, owner=owner, due=due)


def row(action: str, subject: str = "s") -> AuditRow:
    return AuditRow(at=1, who="ann", action=action, subject=subject)


def test_a_card_counts_its_changes(log: SqliteLog) -> None:
    """Each change makes a new version, and what was expected is compared with it."""
    log.change([(record("a", b"1"), 0)])
    log.change([(record("a", b"2"), 1)])
    found = log.record("token", "a")
    assert found is not None
    assert (found.body, found.version) == (b"2", 2)
    assert log.record("token", "b") is None
    assert log.record("other", "a") is None
    log.change(drops=[("token", "a")])
    assert log.record("token", "a") is None


@pytest.mark.parametrize("expected", [0, 2])
def test_a_change_is_whole_or_not_at_all(log: SqliteLog, expected: int) -> None:
    """When one card is at another version, no card is written and nothing is on record."""
    log.change([(record("a"), 0)])
    with pytest.raises(VersionConflict):
        log.change([(record("b"), 0), (record("a"), expected)], audit=[row("x")])
    assert log.record("token", "b") is None
    assert log.audited() == []


def test_cards_are_listed(log: SqliteLog) -> None:
    """Lists are by kind, by owner, by what is due, and go on after a key."""
    made = [
        record("a", owner="ann", due=30),
        record("b", owner="bob", due=10),
        record("c", owner="ann"),
    ]
    log.change([(one, None) for one in made])
    log.change([(StoredRecord(kind="other", key="z", body=b""), None)])

    def keys(**wanted: object) -> str:
        return "".join(one.key for one in log.records("token", **wanted))  # type: ignore[arg-type]

    assert keys() == "abc"
    assert keys(owner="ann") == "ac"
    assert keys(due_by=30) == "ba"
    assert keys(due_by=29) == "b"
    assert keys(after="a") == "bc"
    assert keys(limit=1) == "a"


def test_cards_outlive_the_process(log: SqliteLog, tmp_path: Path) -> None:
    """What was written is there for the next who opens the log."""
    log.change([(record("a", b"kept"), 0)], audit=[row("x")])
    other = open_sqlite_log(tmp_path / "log.db", alive=lambda _: True)
    try:
        found = other.record("token", "a")
        assert found is not None
        assert found.body == b"kept"
        assert [one.action for one in other.audited()] == ["x"]
    finally:
        other.close()


@pytest.mark.parametrize(
    "bad",
    [
        StoredRecord(kind="", key="a", body=b""),
        StoredRecord(kind="k", key="a\0", body=b""),
        StoredRecord(kind="k", key="a", body=b"", owner="\ud800"),
        StoredRecord(kind="k", key="a", body=b"", due=2**70),
    ],
)
def test_cards_that_cannot_be_kept(log: SqliteLog, bad: StoredRecord) -> None:
    """What a database could not hold is refused before anything is begun."""
    with pytest.raises(StorageError):
        log.change([(bad, None)])


def test_an_append_and_its_records_are_one(log: SqliteLog) -> None:
    """A record that goes with an event is there exactly when the event is; the newest counts."""

    async def body() -> None:
        first = Append(
            run="run_a",
            expected=0,
            events=[event()],
            headline=headline(),
            records=[record("a", b"1")],
        )
        await log.append(first)
        with pytest.raises(VersionConflict):
            await log.append(replace_cards(first, record("a", b"2"), record("b")))
        with pytest.raises(StorageError):
            await log.append(
                Append(run="run_a", expected=1, events=[event()], records=[record("")])
            )

    asyncio.run(body())
    assert [(one.key, one.body, one.version) for one in log.records("token")] == [("a", b"1", 1)]
    assert log.version("run_a") == 1


def replace_cards(append: Append, *records: StoredRecord) -> Append:
    return msgspec.structs.replace(append, records=records)


@pytest.mark.item("inv-6", "inv-24")
def test_an_append_and_its_audit_are_one(log: SqliteLog) -> None:
    """The row of who did it is there exactly when the event is."""

    async def body() -> None:
        first = Append(
            run="run_a", expected=0, events=[event()], headline=headline(), audit=[row("started")]
        )
        await log.append(first)
        with pytest.raises(VersionConflict):
            await log.append(first)
        with pytest.raises(StorageError):
            await log.append(
                Append(run="run_a", expected=1, events=[event()], audit=[row("\ud800")])
            )

    asyncio.run(body())
    assert [one.action for one in log.audited()] == ["started"]
    assert log.version("run_a") == 1


def test_audit_rows_newest_first(log: SqliteLog) -> None:
    """Rows are numbered, come newest first, by subject, and page by page."""
    log.change(audit=[row("a", "one"), row("b", "two"), row("c", "one")])
    rows = log.audited()
    assert [(one.id, one.action) for one in rows] == [(3, "c"), (2, "b"), (1, "a")]
    assert [one.action for one in log.audited(subject="one")] == ["c", "a"]
    assert [one.action for one in log.audited(before=3, limit=1)] == ["b"]
