"""`completion`: a script that lets a shell complete commands, runs and gates."""

import click
from click.shell_completion import get_completion_class

from loopwright.cli.verb import PROGRAMS, Verb, door_of

SHELLS = ("bash", "zsh", "fish")


@click.command(
    cls=Verb,
    examples=[
        ('eval "$(loopwright completion bash)"', "in ~/.bashrc; the same for zsh in ~/.zshrc"),
        ("loopwright completion fish > ~/.config/fish/completions/loopwright.fish", ""),
    ],
)
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
@click.pass_context
def completion(ctx: click.Context, /, *, shell: str) -> None:
    """Print a completion script. It completes commands, options, runs, gates and dialects."""
    door = door_of(ctx)
    made = get_completion_class(shell)
    assert made is not None, "click knows these shells"
    root = ctx.find_root().command
    texts = [
        made(root, {}, program, f"_{program.upper()}_COMPLETE").source() for program in PROGRAMS
    ]
    script = "\n".join(texts)
    if door.as_json:
        door.put_json({"shell": shell, "script": script})
    else:
        door.put(script)


VERBS = {"completion": completion}
