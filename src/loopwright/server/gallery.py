"""Pictures of runs that are kept and carried on fact by fact, so that looking at a run twice does
not fold its log twice. A picture is always the fold of the facts up to its number.
"""

import asyncio
from collections import OrderedDict

from loopwright.app.service import Service
from loopwright.app.views.pictures import Picture

MOST = 256
AT_ONCE = 2_000  # facts between two looks at other requests


class Gallery:
    """The newest pictures, by run."""

    def __init__(self, service: Service, most: int = MOST) -> None:
        self._service = service
        self._most = most
        self._kept: OrderedDict[str, Picture] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}

    async def picture(self, run: str) -> Picture:
        """The picture of a run as it is now; NotFound if there is none."""
        self._service.log.version(run)
        lock = self._locks.setdefault(run, asyncio.Lock())
        try:
            async with lock:
                return await self._carried_on(run)
        finally:
            if not lock.locked():
                self._locks.pop(run, None)

    async def _carried_on(self, run: str) -> Picture:
        kept = self._kept.pop(run, None)
        picture = kept if kept is not None else Picture(self._service, run)
        more = True
        while more:
            more = picture.carry_on(AT_ONCE)
            await asyncio.sleep(0)  # others have their turn
        self._kept[run] = picture
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return picture
