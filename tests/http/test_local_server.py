"""Commands with a running local server: it drives the runs that they start and follow."""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loopwright.errors import Conflict, LoopwrightError, NotFound, StorageError
from loopwright.host import socket_path
from loopwright.http import local_socket as door_room
from loopwright.http import server as holding_room
from loopwright.http import server as serving_room
from loopwright.http.server import announce, hold_lock
from loopwright.operations import data_directory as reaching_room
from loopwright.operations import delegating_driver as served_room
from loopwright.operations.data_directory import (
    PROTOCOL,
    RECORD,
    SOCKET,
    DriveRefused,
    DriveRequest,
    Hello,
    LocalServerLink,
    ServerLockInfo,
    as_line,
    lock_holder,
    path_of,
    reach,
)
from loopwright.operations.delegating_driver import DelegatingDriver
from loopwright.operations.loop_definition import LoopOptions
from loopwright.operations.run_request import StartRun
from loopwright.operations.run_start import StartPlace, prepare_start
from loopwright.operations.settings import Settings
from loopwright.operations.wiring import near
from loopwright.ports import Delta
from loopwright.testing.wires import ScriptedCall, ScriptedTurn
from tests.cli.conftest import MODEL, Place, Serve, lw, serve, until
from tests.cli.terminal import COMMAND
from tests.http.served import SECONDS, Served, served
from tests.http.test_serving import Process, serving
from tests.person import ME

__all__ = ["lw", "serve"]
WORDS = "running on the local server"


@pytest.fixture
def server(lw: Place, tmp_path: Path) -> Iterator[Served]:
    """The server of the home that `lw` uses, in a thread of this process."""
    with served(tmp_path, held=True) as one:
        yield one


def token_of(server: Served) -> str:
    return server.context.here.driver.token


def owner_of(server: Served, run: str) -> str:
    """Whose run it is, as the server sees it; a run that ended keeps its last owner."""
    owner = server.context.here.log.row(run).owner
    return owner.token if owner is not None else ""


# -- what commands do ------------------------------------------------------------------------------


def test_a_run_is_driven_by_the_server(lw: Place, server: Served) -> None:
    """What the command prints is what it prints without a server; the server's log has the audit of
    the person who typed it, and its process did the work.
    """
    agent = lw.script("one", "two", "three")
    heard: list[str] = []
    ends = server.call(lambda: server.context.here.bus.listen(lambda delta: heard.append("x")))
    told = lw("run", lw.loop(agent), "--json")
    server.call(ends)
    assert (told.code, told.json["status"], told.json["iterations"]) == (0, "completed", 3)
    assert told.json["output"] == "three"
    assert WORDS in told.err
    assert heard, "no agent of the server spoke"
    [row] = server.context.records.audited(subject=told.json["run"])
    assert (row.who, row.via, row.action) == (ME, "cli", "run.started")


def test_what_the_server_lacks_is_reported(
    lw: Place, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs are started with the environment of the server: the command says where that is
    another, by names alone.
    """
    lw.env |= {"PATH": f"{lw.env['PATH']}:/elsewhere", "NEW_API_KEY": "sk-secret", "OLD": "x"}
    told = lw.real("run", lw.loop(lw.script("a", "b", "c")))
    lacks = "(it has another PATH, no NEW_API_KEY; --here runs with yours)"
    assert f"{WORDS}, process {os.getpid()} {lacks}" in told.err
    assert "sk-secret" not in told.err
    assert " (it has" not in lw("run", "loop.yaml").err


@pytest.mark.item("rec-37")
def test_the_server_has_the_variables_of_a_run(lw: Place, server: Served) -> None:
    """`--env` reaches agents that the server starts, and its value is not kept afterwards."""
    agent = lw.probe({"say": "x"})
    words = ["--agent", agent, "--max", "1", "--env", "MY_KEY=given-here", "--json"]
    told = lw("loop", "Go", *words)
    assert (told.code, told.json["status"]) == (0, "completed")
    assert WORDS in told.err
    assert lw.calls()[0]["env"]["MY_KEY"] == "given-here"
    until(lambda: list((Path(lw.env["LOOPWRIGHT_HOME"]) / "env").iterdir()) == [])


def test_the_doctor_names_the_server(lw: Place, server: Served) -> None:
    """Whether commands have a server here, and which."""
    found = {one["check"]: one["why"] for one in lw("doctor", "--json").json["checks"]}
    assert found["server"] == (
        f"process {os.getpid()} at http://127.0.0.1:{server.port} drives runs of commands"
    )
    elsewhere = lw("doctor", "--json", "--data-dir", str(lw.folder / "other")).json["checks"]
    assert {one["check"]: one["why"] for one in elsewhere}["server"].startswith("none ")


def test_here_means_here(lw: Place, server: Served) -> None:
    """`--here` leaves the server out, and does not go together with another server."""
    heard: list[str] = []
    ends = server.call(lambda: server.context.here.bus.listen(lambda delta: heard.append("x")))
    told = lw("run", lw.loop(lw.script("one", "two", "three")), "--here", "--json")
    server.call(ends)
    assert (told.code, heard) == (0, [])
    assert WORDS not in told.err
    both = lw("run", "loop.yaml", "--here", "--server", "http://127.0.0.1:1")
    assert both.code == 2
    assert "--here and --server exclude each other" in both.err


def test_relative_paths_are_those_of_the_command(lw: Place, server: Served) -> None:
    """The server stands elsewhere; a program, a workspace and a file beside the definition are
    found where the person is.
    """
    lw.write("agent.sh", "#!/bin/sh\npwd\n").chmod(0o755)
    told = lw("loop", "Do it", "--agent", "command:./agent.sh", "--max", "1", "--json")
    assert told.json["output"].strip() == str(lw.folder)


def test_what_agents_say_is_shown_as_they_say_it(lw: Place, server: Served) -> None:
    """At a prompt the lines of an agent come before its iteration has ended."""
    code = "cat >/dev/null\necho early\nwhile [ ! -e go ]; do sleep 0.05; done\necho late\n"
    lw.write("agent.sh", f"#!/bin/sh\n{code}").chmod(0o755)
    process = subprocess.Popen(
        [*COMMAND, "repl", "--agent", "command:./agent.sh"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=lw.env,
        cwd=lw.folder,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"/workflow run {lw.loop('command:./agent.sh', max=1)}\n")
    process.stdin.flush()
    seen = []
    for line in process.stdout:
        seen.append(line)
        if "| early" in line:
            break
    running = [row.run for row in server.context.here.log.rows(statuses=("running",))]
    assert len(running) == 1, seen
    (lw.folder / "go").touch()
    process.stdin.close()
    rest = process.stdout.read()
    process.stdout.close()
    assert process.wait(SECONDS) == 0
    assert "late" in rest


def test_another_budget_is_not_left_to_the_server(lw: Place, server: Served) -> None:
    """What all runs may spend, and which servers of tools there are, is said by the settings of
    whoever drives: where they are others, the command drives itself.
    """
    lw.write("loopwright.toml", "[budget]\nusd_total = 2\n")
    told = lw("run", lw.loop(lw.script("a", "b", "c")), "--json")
    assert told.json["status"] == "completed"
    assert WORDS not in told.err
    assert ": it has another budget, or other servers of tools" in told.err


def test_what_an_agent_starts_stays_with_it(
    lw: Place, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command inside of a run drives itself: behind the wall of that run, and with its end."""
    outer = lw("run", lw.loop(lw.script("a"), until={"person": True}), "--json").json["run"]
    monkeypatch.setenv("LOOPWRIGHT_RUN", outer)
    told = lw("run", lw.loop(lw.script("a", "b", "c")), "--json")
    assert told.json["status"] == "completed"
    assert WORDS not in told.err


def begin(lw: Place, words: str) -> None:
    """What every process does first that a run is handed to."""
    handed = f"if os.environ.get('LOOPWRIGHT_HANDED_OWNER'): {words}"
    lw.write("sitecustomize.py", f"import os, time\n{handed}\n")
    lw.env["PYTHONPATH"] = str(lw.folder)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server looks for what was left behind all the time."""
    monkeypatch.setattr(serving_room, "RESCUE_SECONDS", 0.05)


@pytest.mark.usefixtures("eager")
def test_detached_here(lw: Place, server: Served) -> None:
    """A process of its own drives it, and not the server, however long it takes to begin."""
    begin(lw, "time.sleep(2)")
    args = [*stepping(lw)[:-1], "--detach", "--here", "--json"]
    told = lw.real(*args)
    until((lw.folder / "begun").exists)
    [item] = lw("ls", "--json").json["runs"]
    assert (item["run"], item["status"]) == (told.json["run"], "running")
    assert item["driver"] not in (None, os.getpid())
    (lw.folder / "go").touch()
    until(lambda: lw("ls", "--json").json["runs"][0]["status"] == "completed")


def test_detached_to_nobody(lw: Place, server: Served) -> None:
    """When the process ends before it has the run, that is told, with where its words are."""
    begin(lw, "os._exit(7)")
    told = lw.real("run", lw.loop(lw.script("a"), until={"person": True}), "--detach", "--here")
    assert (told.code, told.out) == (1, "")
    assert "the process that should drive it ended with 7" in told.err
    assert ".log; `loopwright resume run_" in told.err


@pytest.mark.item("rec-1", "rec-4")
@pytest.mark.parametrize("how", [[], ["--restart"]], ids=["continued", "restarted"])
def test_a_run_is_resumed_in_the_background_by_the_server(
    lw: Place, server: Served, how: list[str]
) -> None:
    """`resume --detach` returns at once and says who drives the run: the server, with the agent
    that was given.
    """
    file = lw.loop(lw.script("one", {"fail": "no"}), until={"signal": "DONE"})
    run = lw.real("run", file, "--here", "--json").json["run"]
    assert owner_of(server, run) != token_of(server)
    go = lw.folder / "go"
    agent = lw.probe({"wait_for": str(go), "say": "DONE"})
    told = lw("resume", run, "--detach", "--agent", agent, *how)
    assert (told.code, told.out.strip()) == (0, run), told.err
    point = "restarted at iteration 1" if how else "resumed at iteration 2"
    assert f"{run} {point}" in told.err
    assert f"running on the local server, process {os.getpid()}" in told.err
    until(lambda: owner_of(server, run) == token_of(server))
    assert server.until(run, "running")["status"] == "running"
    go.touch()
    assert server.until(run, "completed")["iterations"] == (1 if how else 2)


def test_detached_without_a_process_of_its_own(lw: Place, server: Served) -> None:
    """The server drives it, so no other process is needed."""
    told = lw("run", lw.loop(lw.script("a", "b", "c")), "--detach")
    run = told.out.strip()
    assert f"{WORDS}, process {os.getpid()};" in told.err
    server.until(run, "completed")
    assert not (lw.folder.parent / "home" / "logs").exists()


def test_answers_pauses_and_stops(lw: Place, server: Served) -> None:
    """A gate that a run waits at is answered, and the run continues on the server; what is
    paused is resumed there, one by one or all; a stopped run has ended, and can be resumed too.
    """
    file = lw.loop(lw.script(*["work"] * 9), until={"person": True})
    waiting = lw("run", file, "--json")
    assert waiting.code == 5
    run = waiting.json["run"]
    assert owner_of(server, run) == token_of(server)
    more = lw("continue", run, "more", "--json")
    assert (more.code, more.json["iterations"]) == (5, 2)
    assert lw("pause", run).code == 0
    assert lw("show", run, "--json").json["status"] == "paused"
    again = lw("resume", "all", "--json")
    assert [one["run"] for one in again.json["runs"]] == [run]
    assert again.json["runs"][0]["status"] == "waiting"
    done = lw("approve", run, "--json")
    assert (done.code, done.json["status"]) == (0, "completed")
    other = lw("run", file, "--json").json["run"]
    assert lw("stop", other).code == 0
    assert lw("show", other, "--json").json["status"] == "cancelled"
    asked = lw("resume", other, "--json")
    assert (asked.code, asked.json["status"], asked.json["iterations"]) == (5, "waiting", 1)


def test_forks_and_reopened_runs(lw: Place, server: Served) -> None:
    """They are driven by the server as well."""
    file = lw.loop(lw.script(*"abcdefgh"), until={"regex": "never"})
    first = lw("run", file, "--json")
    assert first.json["status"] == "exhausted", first
    more = lw("resume", first.json["run"], "--max", "5", "--json")
    assert more.json["iterations"] == 5
    assert WORDS in more.err
    forked = lw("fork", first.json["run"], "--at", "2", "--json")
    assert forked.json["run"] != first.json["run"], forked
    assert WORDS in forked.err


def test_a_chat_continues_at_the_server(lw: Place, serve: Serve, server: Served) -> None:
    """A chat is a run like any other: the server asks the model, and answers are put here."""
    lw.write("notes.txt", "the code is 7\n")
    model = serve(
        ScriptedTurn(text="Hello."),
        ScriptedTurn(
            text="I look.", calls=(ScriptedCall(name="fs_read", args={"path": "notes.txt"}),)
        ),
        ScriptedTurn(text="It is 7."),
    )
    told = lw.real("chat", "--agent", MODEL, stdin=b"Hi\nWhat is the code?\n")
    assert (told.code, told.out) == (0, "Hello.\nI look.\nIt is 7.\n"), told.err
    assert len(model.requests) == 3
    assert WORDS in told.err
    [row] = server.context.here.log.rows()
    assert owner_of(server, row.run) == token_of(server)


def test_a_run_of_a_third_process_is_left_alone(lw: Place, server: Served) -> None:
    """A command that drives by itself keeps its run; the others are told who has it."""
    lw.write("agent.sh", "#!/bin/sh\ncat >/dev/null\ntouch begun\nsleep 30\n").chmod(0o755)
    process = lw.start("loop", "x", "--agent", "command:./agent.sh", "--max", "1", "--here")
    try:
        until((lw.folder / "begun").exists)
        told = lw("resume", "last")
        assert told.code == 8
        assert f"is driven by process {process.pid}" in told.err
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS)


def test_what_the_server_cannot_take_up(
    lw: Place, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its refusal is told as it would be told here."""
    waiting = lw("run", lw.loop(lw.script("a"), until={"person": True}), "--json").json["run"]

    def broken(run: str, _row: object = None) -> None:
        raise StorageError(f"{run} is damaged", code="damaged", hint="take the backup")

    # Not `wake`: the server may see the answer by itself before it is asked.
    driver = server.context.here.driver
    until(lambda: not driver.is_driving(waiting))
    monkeypatch.setattr(driver, "_load", broken)
    told = lw("approve", waiting, "--json")
    assert told.code == 1, told
    assert told.json["type"].endswith("damaged")
    assert told.json["hint"] == "take the backup"


# -- servers that go, come and do not answer -------------------------------------------------------


STEP = """#!/bin/sh
cat >/dev/null
echo "$PPID" >> begun
while [ ! -e go ]; do sleep 0.05; done
echo said
"""


def stepping(lw: Place) -> list[str]:
    """A loop whose first iteration waits for a file."""
    lw.write("agent.sh", STEP).chmod(0o755)
    return ["loop", "x", "--agent", "command:./agent.sh", "--max", "2", "--json"]


def finish(lw: Place, process: "subprocess.Popen[bytes]") -> tuple[dict[str, Any], str]:
    (lw.folder / "go").touch()
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    return json.loads(out), err.decode()


def started(lw: Place, place: Process) -> "subprocess.Popen[bytes]":
    process = lw.start(*stepping(lw))
    until((lw.folder / "begun").exists)
    [item] = lw("ls", "--json").json["runs"]
    if item["driver"] != place.process.pid:
        process.kill()
        raise AssertionError(process.communicate(timeout=SECONDS)[1])
    return process


@pytest.mark.item("inv-15")
def test_the_server_is_killed(lw: Place, tmp_path: Path) -> None:
    """The command drives on itself, and no iteration that was made is made again."""
    with serving(tmp_path) as place:
        process = started(lw, place)
        assert place.end(signal.SIGKILL) == -signal.SIGKILL
        until(lambda: lw("ls", "--json").json["runs"][0]["driver"] == process.pid)
    ended, err = finish(lw, process)
    assert (ended["status"], ended["iterations"]) == ("completed", 2)
    assert "the local server has ended; continuing in this process" in err


def test_the_server_is_started_again(
    lw: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next server drives on; the command waits for it, and goes on listening."""
    monkeypatch.setattr(served_room, "GONE_S", 60.0)  # however slow this machine is
    place = Process(tmp_path)
    said: list[str] = []
    stepping(lw)
    request = StartRun(message="x", agent="command:./agent.sh")

    async def seen_through() -> str:
        settings = Settings(home=tmp_path / "home", durability="normal")
        async with near(settings, say=said.append) as here:
            place_of_start = StartPlace(settings=settings)
            start, _ = prepare_start(place_of_start, request, LoopOptions(max=2))
            run = await here.service.start(start)
            await asyncio.to_thread(until, (lw.folder / "begun").exists)
            assert here.driver.server_pid == place.process.pid
            assert await asyncio.to_thread(place.end, signal.SIGTERM) == 0
            again = await asyncio.to_thread(Process, tmp_path)
            try:
                # Otherwise the run may end before the command has found the next server.
                await asyncio.to_thread(until, lambda: here.driver.server_pid == again.process.pid)
                (lw.folder / "go").touch()
                await here.driver.rest(run)
                assert here.driver.server_pid == again.process.pid
            finally:
                assert again.end(signal.SIGTERM) == 0
            return here.log.row(run).headline.status

    assert asyncio.run(seen_through()) == "completed"
    assert len(said) == 1
    assert said[0].startswith(f"{WORDS}, process {place.process.pid}")
    assert not (tmp_path / "home" / SOCKET).exists()


def test_the_command_is_killed(lw: Place, tmp_path: Path) -> None:
    """The run goes on without it."""
    with serving(tmp_path) as place:
        process = started(lw, place)
        process.kill()
        process.communicate(timeout=SECONDS)
        (lw.folder / "go").touch()
        until(lambda: lw("ls", "--json").json["runs"][0]["status"] == "completed")


def test_a_command_that_is_asked_to_exit(lw: Place, tmp_path: Path) -> None:
    """It says that the run goes on."""
    with serving(tmp_path) as place:
        process = started(lw, place)
        process.terminate()
        _, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 128 + signal.SIGTERM
        assert b"it continues on the local server" in err
        (lw.folder / "go").touch()
        until(lambda: lw("ls", "--json").json["runs"][0]["status"] == "completed")


def test_two_commands_watch_and_the_server_is_killed(lw: Place, tmp_path: Path) -> None:
    """One of them drives on, and the other goes on watching."""
    with serving(tmp_path) as place:
        first = started(lw, place)
        second = lw.start("resume", "last", "--json")
        said = bytearray()

        def is_said() -> bool:
            said.extend(_said(second))
            return WORDS.encode() in said

        until(is_said)
        assert place.end(signal.SIGKILL) == -signal.SIGKILL
    pids = (first.pid, second.pid)
    until(lambda: lw("ls", "--json").json["runs"][0]["driver"] in pids)
    for process in (first, second):
        ended, _ = finish(lw, process)
        assert (ended["status"], ended["iterations"]) == ("completed", 2)


def _said(process: "subprocess.Popen[bytes]") -> bytes:
    """What a command has said up to now; it is lost for whoever reads later."""
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    try:
        return process.stderr.read() or b""
    finally:
        os.set_blocking(process.stderr.fileno(), True)


def test_ctrl_c_lets_the_iteration_come_to_its_end(lw: Place, tmp_path: Path) -> None:
    """The command leaves when the iteration that was under way has ended, as it does without a
    server; then the run is paused.
    """
    with serving(tmp_path) as place:
        process = started(lw, place)
        process.send_signal(signal.SIGINT)
        until(lambda: lw("ls", "--json").json["runs"][0]["status"] == "paused")
        assert process.poll() is None
        (lw.folder / "go").touch()
        _, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 128 + signal.SIGINT, err
        [item] = lw("ls", "--json").json["runs"]
        assert (item["status"], item["iterations"]) == ("paused", 1)
        assert lw.kinds(item["run"]).count("iteration.finished") == 1


def test_left_by_a_command_that_drove_itself(lw: Place, server: Served) -> None:
    """The server takes it up, and that is said."""
    process = lw.start(*stepping(lw), "--here")
    until((lw.folder / "begun").exists)
    process.terminate()
    _, err = process.communicate(timeout=SECONDS)
    assert b"the local server continues it in a moment" in err
    (lw.folder / "go").touch()
    until(lambda: lw("ls", "--json").json["runs"][0]["status"] == "completed")


def test_leaving_when_the_server_has_just_gone(lw: Place, tmp_path: Path) -> None:
    """Nobody drives the run then, so nobody is said to."""
    with serving(tmp_path) as place:
        process = started(lw, place)
        place.end(signal.SIGKILL)
        until(lambda: lw("ls", "--json").json["runs"][0]["left_behind"])
        process.terminate()
        _, err = process.communicate(timeout=SECONDS)
    assert b"goes on at the server" not in err
    assert b"continues it" in err


def test_a_server_that_does_not_answer(lw: Place, tmp_path: Path) -> None:
    """It is left out, and that is said."""
    script = lw.loop(lw.script("a", "b", "c"))
    with serving(tmp_path) as place:
        place.process.send_signal(signal.SIGSTOP)
        try:
            told = lw.real("run", script, "--json")
        finally:
            place.process.send_signal(signal.SIGCONT)
    assert told.json["status"] == "completed"
    assert f"(pid {place.process.pid}): it does not answer" in told.err


# -- the line itself -------------------------------------------------------------------------------


def said_by(home: Path) -> tuple[LocalServerLink | None, list[str]]:
    """What a command finds there, and what it says about it."""
    said: list[str] = []

    async def asked() -> LocalServerLink | None:
        line = await reach(Settings(home=home), said.append, seconds=0.3)
        if line is not None:
            line.close()
        return line

    return asyncio.run(asked()), said


def test_no_server(tmp_path: Path) -> None:
    """Nobody holds the home: nothing is asked and nothing said; a dead record is none."""
    assert said_by(tmp_path) == (None, [])
    (tmp_path / RECORD).write_text('{"pid": 1, "url": "", "version": ""}')
    assert lock_holder(tmp_path) is None
    assert said_by(tmp_path) == (None, [])


def test_a_record_that_is_none(tmp_path: Path) -> None:
    """Whatever lies there, nobody waits for it."""
    os.mkfifo(tmp_path / RECORD)
    assert lock_holder(tmp_path) is None


def test_a_path_that_is_no_text() -> None:
    """It is told apart all the same."""
    paths = {path_of({"PATH": one}) for one in ("/bin", "/bin:/tmp/\udcff", "")}
    assert len(paths) == 3
    assert all(one.isalnum() for one in paths)


def test_a_server_that_could_not_open_its_socket(lw: Place, tmp_path: Path) -> None:
    """Commands do not wait for it."""
    (tmp_path / "home" / SOCKET).mkdir(parents=True)
    with served(tmp_path, held=True):
        told = lw("run", lw.loop(lw.script("a", "b", "c")), "--json")
    assert told.json["status"] == "completed"
    assert "): it takes nothing from commands" in told.err


def test_a_socket_that_was_taken_away(lw: Place, server: Served, tmp_path: Path) -> None:
    """Nobody waits for what will not come back."""
    (tmp_path / "home" / SOCKET).unlink()
    told = lw("run", lw.loop(lw.script("a", "b", "c")), "--json")
    assert told.json["status"] == "completed"
    assert "): no such file" in told.err


def test_no_more_commands_than_a_server_can_hold(
    tmp_path: Path, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One too many is hung up on."""
    monkeypatch.setattr(door_room, "MOST", 1)
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
        for sock in (one, other):
            sock.settimeout(SECONDS)
            sock.connect(str(tmp_path / "home" / SOCKET))
        assert b"hello" in one.recv(1_000)
        assert other.recv(1_000) == b""


def test_one_that_is_just_starting(tmp_path: Path) -> None:
    """It is waited for, and left out when it does not come."""
    with hold_lock(tmp_path):
        assert lock_holder(tmp_path) == ServerLockInfo(pid=0, url="", version="")
        line, [words] = said_by(tmp_path)
    assert line is None
    assert "not using the local server: no such file" in words


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (as_line(Hello(PROTOCOL + 1, "9.9", 1)), "it is version 9.9 and this is version"),
        (as_line(DriveRefused("r", "k", "c", "m")), "it is version unknown"),
        (b"HTTP/1.1 400 Bad Request\r\n", "it hung up"),
        (b"", "it hung up"),
    ],
    ids=["another version", "another message", "no message", "nothing"],
)
def test_one_that_speaks_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes, words: str
) -> None:
    """It is left out, with the reason; one that hangs up is tried again while there is time."""
    moments = iter([0.0, 0.0, 0.1, 0.1, SECONDS + 1.0])
    monkeypatch.setattr(reaching_room, "time", SimpleNamespace(monotonic=lambda: next(moments)))

    async def answered() -> list[str]:
        said: list[str] = []

        async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(first)
            writer.close()

        with socket_path(tmp_path, SOCKET) as path:
            other = await asyncio.start_unix_server(speak, path)
        async with other:
            assert await reach(Settings(home=tmp_path), said.append, seconds=SECONDS) is None
        return said

    with hold_lock(tmp_path) as handle:
        announce(handle, ServerLockInfo(pid=7, url="", version=""))
        [told] = asyncio.run(answered())
    assert words in told


def test_a_data_directory_that_lies_deep(tmp_path: Path, lw: Place) -> None:
    """A socket's path is short; by a handle of the folder the home may lie as deep as it likes."""
    deep = "/".join(["a-folder-with-a-long-name"] * 6)
    with served(tmp_path, home=deep, held=True) as server:
        lw.env["LOOPWRIGHT_HOME"] = str(tmp_path / deep)
        told = lw.real("run", lw.loop(lw.script("a", "b", "c")), "--json")
        assert (told.code, told.json["status"]) == (0, "completed"), told
        assert WORDS in told.err
        assert server.context.here.log.row(told.json["run"])


def test_only_the_owner_of_the_data_directory(
    tmp_path: Path, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket is for whoever owns the data; somebody else who could connect hears nothing."""
    file = tmp_path / "home" / SOCKET
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    monkeypatch.setattr(door_room.host, "is_own_user", lambda _: False)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(file))
        assert sock.recv(100) == b""


@pytest.mark.parametrize(
    "data",
    [b"\n", b"{}\n", b"[" * 5_000 + b"\n", b'{"type":"drive"}\n', b"\xff\xfe\n", b"x" * 5_000_000],
    ids=["empty", "no message", "deep", "no run", "no text", "endless"],
)
def test_nonsense_on_the_line(tmp_path: Path, lw: Place, server: Served, data: bytes) -> None:
    """Whoever talks nonsense is hung up on; nobody else notices."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(SECONDS)
        sock.connect(str(tmp_path / "home" / SOCKET))
        assert b"hello" in sock.recv(1_000)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(data)
            assert sock.recv(1_000) == b""
    assert lw("run", lw.loop(lw.script("a", "b", "c")), "--json").code == 0


def test_a_run_that_does_not_exist(tmp_path: Path, server: Served) -> None:
    """It is refused by name, and the line stays."""
    with socket.socket(socket.AF_UNIX) as sock, sock.makefile("rb") as lines:
        sock.settimeout(SECONDS)
        sock.connect(str(tmp_path / "home" / SOCKET))
        assert b"hello" in lines.readline()
        for name in ("run_nope", "../x", ""):
            sock.sendall(as_line(DriveRequest(name)))
            told = json.loads(lines.readline())
            assert (told["type"], told["kind"], told["run"]) == ("refused", "NotFound", name)


def test_a_command_that_does_not_read(
    tmp_path: Path, lw: Place, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said is dropped for it, and the server keeps little for it."""
    monkeypatch.setattr(door_room, "BEHIND_BYTES", 10_000)
    run = lw("run", lw.loop(lw.script("a"), until={"person": True}), "--json").json["run"]
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(tmp_path / "home" / SOCKET))
        sock.sendall(as_line(DriveRequest(run)))
        bus = server.context.here.bus
        delta = Delta(run=run, effect="e", kind="text", text="x" * 9_000)
        until(lambda: bool(sock.recv(100_000, socket.MSG_PEEK).count(b"driven")))

        def much() -> None:
            for _ in range(1_000):
                bus.publish(delta)

        server.call(much)
        sock.settimeout(0.5)
        got = 0
        with contextlib.suppress(TimeoutError):
            while piece := sock.recv(1_000_000):
                got += len(piece)
    assert 9_000 <= got < 2_000_000


def test_errors_of_the_server_as_they_are_here() -> None:
    """By kind, where it is one of ours."""
    refusal = served_room._refusal
    table = {
        "NotFound": NotFound,
        "Conflict": Conflict,
        "StorageError": StorageError,
        "Nonsense": LoopwrightError,
        "Sequence": LoopwrightError,
        "DefinitionError": LoopwrightError,
    }
    for kind, expected in table.items():
        found = refusal(DriveRefused("r", kind, "c", "m", "h"))
        assert (type(found), found.code, found.message, found.hint) == (expected, "c", "m", "h")


def test_troubles_of_the_server_are_reported(lw: Place, server: Served, tmp_path: Path) -> None:
    """What keeps a run from going on at the server is heard by the command that watches it."""
    run = lw("run", lw.loop(lw.script("a"), until={"person": True}), "--json").json["run"]

    async def heard() -> list[str]:
        async with near(Settings(home=tmp_path / "home", durability="normal")) as here:
            assert isinstance(here.driver, DelegatingDriver)
            here.driver.wake(run)
            assert await here.driver.taken_up(run) == os.getpid()
            server.call(lambda: server.context.here.driver.trouble(run, StorageError("full")))
            await asyncio.to_thread(until, lambda: bool(here.driver.problems))
            return [str(problem) for _, problem in here.driver.problems]

    assert asyncio.run(heard()) == ["full"]


def test_looking_for_a_server_keeps_none_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks has the lock for a moment; a server that starts then waits for that moment."""
    (tmp_path / RECORD).touch()
    looking = os.open(tmp_path / RECORD, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    moments = iter([lambda: None, lambda: os.close(looking)])
    monkeypatch.setattr(holding_room.time, "sleep", lambda _: next(moments)())
    with hold_lock(tmp_path):
        assert lock_holder(tmp_path) is not None
    assert next(moments, None) is None


def test_approved_folders_are_those_of_the_server(
    lw: Place, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a server of the data directory, `workspace` prints what it prints with `--server`."""
    monkeypatch.setenv("LOOPWRIGHT_TOKEN", server.token)
    remote = ("--server", f"http://127.0.0.1:{server.port}")
    folder = str(tmp_path)
    for words in (["ls"], ["add", folder], ["rm", folder], ["add", str(tmp_path / "none")]):
        here, there = lw("workspace", *words, "--json"), lw("workspace", *words, "--json", *remote)
        assert (here.code, here.out) == (there.code, there.out), words
    [listed] = lw("workspace", "ls", "--json").json["workspaces"]
    assert (listed["path"], listed["source"]) == (folder, "server")
    assert "approved by the server, not by the list" in lw("workspace", "rm", folder).err
    assert lw("agent", "ls", "--json").out == lw("agent", "ls", "--json", *remote).out
