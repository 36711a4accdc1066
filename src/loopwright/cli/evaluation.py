"""`eval` and `promote`: evaluate runs against expected results.

`promote` runs the suites of a definition and records that it passed them.
"""

import asyncio
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loopwright.cli.completion import complete_runs
from loopwright.cli.formats import open_service, terminal_width
from loopwright.cli.terminal import Terminal, Tone, cut, last_lines, one_line
from loopwright.cli.verb import Verb, terminal_of

if TYPE_CHECKING:
    from loopwright.operations.definitions import Promotion, PromotionTrial, SuiteResult
    from loopwright.operations.evaluations import Cases, ScoredRun

_FILES = (".yaml", ".yml", ".json")
TEXT_LINES = 10


@click.command(
    cls=Verb,
    drives=True,
    only_here=True,
    examples=[
        ("loopwright eval run_01", "the result of the run"),
        ("loopwright eval run_01 --expect expect.yaml", "and its evaluators"),
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
@click.option("--workspace", metavar="DIR", help="Directory for agents. Default: the current one.")
@click.option("--budget", metavar="LIMITS", help="Limits of each case: usd=5,tokens=2M,time=2h.")
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
    from loopwright.operations.evaluations import prepare_cases  # noqa: PLC0415 - help stays quick
    from loopwright.operations.run_start import StartPlace, start_request  # noqa: PLC0415 - quick help

    terminal = terminal_of(ctx)
    if not _is_file(target):
        if agents or workspace or budget:
            raise click.UsageError("a run has its agents already: leave out the options", ctx)
        return _put_run(
            terminal, _evaluate_run(terminal, target, expect, judge, allow=allow_unknown_cost)
        )
    if expect is not None:
        raise click.UsageError("--expect goes with a run; a file has its own evaluators", ctx)
    request = start_request(
        {
            "agents": agents,
            "workspace": workspace,
            "budget": budget,
            "allow_unknown_cost": allow_unknown_cost,
        }
    )
    place = StartPlace(settings=terminal.settings)
    cases = prepare_cases(place, request, Path(target), judge)
    return _put_cases(terminal, _run_cases(terminal, cases))


def _is_file(target: str) -> bool:
    return target.endswith(_FILES) or Path(target).is_file()


# -- a run ---------------------------------------------------------------------------------------


def _evaluate_run(
    terminal: Terminal, run: str, expect: str | None, judge: str | None, *, allow: bool
) -> "ScoredRun":
    from loopwright.operations.evaluations import (  # noqa: PLC0415 - help stays quick
        JudgeQuestion,
        Jury,
        input_of,
        look_at,
        needs_judge,
        no_judge,
        read_expectation,
    )
    from loopwright.operations.wiring import near  # noqa: PLC0415 - help stays quick

    wanted = read_expectation(Path(expect)) if expect is not None else None
    with open_service(terminal) as service:
        run = service.find(run)
        found = look_at(service, run)
        question = JudgeQuestion(
            input=input_of(service, run), expected=wanted.expected if wanted is not None else ""
        )
    if wanted is None:
        return found
    asks = needs_judge(wanted.evaluators)
    if asks and judge is None:
        raise no_judge()

    async def judging() -> "ScoredRun":
        if not asks:
            return await Jury().about(found, wanted.evaluators, question)
        async with near(terminal.settings, say=terminal.say, alone=terminal.options.here) as here:
            jury = Jury(here=here, judge=judge, allow_unknown_cost=allow)
            return await jury.about(found, wanted.evaluators, question)

    return asyncio.run(judging())


def _put_run(terminal: Terminal, found: "ScoredRun") -> int:
    if terminal.as_json:
        terminal.put_json(found.as_dict())
    else:
        _put_one(terminal, found, name=found.run)
        for line in last_lines(found.came.composed, TEXT_LINES):
            terminal.put(terminal.painted(cut(f"    {line}", terminal_width()), "dim", sys.stdout))
    return 0 if found.passed else 1


# -- a file --------------------------------------------------------------------------------------


def _run_cases(terminal: Terminal, cases: "Cases") -> "list[ScoredRun]":
    from loopwright.operations.evaluations import run_case  # noqa: PLC0415 - help stays quick
    from loopwright.operations.wiring import near  # noqa: PLC0415 - help stays quick

    async def running() -> "list[ScoredRun]":
        found = []
        async with near(terminal.settings, say=terminal.say, alone=terminal.options.here) as here:
            for name, case in cases.evaluation.numbered():
                one = await run_case(here, cases, name, case)
                found.append(one)
                if not terminal.as_json:
                    _put_one(terminal, one, name=name)
        return found

    return asyncio.run(running())


def _put_cases(terminal: Terminal, found: "list[ScoredRun]") -> int:
    passed = sum(one.passed for one in found)
    if terminal.as_json:
        cases = [one.as_dict() for one in found]
        terminal.put_json({"passed": passed, "total": len(found), "cases": list(cases)})
    else:
        terminal.put("")
        tone: Tone = "good" if passed == len(found) else "bad"
        terminal.put(terminal.painted(f"{passed} of {len(found)} cases passed", tone, sys.stdout))
    return 0 if passed == len(found) else 1


def _put_one(terminal: Terminal, found: "ScoredRun", *, name: str) -> None:
    signs, cells = terminal.has_signs(sys.stdout), terminal_width()
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
    terminal.put(terminal.painted(cut(line, cells), "good" if good else "bad", sys.stdout))
    if found.problem:
        terminal.put(cut(f"    {one_line(found.problem)}", cells))
    for one in found.said:
        if not one.passed:
            terminal.put(cut(f"    {one.kind} ({one.subject}): {one_line(one.detail)}", cells))


@click.command(
    cls=Verb,
    drives=True,
    only_here=True,
    examples=[
        ("loopwright promote agent.yaml", "run the suites that it names, with its own model"),
        (
            "loopwright promote agent.yaml --model model:openai/gpt-5 --model claude",
            "with each of these",
        ),
        ("loopwright run agent.yaml --promoted", "run it only if exactly this text was promoted"),
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
@click.option("--workspace", metavar="DIR", help="Directory for agents. Default: the current one.")
@click.option("--budget", metavar="LIMITS", help="Limits of each case: usd=5,tokens=2M,time=2h.")
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
    """Promote a definition: each of its suites must reach its minimum score, with every model.

    Without FILE, list what was promoted. The exit code is 6 when it is refused.
    """
    from loopwright.operations.definitions import prepare_trial  # noqa: PLC0415 - help stays quick
    from loopwright.operations.run_start import StartPlace, start_request  # noqa: PLC0415 - quick help

    terminal = terminal_of(ctx)
    if file is None:
        _list(terminal)
        return
    request = start_request({"workspace": workspace, "budget": budget})
    place = StartPlace(settings=terminal.settings)
    trial = prepare_trial(place, request, file, models=models, folder=suites, judge=judge)
    made = asyncio.run(_try(terminal, trial))
    if terminal.as_json:
        from loopwright.operations.definitions import promotion_as_dict  # noqa: PLC0415 - help stays quick

        terminal.put_json(promotion_as_dict(made))
    else:
        terminal.put(
            terminal.painted(f"promoted {made.name} ({made.digest[:12]})", "good", sys.stdout)
        )


async def _try(terminal: Terminal, trial: "PromotionTrial") -> "Promotion":
    from loopwright.operations.definitions import (  # noqa: PLC0415 - help stays quick
        SuiteResult,
        try_out,
    )
    from loopwright.operations.definitions import promote as record  # noqa: PLC0415 - help stays quick
    from loopwright.operations.wiring import near  # noqa: PLC0415 - help stays quick

    results: list[SuiteResult] = []
    done = 0
    async with near(terminal.settings, say=terminal.say, alone=terminal.options.here) as here:
        async for found in try_out(here, trial):
            if isinstance(found, SuiteResult):
                results.append(found)
                _put_result(terminal, found)
                continue
            done += 1
            terminal.say(
                f"{done} of {trial.cases}  {found.case}: {'passed' if found.passed else 'not'}"
            )
        return record(here.log, trial, results, now_ms=here.service.clock.now_ms())


def _put_result(terminal: Terminal, found: "SuiteResult") -> None:
    if terminal.as_json:
        return
    line = f"{found.label}: {found.score:.2f} (at least {found.least:.2f})"
    tone: Tone = "good" if found.passed else "bad"
    terminal.put(terminal.painted(cut(one_line(line), terminal_width()), tone, sys.stdout))


def _list(terminal: Terminal) -> None:
    from loopwright.operations.data_directory import open_log  # noqa: PLC0415 - help stays quick
    from loopwright.operations.definitions import (  # noqa: PLC0415 - help stays quick
        promotion_as_dict,
        promotions,
    )

    with closing(open_log(terminal.settings)) as log:
        found = promotions(log)
    if terminal.as_json:
        terminal.put_json({"promotions": [promotion_as_dict(one) for one in found]})
        return
    for one in found:
        scores = ", ".join(f"{r.suite} {r.score:.2f}" for r in one.results)
        terminal.put(f"{one.digest[:12]}  {one_line(one.name)}  {scores}  by {one.by}")
    if not found:
        terminal.say("nothing was promoted yet")


VERBS = {
    "eval": evaluate,
    "promote": promote,
}
