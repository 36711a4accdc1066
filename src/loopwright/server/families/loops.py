"""Loops: start one of roles, list, look, steer, forget, in the shapes of the system of those. Every
run that repeats something is here, by whichever door it was started; what only loops of roles have
is empty for the others.
"""

from dataclasses import replace

import msgspec

from loopwright.app.loop_records import figures, forget
from loopwright.app.preparing import choices
from loopwright.app.registry import is_loop, loop_row
from loopwright.app.role_loops import Loops, LoopWish, check_status
from loopwright.app.sessions import Sessions
from loopwright.app.views.loop_sheets import Sheet, sheet
from loopwright.app.views.loops import loop_status
from loopwright.errors import Conflict, LoopwrightError, NotFound
from loopwright.model.record import JsonValue
from loopwright.ports import RunRow
from loopwright.server.answers import as_response
from loopwright.server.context import Context
from loopwright.server.families.runs import ResumeBody, check_open
from loopwright.server.loop_refusals import refuse
from loopwright.server.loop_shapes import (
    ActiveCount,
    Deleted,
    Figures,
    History,
    Iterations,
    LoopFailure,
    LoopsQuery,
    ManyLoops,
    OneIteration,
    OneLoop,
    StartBody,
    StartedLoop,
    Steered,
)
from loopwright.server.looping import Looping
from loopwright.server.routes import Answer, Asked, Family, Route

BASE = "/api/v1/loops"
HEADLESS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
AT_ONCE = 500


def sessions_of(context: Context) -> Sessions:
    """The sessions of this home."""
    return Sessions(context.here.log, context.cards, context.access)


def loops_for(asked: Asked) -> Loops:
    """The loops of this home, for whoever asks."""
    context = asked.context
    return Loops(
        here=context.here,
        settings=context.settings,
        cwd=context.serving.workspace,
        by=asked.who.name,
    )


def row_of(asked: Asked) -> RunRow:
    """The loop that is asked about, by its whole id, whoever started it."""
    return loop_row(asked.context.service, asked.params["loop"])


def sheet_of(asked: Asked) -> Sheet:
    return sheet(asked.context.service, row_of(asked))


# -- lists -----------------------------------------------------------------------------------------


async def listed(asked: Asked) -> Answer:
    context, query = asked.context, asked.query(LoopsQuery)
    if query.status:
        check_status(query.status)
    if query.headless is not None and query.headless.lower() not in HEADLESS:
        raise LoopwrightError(
            "headless must be true or false", code="bad-value", hint="leave it out for all loops"
        )
    before = context.cursors.place("loops", query.cursor) if query.cursor is not None else None
    found = _page(context, query, before)
    page = found[: query.limit]
    more = context.cursors.after("loops", page[-1].run) if len(found) > query.limit else None
    return {
        "loops": [sheet(context.service, row).loop() for row in page],
        "count": len(page),
        "active": _active(context),
        "next": more,
    }


def _page(context: Context, query: LoopsQuery, before: str | None) -> list[RunRow]:
    """As many as are asked for and one more, if there are so many."""
    found: list[RunRow] = []
    while len(found) <= query.limit:
        rows = context.here.log.rows(before=before, limit=AT_ONCE)
        found += [row for row in rows if _fits(context, row, query)]
        if len(rows) < AT_ONCE:
            break
        before = rows[-1].run
    return found


def _fits(context: Context, row: RunRow, query: LoopsQuery) -> bool:
    if query.status and loop_status(row) != query.status:
        return False
    headless = HEADLESS.get((query.headless or "").lower())
    if headless is not None and headless is bool(row.headline.session):
        return False
    return is_loop(context.service, row)


def _active(context: Context) -> int:
    rows = context.here.log.rows(statuses=("running",))
    return sum(is_loop(context.service, row) for row in rows)


async def active(asked: Asked) -> Answer:
    return {"active": _active(asked.context)}


# -- one loop --------------------------------------------------------------------------------------


async def started(asked: Asked) -> Answer:
    check_open(asked)
    context, body = asked.context, asked.body(StartBody)
    if body.session_id is not None:
        sessions_of(context).check(body.session_id)
    loops = replace(loops_for(asked), agents=choices(body.agent, body.agents))
    wish = LoopWish(
        definition=body.definition,
        goal=body.goal,
        parameters={name: _text(value) for name, value in body.parameters.items()},
        max_iterations=body.max_iterations,
        allow_unknown_cost=body.allow_unknown_cost,
        project_id=body.project_id or "",
        project_slug=body.project_slug or "",
        session=body.session_id or "",
        beside=context.part(Looping).beside(
            asked.who.name, parting=body.on_disconnect, name=body.definition
        ),
    )
    made = await loops.start(wish)
    return _answer_started(asked, str(made["loop_id"]), made["warnings"])


async def told_made(asked: Asked, run: str) -> Answer:
    """The answer to a repeated request whose first answer is lost, without its warnings."""
    return _answer_started(asked, run, [])


def _answer_started(asked: Asked, run: str, warnings: JsonValue) -> Answer:
    """A loop that was just started, where it is, and the warnings about its definition."""
    context = asked.context
    told = {**whole(sheet(context.service, context.here.log.row(run))), "warnings": warnings}
    response = as_response(told, 201)
    response.headers["Location"] = f"{BASE}/{run}"
    return response


def _text(value: str | float) -> str:
    """A parameter as it stands in a text."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def shown(asked: Asked) -> Answer:
    return whole(sheet_of(asked))


def whole(found: Sheet) -> dict[str, JsonValue]:
    newest = found.newest()
    return {
        "loop": found.loop(),
        "iteration": found.iteration(newest),
        "stages": found.stages(newest),
    }


async def history(asked: Asked) -> Answer:
    found = sheet_of(asked)
    told = [found.in_full(cycle) for cycle in found.cycles]
    return {"loop": found.loop(), "history": told, "count": len(told)}


async def iterations(asked: Asked) -> Answer:
    found = sheet_of(asked)
    told = [found.iteration(cycle) for cycle in found.cycles]
    return {"iterations": told, "count": len(told)}


async def iteration(asked: Asked) -> Answer:
    found, wanted = sheet_of(asked), asked.params["iteration"]
    for cycle in found.cycles:
        if cycle.name(found.row.run) == wanted:
            return {"iteration": found.iteration(cycle), "stages": found.stages(cycle)}
    raise NotFound(f"{found.row.run} has no iteration {wanted[:80]!a}")


async def metrics(asked: Asked) -> Answer:
    row = row_of(asked)
    until = row.headline.finished_at or asked.context.clock.now_ms()
    took = (until - row.headline.started_at) / 1_000
    return {**figures(asked.context.service, row.run), "duration_seconds": took}


async def deleted(asked: Asked) -> Answer:
    row = row_of(asked)
    return forget(asked.context.service, row.run, by=asked.who.name)


# -- steering --------------------------------------------------------------------------------------


async def paused(asked: Asked) -> Answer:
    return await _steered(asked, "pause")


async def resumed(asked: Asked) -> Answer:
    row, body = row_of(asked), asked.body(ResumeBody)
    if row.headline.status == "cancelled":  # as the system of these routes has it
        raise Conflict(
            f"{row.run} was stopped, so it cannot be resumed as a loop",
            code="wrong-state",
            hint=f"POST /api/v1/runs/{row.run}/resume resumes it as a run",
        )
    await loops_for(asked).resume(row.run, body.changes(), by=asked.who.name)
    return {"id": row.run, "status": loop_status(asked.context.here.log.row(row.run))}


async def stopped(asked: Asked) -> Answer:
    return await _steered(asked, "stop")


async def _steered(asked: Asked, action: str) -> Answer:
    row = row_of(asked)
    await loops_for(asked).control(action, row.run)
    return {"id": row.run, "status": loop_status(asked.context.here.log.row(row.run))}


FAMILY = Family(
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
            say="Loops, newest first, by whichever door they were started",
            query=LoopsQuery,
            answer=ManyLoops,
        ),
        Route(
            method="POST",
            path=BASE,
            handle=started,
            need="editor",
            say="Start a loop from a definition with a goal",
            body=StartBody,
            answer=StartedLoop,
            status=201,
            again=told_made,
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
            answer=History,
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
            answer=Iterations,
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
            say="Pause a running loop; the stage under way goes on to its end",
            answer=Steered,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{loop}}/resume",
            handle=resumed,
            need="editor",
            say="Resume a loop; one that failed continues at the iteration that did not finish",
            body=ResumeBody,
            answer=Steered,
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
