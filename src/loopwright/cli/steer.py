"""`retry`, `skip` and `edit`: what a loop of roles stopped at, and what it is for."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from loopwright.cli.completing import complete_runs
from loopwright.cli.looking import looking
from loopwright.cli.verb import Verb, door_of
from loopwright.errors import LoopwrightError

if TYPE_CHECKING:
    from loopwright.app.wiring import Local
    from loopwright.cli.door import Door
    from loopwright.cli.driving import Taken
    from loopwright.model.record import JsonValue

_UNLIMITED = "none"


@click.command(
    cls=Verb,
    remote=True,
    watches=True,
    drives=True,
    examples=[
        ("loopwright retry run_01", "the stage that failed; what completed before it is kept"),
        ('loopwright retry run_01 "The key is in the vault now"', "a stage that is blocked"),
        ("loopwright retry run_01 --agent coder=codex", "with another agent for one role"),
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.argument("note", metavar="[NOTE]", required=False, default="")
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="SPEC",
    help="For a loop that failed: agent backend from now on; SPEC for all, NAME=SPEC for one.",
)
@click.option(
    "--budget",
    metavar="LIMITS",
    help="For a loop that a limit ended: its limits from now on. What was spent before counts.",
)
@click.option(
    "--allow-unknown-cost",
    is_flag=True,
    help="Continue although a limit in USD cannot be enforced for an agent whose cost is unknown.",
)
@click.pass_context
def retry(
    ctx: click.Context,
    /,
    run: str,
    note: str,
    agents: tuple[str, ...],
    budget: str | None,
    *,
    allow_unknown_cost: bool,
) -> int:
    """Try again what a loop of roles stopped at, and drive it here until it rests; with --server it
    is driven there, and watched.

    The stage that failed or is blocked is run again in its iteration, with NOTE in its prompt. What
    completed in that iteration is kept. After rounds that were rejected too often, the next one
    begins with NOTE.
    """
    from loopwright.app.loop_steering import retry as again  # noqa: PLC0415 - help stays quick
    from loopwright.app.reopening import Changes  # noqa: PLC0415 - help stays quick
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    if door.remote is not None:
        from loopwright.cli.afar import agents_afar, steer_afar  # noqa: PLC0415 - when asked for

        limits: dict[str, JsonValue] = {"budget": budget} if budget is not None else {}
        if allow_unknown_cost:
            limits["allow_unknown_cost"] = True
        return steer_afar(door, run, "retry", {"note": note, **limits, **agents_afar(agents)})
    changes = Changes(agents=agents, budget=budget, allow_unknown_cost=allow_unknown_cost)

    async def act(here: "Local") -> str:
        return await again(here.service, run, note=note, by=current_user(), changes=changes)

    return _driven(door, run, act)


@click.command(
    cls=Verb,
    remote=True,
    watches=True,
    drives=True,
    examples=[
        ('loopwright skip run_01 "I did it by hand"', "the next stage continues, with this text")
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.argument("note", metavar="[NOTE]", required=False, default="")
@click.option(
    "--allow-unknown-cost",
    is_flag=True,
    help="Continue although a limit in USD cannot be enforced for an agent whose cost is unknown.",
)
@click.pass_context
def skip(ctx: click.Context, /, run: str, note: str, *, allow_unknown_cost: bool) -> int:
    """Leave out the stage that a loop of roles stopped at, and drive it here until it rests; with
    --server it is driven there, and watched.
    """
    from loopwright.app.loop_steering import skip as leave  # noqa: PLC0415 - help stays quick
    from loopwright.app.reopening import Changes  # noqa: PLC0415 - help stays quick
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    if door.remote is not None:
        from loopwright.cli.afar import steer_afar  # noqa: PLC0415 - only when asked for

        allow: dict[str, JsonValue] = {"allow_unknown_cost": True} if allow_unknown_cost else {}
        return steer_afar(door, run, "skip", {"note": note, **allow})
    changes = Changes(allow_unknown_cost=allow_unknown_cost)

    async def act(here: "Local") -> str:
        return await leave(here.service, run, note=note, by=current_user(), changes=changes)

    return _driven(door, run, act)


def _driven(door: "Door", run: str, act: "Callable[[Local], Awaitable[str]]") -> int:
    from loopwright.cli.driving import Manner, Taken, drive  # noqa: PLC0415 - help stays quick

    async def begin(here: "Local") -> "list[Taken]":
        seen = here.log.version(here.service.find(run))
        return [Taken(await act(here), seen)]

    return drive(door, begin, Manner())


@click.command(
    cls=Verb,
    remote=True,
    examples=[
        ('loopwright edit run_01 --goal "A queue, not a cache"', "from its next stage on"),
        ("loopwright edit run_01 --max 8 --label urgent", ""),
    ],
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.option("--goal", metavar="TEXT", help="What it is for from now on.")
@click.option("--max", "most", metavar="N|none", help="The most iterations, or no limit.")
@click.option("--label", "labels", multiple=True, help="Its labels from now on; again for more.")
@click.option("--metadata", metavar="JSON", help="An object that is merged into its metadata.")
@click.pass_context
def edit(
    ctx: click.Context,
    /,
    run: str,
    goal: str | None,
    most: str | None,
    labels: tuple[str, ...],
    metadata: str | None,
) -> None:
    """Change a loop of roles while it runs: its goal, its limit, its labels.

    The next stage uses the new values; what was done does not change. Other runs cannot be edited:
    use `tell` to send a message, or `fork` to start from an iteration with other words.
    """
    from loopwright.app.loop_steering import edit as change  # noqa: PLC0415 - help stays quick
    from loopwright.app.loop_steering import edit_of  # noqa: PLC0415 - help stays quick
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick

    body: dict[str, JsonValue] = {}
    if goal is not None:
        body["goal"] = goal
    if most is not None:
        body["max_iterations"] = None if most == _UNLIMITED else _number(most)
    if labels:
        body["labels"] = list(labels)
    if metadata is not None:
        body["metadata"] = _object(metadata)
    wanted, door = edit_of(body), door_of(ctx)
    if door.remote is not None:
        from loopwright.cli.afar import edit_afar  # noqa: PLC0415 - only when asked for

        changed = edit_afar(door.remote, run, body)
    else:
        with looking(door) as service:
            changed = asyncio.run(change(service, run, wanted, by=current_user()))
    if door.as_json:
        door.put_json({"run": changed, "changed": [*body]})
        return
    door.say(f"{changed}: changed {', '.join(body)}")


def _number(text: str) -> "JsonValue":
    return int(text) if text.isascii() and text.isdigit() else text


def _object(text: str) -> "JsonValue":
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LoopwrightError(
            f"--metadata is no JSON: {error}", code="bad-value", hint="""--metadata '{"a": 1}'"""
        ) from error
    return value


VERBS = {"retry": retry, "skip": skip, "edit": edit}
