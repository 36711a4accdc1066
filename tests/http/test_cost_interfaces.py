"""An unknown cost and a missing sign-in, at every interface of a server."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loopwright.errors import LoopwrightError
from loopwright.kernel.events import RunReopened
from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.run_lists import SharedBudget
from loopwright.operations.use_cases.role_loops import RoleLoops
from tests.cli.conftest import Place, lw
from tests.cli.test_permissions import real_looking
from tests.http import test_hooks as hooks
from tests.http.served import Served, served, wait_for
from tests.http.talking import tab, talk

__all__ = ["lw"]
RUNS = "/api/v1/runs"
ASSISTANTS = "/api/agents"
COST = "the setting usd_per_day=5 cannot be enforced"


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose runs may spend 5 USD a day."""
    folder = tmp_path_factory.mktemp("limited")
    with served(folder, more={"budget": SharedBudget(usd_per_day=5.0)}) as one:
        yield one


def refused(reply: Any) -> str:
    """The code and the words of a refusal, or nothing where the request was accepted."""
    if reply.status < 300:
        return ""
    assert reply.status == 400, reply.body
    told = reply.json  # loops and assistants have envelopes of their own
    code = told.get("details", {}).get("reason") or told.get("code") or reply.code
    return f"{code}: {reply.body.decode()}"


def start_run(server: Served, agent: str, *, allow: bool) -> str:
    text = server.definition(agent, max=1)
    return refused(server("POST", RUNS, {"definition": text, "allow_unknown_cost": allow}))


def start_loop(server: Served, agent: str, *, allow: bool) -> str:
    body = {"definition": "harness", "goal": "g", "agent": agent, "allow_unknown_cost": allow}
    return refused(server("POST", "/api/v1/loops", body))


def assistant(server: Served, agent: str) -> str:
    reply = server("POST", ASSISTANTS, {"name": "a", "loopEnabled": True, "agent": agent})
    assert reply.status == 201, reply.body
    return str(reply.json["data"]["id"])


def start_assistant(server: Served, agent: str, *, allow: bool) -> str:
    place = f"{ASSISTANTS}/{assistant(server, agent)}/loop/start"
    return refused(server("POST", place, {"message": "go", "allowUnknownCost": allow}))


def said(server: Served, event: str, body: dict[str, Any]) -> str:
    answers: list[Any] = []

    async def go() -> None:
        async with tab(server) as one:
            answers.append(await one.say(event, body))

    talk(go())
    [answer] = answers
    return "" if answer["ok"] else f"{answer['code']}: {answer['error']}"


def start_by_socket(server: Served, agent: str, *, allow: bool) -> str:
    body = {"agentId": assistant(server, agent), "message": "go", "allowUnknownCost": allow}
    return said(server, "loop:start", body)


def tool(server: Served, name: str, given: dict[str, Any], *agents: str) -> str:
    context = server.context
    loops = RoleLoops(
        here=context.here, settings=context.settings, cwd=server.folder, agents=agents, by="mcp"
    )
    work = LoopTools(loops=loops).answer(name, given)
    outcome = server.as_admin(work)
    return outcome.text if outcome.error else ""


def start_by_mcp(server: Served, agent: str, *, allow: bool) -> str:
    given = {"definition": "harness", "goal": "g", "allow_unknown_cost": allow}
    return tool(server, "loop_start", given, agent)


def failed_run(server: Served) -> str:
    text = server.definition(server.script({"fail": "no"}), max=1)
    run = server.start(text)
    server.until(run, "failed")
    return run


def resume_run(server: Served, agent: str, *, allow: bool) -> str:
    body = {"agent": agent, "allow_unknown_cost": allow}
    return refused(server("POST", f"{RUNS}/{failed_run(server)}/resume", body))


def resume_by_socket(server: Served, agent: str, *, allow: bool) -> str:
    body = {"run": failed_run(server), "agent": agent, "allow_unknown_cost": allow}
    return said(server, "run:resume", body)


def resume_by_mcp(server: Served, agent: str, *, allow: bool) -> str:
    given = {"action": "resume", "id": failed_run(server), "agent": agent}
    return tool(server, "loop_control", {**given, "allow_unknown_cost": allow})


def fork_run(server: Served, agent: str, *, allow: bool) -> str:
    run = server.start(server.definition(server.script("one", "two"), max=2))
    server.until(run, "completed")
    body = {"at": "1", "agent": agent, "allow_unknown_cost": allow}
    return refused(server("POST", f"{RUNS}/{run}/fork", body))


def failed_loop(server: Served, agent: str = "") -> str:
    agent = agent or server.script({"fail": "no"})
    body = {"definition": "harness", "goal": "g", "agent": agent}
    reply = server("POST", "/api/v1/loops", body)
    assert reply.status == 201, reply.body
    run = str(reply.json["loop"]["id"])
    server.until(run, "failed")
    return run


def retry_loop(server: Served, agent: str, *, allow: bool) -> str:
    run = failed_loop(server)
    body = {"agent": agent, "allow_unknown_cost": allow}
    return refused(server("POST", f"/api/v1/loops/{run}/iterations/{run}.1/retry", body))


INTERFACES: dict[str, Callable[..., str]] = {
    "runs": start_run,
    "loops": start_loop,
    "assistant": start_assistant,
    "socket": start_by_socket,
    "mcp": start_by_mcp,
    "resume over http": resume_run,
    "resume over a socket": resume_by_socket,
    "resume over mcp": resume_by_mcp,
    "fork over http": fork_run,
    "retry over http": retry_loop,
}


@pytest.mark.item("rec-24")
@pytest.mark.parametrize("interface", INTERFACES)
def test_unknown_cost_is_refused_or_allowed_at_every_interface(
    limited: Served, interface: str
) -> None:
    """Refused with the same code and words; the option of the request allows it."""
    attempt = INTERFACES[interface]
    words = attempt(limited, "command:true", allow=False)
    assert COST in words
    assert "mcp" in interface or words.startswith("unknown-cost: ")
    assert attempt(limited, "command:true", allow=True) == ""


@pytest.mark.item("rec-24")
@pytest.mark.parametrize("action", ["retry", "skip"])
def test_unknown_cost_is_refused_or_allowed_for_what_a_loop_stopped_at(
    tmp_path: Path, action: str
) -> None:
    """Over MCP: a loop that failed before the limit was set needs the option of the request."""
    with served(tmp_path) as before:
        run = failed_loop(before, "command:false")
    with served(tmp_path, more={"budget": SharedBudget(usd_per_day=5.0)}) as now:
        given = {"action": action, "id": run, "note": "Go on"}
        assert COST in tool(now, "loop_control", given)
        service = now.context.service
        assert not any(isinstance(one.event, RunReopened) for one in service.events(run))
        assert tool(now, "loop_control", {**given, "allow_unknown_cost": True}) == ""
        assert any(isinstance(one.event, RunReopened) for one in service.events(run))
        wait_for(lambda: service.log.row(run).headline.status != "running")


def hook_over_http(server: Served, lw: Place, name: str, *, allow: bool) -> str:
    body = {"name": name, "stored": name, "allow_unknown_cost": allow}
    return str(server("POST", hooks.BASE, body).json["secret"])


def hook_by_command(server: Served, lw: Place, name: str, *, allow: bool) -> str:
    home = ("--data-dir", str(server.folder / "home"))
    words = ["--allow-unknown-cost"] if allow else []
    return lw("hook", "add", name, "--run", name, *words, *home).out.split()[0]


def hook_by_command_at_a_server(server: Served, lw: Place, name: str, *, allow: bool) -> str:
    words = ["--allow-unknown-cost"] if allow else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPWRIGHT_TOKEN", server.token)
        there = f"http://127.0.0.1:{server.port}"
        return lw("hook", "add", name, "--run", name, *words, "--server", there).out.split()[0]


HOOKS: dict[str, Callable[..., str]] = {
    "http": hook_over_http,
    "command": hook_by_command,
    "command-at-a-server": hook_by_command_at_a_server,
}


@pytest.mark.item("rec-24")
@pytest.mark.parametrize("how", HOOKS)
@pytest.mark.parametrize("allow", [True, False], ids=["allowed", "refused"])
def test_hook_takes_the_remedy_that_its_problem_names(
    limited: Served, lw: Place, how: str, *, allow: bool
) -> None:
    """A message of a hook starts nothing with an unknown cost, unless the hook allows it."""
    name = f"hook-{how}-{allow}".lower()
    text = limited.definition("command:true", max=1)
    place = f"/api/v1/definitions/{name}"
    limited("PUT", place, {"text": text}, headers={"If-None-Match": "*"})
    secret = HOOKS[how](limited, lw, name, allow=allow)
    run = hooks.post(limited, hooks.headers(secret), name=name).json["run"]

    def listed() -> dict[str, Any]:
        every = limited("GET", hooks.BASE).json["hooks"]
        return next(one for one in every if one["name"] == name)

    def problem() -> str:
        return listed()["problem"] or ""

    assert listed()["allow_unknown_cost"] is allow

    if allow:
        limited.until(run, "completed")
        assert problem() == ""
    else:
        wait_for(lambda: problem() != "")
        assert COST in problem()
        assert "add the hook again with --allow-unknown-cost" in problem()


@pytest.mark.item("rec-24")
def test_an_edited_assistant_keeps_the_permission_of_its_loop(limited: Served) -> None:
    """An agent that is edited while its loop runs is held to the limits, with what was allowed."""
    service = limited.context.service
    run, _ = limited.gated()
    [(name, agent)] = service.state(run).plan.agents.items()
    other = msgspec.structs.replace(agent, spec="command:true")

    def change(run: str) -> None:
        limited.as_admin(service.change_agent(run, name, other))

    with pytest.raises(LoopwrightError) as told:
        change(run)
    assert told.value.code == "unknown-cost"
    assert told.value.hint == f"stop {run}, and start it again with allow_unknown_cost"
    text = limited.definition(limited.script(*["some work"] * 9), until={"person": True})
    allowed = limited.start(text, allow_unknown_cost=True)
    limited.until(allowed, "waiting")
    change(allowed)
    assert service.state(allowed).plan.agents[name].spec == "command:true"


@pytest.mark.item("rec-33")
@pytest.mark.parametrize("interface", INTERFACES)
def test_agent_that_is_not_signed_in_is_refused_at_every_interface(
    limited: Served, interface: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a run exists or continues, with the command that signs in."""
    programs = real_looking(tmp_path, "claude", ["auth", "status"], '{"loggedIn": false}', 1)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    words = INTERFACES[interface](limited, "claude", allow=False)
    assert "Claude Code is not signed in" in words
    assert "mcp" in interface or words.startswith("agent-not-signed-in: ")
    assert not (tmp_path / "called").exists()


@pytest.mark.item("rec-24")
def test_change_to_an_agent_of_unknown_cost_is_refused(limited: Served) -> None:
    """An agent of a run under way is only replaced by one whose cost is known."""
    context = limited.context
    run = limited.start(limited.definition(limited.script({"text": "x", "delay": 30}), max=1))
    state = context.service.state(run)
    [(name, agent)] = state.plan.agents.items()

    def change(spec: str) -> None:
        becomes = type(agent)(spec=spec)
        limited.as_admin(context.service.change_agent(run, name, becomes, by="x"))

    with pytest.raises(Exception, match="cannot be enforced") as refusal:
        change("command:true")
    assert getattr(refusal.value, "code", "") == "unknown-cost"
    change("jsonl:true")
    assert limited("POST", f"{RUNS}/{run}/stop").status == 200


@pytest.mark.item("rec-23")
def test_cost_in_prometheus_and_in_iterations(own: Served) -> None:
    """Known cost and calls of unknown cost are counted apart; an unknown cost is never 0."""
    paid = own.definition(own.script({"text": "ok", "usage": {"usd": 0.5}}), max=1)
    own.until(own.start(paid), "completed")
    run = own.start(own.definition("command:true", max=1))
    own.until(run, "completed", "failed", "exhausted")
    text = own("GET", "/metrics").body.decode()
    assert "\nloopwright_cost_usd_total 0.5\n" in text
    assert "\nloopwright_calls_unknown_cost_total 1\n" in text
    told = json.loads(own("GET", f"{RUNS}/{run}/metrics").body)
    assert [one["spent"]["usd"] for one in told["rounds"]] == [None]
