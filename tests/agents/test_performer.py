"""The performer: agents and commands as processes, from the call to the answer."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import Path

import pytest
from msgspec.structs import replace

from loopwright.agents.calls import SYSTEM_BYTES
from loopwright.agents.sandbox import bubblewrap
from loopwright.kernel.event_parts import CommandCall, SleepCall, SnapshotCall
from loopwright.ports import Answer, EffectFailure, EffectJob, EffectSuccess
from tests.agents.calls import Stage, agent, job

MB = 1 << 20
PYTHON = f"{sys.executable} -I -S -c"


def python(code: str) -> str:
    """A spec that runs this code; it may not hold single quotes."""
    assert "'" not in code
    return f"command:{PYTHON} '{code}'"


def command(*argv: str, timeout_ms: int = 60_000, **env: str) -> CommandCall:
    return CommandCall(argv=argv, timeout_ms=timeout_ms, env=env)


def failed(answer: Answer) -> EffectFailure:
    assert isinstance(answer, EffectFailure), answer
    return answer


def living(marker: str) -> list[int]:
    """Processes whose command line has this word."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if marker.encode() in line.split(b"\0"):
            found.append(int(entry.name))
    return found


# -- agents ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["model:x/y", "comand:x", ""])
def test_a_spec_that_cannot_be_used_is_a_failure(tmp_path: Path, spec: str) -> None:
    """An agent with nothing behind it fails with the fix; nothing is started."""
    answer = failed(Stage().perform(job(tmp_path, agent=agent(spec))))
    assert answer.error.type == "not_found"
    assert "command:PROGRAM" in answer.error.detail


@pytest.mark.item("rondoflow-58")
@pytest.mark.parametrize("prompt", ["", " \n\t "], ids=["empty", "blanks"])
@pytest.mark.parametrize("kind", ["command", "jsonl", "script"])
def test_a_blank_prompt_starts_nothing(tmp_path: Path, kind: str, prompt: str) -> None:
    """With nothing to say the call fails with its reason, and no program is started."""
    spec = f"{kind}:touch started"
    answer = failed(Stage().perform(job(tmp_path, agent=agent(spec), prompt=prompt)))
    assert answer.error.type == "bad_input"
    assert not (tmp_path / "started").exists()


@pytest.mark.item("D12")
@pytest.mark.parametrize("spec", ["command:cat", "jsonl:cat"])
def test_a_missing_workspace_is_reported(tmp_path: Path, spec: str) -> None:
    """Without its workspace nothing is started, and the failure says so."""
    answer = failed(Stage().perform(job(tmp_path / "gone", agent=agent(spec))))
    assert answer.error.type == "workspace_gone"
    assert "gone" in answer.error.detail


@pytest.mark.item("I-6")
def test_silence_ends_an_agent(tmp_path: Path) -> None:
    """An agent that says nothing for too long is ended; what it said before is kept."""
    code = 'import time; print("so far", flush=True); time.sleep(60)'
    what = job(tmp_path, agent=agent(python(code)), idle_ms=600_000)
    stage = Stage()
    answer = failed(stage.perform(what, hour_after=lambda: stage.said() == "so far\n"))
    assert answer.error.type == "idle_timeout"
    assert answer.output == "so far\n"


@pytest.mark.item("I-6")
def test_time_ends_an_agent(tmp_path: Path) -> None:
    """An agent that goes on talking is ended at its wall limit."""
    code = 'import time\nwhile True: print("x", flush=True); time.sleep(0.05)'
    what = job(tmp_path, agent=agent(python(code)), wall_ms=400)
    assert failed(Stage().perform(what)).error.type == "wall_timeout"


@pytest.mark.item("I-6")
def test_an_endless_answer_is_cut(tmp_path: Path) -> None:
    """Of an answer above the limit head and tail are kept, and a note says so."""
    code = (
        f'import os\nos.write(1, b"HEAD")\nfor _ in range(30): os.write(1, b"x" * {MB})\n'
        'os.write(1, b"TAIL")'
    )
    answer = Stage().perform(job(tmp_path, agent=agent(python(code))))
    assert isinstance(answer, EffectSuccess)
    assert answer.output.startswith("HEAD")
    assert answer.output.endswith("TAIL")
    assert len(answer.output) < 11 * MB
    assert "truncated" in answer.note


def test_large_and_broken_output_comes_whole(tmp_path: Path) -> None:
    """5 MB with bytes that are not text come back complete, broken bytes replaced."""
    code = (
        f'import sys\nfor _ in range(5): sys.stdout.buffer.write(b"y" * {MB})\n'
        'sys.stdout.buffer.write(b"\\xff\\xfe!")'
    )
    answer = Stage().perform(job(tmp_path, agent=agent(python(code))))
    assert isinstance(answer, EffectSuccess)
    assert answer.output == "y" * 5 * MB + "��!"
    assert answer.note == ""


def test_live_text_keeps_characters_whole(tmp_path: Path) -> None:
    """A character that arrives in two pieces is heard as one."""
    code = 'import os, time\nos.write(1, b"gr\\xc3")\ntime.sleep(0.2)\nos.write(1, b"\\xbcn")'
    stage = Stage()
    answer = stage.perform(job(tmp_path, agent=agent(python(code))))
    assert answer.output == stage.said() == "grün"


def test_json_lines_are_read_as_what_they_mean(tmp_path: Path) -> None:
    """Live, text lines are text and tool lines are tools, also when they come in pieces."""
    lines = tmp_path / "lines"
    lines.write_text(
        '{"type":"text","text":"a"}\n{"type":"tool","name":"grep"}\nplain\n{"type":"usage"}\n'
    )
    stage = Stage()
    answer = stage.perform(job(tmp_path, agent=agent(f"jsonl:cat {lines}")))
    assert (stage.said(), stage.said("tool")) == ("aplain\n", "grep")
    assert answer.output == "aplain\n"


@pytest.mark.parametrize("level", ["off", "guard"])
def test_survivors_are_ended_and_noted(tmp_path: Path, level: str) -> None:
    """A process that an agent leaves behind is ended. Without a sandbox, which always ends with its
    program, the answer says so.
    """
    marker = f"left-{os.getpid()}-{tmp_path.name}"
    code = (
        "import subprocess, sys\n"
        f'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "{marker}"])\n'
        'print("ok")'
    )
    answer = Stage().perform(job(tmp_path, agent=agent(python(code)), sandbox=level))
    assert isinstance(answer, EffectSuccess)
    assert ("leftover" in answer.note) == (level == "off" or bubblewrap.works() is not None)
    assert living(marker) == []


def test_cancelling_ends_the_processes(tmp_path: Path) -> None:
    """Whoever stops waiting for an agent ends it with everything that it has started."""
    marker = f"cancelled-{os.getpid()}-{tmp_path.name}"
    child = "import time; print(1, flush=True); time.sleep(60)"
    code = (
        "import subprocess, sys, time\n"
        f'subprocess.Popen([sys.executable, "-c", "{child}", "{marker}"])\n'
        "time.sleep(60)"
    )
    stage = Stage()

    async def whole() -> None:
        waiting = stage.performer.perform(job(tmp_path, agent=agent(python(code))))
        assert isinstance(waiting, Awaitable)
        task = asyncio.ensure_future(waiting)
        await stage.speaks.wait()
        assert living(marker) != []
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(whole())
    assert living(marker) == []


@pytest.mark.parametrize(
    ("system", "by_file"),
    [
        pytest.param("You are careful.", False, id="short"),
        pytest.param("x" * SYSTEM_BYTES, False, id="just short enough"),
        pytest.param("x" * 100_000, True, id="100 KB"),
        pytest.param("\U0001f600" * SYSTEM_BYTES, True, id="few characters, many bytes"),
    ],
)
def test_a_long_system_text_comes_as_a_file(tmp_path: Path, system: str, by_file: bool) -> None:
    """A persona that does not fit a variable is given as a file, which is gone afterwards."""
    code = (
        "import os, sys\n"
        'path = os.environ.get("LOOPWRIGHT_SYSTEM_FILE")\n'
        'text = open(path, encoding="utf-8").read() if path else os.environ["LOOPWRIGHT_SYSTEM"]\n'
        'sys.stdout.buffer.write(f"{path or str()}|{text}".encode())'
    )
    worker = agent(python(code), system=system)
    answer = Stage().perform(job(tmp_path, agent=worker))
    assert isinstance(answer, EffectSuccess), answer
    path, _, text = answer.output.partition("|")
    assert text == system
    assert bool(path) is by_file
    assert not path or not os.path.exists(path)


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PATH", "LOOPWRIGHT_RUN"])
def test_a_reserved_variable_is_never_set(tmp_path: Path, name: str) -> None:
    """A definition that got past the reader cannot set what changes which program runs."""
    stage = Stage()

    async def whole() -> None:
        waiting = stage.performer.perform(
            job(tmp_path, agent=agent("command:cat", env={name: "x"}))
        )
        assert isinstance(waiting, Awaitable)
        with pytest.raises(ValueError, match=name):
            await waiting

    asyncio.run(whole())


def test_an_unknown_call_is_refused(tmp_path: Path) -> None:
    """A call that this performer has no hands for fails and says which."""
    answer = failed(Stage().perform(job(tmp_path, SleepCall(until=0))))
    assert answer.error.type == "internal"
    assert "SleepCall" in answer.error.detail


def test_a_snapshot_fails_where_none_can_be_stored(tmp_path: Path) -> None:
    """A performer that was given no place for snapshots says so."""
    answer = failed(Stage().perform(job(tmp_path, SnapshotCall())))
    assert answer.error.type == "snapshot"
    assert "cannot take snapshots" in answer.error.detail


# -- commands --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param("pass", (0, ""), id="nothing said"),
        pytest.param('print("fine")', (0, "fine"), id="stdout"),
        pytest.param('import sys; print("out"); sys.exit("bad")', (1, "out"), id="stderr apart"),
        pytest.param("import os; os.kill(os.getpid(), 9)", (137, ""), id="signal"),
    ],
)
def test_a_command_answers_with_its_code(
    tmp_path: Path, code: str, expected: tuple[int, str]
) -> None:
    """Any end of a command that could be started is an answer: code and what it printed."""
    answer = Stage().perform(job(tmp_path, command(sys.executable, "-I", "-S", "-c", code)))
    assert isinstance(answer, EffectSuccess)
    assert (answer.code, answer.output) == expected


@pytest.mark.item("B9")
@pytest.mark.parametrize(
    ("name", "mode"),
    [("no-such-program", None), ("./plain", 0o644), ("./folder", 0o755)],
    ids=["missing", "not executable", "a directory"],
)
def test_a_command_that_cannot_start_is_broken(tmp_path: Path, name: str, mode: int | None) -> None:
    """A check that cannot be asked is a failure, never a verdict."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    if mode is not None:
        (tmp_path / name).chmod(mode)
    answer = failed(Stage().perform(job(tmp_path, command(name))))
    assert answer.error.type == "not_found"
    assert name.removeprefix("./") in answer.error.detail


@pytest.mark.item("B10")
def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    """A command that ignores TERM and leaves a daemon is gone after its limit, both of it."""
    marker = f"hangs-{os.getpid()}-{tmp_path.name}"
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "{marker}"],'
        " start_new_session=True)\n"
        'print("before", flush=True); open("hangs", "w").close(); time.sleep(60)'
    )
    call = command(sys.executable, "-I", "-S", "-c", code, timeout_ms=600_000)
    hangs = (tmp_path / "hangs").exists
    answer = failed(Stage().perform(job(tmp_path, call), hour_after=hangs))
    assert (answer.error.type, answer.output) == ("wall_timeout", "before")
    assert living(marker) == []


@pytest.mark.item("B11")
def test_a_flood_of_test_output_is_capped(tmp_path: Path) -> None:
    """Of a flood about 1 MB is kept, head and tail, with a note."""
    code = f'import os\nfor _ in range(200): os.write(1, b"z" * {MB})\nos.write(1, b"1 failed")'
    answer = Stage().perform(job(tmp_path, command(sys.executable, "-I", "-S", "-c", code)))
    assert isinstance(answer, EffectSuccess)
    assert len(answer.output) < 1.1 * MB
    assert answer.output.endswith("1 failed")
    assert "truncated" in answer.note


def test_a_command_gets_its_own_variables(tmp_path: Path) -> None:
    """A command sees what its step names and where it is, and no secret of ours."""
    base = {"PATH": os.environ["PATH"], "SECRET_KEY": "canary"}
    call = command("env", MINE="1")
    answer = Stage(base).perform(job(tmp_path, call))
    assert isinstance(answer, EffectSuccess)
    lines = dict(line.split("=", 1) for line in answer.output.splitlines())
    assert (lines["MINE"], lines["LOOPWRIGHT_PATH"]) == ("1", "dev.1")
    assert "canary" not in answer.output


def test_jobs_do_not_share_what_they_say(tmp_path: Path) -> None:
    """Calls side by side answer each with its own text."""
    stage = Stage()

    async def one(what: EffectJob) -> Answer:
        waiting = stage.performer.perform(what)
        assert isinstance(waiting, Awaitable)
        return await waiting

    async def both() -> list[Answer]:
        jobs = [
            job(tmp_path, agent=agent("command:cat"), prompt=text, effect=f"{text}/agent#1")
            for text in ("a", "b", "c")
        ]
        return await asyncio.gather(*map(one, jobs))

    assert [answer.output for answer in asyncio.run(both())] == ["a", "b", "c"]


def test_a_check_reports_both_streams(tmp_path: Path) -> None:
    """What a check printed on stderr is evidence too; a step's output is its stdout alone."""
    code = 'import sys; print("out"); sys.exit("bad")'
    asked = job(tmp_path, command(sys.executable, "-I", "-S", "-c", code))
    answer = Stage().perform(replace(asked, effect="main.0/check0#1"))
    assert isinstance(answer, EffectSuccess)
    assert answer.output == "out\nbad"


@pytest.mark.item("C4")
@pytest.mark.parametrize("size", [10, 5_000_000])
def test_a_large_value_comes_as_a_file(tmp_path: Path, size: int) -> None:
    """What is too long for a variable stands in the file that NAME_FILE names, whole; the file is
    gone afterwards, and no program ever fails for the length of its environment."""
    text = 'if [ -n "${V_FILE:-}" ]; then wc -c < "$V_FILE"; else printf %s "$V" | wc -c; fi'
    text += '; printf "%s" "${V_FILE:-none}"'
    call = CommandCall(argv=("bash", "-c", text), timeout_ms=60_000)
    what = job(tmp_path, call, effect="dev/script#1", env={"V": "x" * size})
    answer = Stage(os.environ).perform(what)
    assert isinstance(answer, EffectSuccess)
    counted, place = answer.output.split()
    assert (answer.code, int(counted)) == (0, size)
    assert (place == "none") == (size < 100)
    assert not Path(place).exists()


@pytest.mark.parametrize("level", ["guard", "workspace"])
def test_a_script_that_asks_for_the_file_of_a_value_gets_it(tmp_path: Path, level: str) -> None:
    """A small value is in its variable, and in the file too when the script names NAME_FILE."""
    if bubblewrap.works() is not None:
        pytest.skip(f"bubblewrap cannot work here: {bubblewrap.works()}")
    call = CommandCall(argv=("bash", "-c", 'cat "$V_FILE"; printf %s "$V"'), timeout_ms=60_000)
    what = job(tmp_path, call, effect="dev/script#1", env={"V": "a b"})
    answer = Stage(os.environ).perform(
        replace(what, confinement=replace(what.confinement, sandbox=level))
    )
    assert isinstance(answer, EffectSuccess)
    assert answer.output == "a ba b"


def test_a_field_called_file_shows_no_file_to_a_script(tmp_path: Path) -> None:
    """An agent chooses the value of such a field: its path is not added to what a sandbox shows."""
    if bubblewrap.works() is not None:
        pytest.skip(f"bubblewrap cannot work here: {bubblewrap.works()}")
    place = tmp_path / "work"
    place.mkdir()
    (tmp_path / "secret").write_text("canary")
    call = CommandCall(argv=("bash", "-c", 'echo begin "$(<"$V_FILE")"'), timeout_ms=60_000)
    env = {"V": "x", "V_FILE": str(tmp_path / "secret")}
    what = job(place, call, effect="dev/script#1", env=env)
    answer = Stage(os.environ).perform(
        replace(what, confinement=replace(what.confinement, sandbox="none"))
    )
    assert answer.output.strip() == "begin"


@pytest.mark.parametrize("fresh", [True, False])
def test_checks_read_no_bytecode_of_the_workspace_where_files_are_protected(
    tmp_path: Path, fresh: bool
) -> None:
    """Poisoned bytecode is not read, and none is written."""
    (tmp_path / "helper.py").write_text("print('evil!')")
    info = (tmp_path / "helper.py").stat()
    subprocess.run([sys.executable, "-c", "import helper"], cwd=tmp_path, env={}, check=True)
    (tmp_path / "helper.py").write_text("print('plain')")
    os.utime(tmp_path / "helper.py", ns=(info.st_atime_ns, info.st_mtime_ns))
    (tmp_path / "other.py").write_text("")
    call = command(sys.executable, "-c", "import helper, other")
    what = job(tmp_path, call, effect="dev.1/check0#1", fresh_bytecode=fresh)
    answer = Stage(os.environ).perform(what)
    assert isinstance(answer, EffectSuccess)
    assert answer.output == ("plain" if fresh else "evil!")
    assert bool([*tmp_path.glob("__pycache__/other.*")]) is not fresh
