"""Scenarios of the command line: what is typed, apart from how it is run.

A file of `transcripts/scenarios` has scenarios by name. Each one has its own folder and data
directory:

    files:   files of the folder; a value that is not text is written as JSON
    git:     whether the folder is a Git repository with these files committed
    env:     variables of all commands
    model:   what a chat model on a local address answers, in turn
    server:  whether a server elsewhere runs; ${server} is its address
    signed_in:  whether commands have the token of its admin
    mask:    pairs of a pattern and a text for what depends on the machine
    steps:   command lines without the program's name, or mappings

A step that is a mapping has `run`, the command line, and may have `stdin`, `files` that are written
first, `keep`, which gives names to parts of its JSON, and `leaves_at`, the beginning of a line that
a process of its own prints before it is told to end, and `until`, a text that the command is
repeated for until it prints it, where a server does something by and by. With `converses` a line of
stdin with an "id" is followed by the next one only after a line was printed. Lines of output that
match the pattern `unordered` are shown last and sorted: their order depends on time. `${name}` in a
command line is a part that was kept; `last` is the newest run.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any, Protocol

from tests.golden.files import FOLDER
from tests.golden.transcript_text import Normaliser, shown
from tests.support.tables import read_table

SECONDS = 60.0
SCENARIOS = FOLDER / "transcripts" / "scenarios"


@dataclass(frozen=True)
class Step:
    """A command that is typed."""

    run: str
    stdin: str | None = None
    files: Mapping[str, Any] = field(default_factory=dict)
    keep: Mapping[str, str] = field(default_factory=dict)
    leaves_at: str | None = None
    until: str | None = None
    converses: bool = False
    unordered: str | None = None


@dataclass(frozen=True)
class Scenario:
    """Commands that are typed one after the other in a folder."""

    name: str
    steps: tuple[Step, ...]
    files: Mapping[str, Any] = field(default_factory=dict)
    git: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    model: tuple[Mapping[str, Any], ...] = ()
    server: bool = False
    signed_in: bool = False
    mask: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Told:
    """What a command printed and how it left."""

    code: int
    out: str
    err: str


class Runner(Protocol):
    """A way to run commands: in this process, with a local server, or with a server elsewhere."""

    @property
    def kept(self) -> dict[str, str]:
        """Names that command lines may use, such as the address of a server."""
        ...

    @property
    def words(self) -> Mapping[str, str]:
        """Texts that differ from one recording to the next, such as folders, and their names."""
        ...

    def write(self, files: Mapping[str, Any]) -> None:
        """Write files of the folder."""
        ...

    def run(self, words: list[str], step: Step) -> Told:
        """Run a command to its end."""
        ...


def read_scenarios() -> dict[str, Scenario]:
    """All scenarios, by name."""
    found: dict[str, Scenario] = {}
    for file in sorted(SCENARIOS.glob("*.yaml")):
        for name, value in read_table(file).items():
            assert name not in found, f"two scenarios are called {name}"
            found[name] = _scenario(name, value)
    return found


def _scenario(name: str, value: dict[str, Any]) -> Scenario:
    rest = {key: one for key, one in value.items() if key not in ("steps", "model", "mask")}
    steps = (Step(one) if isinstance(one, str) else Step(**one) for one in value["steps"])
    return Scenario(
        name,
        tuple(steps),
        model=tuple(value.get("model", ())),
        mask=tuple((str(pattern), str(to)) for pattern, to in value.get("mask", ())),
        **rest,
    )


def transcribe(scenario: Scenario, runner: Runner) -> bytes:
    """Run a scenario and write down what was typed and printed."""
    normaliser = Normaliser(runner.words, scenario.mask)
    parts: list[str] = []
    for step in scenario.steps:
        runner.write(step.files)
        line = Template(step.run).safe_substitute(runner.kept)
        told = _run(runner, line, step)
        for name, place in step.keep.items():
            runner.kept[name] = _part(told, place, line)
            if place == "text":
                normaliser.name(name, runner.kept[name])
        parts.append(_written(step, told, normaliser))
    return "\n".join(parts).encode()


def _run(runner: Runner, line: str, step: Step) -> Told:
    end = time.monotonic() + SECONDS
    told = runner.run(shlex.split(line), step)
    while step.until is not None and step.until not in told.out:
        assert time.monotonic() < end, f"{line} never printed {step.until}: {told}"
        time.sleep(0.05)
        told = runner.run(shlex.split(line), step)
    return told


def _part(told: Told, place: str, line: str) -> str:
    if place == "text":
        return told.out.strip()
    try:
        value = json.loads(told.out)
        for key in place.split("."):
            value = value[int(key) if key.isdigit() else key]
    except (ValueError, LookupError) as error:
        raise AssertionError(f"{line}: no {place} in {told}") from error
    return str(value)


def _written(step: Step, told: Told, normaliser: Normaliser) -> str:
    lines = [f"$ loopwright {step.run}\n"]
    if step.stdin is not None:
        lines += [f"< {line}\n" for line in step.stdin.splitlines()]
    lines.append(f"exit code {told.code}\n")
    for name, text in (("stdout", told.out), ("stderr", told.err)):
        form, body = shown(_ordered(text, step.unordered), normaliser)
        lines.append(f"--- {name}: {form}\n{body}")
    return "".join(lines)


def _ordered(text: str, unordered: str | None) -> str:
    if unordered is None:
        return text
    lines = text.splitlines(keepends=True)
    late = [line for line in lines if re.search(unordered, line)]
    late.sort(key=lambda line: re.sub(r"\S*\d\S*", "", line))  # ids do not count
    return "".join([*(line for line in lines if line not in late), *late])


def typed_in(transcript: Path) -> list[tuple[list[str], int]]:
    """The command lines of a transcript, with their exit codes."""
    found: list[tuple[list[str], int]] = []
    line = ""
    for one in transcript.read_text(encoding="utf-8").splitlines():
        if one.startswith("$ loopwright "):
            line = one.removeprefix("$ loopwright ")
        elif one.startswith("exit code ") and line:
            found.append((shlex.split(line), int(one.rpartition(" ")[2])))
            line = ""
    return found
