"""The facts of a run: as a stream of server-sent events, or as pages of JSON. The same log."""

from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from loopwright.app.views.wire import fact_on_wire
from loopwright.ports import OPEN_STATUSES
from loopwright.server.context import Context
from loopwright.server.refusals import Refusal
from loopwright.server.routes import Answer, Asked, Family, Query, Route
from loopwright.server.shapes import EventPage
from loopwright.server.streaming import HEADERS, STREAM, Telling, stream


class EventsQuery(Query):
    """From which number on, and how many at most."""

    after: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 200


async def events(asked: Asked) -> Answer:
    run, query = asked.params["run"], asked.query(EventsQuery)
    asked.context.here.log.row(run)  # refused before anything is sent, if there is none
    if not wants_stream(asked.request):
        return _page(asked.context, run, query.after or 0, query.limit)
    after = cursor(asked.request, query.after)
    return streamed(asked, run, Telling(after=after, told=lambda one: fact_on_wire(run, one)))


def streamed(asked: Asked, run: str, telling: Telling) -> Response:
    """Server-sent events; none for a run that has ended and of which everything is known."""
    row = asked.context.here.log.row(run)
    if telling.after >= row.version and row.headline.status not in OPEN_STATUSES:
        return Response(status_code=204)  # a browser does not come back after this
    return StreamingResponse(stream(asked, run, telling), media_type=STREAM, headers=HEADERS)


def wants_stream(request: Request) -> bool:
    """Whether a stream is asked for, and not pages."""
    accept = request.headers.get("accept", "*/*").lower()
    return STREAM in accept or "application/json" not in accept


def cursor(request: Request, after: int | None) -> int:
    """Where to go on: a browser that comes back says so in a header, which is newer."""
    given = request.headers.get("last-event-id", "").strip()
    if not given:
        return after or 0
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
