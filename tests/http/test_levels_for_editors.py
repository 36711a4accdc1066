"""The sandbox levels that runs of a server have, by who started them and which agents they use."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from loopwright.agents.sandbox.bubblewrap import works
from loopwright.http.operation_routes import app_of
from loopwright.model.sandbox import COMMAND_SANDBOX
from tests.http.served import Reply, Served, served

RUNS, AGENTS = "/api/v1/runs", "/api/v1/agents"
pytestmark = pytest.mark.skipif(works() is not None, reason="bubblewrap cannot work here")


@dataclass
class World:
    """A server, tokens of an editor and an admin, and a folder beside the workspace."""

    server: Served
    tokens: dict[str, str]
    beside: Path
    tries: str  # a program that writes where it may not

    def start(self, role: str, text: dict[str, Any], **more: Any) -> Reply:
        body = {"definition": json.dumps(text), **more}
        return self.server("POST", RUNS, body, token=self.tokens[role])

    def run(self, role: str, text: dict[str, Any], **more: Any) -> str:
        reply = self.start(role, text, **more)
        assert reply.status == 201, reply.body
        run = str(reply.json["run"])
        self.server.until(run, "completed", "failed", "exhausted")
        return run


@pytest.fixture
def world() -> Iterator[World]:
    """Not below the temporary folder of the system, which is private in a sandbox."""
    folder = Path(os.environ.get("HOME", "/")) / f".loopwright-test-{os.getpid()}"
    (folder / "work").mkdir(parents=True)
    (folder / "beside").mkdir()
    tries = folder / "tries.sh"
    tries.write_text(f"#!/bin/sh\ncat > /dev/null\necho x > inside\necho x > {folder}/beside/out\n")
    tries.chmod(0o755)
    try:
        with served(folder / "work", home="../home") as server:
            tokens = {role: server.made(role) for role in ("editor", "admin")}
            yield World(server, tokens, folder / "beside", str(tries))
    finally:
        shutil.rmtree(folder)


def script(world: World) -> dict[str, Any]:
    text = f"echo x > inside; echo x > {world.beside}/out; true"
    return {"name": "w", "steps": [{"id": "s", "script": text}]}


def command(world: World) -> dict[str, Any]:
    return {"name": "w", "steps": [{"id": "s", "run": [world.tries]}]}


def check(world: World) -> dict[str, Any]:
    agent = world.server.script("x")
    until = {"command": [world.tries]}
    return {"name": "w", "goal": "g", "agent": agent, "repeat": {"max": 1, "until": until}}


COMMANDS = {"script": script, "command": command, "check": check}


@pytest.mark.item("bnd-e6")
@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize("role", ["editor", "admin"])
def test_commands_of_an_editor_change_the_workspace_alone(
    world: World, kind: str, role: str
) -> None:
    """Commands in a definition of an editor run at `workspace`; those of an admin as the server
    is set.
    """
    world.run(role, COMMANDS[kind](world))
    assert (world.server.folder / "inside").exists()
    assert (world.beside / "out").exists() is (role == "admin")


def by_agent() -> dict[str, Any]:
    return {"name": "w", "goal": "g", "agents": {"a": {}}, "agent": "a"}


@pytest.mark.item("bnd-e6")
@pytest.mark.parametrize(
    ("level", "inside", "outside"),
    [(None, True, True), ("workspace", True, False), ("readonly", False, False)],
)
def test_an_entry_raises_the_level_of_its_agent(
    world: World, level: str | None, inside: bool, outside: bool
) -> None:
    """An agent of the list runs at the level of its entry at least, also for admins."""
    entry = {"name": "tries", "spec": f"command:{world.tries}", "sandbox": level}
    assert world.server("POST", AGENTS, entry).status == 201
    for role in ("editor", "admin"):
        run = world.run(role, by_agent(), agent="tries")
        agents = world.server.context.service.state(run).plan.agents
        assert agents["a"].sandbox == level
        assert (world.server.folder / "inside").exists() is inside
        assert (world.beside / "out").exists() is outside


@pytest.mark.item("bnd-e6")
def test_off_needs_an_entry_that_allows_it(world: World) -> None:
    """Nobody runs an agent at `off` on a server unless an admin has allowed it for that agent; the
    commands of such a run stay in a sandbox.
    """
    entry = {"name": "tries", "spec": f"command:{world.tries}"}
    assert world.server("POST", AGENTS, entry).status == 201
    for role in ("editor", "admin"):
        reply = world.start(role, by_agent(), agent="tries", sandbox="off")
        assert (reply.status, reply.code) == (403, "unsandboxed")
        assert "loopwright agent change tries --allow-off" in reply.json["detail"]
        rows = world.server("GET", "/api/v1/audit?limit=1").json["rows"]
        assert (rows[0]["action"], rows[0]["detail"][:11]) == ("denied", "unsandboxed")
    assert world.server("PATCH", f"{AGENTS}/tries", {"allow_off": True}).status == 200
    for role, least in (("editor", "workspace"), ("admin", "guard")):
        run = world.run(role, by_agent(), agent="tries", sandbox="off")
        plan = world.server.context.service.state(run).plan
        assert (plan.sandbox, plan.settings[COMMAND_SANDBOX]) == ("off", least)


@pytest.mark.item("bnd-e6")
def test_an_editor_does_not_resume_or_fork_a_run_at_off(world: World) -> None:
    """A run at `off` is continued by others than admins only while its agents may run so."""
    entry = {"name": "fails", "spec": "command:false", "allow_off": True}
    assert world.server("POST", AGENTS, entry).status == 201
    run = world.run("admin", by_agent(), agent="fails", sandbox="off")
    assert world.server("PATCH", f"{AGENTS}/fails", {"allow_off": False}).status == 200
    reply = world.server("POST", f"{RUNS}/{run}/resume", {}, token=world.tokens["editor"])
    assert (reply.status, reply.code) == (403, "unsandboxed")
    again = world.server("POST", f"{RUNS}/{run}/resume", {}, token=world.tokens["admin"])
    assert again.status == 200, again.body


@pytest.mark.item("bnd-e6")
@pytest.mark.parametrize("role", ["editor", "admin"])
def test_a_request_does_not_ask_for_less(world: World, role: str) -> None:
    """A level below that of the server, or below that of the definition, is not taken."""
    app = world.server.context.part(app_of)
    stricter = replace(app.settings, sandbox="readonly")
    object.__setattr__(app, "settings", stricter)  # of a server that was started with it
    reply = world.start(role, script(world), sandbox="guard")
    assert (reply.status, reply.code) == (403, "widens")


@pytest.mark.item("bnd-l10")
@pytest.mark.parametrize(("role", "level"), [("editor", "workspace"), ("admin", "guard")])
def test_a_run_shows_the_level_of_its_commands(world: World, role: str, level: str) -> None:
    """What is shown is what was enforced."""
    run = world.run(role, script(world))
    shown = world.server("GET", f"{RUNS}/{run}/snapshot").json["sandbox"]
    assert (shown["run"], shown["commands"]) == ("guard", level)


@pytest.mark.parametrize("level", ["readonly", "none"])
def test_no_version_manager_of_an_editor_is_started_outside_of_the_sandbox(
    world: World, level: str
) -> None:
    """A program in a folder `shims`, with a `pyenv` beside it that an agent has written."""
    for name, text in {"bin/pyenv": f"echo x > {world.beside}/out", "shims/tool": "exit 0"}.items():
        file = world.server.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    steps = [{"id": "s", "run": ["./shims/tool"]}]
    world.run("editor", {"name": "w", "steps": steps}, sandbox=level)
    assert not (world.beside / "out").exists()
