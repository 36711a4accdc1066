"""What the contract tests of `EventLog` stand on: the stores, and a world that drives one.

A new store joins the suite by one more line in `STORES`. `World.open` opens the log; called again,
it opens the same data as another process would.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from loopwright.kernel.events import AnyEvent, RunPaused
from loopwright.ports import (
    Append,
    ClosedGate,
    Headline,
    Liveness,
    OpenGate,
    Owner,
    RunStatus,
)
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log
from tests.support.memory_log import MemoryLog, MemoryStore

Log: TypeAlias = MemoryLog | SqliteLog
Opener: TypeAlias = Callable[[Liveness], Log]


def memory(_folder: Path) -> Opener:
    """Logs over one store in memory."""
    store = MemoryStore()
    return lambda alive: MemoryLog(alive=alive, store=store)


def sqlite(folder: Path) -> Opener:
    """Logs over one file. Nothing here depends on a sync, so none is waited for."""
    return lambda alive: open_sqlite_log(folder / "log.db", alive=alive, durability="normal")


STORES = {"memory": memory, "sqlite": sqlite}


def event(text: str = "", at: int = 1) -> RunPaused:
    """Any event; `text` tells one from another."""
    return RunPaused(at=at, by=text)


def events(count: int, start: int = 1) -> list[AnyEvent]:
    """Events that carry the numbers they should get."""
    return [event(str(number)) for number in range(start, start + count)]


def headline(status: RunStatus = "running", **changes: Any) -> Headline:
    return Headline(**{"name": "a run", "status": status, "started_at": 1, **changes})


def owner(token: str, pid: int = 10) -> Owner:
    return Owner(pid=pid, start=1, boot="boot", token=token)


def gate(name: str, run: str = "run_a", opened_at: int = 1) -> OpenGate:
    return OpenGate(
        gate=name, run=run, path="main.0", digest="d", message="go on?", opened_at=opened_at
    )


def ended(name: str, run: str = "run_a", decision: str = "approve") -> ClosedGate:
    return ClosedGate(name, run, 5, decision, "ann")


class World:
    """An event loop, the logs opened in it, and who is dead."""

    def __init__(self, opener: Opener) -> None:
        self.dead: set[str] = set()
        self.loop = asyncio.new_event_loop()
        self._opener = opener
        self._logs: list[Log] = []

    def open(self) -> Log:
        """The log, each time as another process would open it."""
        log = self._opener(lambda owner: owner.token not in self.dead)
        self._logs.append(log)
        return log

    def append(self, log: Log, append: Append) -> None:
        """Append and wait."""
        self.loop.run_until_complete(log.append(append))

    def start(self, log: Log, run: str = "run_a", count: int = 1, **changes: Any) -> None:
        """Create a run with that many events; `changes` go to its headline."""
        self.append(
            log, Append(run=run, expected=0, events=events(count), headline=headline(**changes))
        )

    def submit(self, log: Log, appends: Sequence[Append]) -> list[Exception | None]:
        """Submit all without waiting in between; the answers, in the order they came. No other
        thread runs in between, so that all are in one commit.
        """
        answers: list[Exception | None] = []

        async def all_told() -> None:
            told = asyncio.Event()

            def done(error: Exception | None) -> None:
                answers.append(error)
                if len(answers) == len(appends):
                    told.set()

            usual = sys.getswitchinterval()
            sys.setswitchinterval(60)
            try:
                for append in appends:
                    log.submit(append, done)
            finally:
                sys.setswitchinterval(usual)
            await told.wait()

        self.loop.run_until_complete(all_told())
        return answers

    def barrier(self, log: Log) -> None:
        """Return when everything that was handed to the log before is done."""
        log.release([], owner("nobody"))

    def close(self) -> None:
        """Close what is open, and see that no callback is left over."""
        for log in self._logs:
            log.close()
        with suppress(RuntimeError):
            self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


def worlds(store: str, folder: Path) -> Iterator[World]:
    """For a fixture: one world over one store."""
    world = World(STORES[store](folder))
    yield world
    world.close()
