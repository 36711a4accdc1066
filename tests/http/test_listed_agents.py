"""Editors start runs with agents from the list, by every way in which a run begins or changes."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.http import test_hooks as hooks
from tests.http.served import Reply, Served, served, wait_for
from tests.http.talking import tab, talk

RUNS, DEFINITIONS, AGENTS = "/api/v1/runs", "/api/v1/definitions", "/api/v1/agents"
LOOPS, ASSISTANTS = "/api/v1/loops", "/api/agents"
ROLES = ("viewer", "editor", "admin")
ALLOWED, NO_ROLE, NOT_LISTED = "allowed", "role", "agent-not-listed"


@dataclass
class World:
    """A server with a list of agents, and a token for each role."""

    server: Served
    specs: dict[str, str]  # with the role that uses it, where it is a program that is not listed
    folder: Path
    tokens: dict[str, str] = field(default_factory=dict)
    made: int = 0

    def ask(self, role: str, method: str, path: str, body: object = None) -> Reply:
        return self.server(method, path, body, token=self.tokens[role])

    def name(self) -> str:
        self.made += 1
        return f"d{self.made}"

    def spec(self, kind: str, role: str) -> str:
        return self.specs[kind].format(role=role)

    def check_not_started(self) -> None:
        """No program that is not listed has run for anybody but an admin."""
        assert {file.name for file in self.folder.glob("started-*")} <= {"started-admin"}

    def runs(self) -> int:
        return len(self.server.call(self.server.context.here.log.rows))


def program(file: Path, text: str) -> str:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server whose admin has approved one program."""
    folder = tmp_path_factory.mktemp("listed")
    (folder / "bin").mkdir()
    (folder / "work").mkdir()
    listed = program(folder / "bin" / "listed", "cat > /dev/null; echo done")
    other = program(folder / "bin" / "other", f'echo x > "{folder}/started-$1"')
    program(folder / "bin" / "claude", "exit 3")
    specs = {
        "listed": f"command:{listed}",
        "listed by name": "approved",
        "command": f"command:{other} {{role}}",
        "jsonl": f"jsonl:{other} {{role}}",
        "acp": f"acp:{other} {{role}}",
        "other arguments": f"command:{listed} --more",
        "cli with arguments": "claude:--mcp-config x.json",
        "cli": "claude",
        "model": "model:openai/gpt-5",
        "script elsewhere": f"script:{folder / 'outside.yaml'}",
    }
    (folder / "outside.yaml").write_text('{"replies": [{"text": "x"}]}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        patch.setenv("LOOPWRIGHT_MODEL_BASE_URL", "http://127.0.0.1:9/v1")
        with served(folder / "work") as server:
            added = server("POST", AGENTS, {"name": "approved", "spec": specs["listed"]})
            assert added.status == 201, added.body
            made = World(server, specs, folder)
            made.tokens = {role: server.made(role) for role in ROLES}
            yield made


def outcome(reply: Reply) -> str:
    """Allowed, or the code of the refusal in whichever form a family has."""
    if reply.status < 400:
        return ALLOWED
    said = reply.json
    if "type" in said:
        return reply.code
    code = str(said["details"]["reason"] if "details" in said else said["code"])
    return NO_ROLE if code == "POLICY_ERROR" else code


# -- ways to start or change a run -----------------------------------------------------------------


def in_text(world: World, role: str, spec: str) -> Reply:
    return world.ask(role, "POST", RUNS, {"definition": world.server.definition(spec, max=1)})


def as_agent(world: World, role: str, spec: str) -> Reply:
    text = world.server.definition("script:replies.yaml", max=1)
    return world.ask(role, "POST", RUNS, {"definition": text, "agent": spec})


def by_name(world: World, role: str, spec: str) -> Reply:
    text = json.dumps({"name": "w", "goal": "g", "agents": {"a": {}}, "agent": "a"})
    return world.ask(role, "POST", RUNS, {"definition": text, "agents": {"a": spec}})


def as_judge(world: World, role: str, spec: str) -> Reply:
    text = {
        "name": "w",
        "goal": "g",
        "agents": {"a": {"use": world.server.script("x")}, "j": {"use": spec}},
        "agent": "a",
        "repeat": {"max": 1, "until": {"judge": {"agent": "j", "prompt": "Is it done?"}}},
    }
    return world.ask(role, "POST", RUNS, {"definition": json.dumps(text)})


def stored(world: World, role: str, spec: str) -> Reply:
    text = world.server.definition(spec, max=1)
    return world.ask(role, "PUT", f"{DEFINITIONS}/{world.name()}", {"text": text})


def of_an_admin(world: World, role: str, spec: str) -> Reply:
    """A definition that an admin has stored, started by somebody."""
    name, text = world.name(), world.server.definition(spec, max=1)
    assert world.server("PUT", f"{DEFINITIONS}/{name}", {"text": text}).status == 201
    return world.ask(role, "POST", RUNS, {"stored": name})


def imported(world: World, role: str, spec: str) -> Reply:
    """A definition that somebody brings, that an admin has approved, and that they start then."""
    name, text = world.name(), world.server.definition(spec, max=1)
    reply = world.ask(role, "POST", f"{DEFINITIONS}/import", {"name": name, "text": text})
    if reply.status >= 400:
        return reply
    approval = {"digest": reply.json["digest"]}
    assert world.server("POST", f"{DEFINITIONS}/{name}/approve", approval).status == 200
    return world.ask(role, "POST", RUNS, {"stored": name})


def loop(world: World, role: str, spec: str) -> Reply:
    return world.ask(role, "POST", LOOPS, {"definition": "harness", "goal": "g", "agent": spec})


def assistant(world: World, role: str, spec: str) -> Reply:
    body = {"name": "a", "loopEnabled": True, "agent": spec}
    return world.ask(role, "POST", ASSISTANTS, body)


def changed_assistant(world: World, role: str, spec: str) -> Reply:
    made = world.server("POST", ASSISTANTS, {"name": "a"}).json["data"]["id"]
    return world.ask(role, "PATCH", f"{ASSISTANTS}/{made}", {"agent": spec})


def assistant_of_an_admin(world: World, role: str, spec: str) -> Reply:
    body = {"name": "a", "loopEnabled": True, "agent": spec}
    made = world.server("POST", ASSISTANTS, body).json["data"]["id"]
    return world.ask(role, "POST", f"{ASSISTANTS}/{made}/loop/start", {"message": "go"})


def resumed(world: World, role: str, spec: str) -> Reply:
    return world.ask(role, "POST", f"{RUNS}/{failed(world)}/resume", {"agent": spec})


def forked(world: World, role: str, spec: str) -> Reply:
    run = world.server.start(world.server.definition(world.server.script("one", "two"), max=2))
    world.server.until(run, "completed")
    return world.ask(role, "POST", f"{RUNS}/{run}/fork", {"at": "1", "agent": spec})


def retried(world: World, role: str, spec: str) -> Reply:
    agent = world.server.script({"fail": "no"}, name="fails.yaml")
    body = {"definition": "harness", "goal": "g", "agent": agent}
    run = str(world.server("POST", LOOPS, body).json["loop"]["id"])
    world.server.until(run, "failed")
    return world.ask(role, "POST", f"{LOOPS}/{run}/iterations/{run}.1/retry", {"agent": spec})


def failed(world: World) -> str:
    fails = world.server.script({"fail": "no"}, name="fails.yaml")
    run = world.server.start(world.server.definition(fails, max=1))
    world.server.until(run, "failed")
    return run


def over_socket(world: World, role: str, event: str, body: dict[str, Any]) -> str:
    answers: list[Any] = []

    async def go() -> None:
        async with tab(world.server, world.tokens[role]) as one:
            answers.append(await one.say(event, body))

    talk(go())
    return ALLOWED if answers[0]["ok"] else str(answers[0]["code"])


def started_by_socket(world: World, role: str, spec: str) -> str:
    body = {"name": "a", "loopEnabled": True, "agent": spec}
    made = world.server("POST", ASSISTANTS, body).json["data"]["id"]
    return over_socket(world, role, "loop:start", {"agentId": made, "message": "go"})


def resumed_by_socket(world: World, role: str, spec: str) -> str:
    return over_socket(world, role, "run:resume", {"run": failed(world), "agent": spec})


WAYS: dict[str, Callable[[World, str, str], Reply | str]] = {
    "text of a request": in_text,
    "agent of a request": as_agent,
    "agents of a request": by_name,
    "judge": as_judge,
    "stored definition": stored,
    "stored definition of an admin": of_an_admin,
    "imported definition": imported,
    "loop": loop,
    "assistant": assistant,
    "changed assistant": changed_assistant,
    "assistant of an admin": assistant_of_an_admin,
    "resume": resumed,
    "fork": forked,
    "retry": retried,
    "socket start": started_by_socket,
    "socket resume": resumed_by_socket,
}
LISTED = ("listed", "listed by name", "cli", "model")
OUTSIDE_IS_KNOWN_LATER = ("stored definition", "assistant", "changed assistant")
"""Where a file is checked when a run starts, since its workspace is known only then."""


def expected(way: str, role: str, kind: str) -> str:
    if role == "viewer":
        return NO_ROLE
    if role == "admin" or kind in LISTED:
        return ALLOWED
    if kind == "script elsewhere" and way in OUTSIDE_IS_KNOWN_LATER:
        return ALLOWED
    return NOT_LISTED


KINDS = (
    *("listed", "listed by name", "command", "jsonl", "acp", "other arguments"),
    *("cli with arguments", "cli", "model", "script elsewhere"),
)
TEXTUAL = ("text of a request", "judge", "stored definition", "imported definition")
NOT_IN_TEXTS = ("listed by name", "cli with arguments")
"""What no definition may say: the syntax refuses it before anybody looks at the list."""


def kinds_of(way: str) -> list[str]:
    return [one for one in KINDS if not (one in NOT_IN_TEXTS and way.startswith(TEXTUAL))]


def is_quick(way: str, role: str, kind: str) -> bool:
    """Whether a cell is part of each test run. An editor is asked all of it. For the others, each
    way and each kind is part of some cells; all combinations take minutes.
    """
    kinds, turn = kinds_of(way), [*WAYS].index(way)
    return role == "editor" or kind in (kinds[turn % len(kinds)], kinds[(turn + 4) % len(kinds)])


CELLS = [
    pytest.param(
        *(way, role, kind),
        id=f"{way}-{role}-{kind}",
        marks=[] if is_quick(way, role, kind) else [pytest.mark.deep],
    )
    for way in WAYS
    for role in ROLES
    for kind in kinds_of(way)
]


@pytest.mark.item("bnd-e1")
@pytest.mark.parametrize(("way", "role", "kind"), CELLS)
def test_who_may_start_what(world: World, way: str, role: str, kind: str) -> None:
    """Every way to start or change a run, for every role and kind of agent: what is refused starts
    no program, makes no run and is in the audit log.
    """
    found = WAYS[way](world, role, world.spec(kind, role))
    said = found if isinstance(found, str) else outcome(found)
    assert said == expected(way, role, kind), found if isinstance(found, str) else found.body
    if said != ALLOWED:
        rows = world.server("GET", "/api/v1/audit?limit=1").json["rows"]
        assert (rows[0]["action"], rows[0]["who"]) == ("denied", f"first-start/a {role}")
        assert said == NO_ROLE or rows[0]["detail"].startswith(NOT_LISTED)
        world.check_not_started()
    if said == NOT_LISTED and isinstance(found, Reply):
        assert "loopwright agent add" in found.body.decode()


@pytest.mark.item("bnd-e1")
@pytest.mark.parametrize("kind", ["command", "jsonl", "acp"])
def test_refused_start_makes_no_run(world: World, kind: str) -> None:
    """Nothing of a refused run is stored, and its program has not been looked at."""
    before = world.runs()
    for way in (in_text, as_agent, by_name, as_judge, loop):
        assert outcome(way(world, "editor", world.spec(kind, "editor"))) == NOT_LISTED
    assert world.runs() == before
    world.check_not_started()


# -- who wrote a definition counts as well as who starts it ----------------------------------------


def written_by_an_editor(world: World, spec: str) -> str:
    """A definition that an editor stored when its agent was on the list, and that is not now."""
    name, entry = world.name(), {"name": "for-a-while", "spec": spec}
    assert world.server("POST", AGENTS, entry).status == 201
    text = world.server.definition(spec, max=1)
    reply = world.ask("editor", "PUT", f"{DEFINITIONS}/{name}", {"text": text})
    assert reply.status == 201, reply.body
    assert world.server("DELETE", f"{AGENTS}/for-a-while").status == 204
    return name


@pytest.mark.item("bnd-e2")
def test_an_admin_does_not_approve_what_an_editor_stored(world: World) -> None:
    """An admin who starts the definition of an editor starts no program that is not listed."""
    name = written_by_an_editor(world, world.spec("command", "admin"))
    reply = world.server("POST", RUNS, {"stored": name})
    assert (reply.status, reply.code) == (403, NOT_LISTED)
    stored_one = world.server("GET", f"{DEFINITIONS}/{name}").json
    approval = {"digest": stored_one["digest"]}
    assert world.server("POST", f"{DEFINITIONS}/{name}/approve", approval).status == 200
    run = world.server("POST", RUNS, {"stored": name})
    assert run.status == 201, run.body
    world.server.until(run.json["run"], "completed", "failed")
    again = world.ask("editor", "POST", RUNS, {"stored": name})
    assert (again.status, again.code) == (403, NOT_LISTED)


@pytest.mark.item("bnd-e2")
def test_a_webhook_starts_no_program_of_an_editor(world: World) -> None:
    """A message starts a definition with the rights of who wrote the definition."""
    name = written_by_an_editor(world, world.spec("command", "editor"))
    made = world.server("POST", hooks.BASE, {"name": name, "stored": name}).json
    before = world.runs()
    taken = hooks.post(world.server, hooks.headers(made["secret"]), name=name)
    assert taken.status == 202

    def problem() -> str:
        listed = world.server("GET", hooks.BASE).json["hooks"]
        return next(str(one["problem"] or "") for one in listed if one["name"] == name)

    wait_for(problem)
    assert "is not on the list" in problem()
    assert world.runs() == before
    world.check_not_started()


@pytest.mark.item("bnd-e2")
def test_an_editor_takes_the_trust_from_an_assistant(world: World) -> None:
    """An assistant that an editor has changed counts as written by an editor."""
    body = {"name": "a", "loopEnabled": True, "agent": world.specs["listed"]}
    made = world.server("POST", ASSISTANTS, body).json["data"]["id"]
    assert world.ask("editor", "PATCH", f"{ASSISTANTS}/{made}", {"name": "b"}).status == 200
    assert world.server("PATCH", f"{AGENTS}/approved", {"enabled": False}).status == 200
    try:
        start = f"{ASSISTANTS}/{made}/loop/start"
        assert outcome(world.server("POST", start, {"message": "go"})) == NOT_LISTED
    finally:
        assert world.server("PATCH", f"{AGENTS}/approved", {"enabled": True}).status == 200


# -- other programs and values that a text may ask for ---------------------------------------------


def with_agent(**agent: Any) -> str:
    return json.dumps({"name": "w", "goal": "g", "agents": {"a": agent}, "agent": "a"})


MODEL = "model:openai/gpt-5"
SERVER = {"server": "x", "command": ["/bin/echo"]}
TEXTS = {
    "MCP program": (with_agent(use=MODEL, tools=["x.t"], options={"mcp": [SERVER]}), NOT_LISTED),
    "MCP address": (
        with_agent(use=MODEL, options={"mcp": [{"server": "x", "url": "http://127.0.0.1:9"}]}),
        NOT_LISTED,
    ),
    "MCP of the settings": (
        with_agent(use=MODEL, options={"mcp": [{"server": "known"}]}),
        ALLOWED,
    ),
    "variable of the server": (
        with_agent(use="claude", pass_env=["SERVER_KEY"]),
        "variable-not-listed",
    ),
    "variable for a chat model": (
        with_agent(use=MODEL, pass_env=["SERVER_KEY"]),
        "variable-not-listed",
    ),
    "variable for everything": (
        json.dumps({"name": "w", "goal": "g", "agent": "claude", "pass_env": ["SERVER_KEY"]}),
        "variable-not-listed",
    ),
    "key of its own provider": (
        with_agent(use="claude", pass_env=["ANTHROPIC_API_KEY"]),
        ALLOWED,
    ),
    "key of another provider": (
        with_agent(use="claude", pass_env=["OPENAI_API_KEY"]),
        "variable-not-listed",
    ),
}


@pytest.mark.item("bnd-e3")
@pytest.mark.parametrize("case", TEXTS)
def test_what_a_text_may_ask_for(world: World, case: str) -> None:
    """A text of an editor describes no MCP server and asks for no variable of the server, unless
    the agent is listed with it; an admin may do both.
    """
    text, said = TEXTS[case]
    assert outcome(world.ask("editor", "POST", RUNS, {"definition": text})) == said
    name = world.name()
    kept = world.ask("editor", "PUT", f"{DEFINITIONS}/{name}", {"text": text})
    assert outcome(kept) == said
    assert outcome(world.ask("admin", "POST", RUNS, {"definition": text})) == ALLOWED


@pytest.mark.item("bnd-e3")
def test_a_listed_variable_is_given(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An admin names the variables that an agent of the list may be given."""
    monkeypatch.setenv("SERVER_KEY", "the-key")
    shows = program(
        world.server.folder / "shows", 'cat > /dev/null; echo "key: ${SERVER_KEY:+yes}"'
    )
    entry = {"name": "shows", "spec": f"command:{shows}", "pass_env": ["SERVER_KEY"]}
    assert world.server("POST", AGENTS, entry).status == 201

    def output(**agent: Any) -> str:
        body = {"definition": with_agent(**agent), "agent": "shows"}
        reply = world.ask("editor", "POST", RUNS, body)
        assert reply.status == 201, reply.body
        return str(world.server.until(reply.json["run"], "completed")["output"]).strip()

    assert output() == "key:"
    assert output(pass_env=["SERVER_KEY"]) == "key: yes"


@pytest.mark.item("bnd-e3")
@pytest.mark.parametrize("place", [".", "results", "loopwright.db"])
def test_no_run_works_in_the_data_directory(world: World, place: str) -> None:
    """Nobody names the data directory, or a folder in it, as a workspace."""
    home = world.server.context.settings.home
    folder = home / place
    if place == "results":
        folder.mkdir(exist_ok=True)
    text = world.server.definition(world.specs["listed"], max=1)
    for role in ("editor", "admin"):
        body = {"definition": text, "workspace": str(folder)}
        reply = world.ask(role, "POST", RUNS, body)
        assert reply.status in (400, 403), reply.body
        assert place == "loopwright.db" or reply.code == "private-workspace"


@pytest.mark.parametrize("way", [in_text, as_agent, by_name])
def test_a_refused_script_does_not_say_which_files_exist(
    world: World, way: Callable[[World, str, str], Reply]
) -> None:
    """The answers for a file that exists outside of the workspace and for one that does not."""
    answers = []
    for name in ("outside.yaml", "missing.yaml"):
        reply = way(world, "editor", f"script:{world.folder / name}")
        answers.append((reply.status, str(reply.body).replace(name, "NAME")))
        assert outcome(reply) == NOT_LISTED
    assert answers[0][0] == answers[1][0] == 403
    missing = way(world, "editor", "script:missing-in-workspace.yaml")
    assert missing.status in (400, 403)
