"""Which processes belong to runs: by the process tree, by run, and at the other end of a
socket.

Every program of a run is started by a supervisor. The supervisor is a sub-reaper, so whatever
the program starts stays below it: double forks, new sessions, daemons. A process therefore
belongs to a run if one of its ancestors is a supervisor. A descendant can change neither the
name nor the command line of its supervisor, nor the environment that its ancestors were started
with.

Inside a process namespace (a sandbox) the supervisor is not visible, but the first process of
the namespace is, with the environment that the supervisor gave it. The environment of the
calling process itself can only add to what was found: a program can clear it.

A supervisor carries the id of its run in its environment and lives until all that came from its
program has ended. So a run has no process left when no supervisor carries its id.

For a Unix socket the kernel says which process connected. For TCP it does not: the socket of
the peer is found in the tables of the kernel, and then among the open files of processes.

On systems other than Linux there is no process tree to read, and only the environment is used.
Without /proc no process of a run is found.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeAlias

from loopwright import host
from loopwright.agents.processes.supervise import (
    HAS_TABLE,
    PROCESS_NAME,
    SUPERVISOR_VARIABLE,
    ProcessEntry,
    read_entries,
    read_entry,
)

RUN_VARIABLE = "LOOPWRIGHT_RUN"
DEPTH_VARIABLE = "LOOPWRIGHT_DEPTH"
AGENT_VARIABLE = "LOOPWRIGHT_AGENT"
_CODE_END = b"supervise.main()"
_OPTIONS = [b"-I", b"-S", b"-c"]
_WALKS = 5  # a parent may end while its child is being looked at; then the walk starts again
_BLOCK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideRun:
    """A process of a run. `run` is empty where the supervisor was given none."""

    run: str = ""
    agent: str = ""  # empty for checks and other programs
    depth: int = 0
    runs: tuple[str, ...] = ()  # all runs around the process, the innermost first
    sandboxed: bool = False  # the supervisor is outside of what the process can see

    @property
    def actor(self) -> str:
        """Who acts, for events and the audit log."""
        who = f"agent:{self.agent}" if self.agent else "program"
        return f"{who} of {self.run or 'a run'}"


def find_inside_run(
    pid: int | None = None, environment: Mapping[str, str] | None = None
) -> InsideRun | None:
    """The run that a process belongs to, or None. `environment` can only make it belong to one."""
    found = _find_in_tree(os.getpid() if pid is None else pid)
    if found is None and environment is not None and environment.get(RUN_VARIABLE):
        return _describe([dict(environment)], sandboxed=False)
    return found


def list_descendants() -> set[int]:
    """All processes of this machine that descend from a supervisor, the supervisors included."""
    table = {entry.pid: entry for entry in read_entries()}
    known: dict[int, bool] = {}
    for pid in table:
        line: list[int] = []
        at = pid
        while at in table and at not in known and at not in line:
            line.append(at)
            if _is_supervisor(table[at]):
                known[at] = True
                break
            at = table[at].ppid
        inside = known.get(at, False)
        known.update(dict.fromkeys(line, inside))
    return {pid for pid, inside in known.items() if inside}


def _find_in_tree(pid: int) -> InsideRun | None:
    for _ in range(_WALKS):
        line = list(_walk_up(pid))
        if line and line[-1].ppid == 0:  # the walk reached the first process
            break
    supervisors = [entry for entry in line if entry.pid != pid and _is_supervisor(entry)]
    if supervisors:
        return _describe([_read_environment(one.pid) for one in supervisors], sandboxed=False)
    marked = [found for one in line if SUPERVISOR_VARIABLE in (found := _read_environment(one.pid))]
    if not marked:
        return None
    # The first process of a namespace has the mark: the supervisor is outside of it.
    first = SUPERVISOR_VARIABLE in _read_environment(line[-1].pid)
    return _describe(marked, sandboxed=first)


def _walk_up(pid: int) -> Iterator[ProcessEntry]:
    """A process and its ancestors, as far as they are visible."""
    met: set[int] = set()
    entry = read_entry(pid)
    while entry is not None and entry.pid not in met:
        met.add(entry.pid)
        yield entry
        entry = read_entry(entry.ppid) if entry.ppid else None


def _is_supervisor(entry: ProcessEntry) -> bool:
    """The name is compared first, because it is known already."""
    if entry.name != PROCESS_NAME:
        return False
    words = _read_block(entry.pid, "cmdline").split(b"\0")
    return words[1:4] == _OPTIONS and len(words) > 4 and words[4].endswith(_CODE_END)


def _describe(environments: list[dict[str, str]], *, sandboxed: bool) -> InsideRun:
    runs = [one[RUN_VARIABLE] for one in environments if one.get(RUN_VARIABLE)]
    nearest = next((one for one in environments if one.get(RUN_VARIABLE)), environments[0])
    depth = nearest.get(DEPTH_VARIABLE, "")
    return InsideRun(
        run=nearest.get(RUN_VARIABLE, ""),
        agent=nearest.get(AGENT_VARIABLE, ""),
        depth=int(depth) if depth.isdecimal() and len(depth) < 4 else 0,
        runs=tuple(dict.fromkeys(runs)),
        sandboxed=sandboxed,
    )


def _read_environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty where it cannot be read."""
    pairs = (one.partition(b"=") for one in _read_block(pid, "environ").split(b"\0") if one)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _read_block(pid: int, name: str) -> bytes:
    with suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as block:
        return block.read(_BLOCK_BYTES)
    return b""


_STUCK = b"D"


def find_processes(runs: Collection[str]) -> dict[str, list[ProcessEntry]]:
    """The living processes of these runs; runs without one are left out."""
    wanted = {f"{RUN_VARIABLE}={run}".encode(): run for run in runs}
    spared = _own_line()
    found: dict[str, list[ProcessEntry]] = {}
    try:
        living = [one for one in read_entries() if not one.is_dead and one.pid not in spared]
    except OSError:  # no /proc on this system
        return {}
    for entry in living:
        run = next((wanted[one] for one in _environment(entry.pid) if one in wanted), None)
        if run is not None:
            found.setdefault(run, []).append(entry)
    return found


def _environment(pid: int) -> list[bytes]:
    """The variables of a process; those of other users cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as block:
            return block.read().split(b"\0")
    except OSError:
        return []


def _own_line() -> set[int]:
    """This process and those above it."""
    line: set[int] = set()
    entry = read_entry(os.getpid())
    while entry is not None and entry.pid not in line:
        line.add(entry.pid)
        entry = read_entry(entry.ppid)
    return line


def describe_processes(entries: Collection[ProcessEntry]) -> str:
    """Name processes that are left, and why one cannot be ended."""
    listed = ", ".join(str(one.pid) for one in entries)
    stuck = [str(one.pid) for one in entries if one.state == _STUCK]
    why = f"; {', '.join(stuck)} waits for a device and cannot be killed" if stuck else ""
    return f"process{'es' if len(entries) != 1 else ''} {listed}{why}"


_SO_PEERPIDFD = 77  # Linux 6.5; Python has no name for it
_ACCEPTS = 0x10000  # the flag of listening sockets in /proc/net/unix
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
Address: TypeAlias = tuple[str, int]
UNKNOWN_PEER = InsideRun()
"""A peer that cannot be told apart from an agent."""
_SCANS = 5  # of all processes; a program may hand a connection to ever new ones
_IN_FLIGHT = re.compile(rb"^scm_fds:\s*(\d+)$", re.MULTILINE)


# -- Unix sockets ----------------------------------------------------------------------------------


def find_unix_peer(connection: socket.socket) -> InsideRun | None:
    """The run that the process at the other end of a Unix socket belongs to, or None. A process
    that has ended since it connected cannot be looked up, and is taken for one of a run.
    """
    if not HAS_TABLE:
        return None
    handle = _open_peer(connection)
    try:
        pid = _read_pid(handle) if handle is not None else host.peer_process(connection)
        if pid is None or pid <= 0 or not os.path.exists(f"/proc/{pid}"):
            return UNKNOWN_PEER
        found = find_inside_run(pid)
        if handle is not None and _read_pid(handle) != pid:  # its number may be another's by now
            return UNKNOWN_PEER
        return found
    finally:
        if handle is not None:
            os.close(handle)


def list_listening_sockets() -> Iterator[str]:
    """The paths of Unix sockets on which some process of this network namespace accepts
    connections, or messages without any.
    """
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as table:
            lines = table.read().split("\n")
    except OSError:
        return
    for line in lines[1:]:
        words = line.split(maxsplit=7)
        if len(words) < 8 or not words[7].startswith("/"):
            continue
        if int(words[3], 16) & _ACCEPTS or int(words[4], 16) == socket.SOCK_DGRAM:
            yield words[7]


def _open_peer(connection: socket.socket) -> int | None:
    """A handle of the process, which is not mistaken for another one; None on older kernels."""
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return None


def _read_pid(handle: int) -> int:
    """The number of the process behind a handle; -1 when it has ended."""
    with suppress(OSError, ValueError), open(f"/proc/self/fdinfo/{handle}", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("Pid:"))
    return -1


# -- TCP -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    """A socket as the kernel lists it; without an inode no process has it open any more."""

    uid: int
    inode: int


def find_tcp_peer(peer: Address, own: Address) -> InsideRun | None:
    """The run that the process at the other end of a TCP connection belongs to, or None.

    A peer on another machine is none of ours. While programs of runs are under way, a peer of this
    machine must be found outside of them.
    """
    if not HAS_TABLE:
        return None
    address = _unmapped(peer[0])
    row = _find_row((address, peer[1]), (_unmapped(own[0]), own[1]))
    if row is None:  # another machine, or a connection that was reset
        return UNKNOWN_PEER if address.is_loopback or _is_own(peer) else None
    if row.inode == 0:
        return UNKNOWN_PEER
    for _ in range(_SCANS):
        inside = list_descendants()
        if not inside:
            return None
        owner = _find_owner(row.inode, _list_tasks(inside))
        owner = owner or _find_owner(row.inode, _list_folders())
        with suppress(ProcessLookupError):
            if owner is not None:  # maybe of a run, but begun after these were listed
                return _find_run_of(owner)
        if owner is None and inside == list_descendants():  # nobody came who could have it
            return None if _is_unseen(row, inside) else UNKNOWN_PEER
    return UNKNOWN_PEER


def _find_run_of(pid: int) -> InsideRun | None:
    """The run that a process belongs to, or None; ProcessLookupError if it ends meanwhile."""
    before, found, after = read_entry(pid), find_inside_run(pid), read_entry(pid)
    if found is None and (before is None or after is None or before.start != after.start):
        raise ProcessLookupError
    return found


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


def _is_unseen(row: _Row, inside: set[int]) -> bool:
    """Whether a socket that was found nowhere belongs to a process outside of runs whose files
    cannot be listed, such as a tunnel of `sshd`. It does not if a process of a run may hide it.
    """
    if any(_uid_of(pid) == row.uid and _may_hide(pid) for pid in inside):
        return False
    others = (pid for pid in _list_processes() if pid not in inside)
    return any(_uid_of(pid) == row.uid and not _can_list(pid) for pid in others)


def _may_hide(pid: int) -> bool:
    """Whether a process may have sockets that are not among its open files: those on their way in
    another socket, those that are mapped into memory, and any if its files cannot be listed.
    """
    try:
        if not _can_list(pid):
            return True
        tasks = os.listdir(f"/proc/{pid}/task")
        if b" socket:[" in _read(f"/proc/{pid}/maps"):
            return True
        return any(_sends_files(f"/proc/{pid}/task/{one}") for one in tasks)
    except PermissionError:
        return True
    except OSError:
        return False  # it has ended


def _sends_files(task: str) -> bool:
    """Whether open files are on their way to one of the Unix sockets of a thread."""
    for name in os.listdir(f"{task}/fdinfo"):
        with suppress(FileNotFoundError):
            found = _IN_FLIGHT.search(_read(f"{task}/fdinfo/{name}"))
            if found and int(found[1]):
                return True
    return False


def _read(file: str) -> bytes:
    with open(file, "rb") as stream:
        return stream.read()


def _find_row(peer: tuple[IPv4Address | IPv6Address, int], own: object) -> _Row | None:
    for table in _TABLES:
        with suppress(OSError), open(table, encoding="ascii") as lines:
            next(lines, None)
            for line in lines:
                words = line.split()
                if _parse_address(words[1]) == peer and _parse_address(words[2]) == own:
                    return _Row(uid=int(words[7]), inode=int(words[9]))
    return None


def _parse_address(text: str) -> tuple[IPv4Address | IPv6Address, int]:
    """An address as the kernel writes it: words of four bytes in the order of this machine."""
    host, _, port = text.partition(":")
    words = [int(host[at : at + 8], 16) for at in range(0, len(host), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return _unmapped(str(ip_address(packed))), int(port, 16)


def _unmapped(host: str) -> IPv4Address | IPv6Address:
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


def _uid_of(pid: int) -> int:
    with suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as f:
        return next((int(line.split()[1]) for line in f if line.startswith("Uid:")), -1)
    return -1
