"""The processes of a run that live, whoever drives it.

Every supervisor carries the id of its run in its environment, which its programs cannot change, and
it lives until all that came from its program has ended. So a run has no process left when none
carries its id. Without /proc nothing is found.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from loopwright.programs.lineage import RUN_VARIABLE
from loopwright.programs.supervise import Entry, read_entries, read_entry

_STUCK = b"D"


def find_processes(runs: Collection[str]) -> dict[str, list[Entry]]:
    """The living processes of these runs; runs without one are left out."""
    wanted = {f"{RUN_VARIABLE}={run}".encode(): run for run in runs}
    spared = _own_line()
    found: dict[str, list[Entry]] = {}
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


def describe_processes(entries: Collection[Entry]) -> str:
    """Name processes that are left, and why one cannot be ended."""
    listed = ", ".join(str(one.pid) for one in entries)
    stuck = [str(one.pid) for one in entries if one.state == _STUCK]
    why = f"; {', '.join(stuck)} waits for a device and cannot be killed" if stuck else ""
    return f"process{'es' if len(entries) != 1 else ''} {listed}{why}"
