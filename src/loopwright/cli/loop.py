"""`loop`: a loop without a file."""

from typing import TYPE_CHECKING, TypedDict, cast

import click

from loopwright.cli.starting import launch, start_options
from loopwright.cli.verb import Verb, door_of

if TYPE_CHECKING:
    from loopwright.app.dialects import Definition
    from loopwright.app.preparing import Wish
    from loopwright.app.run_request import Start

MEMORIES = ("progress-log", "previous-output", "session", "none")


class _Shape(TypedDict):
    """Those of the options that say how the loop goes."""

    commands: tuple[str, ...]
    patterns: tuple[str, ...]
    signals: tuple[str, ...]
    judges: tuple[str, ...]
    manual: bool
    max: int
    memory: str
    criteria: bool


class _Worded(TypedDict):
    """Those that stand in the definition that they come to."""

    message: str | None
    name: str | None
    budget: str | None
    inputs: tuple[str, ...]


@click.command(
    cls=Verb,
    drives=True,
    remote=True,
    watches=True,
    examples=[
        (
            'loopwright loop "Make the tests pass" --agent command:./agent --until-command pytest',
            "repeat an agent until a command succeeds, at most 10 times",
        ),
        (
            'loopwright loop "Write a haiku" --agent command:./agent --manual --max 3',
            "a person reviews each iteration",
        ),
        (
            'loopwright loop "Write the report" --agent claude --until-judge "No claim is bare"',
            "an agent judges each iteration",
        ),
    ],
)
@click.argument("message", metavar="MESSAGE")
@click.option(
    "--until-command",
    "commands",
    multiple=True,
    metavar="COMMAND",
    help="Done when this program succeeds. No shell is involved; in `a && b` the programs run in "
    "order. May be given more than once.",
)
@click.option(
    "--until-regex",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Done when the output matches.",
)
@click.option(
    "--until-signal",
    "signals",
    multiple=True,
    metavar="WORD",
    help="Done when the agent says this word alone on its last line.",
)
@click.option(
    "--until-judge",
    "judges",
    multiple=True,
    metavar="TEXT",
    help="Done when an agent says that this holds. It is the same agent in a session of its own, "
    "or another: --agent judge=SPEC.",
)
@click.option(
    "--manual",
    is_flag=True,
    help="A person reviews each iteration that has passed the other checks.",
)
@click.option(
    "--max", "most", type=int, default=10, show_default=True, help="The most iterations, 1 to 1000."
)
@click.option(
    "--memory",
    type=click.Choice(MEMORIES),
    default=MEMORIES[0],
    show_default=True,
    metavar="KIND",
    help=f"What an iteration knows of those before it: {', '.join(MEMORIES)}.",
)
@click.option(
    "--no-criteria",
    is_flag=True,
    help="Do not add the completion criteria and the failed checks to the agent's prompt.",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A value that the prompt states below the message. May be given more than once.",
)
@start_options
@click.pass_context
def loop(ctx: click.Context, /, **options: object) -> int:
    """Repeat one agent until it is done. MESSAGE says what is to be done.

    Several --until options (and --manual) must all hold in the same iteration. Without any of them
    the loop makes all its iterations. The prompt states these criteria and, after an
    iteration, which of them failed.
    """
    kinds = ("commands", "patterns", "signals", "judges", "manual")
    checks = {key: options.pop(key) for key in kinds}
    checks |= {"max": options.pop("most"), "memory": options.pop("memory")}
    checks["criteria"] = not options.pop("no_criteria")
    shape = cast("_Shape", checks)  # click has seen to their kinds

    if door_of(ctx).remote is not None:
        return _loop_afar(ctx, shape, options)

    def prepare(wish: "Wish") -> "tuple[Start, Definition]":
        from loopwright.app.preparing import LoopWish, prepare_loop  # noqa: PLC0415 - quick help

        return prepare_loop(LoopWish(wish=wish, **shape))

    return launch(ctx, prepare, options, checks="--until-command")


def _loop_afar(ctx: click.Context, shape: _Shape, options: dict[str, object]) -> int:
    """At the server that was named: the definition that the options come to is sent there."""
    from loopwright.app.preparing import (  # noqa: PLC0415 - help stays quick
        COMMAND_LINE,
        LoopWish,
        Wish,
        loop_definition,
    )
    from loopwright.cli.afar import Start  # noqa: PLC0415 - only when asked for

    given = cast("_Worded", options)  # click has seen to their kinds
    wish = Wish(
        message=given["message"],
        name=given["name"],
        budget=given["budget"],
        inputs=given["inputs"],
    )
    _, data = loop_definition(LoopWish(wish=wish, **shape))
    afar = Start(ctx, door_of(ctx), COMMAND_LINE)
    return afar.run(data, "native", {**options, "max": None, "promoted": False})


VERBS = {"loop": loop}
