"""Events of a run as a stream of server-sent events or as pages of JSON, from the same log; its
transcript in the same way, and the chart of its metrics.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from loopwright.errors import StorageError
from loopwright.http.context import Context, RequestLimits
from loopwright.http.operation_routes import app_of, caller_of
from loopwright.http.requests import Answer, Query, Route, RouteFamily, RouteRequest
from loopwright.http.responses import RequestRefusal
from loopwright.kernel.events import RunFinished
from loopwright.model.record import JsonValue
from loopwright.operations.api_types import EventPage
from loopwright.operations.loops.dialect_events import Records, event_view
from loopwright.operations.run_tail import RunTail, follow_text
from loopwright.operations.use_cases.operation import RunReference
from loopwright.operations.use_cases.run_views import (
    LogPage,
    ReadEvents,
    ReadLogs,
    follow,
    read_events,
    read_logs,
    read_metrics,
)
from loopwright.ports import OPEN_STATUSES, Delta, NumberedEvent
from loopwright.views.metrics import metrics_chart

AT_ONCE = 500
RETRY_MS = 1_000
MOST_TEXTS = 200  # pieces of text that wait for a client
TEXT_CHARS = 10_000  # of one of them
STREAM = "text/event-stream"
KEEP_ALIVE = b": still here\n\n"
EARLY = 0.95  # of the time that is promised, so that it holds where there is much to do as well
HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Which events are in a stream, and in which form."""

    after: int  # what has a number up to this is known already
    records: Callable[[NumberedEvent], Records]  # what is sent for an event
    whole: bool = False  # whether it also needs the events up to `after`
    follow: bool = True  # else the stream ends with what there is now, and says so
    has_names: bool = False  # whether each record is sent under its type
    now: Callable[[], float] = time.monotonic
    text: bool = False  # whether what agents write is sent, too, as events without a number
    tail: bool = False  # with the end of what the call under way has written before


class LiveTextBuffer:
    """What agents write in a run, until it is sent. A slow client misses the oldest of it."""

    def __init__(self, run: str, *, held: bool = False) -> None:
        self.run = run
        self.is_held = held
        self._waiting: deque[bytes] = deque(maxlen=MOST_TEXTS)
        self.wake: Callable[[], None] = lambda: None  # lets the stream send what waits

    def take(self, delta: Delta) -> None:
        if delta.run == self.run:
            value = {
                "kind": "delta",
                "run": delta.run,
                "effect": delta.effect,
                "said": delta.kind,
                "text": delta.text[-TEXT_CHARS:],
            }
            self._waiting.append(_event("delta", value))
            self.wake()

    def start_with(self, tail: Delta | None) -> None:
        """Hold back no longer; the end of what was written before has everything that waits."""
        self.is_held = False
        if tail is not None:
            self._waiting.clear()
            self.take(tail)

    def frames(self) -> bytes:
        if self.is_held:
            return b""
        found = b"".join(self._waiting)
        self._waiting.clear()
        return found


class StreamPause:
    """How long a stream was silent: a comment must show in time that it is alive."""

    def __init__(self, limits: RequestLimits, now: Callable[[], float] = time.monotonic) -> None:
        self._most, self._recheck = limits.heartbeat_seconds * EARLY, limits.recheck_seconds
        self._now, self._since = now, now()

    def over(self) -> None:
        """Note that something was sent."""
        self._since = self._now()

    @property
    def too_long(self) -> bool:
        return self._left() <= 0

    @property
    def patience(self) -> float:
        """For how many seconds something may be waited for, before anything has to be done."""
        return max(0.0, min(self._recheck, self._left()))

    def _left(self) -> float:
        return round(self._since + self._most - self._now(), 3)


async def stream(request: RouteRequest, run: str, telling: StreamOptions) -> AsyncIterator[bytes]:
    """All events after a number, then new ones, until the run has ended or the client
    disconnects.
    """
    yield f"retry: {RETRY_MS}\n\n".encode()
    version = request.context.here.log.version(run)
    if telling.after > version:
        yield _event("resync", {"run": run, "seq": version})
        return
    written = LiveTextBuffer(run, held=telling.tail)
    end = request.context.here.bus.listen(written.take) if telling.text else None
    relays = [_relay(request.context, written, tail=telling.tail)] if telling.text else []
    tasks = [asyncio.ensure_future(one) for one in relays]
    try:
        async for frame in _stream(request, run, telling, written):
            yield frame
    finally:
        if end is not None:
            end()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _relay(context: Context, written: LiveTextBuffer, *, tail: bool) -> None:
    """Take in what agents write in a run that another process of this machine drives."""
    here, run = context.here, written.run
    relayed = follow_text(here.log, context.settings.home, run, own=here.driver.token, tail=tail)
    async with contextlib.aclosing(relayed) as deltas:
        async for delta, is_tail in deltas:
            if not is_tail or await _is_under_way(context, delta):
                written.take(delta)


async def _stream(
    request: RouteRequest, run: str, telling: StreamOptions, written: LiveTextBuffer
) -> AsyncIterator[bytes]:
    context, log = request.context, request.context.here.log
    quiet = StreamPause(context.serving.limits, telling.now)
    tail = RunTail(
        context.feed, run, partial(_read, context), 0 if telling.whole else telling.after
    )
    written.wake = tail.wake
    async for events in tail.batches(lambda: quiet.patience):
        if context.closing.is_set() or not context.people.still(request.who):
            return
        frames = KEEP_ALIVE if quiet.too_long else b""
        frames += written.frames() + b"".join(_frame(one, telling) for one in events)
        if frames:
            yield frames
            quiet.over()
        if events:
            await asyncio.sleep(0)  # others have their turn
        if tail.seen >= log.version(run):
            if not telling.follow:
                yield _event("end", {"run": run, "seq": tail.seen})
                return
            if _ended(context, run, events):
                return
            if written.is_held:  # until the events that led to the text were sent
                await _release(context, written)
                tail.wake()


async def _release(context: Context, written: LiveTextBuffer) -> None:
    """Send text from now on, first the end of what the call under way has written."""
    tail = context.here.live.tail(written.run)
    is_open = tail is not None and await _is_under_way(context, tail)
    written.start_with(tail if is_open else None)


async def _is_under_way(context: Context, delta: Delta) -> bool:
    """Whether the call that wrote a text has not ended."""
    picture = await context.gallery.picture(delta.run)
    return delta.effect in picture.state.pending


def _read(context: Context, run: str, after: int) -> list[NumberedEvent]:
    try:
        return context.here.log.read(run, after=after, limit=AT_ONCE)
    except StorageError as error:
        if error.code == "damaged":
            raise
        return []


def _ended(context: Context, run: str, newest: list[NumberedEvent]) -> bool:
    if newest:
        return isinstance(newest[-1].event, RunFinished)
    return context.here.log.row(run).headline.status not in OPEN_STATUSES


def _frame(numbered: NumberedEvent, telling: StreamOptions) -> bytes:
    records = telling.records(numbered)
    if numbered.seq <= telling.after:
        return b""
    return b"".join(_named_frame(numbered.seq, one, telling) for one in records)


def _named_frame(seq: int, record: dict[str, JsonValue], telling: StreamOptions) -> bytes:
    name = b"event: %s\n" % str(record["type"]).encode() if telling.has_names else b""
    return b"id: %d\n%sdata: %s\n\n" % (seq, name, msgspec.json.encode(record))


def _event(name: str, value: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))


class EventsQuery(Query):
    """From which number on, and how many at most."""

    after: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 200


class EventTextQuery(EventsQuery):
    """The same; with `words` an event that is worth a line has it, as people read it (`told`). With
    `text` a stream has events named `delta`, without an id: text as agents write it; with `tail`
    too, the first one has the end of what the call under way has written before.
    """

    words: bool = False
    text: bool = False
    tail: bool = False


async def events(request: RouteRequest) -> Answer:
    run, query = request.params["run"], request.query(EventTextQuery)
    request.context.here.log.row(run)  # refused before anything is sent, if there is none
    if wants_stream(request.request):
        records = event_view(request.context.service, run, "words" if query.words else "events")
        after = cursor(request.request, query.after)
        tail = query.text and query.tail
        telling = StreamOptions(
            after=after, records=records, whole=query.words, text=query.text, tail=tail
        )
        return await streamed(request, run, telling)
    wanted = ReadEvents(run=run, after=query.after or 0, limit=query.limit, words=query.words)
    return await read_events(request.context.part(app_of), caller_of(request.who), wanted)


async def streamed(request: RouteRequest, run: str, telling: StreamOptions) -> Response:
    """Server-sent events; none for a run that has ended and of which everything is known."""
    app, caller = request.context.part(app_of), caller_of(request.who)
    found = await follow(app, caller, RunReference(run=run))
    if telling.after >= found.seq and not found.is_open:
        return Response(status_code=204)  # a browser does not come back after this
    return StreamingResponse(stream(request, run, telling), media_type=STREAM, headers=HEADERS)


def wants_stream(request: Request) -> bool:
    """Whether a stream is asked for, and not pages."""
    accept = request.headers.get("accept", "*/*").lower()
    return STREAM in accept or "application/json" not in accept


def cursor(request: Request, after: int | None) -> int:
    """Where to continue: a browser that reconnects sends a header, which is newer."""
    given = request.headers.get("last-event-id", "").strip()
    if not given:
        return after or 0
    if not (given.isascii() and given.isdigit()) or len(given) > 12:
        raise RequestRefusal(400, "bad-cursor", "Last-Event-ID is the number of an event")
    return int(given)


FAMILY = RouteFamily(
    name="events",
    prefix="/api/v1/runs",
    routes=(
        Route(
            method="GET",
            path="/api/v1/runs/{run}/events",
            handle=events,
            need="viewer",
            say="Events of a run: server-sent events, or JSON if only JSON is accepted",
            query=EventTextQuery,
            answer=EventPage,
            streams=True,
            also=(204,),
        ),
    ),
)


BASE = "/api/v1/runs/{run}"
SVG = "image/svg+xml"


class LogsQuery(EventsQuery):
    """From which number on, and how many at most; a stream with `follow=false` has an end. With
    `text` a stream has events named `delta`, without an id: text as agents write it; with `tail`
    too, the first one has the end of what the call under way has written before.
    """

    follow: bool = True
    text: bool = False
    tail: bool = False


async def picture(request: RouteRequest) -> Answer:
    run = request.params["run"]
    title = request.context.here.log.row(run).headline.name
    app = request.context.part(app_of)
    figures = await read_metrics(app, caller_of(request.who), RunReference(run=run))
    drawn = metrics_chart(figures, title=title)
    alone = {"Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'"}
    return Response(drawn, media_type=SVG, headers=alone)


async def logs(request: RouteRequest) -> Answer:
    run, query, context = request.params["run"], request.query(LogsQuery), request.context
    if wants_stream(request.request):
        context.here.log.row(run)  # refused before anything is sent, if there is none
        records = event_view(context.service, run, "transcript")
        after = cursor(request.request, query.after)
        telling = StreamOptions(
            after=after,
            records=records,
            whole=True,
            follow=query.follow,
            text=query.text,
            tail=query.text and query.tail,
        )
        return await streamed(request, run, telling)
    wanted = ReadLogs(run=run, after=query.after or 0, limit=query.limit)
    return await read_logs(context.part(app_of), caller_of(request.who), wanted)


VIEWS_FAMILY = RouteFamily(
    name="run views",
    prefix="/api/v1/runs",
    routes=(
        Route(
            method="GET",
            path=f"{BASE}/picture",
            handle=picture,
            need="viewer",
            say="Findings and spend of every round, drawn as SVG",
            answer=str,
            media=SVG,
        ),
        Route(
            method="GET",
            path=f"{BASE}/logs",
            handle=logs,
            need="viewer",
            say="The messages of agents, checks and people: server-sent events, or JSON if "
            "only that is accepted",
            query=LogsQuery,
            answer=LogPage,
            streams=True,
            also=(204,),
        ),
    ),
)
