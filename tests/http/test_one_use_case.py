"""A use case behaves the same through every interface: how a run is stopped, how a gate is
answered, who is recorded, and what a server that is about to stop refuses.
"""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from loopwright.errors import ServerDraining
from loopwright.kernel.events import CancelRequested, GateAnswered
from loopwright.operations import run_control
from loopwright.operations.accounts.access import current_user
from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.run_control import StopState
from loopwright.operations.use_cases.operation import App
from loopwright.operations.use_cases.role_loops import RoleLoops
from tests.cli.conftest import Told, lw
from tests.http.served import SECONDS, Served
from tests.http.talking import tab, talk
from tests.http.test_remote_commands import Both, both

__all__ = ["both", "lw"]

ME, TOKEN = current_user(), "first-start"


def code_of(told: Told) -> str:
    """The code of a refusal of the command line, or an empty text."""
    found = re.search(r"urn:loopwright:problem:([a-z-]+)", told.out + told.err)
    return found[1] if found else ""


def emit(server: Served, event: str, data: dict[str, Any]) -> dict[str, Any]:
    answers: list[Any] = []

    async def work() -> None:
        async with tab(server) as one:
            answers.append(await one.say(event, data))

    talk(work())
    assert isinstance(answers[0], dict)
    return answers[0]


def use_tool(server: Served, name: str, **given: Any) -> tuple[bool, str]:
    """Whether a tool succeeded, and what it returned."""
    context = server.context
    loops = RoleLoops(here=context.here, settings=context.settings, cwd=server.folder)
    work = LoopTools(loops=loops, answers=True).answer(name, given)
    outcome = asyncio.run_coroutine_threadsafe(work, server.loop).result(SECONDS)
    return not outcome.error, outcome.text


# -- stopping --------------------------------------------------------------------------------------


def stop_over_http(both: Both, run: str) -> str:
    reply = both.server("POST", f"/api/v1/runs/{run}/stop")
    return str(reply.json["stop"]) if reply.status == 200 else reply.code


def stop_over_socket(both: Both, run: str) -> str:
    answer = emit(both.server, "loop:stop", {"agentId": run})
    return str(answer["status"] if answer["ok"] else answer["code"])


def stop_as_assistant(both: Both, run: str) -> str:
    reply = both.server("POST", f"/api/agents/{run}/loop/stop")
    return str(reply.json["data"]["status"]) if reply.status == 200 else "no-loop"


def stop_by_tool(both: Both, run: str) -> str:
    is_done, text = use_tool(both.server, "loop_control", action="stop", id=run)
    return "stopped" if is_done else text.partition(":")[0]


def stop_by_command(both: Both, run: str) -> str:
    return code_of(both.here("stop", run, "--json")) or "stopped"


def stop_by_remote_command(both: Both, run: str) -> str:
    return code_of(both("stop", run, "--json")) or "stopped"


STOPS: dict[str, tuple[Callable[[Both, str], str], str, str]] = {
    # interface: how it stops, who is recorded, what a second stop answers
    "http": (stop_over_http, TOKEN, "stopped"),
    "socket": (stop_over_socket, TOKEN, "no-loop"),
    "assistants": (stop_as_assistant, TOKEN, "no-loop"),
    "mcp": (stop_by_tool, ME, "ended"),
    "cli": (stop_by_command, ME, "ended"),
    "remote cli": (stop_by_remote_command, TOKEN, "ended"),
}


@pytest.mark.parametrize("interface", STOPS)
def test_stop_by_any_interface_ends_the_run_and_records_who_stopped_it(
    both: Both, interface: str
) -> None:
    """A second stop changes nothing; terminals and tools say that the run has ended."""
    stop, by, again = STOPS[interface]
    run, _ = both.server.gated()
    assert stop(both, run) == "stopped"
    assert both.server("GET", f"/api/v1/runs/{run}").json["status"] == "cancelled"
    events = [one.event for one in both.server.context.here.log.read(run)]
    assert [one.by for one in events if isinstance(one, CancelRequested)] == [by]
    assert stop(both, run) == again


@pytest.mark.parametrize("interface", STOPS)
def test_run_that_does_not_end_in_time_is_stopping_at_every_interface(
    both: Both, interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them wait in the same place; none says `stopped` before the processes have ended."""

    async def expired(_log: object, runs: list[str], **_: object) -> StopState:
        return StopState(tuple(runs))

    monkeypatch.setattr(run_control, "wait_until_stopped", expired)
    run, _ = both.server.gated()
    assert STOPS[interface][0](both, run) == "stopping"


# -- answering -------------------------------------------------------------------------------------


def answer_over_http(both: Both, gate: str, decision: str, text: str) -> str:
    reply = both.server("POST", f"/api/v1/gates/{gate}/{decision}", {"text": text})
    return "" if reply.status == 200 else reply.code


def answer_by_tool(both: Both, gate: str, decision: str, text: str) -> str:
    is_done, told = use_tool(both.server, "gate_answer", id=gate, decision=decision, text=text)
    return "" if is_done else told.partition(":")[0]


def answer_by_command(both: Both, gate: str, decision: str, text: str) -> str:
    told = both.here(decision, gate, text, "--no-drive", "--json")
    return "text-needed" if "needs TEXT" in told.err + told.out else code_of(told)


def answer_by_remote_command(both: Both, gate: str, decision: str, text: str) -> str:
    told = both(decision, gate, text, "--no-drive", "--json")
    return "text-needed" if "needs TEXT" in told.err + told.out else code_of(told)


ANSWERS: dict[str, tuple[Callable[[Both, str, str, str], str], str]] = {
    "http": (answer_over_http, TOKEN),
    "mcp": (answer_by_tool, ME),
    "cli": (answer_by_command, ME),
    "remote cli": (answer_by_remote_command, TOKEN),
}


@pytest.mark.parametrize("interface", ANSWERS)
def test_continue_without_text_is_refused_at_every_interface(both: Both, interface: str) -> None:
    """The gate stays open; with a text the run continues, and the log says who wrote it."""
    answer, by = ANSWERS[interface]
    run, gate = both.server.gated()
    assert answer(both, gate, "continue", " ") == "text-needed"
    assert [one.gate for one in both.server.context.here.log.gates(run)] == [gate]
    assert answer(both, gate, "continue", "Shorter") == ""
    events = [one.event for one in both.server.context.here.log.read(run)]
    assert [one.by for one in events if isinstance(one, GateAnswered)] == [by]
    both.server("POST", f"/api/v1/runs/{run}/stop")


@pytest.mark.parametrize("interface", ANSWERS)
def test_gate_that_was_answered_is_a_conflict_at_every_interface(
    both: Both, interface: str
) -> None:
    """The first answer counts."""
    answer, _ = ANSWERS[interface]
    _, gate = both.server.gated()
    assert answer(both, gate, "approve", "") == ""
    assert answer(both, gate, "reject", "") == "already-resolved"


# -- draining --------------------------------------------------------------------------------------

DEFINITION = json.dumps({"name": "work", "agent": "script:x.yaml", "goal": "Do it."})
NEW_WORK: list[tuple[str, dict[str, Any]]] = [
    ("/api/v1/runs", {"definition": DEFINITION}),
    ("/api/v1/rehearsals", {"definition": DEFINITION}),
    ("/api/v1/runs/RUN/resume", {}),
    ("/api/v1/runs/RUN/fork", {}),
    ("/api/v1/runs/RUN/retry", {}),
    ("/api/v1/runs/RUN/skip", {}),
    ("/api/v1/runs/RUN/messages", {"text": "Hurry"}),
    ("/api/v1/loops", {"definition": "harness", "goal": "g"}),
    ("/api/v1/loops/RUN/resume", {}),
    ("/api/v1/loops/RUN/skip-stage", {}),
    ("/api/v1/loops/RUN/iterations/1/retry", {}),
    ("/api/agents/RUN/loop/start", {"message": "Do it."}),
    ("/v1/runs/RUN/edit-and-resume", {"checkpointId": "x", "newText": "y"}),
    ("/v1/runs/RUN/swap-model", {"checkpointId": "x", "model": "openai/x"}),
]
SOCKET_WORK: list[tuple[str, dict[str, Any]]] = [
    ("loop:start", {"agentId": "a", "message": "Do it."}),
    ("run:resume", {"run": "RUN"}),
    ("run:tell", {"run": "RUN", "text": "Hurry"}),
]


def drain(patch: pytest.MonkeyPatch) -> None:
    """Let the server be about to stop, as far as its operations know."""

    def refuse(_app: App) -> None:
        raise ServerDraining("the server is about to stop")

    patch.setattr(App, "refuse_while_draining", refuse)


@pytest.fixture
def draining(shared: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A server that is about to stop."""
    drain(monkeypatch)
    return shared


@pytest.mark.parametrize(("path", "body"), NEW_WORK, ids=lambda one: one if "/" in one else "")
def test_request_for_new_work_while_draining_is_refused(
    draining: Served, path: str, body: dict[str, Any]
) -> None:
    """With 503 and when to come back, in the shape of the routes that were asked."""
    reply = draining("POST", path.replace("RUN", "run_x"), body)
    assert (reply.status, reply.headers["retry-after"]) == (503, "5"), reply.body
    assert "the server is about to stop" in reply.body.decode()


@pytest.mark.parametrize(("event", "data"), SOCKET_WORK, ids=lambda one: one if ":" in one else "")
def test_event_for_new_work_while_draining_is_refused(
    draining: Served, event: str, data: dict[str, Any]
) -> None:
    """With the same code as over HTTP."""
    answer = emit(draining, event, data)
    assert (answer["ok"], answer["code"]) == (False, "draining")


def test_stop_and_answer_while_draining_are_served(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end work, or record what the next process acts on."""
    (first, _), (second, gate) = both.server.gated(), both.server.gated()
    drain(monkeypatch)
    assert stop_over_http(both, first) == "stopped"
    assert answer_over_http(both, gate, "approve", "") == ""
    assert both.server.until(second, "completed")["run"] == second
