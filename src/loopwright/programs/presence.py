"""Whether the owner of a run lives, also where the process table does not show it.

A container, or the wall around an agent, has process numbers of its own: there the owner of a run
is a number that means nothing here. So whoever owns runs holds the lock of a file in the data
directory for as long as it lives; the system lets go of it, however the process ends. Where the
numbers are the same and can be seen, the process table is asked: that is quicker and needs no file.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loopwright.ports import Owner
from loopwright.programs.marks import ProcessMark, boot_id, is_alive, this_process
from loopwright.programs.supervise import HAS_TABLE

LOOKS = 3  # at a lock; at each of them another may be looking, too
_LOOK = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # whatever may lie there: nothing is waited for
_NUMBERS = Path("/proc/self/ns/pid")


def numbers() -> str:
    """Names the space in which process numbers mean what they mean here; empty where it has no
    name.
    """
    with suppress(OSError):
        return _NUMBERS.readlink().name.strip("pid:[]")
    return ""


def owner_mark(token: str) -> Owner:
    """This process as an owner."""
    mark = this_process()
    return Owner(
        pid=mark.pid, start=mark.start_ticks, boot=f"{mark.boot_id}/{numbers()}", token=token
    )


class Presence:
    """The owners of one data directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def held(self, token: str) -> Iterator[None]:
        """The owner with this token lives. Several processes may hold it, one after another. On a
        disk that takes no more files it is seen by its number alone.
        """
        handle = None
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._forget_dead(but=token)
            handle = self._locked(self._folder / token)
        try:
            yield
        finally:
            if handle is not None:
                self._forget(handle, self._folder / token)

    def alive(self, owner: Owner) -> bool:
        """Whether the process that owns a run is still the one that took it."""
        boot, _, space = owner.boot.partition("/")
        if boot != boot_id():
            return False
        if not space or (space == numbers() and owner.start and HAS_TABLE):
            return is_alive(ProcessMark(pid=owner.pid, start_ticks=owner.start, boot_id=boot))
        return self._is_held(owner.token)

    def _is_held(self, token: str) -> bool:
        if not token.isalnum():
            return False
        try:
            handle = os.open(self._folder / token, _LOOK)
        except OSError:
            return False
        try:
            return all(_is_shared(handle) for _ in range(LOOKS))
        finally:
            os.close(handle)

    def _locked(self, file: Path) -> int:
        """The lock of the file that has this name, and not of one that was just taken away."""
        while True:
            handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(handle, fcntl.LOCK_SH)
            if _has_name(handle, file):
                return handle
            os.close(handle)

    def _forget(self, handle: int, file: Path) -> None:
        """Let go; the last one takes the file along, and none that was made in its place since."""
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _has_name(handle, file):
                file.unlink()
        os.close(handle)

    def _forget_dead(self, *, but: str) -> None:
        """Take away what processes left that were killed."""
        for file in self._folder.iterdir():
            if file.name == but:
                continue
            with suppress(OSError):
                handle = os.open(file, _LOOK)
                self._forget(handle, file)


def _has_name(handle: int, file: Path) -> bool:
    """Whether this is still the file that has the name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), os.stat(file))
    return False


def _is_shared(handle: int) -> bool:
    """Whether another holds a file as owners do. Others who look have it for themselves, for a
    moment; so does whoever takes it away.
    """
    for how in (fcntl.LOCK_EX, fcntl.LOCK_SH):
        try:
            fcntl.flock(handle, how | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        fcntl.flock(handle, fcntl.LOCK_UN)
        return how == fcntl.LOCK_SH
    return False
