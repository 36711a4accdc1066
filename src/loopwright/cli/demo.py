"""`demo`: an agent repairs a small project whose tests fail, without any key."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import click

from loopwright.cli.terminal import Terminal
from loopwright.cli.verb import Verb, terminal_of
from loopwright.errors import Conflict

GOAL = "Make the failing tests of this project pass. Leave the tests as they are."
TESTS = "python3 -B -m unittest"
_SHOWN = ("FAIL:", "ERROR:", "Ran ", "FAILED", "OK")
_ELSEWHERE = ("LOOPWRIGHT_HOME", "LOOPWRIGHT_SERVER", "LOOPWRIGHT_TOKEN")
_REFUSED = 2


class _Demo:
    """The folder of one demo, and the commands that run in it."""

    def __init__(self, terminal: Terminal, folder: Path) -> None:
        self.terminal = terminal
        self.silent = terminal.as_json or terminal.quiet
        self.project = folder / "project"
        self.data = Path(terminal.options.data_dir or folder / "data").absolute()
        programs = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
        # Settings that point to another data directory or to a server do not apply to the demo.
        kept = {n: v for n, v in os.environ.items() if not n.startswith(_ELSEWHERE)}
        own = {"PATH": os.pathsep.join(programs), "LOOPWRIGHT_HOME": str(self.data)}
        self.environment = {**kept, **own}

    def heading(self, text: str) -> None:
        if not self.silent:
            self.terminal.put("\n" + self.terminal.painted(f"== {text}", "bold", sys.stdout))

    def print_tests(self) -> None:
        """The result of the tests of the project: one line for each failure, and the totals."""
        if self.silent:
            return
        done = self._run(shlex.split(TESTS), captured=True)
        for line in done.stderr.decode(errors="replace").splitlines():
            if line.startswith(_SHOWN):
                self.terminal.put(line)

    def print_command(self, *args: str) -> None:
        """A command of Loopwright, if its output is not unwanted."""
        if not self.silent:
            self.command(*args)

    def command(self, *args: str, captured: bool = False) -> subprocess.CompletedProcess[bytes]:
        sys.stdout.flush()
        wanted = self.terminal.options
        flags = {"--no-color": wanted.no_color, "--quiet": wanted.quiet, "--json": captured}
        line = [sys.executable, "-m", "loopwright", *args]
        line += [flag for flag, given in flags.items() if given]
        return self._run(line, captured=captured)

    def _run(self, line: list[str], *, captured: bool) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            line,
            cwd=self.project,
            env=self.environment,
            stdout=subprocess.PIPE if captured else None,
            stderr=subprocess.PIPE if captured and line[0] != sys.executable else None,
            check=False,
        )


@click.command(
    cls=Verb,
    examples=[
        ("loopwright demo", "no key, no network: the agent is a prepared program"),
        ("loopwright demo --agent claude", "Claude Code repairs the project"),
    ],
)
@click.argument("place", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--agent", metavar="SPEC", help="Agent that repairs the project.")
@click.pass_context
def demo(ctx: click.Context, /, *, place: Path | None, agent: str | None) -> int:
    """Repair a small project with failing tests in a loop, and show what is recorded.

    Without --agent, a program makes prepared edits, one in each iteration. The edits, the tests and
    the recorded events are real. Everything is written into DIR, or into a new temporary folder;
    your own runs and settings stay as they are.
    """
    terminal = terminal_of(ctx)
    folder = _new_folder(place)
    shutil.copytree(_source() / "project", folder / "project")
    shutil.copy(_source() / "agent.py", folder)
    this = _Demo(terminal, folder)
    spec = agent or f"command:python3 {shlex.quote(str(folder / 'agent.py'))}"
    limits = ["--until-command", TESTS, "--max", "5", "--budget", "time=30m,idle=10m"]

    this.heading("The tests before")
    this.print_tests()
    this.heading(f'loopwright loop "{GOAL}" --agent … --until-command "{TESTS}" --max 5')
    done = this.command("loop", GOAL, "--agent", spec, *limits, captured=terminal.as_json)
    if done.returncode == _REFUSED:  # nothing was started, and the message says why
        _remove(folder, itself=place is None)
        return _REFUSED
    if terminal.as_json:
        result = json.loads(done.stdout)
        terminal.put_json({"folder": str(folder), "data_dir": str(this.data), "outcome": result})
        return done.returncode
    this.heading("What changed: loopwright diff last")
    this.print_command("diff", "last")
    this.heading("The tests after")
    this.print_tests()
    this.heading("What was recorded: loopwright show last")
    this.print_command("show", "last")
    terminal.say(_next_steps(folder, this.data))
    return done.returncode


def _source() -> Path:
    """The files of the demo: in the wheel, or in the checkout of an editable installation."""
    package = Path(str(files("loopwright")))
    inside = package / "demo_files"
    return inside if inside.is_dir() else package.parents[1] / "examples" / "demo"


def _new_folder(place: Path | None) -> Path:
    if place is None:
        return Path(tempfile.mkdtemp(prefix="loopwright-demo."))
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        what = "not empty" if place.is_dir() else "a file"
        raise Conflict(f"{place} is {what}", hint="name a new folder")
    place.mkdir(parents=True, exist_ok=True)
    return place.absolute()


def _remove(folder: Path, *, itself: bool) -> None:
    """Remove what the demo wrote; a folder that the person named stays."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if itself:
        folder.rmdir()


def _next_steps(folder: Path, data: Path) -> str:
    return f"""
The project is in {folder / "project"}. The commands above need its data directory:
  loopwright logs last --data-dir {shlex.quote(str(data))}
In a project of your own:
  loopwright loop "Make the tests pass" --agent claude --until-command "pytest -q" --budget usd=5"""


VERBS = {"demo": demo}
