"""Views of runs that are not JSON alone: the chart of its metrics, and the transcript."""

from starlette.responses import Response

from loopwright.http.operation_routes import app_of, caller_of
from loopwright.http.requests import Answer, Route, RouteFamily, RouteRequest
from loopwright.http.routes.events import EventsQuery, StreamOptions, cursor, streamed, wants_stream
from loopwright.operations.loops.dialect_events import event_view
from loopwright.operations.use_cases.operation import RunReference
from loopwright.operations.use_cases.run_views import LogPage, ReadLogs, read_logs, read_metrics
from loopwright.views.metrics import metrics_chart

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
        return streamed(request, run, telling)
    wanted = ReadLogs(run=run, after=query.after or 0, limit=query.limit)
    return await read_logs(context.part(app_of), caller_of(request.who), wanted)


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
