"""`eval`: what runs came to, and whether that is what was expected."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loopwright.cli.completing import complete_runs
from loopwright.cli.door import Door, Tone
from loopwright.cli.looking import looking, terminal_width
from loopwright.cli.texts import cut, last_lines, one_line
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from loopwright.app.evaluating import Cases, Evaluated

_FILES = (".yaml", ".yml", ".json")
TEXT_LINES = 10


@click.command(
    cls=Verb,
    drives=True,
    examples=[
        ("loopwright eval run_01", "the result of the run"),
        ("loopwright eval run_01 --expect expect.yaml", "and what evaluators say of it"),
        ("loopwright eval cases.yaml --agent model:openai/gpt-5", "run every case of a file"),
    ],
)
@click.argument("target", metavar="RUN|FILE", shell_complete=complete_runs)
@click.option(
    "--expect", metavar="FILE", type=click.Path(), help="Of a run: the evaluators to ask."
)
@click.option("--judge", metavar="SPEC", help="The agent that answers rubric and llm_judge.")
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="SPEC",
    help="For a file: agent backend; SPEC for all agents, NAME=SPEC for one.",
)
@click.option("--workspace", metavar="DIR", help="Where agents work. Default: here.")
@click.option("--budget", metavar="LIMITS", help="What each case may use: usd=5,tokens=2M,time=2h.")
@click.option(
    "--allow-unknown-cost",
    is_flag=True,
    help="Start although a limit in USD cannot be enforced for an agent whose cost is unknown.",
)
@click.pass_context
def evaluate(  # noqa: PLR0913 - one for each option
    ctx: click.Context,
    /,
    *,
    target: str,
    expect: str | None,
    judge: str | None,
    agents: tuple[str, ...],
    workspace: str | None,
    budget: str | None,
    allow_unknown_cost: bool,
) -> int:
    """Evaluate a run that has ended, or run and evaluate every case of a file.

    The exit code is 0 when everything passed, and 1 when something did not.
    """
    from loopwright.app.evaluating import prepare_cases  # noqa: PLC0415 - help stays quick
    from loopwright.app.preparing import Wish  # noqa: PLC0415 - help stays quick

    door = door_of(ctx)
    if not _is_file(target):
        if agents or workspace or budget:
            raise click.UsageError("a run has its agents already: leave out the options", ctx)
        return _put_run(door, _evaluate_run(door, target, expect, judge, allow=allow_unknown_cost))
    if expect is not None:
        raise click.UsageError("--expect goes with a run; a file has its own evaluators", ctx)
    wish = Wish(
        agents=agents,
        workspace=workspace,
        budget=budget,
        allow_unknown_cost=allow_unknown_cost,
        default_agent=door.settings.agent,
        home=door.settings.home,
    )
    return _put_cases(door, _run_cases(door, prepare_cases(Path(target), wish, judge)))


def _is_file(target: str) -> bool:
    return target.endswith(_FILES) or Path(target).is_file()


# -- a run ---------------------------------------------------------------------------------------


def _evaluate_run(
    door: Door, run: str, expect: str | None, judge: str | None, *, allow: bool
) -> "Evaluated":
    from loopwright.app.evaluating import (  # noqa: PLC0415 - help stays quick
        Asked,
        Jury,
        input_of,
        look_at,
        needs_judge,
        no_judge,
    )
    from loopwright.app.evaluations import read_expectation  # noqa: PLC0415 - help stays quick
    from loopwright.app.wiring import near  # noqa: PLC0415 - help stays quick

    wanted = read_expectation(Path(expect)) if expect is not None else None
    with looking(door) as service:
        run = service.find(run)
        found = look_at(service, run)
        asked = Asked(
            input=input_of(service, run), expected=wanted.expected if wanted is not None else ""
        )
    if wanted is None:
        return found
    asks = needs_judge(wanted.evaluators)
    if asks and judge is None:
        raise no_judge()

    async def judging() -> "Evaluated":
        if not asks:
            return await Jury().about(found, wanted.evaluators, asked)
        async with near(door.settings, say=door.say, alone=door.wanted.here) as here:
            jury = Jury(here=here, judge=judge, allow_unknown_cost=allow)
            return await jury.about(found, wanted.evaluators, asked)

    return asyncio.run(judging())


def _put_run(door: Door, found: "Evaluated") -> int:
    if door.as_json:
        door.put_json(found.as_dict())
    else:
        _put_one(door, found, name=found.run)
        for line in last_lines(found.came.composed, TEXT_LINES):
            door.put(door.painted(cut(f"    {line}", terminal_width()), "dim", sys.stdout))
    return 0 if found.passed else 1


# -- a file --------------------------------------------------------------------------------------


def _run_cases(door: Door, cases: "Cases") -> "list[Evaluated]":
    from loopwright.app.evaluating import run_case  # noqa: PLC0415 - help stays quick
    from loopwright.app.wiring import near  # noqa: PLC0415 - help stays quick

    async def running() -> "list[Evaluated]":
        found = []
        async with near(door.settings, say=door.say, alone=door.wanted.here) as here:
            for name, case in cases.evaluation.numbered():
                one = await run_case(here, cases, name, case)
                found.append(one)
                if not door.as_json:
                    _put_one(door, one, name=name)
        return found

    return asyncio.run(running())


def _put_cases(door: Door, found: "list[Evaluated]") -> int:
    passed = sum(one.passed for one in found)
    if door.as_json:
        cases = [one.as_dict() for one in found]
        door.put_json({"passed": passed, "total": len(found), "cases": list(cases)})
    else:
        door.put("")
        tone: Tone = "good" if passed == len(found) else "bad"
        door.put(door.painted(f"{passed} of {len(found)} cases passed", tone, sys.stdout))
    return 0 if passed == len(found) else 1


def _put_one(door: Door, found: "Evaluated", *, name: str) -> None:
    signs, cells = door.has_signs(sys.stdout), terminal_width()
    good = found.passed
    sign = ("✓" if good else "✗") if signs else ("+" if good else "-")
    made = f"{found.came.cycles} cycle{'' if found.came.cycles == 1 else 's'}"
    held = sum(one.passed for one in found.said)
    parts = [
        f"{sign} {one_line(name)}",
        found.status,
        found.terminated_by,
        made if found.came.cycles else "",
        f"{held} of {len(found.said)} evaluators" if found.said else "",
        found.run if name != found.run else "",
    ]
    line = "  ".join(part for part in parts if part)
    door.put(door.painted(cut(line, cells), "good" if good else "bad", sys.stdout))
    if found.problem:
        door.put(cut(f"    {one_line(found.problem)}", cells))
    for one in found.said:
        if not one.passed:
            door.put(cut(f"    {one.kind} ({one.subject}): {one_line(one.detail)}", cells))


VERBS = {"eval": evaluate}
