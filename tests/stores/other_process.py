"""What another process does to a log, started by the tests of this folder as a program.

    other_process.py WHAT DATABASE [ARGUMENT...]

It says what it did on its standard output, one line for each thing, at once.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

from loopwright.errors import VersionConflict
from loopwright.kernel.events import RunPaused
from loopwright.ports import Append, ClosedGate, Headline, OpenGate, Owner
from loopwright.stores.sqlite.connection import MIGRATIONS, DatabaseOptions, Migration
from loopwright.stores.sqlite.log import SqliteLog, open_sqlite_log

NEXT_STEP = Migration(
    MIGRATIONS[-1].version + 1,
    (
        "CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT)",
        "INSERT INTO note SELECT id, title FROM run",
        "ALTER TABLE run ADD COLUMN color TEXT NOT NULL DEFAULT 'red'",
    ),
)
"""A migration as a later version could bring it."""

NEXT = DatabaseOptions(steps=(*MIGRATIONS, NEXT_STEP))


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def event(text: str) -> RunPaused:
    return RunPaused(at=1, by=text)


def kill_at(point: str, hit: int) -> Callable[[str], None]:
    """A killpoint that ends this process, without goodbye, when `point` is met the n-th time."""
    met = 0

    def killpoint(name: str) -> None:
        nonlocal met
        if name == point:
            met += 1
            if met == hit:
                os.kill(os.getpid(), signal.SIGKILL)

    return killpoint


def everything_lives(_owner: Owner) -> bool:
    return True


async def append_own(log: SqliteLog, run: str, count: int, wait_at: int = 0) -> None:
    """A run of its own, one event after the other; says each number once it is durable, and after
    one of them waits to be told to go on.
    """
    await log.append(
        Append(
            run=run,
            expected=0,
            events=[event("1")],
            headline=Headline(name=run, status="running"),
            gates_opened=[OpenGate(gate=run, run=run, path="", digest="", message="", opened_at=1)],
        )
    )
    say("1")
    for at in range(1, count):
        if at == wait_at:
            sys.stdin.readline()
        last = at + 1 == count
        await log.append(
            Append(
                run=run,
                expected=at,
                events=[event(str(at + 1))],
                blobs={f"{run}-{at + 1}": b"x" * 2000},
                headline=Headline(name=run, status="completed") if last else None,
                gates_closed=[ClosedGate(run, run, 0)] if last else (),
            )
        )
        say(str(at + 1))


async def append_shared(log: SqliteLog, run: str, mark: str, count: int) -> None:
    """Events into a run that others write to as well."""
    done = 0
    while done < count:
        version = log.version(run)
        try:
            await log.append(Append(run=run, expected=version, events=[event(f"{mark}:{done}")]))
        except VersionConflict:
            continue
        done += 1


async def write(path: Path, name: str, own: str, shared: str, wait_at: str = "0") -> None:
    """Append to a run of its own, and to the shared one if there is one."""
    log = open_sqlite_log(path, alive=everything_lives)
    try:
        await append_own(log, f"run_{name}", int(own), int(wait_at))
        if int(shared):
            await append_shared(log, "run_shared", name, int(shared))
    finally:
        log.close()


async def die(path: Path, point: str, hit: str) -> None:
    """Write, claim and release until the killpoint is met."""
    log = open_sqlite_log(path, alive=everything_lives, killpoint=kill_at(point, int(hit)))
    await append_own(log, "run_dying", 6)
    owner = Owner(pid=os.getpid(), start=1, boot="boot", token="dying")
    log.claim(["run_dying"], owner)
    say("claimed")
    log.release(["run_dying"], owner)
    say("released")
    log.close()
    say("survived")


async def forget(path: Path, point: str, hit: str) -> None:
    """Write a run to its end, then forget it until the killpoint is met."""
    log = open_sqlite_log(path, alive=everything_lives, killpoint=kill_at(point, int(hit)))
    await append_own(log, "run_dying", 6)
    log.forget(["run_dying"])
    log.close()
    say("survived")


async def own(path: Path, run: str) -> None:
    """Claim a run, say so, and stay until killed."""
    log = open_sqlite_log(path, alive=everything_lives)
    log.claim([run], Owner(pid=os.getpid(), start=7, boot="boot", token="theirs"))
    await log.append(Append(run=run, expected=1, events=[event("mine")], token="theirs"))
    say("claimed")
    sys.stdin.readline()


async def migrate(path: Path, point: str, hit: str) -> None:
    """Open with the next version's steps; die at the killpoint if it is met."""
    log = open_sqlite_log(
        path, alive=everything_lives, killpoint=kill_at(point, int(hit)), options=NEXT
    )
    log.close()
    say("migrated")


async def read_as_nobody(path: Path) -> None:
    """Read with no right to write anything there."""
    if os.geteuid() == 0:
        os.setegid(65534)
        os.seteuid(65534)
    log = open_sqlite_log(path, alive=everything_lives)
    try:
        say(f"{log.rows()[0].run} {log.version('run_a')} {log.changed()}")
        try:
            await log.append(Append(run="run_a", expected=1, events=[event("2")]))
        except Exception as error:
            say(f"{type(error).__name__} {getattr(error, 'code', '')} {error}")
    finally:
        log.close()


WHAT: dict[str, Callable[..., Coroutine[None, None, None]]] = {
    "write": write,
    "die": die,
    "forget": forget,
    "own": own,
    "migrate": migrate,
    "read_as_nobody": read_as_nobody,
}

if __name__ == "__main__":
    asyncio.run(WHAT[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:]))
