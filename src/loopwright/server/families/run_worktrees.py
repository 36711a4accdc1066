"""Worktrees of runs: merge the result into the checkout they came from, or remove them."""

import msgspec

from loopwright.app.worktree_runs import apply_run, discard_run
from loopwright.server.families.runs import BASE
from loopwright.server.refusals import Refusal
from loopwright.server.routes import Answer, Asked, Body, Family, OptionalBody, Route


class ApplyBody(OptionalBody):
    """Nothing needs to be said."""


class DiscardBody(Body):
    """That the worktree and its branch shall be removed, with all that was not applied."""

    confirm: bool


class AppliedResult(msgspec.Struct):
    """The files that were changed in the checkout; none where it had the result already. `outside`
    are files that the run changed outside of its workspace, which are not applied.
    """

    run: str
    repository: str
    files: list[str]
    outside: list[str]


class DiscardedResult(msgspec.Struct):
    """What was removed."""

    run: str
    branch: str
    folder: str


async def applied(asked: Asked) -> Answer:
    run = asked.context.here.log.row(asked.params["run"]).run
    return await apply_run(asked.context.service, run, by=asked.who.name)


async def discarded(asked: Asked) -> Answer:
    run = asked.context.here.log.row(asked.params["run"]).run
    if not asked.body(DiscardBody).confirm:
        raise Refusal(422, "not-confirmed", "send `confirm: true` to remove the worktree")
    return await discard_run(asked.context.service, run, by=asked.who.name)


FAMILY = Family(
    name="worktrees",
    prefix=f"{BASE}/",
    routes=(
        Route(
            method="POST",
            path=f"{BASE}/{{run}}/apply",
            handle=applied,
            need="editor",
            say="Merge the result of a worktree into the checkout it came from",
            body=ApplyBody,
            answer=AppliedResult,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{run}}/discard",
            handle=discarded,
            need="editor",
            say="Remove the worktree of a run and its branch",
            body=DiscardBody,
            answer=DiscardedResult,
        ),
    ),
)
