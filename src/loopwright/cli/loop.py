"""`loop`: a loop without a file."""

from typing import TYPE_CHECKING

import click

from loopwright.cli.starting import launch, start_options
from loopwright.cli.verb import Verb

if TYPE_CHECKING:
    from loopwright.app.preparing import Wish
    from loopwright.app.service import Start

MEMORIES = ("progress-log", "previous-output", "none")


@click.command(
    cls=Verb,
    examples=[
        (
            'loopwright loop "Make the tests pass" --agent command:./agent --until-command pytest',
            "repeat an agent until a command succeeds, at most 10 times",
        ),
        (
            'loopwright loop "Write a haiku" --agent command:./agent --manual --max 3',
            "a person looks at each pass",
        ),
    ],
)
@click.argument("message", metavar="MESSAGE")
@click.option(
    "--until-command",
    "commands",
    multiple=True,
    metavar="COMMAND",
    help="Done when this program succeeds. No shell is involved.",
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
@click.option("--until-judge", "judges", multiple=True, metavar="AGENT", hidden=True)
@click.option("--manual", is_flag=True, help="A person looks at each pass.")
@click.option("--max", "most", type=int, default=10, show_default=True, help="The most passes.")
@click.option(
    "--memory",
    default=MEMORIES[0],
    show_default=True,
    metavar="KIND",
    shell_complete=lambda _ctx, _param, typed: [m for m in MEMORIES if m.startswith(typed)],
    help=f"What a pass learns of those before it: {', '.join(MEMORIES)}.",
)
@start_options
@click.pass_context
def loop(ctx: click.Context, /, **options: object) -> int:
    """Repeat one agent until it is done. MESSAGE says what is to be done.

    Several --until options (and --manual) must all hold in the same pass. Without any of them the
    loop makes all its passes.
    """
    if options.pop("judges"):
        raise click.UsageError("--until-judge is not available yet: use --until-command", ctx)
    checks = {key: options.pop(key) for key in ("commands", "patterns", "signals", "manual")}
    shape = {"max": options.pop("most"), "memory": options.pop("memory"), **checks}

    def prepare(wish: "Wish") -> "tuple[Start, object]":
        from loopwright.app.preparing import LoopWish, prepare_loop  # noqa: PLC0415 - quick help

        return prepare_loop(LoopWish(wish=wish, **shape))  # type: ignore[arg-type]

    return launch(ctx, prepare, {"inputs": (), **options})  # type: ignore[arg-type]


VERBS = {"loop": loop}
