"""A cache of run views for a server.

A cached view is always the fold of the events up to its number. A long run is followed while it is
running, and its last view is stored: folding a million events takes half a minute. Runs that other
processes changed before the server started are folded when the server is idle.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from loopwright import __version__
from loopwright.errors import LoopwrightError
from loopwright.operations.run_tail import EventFeed
from loopwright.operations.runs import Service, row_ended
from loopwright.operations.use_cases.run_queries import detail
from loopwright.ports import PICTURE, RecordStore, RunRow, StoredRecord
from loopwright.views.run_responses import RunSnapshot
from loopwright.views.run_view import RunView
from loopwright.workers.background_tasks import BackgroundTask

MOST = 256
MOST_ENDED = 16  # of them, views of ended runs, which are rarely read again
MOST_ITERATIONS = 10_000  # in all views together, about 1 kB each
AT_ONCE = 500  # events folded before other requests get their turn
LONG = 2_000  # events
NEWEST = 1_000  # runs that are folded when a server starts
FOLLOW_SECONDS = 5.0
MOST_BYTES = 2_000_000  # of a record
MADE_BY = f"{__version__} {' '.join(RunSnapshot.__struct_fields__)}"
"""A record of another version is useless: its view may differ."""


class Kept(msgspec.Struct):
    """The last view of a long run that has ended."""

    made_by: str
    seq: int
    shown: RunSnapshot


class ViewCache:
    """The newest views, by run."""

    def __init__(self, service: Service, records: RecordStore, most: int = MOST) -> None:
        self._service, self._records = service, records
        self._most = most
        self._kept: OrderedDict[str, RunView] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()  # those of them that have ended
        self._long: set[str] = set()

    async def picture(self, run: str) -> RunView:
        """The current view of a run; NotFound if there is none.

        Concurrent requests for the same run update the same view, so no event is read twice.
        """
        version = self._service.log.version(run)
        picture = self._kept.get(run) or self._new(run)
        self._kept.move_to_end(run)
        more = picture.seen < version
        while more:
            try:
                more = picture.carry_on(AT_ONCE)
            except Exception:
                self._kept.pop(run, None)
                raise
            if more:
                await asyncio.sleep(0)  # other tasks get their turn
        self._keep_few_ended(run, picture)
        return picture

    def _keep_few_ended(self, run: str, picture: RunView) -> None:
        """The cache favours active runs over ended ones."""
        self._ended.pop(run, None)
        if picture.state.finished is not None:
            self._ended[run] = None
            while len(self._ended) > MOST_ENDED:
                oldest, _ = self._ended.popitem(last=False)
                self._kept.pop(oldest, None)

    def _new(self, run: str) -> RunView:
        picture = self._kept[run] = RunView(self._service, run)
        while len(self._kept) > self._most or self._are_large():
            self._kept.popitem(last=False)
        return picture

    def _are_large(self) -> bool:
        """Whether older views have to be removed."""
        held = sum(len(one.progress.passes) for one in self._kept.values())
        return held > MOST_ITERATIONS and len(self._kept) > 1

    async def snapshot(self, run: str) -> RunSnapshot:
        """Everything that a page shows of a run, with the number of its newest event."""
        row = self._service.log.row(run)
        found = self._found(row)
        if found is not None:
            return found
        picture = await self.picture(run)
        shown = detail(self._service, picture)
        if picture.seen >= LONG and row_ended(row) and row.version == picture.seen:
            self._keep(run, shown)
        return shown

    # -- long runs -----------------------------------------------------------------------------

    async def work(self, feed: EventFeed) -> None:
        """Update the views of long runs in advance, so that no request waits for them."""
        work = BackgroundTask("carrying pictures of runs on")
        with work.round():
            self._long.update(self._unseen())
        await asyncio.sleep(FOLLOW_SECONDS)
        async for runs in feed.changes(FOLLOW_SECONDS, FOLLOW_SECONDS):
            for run in {*self._long, *runs}:
                self._long.discard(run)
                # it was deleted, or is damaged
                with work.round(), contextlib.suppress(LoopwrightError):
                    if feed.version(run) >= LONG:
                        await self.snapshot(run)

    def _unseen(self) -> Iterator[str]:
        """Long runs from before: active ones, and the newest without a stored view."""
        for row in self._service.log.rows(limit=NEWEST):
            if row.version >= LONG and (not row_ended(row) or self._found(row) is None):
                yield row.run

    def _found(self, row: RunRow) -> RunSnapshot | None:
        """The stored view of a run that has ended, if it is of that end."""
        if row.version < LONG or row.run in self._kept or not row_ended(row):
            return None
        record = self._records.record(PICTURE, row.run)
        if record is None:
            return None
        with contextlib.suppress(msgspec.MsgspecError):
            kept = msgspec.json.decode(record.body, type=Kept)
            if (kept.made_by, kept.seq) == (MADE_BY, row.version):
                return kept.shown
        return None

    def _keep(self, run: str, shown: RunSnapshot) -> None:
        body = msgspec.json.encode(Kept(made_by=MADE_BY, seq=shown.seq, shown=shown))
        if len(body) <= MOST_BYTES:
            self._records.change([(StoredRecord(kind=PICTURE, key=run, body=body), None)])
