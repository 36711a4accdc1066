"""What the tests of the command line share: a place of its own for each test, and ways to call."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loopwright.cli.main import main
from loopwright.testing.wires import ScriptedTurn, WireScript, WireServer
from tests.cli.forks import Command, is_startable, start_forked
from tests.cli.terminal import COMMAND, PATIENCE_S, Terminal

PROBE = Path(__file__).with_name("probe.py")
MODEL = "model:local/tiny"

Serve = Callable[..., WireServer]
"""Makes a server with a script of turns, at the address that the command line asks."""


def until(holds: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    """Wait for another process to have done something."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


@dataclass(frozen=True)
class Told:
    """What a command said and how it left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class Place:
    """A workspace, a data directory, and the command line in it."""

    folder: Path
    env: dict[str, str]
    _call: Callable[[Sequence[str]], Told]

    def __call__(self, *args: str) -> Told:
        """Run a command in this process; all of it but the interpreter's start."""
        return self._call(args)

    def real(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        seconds: float = PATIENCE_S,
    ) -> Told:
        """Run a command in a process of its own, away from any terminal."""
        running = self._begin(args, {**self.env, **(env or {})}, piped=stdin is not None)
        with running:
            try:
                out, err = running.communicate(stdin, timeout=seconds)
            except subprocess.TimeoutExpired:
                running.kill()
                raise
        assert running.returncode is not None
        return Told(running.returncode, out.decode(), err.decode())

    def start(self, *args: str) -> "Command | subprocess.Popen[bytes]":
        """Begin a command in a process of its own."""
        return self._begin(args, self.env)

    def _begin(
        self, args: Sequence[str], env: Mapping[str, str], *, piped: bool = False
    ) -> "Command | subprocess.Popen[bytes]":
        if is_startable(env):
            return start_forked(args, env=env, cwd=self.folder, piped=piped)
        return subprocess.Popen(
            [*COMMAND, *args],
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=self.folder,
        )

    def terminal(
        self,
        *args: str,
        size: tuple[int, int] = (24, 80),
        env: Mapping[str, str] | None = None,
    ) -> Terminal:
        return Terminal(args, env={**self.env, **(env or {})}, cwd=self.folder, size=size)

    # -- files -------------------------------------------------------------------------------------

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.write_text(text, encoding="utf-8")
        return file

    def script(self, *replies: Any, name: str = "replies.yaml") -> str:
        """A scripted agent; a reply is a text or a mapping."""
        listed = [{"text": reply} if isinstance(reply, str) else reply for reply in replies]
        self.write(name, json.dumps({"replies": listed}))
        return f"script:{name}"

    def loop(self, agent: str, *, name: str = "loop.yaml", top: Any = None, **repeat: Any) -> str:
        """A native definition with one loop."""
        value = {"name": "work", "agent": agent, "goal": "Do it.", "repeat": {"max": 3, **repeat}}
        self.write(name, json.dumps({**value, **(top or {})}))
        return name

    def probe(self, *behaviour: dict[str, Any], name: str = "calls") -> str:
        """The spec of the probe; what it saw is found by `calls`."""
        told = self.write(f"{name}.behaviour.json", json.dumps(list(behaviour) or [{}]))
        return f"command:{sys.executable} -I -S {PROBE} {self.folder / name} {told}"

    def calls(self, name: str = "calls") -> list[dict[str, Any]]:
        found = (self.folder / name).glob("call-*.json")
        ordered = sorted(found, key=lambda file: int(file.stem.partition("-")[2]))
        return [json.loads(file.read_text()) for file in ordered]

    def events(self, run: str) -> list[dict[str, Any]]:
        return self("events", run).lines

    def kinds(self, run: str) -> list[str]:
        return [event["kind"] for event in self.events(run)]


@pytest.fixture
def lw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Place:
    """A place of its own for a test."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in [*os.environ]:
        if name.startswith(("LOOPWRIGHT_", "NO_COLOR", "FORCE_COLOR", "XDG_", "COLUMNS", "LINES")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LOOPWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOOPWRIGHT_DURABILITY", "normal")
    monkeypatch.setenv("LOOPWRIGHT_SNAPSHOTS", "off")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("USER", "somebody-else")  # nobody is asked for it

    def call(args: Sequence[str]) -> Told:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main(list(args))
        said = capsys.readouterr()
        return Told(int(str(left.value.code)), said.out, said.err)

    return Place(folder, dict(os.environ), call)


@pytest.fixture
def serve(lw: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """A server with a script, at the address that the command line asks."""
    with ExitStack() as stack:

        def begin(*turns: ScriptedTurn, **more: Any) -> WireServer:
            server = stack.enter_context(WireServer(WireScript(turns=turns, **more)))
            lw.env["LOOPWRIGHT_MODEL_BASE_URL"] = f"{server.url}/v1"
            monkeypatch.setenv("LOOPWRIGHT_MODEL_BASE_URL", f"{server.url}/v1")
            return server

        yield begin
