"""`help`: help for one command, for the commands to start with, or for all."""

import click

from loopwright.cli.verb import PROGRAM, Verb, terminal_of


@click.command(
    cls=Verb,
    examples=[
        ("loopwright help --all", "every command, in groups"),
        ("loopwright help resume", "the same as `loopwright resume --help`"),
    ],
)
@click.argument("words", metavar="[COMMAND]", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="List every command, in groups.")
@click.pass_context
def show_help(ctx: click.Context, /, *, words: tuple[str, ...], everything: bool) -> None:
    """Print help for a command, or a list of commands."""
    from loopwright.cli.main import COMMANDS, FIRST, cli  # noqa: PLC0415 - it imports this module

    terminal = terminal_of(ctx)
    if terminal.as_json and not words:
        names = list(COMMANDS) if everything else FIRST
        found = [(name, COMMANDS[name]) for name in names]
        listed = [{"name": n, "group": e.group, "summary": e.summary} for n, e in found]
        terminal.put_json({"commands": listed})
        return
    with cli.make_context(PROGRAM, list(words) or ["help"], resilient_parsing=True) as top:
        command, place = _find(cli, top, words)
        if command is cli and everything:
            formatter = place.make_formatter()
            cli.format_all(place, formatter)
            terminal.put(formatter.getvalue().rstrip())
        elif terminal.as_json:
            terminal.put_json({"command": " ".join(words), "help": command.get_help(place)})
        else:
            terminal.put(command.get_help(place))


def _find(
    command: click.Command, place: click.Context, words: tuple[str, ...]
) -> tuple[click.Command, click.Context]:
    """The command with this name, and its context."""
    for word in words:
        if not isinstance(command, click.Group):
            raise click.UsageError(f"{place.command_path} has no command {word!r}", place)
        found = command.get_command(place, word)
        if found is None:
            raise click.NoSuchCommand(word, possibilities=command.list_commands(place), ctx=place)
        command, place = found, click.Context(found, info_name=word, parent=place)
    return command, place


VERBS = {"help": show_help}
