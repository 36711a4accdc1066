"""Transcripts: what commands print, and what servers answer and send, byte for byte."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from loopwright.cli.main import COMMANDS, cli
from loopwright.engine import activity
from tests.golden.files import FOLDER, compare
from tests.golden.transcript_http import NOT_ASKED, ask, fill, get_routes
from tests.golden.transcript_runners import BACKGROUND, in_process, set_environment
from tests.golden.transcript_runs import RUNS, answering
from tests.golden.transcript_scenarios import read_scenarios, transcribe, typed_in
from tests.golden.transcript_streams import LOOPS, loop_of, socket_of, sse_of
from tests.http.served import Served, served

TRANSCRIPTS = FOLDER / "transcripts"
SCENARIOS = read_scenarios()
ROUTES = [route for route in get_routes() if route not in NOT_ASKED]

DID_ITS_WORK = (0, 3, 4, 5)  # docs/reference/exit-codes.md

NO_SUCCESS = {
    "demo": "starts other commands, whose output goes past the transcript",
    "webhook test": "an address that a webhook may have cannot be served by a test",
}
NO_JSON = {
    "demo": "the same",
    "chat": "a conversation, refused with a problem",
    "mcp": "stdout is the protocol",
}
NO_MISTAKE = {
    "config path": "takes no arguments",
    "mcp": "a wrong agent is told to the client that starts a loop",
}
"""Commands that lack something in the transcripts, and why."""


# -- commands --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings(BACKGROUND)
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_commands_run_in_this_process_give_the_stored_transcript(name: str) -> None:
    """Every command of a scenario prints and leaves as it did."""
    scenario = SCENARIOS[name]
    with in_process(scenario) as runner:
        found = transcribe(scenario, runner)
    compare(TRANSCRIPTS / "cli" / f"{name}.txt", found)


def _leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for word, one in command.commands.items():
            yield from _leaves(one, f"{name} {word}")
        if command.invoke_without_command:
            yield name, command
    else:
        yield name, command


def all_commands() -> dict[str, click.Command]:
    """Every command that does something, with the words that name it."""
    context = click.Context(cli)
    found: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        found |= dict(_leaves(command, name))
    return found


def typed() -> list[tuple[str, list[str], int]]:
    """The command lines of all transcripts: the command, all words, and the exit code."""
    known = all_commands()
    found: list[tuple[str, list[str], int]] = []
    for file in sorted((TRANSCRIPTS / "cli").glob("*.txt")):
        for words, code in typed_in(file):
            name = next((n for n in (" ".join(words[:2]), *words[:1]) if n in known), "")
            found.append((name, words, code))
    return found


def test_every_command_when_typed_succeeds_in_a_transcript() -> None:
    """A new command needs a scenario that uses it; it also did its work where a run waits or ended
    otherwise than it should.
    """
    done = {name for name, _, code in typed() if code in DID_ITS_WORK}
    assert all_commands().keys() - done - NO_SUCCESS.keys() == set()


def test_every_command_when_asked_for_json_is_in_a_transcript() -> None:
    """So does its JSON."""
    told = {name for name, words, _ in typed() if "--json" in words}
    assert all_commands().keys() - told - NO_JSON.keys() == set()


def test_every_command_with_arguments_when_mistyped_is_in_a_transcript() -> None:
    """So does a mistake of whoever types it."""
    taking = {
        name
        for name, command in all_commands().items()
        if any(isinstance(param, click.Argument) for param in command.params)
    }
    failed = {name for name, _, code in typed() if code != 0}
    assert taking - failed - NO_MISTAKE.keys() == set()


# -- servers ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """A server for runs that are followed."""
    with _serving() as one:
        yield one


@pytest.fixture(scope="module")
def filled() -> Iterator[tuple[Served, dict[str, str]]]:
    """A server with a small data set."""
    with _serving() as one:
        yield one, fill(one)


class _serving:
    """A server in a folder whose path has the same length each time, wherever other files are."""

    def __enter__(self) -> Served:
        self.root = Path(tempfile.mkdtemp(prefix="lw-", dir="/tmp"))
        self.patch = pytest.MonkeyPatch()
        set_environment(self.patch, self.root, {})
        # The usage of a call is recorded at its end only, however slow the machine is.
        self.patch.setattr(activity, "FLUSH_MS", 3_600_000)
        self.served = served(self.root, more={"webhooks_to_loopback": "on"})
        return self.served.__enter__()

    def __exit__(self, *error: object) -> None:
        self.served.__exit__(None, None, None)
        self.patch.undo()
        shutil.rmtree(self.root, ignore_errors=True)


def _file_of(route: str) -> str:
    return route.strip("/").replace("/", "_").replace("{", "").replace("}", "") or "root"


@pytest.mark.parametrize("route", ROUTES)
def test_route_asked_of_a_fixed_data_set_gives_the_stored_answer(
    filled: tuple[Served, dict[str, str]], route: str
) -> None:
    """Status, type and body of each GET route of the OpenAPI document."""
    if route == "/metrics":  # counts what was asked before, maybe by another worker process
        for earlier in ROUTES[: ROUTES.index(route)]:
            ask(*filled[:1], earlier, filled[1])
    found = ask(*filled[:1], route, filled[1])
    compare(TRANSCRIPTS / "http" / f"{_file_of(route)}.txt", found.encode())


@pytest.mark.parametrize("name", sorted(RUNS))
def test_event_stream_of_a_run_when_read_and_continued_is_the_stored_one(
    server: Served, name: str
) -> None:
    """Each event with its id, and the same ones after Last-Event-ID."""
    with answering(name):
        found = sse_of(server, name)
    compare(TRANSCRIPTS / "sse" / f"{name}.txt", found.encode())


@pytest.mark.parametrize("name", sorted(RUNS))
def test_socket_of_a_client_when_it_follows_a_run_receives_the_stored_events(
    server: Served, name: str
) -> None:
    """The events of the run, and what else the client is sent meanwhile."""
    with answering(name):
        found = socket_of(server, name)
    compare(TRANSCRIPTS / "sockets" / f"{name}.txt", found.encode())


@pytest.mark.parametrize("name", sorted(LOOPS))
def test_socket_of_a_starter_when_an_assistant_loops_receives_the_stored_events(
    server: Served, name: str
) -> None:
    """The events of the loop under the names of its document, in their order."""
    compare(TRANSCRIPTS / "sockets" / f"{name}.txt", loop_of(server, name).encode())


def test_every_transcript_when_listed_belongs_to_a_scenario() -> None:
    """No file is left over from something that was removed or renamed."""
    wanted = {
        "cli": set(SCENARIOS),
        "http": {_file_of(route) for route in ROUTES},
        "sse": set(RUNS),
        "sockets": {*RUNS, *LOOPS},
    }
    for folder, names in wanted.items():
        assert {file.stem for file in (TRANSCRIPTS / folder).iterdir()} == names
