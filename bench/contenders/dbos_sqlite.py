"""DBOS on SQLite: every loop a workflow, every iteration a step of it.

The database is put into WAL mode before DBOS opens it, and every connection of its pool gets
``synchronous=FULL``; everything else is as installed.
"""

from __future__ import annotations

import argparse
import sqlite3
import threading
import time
from pathlib import Path

import protocol
import sqlalchemy
from dbos import DBOS, DBOSConfig, SetWorkflowID

MORE_THAN_ENOUGH = 1_000_000
settings_seen: dict[str, str | int] = {}


class Hang:
    """Where the steps of ``recovery`` stop; off in the other workloads."""

    def __init__(self) -> None:
        self.allowed = MORE_THAN_ENOUGH
        self.loops = 0
        self._calls: dict[str, int] = {}
        self._hanging = 0
        self._lock = threading.Lock()
        self.all_hang = threading.Event()

    def visit(self, loop: str) -> None:
        """Count a call of a step and keep it for ever if the loop has used up its iterations."""
        with self._lock:
            self._calls[loop] = self._calls.get(loop, 0) + 1
            if self._calls[loop] <= self.allowed:
                return
            self._hanging += 1
            if self._hanging == self.loops:
                self.all_hang.set()
        time.sleep(protocol.RECOVERY_LIMIT_SECONDS)


hang = Hang()


@DBOS.step()
def work(loop: str) -> str:
    """One pass that does nothing."""
    if hang.loops:
        hang.visit(loop)
    return protocol.RESULT


@DBOS.workflow()
def run_loop(loop: str, passes: int) -> str:
    """One loop from start to end."""
    result = ""
    for _ in range(passes):
        result = work(loop)
    return result


@sqlalchemy.event.listens_for(sqlalchemy.Engine, "connect")
def full_sync(connection: sqlite3.Connection, _record: object) -> None:
    """The same durability as everyone else."""
    connection.execute("PRAGMA synchronous=FULL")
    for name in ("journal_mode", "synchronous"):
        settings_seen[name] = connection.execute(f"PRAGMA {name}").fetchone()[0]


def launch(database: Path) -> None:
    """Bring DBOS up on a database in WAL mode."""
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": f"sqlite:///{database}",
        "application_version": "bench",
        "executor_id": "local",
        "log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.launch()


def start_all(loops: int, passes: int) -> list:
    """Start every loop in the background."""
    handles = []
    for i in range(loops):
        with SetWorkflowID(f"loop-{i}"):
            handles.append(DBOS.start_workflow(run_loop, f"loop-{i}", passes))
    return handles


def commits_per_pass() -> float:
    """Counted by SQLite itself in a short run outside the timed part."""
    seen: list[str] = []

    def trace(connection: sqlite3.Connection, *_: object) -> None:
        connection.set_trace_callback(seen.append)

    sqlalchemy.event.listen(sqlalchemy.pool.Pool, "checkout", trace)
    run_loop("count-short", 10)
    short = seen.count("COMMIT")
    run_loop("count-long", 30)
    return (seen.count("COMMIT") - 2 * short) / 20


def throughput(options: argparse.Namespace) -> None:
    """``sequential`` and ``concurrent``."""
    database = options.dir / "dbos.db"
    launch(database)
    run_loop("warm-up", 20)
    before = protocol.stored_bytes(database)
    concurrent = options.workload == "concurrent"
    loops, passes = (options.n, options.passes) if concurrent else (1, options.n)
    with protocol.Meter() as meter:
        if concurrent:
            for handle in start_all(loops, passes):
                handle.get_result()
        else:
            with SetWorkflowID("loop-0"):
                run_loop("loop-0", passes)
    stored = protocol.stored_bytes(database)
    recorded = protocol.count_rows(
        database, "SELECT count(*) FROM operation_outputs WHERE workflow_uuid LIKE 'loop-%'"
    )
    protocol.emit(
        options.workload,
        steps=loops * passes,
        meter=meter,
        recorded=recorded,
        bytes=stored,
        bytes_before=before,
        fsyncs=round(commits_per_pass() * loops * passes),
        **settings_seen,
    )
    DBOS.destroy()


def play(options: argparse.Namespace) -> None:
    """The victim starts all loops; in the survivor DBOS itself goes on with all of them."""
    first = options.workload == "recovery-victim"
    hang.loops = options.n
    hang.allowed = protocol.PASSES_BEFORE_KILL if first else 1
    launch(options.dir / "dbos.db")
    if first:
        start_all(options.n, MORE_THAN_ENOUGH)
    hang.all_hang.wait()
    protocol.say("ready" if first else "resumed")
    time.sleep(protocol.RECOVERY_LIMIT_SECONDS)


def main() -> None:
    options = protocol.arguments(["sequential", "concurrent", "recovery"])
    match options.workload:
        case "recovery":
            protocol.recovery(__file__, options)
        case "recovery-victim" | "recovery-survivor":
            play(options)
        case _:
            throughput(options)


if __name__ == "__main__":
    main()
