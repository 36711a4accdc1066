"""What this machine can do for runs, looked at without changing anything."""

import ctypes
import sys
from collections.abc import Collection
from pathlib import Path

from loopwright.app.moments import timestamp
from loopwright.ports import EventLog
from loopwright.programs.environment import SWEEP_VARIABLE

_PR_GET_CHILD_SUBREAPER = 37
NEWEST = 20  # runs that are looked at
AHEAD_MS = 300_000
LONG_MS = 300 * 86_400_000
CLOCK_FIX = "if that surprises you, set the clock: time limits, tokens and signatures depend on it"


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


def clock_problem(log: EventLog, now_ms: int) -> str:
    """What of the times that were recorded does not fit this clock; empty when they all do."""
    newest = max((row.headline.updated_at for row in log.rows(limit=NEWEST)), default=None)
    if newest is None:
        return ""
    if newest > now_ms + AHEAD_MS:
        return (
            f"the clock says {timestamp(now_ms)}, and the newest record is of {timestamp(newest)}"
        )
    if newest < now_ms - LONG_MS:
        days = (now_ms - newest) // 86_400_000
        return f"by the clock nothing was recorded for {days} days, since {timestamp(newest)}"
    return ""


def jump_words(jump_ms: int) -> str:
    """A jump of the clock while a process lives, for a log."""
    where = "forward" if jump_ms > 0 else "back"
    return (
        f"the clock of this machine was set {where} by {abs(jump_ms) // 1_000} seconds; times and "
        "limits here go on as before until the next start"
    )
