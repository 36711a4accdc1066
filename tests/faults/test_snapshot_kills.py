"""kill -9 around every write of a run with snapshots: real processes, real Git, a real agent."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.workspaces.folders import commit, fingerprint, git, put

ROOT = Path(__file__).resolve().parents[2]
KILLED = -9
MOST_POINTS = 2_000
AGENT = """#!/bin/sh
cat >/dev/null
grep -qx "line $LOOPWRIGHT_ITERATION" work.txt 2>/dev/null ||
  echo "line $LOOPWRIGHT_ITERATION" >> work.txt
echo "did iteration $LOOPWRIGHT_ITERATION"
"""
CHECK = '#!/bin/sh\ntest "$(wc -l < work.txt)" -ge 2\n'
SCENARIOS = {
    "plain": (),
    "protected": ("--protect", "tests/**"),
    "worktree": ("--worktree",),
    "protected worktree": ("--worktree", "--protect", "tests/**"),
}


class Commands:
    """Runs commands in children that may die."""

    def __init__(self) -> None:
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.snapshot_child"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, home: Home, *args: str, kill: int = 0) -> int:
        order = {
            "folder": str(home.work),
            "env": home.env,
            "args": list(args),
            "kill": kill,
            "output": str(home.output),
        }
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps(order) + "\n")
        self._program.stdin.flush()
        return int(self._program.stdout.readline())

    def json(self, home: Home, *args: str) -> Any:
        code = self(home, *args, "--json")
        assert code == 0, home.output.read_text()
        return json.loads(home.output.read_text())

    def close(self) -> None:
        self._program.communicate()


@dataclass
class Home:
    """A repository, a data directory and an agent of their own."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        put(self.work, check__sh=CHECK, tests___a__txt="expected\n")
        (self.work / "check.sh").chmod(0o755)
        git(self.work, "init", "-q", "-b", "main", "--template=")
        commit(self.work, "first")
        self.agent.write_text(AGENT)
        self.agent.chmod(0o755)
        self.env = {
            "LOOPWRIGHT_HOME": str(self.folder / "home"),
            "LOOPWRIGHT_DURABILITY": "normal",
            "LOOPWRIGHT_SNAPSHOTS": "on",
            "XDG_CONFIG_HOME": str(self.folder / "config"),
        }

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def agent(self) -> Path:
        return self.folder / "agent.sh"

    @property
    def output(self) -> Path:
        return self.folder / "output.txt"

    def start(self, scenario: str) -> tuple[str, ...]:
        base = ("loop", "Do it", "--agent", f"command:{self.agent}", "--max", "4")
        return (*base, "--until-command", "./check.sh", *SCENARIOS[scenario])


@pytest.fixture
def commands() -> Iterator[Commands]:
    """The program that makes children."""
    made = Commands()
    yield made
    made.close()


def events(commands: Commands, home: Home) -> list[dict[str, Any]]:
    """The events of the only run; none where it was never recorded."""
    runs = commands.json(home, "ls", "--all")["runs"]
    if not runs:
        return []
    assert len(runs) == 1
    assert commands(home, "events", runs[0]["run"]) == 0
    return [json.loads(line) for line in home.output.read_text().splitlines()]


def trees(events: list[dict[str, Any]]) -> list[str]:
    return [one["snapshot"]["tree"] for one in events if one.get("snapshot")]


def finish(commands: Commands, home: Home, scenario: str) -> list[dict[str, Any]]:
    """Let the run that a death left behind end; its events."""
    before = events(commands, home)
    if not before:
        assert commands(home, *home.start(scenario)) == 0, home.output.read_text()
        return events(commands, home)
    run = before[0]["run"]
    if before[-1]["kind"] != "run.finished":
        assert commands(home, "resume", run) == 0, home.output.read_text()
    after = events(commands, home)
    assert after[: len(before)] == before, "what was recorded stays"
    return after


def without_shortages(effects: list[str]) -> list[str]:
    """Effects without waits for the machine, and without the numbers of calls that were made again
    after one: other programs decide about those, for example by a socket that they remove while a
    sandbox is set up.
    """
    names = (effect.rpartition("#")[0] for effect in effects)
    return [*dict.fromkeys(name for name in names if not name.endswith("/park"))]


def judge(
    commands: Commands, home: Home, events: list[dict[str, Any]], whole: list[dict[str, Any]]
) -> None:
    """The run came to what an undisturbed one comes to, and its snapshots can be read."""
    requested = [one["effect"] for one in events if one["kind"] == "effect.requested"]
    assert len(requested) == len(set(requested)), "no effect is requested twice"
    wanted = [one["effect"] for one in whole if one["kind"] == "effect.requested"]
    if any("/park#" in effect for effect in (*requested, *wanted)):
        requested, wanted = without_shortages(requested), without_shortages(wanted)
    assert requested == wanted
    done = [one["iteration"] for one in events if one["kind"] == "iteration.finished"]
    assert done == [1, 2]
    assert trees(events) == trees(whole), "the same files are the same trees"
    assert events[-1]["outcome"] == "completed"
    run = events[0]["run"]
    assert "+line 1\n+line 2\n" in commands.json(home, "diff", run)["diff"]
    assert commands(home, "doctor", "--deep") == 0, home.output.read_text()


def walk(commands: Commands, folder: Path, scenario: str, points: range) -> int:
    """Die at each of these points in turn, until one lies behind the end; how many deaths."""
    reference = Home(folder / "undisturbed")
    assert commands(reference, *reference.start(scenario)) == 0, reference.output.read_text()
    whole = events(commands, reference)
    judge(commands, reference, whole, whole)
    for deaths, point in enumerate(points):
        home = Home(folder / str(point))
        untouched = fingerprint(home.work / ".git")
        ended = commands(home, *home.start(scenario), kill=point)
        if ended == 0:
            return deaths
        assert ended == KILLED, f"point {point}: {home.output.read_text()}"
        judge(commands, home, finish(commands, home, scenario), whole)
        if "worktree" not in scenario:
            assert fingerprint(home.work / ".git") == untouched
        shutil.rmtree(home.folder)
    raise AssertionError("there are more points than expected")


@pytest.mark.item("rec-17", "rec-10")
@pytest.mark.parametrize(
    ("scenario", "first", "step"), [("protected", 7, 41), ("worktree", 31, 61)]
)
def test_a_run_with_snapshots_dies_at_some_points(
    scenario: str, first: int, step: int, commands: Commands, tmp_path: Path
) -> None:
    """A sample of the points below."""
    assert walk(commands, tmp_path, scenario, range(first, MOST_POINTS, step)) > 1


@pytest.mark.deep
@pytest.mark.item("rec-17", "rec-10", "rec-18")
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("chunk", range(2))
def test_a_run_with_snapshots_dies_at_every_point(
    scenario: str, chunk: int, commands: Commands, tmp_path: Path
) -> None:
    """Whatever was recorded stays, nothing recorded is done again, each iteration completes once,
    and the trees are those of a run that was left in peace.
    """
    assert walk(commands, tmp_path, scenario, range(1 + chunk, MOST_POINTS, 2)) > 40
