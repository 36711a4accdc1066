"""What this machine can do for runs, looked at without changing anything."""

import ctypes
import sys
from collections.abc import Collection
from pathlib import Path

from loopwright.programs.environment import SWEEP_VARIABLE

_PR_GET_CHILD_SUBREAPER = 37


def can_adopt_orphans() -> bool:
    """Whether a process here can become the parent of the orphans among its descendants."""
    if not sys.platform.startswith("linux"):
        return False
    answer = ctypes.c_int(-1)
    try:
        asked = ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    except (AttributeError, OSError):
        return False
    return int(asked) == 0 and answer.value in (0, 1)


def leftover_processes(tokens: Collection[str]) -> list[int]:
    """Processes that drivers with these tokens have started and that still run."""
    wanted = {f"{SWEEP_VARIABLE}={token}".encode() for token in tokens}
    return sorted(pid for pid in _processes() if wanted and _carries(pid, wanted))


def _processes() -> list[int]:
    try:
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return []


def _carries(pid: int, wanted: set[bytes]) -> bool:
    try:
        return not wanted.isdisjoint(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return False
