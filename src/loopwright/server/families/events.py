"""The facts of a run: as a stream of server-sent events, or as pages of JSON. The same log."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from loopwright.app.views.progress import Progress
from loopwright.app.views.wire import fact_on_wire
from loopwright.model.record import JsonValue
from loopwright.ports import OPEN_STATUSES, Numbered
from loopwright.server.context import Context
from loopwright.server.refusals import Refusal
from loopwright.server.routes import Answer, Asked, Family, Query, Route
from loopwright.server.shapes import EventPage
from loopwright.server.streaming import HEADERS, STREAM, Telling, facts_of, stream

Told: TypeAlias = Callable[[Numbered], dict[str, JsonValue]]


class EventsQuery(Query):
    """From which number on, and how many at most."""

    after: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 200


class FactsQuery(EventsQuery):
    """The same; with `words` a fact that is worth a line has it, as people read it (`told`). With
    `text` a stream has events named `delta`, without an id: text as agents write it; with `tail`
    too, the first one has the end of what the call under way has written before.
    """

    words: bool = False
    text: bool = False
    tail: bool = False


async def events(asked: Asked) -> Answer:
    run, query = asked.params["run"], asked.query(FactsQuery)
    asked.context.here.log.row(run)  # refused before anything is sent, if there is none
    told = _in_words(asked.context, run) if query.words else partial(fact_on_wire, run)
    if wants_stream(asked.request):
        after = cursor(asked.request, query.after)
        tail = query.text and query.tail
        telling = Telling(after=after, told=told, whole=query.words, text=query.text, tail=tail)
        return streamed(asked, run, telling)
    if query.words and query.after:
        async for one in facts_of(asked.context, run):
            if one.seq > query.after:
                break
            told(one)
    return _page(asked.context, run, query, told)


def _in_words(context: Context, run: str) -> Told:
    """Facts with the lines that tell them; it has to be given all of them, from the first on."""
    service = context.service
    first = service.log.read(run, limit=1) or service.facts(run)  # which tells what is wrong
    progress = Progress(service.plan(first[0].fact), service.read_text)

    def told(numbered: Numbered) -> dict[str, JsonValue]:
        line = progress.take(numbered)
        words: dict[str, JsonValue] = {"told": asdict(line)} if line is not None else {}
        return fact_on_wire(run, numbered) | words

    return told


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


def _page(context: Context, run: str, query: EventsQuery, told: Told) -> Answer:
    log, after = context.here.log, query.after or 0
    facts = log.read(run, after=after, limit=query.limit)
    version = log.version(run)
    last = facts[-1].seq if facts else after
    return {
        "run": run,
        "events": [told(one) for one in facts],
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
            query=FactsQuery,
            answer=EventPage,
            streams=True,
            also=(204,),
        ),
    ),
)
