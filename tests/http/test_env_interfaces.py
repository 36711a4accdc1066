"""Variables of a run that is resumed or forked, at every interface: handed on, never recorded."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwright.cli.main import main
from loopwright.operations.accounts.access import acting_as
from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.use_cases.role_loops import RoleLoops
from loopwright.tools.results import ToolCallResult
from tests.http.served import SECONDS, Served, served
from tests.http.talking import tab, talk

OLD, NEW = "value-at-the-start", "value-of-the-resume"
RUNS = "/api/v1/runs"
AGENT = '#!/bin/sh\necho "$MY_KEY" >> seen\ntest -e works || exit 1\n'
pytestmark = pytest.mark.item("rec-37")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server, and an agent that writes down its variable and fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPWRIGHT_SNAPSHOTS", "off")
        with served(tmp_path_factory.mktemp("served")) as one:
            file = one.folder / "agent.sh"
            file.write_text(AGENT)
            file.chmod(0o755)
            yield one


def command(*args: str) -> None:
    with pytest.raises(SystemExit):
        main([*args])


def by_http(server: Served, run: str) -> None:
    reply = server("POST", f"{RUNS}/{run}/resume", {"env": {"MY_KEY": NEW}})
    assert reply.status == 200, reply.body


def by_socket(server: Served, run: str) -> None:
    async def go() -> None:
        async with tab(server) as one:
            answer = await one.say("run:resume", {"run": run, "env": {"MY_KEY": NEW}})
            assert answer["ok"], answer

    talk(go())


def by_mcp(server: Served, run: str, given_as: str = "MY_KEY") -> str:
    context = server.context
    loops = RoleLoops(here=context.here, settings=context.settings, cwd=server.folder, by="mcp")
    given: dict[str, Any] = {"action": "resume", "id": run, "env": [given_as]}

    async def answer() -> ToolCallResult:
        with acting_as("admin"):  # `loopwright mcp` is a process of the person's own
            return await LoopTools(loops=loops).answer("loop_control", given)

    outcome = asyncio.run_coroutine_threadsafe(answer(), server.loop).result(SECONDS)
    return outcome.text


def at_prompt(server: Served, run: str) -> None:
    lines = server.folder / "lines"
    lines.write_text(f"/loops resume {run} --env MY_KEY\n")
    with pytest.MonkeyPatch.context() as patch, lines.open() as stdin:
        patch.setattr(sys, "stdin", stdin)
        command("repl")


def by_command(server: Served, run: str) -> None:
    command("resume", run, "--env", f"MY_KEY={NEW}")


def at_a_server(server: Served, run: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPWRIGHT_TOKEN", server.token)
        address = f"http://127.0.0.1:{server.port}"
        command("resume", run, "--env", "MY_KEY", "--server", address)


INTERFACES: dict[str, Callable[[Served, str], object]] = {
    "cli": by_command,
    "cli --server": at_a_server,
    "http": by_http,
    "socket.io": by_socket,
    "mcp": by_mcp,
    "repl": at_prompt,
}


def recorded(home: Path) -> bytes:
    """All bytes of the data directory but for the files of the variables themselves."""
    files = [one for one in home.rglob("*") if one.is_file() and one.parent.name != "env"]
    return b"".join(one.read_bytes() for one in files)


def failed_run(server: Served, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run that was started with the variable and failed."""
    monkeypatch.setenv("LOOPWRIGHT_HOME", str(server.context.settings.home))
    monkeypatch.chdir(server.folder)
    for name in ("seen", "works"):
        (server.folder / name).unlink(missing_ok=True)
    before = {row.run for row in server.context.here.log.rows()}
    words = ["--agent", "command:./agent.sh", "--max", "2", "--env", f"MY_KEY={OLD}"]
    command("loop", "Go", *words, "--quiet")
    [run] = {row.run for row in server.context.here.log.rows()} - before
    server.until(run, "failed")
    assert set((server.folder / "seen").read_text().split()) == {OLD}
    return run


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_run_is_resumed_with_another_value(
    server: Served, monkeypatch: pytest.MonkeyPatch, interface: str
) -> None:
    """The agent gets it; the data directory has it nowhere but in the file of the variables."""
    run = failed_run(server, monkeypatch)
    monkeypatch.setenv("MY_KEY", NEW)
    (server.folder / "works").touch()
    INTERFACES[interface](server, run)
    server.until(run, "completed")
    assert (server.folder / "seen").read_text().split()[-2:] == [NEW, NEW]
    home = server.context.settings.home
    assert NEW.encode() not in recorded(home)
    assert not (home / "env" / f"{run}.json").exists()  # it has completed


@pytest.mark.parametrize("interface", ["cli", "http"])
def test_a_fork_is_given_another_value(
    server: Served, monkeypatch: pytest.MonkeyPatch, interface: str
) -> None:
    """The new run has it; the run that is forked keeps its own."""
    run = failed_run(server, monkeypatch)
    (server.folder / "works").touch()
    command("resume", run)
    server.until(run, "completed")
    if interface == "cli":
        command("fork", run, "--at", "1", "--env", f"MY_KEY={NEW}")
    else:
        reply = server("POST", f"{RUNS}/{run}/fork", {"at": "1", "env": {"MY_KEY": NEW}})
        assert reply.status == 201, reply.body
        server.until(str(reply.json["run"]), "completed")
    assert (server.folder / "seen").read_text().split()[-1] == NEW
    assert NEW.encode() not in recorded(server.context.settings.home)


@pytest.mark.parametrize("interface", ["http", "mcp", "repl"])
def test_what_would_be_recorded_or_is_not_known_is_refused(
    server: Served,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    interface: str,
) -> None:
    """A tool call and the history of the prompt take names alone; other names are refused."""
    run = failed_run(server, monkeypatch)
    if interface == "http":
        words = server("POST", f"{RUNS}/{run}/resume", {"env": {"OTHER": "x"}}).body.decode()
        assert f"{run} was started without OTHER" in words
        return
    if interface == "mcp":
        words = by_mcp(server, run, f"MY_KEY={NEW}")
        assert "a tool call would record the value of MY_KEY" in words
        return
    (server.folder / "lines").write_text(f"/loops resume {run} --env MY_KEY={NEW}\n")
    with (server.folder / "lines").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        command("repl")
    told = capsys.readouterr()
    assert "the history of this prompt would record the value of MY_KEY" in told.out + told.err
