"""What a run has to show: its figures, as a picture too, what one place said, what all said."""

from typing import Annotated

import msgspec
from starlette.responses import Response

from loopwright.app.snapshot_operations import RunSnapshots
from loopwright.app.views.activity import ActivityFilter, activity_items, count_dropped
from loopwright.app.views.certificate import run_certificate
from loopwright.app.views.iteration_names import IterationNames
from loopwright.app.views.logbook import Logbook
from loopwright.app.views.metrics import Counting, Metrics
from loopwright.app.views.outputs import Outputs
from loopwright.app.views.picture import picture_of
from loopwright.kernel.facts import EffectActivity, IterationStarted
from loopwright.model.ids import ITERATION_PATTERN
from loopwright.model.record import JsonValue
from loopwright.ports import ActivityKind, Numbered
from loopwright.server.families.events import cursor, streamed, wants_stream
from loopwright.server.routes import Answer, Asked, Family, Query, Route
from loopwright.server.streaming import Telling, facts_of
from loopwright.server.view_shapes import (
    ActivityPage,
    LogPage,
    RunCertificate,
    RunDiff,
    RunFigures,
    RunOutput,
)

BASE = "/api/v1/runs/{run}"
SVG = "image/svg+xml"


IterationName = Annotated[str, msgspec.Meta(pattern=f"^{ITERATION_PATTERN}$")]


class OutputQuery(Query):
    """The path of a step or a pass, such as main.0.plan."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=4_000)]


class DiffQuery(Query):
    """Without numbers the whole run; `from` alone is one iteration, with `to` two are compared.
    Iterations count from 1, and 0 is before the first one; after a restart `2~1` is iteration 2 of
    the first try. `paths` has one pattern on each line.
    """

    start: IterationName | None = msgspec.field(default=None, name="from")
    end: IterationName | None = msgspec.field(default=None, name="to")
    stat: bool = False
    paths: Annotated[str, msgspec.Meta(max_length=10_000)] | None = None


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


class ActivityQuery(Query):
    """Which entries: of one effect, iteration (`2`, after a restart also `2~1`) or kind, in events
    after a number. A page ends with the event that fills it. With `full`, arguments and results
    are not cut.
    """

    effect: Annotated[str, msgspec.Meta(min_length=1, max_length=4_000)] | None = None
    iteration: Annotated[str, msgspec.Meta(pattern=f"^(?!0){ITERATION_PATTERN}$")] | None = None
    kind: ActivityKind | None = None
    after: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 200
    full: bool = False


async def figures(asked: Asked) -> Answer:
    run = asked.params["run"]
    return {"run": run, **(await _metrics(asked, run)).as_dict()}


async def picture(asked: Asked) -> Answer:
    run = asked.params["run"]
    title = asked.context.here.log.row(run).headline.name
    drawn = picture_of(await _metrics(asked, run), title=title)
    alone = {"Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'"}
    return Response(drawn, media_type=SVG, headers=alone)


async def _metrics(asked: Asked, run: str) -> Metrics:
    counting = Counting(asked.context.service.read_text)
    async for one in facts_of(asked.context, run):
        counting.take(one.fact)
    return counting.told()


async def output(asked: Asked) -> Answer:
    run = asked.params["run"]
    outputs = Outputs(asked.context.service, run)
    async for one in facts_of(asked.context, run):
        outputs.take(one.fact)
    return outputs.at(asked.query(OutputQuery).path)


async def diff(asked: Asked) -> Answer:
    """The files that differ, and the diff itself unless only the counts are wanted."""
    run, query = asked.params["run"], asked.query(DiffQuery)
    snapshots = RunSnapshots(asked.context.service, asked.context.here.workspaces, run)
    told = (await snapshots.changes(query.start, query.end)).as_dict()
    if query.stat:
        return {**told, "diff": None}
    paths = [one for one in (query.paths or "").splitlines() if one]
    return {**told, "diff": await snapshots.diff(query.start, query.end, paths=paths)}


async def certificate(asked: Asked) -> Answer:
    return run_certificate(asked.context.service, asked.params["run"]).as_dict()


async def logs(asked: Asked) -> Answer:
    run, query, service = asked.params["run"], asked.query(LogsQuery), asked.context.service
    version = asked.context.here.log.row(run).version
    first = service.log.read(run, limit=1) or service.facts(run)  # which tells what is wrong
    book = Logbook(service.plan(first[0].fact), service.read_text)

    def told(numbered: Numbered) -> dict[str, JsonValue] | None:
        entry = book.take(numbered)
        return None if entry is None else entry.as_dict()

    if wants_stream(asked.request):
        after = cursor(asked.request, query.after)
        telling = Telling(
            after=after,
            told=told,
            whole=True,
            follow=query.follow,
            text=query.text,
            tail=query.text and query.tail,
        )
        return streamed(asked, run, telling)
    after = query.after or 0
    entries: list[dict[str, JsonValue]] = []
    more: int | None = None
    async for one in facts_of(asked.context, run):
        entry = told(one)
        if entry is None or one.seq <= after:
            continue
        if len(entries) == query.limit:
            more = int(str(entries[-1]["seq"]))
            break
        entries.append(entry)
    return {"run": run, "entries": entries, "seq": version, "next": more}


async def activity(asked: Asked) -> Answer:
    run, query, context = asked.params["run"], asked.query(ActivityQuery), asked.context
    version = context.here.log.row(run).version
    number, attempt = await _iteration(asked, run, query.iteration)
    wanted = ActivityFilter(effect=query.effect, iteration=number, attempt=attempt, kind=query.kind)
    read = context.service.read_text if query.full else None
    entries: list[dict[str, JsonValue]] = []
    dropped: dict[str, int] = {}
    last = query.after
    async for one in facts_of(context, run, query.after):
        if one.seq > version or len(entries) >= query.limit:
            break
        last = one.seq
        fact = one.fact
        if not isinstance(fact, EffectActivity):
            continue
        entries += activity_items([one], read, wanted)
        count_dropped(dropped, fact, wanted)
    more = last if last < version else None
    return {
        "run": run,
        "entries": entries,
        "dropped": sum(dropped.values()),
        "dropped_by_call": {**dropped},
        "seq": version,
        "next": more,
    }


async def _iteration(asked: Asked, run: str, name: str | None) -> tuple[int | None, int | None]:
    """The number and the try that a name stands for."""
    if name is None:
        return None, None
    names = IterationNames()
    async for one in facts_of(asked.context, run):
        if isinstance(one.fact, IterationStarted):
            names.add(one.fact.path, one.fact.iteration)
    return names.find(run, name)


FAMILY = Family(
    name="run views",
    prefix="/api/v1/runs",
    routes=(
        Route(
            method="GET",
            path=f"{BASE}/metrics",
            handle=figures,
            need="viewer",
            say="Time, calls, tokens and cost of each iteration, step and agent (`show --metrics`)",
            answer=RunFigures,
        ),
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
            path=f"{BASE}/output",
            handle=output,
            need="viewer",
            say="All that one step or pass said",
            query=OutputQuery,
            answer=RunOutput,
        ),
        Route(
            method="GET",
            path=f"{BASE}/activity",
            handle=activity,
            need="viewer",
            say="What agents did: tool calls, commands, edited files",
            query=ActivityQuery,
            answer=ActivityPage,
        ),
        Route(
            method="GET",
            path=f"{BASE}/diff",
            handle=diff,
            need="viewer",
            say="What a run changed in its workspace, as its snapshots tell",
            query=DiffQuery,
            answer=RunDiff,
        ),
        Route(
            method="GET",
            path=f"{BASE}/certificate",
            handle=certificate,
            need="viewer",
            say="Which checks decided, on which files, and whether protected files are unchanged",
            answer=RunCertificate,
        ),
        Route(
            method="GET",
            path=f"{BASE}/logs",
            handle=logs,
            need="viewer",
            say="What agents, checks and people said: server-sent events, or JSON where that is "
            "accepted alone",
            query=LogsQuery,
            answer=LogPage,
            streams=True,
            also=(204,),
        ),
    ),
)
