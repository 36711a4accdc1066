"""Recognises processes that descend from a program of a run, by the process tree.

Every program of a run is started by a supervisor. The supervisor is a sub-reaper, so whatever the
program starts stays below it: double forks, new sessions, daemons. A process therefore belongs to a
run if one of its ancestors is a supervisor. A descendant can change neither the name nor the
command line of its supervisor, nor the environment that its ancestors were started with.

Inside a process namespace (a sandbox) the supervisor is not visible, but the first process of the
namespace is, with the environment that the supervisor gave it. The environment of the calling
process itself can only add to what was found: a program can clear it.

Elsewhere than on Linux there is no process tree to read, and the environment is all there is.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from loopwright.programs.supervise import (
    PROCESS_NAME,
    SUPERVISOR_VARIABLE,
    Entry,
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


def _walk_up(pid: int) -> Iterator[Entry]:
    """A process and its ancestors, as far as they are visible."""
    met: set[int] = set()
    entry = read_entry(pid)
    while entry is not None and entry.pid not in met:
        met.add(entry.pid)
        yield entry
        entry = read_entry(entry.ppid) if entry.ppid else None


def _is_supervisor(entry: Entry) -> bool:
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
