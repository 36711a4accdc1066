"""The transcripts of the command line at each address: in this process, at the server of the same
data directory and at a remote server.

The commands in `AT_EACH_ADDRESS` print the stored transcript byte for byte, apart from `RULES`; the
other commands of a scenario are called in this process and prepare what these see.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loopwright.cli.terminal import Terminal
from loopwright.client.client import Address, Client, LocalServer, open_client
from loopwright.engine import activity
from tests.golden.files import FOLDER
from tests.golden.transcript_runners import BACKGROUND, in_process
from tests.golden.transcript_scenarios import (
    Runner,
    Scenario,
    Step,
    Told,
    read_scenarios,
    transcribe,
)
from tests.http.served import Served, served

AT_EACH_ADDRESS = (
    "run",
    "loop",
    "resume",
    "watch",
    "fork",
    "approve",
    "reject",
    "continue",
    "retry",
    "skip",
    "edit",
    "inbox",
    "ls",
    "show",
    "events",
    "logs",
    "spend",
    "diff",
    "apply",
    "discard",
    "pause",
    "stop",
    "tell",
)
ONLY_HERE = ("--restore", "command:")
"""Parts of commands that a remote server refuses: it writes no files of this machine, and starts
programs of agents without a sandbox only if an admin has allowed that for the agent."""

DECIDING = ("approve", "reject", "continue")
AFTER_DECISION = ("show", "events", "logs", "ls", "inbox", "spend", "resume", "approve last")
"""With `--no-drive`, a decision is only recorded. In this process the run then rests, and a server
continues it at once, so what these commands find depends on the address."""

RULES = (
    (r" --server http://127\.0\.0\.1:\d+", "", "suggested commands name the server that was used"),
    (r"driven by +process \d+\n", "", "a server drives runs that wait, which no process did"),
    (r'"driver": \d+', '"driver": null', "the same"),
    (r"driven by http://127\.0\.0\.1:\d+\n", "", "the server that drives the run is named"),
    (
        r"running on the local server, process \d+( \([^\n]*\))?\n",
        "",
        "the server that drives the run is named",
    ),
    (
        r"running on (the local server, process \d+|http://127\.0\.0\.1:\d+);",
        "running in process 0;",
        "a run in the background is driven by a server if there is one",
    ),
    (
        r"\b(first-start|the first administrator)\b",
        "tester",
        "a person at a remote server is known by the name of the token",
    ),
)
"""What may differ: a pattern, what is printed instead of it in this process, and why."""
HOME = r"(?<![\w/])\(data directory\)"
"""A server does not name its data directory."""
PROGRESS = r'(?m)^ +"(summary|status|iterations|cost|usd|unpriced_calls)": .*\n'
"""How far a run has come that was just started in the background, which depends on time."""


def is_compared(line: str, without: Sequence[str] = ()) -> bool:
    """Whether a command line gives the same output at an address, with parts that this refuses."""
    words = shlex.split(line) or [""]
    return words[0] in AT_EACH_ADDRESS and not any(part in line for part in without)


SCENARIOS = {
    name: one
    for name, one in read_scenarios().items()
    if not one.server and any(is_compared(step.run) for step in one.steps)
}


class ElsewhereRunner:
    """Runs the commands that are compared at a server, and the others in this process."""

    def __init__(
        self, runner: Runner, *, more: Sequence[str] = (), without: Sequence[str] = ()
    ) -> None:
        self._runner = runner
        self._more = more
        self.without = without
        self.is_elsewhere = False

    @property
    def kept(self) -> dict[str, str]:
        return self._runner.kept

    @property
    def words(self) -> Mapping[str, str]:
        return self._runner.words

    def write(self, files: Mapping[str, Any]) -> None:
        self._runner.write(files)

    def run(self, words: list[str], step: Step) -> Told:
        with pytest.MonkeyPatch.context() as patch:
            self.is_elsewhere = is_compared(step.run, self.without)
            if not self.is_elsewhere:
                patch.setenv("LOOPWRIGHT_HERE", "1")
                return self._runner.run(words, step)
            told = self._runner.run([*words, *self._more], step)
        return Told(told.code, self._by_rules(told.out), self._by_rules(told.err))

    def _by_rules(self, text: str) -> str:
        for pattern, becomes, _ in RULES:
            text = re.sub(pattern, becomes, text)
        home = next(path for path, name in self.words.items() if name == "<home>")
        return re.sub(HOME, home, text)


@contextmanager
def at_local_server(scenario: Scenario) -> Iterator[ElsewhereRunner]:
    """The server of the data directory: commands call its operations and follow its runs through
    its Unix socket. Those that drive runs prepare them here, and the server drives them.
    """
    with in_process(scenario) as runner, _serving(runner, held=True):
        made = ElsewhereRunner(runner)
        choose, follow = Terminal._address, Terminal.open_client

        def address(terminal: Terminal, *, drives: bool) -> Address:
            if made.is_elsewhere:
                return LocalServer(terminal.settings)
            return choose(terminal, drives=drives)

        def client(terminal: Terminal, *, drives: bool, say: Callable[[str], None]) -> Client:
            if made.is_elsewhere and not drives:
                return open_client(LocalServer(terminal.settings), say=say)
            return follow(terminal, drives=drives, say=say)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Terminal, "_address", address)
            patch.setattr(Terminal, "open_client", client)
            yield made


@contextmanager
def at_remote_server(scenario: Scenario) -> Iterator[ElsewhereRunner]:
    """A server that commands reach by its address, with a token."""
    with (
        in_process(scenario) as runner,
        _serving(runner, held=False) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("LOOPWRIGHT_TOKEN", server.token)
        address = ("--server", f"http://127.0.0.1:{server.port}")
        yield ElsewhereRunner(runner, more=address, without=ONLY_HERE)


@contextmanager
def _serving(runner: Runner, *, held: bool) -> Iterator[Served]:
    folder = Path(runner.kept["folder"])
    settings = {"sandbox": "off", "snapshots": os.environ["LOOPWRIGHT_SNAPSHOTS"]}
    with served(folder.parent, home="home", held=held, workspace=folder, more=settings) as server:
        yield server


def compared_steps(transcript: str, without: Sequence[str]) -> list[str]:
    """The parts of a transcript that are commands to compare, with what they printed."""
    # A slow machine records what an agent does in more events.
    transcript = re.sub(r"\b\d+ events, hash chain", "<count> events, hash chain", transcript)
    parts = re.split(r"(?m)^(?=\$ loopwright )", transcript)
    found: list[str] = []
    is_decided = False
    for part in (one for one in parts if one):
        command = part.partition("\n")[0].removeprefix("$ loopwright ")
        is_decided = is_decided and not command.startswith(("run ", "loop "))
        if "--detach" in command:
            part = re.sub(PROGRESS, "", part)
        if is_compared(command, without) and not (
            is_decided and command.startswith(AFTER_DECISION)
        ):
            found.append(part)
        is_decided |= command.startswith(DECIDING) and "--no-drive" in command
    return found


@pytest.mark.filterwarnings(BACKGROUND)
@pytest.mark.parametrize("at", [at_local_server, at_remote_server], ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_commands_print_the_stored_transcript_at_each_address(
    name: str, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = SCENARIOS[name]
    monkeypatch.setattr(activity, "FLUSH_MS", 3_600_000)  # whatever the load is
    with at(scenario) as runner:
        found = transcribe(scenario, runner).decode()
        without = runner.without
    stored = (FOLDER / "transcripts" / "cli" / f"{name}.txt").read_text(encoding="utf-8")
    expected, printed = compared_steps(stored, without), compared_steps(found, without)
    assert "".join(printed).splitlines() == "".join(expected).splitlines()
