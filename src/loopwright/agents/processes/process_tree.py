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

For a Unix socket the kernel says which process connected. For TCP it does not, see `tcp_peer`.

On systems other than Linux there is no process tree to read, and only the environment is used.
Without /proc no process of a run is found.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from loopwright import host
from loopwright.agents.processes.process_marks import own_ancestors
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
_WALKS = 10  # a parent may end while its child is being read; then the walk starts again
_BLOCK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideRun:
    """A process of a run. `run` is empty if the supervisor received none."""

    run: str = ""
    agent: str = ""  # empty for checks and other programs
    depth: int = 0
    runs: tuple[str, ...] = ()  # all runs around the process, the innermost first
    sandboxed: bool = False  # the supervisor is outside of what the process can see

    @property
    def actor(self) -> str:
        """The actor, for events and the audit log."""
        who = f"agent:{self.agent}" if self.agent else "program"
        return f"{who} of {self.run or 'a run'}"


UNKNOWN_PEER = InsideRun()
"""A process that cannot be distinguished from a program of a run."""


def find_inside_run(
    pid: int | None = None, environment: Mapping[str, str] | None = None
) -> InsideRun | None:
    """The run that a process belongs to, or None. `environment` can only make it belong to one."""
    found = _find_in_tree(os.getpid() if pid is None else pid)
    if found is None and environment is not None and environment.get(RUN_VARIABLE):
        return _describe([dict(environment)], sandboxed=False)
    return found


def list_descendants() -> set[int]:
    """All processes of this machine that descend from a supervisor, the supervisors included, and
    those whose ancestors could not be established.
    """
    table = {entry.pid: entry for entry in read_entries()}
    known: dict[int, bool] = {}
    for pid in table:
        line: list[int] = []
        at = pid
        while at not in known and at not in line:
            line.append(at)
            parent = table.get(table[at].ppid)
            if _is_supervisor(table[at]):
                known[at] = True
            elif table[at].ppid == 0:
                known[at] = False
            elif parent is None or not _is_parent(parent, table[at]):
                known[at] = _is_below_supervisor(at)
            else:
                at = parent.pid
        inside = known.get(at, True)  # a circle: numbers were used again meanwhile
        known.update(dict.fromkeys(line, inside))
    return {pid for pid, inside in known.items() if inside}


def _is_parent(parent: ProcessEntry, child: ProcessEntry) -> bool:
    """Whether two entries that were read one after the other belong together: the number of a
    parent that ended may be that of a later process.
    """
    if parent.start < child.start:
        return True
    now = read_entry(child.pid)
    return now is not None and (now.ppid, now.start) == (child.ppid, child.start)


def _is_below_supervisor(pid: int) -> bool:
    """Whether a process descends from a supervisor; also true where that cannot be established."""
    line = _read_line(pid)
    return line is None or any(_is_supervisor(one) for one in line)


def _find_in_tree(pid: int) -> InsideRun | None:
    line = _read_line(pid)
    if line is None:
        return UNKNOWN_PEER
    supervisors = [entry for entry in line if entry.pid != pid and _is_supervisor(entry)]
    if supervisors:
        return _describe([_read_environment(one.pid) for one in supervisors], sandboxed=False)
    marked = [found for one in line if SUPERVISOR_VARIABLE in (found := _read_environment(one.pid))]
    if not marked:
        return None
    # The first process of a namespace has the mark: the supervisor is outside of it.
    first = SUPERVISOR_VARIABLE in _read_environment(line[-1].pid)
    return _describe(marked, sandboxed=first)


def _read_line(pid: int) -> list[ProcessEntry] | None:
    """A process and its ancestors, as far as they are visible; None if they change all the time.

    A program can have a chain of ancestors end one after the other, so that the next one is always
    missing. Then the process has another parent when it is read again.
    """
    for _ in range(_WALKS):
        line = list(_walk_up(pid))
        if any(_is_supervisor(one) for one in line[1:]):
            return line
        if [one.identity for one in line] == [one.identity for one in _walk_up(pid)]:
            return line
    return None


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
    """The living processes of these runs; runs without one are omitted."""
    wanted = {f"{RUN_VARIABLE}={run}".encode(): run for run in runs}
    spared = own_ancestors()
    found: dict[str, list[ProcessEntry]] = {}
    for entry in read_entries():
        if entry.is_dead or entry.pid in spared:
            continue
        run = next(
            (
                wanted[one]
                for one in _read_block(entry.pid, "environ").split(b"\0")
                if one in wanted
            ),
            None,
        )
        if run is not None:
            found.setdefault(run, []).append(entry)
    return found


def describe_processes(entries: Collection[ProcessEntry]) -> str:
    """List remaining processes, and why they cannot be ended."""
    listed = ", ".join(str(one.pid) for one in entries)
    stuck = [str(one.pid) for one in entries if one.state == _STUCK]
    why = f"; {', '.join(stuck)} waits for a device and cannot be killed" if stuck else ""
    return f"process{'es' if len(entries) != 1 else ''} {listed}{why}"


_SO_PEERPIDFD = 77  # Linux 6.5; Python has no name for it


# -- Unix sockets ----------------------------------------------------------------------------------


def find_unix_peer(connection: socket.socket) -> InsideRun | None:
    """The run of the process at the other end of a Unix socket, or None. A process that has ended
    since it connected cannot be looked up, and counts as one of a run.
    """
    if not HAS_TABLE:
        return None
    handle = _open_peer(connection)
    try:
        pid = _read_pid(handle) if handle is not None else host.peer_process(connection)
        before = read_entry(pid) if pid is not None and pid > 0 else None
        if pid is None or before is None:
            return UNKNOWN_PEER
        found, after = find_inside_run(pid), read_entry(pid)
        if after is None or after.start != before.start:
            return UNKNOWN_PEER
        if handle is not None and _read_pid(handle) != pid:  # its number may be another's by now
            return UNKNOWN_PEER
        return found
    finally:
        if handle is not None:
            os.close(handle)


def _open_peer(connection: socket.socket) -> int | None:
    """A handle of the process, which is not mistaken for another one; None on older kernels."""
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return None


def _read_pid(handle: int) -> int:
    """The number of the process of a handle; -1 if it has ended."""
    with suppress(OSError, ValueError), open(f"/proc/self/fdinfo/{handle}", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("Pid:"))
    return -1
