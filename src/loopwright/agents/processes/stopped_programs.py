"""The programs of all runs, stopped for a moment, and a proof that none of them ran meanwhile.

The proof does not depend on signals alone: a program can have a timer continue it. For every
thread the kernel counts how often it has left a processor. A thread that was on none before and
after, and whose count did not change, did not run in between. No process was missed, however
quickly programs start others: a listing counts only if nothing on the machine was started while
it was made. From then on only a program that runs can start another.

Programs are stopped for milliseconds. Those that were stopped before stay stopped afterwards.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

from loopwright.agents.processes.process_tree import list_descendants
from loopwright.agents.processes.supervise import ProcessEntry, read_entry

_STOP_S = 0.5  # for all programs to be stopped; those that wait for a device cannot be
_LOOK_S = 0.002
_SWITCH_S = 0.004  # a thread that is about to wait is still counted as running for a moment
_ON_PROCESSOR = "R"
_STOPPED, _WAITS = "T", "S"
_COUNTERS = ("voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")

Threads: TypeAlias = dict[tuple[int, int], tuple[str, int]]
"""The state of each thread, by process and thread, and how often it has left a processor."""


def list_programs() -> list[int]:
    """The processes of all runs except the outermost supervisors, which are part of Loopwright."""
    inside = list_descendants()
    entries = (read_entry(pid) for pid in inside)
    return sorted(one.pid for one in entries if one is not None and one.ppid in inside)


def list_processes() -> set[int]:
    """The numbers of all processes."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


class StoppedPrograms:
    """The programs of all runs while they are stopped."""

    def __init__(self) -> None:
        self._handles: dict[tuple[int, int], int] = {}  # of those that were stopped here
        self._known: set[tuple[int, int]] = set()

    def stop(self) -> Threads | None:
        """Stop programs until there are no others, and all of them are at rest: their threads.
        None if that takes too long.
        """
        deadline = time.monotonic() + _STOP_S
        while time.monotonic() < deadline:
            self._stop_new(list_programs())
            threads = _read_threads(pid for pid, _ in self._known)
            if self._are_at_rest(threads) and self._are_all(threads):
                return threads
            time.sleep(_LOOK_S)
        return None

    def _are_all(self, threads: Threads) -> bool:
        """Whether these are the threads of all programs that there are now."""
        forks, numbers = _read_forks(), list_processes()
        if _read_forks() != forks:  # a process may have been missed
            return False
        programs, living = set(list_programs()), list_processes()
        # Of one that ended before it was looked at it is not known whose it was.
        return programs <= {pid for pid, _ in threads} and numbers <= living

    def resume(self) -> None:
        """Continue them, children first: a parent does not find its child stopped."""
        for handle in reversed(self._handles.values()):
            with suppress(OSError):
                _send(handle, signal.SIGCONT)
            os.close(handle)
        self._handles.clear()

    def _stop_new(self, pids: Iterable[int]) -> None:
        """Stop those that were not there before."""
        for pid in pids:
            entry = read_entry(pid)
            if entry is None or (pid, entry.start) in self._known:
                continue
            self._known.add((pid, entry.start))
            if entry.state.decode() != _STOPPED and not entry.is_dead:
                self._stop_one(entry)

    def _stop_one(self, entry: ProcessEntry) -> None:
        """One of another user cannot be stopped; the counters show whether it ran."""
        try:
            handle = _open_process(entry.pid)
        except OSError:
            return
        now = read_entry(entry.pid)
        try:
            if now is None or now.start != entry.start:
                raise ProcessLookupError
            _send(handle, signal.SIGSTOP)
        except OSError:
            os.close(handle)
            return
        self._handles[entry.pid, entry.start] = handle

    def _are_at_rest(self, threads: Threads) -> bool:
        """Whether none is on a processor, and those that were stopped here have stopped."""
        stopped = {pid for pid, _ in self._handles}
        return not any(
            state == _ON_PROCESSOR or (state == _WAITS and pid in stopped)
            for (pid, _), (state, _) in threads.items()
        )


@contextmanager
def stopped_programs() -> Iterator[Threads | None]:
    """Stop the programs of all runs, as far as they can be stopped, while this lasts: their
    threads, or None if they do not all stop.
    """
    programs = StoppedPrograms()
    try:
        yield programs.stop()
    finally:
        programs.resume()


def has_run(threads: Threads) -> bool:
    """Whether one of these threads ran or ended, or a program was started. The count of a thread
    that has just begun to wait changes a moment later.
    """
    if _has_changed(threads):
        return True
    time.sleep(_SWITCH_S)
    return _has_changed(threads)


def _has_changed(threads: Threads) -> bool:
    pids = {pid for pid, _ in threads}
    return not pids.issuperset(list_programs()) or _read_threads(pids) != threads


def _open_process(pid: int) -> int:
    """A handle of a process, which is not mistaken for a later one with its number."""
    if sys.platform == "linux":
        return os.pidfd_open(pid)
    else:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def _send(handle: int, number: signal.Signals) -> None:
    if sys.platform == "linux":
        signal.pidfd_send_signal(handle, number)


def _read_forks() -> tuple[str, str]:
    """How many processes and threads were started, and the number of the newest one."""
    with open("/proc/stat", encoding="ascii") as lines:
        count = next((line for line in lines if line.startswith("processes ")), "")
    with open("/proc/loadavg", encoding="ascii") as line:
        return count, line.read().split()[-1]


def _read_threads(pids: Iterable[int]) -> Threads:
    found: Threads = {}
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/task"):
                with suppress(OSError), open(f"/proc/{pid}/task/{name}/status", "rb") as status:
                    found[pid, int(name)] = _parse_status(status.read().decode(errors="replace"))
    return found


def _parse_status(text: str) -> tuple[str, int]:
    """State and number of switches. A name cannot add lines: its line breaks are escaped."""
    fields = dict(line.split(maxsplit=1) for line in text.splitlines() if len(line.split()) > 1)
    state = fields.get("State:", _ON_PROCESSOR)[:1]
    switches = [fields.get(name, "") for name in _COUNTERS]
    if not all(one.isdecimal() for one in switches):  # this kernel does not count
        return _ON_PROCESSOR, 0
    return state, sum(map(int, switches))
