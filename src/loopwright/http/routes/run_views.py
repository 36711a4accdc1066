"""Views of runs that are not JSON alone: the chart of its metrics, and the transcript."""

from typing import Annotated

import msgspec
from starlette.responses import Response

from loopwright.http.operation_routes import app_of
from loopwright.http.requests import Answer, Query, Route, RouteFamily, RouteRequest
from loopwright.http.routes.events import StreamOptions, cursor, events_of, streamed, wants_stream
from loopwright.operations.loops.event_views import event_view
from loopwright.operations.use_cases.run_views import metrics_of
from loopwright.views.metrics import metrics_chart
from loopwright.views.transcript import LogEntry


class LogPage(msgspec.Struct):
    """The transcript of a run, in order; continue after `next`, which is None at the newest."""

    run: str
    entries: list[LogEntry]
    seq: int
    next: int | None


BASE = "/api/v1/runs/{run}"
SVG = "image/svg+xml"


class LogsQuery(Query):
    """From which number on, and how many at most; a stream with `follow=false` has an end. With
    `text` a stream has events named `delta`, without an id: text as agents write it; with `tail`
    too, the first one has the end of what the call under way has written before.
    """

    after: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 200
    follow: bool = True
    text: bool = False
    tail: bool = False


async def picture(request: RouteRequest) -> Answer:
    run = request.params["run"]
    title = request.context.here.log.row(run).headline.name
    figures = await metrics_of(request.context.part(app_of), run)
    drawn = metrics_chart(figures, title=title)
    alone = {"Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'"}
    return Response(drawn, media_type=SVG, headers=alone)


async def logs(request: RouteRequest) -> Answer:
    run, query, service = request.params["run"], request.query(LogsQuery), request.context.service
    version = request.context.here.log.row(run).version
    records = event_view(service, run, "transcript")
    if wants_stream(request.request):
        after = cursor(request.request, query.after)
        telling = StreamOptions(
            after=after,
            records=records,
            whole=True,
            follow=query.follow,
            text=query.text,
            tail=query.text and query.tail,
        )
        return streamed(request, run, telling)
    after = query.after or 0
    entries: list[LogEntry] = []
    more: int | None = None
    async for one in events_of(request.context, run):
        found = records(one)
        if not found or one.seq <= after:
            continue
        if len(entries) == query.limit:
            more = entries[-1].seq
            break
        entries += [msgspec.convert(entry, LogEntry) for entry in found]
    return LogPage(run=run, entries=entries, seq=version, next=more)


FAMILY = RouteFamily(
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
