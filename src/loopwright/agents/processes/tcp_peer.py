"""The process at the other end of a TCP connection, and whether it belongs to a run.

The socket of the peer is found in the tables of the kernel, and then among the open files of
processes. A process that is found outside of all runs is that of a person; one that is found
inside, and a socket that is found nowhere, count as those of a run. A program can keep a
connection where it is not found: in a queue of another socket, in a system call, or by handing it
between its processes.

Two kinds of connections of people are found nowhere either. Those of another user, which no
program of a run has, are known by the user id of the socket. Those of a process of the same user
whose open files cannot be listed, such as a tunnel of `sshd`, need a proof (`is_read_outside`):
while all programs of runs are stopped, another process reads what the server sends.

The proof that they did not run meanwhile does not depend on signals alone: a program can have a
timer continue it. For every thread the kernel counts how often it has left a processor. A thread
that was on none before and after, and whose count did not change, did not run in between. No
process was missed, however quickly programs start others: a listing counts only if nothing on the
machine was started while it was made. From then on only a program that runs can start another.
Programs are stopped for milliseconds. Those that were stopped before stay stopped afterwards.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeAlias

from loopwright.agents.processes.process_tree import (
    UNKNOWN_PEER,
    InsideRun,
    find_inside_run,
    list_descendants,
)
from loopwright.agents.processes.supervise import HAS_TABLE, ProcessEntry, read_entry

Address: TypeAlias = tuple[str, int]
Host: TypeAlias = IPv4Address | IPv6Address
Send: TypeAlias = Callable[[], bool]
"""Sends a few bytes to the peer; whether the kernel has taken them."""
UNLISTED_PEER = InsideRun()
"""A peer that may be a process of a person whose open files cannot be listed. Without a proof it
counts as one of a run."""
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_SCANS = 5  # of all processes, while programs start others
_PROOFS = 4  # a program may end, or be started, while others are stopped
_UNSTOPPED_READ_S = 1.0
_STOPPED_READ_S = 0.25
_LOOK_S = 0.001
_PROVING = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Row:
    """A socket as the kernel lists it; without an inode no process has it open any more."""

    uid: int
    inode: int
    unsent: int  # bytes that the other end has not received
    unread: int  # bytes that no process has read


def find_tcp_peer(peer: Address, own: Address) -> InsideRun | None:
    """The run that the process at the other end of a TCP connection belongs to, or None.

    A peer on another machine is none of ours. One of this machine must be found outside of runs,
    also when there are none any more: a program can leave a connection in the queue of another
    process, with a request that its system sends slowly, and end.
    """
    if not HAS_TABLE:
        return None
    address = _unmapped(peer[0])
    row = _find_row(peer, own)
    if row is None:  # another machine, or a connection that was reset
        return UNKNOWN_PEER if address.is_loopback or _is_own(peer) else None
    if row.inode == 0:
        return UNKNOWN_PEER
    for _ in range(_SCANS):
        inside = list_descendants()
        owner = _find_owner(row.inode, _list_tasks(inside))
        owner = owner or _find_owner(row.inode, _list_folders())
        with suppress(ProcessLookupError):
            if owner is not None:  # maybe of a run, but begun after these were listed
                return _find_run_of(owner, row.inode)
        if owner is None and inside == list_descendants():
            break
    return _judge_unlisted(row, list_descendants())


def _judge_unlisted(row: _Row, inside: set[int]) -> InsideRun | None:
    """What a socket is that was found nowhere: that of a process of its user whose open files
    cannot be listed, or hidden by a program of a run.
    """
    others = (pid for pid in _list_processes() if pid not in inside)
    if not any(row.uid in _user_ids(pid) and not _can_list(pid) for pid in others):
        return UNKNOWN_PEER
    is_own = row.uid == os.geteuid() or any(row.uid in _user_ids(pid) for pid in inside)
    return UNLISTED_PEER if is_own else None


def is_read_outside(peer: Address, own: Address, send: Send) -> bool:
    """Whether a process outside of all runs reads from a connection: a reader exists for what is
    sent while no program of a run runs. Wherever a program has hidden the connection, it cannot.
    """
    with _PROVING, suppress(OSError):
        if not send() or not _is_read(peer, own, _UNSTOPPED_READ_S):
            return False  # no reader: programs need not be stopped
        for _ in range(_PROOFS):
            began = time.monotonic()
            found = _try_proof(peer, own, send)
            time.sleep(time.monotonic() - began)  # programs run for at least half of the time
            if found is not None:
                return found
    return False


def _try_proof(peer: Address, own: Address, send: Send) -> bool | None:
    """The result, or None if programs ran meanwhile."""
    with stopped_programs() as threads:
        if threads is None:
            return None
        if not send() or not _is_read(peer, own, _STOPPED_READ_S):
            return False
        return None if has_run(threads) else True


def _is_read(peer: Address, own: Address, seconds: float) -> bool:
    """Wait until the kernel of the peer has all that was sent, and a process has read it."""
    deadline = time.monotonic() + seconds
    has_arrived = False
    while time.monotonic() < deadline:
        if not has_arrived:
            ours = _find_row(own, peer)
            if ours is None:
                return False
            has_arrived = ours.unsent == 0
        if has_arrived:  # only then: what has not arrived is not unread either
            theirs = _find_row(peer, own)
            if theirs is None or theirs.inode == 0:
                return False
            if theirs.unread == 0:
                return True
        time.sleep(_LOOK_S)
    return False


def _find_run_of(pid: int, inode: int) -> InsideRun | None:
    """The run that the owner of a socket belongs to, or None; ProcessLookupError if it is no longer
    its owner: the number may be that of a later process.
    """
    before = read_entry(pid)
    is_owner = _find_owner(inode, [(pid, f"/proc/{pid}")]) is not None
    found, after = find_inside_run(pid), read_entry(pid)
    if found is not None:
        return found
    if not is_owner or before is None or after is None or before.start != after.start:
        raise ProcessLookupError
    return None


def _is_own(peer: Address) -> bool:
    """Whether an address is one of this machine: then it is also where a packet to it comes from.
    Nothing is sent.
    """
    with suppress(OSError):
        info = socket.getaddrinfo(*peer, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
        family, kind, number, _, address = info[0]
        with socket.socket(family, kind, number) as trial:
            trial.connect(address)
            return bool(trial.getsockname()[0] == address[0])
    return False


def _find_row(local: Address, remote: Address) -> _Row | None:
    """The socket with these addresses."""
    wanted = (_unmapped(local[0]), local[1]), (_unmapped(remote[0]), remote[1])
    port = f":{local[1]:04X}"
    for table in _TABLES:
        with suppress(OSError), open(table, encoding="ascii") as lines:
            next(lines, None)
            for line in lines:
                words = line.split()
                if not words[1].endswith(port):  # most of them
                    continue
                if (_parse_address(words[1]), _parse_address(words[2])) == wanted:
                    unsent, unread = (int(one, 16) for one in words[4].split(":"))
                    return _Row(int(words[7]), int(words[9]), unsent, unread)
    return None


def _parse_address(text: str) -> tuple[Host, int]:
    """An address as the kernel writes it: words of four bytes in the order of this machine."""
    host, _, port = text.partition(":")
    words = [int(host[at : at + 8], 16) for at in range(0, len(host), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return _unmapped(str(ip_address(packed))), int(port, 16)


def _unmapped(host: str) -> Host:
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _find_owner(inode: int, folders: Iterable[tuple[int, str]]) -> int | None:
    """The first process that has the socket open, among these with their folders in /proc."""
    wanted = f"socket:[{inode}]"
    for pid, folder in folders:
        with suppress(OSError):
            for name in os.listdir(f"{folder}/fd"):
                with suppress(OSError):
                    if os.readlink(f"{folder}/fd/{name}") == wanted:
                        return pid
    return None


def _list_tasks(pids: Iterable[int]) -> Iterator[tuple[int, str]]:
    """The threads of processes: each may have open files of its own."""
    for pid in pids:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                yield pid, f"/proc/{pid}/task/{task}"


def _list_folders() -> Iterator[tuple[int, str]]:
    yield from ((pid, f"/proc/{pid}") for pid in _list_processes())


def _list_processes() -> Iterator[int]:
    with suppress(OSError):
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def _can_list(pid: int) -> bool:
    """Whether the open files of a process can be listed. One that has ended has none."""
    entry = read_entry(pid)
    if entry is None or entry.is_dead:
        return True
    try:
        os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        return False
    except OSError:
        return True  # it has ended
    return True


def _user_ids(pid: int) -> set[int]:
    """The real, effective, saved and file system user id of a process."""
    with suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as f:
        words = next((line.split() for line in f if line.startswith("Uid:")), [])
        return {int(one) for one in words[1:5]}
    return set()


_STOP_S = 0.5  # for all programs to be stopped; those that wait for a device cannot be
_STOP_LOOK_S = 0.002
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
            time.sleep(_STOP_LOOK_S)
        return None

    def _are_all(self, threads: Threads) -> bool:
        """Whether these are the threads of all programs that there are now."""
        forks, numbers = _read_forks(), list_processes()
        if _read_forks() != forks:  # a process may have been missed
            return False
        programs, living = set(list_programs()), list_processes()
        # For one that ended before it was inspected, the owner is not known.
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
