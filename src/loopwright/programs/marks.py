"""Which process exactly: a pid alone is reused, pid with start time and boot is not.

Elsewhere than on Linux, or where /proc is that of other numbers, the start time is unknown (0),
and a mark is as good as its pid.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from loopwright.programs.supervise import HAS_TABLE, read_entry

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
