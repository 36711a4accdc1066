"""Ways to run the commands of a scenario: see `Runner` in `transcript_scenarios`."""

from __future__ import annotations

import io
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loopwright.cli.main import main
from loopwright.testing.wires import ScriptedCall, ScriptedTurn, WireScript, WireServer
from tests.golden.transcript_scenarios import Runner, Scenario, Step, Told
from tests.http.served import SECONDS, Served, served, wait_for

PERSON = "tester"
PASSWORD = "correct horse"
BACKGROUND = r"ignore:subprocess \d+ is still running:ResourceWarning"
"""What Python warns of when a command that runs in this process leaves one in the background."""
_CLEARED = (
    "LOOPWRIGHT_",
    "NO_COLOR",
    "FORCE_COLOR",
    "XDG_",
    "LINES",
    "GIT_",
    "OPENAI",
    "ANTHROPIC",
)


class InProcess:
    """Runs commands in this process, as `lw` of `tests/cli/conftest.py` does."""

    more: tuple[str, ...] = ()
    """Words that are added to each command line."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "work"
        self.kept: dict[str, str] = {"folder": str(self.folder)}
        self.words: dict[str, str] = {
            str(root / "work"): "<folder>",
            str(root / "home"): "<home>",
            str(root / "elsewhere"): "<elsewhere>",
            str(root): "<tmp>",
            sys.executable: "<python-program>",
        }

    def write(self, files: Mapping[str, Any]) -> None:
        for name, value in files.items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
            if name.endswith(".sh"):
                file.chmod(0o755)

    def run(self, words: list[str], step: Step) -> Told:
        if step.leaves_at is not None:
            return self._until(words, step.leaves_at)
        out, err = _stream(), _stream()
        before = sys.stdin, sys.stdout, sys.stderr
        sys.stdout, sys.stderr = out, err
        try:
            sys.stdin = _conversation(step, out) if step.converses else _given(step)
            main([*words, *self.more])
        except SystemExit as left:
            code = int(str(left.code))
        finally:
            if sys.stdin is not before[0]:
                sys.stdin.close()
            sys.stdin, sys.stdout, sys.stderr = before
        return Told(code, _read(out), _read(err))

    def _until(self, words: list[str], line: str) -> Told:
        """A process of its own, which is told to end as soon as it has printed such a line."""
        program = [sys.executable, "-m", "loopwright", *words]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            program, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
        ) as process:
            streams = process.stdout, process.stderr
            said: list[list[str]] = [[], []]
            printed = threading.Event()

            def read(number: int) -> None:
                stream = streams[number]
                assert stream is not None
                for one in stream:
                    said[number].append(one.decode())
                    if said[number][-1].startswith(line):
                        printed.set()

            readers = [threading.Thread(target=read, args=(number,)) for number in (0, 1)]
            for reader in readers:
                reader.start()
            seen = printed.wait(SECONDS)
            os.kill(process.pid, signal.SIGTERM if seen else signal.SIGKILL)
            for reader in readers:
                reader.join(SECONDS)
            code = process.wait(SECONDS)
        assert seen, f"{words} did not print {line}"
        return Told(code, "".join(said[0]), "".join(said[1]))


def _given(step: Step) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO((step.stdin or "").encode()), encoding="utf-8")


def _conversation(step: Step, out: io.TextIOWrapper) -> io.TextIOWrapper:
    """A pipe that is written to line by line, as answers come."""
    read, write = os.pipe()

    def speak() -> None:
        answers = 0
        with os.fdopen(write, "w", encoding="utf-8") as pipe:
            for line in (step.stdin or "").splitlines():
                print(line, file=pipe, flush=True)
                answers += '"id"' in line
                wait_for(partial(_has_lines, out, answers))

    threading.Thread(target=speak, daemon=True).start()
    return os.fdopen(read, encoding="utf-8")


class _Unclosed(io.TextIOWrapper):
    """A stream that may be closed by the command and is read afterwards."""

    def close(self) -> None:
        self.flush()


class _Bytes(io.BytesIO):
    def close(self) -> None:
        """Keep what was written."""


def _has_lines(out: io.TextIOWrapper, count: int) -> bool:
    return _read(out).count("\n") >= count


def _stream() -> io.TextIOWrapper:
    return _Unclosed(_Bytes(), encoding="utf-8", newline="", write_through=True)


def _read(stream: io.TextIOWrapper) -> str:
    buffer = stream.buffer
    assert isinstance(buffer, _Bytes)
    return buffer.getvalue().decode()


@contextmanager
def in_process(scenario: Scenario) -> Iterator[Runner]:
    """A folder and a data directory of its own, and commands in this process."""
    with _prepared(scenario) as (runner, _):
        yield runner


@contextmanager
def _prepared(scenario: Scenario) -> Iterator[tuple[InProcess, pytest.MonkeyPatch]]:
    with ExitStack() as stack:
        # The path has the same length each time, since long lines are cut.
        root = Path(tempfile.mkdtemp(prefix="lw-", dir="/tmp"))
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        runner = InProcess(root)
        runner.folder.mkdir()
        set_environment(patch, root, scenario.env)
        patch.chdir(runner.folder)
        runner.write(scenario.files)
        if scenario.git:
            _make_repository(runner.folder)
        if scenario.model:
            turns = tuple(_turn(one) for one in scenario.model)
            wires = stack.enter_context(WireServer(WireScript(turns=turns)))
            patch.setenv("LOOPWRIGHT_MODEL_BASE_URL", f"{wires.url}/v1")
            runner.words[wires.url] = "<model-address>"
        if scenario.server:
            there = stack.enter_context(served(root, home="elsewhere"))
            _introduce(runner, there)
            if scenario.signed_in:
                patch.setenv("LOOPWRIGHT_TOKEN", there.token)
        yield runner, patch


def set_environment(patch: pytest.MonkeyPatch, root: Path, env: Mapping[str, str]) -> None:
    """The variables that a command sees, and the name of the person who types."""
    for name in [*os.environ]:
        if name.startswith(_CLEARED):
            patch.delenv(name)
    fixed = {
        "LOOPWRIGHT_HOME": str(root / "home"),
        "LOOPWRIGHT_DURABILITY": "normal",
        "LOOPWRIGHT_SNAPSHOTS": "off",
        "LOOPWRIGHT_SANDBOX": "off",
        "XDG_CONFIG_HOME": str(root / "config"),
        "XDG_DATA_HOME": str(root / "share"),
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "TZ": "UTC",
        "GIT_AUTHOR_NAME": PERSON,
        "GIT_AUTHOR_EMAIL": "tester@example.org",
        "GIT_COMMITTER_NAME": PERSON,
        "GIT_COMMITTER_EMAIL": "tester@example.org",
    }
    for name, value in {**fixed, **env}.items():
        patch.setenv(name, value)
    entry = pwd.getpwuid(os.getuid())
    named = pwd.struct_passwd((PERSON, *tuple(entry)[1:]))
    patch.setattr(pwd, "getpwuid", lambda _: named)


def _make_repository(folder: Path) -> None:
    for words in (
        ("init", "-q", "-b", "main", "--template="),
        ("add", "-A"),
        ("commit", "-q", "-m", "first"),
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)


def _turn(value: Mapping[str, Any]) -> ScriptedTurn:
    calls = tuple(ScriptedCall(**one) for one in value.get("calls", ()))
    return ScriptedTurn(text=value.get("text", ""), calls=calls)


def _introduce(runner: InProcess, there: Served) -> None:
    """Tell a scenario where a server is; `ann` has an account there."""
    account = {"name": "ann", "role": "editor", "password": PASSWORD}
    assert there("POST", "/api/v1/users", account).status == 201
    runner.kept["server"] = f"http://127.0.0.1:{there.port}"
    runner.words[runner.kept["server"]] = "<server>"
    runner.words[f"127.0.0.1:{there.port}"] = "<server-address>"
