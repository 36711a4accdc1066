"""Forks of runs: a new run that goes on from a finished place of another, which stays as it is."""

from pathlib import Path
from typing import Annotated

import msgspec

from loopwright.app.assistants import Parting
from loopwright.app.forking import Fork, fork
from loopwright.app.keeping import Beside
from loopwright.app.preparing import choices
from loopwright.app.run_variables import RunEnv, env_choices
from loopwright.kernel.facts import RunForked
from loopwright.model.actions import MAX_PASSES
from loopwright.server.answers import as_response
from loopwright.server.families.runs import BASE, check_open, summary_of
from loopwright.server.looping import Looping
from loopwright.server.routes import Answer, Asked, Body, Family, Route
from loopwright.server.shapes import Forked
from loopwright.server.streaming import facts_of


class ForkBody(Body):
    """Where a run is forked, and what is different from there on."""

    at: str | None = (
        None  # a step or a pass that completed: main.2, or 3 for iteration 3, 3~1 of try 1
    )
    model: str | None = None
    edit: str | None = None
    max: Annotated[int, msgspec.Meta(ge=1, le=MAX_PASSES)] | None = None
    agent: str | None = None
    agents: dict[str, str] = {}
    workspace: str | None = None
    allow_unknown_cost: bool = False  # limits in USD need not cover agents of unknown cost
    env: RunEnv = {}  # values of variables that the run was started with; never in the log
    on_disconnect: Parting | None = None


async def forked(asked: Asked) -> Answer:
    check_open(asked)
    body, context = asked.body(ForkBody), asked.context
    wish = Fork(
        at=body.at,
        model=body.model,
        edit=body.edit,
        passes=body.max,
        agents=choices(body.agent, body.agents),
        workspace=Path(body.workspace) if body.workspace else None,
        beside=beside(asked, body.on_disconnect),
        workspaces=context.here.workspaces,
        allow_unknown_cost=body.allow_unknown_cost,
        env=env_choices(body.env),
    )
    run = context.here.log.row(asked.params["run"]).run
    made, _ = await fork(context.service, run, wish, by=asked.who.name)
    return await told_made(asked, made)


def beside(asked: Asked, parting: Parting | None) -> Beside:
    name = asked.context.here.log.row(asked.params["run"]).headline.name
    return asked.context.part(Looping).beside(asked.who.name, parting=parting, name=name)


async def told_made(asked: Asked, run: str) -> Answer:
    """A run that was just made, where it is, and how much of it is the other's."""
    known = 0
    async for one in facts_of(asked.context, run):
        if isinstance(one.fact, RunForked):
            known = one.seq - 1
    response = as_response({**await summary_of(asked, run), "seq": known}, 201)
    response.headers["Location"] = f"{BASE}/{run}"
    return response


FAMILY = Family(
    name="forks",
    prefix=f"{BASE}/",
    routes=(
        Route(
            method="POST",
            path=f"{BASE}/{{run}}/fork",
            handle=forked,
            need="editor",
            say="Go on from a finished place of a run, as a new run",
            body=ForkBody,
            answer=Forked,
            status=201,
            again=told_made,
        ),
    ),
)
