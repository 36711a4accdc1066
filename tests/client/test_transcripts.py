"""The transcripts of the command line at each address: in this process, at the server of the same
data directory and at a remote server.

The commands in `AT_EACH_ADDRESS` print the stored transcript byte for byte, apart from `RULES`; the
other commands of a scenario are called in this process and prepare what these see.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loopwright.cli.terminal import Terminal
from loopwright.client.client import Address, LocalServer
from loopwright.engine import activity
from tests.golden.files import FOLDER
from tests.golden.transcript_runners import in_process
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
    "show",
    "events",
    "logs",
    "diff",
    "apply",
    "discard",
    "pause",
    "stop",
    "tell",
)
WITHOUT_DRIVING = ("approve", "reject", "continue")
"""With `--no-drive` these are compared too."""

READING = ("show", "events", "logs")
RECORDED = ("exit code 0", "exit code 5")  # of a decision

RULES = (
    (r" --server http://127\.0\.0\.1:\d+", "", "suggested commands name the server that was used"),
    (r"driven by +process \d+\n", "", "a server drives runs that wait, which no process did"),
    (r"\bfirst-start\b", "tester", "a person at a remote server is known by the name of the token"),
)
"""What may differ: a pattern, what is printed instead of it in this process, and why."""
HOME = r"(?<![\w/])\(data directory\)"
"""A server does not name its data directory."""


def is_compared(line: str) -> bool:
    """Whether a command line gives the same output at each address."""
    words = shlex.split(line) or [""]
    return words[0] in AT_EACH_ADDRESS or (words[0] in WITHOUT_DRIVING and "--no-drive" in words)


SCENARIOS = {
    name: one
    for name, one in read_scenarios().items()
    if not one.server and any(is_compared(step.run) for step in one.steps)
}


class ElsewhereRunner:
    """Runs the commands that are compared at a server, and the others in this process."""

    def __init__(self, runner: Runner, more: tuple[str, ...] = ()) -> None:
        self._runner = runner
        self._more = more
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
        if not is_compared(step.run):
            return self._runner.run(words, step)
        self.is_elsewhere = True
        try:
            told = self._runner.run([*words, *self._more], step)
        finally:
            self.is_elsewhere = False
        return Told(told.code, self._by_rules(told.out), self._by_rules(told.err))

    def _by_rules(self, text: str) -> str:
        for pattern, becomes, _ in RULES:
            text = re.sub(pattern, becomes, text)
        home = next(path for path, name in self.words.items() if name == "<home>")
        return re.sub(HOME, home, text)


@contextmanager
def at_local_server(scenario: Scenario) -> Iterator[Runner]:
    """The server of the data directory, which commands reach through its Unix socket."""
    with in_process(scenario) as runner, _serving(runner, held=True):
        made = ElsewhereRunner(runner)
        choose = Terminal._address

        def address(terminal: Terminal, *, drives: bool) -> Address:
            if made.is_elsewhere:
                return LocalServer(terminal.settings)
            return choose(terminal, drives=drives)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Terminal, "_address", address)
            patch.setenv("LOOPWRIGHT_HERE", "1")
            yield made


@contextmanager
def at_remote_server(scenario: Scenario) -> Iterator[Runner]:
    """A server that commands reach by its address, with a token."""
    with (
        in_process(scenario) as runner,
        _serving(runner, held=False) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("LOOPWRIGHT_TOKEN", server.token)
        yield ElsewhereRunner(runner, ("--server", f"http://127.0.0.1:{server.port}"))


@contextmanager
def _serving(runner: Runner, *, held: bool) -> Iterator[Served]:
    folder = Path(runner.kept["folder"])
    with served(folder.parent, home="home", held=held) as server:
        yield server


def compared_steps(transcript: str) -> list[str]:
    """The parts of a transcript that are commands to compare, with what they printed. A server
    continues a run as soon as a decision was recorded, so what is read of it then differs.
    """
    # A slow machine records what an agent does in more events.
    transcript = re.sub(r"\b\d+ events, hash chain", "<count> events, hash chain", transcript)
    parts = re.split(r"(?m)^(?=\$ loopwright )", transcript)
    found: list[str] = []
    is_decided = False
    for part in (one for one in parts if one):
        line, _, rest = part.partition("\n")
        command = line.removeprefix("$ loopwright ")
        if is_compared(command) and not (is_decided and command.startswith(READING)):
            found.append(part)
        is_decided |= command.startswith(WITHOUT_DRIVING) and rest.startswith(RECORDED)
    return found


@pytest.mark.parametrize("at", [at_local_server, at_remote_server], ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_commands_print_the_stored_transcript_at_each_address(
    name: str, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = SCENARIOS[name]
    monkeypatch.setattr(activity, "FLUSH_MS", 3_600_000)  # whatever the load is
    with at(scenario) as runner:
        found = transcribe(scenario, runner).decode()
    stored = (FOLDER / "transcripts" / "cli" / f"{name}.txt").read_text(encoding="utf-8")
    assert compared_steps(found) == compared_steps(stored)
