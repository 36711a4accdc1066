"""A program that is not installed is refused before the run is created, at every interface."""

import json
from pathlib import Path
from typing import Any

import pytest

from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.problems import without_flags
from loopwright.operations.use_cases.role_loops import RoleLoops
from tests.cli.conftest import lw
from tests.http.served import Served, wait_for
from tests.http.talking import tab, talk
from tests.http.test_equal_refusals import code_of
from tests.http.test_hooks import headers, post
from tests.http.test_remote_commands import Both, both

__all__ = ["both", "lw"]

RUNS = "/api/v1/runs"
ROLES = {
    "name": "zz",
    "description": "d",
    "roles": [{"role": "coder", "prompt": "Work."}],
    "termination_condition": {"type": "iteration_bound", "value": 2},
}


def definition(agent: str, **until: Any) -> dict[str, Any]:
    repeat = {"max": 2, **({"until": until} if until else {})}
    return {"name": "work", "agent": agent, "goal": "Do it.", "repeat": repeat}


CASES = {
    "program of an agent": (definition("command:nope-nope -q"), None),
    "jsonl program": (definition("jsonl:nope-nope"), None),
    "acp program": (definition("acp:nope-nope"), None),
    "whole path": (definition("command:/nonesuch/program"), None),
    "relative path": (definition("command:./nope.sh"), None),
    "agent of the start": (definition("command:true"), "command:nope-nope"),
    "coding CLI": (definition("claude"), None),
    "coding CLI of the start": (definition("command:true"), "codex"),
    "check": (definition("command:true", command=["nope-nope", "-q"]), None),
}


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH with one program."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "true"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def runs_of(server: Served) -> list[str]:
    return [one["run"] for one in server("GET", RUNS).json["runs"]]


@pytest.mark.item("rec-39", "rec-46")
@pytest.mark.parametrize(("work", "agent"), CASES.values(), ids=CASES.keys())
def test_missing_program_is_refused_by_a_server_as_on_the_command_line(
    both: Both, shared: Served, bare_path: None, work: dict[str, Any], agent: str | None
) -> None:
    """One code, one text and one remedy; no run is created."""
    both.lw.write("d.yaml", json.dumps(work))
    own = [] if agent is None else ["--agent", agent]
    here = both.here("run", "d.yaml", *own, "--json")
    told = here.json
    assert (here.code, told["type"].rpartition(":")[2]) == (2, "no-program"), told
    detail = told["detail"].replace("d.yaml", "(request)")
    detail = detail.replace(str(both.lw.folder), str(shared.folder))
    hint = without_flags(told.get("hint") or "")
    before = runs_of(shared)
    body = {"definition": json.dumps(work), **({} if agent is None else {"agent": agent})}
    name = f"missing-program-{len(shared('GET', '/api/v1/definitions').json['definitions'])}"
    stored = shared(
        "PUT",
        f"/api/v1/definitions/{name}",
        {"text": json.dumps(work)},
        headers={"If-None-Match": "*"},
    )
    assert stored.status == 201, stored.body
    by_name = {**body, "stored": name}
    del by_name["definition"]
    for asked, file in ((body, "(request)"), (by_name, name)):
        reply = shared("POST", RUNS, asked)
        assert (reply.status, reply.code) == (400, "no-program"), reply.body
        expected = detail.replace("(request)", file)
        assert (reply.json["detail"], reply.json.get("hint") or "") == (expected, hint)
    assert runs_of(shared) == before


@pytest.mark.item("rec-46")
def test_missing_program_of_a_loop_of_roles_is_refused_by_each_interface(
    both: Both, shared: Served, bare_path: None
) -> None:
    """`run NAME`, the API of loops and the tool `loop_start`."""
    for folder in (both.lw.folder / "workspace", shared.folder / "workspace"):
        place = folder / "loops" / "zz.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(ROLES), encoding="utf-8")
    agent = "command:nope-nope"
    told = both.here("run", "zz", "Go.", "--agent", agent, "--json").json
    assert told["type"].rpartition(":")[2] == "no-program", told
    before = runs_of(shared)
    options = {"definition": "zz", "goal": "Go."}
    over = shared("POST", "/api/v1/loops", {**options, "agent": agent})
    assert (over.status, code_of(over.json)) == (400, "no-program"), over.body
    assert over.json["error"].partition(" (")[0] == told["detail"]
    context = shared.context
    loops = RoleLoops(
        here=context.here, settings=context.settings, cwd=both.lw.folder, agents=(agent,)
    )
    tool = shared.as_admin(LoopTools(loops=loops).answer("loop_start", {**options}))
    assert (tool.error, tool.text.partition(" (")[0]) == (True, f"no-program: {told['detail']}")
    assert runs_of(shared) == before


@pytest.mark.item("rec-46")
def test_missing_program_of_an_assistant_is_refused_over_http_and_the_socket(
    shared: Served, bare_path: None
) -> None:
    """Both refuse with one text, and the socket with the code too."""
    body = {"name": "a", "loopEnabled": True, "agent": "command:nope-nope"}
    agent = shared("POST", "/api/agents", body).json["data"]["id"]
    before = runs_of(shared)
    reply = shared("POST", f"/api/agents/{agent}/loop/start", {"message": "Do it."})
    assert reply.status == 400
    assert "nope-nope is not on PATH" in reply.json["error"]

    async def go() -> None:
        async with tab(shared) as one:
            answer = await one.say("loop:start", {"agentId": agent, "message": "Do it."})
            assert (answer["ok"], answer["code"]) == (False, "no-program")
            assert answer["error"] == reply.json["error"]

    talk(go())
    assert runs_of(shared) == before


@pytest.mark.item("rec-46")
def test_missing_program_of_an_incoming_webhook_starts_nothing(
    own: Served, bare_path: None
) -> None:
    """The message is taken, and its problem is kept instead of a run that fails."""
    text = json.dumps(definition("command:nope-nope"))
    stored = own(
        "PUT", "/api/v1/definitions/triage", {"text": text}, headers={"If-None-Match": "*"}
    )
    assert stored.status == 201, stored.body
    secret = own("POST", "/api/v1/hooks", {"name": "issues", "stored": "triage"}).json["secret"]
    run = post(own, headers(secret)).json["run"]

    def problem() -> str:
        (hook,) = own("GET", "/api/v1/hooks").json["hooks"]
        return json.dumps(hook)

    wait_for(lambda: "nope-nope is not on PATH" in problem(), problem)
    assert own("GET", f"{RUNS}/{run}").status == 404
