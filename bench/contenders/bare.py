"""The physical reference: what SQLite itself costs when every iteration is one row of about 20
bytes.

``--variant single``: one commit per pass. ``--variant group``: callers hand their row to one
writer thread, which puts everything that waits into one commit.
"""

from __future__ import annotations

import argparse
import asyncio
import queue
import sqlite3
import threading
import time
from pathlib import Path

import protocol

INSERT = "INSERT INTO log (run, seq, fact) VALUES (?, ?, ?)"
Row = tuple[int, int, str]


def connect(database: Path) -> sqlite3.Connection:
    """A connection with the settings every contender has to use."""
    connection = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS log (run INTEGER NOT NULL, seq INTEGER NOT NULL,"
        " fact TEXT NOT NULL, PRIMARY KEY (run, seq)) WITHOUT ROWID"
    )
    return connection


def commit(connection: sqlite3.Connection, rows: list[Row]) -> None:
    """All rows in one transaction: one fsync."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(INSERT, rows)
    connection.execute("COMMIT")


class Writer:
    """One thread that commits everything that waits at once."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.commits = 0
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._waiting: queue.SimpleQueue[tuple[Row, asyncio.Future[None]] | None]
        self._waiting = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    async def append(self, row: Row) -> None:
        """Return when the row is durable."""
        done = self._loop.create_future()
        self._waiting.put((row, done))
        await done

    def close(self) -> None:
        """End the thread after what waits."""
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first]
            while not self._waiting.empty():
                more = self._waiting.get()
                if more is None:
                    self._waiting.put(None)
                    break
                batch.append(more)
            commit(self._connection, [row for row, _ in batch])
            self.commits += 1
            self._loop.call_soon_threadsafe(_wake, [done for _, done in batch])


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        future.set_result(None)


def single(connection: sqlite3.Connection, loops: int, passes: int) -> int:
    """Round robin over all loops, one commit per pass."""
    for seq in range(passes):
        for run in range(loops):
            commit(connection, [(run, seq, protocol.RESULT)])
    return loops * passes


async def group(connection: sqlite3.Connection, loops: int, passes: int) -> int:
    """All loops at once as tasks, commits shared."""
    writer = Writer(connection)

    async def loop(run: int) -> None:
        for seq in range(passes):
            await writer.append((run, seq, protocol.RESULT))

    await asyncio.gather(*(loop(run) for run in range(loops)))
    writer.close()
    return writer.commits


def throughput(options: argparse.Namespace) -> None:
    """``sequential`` and ``concurrent``."""
    database = options.dir / "bare.db"
    connection = connect(database)
    commit(connection, [(-1, seq, protocol.RESULT) for seq in range(20)])
    before = protocol.stored_bytes(database)
    concurrent = options.workload == "concurrent"
    loops, passes = (options.n, options.passes) if concurrent else (1, options.n)
    with protocol.Meter() as meter:
        if options.variant == "group":
            commits = asyncio.run(group(connection, loops, passes))
        else:
            commits = single(connection, loops, passes)
    journal = connection.execute("PRAGMA journal_mode").fetchone()[0]
    synchronous = connection.execute("PRAGMA synchronous").fetchone()[0]
    connection.close()
    protocol.emit(
        options.workload,
        steps=loops * passes,
        meter=meter,
        recorded=protocol.count_rows(database, "SELECT count(*) FROM log WHERE run >= 0"),
        bytes=protocol.stored_bytes(database),
        bytes_before=before,
        fsyncs=commits,
        journal_mode=journal,
        synchronous=synchronous,
    )


def victim(options: argparse.Namespace) -> None:
    """Leave every loop in its next iteration and wait to be killed."""
    connection = connect(options.dir / "bare.db")
    for seq in range(protocol.PASSES_BEFORE_KILL):
        commit(connection, [(run, seq, protocol.RESULT) for run in range(options.n)])
    protocol.say("ready")
    time.sleep(protocol.RECOVERY_LIMIT_SECONDS)


def survivor(options: argparse.Namespace) -> None:
    """Read where every loop stood and make its next iteration durable."""
    connection = connect(options.dir / "bare.db")
    heads = connection.execute("SELECT run, max(seq) FROM log GROUP BY run").fetchall()
    rows = [(run, seq + 1, protocol.RESULT) for run, seq in heads]
    if options.variant == "group":
        commit(connection, rows)
    else:
        for row in rows:
            commit(connection, [row])
    protocol.say("resumed")


def main() -> None:
    options = protocol.arguments(
        ["sequential", "concurrent", "recovery"], variants=["single", "group"]
    )
    match options.workload:
        case "recovery":
            protocol.recovery(__file__, options, "--variant", options.variant)
        case "recovery-victim":
            victim(options)
        case "recovery-survivor":
            survivor(options)
        case _:
            throughput(options)


if __name__ == "__main__":
    main()
