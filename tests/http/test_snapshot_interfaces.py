"""Every interface that starts runs takes snapshots and enforces protected files the same way."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwright.kernel.event_parts import Snapshot
from loopwright.kernel.events import EffectDone
from loopwright.model.actions import RunCommand, Step
from loopwright.model.plan import Plan
from loopwright.model.policy import WorkspacePolicy
from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.run_request import RunStart
from loopwright.operations.use_cases.role_loops import RoleLoops
from tests.cli.conftest import Place, lw
from tests.http.served import SECONDS, Reply, Served, served
from tests.http.talking import tab, talk
from tests.http.test_hooks import headers

__all__ = ["lw"]
RUNS = "/api/v1/runs"
ENDED = ("completed", "failed", "exhausted", "cancelled")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """A server that takes snapshots; its agent edits a test in the folder of the server."""
    agent = tmp_path / "agent.sh"
    agent.write_text("#!/bin/sh\ncat >/dev/null\necho easier > tests/a.txt\necho APPROVED\n")
    agent.chmod(0o755)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.txt").write_text("hard\n")
    with served(tmp_path, more={"snapshots": "on", "agent": f"command:{agent}"}) as one:
        yield one


def definition(folder: Path, **workspace: Any) -> str:
    """A loop of one iteration whose check passes, with a protected folder."""
    loop = {"max": 1, "until": {"command": ["true"]}}
    return json.dumps(
        {
            "name": "work",
            "agent": f"command:{folder / 'agent.sh'}",
            "goal": "Do it.",
            "repeat": loop,
            "protect": ["tests/**"],
            **({"workspace": workspace} if workspace else {}),
        }
    )


def keep(server: Served, **workspace: Any) -> None:
    body = {"text": definition(server.folder, **workspace)}
    reply = server("PUT", "/api/v1/definitions/work", body, headers={"If-None-Match": "*"})
    assert reply.status == 201, reply.body


def over_http(server: Served, **workspace: Any) -> Reply:
    return server("POST", RUNS, {"definition": definition(server.folder, **workspace)})


def stored(server: Served, **workspace: Any) -> Reply:
    keep(server, **workspace)
    return server("POST", RUNS, {"stored": "work"})


def webhook(server: Served, **workspace: Any) -> Reply:
    keep(server, **workspace)
    made = server("POST", "/api/v1/hooks", {"name": "issues", "stored": "work"})
    sent = headers(made.json["secret"])
    body = b'{"issue": 7, "title": "It is broken"}'
    return server("POST", "/api/v1/hooks/issues", raw=body, headers=sent, token="")


def role_loop(server: Served) -> None:
    reply = server("POST", "/api/v1/loops", {"definition": "harness", "goal": "Build it"})
    assert reply.status == 201, reply.body


def mcp(server: Served) -> None:
    context = server.context
    loops = RoleLoops(here=context.here, settings=context.settings, cwd=server.folder, by="agent")
    given = {"definition": "harness", "goal": "Build it"}
    work = LoopTools(loops=loops).answer("loop_start", given)
    said = asyncio.run_coroutine_threadsafe(work, server.loop).result(SECONDS)
    assert not said.error, said.text


def assistant(server: Served) -> str:
    body = {"name": "a", "loopEnabled": True, "loopCriteria": {"type": "regex", "value": "APPR"}}
    reply = server("POST", "/api/agents", body)
    assert reply.status == 201, reply.body
    return str(reply.json["data"]["id"])


def assistant_loop(server: Served) -> None:
    reply = server("POST", f"/api/agents/{assistant(server)}/loop/start", {"message": "Do it."})
    assert reply.status < 300, reply.body


def socket(server: Served) -> None:
    agent = assistant(server)

    async def go() -> None:
        async with tab(server) as one:
            answer = await one.say("loop:start", {"agentId": agent, "message": "Do it."})
            assert answer["ok"], answer

    talk(go())


def service(server: Served) -> None:
    """What every interface calls, with a plan that protects files."""
    step = Step(id="edit", action=RunCommand(argv=("sh", "agent.sh")))
    policy = WorkspacePolicy(protect=("tests/**",))
    start = RunStart(
        plan=Plan(name="edit", steps=(step,), workspace=policy), workspace=server.folder, by="me"
    )
    asyncio.run_coroutine_threadsafe(server.context.service.start(start), server.loop).result(
        SECONDS
    )


DEFINED: dict[str, Callable[..., Reply]] = {
    "http": over_http,
    "stored": stored,
    "webhook": webhook,
}
BY_NAME: dict[str, Callable[[Served], None]] = {
    "role loop": role_loop,
    "mcp": mcp,
    "assistant": assistant_loop,
    "socket": socket,
    "service": service,
}


def only_run(server: Served) -> tuple[str, list[Snapshot]]:
    """The status of the only run at its end, and its snapshots."""
    for _ in range(500):
        if found := server("GET", RUNS).json["runs"]:
            break
    [row] = found
    status = str(server.until(row["run"], *ENDED)["status"])
    events = server.call(lambda: [one.event for one in server.context.here.log.read(row["run"])])
    done = [one.snapshot for one in events if isinstance(one, EffectDone)]
    return status, [one for one in done if one is not None]


@pytest.mark.item("rec-41")
@pytest.mark.parametrize("interface", DEFINED)
def test_a_protected_file_fails_the_run(server: Served, interface: str) -> None:
    """Snapshots are taken and the changed file is named, although the check passes."""
    assert DEFINED[interface](server).status < 300
    status, snapshots = only_run(server)
    assert status != "completed"
    assert snapshots[-1].protected == ("tests/a.txt",)


@pytest.mark.parametrize("interface", ["http", "stored"])
def test_protected_files_without_snapshots_are_refused(server: Served, interface: str) -> None:
    """The code is the same everywhere, and no run exists."""
    refused = DEFINED[interface](server, snapshots=False)
    assert (refused.status, refused.code) == (400, "protect-needs-snapshots")
    assert server("GET", RUNS).json["runs"] == []


def test_a_webhook_reports_why_it_starts_nothing(server: Served) -> None:
    """A message is accepted before its run starts: the webhook keeps the reason."""
    webhook(server, snapshots=False)
    for _ in range(500):
        if problem := server("GET", "/api/v1/hooks").json["hooks"][0]["problem"]:
            break
    assert "protected files need snapshots" in json.dumps(problem)
    assert server("GET", RUNS).json["runs"] == []


@pytest.mark.parametrize("interface", BY_NAME)
def test_snapshots_are_taken_where_the_definition_says_nothing(
    server: Served, interface: str
) -> None:
    """Loops of roles, assistants and plans of programs have at least a first and a last one."""
    BY_NAME[interface](server)
    status, snapshots = only_run(server)
    assert len(snapshots) >= 2
    assert (status == "completed") == (interface != "service")
    assert snapshots[-1].total.files == 1


def repl(lw: Place) -> None:
    lw.real("repl", stdin=b"/workflow run work.yaml\n")


def child(lw: Place) -> None:
    lw.env["LOOPWRIGHT_RUN"] = "run_of_somebody_else"
    lw.real("run", "work.yaml")


def evaluation(lw: Place) -> None:
    case = {"input": "Do it.", "evaluators": [{"contains": "APPROVED"}]}
    lw.write("cases.yaml", json.dumps({"name": "c", "definition": "work.yaml", "cases": [case]}))
    lw.real("eval", "cases.yaml")


COMMANDS: dict[str, Callable[[Place], object]] = {
    "run": lambda lw: lw.real("run", "work.yaml"),
    "detach": lambda lw: lw.real("run", "work.yaml", "--detach"),
    "repl": repl,
    "eval": evaluation,
    "child": child,
}


@pytest.mark.item("rec-41")
@pytest.mark.parametrize("on", ["on", "off"])
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_enforce_protected_files(lw: Place, command: str, on: str) -> None:
    """Also where snapshots are off by default; a definition that switches them off is refused."""
    lw.env["LOOPWRIGHT_SNAPSHOTS"] = on
    (lw.folder / "tests").mkdir()
    lw.write("tests/a.txt", "hard\n")
    text = "#!/bin/sh\ncat >/dev/null\necho easier > tests/a.txt\necho APPROVED\n"
    lw.write("agent.sh", text).chmod(0o755)
    switch = {"snapshots": False} if on == "off" and command != "detach" else {}
    lw.write("work.yaml", definition(lw.folder, **switch))
    COMMANDS[command](lw)
    found = lw("ls", "--json").json["runs"]
    if switch:
        assert found == []
        return
    [run] = found
    ended = lw.real("watch", run["run"], "--json")
    assert ended.code == 4, ended
    snapshots = [one["snapshot"] for one in lw.events(run["run"]) if "snapshot" in one]
    assert snapshots[-1]["protected"] == ["tests/a.txt"]
