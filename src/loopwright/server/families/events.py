"""The facts of a run: as a stream of server-sent events, or as pages of JSON. The same log."""

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from loopwright.app.views.wire import fact_on_wire
from loopwright.errors import StorageError
from loopwright.kernel.facts import RunFinished
from loopwright.ports import OPEN_STATUSES, Numbered
from loopwright.server.context import Context
from loopwright.server.refusals import Refusal
from loopwright.server.routes import Answer, Asked, Family, Query, Route
from loopwright.server.shapes import EventPage

AT_ONCE = 500
RETRY_MS = 1_000
STREAM = "text/event-stream"


class EventsQuery(Query):
    """From which number on, and how many at most."""

    after: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 200


async def events(asked: Asked) -> Answer:
    run, query = asked.params["run"], asked.query(EventsQuery)
    row = asked.context.here.log.row(run)
    if not wants_stream(asked.request):
        return _page(asked.context, run, query.after or 0, query.limit)
    after = cursor(asked.request, query)
    if after >= row.version and row.headline.status not in OPEN_STATUSES:
        return Response(status_code=204)  # a browser does not come back after this
    headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    return StreamingResponse(_stream(asked, run, after), media_type=STREAM, headers=headers)


def wants_stream(request: Request) -> bool:
    """Whether a stream is asked for, and not pages."""
    accept = request.headers.get("accept", "*/*").lower()
    return STREAM in accept or "application/json" not in accept


def cursor(request: Request, query: EventsQuery) -> int:
    """Where to go on: a browser that comes back says so in a header, which is newer."""
    given = request.headers.get("last-event-id", "").strip()
    if not given:
        return query.after or 0
    if not (given.isascii() and given.isdigit()) or len(given) > 12:
        raise Refusal(400, "bad-cursor", "Last-Event-ID is the number of an event")
    return int(given)


def _page(context: Context, run: str, after: int, limit: int) -> Answer:
    log = context.here.log
    facts = log.read(run, after=after, limit=limit)
    version = log.version(run)
    last = facts[-1].seq if facts else after
    return {
        "run": run,
        "events": [fact_on_wire(run, one) for one in facts],
        "seq": version,
        "next": last if last < version else None,
    }


async def _stream(asked: Asked, run: str, after: int) -> AsyncIterator[bytes]:
    """Everything after a number, then what comes, until the run has ended or somebody leaves."""
    context, log = asked.context, asked.context.here.log
    limits, quiet_s = context.serving.limits, 0.0
    yield f"retry: {RETRY_MS}\n\n".encode()
    if after > log.version(run):
        yield _event("resync", {"run": run, "seq": log.version(run)})
        return
    while not context.closing.is_set() and context.people.still(asked.who):
        facts = _read(context, run, after)
        if facts:
            yield b"".join(_frame(run, one) for one in facts)
            after, quiet_s = facts[-1].seq, 0.0
        if after >= log.version(run) and _ended(context, run, facts):
            return
        step = min(limits.recheck_seconds, limits.heartbeat_seconds)
        if not await context.feed.moved(run, after, step):
            quiet_s += step
            if quiet_s >= limits.heartbeat_seconds:
                quiet_s = 0.0
                yield b": still here\n\n"


def _read(context: Context, run: str, after: int) -> list[Numbered]:
    try:
        return context.here.log.read(run, after=after, limit=AT_ONCE)
    except StorageError as error:
        if error.code == "damaged":
            raise
        return []


def _ended(context: Context, run: str, newest: list[Numbered]) -> bool:
    if newest:
        return isinstance(newest[-1].fact, RunFinished)
    return context.here.log.row(run).headline.status not in OPEN_STATUSES


def _frame(run: str, numbered: Numbered) -> bytes:
    data = msgspec.json.encode(fact_on_wire(run, numbered))
    return b"id: %d\ndata: %s\n\n" % (numbered.seq, data)


def _event(name: str, value: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))


FAMILY = Family(
    name="events",
    prefix="/api/v1/runs",
    routes=(
        Route(
            method="GET",
            path="/api/v1/runs/{run}/events",
            handle=events,
            need="viewer",
            say="The facts of a run: server-sent events, or JSON where that is accepted alone",
            query=EventsQuery,
            answer=EventPage,
            streams=True,
            also=(204,),
        ),
    ),
)
