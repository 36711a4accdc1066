"""What messages tell people to do can be done: every command they name is there."""

import re
from pathlib import Path

import click
import pytest

from loopwright.cli.main import COMMANDS, CommandGroup
from tests.cli.conftest import Place

SOURCE = Path(__file__).parents[2] / "src" / "loopwright"
NAMED = re.compile(r"`loopwright ([a-z][^`\n]*)`")


def named() -> list[str]:
    """Commands in backquotes, wherever the source has them."""
    texts = (file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py"))
    return sorted({found for text in texts for found in NAMED.findall(text)})


def test_there_are_some() -> None:
    """The search finds those that are known."""
    assert {"doctor", "token ls", "user add NAME --role admin"} <= set(named())


@pytest.mark.item("J4")
@pytest.mark.parametrize("line", named())
def test_a_command_that_is_named_is_there(line: str) -> None:
    """The command, what it is followed by where it is a group, and its options."""
    name, *rest = line.partition(" -- ")[0].split()
    assert name in COMMANDS
    group = CommandGroup()
    command = group.get_command(click.Context(group), name)
    assert command is not None
    if isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        word = rest[0]
        found = command.get_command(click.Context(command), word)
        assert found is not None, word
        command = found
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= known | {"--help"}


@pytest.mark.parametrize("value", ["5", "usd=five", "usd=-1", "time=tomorrow", "euro=5"])
def test_errors_of_budgets_have_one_form(lw: Place, value: str) -> None:
    words = ("loop", "Do it", "--agent", "command:true", "--budget", value)
    told = lw(*words)
    assert told.code == 2
    assert told.err.startswith("error: --budget: ")
    assert "write --budget usd=5" in told.err
    refused = lw(*words, "--json")
    assert "bad-budget" in refused.out + refused.err


def test_hints_do_not_name_commands_that_fail(lw: Place) -> None:
    assert lw("run", lw.loop(lw.script("one", "two", "three"))).code == 0
    told = lw("events", "last", "--dialect", "zenflow")
    assert (told.code, "--dialect native" in told.err) == (2, False)
    for command in ("retry", "skip"):
        told = lw(command, "last")
        assert "it has no stages" in told.err
        assert "loopwright resume" not in told.err
