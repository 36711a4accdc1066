"""Editors choose workspaces in approved folders, and use programs as they were approved."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from loopwright.agents.sandbox.bubblewrap import works
from loopwright.engine.services import SystemClock
from loopwright.operations.accounts.access import Access
from loopwright.operations.data_directory import open_log
from loopwright.operations.run_admission import WorkspaceRoots
from loopwright.operations.settings import Settings
from tests.http import test_hooks as hooks
from tests.http.served import Reply, Served, served, wait_for
from tests.http.talking import tab, talk

RUNS, AGENTS, ROOTS = "/api/v1/runs", "/api/v1/agents", "/api/v1/workspaces"
DEFINITIONS, ASSISTANTS = "/api/v1/definitions", "/api/agents"
REFUSED = "workspace-not-approved"
confined = pytest.mark.skipif(works() is not None, reason="bubblewrap cannot work here")


@dataclass
class World:
    """A server with an approved folder, another folder, and a token for each role."""

    server: Served
    root: Path  # approved: the folder of the server
    other: Path
    tokens: dict[str, str] = field(default_factory=dict)
    made: int = 0

    def ask(self, role: str, method: str, path: str, body: object = None) -> Reply:
        return self.server(method, path, body, token=self.tokens[role])

    def start(self, role: str, workspace: Path | str, text: str = "", **more: Any) -> Reply:
        body = {"definition": text or scripted(self), "workspace": str(workspace), **more}
        return self.ask(role, "POST", RUNS, body)

    def denied(self) -> str:
        rows = self.server("GET", "/api/v1/audit?limit=1").json["rows"]
        return str(rows[0]["detail"]) if rows[0]["action"] == "denied" else ""

    def name(self) -> str:
        self.made += 1
        return f"d{self.made}"


def program(file: Path, text: str) -> str:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def scripted(world: World) -> str:
    """A definition without agents: the workspace alone decides."""
    return json.dumps({"name": "w", "steps": [{"id": "s", "run": ["true"]}]})


def outcome(reply: Reply) -> str:
    if reply.status < 400:
        return "allowed"
    said = reply.json
    if "type" in said:
        return reply.code
    return str(said["details"]["reason"] if "details" in said else said["code"])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    (tmp_path / "root" / "project").mkdir(parents=True)
    (tmp_path / "other" / "inside").mkdir(parents=True)
    with served(tmp_path / "root", home="../home") as server:
        made = World(server, tmp_path / "root", tmp_path / "other")
        made.tokens = {role: server.made(role) for role in ("editor", "admin")}
        yield made


# -- which folders ---------------------------------------------------------------------------------


@pytest.mark.item("bnd-w1")
def test_an_editor_works_in_approved_folders_only(world: World) -> None:
    """Links count as what they lead to, `..` as where it leads; admins are free."""
    (world.root / "way-out").symlink_to(world.other)
    (world.other / "way-in").symlink_to(world.root / "project")
    (world.root / "chain").symlink_to(world.root / "way-out" / "inside")
    inside = [world.root, world.root / "project", world.other / "way-in"]
    outside = [
        world.other,
        world.root / "way-out",
        world.root / "chain",
        world.root / ".." / "other",
        world.root.parent,
        f"{world.root}-sibling",
        Path.home(),
        "/",
        "/etc",
    ]
    for folder in inside:
        assert outcome(world.start("editor", folder)) == "allowed", folder
    for place in outside:
        reply = world.start("editor", place)
        assert (reply.status, reply.code) == (403, REFUSED), (place, reply.body)
        assert "loopwright workspace add DIR" in reply.json["detail"]
        assert world.denied().startswith(REFUSED)
    assert outcome(world.start("admin", world.other)) == "allowed"


@pytest.mark.item("bnd-w1")
def test_nothing_of_a_refused_folder_is_read(world: World) -> None:
    """Neither files that a definition names nor roles of the folder; also in a dry run."""
    (world.other / "secret.md").write_text("the secret text")
    text = json.dumps({"name": "w", "agent": "claude", "goal": {"file": "secret.md"}})
    body = {"definition": text, "workspace": str(world.other)}
    for path in (RUNS, "/api/v1/rehearsals"):
        reply = world.ask("editor", "POST", path, body)
        assert (reply.status, reply.code) == (403, REFUSED)
        assert b"the secret text" not in reply.body


def by_fork(world: World) -> Reply:
    text = world.server.definition(world.server.script("one", "two"), max=2)
    run = world.server.start(text)
    world.server.until(run, "completed")
    body = {"at": "1", "workspace": str(world.other)}
    return world.ask("editor", "POST", f"{RUNS}/{run}/fork", body)


def by_resume(world: World) -> Reply:
    """Of a run that an admin has started elsewhere."""
    run = failed_elsewhere(world)
    return world.ask("editor", "POST", f"{RUNS}/{run}/resume", {})


def by_stored(world: World) -> Reply:
    name = world.name()
    stored = world.ask("editor", "PUT", f"{DEFINITIONS}/{name}", {"text": scripted(world)})
    assert stored.status == 201, stored.body
    return world.ask("editor", "POST", RUNS, {"stored": name, "workspace": str(world.other)})


def by_import(world: World) -> Reply:
    name, text = world.name(), scripted(world)
    made = world.ask("editor", "POST", f"{DEFINITIONS}/import", {"name": name, "text": text})
    approval = {"digest": made.json["digest"]}
    assert world.server("POST", f"{DEFINITIONS}/{name}/approve", approval).status == 200
    return world.ask("editor", "POST", RUNS, {"stored": name, "workspace": str(world.other)})


def by_assistant(world: World) -> Reply:
    listed(world, "command:cat")
    return world.ask("editor", "POST", ASSISTANTS, assistant_of(world))


def by_changed_assistant(world: World) -> Reply:
    """An admin chose the folder; an editor changes what is done in it."""
    listed(world, "command:cat")
    made = world.ask("admin", "POST", ASSISTANTS, assistant_of(world)).json["data"]["id"]
    return world.ask("editor", "PATCH", f"{ASSISTANTS}/{made}", {"name": "b"})


def by_assistant_of_an_admin(world: World) -> Reply:
    listed(world, "command:cat")
    made = world.ask("admin", "POST", ASSISTANTS, assistant_of(world)).json["data"]["id"]
    return world.ask("editor", "POST", f"{ASSISTANTS}/{made}/loop/start", {"message": "go"})


def by_stored_assistant(world: World) -> Reply:
    """The folder was approved when an editor chose it; an admin starts the assistant."""
    listed(world, "command:cat")
    folder = {"path": str(world.other)}
    assert world.server("POST", ROOTS, folder).status == 201
    made = world.ask("editor", "POST", ASSISTANTS, assistant_of(world)).json["data"]["id"]
    assert world.server("DELETE", f"{ROOTS}?path={world.other}").status == 204
    return world.ask("admin", "POST", f"{ASSISTANTS}/{made}/loop/start", {"message": "go"})


def by_socket(world: World) -> str:
    listed(world, "command:cat")
    made = world.ask("admin", "POST", ASSISTANTS, assistant_of(world)).json["data"]["id"]
    answers: list[Any] = []

    async def go() -> None:
        async with tab(world.server, world.tokens["editor"]) as one:
            answers.append(await one.say("loop:start", {"agentId": made, "message": "go"}))

    talk(go())
    return "allowed" if answers[0]["ok"] else str(answers[0]["code"])


def assistant_of(world: World) -> dict[str, Any]:
    return {
        "name": "a",
        "loopEnabled": True,
        "agent": "helper",
        "workspace": str(world.other),
    }


def failed_elsewhere(world: World) -> str:
    text = json.dumps({"name": "w", "steps": [{"id": "s", "run": ["false"]}]})
    run = str(world.start("admin", world.other, text).json["run"])
    world.server.until(run, "failed")
    return run


WAYS: dict[str, Callable[[World], Reply | str]] = {
    "fork": by_fork,
    "resume": by_resume,
    "stored": by_stored,
    "import": by_import,
    "assistant": by_assistant,
    "changed assistant": by_changed_assistant,
    "assistant of an admin": by_assistant_of_an_admin,
    "stored assistant": by_stored_assistant,
    "socket": by_socket,
}


@pytest.mark.item("bnd-w1")
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_a_run_checks_the_folder(world: World, way: str) -> None:
    """No run is made, and the refusal is in the audit log."""
    found = WAYS[way](world)
    assert (found if isinstance(found, str) else outcome(found)) == REFUSED
    assert world.denied().startswith(REFUSED)


@pytest.mark.item("bnd-w1")
def test_a_webhook_uses_the_folder_of_the_server_only_if_it_is_approved(tmp_path: Path) -> None:
    """A message starts the definition of an editor in an approved folder only."""
    (tmp_path / "root").mkdir()
    (tmp_path / "approved").mkdir()
    more = {"workspaces": (tmp_path / "approved",)}
    with served(tmp_path / "root", home="../home", more=more) as server:
        text = json.dumps({"name": "w", "steps": [{"id": "s", "run": ["true"]}]})
        for role in ("editor", "admin"):
            token = server.made(role)
            stored = server("PUT", f"{DEFINITIONS}/of-{role}", {"text": text}, token=token)
            assert stored.status == 201, stored.body
            hook = {"name": f"of-{role}", "stored": f"of-{role}"}
            made = server("POST", hooks.BASE, hook).json
            taken = hooks.post(server, hooks.headers(made["secret"]), name=f"of-{role}")
            assert taken.status == 202

        def problem() -> str:
            listed = server("GET", hooks.BASE).json["hooks"]
            return next(str(one["problem"] or "") for one in listed if one["name"] == "of-editor")

        wait_for(problem)
        assert "is not in a folder that editors may use" in problem()
        wait_for(lambda: len(server.call(server.context.here.log.rows)) == 1)


@pytest.mark.item("bnd-w1")
def test_a_folder_that_becomes_a_link_is_refused(world: World) -> None:
    """What was admitted is what is used: a link that takes its place later leads nowhere."""
    text = json.dumps(
        {
            "name": "w",
            "steps": [
                {"id": "a", "gate": {"message": "Continue?"}},
                {"id": "b", "run": ["touch", "found"], "needs": ["a"]},
            ],
        }
    )
    reply = world.start("editor", world.root / "project", text)
    assert reply.status == 201, reply.body
    run = str(reply.json["run"])
    gate = world.server.until(run, "waiting")["gates"][0]["id"]
    (world.root / "project").rename(world.root / "moved")
    (world.root / "project").symlink_to(world.other)
    assert world.server("POST", f"/api/v1/gates/{gate}/approve", {}).status == 200
    world.server.until(run, "failed")
    assert not (world.other / "found").exists()
    again = world.ask("editor", "POST", f"{RUNS}/{run}/resume", {})
    assert (again.status, again.code) == (403, REFUSED)


# -- the list --------------------------------------------------------------------------------------


@pytest.mark.item("bnd-w2")
def test_admins_approve_folders(world: World) -> None:
    """Over HTTP; editors see the list and do not change it."""
    body = {"path": str(world.other)}
    assert world.ask("editor", "POST", ROOTS, body).status == 403
    assert world.ask("admin", "POST", ROOTS, body).json["path"] == str(world.other)
    assert world.ask("admin", "POST", ROOTS, body).status == 409
    listed = world.ask("editor", "GET", ROOTS).json["workspaces"]
    assert [(one["path"], one["source"]) for one in listed] == [
        (str(world.other), "admin"),
        (str(world.root), "server"),
    ]
    assert outcome(world.start("editor", world.other / "inside")) == "allowed"
    gone = f"{ROOTS}?path={world.other}"
    assert world.ask("editor", "DELETE", gone).status == 403
    assert world.ask("admin", "DELETE", gone).status == 204
    assert outcome(world.start("editor", world.other)) == REFUSED
    assert world.ask("admin", "DELETE", f"{ROOTS}?path={world.root}").status == 409
    assert world.ask("admin", "POST", ROOTS, {"path": "relative"}).status == 400
    assert world.ask("admin", "POST", ROOTS, {"path": str(world.other / "none")}).status == 404
    actions = [one["action"] for one in world.server("GET", "/api/v1/audit?limit=50").json["rows"]]
    assert {"workspace.added", "workspace.removed"} <= set(actions)


@pytest.mark.item("bnd-w2")
def test_an_approved_folder_that_becomes_a_link_approves_nothing_else(world: World) -> None:
    """Links are resolved when a folder is approved."""
    nested = world.root / "nested"
    nested.mkdir()
    assert world.ask("admin", "POST", ROOTS, {"path": str(nested)}).status == 201
    nested.rename(world.root / "was-nested")
    nested.symlink_to(world.other)
    assert outcome(world.start("editor", nested)) == REFUSED
    assert outcome(world.start("editor", world.other)) == REFUSED


@pytest.mark.item("bnd-w2")
def test_folders_that_no_server_implies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home directory, what is above it, the root folder and the data directory."""
    person, data = tmp_path / "users" / "me", tmp_path / "data"
    (person / "project").mkdir(parents=True)
    (tmp_path / "link").symlink_to(person)
    monkeypatch.setenv("HOME", str(person))
    settings = Settings(home=data)
    with closing(open_log(settings)) as log:
        access = Access(log, SystemClock())

        def roots(served_in: Path, *named: Path) -> list[str]:
            made = WorkspaceRoots(access, data, named=named, served=served_in)
            assert bool(made.problem) is not bool(made.all())
            return [one.path for one in made.all()]

        implied = (person, tmp_path / "link", person.parent, Path("/"), data, data / "worktrees")
        for folder in implied:
            assert roots(folder) == [], folder
        assert roots(person / "project") == [str(person / "project")]
        assert roots(Path("/"), person) == [str(person)]


# -- programs of the list --------------------------------------------------------------------------


def listed(world: World, spec: str, name: str = "helper", **more: Any) -> None:
    reply = world.ask("admin", "POST", AGENTS, {"name": name, "spec": spec, **more})
    assert reply.status == 201, reply.body


def with_helper(world: World, role: str = "editor") -> Reply:
    text = json.dumps({"name": "w", "goal": "g", "agents": {"a": {}}, "agent": "a"})
    return world.start(role, world.root, text, agent="helper")


def replaced(file: Path) -> None:
    program(file, "echo replaced")


def by_rename(file: Path) -> None:
    program(file.with_name("new"), "echo replaced")
    file.with_name("new").rename(file)


def by_link(file: Path) -> None:
    """The same bytes at another place, which somebody else can change later."""
    file.rename(file.with_name("was"))
    file.symlink_to(file.with_name("was"))


def by_same_size_and_time(file: Path) -> None:
    found = file.stat()
    text = file.read_text()
    file.write_text(text.replace("approved", "attacker"))
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert file.stat().st_size == found.st_size


def removed(file: Path) -> None:
    file.unlink()


REPLACEMENTS = (replaced, by_rename, by_link, by_same_size_and_time, removed)


@pytest.mark.item("bnd-w3")
@pytest.mark.parametrize("how", REPLACEMENTS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("kind", ["program", "script of an interpreter", "file of an option"])
def test_a_program_that_changed_is_not_started(
    world: World, kind: str, how: Callable[[Path], None]
) -> None:
    """Nobody starts it until an admin approves it as it is."""
    file = world.root / "helper.sh"
    program(file, "cat > /dev/null; echo approved")
    spec = {
        "program": f"command:{file}",
        "script of an interpreter": f"command:sh {file}",
        "file of an option": f"command:grep --file={file} -c .",
    }[kind]
    listed(world, spec)
    first = with_helper(world)
    assert first.status == 201, first.body
    if kind != "file of an option":
        assert world.server.until(first.json["run"], "completed")["output"].strip() == "approved"
    how(file)
    for role in ("editor", "admin"):
        reply = with_helper(world, role)
        assert (reply.status, reply.code) == (403, "agent-changed")
        assert "has changed since it was approved" in reply.json["detail"]
        assert "loopwright agent change helper --approve" in reply.json["detail"]
        assert world.denied().startswith("agent-changed")
    shown = world.ask("admin", "GET", AGENTS).json["agents"]
    assert next(one["problem"] for one in shown if one["name"] == "helper")
    seen = world.ask("editor", "GET", AGENTS).json["agents"]
    assert next(one["problem"] for one in seen if one["name"] == "helper") is None
    if how is not removed:
        approval = world.ask("admin", "PATCH", f"{AGENTS}/helper", {"approve": True})
        assert approval.status == 200, approval.body
        assert with_helper(world).status == 201


@pytest.mark.item("bnd-w3")
def test_a_program_that_changes_during_a_run_is_not_started_again(world: World) -> None:
    """It is checked before every call, not only when a run starts."""
    file = world.root / "helper.sh"
    program(file, "cat > /dev/null; echo one")
    listed(world, f"command:{file}")
    text = {"name": "w", "goal": "g", "agents": {"a": {}}, "agent": "a"}
    text["repeat"] = {"max": 3, "until": {"person": True}}
    reply = world.start("editor", world.root, json.dumps(text), agent="helper")
    assert reply.status == 201, reply.body
    run = str(reply.json["run"])
    gate = world.server.until(run, "waiting")["gates"][0]["id"]
    program(file, f"cat > /dev/null; touch {world.root}/attacked; echo two")
    assert world.server("POST", f"/api/v1/gates/{gate}/continue", {"text": "More."}).status == 200
    ended = world.server.until(run, "failed")
    assert "has changed since it was approved" in json.dumps(ended)
    assert not (world.root / "attacked").exists()
    assert world.denied().startswith("agent-changed")
    rows = world.server("GET", "/api/v1/audit?limit=1").json["rows"]
    assert (rows[0]["who"], rows[0]["subject"]) == ("agent:helper", run)


@confined
@pytest.mark.item("bnd-w3")
@pytest.mark.parametrize("attack", ["write", "rename", "remove", "move the folder"])
def test_an_agent_cannot_replace_a_listed_program(world: World, attack: str) -> None:
    """The files of listed programs are read-only in every sandbox, also in the workspace."""
    folder = world.root / "project" / "bin"
    folder.mkdir()
    file = folder / "helper.sh"
    program(file, "cat > /dev/null; echo approved")
    listed(world, f"command:{file}")
    said = {
        "write": f"echo x > {file}",
        "rename": f"echo x > {folder}/new; mv -f {folder}/new {file}",
        "remove": f"rm -f {file}",
        "move the folder": f"mv {folder} {folder}-2",
    }[attack]
    text = json.dumps({"name": "w", "steps": [{"id": "s", "script": f"{said}; true"}]})
    for role in ("editor", "admin"):
        reply = world.start(role, world.root / "project", text)
        world.server.until(reply.json["run"], "completed", "failed")
    assert "echo approved" in file.read_text()
    assert outcome(with_helper(world)) == "allowed"


@pytest.mark.item("bnd-w3")
@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ("command:./helper.sh", "relative-agent"),
        ("command:python3 helper.py", "relative-agent"),
        ("command:bash -x tools/helper.sh", "relative-agent"),
        ("command:env ./helper.sh", "relative-agent"),
        ("command:env -i LANG=C tools/helper.sh", "relative-agent"),
        ("command:env -S 'nice ./helper.sh'", "relative-agent"),
        ("command:timeout -k 5 60 ./helper.sh", "relative-agent"),
        ("command:/usr/bin/nice -n 5 nohup setsid python3 helper.py", "relative-agent"),
        ("command:stdbuf -oL bash -o pipefail helper.sh", "relative-agent"),
        ("command:ionice -c 3 ./helper.sh", "relative-agent"),
        ("command:cat --config=./helper.conf", "relative-agent"),
        ("command:timeout 60 python3 -W error helper.py", "relative-agent"),
        ("command:python3 -m tool", "indirect-agent"),
        ("command:python3 -Im tool", "indirect-agent"),
        ("command:python3 -c 'import tool'", "indirect-agent"),
        ("command:sh -c 'exec /opt/agent/run.sh'", "indirect-agent"),
        ("command:env bash -ec 'exec ./helper.sh'", "indirect-agent"),
        ("command:node --require=tool /opt/x.js", "indirect-agent"),
        ("command:perl -we 'do q(x)'", "indirect-agent"),
        ("command:env PYTHONPATH=. python3 /opt/x.py", "indirect-agent"),
        ("command:env -C tools cat", "indirect-agent"),
        ("command:timeout 60", "indirect-agent"),
        ("command:npx helper", "indirect-agent"),
        ("command:timeout 60 no-such-program-anywhere", "no-program"),
        ("command:python3 /srv/no-such-script.py", "no-program"),
        ("command:no-such-program-anywhere", "no-program"),
        ("command:/srv/no-such-program", "no-program"),
    ],
)
def test_a_program_that_cannot_be_recorded_is_not_listed(
    world: World, spec: str, code: str
) -> None:
    """A program that is looked up in the workspace is chosen by whoever writes there."""
    reply = world.ask("admin", "POST", AGENTS, {"name": "helper", "spec": spec})
    assert (reply.status >= 400, reply.code) == (True, code)


@pytest.mark.item("bnd-w3")
@pytest.mark.parametrize(
    ("first_line", "code"),
    [
        ("#!/usr/bin/env -S timeout 60 ./helper.sh", "indirect-agent"),
        ("#!/usr/bin/python3 -m tool", "indirect-agent"),
        ("#!./interpreter", "indirect-agent"),
        ("#!/usr/bin/env -S sh -e", "allowed"),
    ],
)
def test_first_line_that_leads_to_the_workspace_is_not_listed(
    world: World, first_line: str, code: str
) -> None:
    """The first line of a program is followed like a command line."""
    file = world.other / "run"
    file.write_text(f"{first_line}\n")
    file.chmod(0o755)
    reply = world.ask("admin", "POST", AGENTS, {"name": "helper", "spec": f"command:{file}"})
    assert outcome(reply) == code


@pytest.mark.item("bnd-w3")
@pytest.mark.parametrize("way", ["wrapped", "second interpreter", "script of a wrapper"])
def test_every_file_of_a_listed_program_is_compared(world: World, way: str) -> None:
    """Behind wrappers, and of a script whose interpreter is a script."""
    first = Path(program(world.other / "first", 'exec /bin/sh "$@"'))
    second = world.other / "second"
    second.write_text(f"#!{first}\n")
    third = world.other / "third"
    third.write_text(f"#!{second}\n")
    for file in (second, third):
        file.chmod(0o755)
    spec = {
        "wrapped": f"command:env LANG=C timeout 60 {first}",
        "second interpreter": f"command:{third}",
        "script of a wrapper": f"command:nice sh {first}",
    }[way]
    listed(world, spec)
    assert outcome(with_helper(world)) == "allowed"
    replaced(first)
    reply = with_helper(world)
    assert (reply.status, reply.code) == (403, "agent-changed")


@pytest.mark.item("bnd-w3")
def test_the_advice_of_a_refusal_can_be_followed(world: World) -> None:
    """An entry has a whole path; the command that is advised says so."""
    text = json.dumps({"name": "w", "goal": "g", "agents": {"a": {}}, "agent": "a"})
    for spec, advised in (
        ("command:./x --fast", "'command:/PATH/TO/x --fast'"),
        ("command:python3 tools/x.py", "'command:python3 /PATH/TO/tools/x.py'"),
        ("command:/opt/x", "command:/opt/x"),
        ("command:python3 -m x", "command:/PATH/TO/PROGRAM"),
    ):
        reply = world.start("editor", world.root, text, agent=spec)
        assert reply.code == "agent-not-listed"
        assert f"`loopwright agent add NAME {advised}`" in reply.json["detail"]


# -- runs of others --------------------------------------------------------------------------------


def failed_with(world: World, spec: str) -> str:
    text = json.dumps({"name": "w", "goal": "g", "agents": {"a": {}}, "agent": "a"})
    run = str(world.start("admin", world.root, text, agent=spec).json["run"])
    world.server.until(run, "failed")
    return run


def resumed_over_socket(world: World, run: str) -> str:
    answers: list[Any] = []

    async def go() -> None:
        async with tab(world.server, world.tokens["editor"]) as one:
            answers.append(await one.say("run:resume", {"run": run}))

    talk(go())
    return "allowed" if answers[0]["ok"] else str(answers[0]["code"])


@pytest.mark.item("bnd-w4")
def test_an_editor_does_not_resume_a_run_with_an_unlisted_agent(world: World) -> None:
    """Whoever resumes a run is held to what would be needed to start it; another agent that is
    listed may take the place of an unlisted one.
    """
    fails = program(world.root / "fails.sh", "exit 3")
    run = failed_with(world, f"command:{fails}")
    reply = world.ask("editor", "POST", f"{RUNS}/{run}/resume", {})
    assert (reply.status, reply.code) == (403, "agent-not-listed")
    assert world.denied().startswith("agent-not-listed")
    assert resumed_over_socket(world, run) == "agent-not-listed"
    assert world.server("GET", f"{RUNS}/{run}").json["status"] == "failed"
    listed(world, "command:true")
    with_listed = world.ask("editor", "POST", f"{RUNS}/{run}/resume", {"agent": "helper"})
    assert with_listed.status == 200, with_listed.body


@pytest.mark.item("bnd-w4")
def test_an_editor_does_not_let_a_paused_run_with_an_unlisted_agent_continue(world: World) -> None:
    """A run that was paused is held to the same as one that has ended."""
    says = program(world.root / "says.sh", "cat > /dev/null; echo x")
    text = world.server.definition(f"command:{says}", until={"person": True})
    run = str(world.start("admin", world.root, text).json["run"])
    world.server.until(run, "waiting")
    assert world.ask("editor", "POST", f"{RUNS}/{run}/pause", {}).status == 200
    reply = world.ask("editor", "POST", f"{RUNS}/{run}/resume", {})
    assert (reply.status, reply.code) == (403, "agent-not-listed")
    assert world.ask("admin", "POST", f"{RUNS}/{run}/resume", {}).status == 200
