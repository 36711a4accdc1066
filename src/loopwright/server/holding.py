"""One server for a home: the first holds a lock that dies with it, a second is told who that is."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from loopwright.app.home_line import RECORD, Held
from loopwright.app.places import refuse_remote, unusable
from loopwright.errors import Conflict

TRIES = 20
TRY_S = 0.02


@contextmanager
def holding(home: Path) -> Iterator[int]:
    """Be the one server of this home; the answer is the file that says so."""
    refuse_remote(home)
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(home / RECORD, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise unusable(home, error) from error
    try:
        _lock(home, handle)
        yield handle
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _lock(home: Path, handle: int) -> None:
    """Take the lock. A command that looks whether there is a server has it for a moment, too."""
    for left in reversed(range(TRIES)):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not left:
                raise _taken(home, handle) from error
            time.sleep(TRY_S)
        else:
            return


def announce(handle: int, held: Held) -> None:
    """Say where the server is."""
    os.ftruncate(handle, 0)
    os.pwrite(handle, msgspec.json.encode(held), 0)


def _taken(home: Path, handle: int) -> Conflict:
    try:
        held = msgspec.json.decode(os.pread(handle, 4_096, 0), type=Held)
        who = f"process {held.pid} at {held.url}"
    except msgspec.DecodeError:
        who = "another process that is just starting"
    return Conflict(
        f"{home} already has a server: {who}",
        code="already-served",
        hint="use that one, end it, or name another data directory with --data-dir",
    )
