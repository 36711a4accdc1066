"""Disconnected clients: what is ended, when, and their notification; with an injected clock."""

from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwright.errors import StorageError
from loopwright.operations.loops.loop_disconnects import (
    GRACE_MS,
    DisconnectSettings,
    DisconnectTimers,
    departures,
)
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log
from tests.engine.world import Process, World, quiet, run
from tests.operations.test_service import at_gate


@pytest.fixture
def records(tmp_path: Path) -> Iterator[SqliteLog]:
    """Where records are kept."""
    opened = open_sqlite_log(tmp_path / "log.db", alive=lambda _: True, durability="normal")
    yield opened
    opened.close()


def nobody(_: str) -> bool:
    return False


class Scene:
    """A process with loops of people who come and go."""

    def __init__(self, records: SqliteLog, **rules: Any) -> None:
        self.records = records
        self.process: Process = World().process()
        self.leaving = DisconnectTimers(self.process.service, records, DisconnectSettings(**rules))

    async def loop(self, owner: str, parting: Any = "teardown") -> str:
        """A loop at a review, which is its starter's."""
        name, _ = await at_gate(self.process)
        beside = self.leaving.beside(owner, name="fixer", parting=parting, agent_id=f"of-{owner}")
        self.records.change([(record, None) for record in beside(name)])
        return name

    async def later(self, ms: int, present: Callable[[str], bool] = nobody) -> list[str]:
        self.process.clock.advance(ms)
        torn = await self.leaving.tear_down(present)
        await quiet()
        return torn

    def status(self, name: str) -> tuple[str, str]:
        head = self.process.log.row(name).headline
        return head.status, head.reason


def play(body: Coroutine[Any, Any, None]) -> None:
    run(body)


@pytest.mark.item("rondoflow-47")
def test_after_the_grace_time_a_loop_is_ended(records: SqliteLog) -> None:
    """Its process is stopped, its review closed, and its starter told when they come back, once."""

    async def body() -> None:
        scene = Scene(records)
        name = await scene.loop("ann")
        assert scene.leaving.left("ann") is True
        assert await scene.later(GRACE_MS - 1) == []
        assert scene.status(name)[0] == "waiting"
        assert await scene.later(1) == [name]
        assert scene.status(name) == ("cancelled", "torn_down")
        assert scene.process.log.gates(name) == []
        (told,) = scene.leaving.came_back("ann")
        assert (told.run, told.agent_id, told.name) == (name, "of-ann", "fixer")
        assert scene.leaving.came_back("ann") == []
        (row,) = records.audited(subject=name)
        assert (row.action, row.detail) == ("run.torn-down", "ann")

    play(body())


@pytest.mark.item("rondoflow-48")
def test_another_tab_keeps_a_loop(records: SqliteLog) -> None:
    """Whoever is still there when the time is over keeps everything."""

    async def body() -> None:
        scene = Scene(records)
        name = await scene.loop("ann")
        scene.leaving.left("ann")
        assert await scene.later(GRACE_MS * 2, lambda who: who == "ann") == []
        assert scene.status(name)[0] == "waiting"

    play(body())


@pytest.mark.item("rondoflow-49")
def test_coming_back_in_time_keeps_a_loop(records: SqliteLog) -> None:
    """The time stops when they come back, and begins anew when they leave again."""

    async def body() -> None:
        scene = Scene(records)
        name = await scene.loop("ann")
        scene.leaving.left("ann")
        assert await scene.later(GRACE_MS - 1) == []
        assert scene.leaving.came_back("ann") == []
        assert await scene.later(GRACE_MS * 10) == []
        scene.leaving.left("ann")
        assert await scene.later(GRACE_MS - 1) == []
        assert await scene.later(1) == [name]

    play(body())


@pytest.mark.item("rondoflow-50")
@pytest.mark.parametrize(
    ("enabled", "parting", "ends"),
    [
        (True, None, False),
        (True, "keep", False),
        (True, "teardown", True),
        (False, None, False),
        (False, "teardown", False),
    ],
)
def test_who_decides(records: SqliteLog, enabled: bool, parting: Any, ends: bool) -> None:
    """A run is ended only if it was started so; switched off, none is ended."""

    async def body() -> None:
        scene = Scene(records, enabled=enabled)
        name = await scene.loop("ann", parting)
        assert scene.leaving.left("ann") is ends
        assert await scene.later(GRACE_MS) == ([name] if ends else [])

    play(body())


@pytest.mark.item("rondoflow-52")
def test_another_person_leaves(records: SqliteLog) -> None:
    """Only the loops of whoever left are ended."""

    async def body() -> None:
        scene = Scene(records)
        name, other = await scene.loop("ann"), await scene.loop("bob")
        scene.leaving.left("bob")
        assert await scene.later(GRACE_MS) == [other]
        assert scene.status(name)[0] == "waiting"
        assert scene.leaving.held("ann") == [name]
        assert scene.leaving.held("bob") == []

    play(body())


@pytest.mark.item("rondoflow-54")
def test_one_that_cannot_be_stopped(records: SqliteLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are ended all the same, and it is tried again."""

    async def body() -> None:
        scene = Scene(records)
        names = [await scene.loop("ann") for _ in range(3)]
        scene.leaving.left("ann")
        stop = scene.process.service.stop

        async def broken(one: str, **how: Any) -> bool:
            if one == names[1]:
                raise StorageError("the disk is full", code="full")
            return await stop(one, **how)

        monkeypatch.setattr(scene.process.service, "stop", broken)
        assert sorted(await scene.later(GRACE_MS)) == sorted([names[0], names[2]])
        monkeypatch.undo()
        assert await scene.later(0) == [names[1]]

    play(body())


def test_a_server_that_ended_meanwhile(records: SqliteLog) -> None:
    """What was due is due after a restart, too; a loop that ended by itself is nothing to tell."""

    async def body() -> None:
        scene = Scene(records)
        name, ended = await scene.loop("ann"), await scene.loop("ann")
        scene.leaving.left("ann")
        await scene.process.service.stop(ended)
        await quiet()
        scene.leaving = DisconnectTimers(scene.process.service, records, DisconnectSettings())
        assert await scene.later(GRACE_MS) == [name]
        assert [one.run for one in scene.leaving.came_back("ann")] == [name]

    play(body())


def test_more_time_when_the_server_leaves(records: SqliteLog) -> None:
    """Whoever did not leave by themselves has some time to come back in any case."""

    async def body() -> None:
        scene = Scene(records, grace_ms=0)
        name = await scene.loop("ann")
        scene.leaving.left("ann", at_least_ms=GRACE_MS)
        assert await scene.later(GRACE_MS - 1) == []
        assert await scene.later(1) == [name]

    play(body())


@pytest.mark.item("rondoflow-50", "rondoflow-51")
@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, (True, GRACE_MS)),
        ({"RONDOFLOW_TEARDOWN_ON_DISCONNECT": "0"}, (False, GRACE_MS)),
        ({"RONDOFLOW_TEARDOWN_ON_DISCONNECT": "1"}, (True, GRACE_MS)),
        ({"RONDOFLOW_TEARDOWN_ON_DISCONNECT": "no"}, (True, GRACE_MS)),
        ({"LOOPWRIGHT_TEARDOWN_ON_DISCONNECT": "0"}, (False, GRACE_MS)),
        (
            {"LOOPWRIGHT_TEARDOWN_ON_DISCONNECT": "1", "RONDOFLOW_TEARDOWN_ON_DISCONNECT": "0"},
            (True, GRACE_MS),
        ),
        ({"RONDOFLOW_TEARDOWN_GRACE_MS": "abc"}, (True, GRACE_MS)),
        ({"RONDOFLOW_TEARDOWN_GRACE_MS": "-5"}, (True, GRACE_MS)),
        ({"RONDOFLOW_TEARDOWN_GRACE_MS": "1.5"}, (True, GRACE_MS)),
        ({"RONDOFLOW_TEARDOWN_GRACE_MS": "0"}, (True, 0)),
        ({"LOOPWRIGHT_TEARDOWN_GRACE_MS": "250"}, (True, 250)),
        ({"LOOPWRIGHT_TEARDOWN_GRACE_MS": "9" * 30}, (True, 7 * 86_400_000)),
    ],
    ids=str,
)
def test_variables(env: dict[str, str], expected: tuple[bool, int]) -> None:
    """Both prefixes count, ours first; a time that is none is a minute, and 0 is at once."""
    found = departures(env)
    assert (found.enabled, found.grace_ms) == expected
