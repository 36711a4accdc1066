"""Runs that agents start, when whoever drove them is gone."""

import asyncio
import json
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loopwright.agents.sandbox import bubblewrap
from loopwright.http import server as serving
from loopwright.operations.accounts.access import InsideRun
from loopwright.operations.data_directory import SOCKET, DriveRequest, as_line
from loopwright.operations.run_request import StartRun
from loopwright.operations.run_start import DefinitionSource, StartPlace, prepare_start
from tests.http.served import SECONDS, Served, served


def left_behind(server: Served, parent: str) -> str:
    """A run that a program of another run started, and that no process drives."""
    server.context.service.inside = InsideRun(run=parent, runs=(parent,))
    definition = server.definition(server.script("a", "b", "c", name=f"{parent}.yaml"))
    source = DefinitionSource(file="inner.yaml", data=definition.encode(), dialect="native")
    place = StartPlace(settings=server.context.settings, workspace=server.folder)
    start, _ = prepare_start(place, StartRun(), source)

    async def begin() -> str:
        return await server.context.service.start(replace(start, drive=False))

    return asyncio.run_coroutine_threadsafe(begin(), server.loop).result(20)


def test_left_behind_by_a_program_of_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its parent has completed, it is taken up as any other. Where the parent is under way or
    was ended, it is stopped: the iteration that had started it is made again, or nobody wants it.
    It is stopped too where agents of the parent are held: what one of them started has no network,
    say, and would have it now.
    """
    monkeypatch.setattr(serving, "RESCUE_SECONDS", 0.05)
    with served(tmp_path) as server:
        whole = server.start(server.definition(server.script("x"), until={"contains": "x"}))
        server.until(whole, "completed")
        plain = json.loads(server.definition(server.script("x", name="y.yaml"), max=1))
        held = {"use": plain.pop("agent"), "access": "readonly"}
        walled = server.start(json.dumps({**plain, "agents": {"a": held}, "agent": "a"}))
        server.until(walled, "completed")
        waiting, _ = server.gated()
        stopped, _ = server.gated()
        server("POST", f"/api/v1/runs/{stopped}/stop")
        ends = {
            parent: server.until(left_behind(server, parent), "completed", "cancelled")
            for parent in (whole, walled, waiting, stopped, "run_elsewhere")
        }
    told = {parent: (end["status"], end["reason"]) for parent, end in ends.items()}
    gone = ("cancelled", "parent_gone")
    kept = ("completed", "max_iterations")
    lost = dict.fromkeys((walled, waiting, stopped), gone)
    assert told == {whole: kept, "run_elsewhere": kept, **lost}


def asked_on_the_line(folder: Path, run: str) -> tuple[str, str]:
    """What the server of a home says to a command that asks it to drive a run."""
    with socket.socket(socket.AF_UNIX) as sock, sock.makefile("rb") as lines:
        sock.settimeout(SECONDS)
        sock.connect(str(folder / "home" / SOCKET))
        lines.readline()
        sock.sendall(as_line(DriveRequest(run)))
        told = json.loads(lines.readline())
        return str(told["type"]), str(told.get("code"))


def test_what_waits_in_a_sandbox_does_not_continue_outside(tmp_path: Path) -> None:
    """A run that an agent behind a wall started, or a run that this one started, waits for a person
    when that agent is gone. No answer, no resume and no command lets it go on here; it can be
    stopped.
    """
    with served(tmp_path) as server:
        plain = json.loads(server.definition(server.script("x"), max=1))
        held = {"use": plain.pop("agent"), "access": "readonly"}
        walled = server.start(json.dumps({**plain, "agents": {"a": held}, "agent": "a"}))
        server.until(walled, "completed")
        asks = server.definition(server.script(*["w"] * 9, name="w.yaml"), until={"person": True})
        children: list[str] = []
        for parent in (walled, None, walled):  # the second is a child of the first
            above = parent or children[0]
            server.context.service.inside = InsideRun(run=above, runs=(above,))
            children.append(server.start(asks))
            server.until(children[-1], "waiting")
        server.context.service.inside = None
        free, _ = server.gated()
        token = server.token
    with served(tmp_path, held=True) as server:
        server.token = token
        for run in children:
            assert asked_on_the_line(tmp_path, run) == ("refused", "behind-wall")
            gate = server("GET", f"/api/v1/runs/{run}").json["gates"][0]["id"]
            for path in (f"/api/v1/gates/{gate}/approve", f"/api/v1/runs/{run}/resume"):
                refused = server("POST", path, {})
                assert (refused.status, refused.code) == (409, "behind-wall"), path
            assert server("GET", f"/api/v1/runs/{run}").json["status"] == "waiting"
        for run in children:
            assert server("POST", f"/api/v1/runs/{run}/stop", {}).status == 200
            server.until(run, "cancelled")
        gate = server("GET", f"/api/v1/runs/{free}").json["gates"][0]["id"]
        assert server("POST", f"/api/v1/gates/{gate}/approve", {}).status == 200


def test_an_agent_in_a_sandbox_starts_no_run(tmp_path: Path) -> None:
    """It does not see the data directory, so its own `loopwright run` finds nothing to write to."""
    if bubblewrap.works() is not None:
        pytest.skip(f"bubblewrap cannot work here: {bubblewrap.works()}")
    with served(tmp_path) as server:
        command = f"{sys.executable} -m loopwright run inner.yaml --json"
        (server.folder / "outer.sh").write_text(f"#!/bin/sh\nexec {command}\n", encoding="utf-8")
        (server.folder / "outer.sh").chmod(0o755)
        inner = server.definition("script:inner.jsonl", max=1)
        (server.folder / "inner.yaml").write_text(inner, encoding="utf-8")
        held = {"use": "command:./outer.sh", "options": {"network": "none"}}
        outer = {**json.loads(inner), "agents": {"held": held}, "agent": "held"}
        run = server.start(json.dumps(outer), workspace=str(server.folder))
        assert server.until(run, "completed", "failed")["status"] == "failed"
        listed = server("GET", "/api/v1/runs").json["runs"]
        assert [one["run"] for one in listed] == [run]
