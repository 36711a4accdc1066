"""Whether the disk of the data directory takes writes, tried now and then and not by every request.

A server that reads well and cannot write is not ready: whatever is started there would not move.
"""

import asyncio
import os
from pathlib import Path

from loopwright.app.places import unusable
from loopwright.server.context import Context

PROBE = "disk.probe"
PROBE_BYTES = 65_536  # a commit or two
KEPT_MS = 5_000
SECONDS = 2.0
WELL, SLOW = "ok", "slow"


class Disk:
    """One for a server. Who asks gets what was found in the last seconds, or waits for a try."""

    def __init__(self, context: Context) -> None:
        self._home = context.settings.home
        self._clock = context.clock
        self._found = WELL
        self._until = 0
        self._trying: asyncio.Future[str] | None = None

    async def state(self) -> str:
        """`ok`, or in a word why nothing can be written."""
        if self._trying is None and self._clock.now_ms() < self._until:
            return self._found
        if self._trying is None:  # else one hangs there, and a second would hang too
            self._trying = asyncio.ensure_future(asyncio.to_thread(tried, self._home))
            self._trying.add_done_callback(self._ended)
        done, _ = await asyncio.wait([self._trying], timeout=SECONDS)
        return self._found if done else SLOW

    def _ended(self, trying: "asyncio.Future[str]") -> None:
        self._trying = None
        if not trying.cancelled():
            self._found = trying.result()
            self._until = self._clock.now_ms() + KEPT_MS


def tried(home: Path) -> str:
    """Write a little, and take it away again."""
    place = home / PROBE
    try:
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, bytes(PROBE_BYTES))
            os.fsync(handle)
        finally:
            os.close(handle)
        place.unlink()
    except OSError as error:
        return unusable(home, error).code
    return WELL
