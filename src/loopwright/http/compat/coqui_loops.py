"""Loops in the shapes of Coqui: start, list, show, edit, retry, skip, delete, and their events.

Every run that repeats something is listed, whichever interface started it. Fields that only
loops of roles have are empty for others. The event stream has `connected`, `stage_changed` and
`done`.
"""

from collections.abc import AsyncIterator
from functools import partial

import msgspec
from starlette.responses import StreamingResponse

from loopwright.errors import Conflict, LoopwrightError, NotFound
from loopwright.http.compat.coqui_payloads import (
    ActiveCount,
    EditLoopBody,
    Figures,
    LoopFailure,
    LoopHistory,
    LoopIterations,
    LoopNow,
    LoopsQuery,
    ManyLoops,
    NoteBody,
    OneIteration,
    OneLoop,
    RetryBody,
    Sheet,
    StartedLoop,
    StartLoopBody,
    Steered,
    refuse,
    sheet,
)
from loopwright.http.events import EventsQuery, cursor
from loopwright.http.operation_routes import app_of, body_of, caller_of, request_of
from loopwright.http.requests import Answer, Route, RouteFamily, RouteRequest
from loopwright.http.responses import as_response
from loopwright.model.record import JsonValue
from loopwright.operations.api_types import Deleted, Request
from loopwright.operations.loops.loop_details import figures
from loopwright.operations.run_start import choices
from loopwright.operations.run_tail import RunTail
from loopwright.operations.use_cases import loops, runs
from loopwright.operations.use_cases.operation import App, Caller
from loopwright.operations.use_cases.role_loops import StartRoleLoop
from loopwright.ports import OPEN_STATUSES, RunRow
from loopwright.views.role_loops import Move, StageMoves, loop_status

BASE = "/api/v1/loops"
HEADLESS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
RESUME_BODY = body_of(runs.resume)


def _call(request: RouteRequest) -> tuple[App, Caller]:
    return request.context.part(app_of), caller_of(request.who)


def _reference(request: RouteRequest) -> loops.LoopReference:
    return loops.LoopReference(loop=request.params["loop"])


async def row_of(request: RouteRequest) -> RunRow:
    """The requested loop, by its whole id, no matter who started it."""
    return await loops.show(*_call(request), _reference(request))


async def sheet_of(request: RouteRequest) -> Sheet:
    return sheet(request.context.service, await row_of(request))


# -- lists -----------------------------------------------------------------------------------------


async def listed(request: RouteRequest) -> Answer:
    query = request.query(LoopsQuery)
    if query.headless is not None and query.headless.lower() not in HEADLESS:
        raise LoopwrightError(
            "headless must be true or false", code="bad-value", hint="leave it out for all loops"
        )
    wanted = loops.ListLoops(
        status=query.status or "",
        headless=HEADLESS.get((query.headless or "").lower()),
        limit=query.limit,
        cursor=query.cursor,
    )
    found = await loops.list_loops(*_call(request), wanted)
    return ManyLoops(
        loops=[sheet(request.context.service, row).loop() for row in found.rows],
        count=len(found.rows),
        active=found.active,
        next=found.next,
    )


async def active(request: RouteRequest) -> Answer:
    return ActiveCount(await loops.count(*_call(request), Request()))


# -- one loop --------------------------------------------------------------------------------------


async def started(request: RouteRequest) -> Answer:
    body = request.body(StartLoopBody)
    wanted = StartRoleLoop(
        definition=body.definition,
        goal=body.goal,
        parameters={name: _text(value) for name, value in body.parameters.items()},
        agents=tuple(choices(body.agent, body.agents)),
        max_iterations=body.max_iterations,
        allow_unknown_cost=body.allow_unknown_cost,
        project_id=body.project_id or "",
        project_slug=body.project_slug or "",
        session=body.session_id or "",
        is_stored_session=bool(body.session_id),
        on_disconnect=body.on_disconnect,
    )
    made = await loops.start(*_call(request), wanted)
    row = request.context.here.log.row(made.loop_id)
    return _answer_started(request, row, made.warnings)


async def created_answer(request: RouteRequest, run: str) -> Answer:
    """The answer to a repeated request whose first answer is lost, without its warnings."""
    return _answer_started(request, request.context.here.log.row(run), [])


def _answer_started(request: RouteRequest, row: RunRow, warnings: list[str]) -> Answer:
    """A loop that was just started, where it is, and the warnings about its definition."""
    shown = whole(sheet(request.context.service, row))
    answer = StartedLoop(**msgspec.structs.asdict(shown), warnings=warnings)
    response = as_response(answer, 201)
    response.headers["Location"] = f"{BASE}/{row.run}"
    return response


def _text(value: str | float) -> str:
    """A parameter as text."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def shown(request: RouteRequest) -> Answer:
    return whole(await sheet_of(request))


def whole(found: Sheet) -> OneLoop:
    newest = found.newest()
    return OneLoop(found.loop(), found.iteration(newest), found.stages(newest))


async def history(request: RouteRequest) -> Answer:
    found = await sheet_of(request)
    answer = [found.in_full(cycle) for cycle in found.cycles]
    return LoopHistory(found.loop(), answer, len(answer))


async def iterations(request: RouteRequest) -> Answer:
    found = await sheet_of(request)
    answer = [found.iteration(cycle) for cycle in found.cycles]
    return LoopIterations(answer, len(answer))


async def iteration(request: RouteRequest) -> Answer:
    found, wanted = await sheet_of(request), request.params["iteration"]
    for cycle in found.cycles:
        if cycle.name(found.row.run) == wanted:
            return OneIteration(found.iteration(cycle), found.stages(cycle))
    raise NotFound(f"{found.row.run} has no iteration {wanted[:80]!a}")


async def metrics(request: RouteRequest) -> Answer:
    return figures(request.context.service, (await row_of(request)).run)


async def deleted(request: RouteRequest) -> Answer:
    return await loops.remove(*_call(request), _reference(request))


# -- steering --------------------------------------------------------------------------------------


async def paused(request: RouteRequest) -> Answer:
    return _now(await loops.pause(*_call(request), _reference(request)))


async def resumed(request: RouteRequest) -> Answer:
    row = await row_of(request)
    resumption = request_of(runs.resume, request.body(RESUME_BODY), {"run": row.run})
    if row.headline.status == "cancelled":  # as the system of these routes has it
        raise Conflict(
            f"{row.run} was stopped, so it cannot be resumed as a loop",
            code="wrong-state",
            hint=f"POST /api/v1/runs/{row.run}/resume resumes it as a run",
        )
    wanted = loops.ContinueLoop(loop=row.run, changes=resumption.changes())
    return _now(await loops.resume(*_call(request), wanted))


async def stopped(request: RouteRequest) -> Answer:
    return _now(await loops.stop(*_call(request), _reference(request)))


def _now(row: RunRow) -> Answer:
    return Steered(row.run, loop_status(row))


FAMILY = RouteFamily(
    name="loops",
    prefix=BASE,
    refuse=refuse,
    failure=LoopFailure,
    routes=(
        Route(
            method="GET",
            path=BASE,
            handle=listed,
            need="viewer",
            say="Loops, newest first, from every interface",
            query=LoopsQuery,
            answer=ManyLoops,
        ),
        Route(
            method="POST",
            path=BASE,
            handle=started,
            need="editor",
            say="Start a loop from a definition with a goal",
            body=StartLoopBody,
            answer=StartedLoop,
            status=201,
            again=created_answer,
            draining="refuse",
        ),
        Route(
            method="GET",
            path=f"{BASE}/active/count",
            handle=active,
            need="viewer",
            say="How many loops are running",
            answer=ActiveCount,
        ),
        Route(
            method="GET",
            path=f"{BASE}/{{loop}}",
            handle=shown,
            need="viewer",
            say="A loop with its newest iteration",
            answer=OneLoop,
        ),
        Route(
            method="DELETE",
            path=f"{BASE}/{{loop}}",
            handle=deleted,
            need="editor",
            say="Forget a loop that has ended",
            answer=Deleted,
        ),
        Route(
            method="GET",
            path=f"{BASE}/{{loop}}/history",
            handle=history,
            need="viewer",
            say="Every iteration of a loop with its stages",
            answer=LoopHistory,
        ),
        Route(
            method="GET",
            path=f"{BASE}/{{loop}}/metrics",
            handle=metrics,
            need="viewer",
            say="Totals of a loop",
            answer=Figures,
        ),
        Route(
            method="GET",
            path=f"{BASE}/{{loop}}/iterations",
            handle=iterations,
            need="viewer",
            say="The iterations of a loop",
            answer=LoopIterations,
        ),
        Route(
            method="GET",
            path=f"{BASE}/{{loop}}/iterations/{{iteration}}",
            handle=iteration,
            need="viewer",
            say="One iteration with its stages",
            answer=OneIteration,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{loop}}/pause",
            handle=paused,
            need="editor",
            say="Pause a running loop; the current stage is finished first",
            answer=Steered,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{loop}}/resume",
            handle=resumed,
            need="editor",
            say="Resume a loop; one that failed continues at the iteration that did not finish",
            body=RESUME_BODY,
            answer=Steered,
            draining="refuse",
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{loop}}/stop",
            handle=stopped,
            need="editor",
            say="End a loop now",
            answer=Steered,
        ),
    ),
)


async def live(request: RouteRequest) -> Answer:
    return await loops.live(*_call(request), _reference(request))


async def edited(request: RouteRequest) -> Answer:
    body = request.body(EditLoopBody)
    wanted = request_of(loops.edit, body, {"run": (await row_of(request)).run})
    await loops.edit(*_call(request), wanted)
    return await shown(request)


async def skipped(request: RouteRequest) -> Answer:
    body = request.body(NoteBody)
    wanted = request_of(loops.skip, body, {"run": (await row_of(request)).run})
    await loops.skip(*_call(request), wanted)
    return _now(await row_of(request))


async def retried(request: RouteRequest) -> Answer:
    """Only the newest iteration can be tried again."""
    found, wanted = await sheet_of(request), request.params["iteration"]
    run = found.row.run
    names = [cycle.name(run) for cycle in found.cycles or [found.newest()]]
    if wanted not in names:
        raise NotFound(f"{run} has no iteration {wanted[:80]!a}")
    if wanted != names[-1]:
        raise Conflict(f"{names[-1]} is the newest iteration of {run}", code="wrong-state")
    wanted_loop = request_of(loops.retry, request.body(RetryBody), {"run": run})
    await loops.retry(*_call(request), wanted_loop)
    return _now(await row_of(request))


STEERING_FAMILY = RouteFamily(
    name="loop steering",
    prefix=f"{BASE}/",
    refuse=refuse,
    failure=LoopFailure,
    routes=(
        Route(
            method="PATCH",
            path=f"{BASE}/{{loop}}",
            handle=edited,
            need="editor",
            say="Change goal, cap, metadata or labels of a loop that is open",
            body=EditLoopBody,
            answer=OneLoop,
        ),
        Route(
            method="GET",
            path=f"{BASE}/{{loop}}/live",
            handle=live,
            need="viewer",
            say="Where a loop is now, what it has spent, and what happened last",
            answer=LoopNow,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{loop}}/skip-stage",
            handle=skipped,
            need="editor",
            say="Leave out the stage that a loop stopped at",
            body=NoteBody,
            answer=Steered,
            draining="refuse",
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{loop}}/iterations/{{iteration}}/retry",
            handle=retried,
            need="editor",
            say="Try again what a loop stopped at in its newest iteration, with a note",
            body=RetryBody,
            answer=Steered,
            draining="refuse",
        ),
    ),
)


STREAM = "text/event-stream"
EVENTS_PER_READ = 500
GONE = "cancelled"


async def events(request: RouteRequest) -> Answer:
    """Refused before anything is sent, if there is no such loop."""
    run = (await row_of(request)).run
    after = cursor(request.request, request.query(EventsQuery).after)
    headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    return StreamingResponse(_stream(request, run, after), media_type=STREAM, headers=headers)


async def _stream(request: RouteRequest, run: str, after: int) -> AsyncIterator[bytes]:
    context, log = request.context, request.context.here.log
    tail = RunTail(context.feed, run, partial(log.read, limit=EVENTS_PER_READ))
    moves = StageMoves(context.service.plan(log.read(run, limit=1)[0].event))
    yield b"retry: 1000\n\n" + _event("connected", {"loop_id": run})
    try:
        async for events in tail.batches(lambda: context.serving.limits.recheck_seconds):
            if context.closing.is_set() or not context.people.still(request.who):
                return
            found = [move for one in events if (move := moves.take(one)) is not None]
            frames = [_moved(move) for move in found if move.seq > after]
            if events and events[-1].seq > after:
                frames.append(_event("activity", {"cursor": events[-1].seq}, seq=events[-1].seq))
            if frames:
                yield b"".join(frames)
            row = log.row(run)
            if tail.seen >= row.version and row.headline.status not in OPEN_STATUSES:
                yield _event("done", {"status": loop_status(row), "reason": row.headline.reason})
                return
            if not events:
                yield b": still here\n\n"
    except NotFound:  # it was deleted in the meantime
        yield _event("done", {"status": GONE, "reason": "deleted"})


def _moved(move: Move) -> bytes:
    answer: dict[str, JsonValue] = {
        "iteration": move.iteration,
        "stage_index": move.index,
        "role": move.role,
        "status": move.status,
    }
    return _event("stage_changed", answer, seq=move.seq)


def _event(name: str, value: object, *, seq: int | None = None) -> bytes:
    number = b"" if seq is None else b"id: %d\n" % seq
    return number + b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))


LOOP_EVENTS_FAMILY = RouteFamily(
    name="loop events",
    prefix=f"{BASE}/",
    refuse=refuse,
    failure=LoopFailure,
    routes=(
        Route(
            method="GET",
            path=f"{BASE}/{{loop}}/events",
            handle=events,
            need="viewer",
            say="What happens to a loop, as server-sent events, until it has ended",
            query=EventsQuery,
            streams=True,
        ),
    ),
)
