"""Ends what a driver left behind when it was killed together with its supervisors.

Normally nothing is left: a supervisor notices the death of its driver and ends its whole tree.
If the supervisor was killed as well, the processes below it have lost their parents, but they
still carry two traces: the driver's token and the supervisor's mark in their environment, and
the supervisor's session. A process that has cleared its environment *and* started a session of
its own after both kills is not found. Without /proc nothing is found.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator

from loopwright.programs.environment import SWEEP_VARIABLE
from loopwright.programs.marks import ProcessMark, boot_id
from loopwright.programs.supervise import (
    KILL_SECONDS,
    SUPERVISOR_VARIABLE,
    Entry,
    read_entries,
    read_entry,
    send,
)

_LOOKS = 50
_EMPTY_LOOKS = 3  # one look may miss a process that is just being replaced by its child
_DEATH_POLL_SECONDS = 0.002

_Table = dict[int, Entry]
_IsLeftOver = Callable[[Entry], bool]


def sweep(dead_tokens: Collection[str]) -> int:
    """End all processes of drivers that are dead, and what came from them; how many were ended.

    A token is what `LOOPWRIGHT_SWEEP` says in the environment of each program of a driver.
    """
    wanted = {f"{SWEEP_VARIABLE}={token}".encode() for token in dead_tokens if token}
    return _end_all(lambda entry: _carries(entry.pid, wanted)) if wanted else 0


def sweep_marks(marks: Iterable[ProcessMark]) -> int:
    """End these supervisors and all that came from them; how many processes were ended."""
    this_boot = boot_id()
    known = {m.pid: m for m in marks if m.boot_id == this_boot and m.start_ticks > 0}
    wanted = {f"{SUPERVISOR_VARIABLE}={m.pid}:{m.start_ticks}".encode() for m in known.values()}

    def came_from_a_marked_one(entry: Entry) -> bool:
        mine = known.get(entry.pid)
        if mine is not None and mine.start_ticks == entry.start:
            return True
        return _in_session_of(entry, known.get(entry.sid)) or _carries(entry.pid, wanted)

    return _end_all(came_from_a_marked_one) if known else 0


def _in_session_of(entry: Entry, mark: ProcessMark | None) -> bool:
    """Whether a process is in the session a supervisor opened.

    While a session has members its number is not given to a new process, so a living leader with
    another start time means that the number stands for another session by now.
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
    """Freeze, kill, and look again until there is nobody left."""
    deadline = time.monotonic() + KILL_SECONDS
    met: list[Entry] = []
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
    """Stop every leftover and its descendants, until a look shows none that is not stopped.

    First all are stopped and only then killed: here nobody inherits the children of the dead, so
    the tree must stay together until it is known.
    """
    spared = _self_and_ancestors()
    frozen: _Table = {}

    def stop(entry: Entry) -> None:
        _send_exactly(entry, signal.SIGSTOP)
        frozen[entry.pid] = entry

    for _ in range(_LOOKS):
        known = len(frozen)
        table: _Table = {}
        for entry in _living():
            if entry.pid in spared:
                continue
            table[entry.pid] = entry
            if entry.pid not in frozen and is_left_over(entry):
                stop(entry)  # at once, it may be about to be replaced by its child
        for entry in _relatives(table, frozen, spared):
            stop(entry)
        if len(frozen) == known:
            break
    return frozen


def _living() -> Iterator[Entry]:
    try:
        yield from (entry for entry in read_entries() if not entry.is_dead)
    except OSError:  # no /proc on this system
        return


def _relatives(table: _Table, found: _Table, spared: set[int]) -> list[Entry]:
    """The descendants of those found and the rest of their sessions, as far as not found yet."""
    family = set(found)
    relatives: list[Entry] = []
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
    """Whether a session belongs to the leftovers: its leader is one of them, or gone.

    Session 0 is how a session from outside of this process namespace looks like.
    """
    return sid > 0 and (sid in family or (sid not in table and sid not in spared))


def _self_and_ancestors() -> set[int]:
    """A driver that was itself started by an agent must not end itself."""
    line: set[int] = set()
    entry = read_entry(os.getpid())
    while entry is not None and entry.pid not in line:
        line.add(entry.pid)
        entry = read_entry(entry.ppid)
    return line


def _send_exactly(entry: Entry, number: int) -> None:
    """Signal a process unless its pid has been given to another one meanwhile."""
    now = read_entry(entry.pid)
    if now is not None and now.start == entry.start:
        send(entry.pid, number)


def _await_death(entry: Entry, deadline: float) -> None:
    while not _has_ended(entry) and time.monotonic() < deadline:
        time.sleep(_DEATH_POLL_SECONDS)


def _has_ended(entry: Entry) -> bool:
    now = read_entry(entry.pid)
    return now is None or now.start != entry.start or now.is_dead
