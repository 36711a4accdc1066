"""More about loops of roles: what they spend now, changes under way, trying again, leaving out."""

import msgspec

from loopwright.app.loop_steering import edit_of
from loopwright.app.preparing import choices
from loopwright.app.reopening import Changes
from loopwright.app.views.loops import loop_status
from loopwright.errors import Conflict, NotFound
from loopwright.server.families.loops import BASE, loops_for, row_of, sheet_of, whole
from loopwright.server.loop_refusals import refuse
from loopwright.server.loop_shapes import (
    EditBody,
    Live,
    LoopFailure,
    NoteBody,
    OneLoop,
    RetryBody,
    Steered,
)
from loopwright.server.routes import Answer, Asked, Family, Route


async def live(asked: Asked) -> Answer:
    return loops_for(asked).live(row_of(asked).run)


async def edited(asked: Asked) -> Answer:
    run, body = row_of(asked).run, msgspec.to_builtins(asked.body(EditBody))
    await loops_for(asked).edit(run, edit_of(body), by=asked.who.name)
    return whole(sheet_of(asked))


async def skipped(asked: Asked) -> Answer:
    run, body = row_of(asked).run, asked.body(NoteBody)
    changes = Changes(allow_unknown_cost=body.allow_unknown_cost)
    await loops_for(asked).skip(run, body.note, by=asked.who.name, changes=changes)
    return _now(asked)


async def retried(asked: Asked) -> Answer:
    """Only the newest iteration can be tried again."""
    found, wanted = sheet_of(asked), asked.params["iteration"]
    run = found.row.run
    names = [cycle.name(run) for cycle in found.cycles or [found.newest()]]
    if wanted not in names:
        raise NotFound(f"{run} has no iteration {wanted[:80]!a}")
    if wanted != names[-1]:
        raise Conflict(f"{names[-1]} is the newest iteration of {run}", code="wrong-state")
    body = asked.body(RetryBody)
    changes = Changes(
        agents=choices(body.agent, body.agents),
        budget=body.budget,
        allow_unknown_cost=body.allow_unknown_cost,
    )
    await loops_for(asked).retry(run, body.note, by=asked.who.name, changes=changes)
    return _now(asked)


def _now(asked: Asked) -> Answer:
    row = row_of(asked)
    return {"id": row.run, "status": loop_status(row)}


FAMILY = Family(
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
            body=EditBody,
            answer=OneLoop,
        ),
        Route(
            method="GET",
            path=f"{BASE}/{{loop}}/live",
            handle=live,
            need="viewer",
            say="Where a loop is now, what it has spent, and what happened last",
            answer=Live,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{loop}}/skip-stage",
            handle=skipped,
            need="editor",
            say="Leave out the stage that a loop stopped at",
            body=NoteBody,
            answer=Steered,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{loop}}/iterations/{{iteration}}/retry",
            handle=retried,
            need="editor",
            say="Try again what a loop stopped at in its newest iteration, with a note",
            body=RetryBody,
            answer=Steered,
        ),
    ),
)
