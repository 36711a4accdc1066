"""Deletion of runs, over every store: complete for the run, without effect on others."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwright.errors import Conflict, NotFound
from loopwright.kernel.events import AnyEvent, EffectDone
from loopwright.model.plan import content_hash
from loopwright.model.record import Blob
from loopwright.ports import Append, AuditRow, RunStatus
from loopwright.stores.sqlite.log import SqliteLog
from tests.contracts.event_log_suite import STORES, Log, World, event, headline, worlds

SHARED, OWN = b"said in both " * 100, b"said in one " * 100


@pytest.fixture(params=list(STORES))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    yield from worlds(request.param, tmp_path)


@pytest.fixture
def log(world: World) -> Log:
    return world.open()


def said(content: bytes) -> AnyEvent:
    text = Blob(blob=content_hash(content), size=len(content))
    return EffectDone(at=1, path="main", effect="main/agent#1", output=text)


def talked(
    world: World, log: Log, run: str, *contents: bytes, status: RunStatus = "completed"
) -> None:
    """A run that says these texts and has then come to this status."""
    events = [event("first"), *map(said, contents)]
    blobs = {content_hash(one): one for one in contents}
    world.append(
        log, Append(run=run, expected=0, events=events, blobs=blobs, headline=headline(status))
    )


def audited(log: Log) -> list[AuditRow]:
    return log.audited() if isinstance(log, SqliteLog) else log._store().audit


def names(log: Log) -> list[str]:
    return sorted(row.run for row in log.rows())


@pytest.mark.item("inv-27")
def test_what_is_forgotten_is_gone_whole(world: World, log: Log) -> None:
    """Events, row and the content that only it named go; what others name stays, and is whole."""
    talked(world, log, "run_a", SHARED, OWN)
    talked(world, log, "run_b", SHARED)
    talked(world, log, "run_c", status="running")
    before = {run: log.read(run) for run in ("run_b", "run_c")}
    assert log.forget(["run_a"]) == 1
    assert names(log) == ["run_b", "run_c"]
    for ask in (log.row, log.read, log.version):
        with pytest.raises(NotFound):
            ask("run_a")
    with pytest.raises(NotFound):
        log.blob(content_hash(OWN))
    assert log.blob(content_hash(SHARED)) == SHARED
    for run, events in before.items():
        assert log.read(run) == events
        assert [one.seq for one in events] == list(range(1, len(events) + 1))
        assert log.verify(run, content_hash) == []
    world.append(log, Append(run="run_c", expected=1, events=[event("second")]))
    assert log.version("run_c") == 2
    assert log.verify("run_c") == []


@pytest.mark.parametrize(
    ("runs", "refusal"),
    [
        pytest.param(["run_done", "run_none"], NotFound, id="not there"),
        pytest.param(["run_done", "run_open"], Conflict, id="still open"),
    ],
)
def test_all_or_none(world: World, log: Log, runs: list[str], refusal: type[Exception]) -> None:
    """One that cannot be forgotten keeps the others too."""
    talked(world, log, "run_done", OWN)
    talked(world, log, "run_open", status="waiting")
    with pytest.raises(refusal):
        log.forget(runs)
    assert names(log) == ["run_done", "run_open"]
    assert log.blob(content_hash(OWN)) == OWN


@pytest.mark.parametrize("status", ["completed", "running"])
def test_who_wanted_it_is_written_with_it(world: World, log: Log, status: RunStatus) -> None:
    """The audit has it if the run is gone, and not if it is not."""
    talked(world, log, "run_a", status=status)
    row = AuditRow(at=1, who="ann", action="run.forgotten", subject="run_a")
    with contextlib.suppress(Conflict):
        log.forget(["run_a"], [row])
    gone = status == "completed"
    assert names(log) == ([] if gone else ["run_a"])
    told = [one.who for one in audited(log) if one.action == "run.forgotten"]
    assert told == (["ann"] if gone else [])


def test_the_same_id_may_come_again(world: World, log: Log) -> None:
    """A forgotten run leaves nothing behind that would be in the way of another."""
    talked(world, log, "run_a", OWN)
    log.forget(["run_a"])
    talked(world, log, "run_a", SHARED)
    assert log.version("run_a") == 2
    assert log.verify("run_a", content_hash) == []


def test_others_miss_nothing(world: World, log: Log) -> None:
    """Another process that waits for news sees what is written after the newest was forgotten."""
    talked(world, log, "run_a", status="running")
    other = world.open()
    talked(world, log, "run_z", OWN)
    _, cursor = other.nudges(0)
    log.forget(["run_z"])
    world.append(log, Append(run="run_a", expected=1, events=[event("news")]))
    news, cursor = other.nudges(cursor)
    assert news == ["run_a"]
    log.forget([])
    world.append(log, Append(run="run_a", expected=2, events=[event("more")]))
    assert other.nudges(cursor)[0] == ["run_a"]
    assert other.verify("run_a") == []
