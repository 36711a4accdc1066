"""`promote`: try a definition with its suites, and record that it passed them."""

import asyncio
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loopwright.cli.door import Door, Tone
from loopwright.cli.looking import terminal_width
from loopwright.cli.texts import cut, one_line
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from loopwright.app.promoting import Promotion, Result, Trial


@click.command(
    cls=Verb,
    drives=True,
    examples=[
        ("loopwright promote agent.yaml", "run the suites that it names, with its own model"),
        (
            "loopwright promote agent.yaml --model model:openai/gpt-5 --model claude",
            "with each of these",
        ),
        ("loopwright run agent.yaml --promoted", "run it only if this very text was promoted"),
    ],
)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="SPEC",
    help="The agent that every suite is run with. May be given more than once.",
)
@click.option(
    "--suites",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the suites are. Default: evals/ beside the file, then beside it.",
)
@click.option("--judge", metavar="SPEC", help="The agent that answers rubric and llm_judge.")
@click.option("--workspace", metavar="DIR", help="Where agents work. Default: here.")
@click.option("--budget", metavar="LIMITS", help="What each case may use: usd=5,tokens=2M,time=2h.")
@click.pass_context
def promote(  # noqa: PLR0913 - one for each option
    ctx: click.Context,
    /,
    *,
    file: Path | None,
    models: tuple[str, ...],
    suites: Path | None,
    judge: str | None,
    workspace: str | None,
    budget: str | None,
) -> None:
    """Promote a definition: every suite that it names must reach its least score, with every model.

    Without FILE, list what was promoted. The exit code is 6 when it is refused.
    """
    from loopwright.app.preparing import Wish  # noqa: PLC0415 - help stays quick
    from loopwright.app.promoting import prepare_trial  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    if file is None:
        _list(door)
        return
    wish = Wish(
        workspace=workspace,
        budget=budget,
        default_agent=door.settings.agent,
        home=door.settings.home,
    )
    trial = prepare_trial(file, wish, models=models, folder=suites, judge=judge)
    made = asyncio.run(_try(door, trial))
    if door.as_json:
        from loopwright.app.promoting import promotion_as_dict  # noqa: PLC0415 - help stays quick

        door.put_json(promotion_as_dict(made))
    else:
        door.put(door.painted(f"promoted {made.name} ({made.digest[:12]})", "good", sys.stdout))


async def _try(door: Door, trial: "Trial") -> "Promotion":
    from loopwright.app.promoting import (  # noqa: PLC0415 - help stays quick
        Result,
        try_out,
    )
    from loopwright.app.promoting import promote as record  # noqa: PLC0415 - help stays quick
    from loopwright.app.wiring import near  # noqa: PLC0415 - help stays quick

    results: list[Result] = []
    done = 0
    async with near(door.settings, say=door.say, alone=door.wanted.here) as here:
        async for found in try_out(here, trial):
            if isinstance(found, Result):
                results.append(found)
                _put_result(door, found)
                continue
            done += 1
            door.say(
                f"{done} of {trial.cases}  {found.case}: {'passed' if found.passed else 'not'}"
            )
        return record(here.log, trial, results, now_ms=here.service.clock.now_ms())


def _put_result(door: Door, found: "Result") -> None:
    if door.as_json:
        return
    line = f"{found.told}: {found.score:.2f} (at least {found.least:.2f})"
    tone: Tone = "good" if found.passed else "bad"
    door.put(door.painted(cut(one_line(line), terminal_width()), tone, sys.stdout))


def _list(door: Door) -> None:
    from loopwright.app.opening import open_log  # noqa: PLC0415 - help stays quick
    from loopwright.app.promoting import (  # noqa: PLC0415 - help stays quick
        promotion_as_dict,
        promotions,
    )

    with closing(open_log(door.settings)) as log:
        found = promotions(log)
    if door.as_json:
        door.put_json({"promotions": [promotion_as_dict(one) for one in found]})
        return
    for one in found:
        scores = ", ".join(f"{r.suite} {r.score:.2f}" for r in one.results)
        door.put(f"{one.digest[:12]}  {one_line(one.name)}  {scores}  by {one.by}")
    if not found:
        door.say("nothing was promoted yet")


VERBS = {"promote": promote}
