"""Views of a run: metrics, outputs, changes, the certificate, and what its agents did."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Annotated, Any, cast

import msgspec

from loopwright.errors import LoopwrightError
from loopwright.kernel.events import (
    EffectActivity,
    EffectDone,
    IterationFinished,
    IterationStarted,
    RunForked,
    StepFinished,
)
from loopwright.model.ids import AGENT_CALL, ITERATION_PATTERN, parent_path
from loopwright.model.record import JsonValue, Text
from loopwright.operations.api_types import EventPage
from loopwright.operations.loops.dialect_events import dialect_events_after, event_view
from loopwright.operations.run_workspaces import RunSnapshots
from loopwright.operations.use_cases.lists import show_spend
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    HttpRoute,
    RunReference,
    operation,
)
from loopwright.operations.use_cases.run_queries import events_of
from loopwright.ports import OPEN_STATUSES, ActivityKind, NumberedEvent
from loopwright.views.certificate import RunCertificate, run_certificate
from loopwright.views.iterations import IterationNames
from loopwright.views.metrics import Counting, RunFigures
from loopwright.views.run_responses import RunDiff
from loopwright.views.run_view import Outputs, RunOutput
from loopwright.views.transcript import (
    ActivityFilter,
    ActivityItem,
    LogEntry,
    activity_items,
    count_dropped,
)

BASE = "/api/v1/runs/{run}"
FAMILY = "run views"
IterationName = Annotated[str, msgspec.Meta(pattern=f"^{ITERATION_PATTERN}$")]


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


class ReadOutput(RunReference):
    """The path of a step or an iteration, such as main.0.plan."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=4_000)]


class DiffRun(RunReference):
    """Without numbers the whole run; `from` alone is one iteration, with `to` two are compared.
    Iterations count from 1, and 0 is before the first one; after a restart `2~1` is iteration 2 of
    the first try. `paths` has one pattern on each line.
    """

    start: IterationName | None = msgspec.field(default=None, name="from")
    end: IterationName | None = msgspec.field(default=None, name="to")
    stat: bool = False
    paths: Annotated[str, msgspec.Meta(max_length=10_000)] | None = None
    color: bool = False  # whether the diff has the colours of a terminal


class ReadActivity(RunReference):
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


class ReadNewestActivity(RunReference):
    """How many of the newest entries, and of which iteration."""

    iteration: str | None = None
    limit: int = 100


class ReadLogs(RunReference):
    """Entries of events after a number."""

    after: int = 0
    limit: int = 200


class ReadEvents(ReadLogs):
    """From the first one, or the `newest` that there are. With `words` an event that is worth a
    line has it, as people read it (`told`).
    """

    newest: bool = False
    words: bool = False


class LogPage(msgspec.Struct):
    """The transcript of a run, in order; continue after `next`, which is None at the newest."""

    run: str
    entries: list[LogEntry]
    seq: int
    next: int | None


@operation(
    "runs.metrics",
    "query",
    "viewer",
    "Time, calls, tokens and cost of each iteration, step and agent (`show --metrics`)",
    http=HttpRoute("GET", f"{BASE}/metrics"),
    family=FAMILY,
)
async def read_metrics(app: App, _caller: Caller, request: RunReference) -> RunFigures:
    """The figures of a run up to now."""
    counting = Counting(app.service.read_text)
    async for one in events_of(app.service, request.run):
        counting.take(one.event)
    return counting.figures(request.run)


@operation(
    "runs.output",
    "query",
    "viewer",
    "The whole output of a step or an iteration",
    http=HttpRoute("GET", f"{BASE}/output", schema="OutputQuery"),
    family=FAMILY,
)
async def read_output(app: App, _caller: Caller, request: ReadOutput) -> RunOutput:
    """The output of one step or iteration."""
    outputs = Outputs(app.service, request.run)
    async for one in events_of(app.service, request.run):
        outputs.take(one.event)
    return outputs.at(request.path)


@operation(
    "runs.activity",
    "query",
    "viewer",
    "What agents did: tool calls, commands, edited files",
    http=HttpRoute("GET", f"{BASE}/activity", schema="ActivityQuery"),
    family=FAMILY,
)
async def read_activity(app: App, _caller: Caller, request: ReadActivity) -> ActivityPage:
    """A page of what agents did."""
    run, service = request.run, app.service
    version = service.log.row(run).version
    number, attempt = await _iteration(app, run, request.iteration)
    wanted = ActivityFilter(
        effect=request.effect, iteration=number, attempt=attempt, kind=request.kind
    )
    read = service.read_text if request.full else None
    entries: list[ActivityItem] = []
    dropped: dict[str, int] = {}
    last = request.after
    async for one in events_of(service, run, request.after):
        if one.seq > version or len(entries) >= request.limit:
            break
        last = one.seq
        if isinstance(one.event, EffectActivity):
            entries += activity_items([one], read, wanted)
            count_dropped(dropped, one.event, wanted)
    return ActivityPage(
        run=run,
        entries=entries,
        dropped=sum(dropped.values()),
        dropped_by_call=dropped,
        seq=version,
        next=last if last < version else None,
    )


@operation("runs.newest_activity", "query", "viewer", "The newest of what agents did, oldest first")
async def read_newest_activity(
    app: App, _caller: Caller, request: ReadNewestActivity
) -> list[ActivityItem]:
    """The end of what agents did."""
    number, attempt = await _iteration(app, request.run, request.iteration)
    wanted = ActivityFilter(iteration=number, attempt=attempt)
    events = app.service.events(request.run)
    return [*deque(activity_items(events, None, wanted), request.limit)]


@operation("runs.events", "query", "viewer", "Events of a run")
async def read_events(app: App, _caller: Caller, request: ReadEvents) -> EventPage:
    """A page of the events of a run."""
    run, service, after = request.run, app.service, request.after
    records = event_view(service, run, "words" if request.words else "events")
    if request.newest:
        found = service.events(run, after)[-request.limit :]
    else:
        found = service.log.read(run, after=after, limit=request.limit)
    if request.words and found:
        async for one in events_of(service, run):
            if one.seq >= found[0].seq:
                break
            records(one)
    version = service.log.version(run)
    last = found[-1].seq if found else after
    return EventPage(
        run=run,
        events=[record for one in found for record in records(one)],
        seq=version,
        next=last if last < version else None,
    )


@operation("runs.logs", "query", "viewer", "The messages of agents, checks and people")
async def read_logs(app: App, _caller: Caller, request: ReadLogs) -> LogPage:
    """A page of the transcript of a run."""
    run, service = request.run, app.service
    version = service.log.row(run).version
    records = event_view(service, run, "transcript")
    entries: list[LogEntry] = []
    more: int | None = None
    async for one in events_of(service, run):
        found = records(one)
        if not found or one.seq <= request.after:
            continue
        if len(entries) == request.limit:
            more = entries[-1].seq
            break
        entries += [msgspec.convert(entry, LogEntry) for entry in found]
    return LogPage(run=run, entries=entries, seq=version, next=more)


async def _iteration(app: App, run: str, name: str | None) -> tuple[int | None, int | None]:
    """The number and the try that a name refers to."""
    if name is None:
        return None, None
    names = IterationNames()
    async for one in events_of(app.service, run):
        if isinstance(one.event, IterationStarted):
            names.add(one.event.path, one.event.iteration)
    return names.find(run, name)


@operation(
    "runs.diff",
    "query",
    "viewer",
    "What a run changed in its workspace, from its snapshots",
    http=HttpRoute("GET", f"{BASE}/diff", schema="DiffQuery"),
    family=FAMILY,
)
async def read_diff(app: App, _caller: Caller, request: DiffRun) -> RunDiff:
    """The files that differ, and the diff itself unless only the counts are wanted."""
    assert app.workspaces is not None, "this process has no snapshots"
    snapshots = RunSnapshots(app.service, app.workspaces, request.run)
    changes = await snapshots.changes(request.start, request.end)
    text = None
    if not request.stat:
        paths = [one for one in (request.paths or "").splitlines() if one]
        text = await snapshots.diff(request.start, request.end, paths=paths, color=request.color)
    return changes.view(text)


@operation(
    "runs.certificate",
    "query",
    "viewer",
    "Which checks decided, on which files, and whether protected files are unchanged",
    http=HttpRoute("GET", f"{BASE}/certificate"),
    family=FAMILY,
)
async def read_certificate(app: App, _caller: Caller, request: RunReference) -> RunCertificate:
    """What decided a run."""
    return run_certificate(app.service, request.run)


class FollowedRun(msgspec.Struct):
    """Where a run is when a client begins to follow it."""

    run: str
    seq: int  # of its newest event
    is_open: bool  # whether there will be more


@operation("runs.follow", "stream", "viewer", "Events of a run as they are written")
async def follow(app: App, _caller: Caller, request: RunReference) -> FollowedRun:
    """Begin to follow a run, whose events the caller reads with a `RunTail`."""
    row = app.log.row(request.run)
    return FollowedRun(row.run, row.version, row.headline.status in OPEN_STATUSES)


class RunCycles(msgspec.Struct):
    """A run loop by loop, each with its iterations and what ended it."""

    run: str
    status: str
    parent: str | None  # the run that it continues
    loops: list[dict[str, JsonValue]]


@operation("runs.cycles", "query", "viewer", "A run loop by loop and cycle by cycle")
async def read_cycles(app: App, _caller: Caller, request: RunReference) -> RunCycles:
    """The loops of a run, in the words of the system of its definition where it has some."""
    run, service = request.run, app.service
    row, events = app.log.row(run), service.log.read(run)
    try:
        loops = _cycles(dialect_events_after(service, run, events, 0))
    except LoopwrightError as error:
        if error.code != "no-events":
            raise
        loops = []
    return RunCycles(
        run=run,
        status=row.headline.status,
        parent=next((one.event.parent for one in events if isinstance(one.event, RunForked)), None),
        loops=loops or _iterations(events, service.read_text),
    )


Read = Callable[[Text | None], str]
_LISTS = {"tool_call": "toolCalls", "tool_result": "results", "history.compressed": "compressions"}


def _cycles(events: Iterable[dict[str, JsonValue]]) -> list[dict[str, JsonValue]]:
    """The loops of a run by their places, each with its cycles and what ended it."""
    loops: dict[str, dict[str, Any]] = {}
    for event in events:
        path, kind = str(event["path"]), str(event["type"])
        payload = cast("dict[str, Any]", event["payload"])
        if kind == "run.terminated_by":
            loop = loops.setdefault(path, {"path": path, "cycles": []})
            loop["terminatedBy"] = payload
            continue
        loop = loops.setdefault(parent_path(path), {"path": parent_path(path), "cycles": []})
        if kind == "cycle.start":
            loop["cycles"].append({"cycle": payload["cycle"], "text": ""})
        if loop["cycles"]:
            _note(loop["cycles"][-1], kind, payload)
    return [loop for loop in loops.values() if loop["cycles"]]


def _iterations(events: Iterable[NumberedEvent], read: Read) -> list[dict[str, JsonValue]]:
    """The same for a run that calls no model by itself: every loop with its iterations, and what
    its agent wrote last in each.
    """
    loops: dict[str, dict[str, Any]] = {}
    passes: dict[str, dict[str, Any]] = {}
    for event in (one.event for one in events):
        match event:
            case IterationStarted(path=path, resumed=True) if path in passes:
                passes[path].pop("finishReason", None)
            case IterationStarted(path=path):
                place = parent_path(path)
                loop = loops.setdefault(place, {"path": place, "cycles": []})
                passes[path] = {"cycle": event.iteration, "text": "", "path": path}
                loop["cycles"].append(passes[path])
            case EffectDone(path=path) if _is_agents(event):
                for place in (path, parent_path(path)):
                    if place in passes:
                        passes[place]["text"] = read(event.output)
            case IterationFinished(path=path) if path in passes:
                passes[path]["finishReason"] = event.status
            case StepFinished(path=path) if path in loops:
                loops[path]["terminatedBy"] = {"reason": event.reason, "status": event.status}
            case _:
                pass
    return list(loops.values())


def _is_agents(event: EffectDone) -> bool:
    return event.purpose == AGENT_CALL


def _note(cycle: dict[str, Any], kind: str, payload: dict[str, Any]) -> None:
    if kind in _LISTS:
        cycle.setdefault(_LISTS[kind], []).append(payload)
    elif kind == "message":
        texts = [part["text"] for part in payload["content"] if part["type"] == "text"]
        cycle["text"] = "".join(texts)
    elif kind == "model.response":
        cycle["finishReason"] = payload["finishReason"]
        cycle["usage"] = payload.get("usage")


OPERATIONS = (
    read_metrics,
    read_output,
    read_activity,
    read_newest_activity,
    read_events,
    read_logs,
    read_diff,
    read_certificate,
    read_cycles,
    follow,
    show_spend,
)
