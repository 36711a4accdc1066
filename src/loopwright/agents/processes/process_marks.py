"""Identify processes exactly: whether the owner of a run is alive, and what a killed driver left.

A pid alone is reused; a pid with start time and boot id is not. On systems other than Linux, or
where /proc shows other process numbers, the start time is unknown (0), and a mark is only a pid.

A container or a sandbox has its own process numbers, so the pid of an owner means nothing there. A
process that owns runs therefore holds the lock of a file in the data directory while it lives; the
system releases it however the process ends. If the numbers are the same and visible, the process
table is used instead: this is faster and needs no file.

`sweep` ends what a driver left behind when it was killed together with its supervisors. Normally
nothing is left: a supervisor notices the death of its driver and ends its whole tree. If the
supervisor was killed as well, the processes below it have lost their parents, but they still have
two traces: the driver's token and the supervisor's mark in their environment, and the supervisor's
session. A process that has cleared its environment *and* started its own session after both kills
is not found. Without /proc nothing is found.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from loopwright.agents.processes.supervise import (
    HAS_TABLE,
    KILL_SECONDS,
    SUPERVISOR_VARIABLE,
    ProcessEntry,
    read_entries,
    read_entry,
    send,
)
from loopwright.agents.program_files import SWEEP_VARIABLE
from loopwright.ports import Owner

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """One process of one boot of this machine."""

    pid: int
    start_ticks: int
    boot_id: str


def boot_id() -> str:
    """Names this boot of the machine; empty where the system has no such name."""
    with suppress(OSError):
        return _BOOT_ID.read_text(encoding="ascii").strip()
    return ""


def process_mark(pid: int) -> ProcessMark | None:
    """The mark of a process that exists, be it only as a dead one not yet collected."""
    entry = read_entry(pid)
    if entry is not None:
        return ProcessMark(pid, entry.start, boot_id())
    if not _is_signallable(pid):
        return None
    return ProcessMark(pid, 0, boot_id())


def this_process() -> ProcessMark:
    """The mark of the calling process."""
    mark = process_mark(os.getpid())
    assert mark is not None, "the calling process exists"
    return mark


def is_alive(mark: ProcessMark) -> bool:
    """Whether exactly this process still runs. One that only waits to be collected does not."""
    if mark.boot_id != boot_id():
        return False
    entry = read_entry(mark.pid)
    if entry is not None:
        return entry.start == mark.start_ticks and not entry.is_dead
    return mark.start_ticks == 0 and _is_signallable(mark.pid)


def _is_signallable(pid: int) -> bool:
    """What can be known without /proc."""
    if HAS_TABLE or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


LOOKS = 3  # at a lock; at each of them another may be looking, too
# whatever type of file it is, opening does not block
_LOOK = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_NUMBERS = Path("/proc/self/ns/pid")


def numbers() -> str:
    """Identifies the pid namespace of this process; empty if it has no name."""
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
        """The owner with this token is alive. Several processes may have it, one after another. On
        a full disk it is recognised by its number alone.
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
        """The lock of the file with this name, and not of one that was just deleted."""
        while True:
            handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(handle, fcntl.LOCK_SH)
            if _has_name(handle, file):
                return handle
            os.close(handle)

    def _forget(self, handle: int, file: Path) -> None:
        """Release it; the last one deletes the file, but not a new file of the same name."""
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _has_name(handle, file):
                file.unlink()
        os.close(handle)

    def _forget_dead(self, *, but: str) -> None:
        """Delete the files of killed processes."""
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
    """Whether another process holds a file as an owner. A process that checks, or that deletes the
    file, holds it for a moment itself.
    """
    for how in (fcntl.LOCK_EX, fcntl.LOCK_SH):
        try:
            fcntl.flock(handle, how | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        fcntl.flock(handle, fcntl.LOCK_UN)
        return how == fcntl.LOCK_SH
    return False


_LOOKS = 50
_EMPTY_LOOKS = 3  # one scan may miss a process that is just being replaced by its child
_DEATH_POLL_SECONDS = 0.002

_Table = dict[int, ProcessEntry]
_IsLeftOver = Callable[[ProcessEntry], bool]


def sweep(dead_tokens: Collection[str]) -> int:
    """End all processes of dead drivers with their descendants; returns their number.

    A token is the value of `LOOPWRIGHT_SWEEP` in the environment of each program of a driver.
    """
    wanted = {f"{SWEEP_VARIABLE}={token}".encode() for token in dead_tokens if token}
    return _end_all(lambda entry: _carries(entry.pid, wanted)) if wanted else 0


def list_left(dead_tokens: Collection[str]) -> list[int]:
    """The living processes that drivers with these tokens have started."""
    wanted = {f"{SWEEP_VARIABLE}={token}".encode() for token in dead_tokens if token}
    living = [one.pid for one in read_entries() if wanted and not one.is_dead]
    return sorted(pid for pid in living if _carries(pid, wanted))


def sweep_marks(marks: Iterable[ProcessMark]) -> int:
    """End these supervisors and all that came from them; how many processes were ended."""
    this_boot = boot_id()
    known = {m.pid: m for m in marks if m.boot_id == this_boot and m.start_ticks > 0}
    wanted = {f"{SUPERVISOR_VARIABLE}={m.pid}:{m.start_ticks}".encode() for m in known.values()}

    def came_from_a_marked_one(entry: ProcessEntry) -> bool:
        mine = known.get(entry.pid)
        if mine is not None and mine.start_ticks == entry.start:
            return True
        return _in_session_of(entry, known.get(entry.sid)) or _carries(entry.pid, wanted)

    return _end_all(came_from_a_marked_one) if known else 0


def _in_session_of(entry: ProcessEntry, mark: ProcessMark | None) -> bool:
    """Whether a process is in the session that a supervisor opened.

    While a session has members its number is not given to a new process, so a living leader with
    another start time means that the number belongs to another session by now.
    """
    if mark is None or entry.start < mark.start_ticks:
        return False
    leader = read_entry(mark.pid)
    return leader is None or leader.start == mark.start_ticks


def _carries(pid: int, wanted: Collection[bytes]) -> bool:
    """Whether the environment of a process has one of these entries. Others' cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as block:
            return not set(block.read().split(b"\0")).isdisjoint(wanted)
    except OSError:
        return False


# --------------------------------------------------------------------------------- the killing


def _end_all(is_left_over: _IsLeftOver) -> int:
    """Freeze, kill, and scan again until there is no process left."""
    deadline = time.monotonic() + KILL_SECONDS
    met: list[ProcessEntry] = []
    empty_looks = 0
    while empty_looks < _EMPTY_LOOKS and time.monotonic() < deadline:
        frozen = _freeze(is_left_over)
        empty_looks = 0 if frozen else empty_looks + 1
        met += frozen.values()
        for entry in frozen.values():
            _send_exactly(entry, signal.SIGKILL)
        for entry in frozen.values():
            _await_death(entry, deadline)
    return len({(entry.pid, entry.start) for entry in met if _has_ended(entry)})


def _freeze(is_left_over: _IsLeftOver) -> _Table:
    """Stop every leftover and its descendants, until a scan shows none that is not stopped.

    First all are stopped and only then killed: no process inherits the children of the dead here,
    so the tree must stay together until it is known.
    """
    spared = own_ancestors()
    frozen: _Table = {}

    def stop(entry: ProcessEntry) -> None:
        _send_exactly(entry, signal.SIGSTOP)
        frozen[entry.pid] = entry

    for _ in range(_LOOKS):
        known = len(frozen)
        table: _Table = {}
        for entry in read_entries():
            if entry.is_dead or entry.pid in spared:
                continue
            table[entry.pid] = entry
            if entry.pid not in frozen and is_left_over(entry):
                stop(entry)  # at once, it may be about to be replaced by its child
        for entry in _relatives(table, frozen, spared):
            stop(entry)
        if len(frozen) == known:
            break
    return frozen


def _relatives(table: _Table, found: _Table, spared: set[int]) -> list[ProcessEntry]:
    """The descendants of those found and the rest of their sessions, as far as not found yet."""
    family = set(found)
    relatives: list[ProcessEntry] = []
    while True:
        sessions = {e.sid for e in table.values() if e.pid in family}
        own = {sid for sid in sessions if _is_own_session(sid, table, family, spared)}
        more = [
            entry
            for entry in table.values()
            if entry.pid not in family and (entry.ppid in family or entry.sid in own)
        ]
        if not more:
            return relatives
        relatives += more
        family.update(entry.pid for entry in more)


def _is_own_session(sid: int, table: _Table, family: set[int], spared: set[int]) -> bool:
    """Whether a session belongs to the leftovers: its leader is one of them, or has ended.

    A session outside of this process namespace appears as session 0.
    """
    return sid > 0 and (sid in family or (sid not in table and sid not in spared))


def own_ancestors() -> set[int]:
    """This process and those above it: a driver that an agent started must not end itself."""
    line: set[int] = set()
    entry = read_entry(os.getpid())
    while entry is not None and entry.pid not in line:
        line.add(entry.pid)
        entry = read_entry(entry.ppid)
    return line


def _send_exactly(entry: ProcessEntry, number: int) -> None:
    """Signal a process unless its pid has been reused in the meantime."""
    now = read_entry(entry.pid)
    if now is not None and now.start == entry.start:
        send(entry.pid, number)


def _await_death(entry: ProcessEntry, deadline: float) -> None:
    while not _has_ended(entry) and time.monotonic() < deadline:
        time.sleep(_DEATH_POLL_SECONDS)


def _has_ended(entry: ProcessEntry) -> bool:
    now = read_entry(entry.pid)
    return now is None or now.start != entry.start or now.is_dead
