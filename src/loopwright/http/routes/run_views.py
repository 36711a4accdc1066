"""Views of runs: metrics and chart, outputs, diff, certificate, activity, transcript and spend."""

from typing import Annotated

import msgspec
from starlette.responses import Response

from loopwright.http.requests import Answer, Query, Route, RouteFamily, RouteRequest
from loopwright.http.routes.events import StreamOptions, cursor, facts_of, streamed, wants_stream
from loopwright.kernel.events import EffectActivity, IterationStarted
from loopwright.model.ids import ITERATION_PATTERN
from loopwright.model.record import JsonValue
from loopwright.operations.response_types import SpendReport
from loopwright.operations.run_workspaces import RunSnapshots
from loopwright.operations.shared_budget import By, since_ms, spend
from loopwright.ports import ActivityKind, NumberedEvent
from loopwright.views.certificate import run_certificate
from loopwright.views.iterations import IterationNames
from loopwright.views.metrics import Counting, RunMetrics, metrics_chart
from loopwright.views.run_view import Outputs
from loopwright.views.transcript import ActivityFilter, RunTranscript, activity_items, count_dropped


class RunFigures(msgspec.Struct):
    """Time, calls, tokens and cost of each iteration, step and agent of a run."""

    run: str
    rounds: list[dict[str, JsonValue]]
    stages: list[dict[str, JsonValue]]
    roles: list[dict[str, JsonValue]]
    total: dict[str, JsonValue]
    trends: dict[str, str]


class RunOutput(msgspec.Struct):
    """All that one step or pass said."""

    run: str
    path: str
    output: str


class ActivityItem(msgspec.Struct):
    """One thing that an agent did. Long arguments and results are cut unless they are asked for
    in full; the byte counts are those of what is stored.
    """

    seq: int  # of the event that holds it
    number: int  # counts from 1 within the effect
    effect: str
    path: str
    iteration: int | None
    agent: str
    at: str
    kind: str
    tool: str
    target: str
    ok: bool | None
    code: int | None
    ms: int | None
    text: str
    arguments: str
    arguments_bytes: int
    result: str
    result_bytes: int


class ActivityPage(msgspec.Struct):
    """What agents did in a run, in order. Ask again after `next`, which is None at the newest;
    `dropped` counts entries beyond the limit of their calls, which are not stored, and
    `dropped_by_call` the same for each call (its effect), on this page.
    """

    run: str
    entries: list[ActivityItem]
    dropped: int
    dropped_by_call: dict[str, int]
    seq: int
    next: int | None


class ChangedFile(msgspec.Struct):
    """A file that differs between two snapshots."""

    path: str
    status: str
    insertions: int
    deletions: int
    binary: bool
    old_path: str | None


class RunDiff(msgspec.Struct):
    """What differs between two snapshots of a run; `from` and `to` are their trees. `unrecorded`:
    the run may have changed more after its last snapshot, as `unrecorded_note` says.
    `omitted` names files that snapshots left out because of their size or kind, the first 100 of
    `omitted_count`.
    """

    run: str
    old: str = msgspec.field(name="from")
    new: str = msgspec.field(name="to")
    unrecorded: bool
    unrecorded_note: str | None
    omitted: list[str]
    omitted_count: int
    files: int
    insertions: int
    deletions: int
    changes: list[ChangedFile]
    diff: str | None


class RunCertificate(msgspec.Struct):
    """What decided a run, as its events tell; `head` is that of the hash chain over them."""

    run: str
    outcome: str | None
    reason: str
    checks: list[dict[str, JsonValue]]
    protected: dict[str, JsonValue]
    changed_dependencies: list[dict[str, JsonValue]]
    first_tree: str | None
    final_tree: str | None
    events: int
    head: str


class LogEntry(msgspec.Struct):
    """One thing that was said."""

    kind: str
    seq: int
    path: str
    iteration: int | None
    title: str
    text: str


class LogPage(msgspec.Struct):
    """What was said in a run, in order; ask again after `next`, which is None at the newest."""

    run: str
    entries: list[LogEntry]
    seq: int
    next: int | None


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


async def figures(asked: RouteRequest) -> Answer:
    run = asked.params["run"]
    return {"run": run, **(await _metrics(asked, run)).as_dict()}


async def picture(asked: RouteRequest) -> Answer:
    run = asked.params["run"]
    title = asked.context.here.log.row(run).headline.name
    drawn = metrics_chart(await _metrics(asked, run), title=title)
    alone = {"Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'"}
    return Response(drawn, media_type=SVG, headers=alone)


async def _metrics(asked: RouteRequest, run: str) -> RunMetrics:
    counting = Counting(asked.context.service.read_text)
    async for one in facts_of(asked.context, run):
        counting.take(one.fact)
    return counting.told()


async def output(asked: RouteRequest) -> Answer:
    run = asked.params["run"]
    outputs = Outputs(asked.context.service, run)
    async for one in facts_of(asked.context, run):
        outputs.take(one.fact)
    return outputs.at(asked.query(OutputQuery).path)


async def diff(asked: RouteRequest) -> Answer:
    """The files that differ, and the diff itself unless only the counts are wanted."""
    run, query = asked.params["run"], asked.query(DiffQuery)
    snapshots = RunSnapshots(asked.context.service, asked.context.here.workspaces, run)
    told = (await snapshots.changes(query.start, query.end)).as_dict()
    if query.stat:
        return {**told, "diff": None}
    paths = [one for one in (query.paths or "").splitlines() if one]
    return {**told, "diff": await snapshots.diff(query.start, query.end, paths=paths)}


async def certificate(asked: RouteRequest) -> Answer:
    return run_certificate(asked.context.service, asked.params["run"]).as_dict()


async def logs(asked: RouteRequest) -> Answer:
    run, query, service = asked.params["run"], asked.query(LogsQuery), asked.context.service
    version = asked.context.here.log.row(run).version
    first = service.log.read(run, limit=1) or service.facts(run)  # which tells what is wrong
    book = RunTranscript(service.plan(first[0].fact), service.read_text)

    def told(numbered: NumberedEvent) -> dict[str, JsonValue] | None:
        entry = book.take(numbered)
        return None if entry is None else entry.as_dict()

    if wants_stream(asked.request):
        after = cursor(asked.request, query.after)
        telling = StreamOptions(
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


async def activity(asked: RouteRequest) -> Answer:
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


async def _iteration(
    asked: RouteRequest, run: str, name: str | None
) -> tuple[int | None, int | None]:
    """The number and the try that a name stands for."""
    if name is None:
        return None, None
    names = IterationNames()
    async for one in facts_of(asked.context, run):
        if isinstance(one.fact, IterationStarted):
            names.add(one.fact.path, one.fact.iteration)
    return names.find(run, name)


FAMILY = RouteFamily(
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


PATH = "/api/v1/spend"


class SpendQuery(Query):
    """Since when (`7d`, `2026-11-01`), and how it is grouped."""

    since: str | None = None
    by: By = "agent"


async def spent(asked: RouteRequest) -> Answer:
    context, query = asked.context, asked.query(SpendQuery)
    now = context.clock.now_ms()
    since = None if query.since is None else since_ms(query.since, now)
    told: dict[str, JsonValue] = spend(
        context.here.log, by=query.by, since=since, purse=context.settings.budget, now_ms=now
    )
    return told


SPEND_FAMILY = RouteFamily(
    name="spend",
    prefix=PATH,
    routes=(
        Route(
            method="GET",
            path=PATH,
            handle=spent,
            need="viewer",
            say="What runs have cost, by agent, definition, label or day",
            query=SpendQuery,
            answer=SpendReport,
        ),
    ),
)
