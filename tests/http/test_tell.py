"""Messages to the agents of a run over HTTP, sockets, MCP and a remote command line."""

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from loopwright.kernel.coordination import MAX_TEXT_BYTES
from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.use_cases.role_loops import RoleLoops
from loopwright.prompts.sections import render_sender
from tests.cli.conftest import Place, lw
from tests.http.served import SECONDS, Served, served
from tests.http.talking import tab, talk
from tests.person import ME

__all__ = ["lw"]

SENT = {"message": "m1", "to": "*", "when": "next-call"}
LATER = "will be read at the next iteration or agent call"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for all tests here."""
    with served(tmp_path_factory.mktemp("tell")) as one:
        yield one


def by_http(server: Served, run: str, lw: Place) -> None:
    reply = server("POST", f"/api/v1/runs/{run}/messages", {"text": "Keep it"})
    assert (reply.status, reply.json) == (201, SENT | {"run": run})


def by_socket(server: Served, run: str, lw: Place) -> None:
    answers: list[Any] = []

    async def go() -> None:
        async with tab(server) as one:
            answers.append(await one.say("run:tell", {"run": run, "text": "Keep it"}))

    talk(go())
    assert answers == [{"ok": True, "run": run} | SENT]


def by_mcp(server: Served, run: str, lw: Place) -> None:
    context = server.context
    loops = RoleLoops(here=context.here, settings=context.settings, cwd=server.folder, agents=[])
    work = LoopTools(loops=loops).answer("loop_tell", {"id": run, "text": "Keep it"})
    done = asyncio.run_coroutine_threadsafe(work, server.loop).result(SECONDS)
    assert (done.error, done.text) == (False, f"{run}: message m1 recorded: {LATER}")


def by_remote_command(server: Served, run: str, lw: Place) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPWRIGHT_TOKEN", server.token)
        told = lw("tell", run, "Keep it", "--server", f"http://127.0.0.1:{server.port}")
    assert (told.code, told.err.strip()) == (0, f"{run}: message m1: {LATER}")


def by_prompt(server: Served, run: str, lw: Place) -> None:
    lines = lw.write("lines", f"/loops tell {run} Keep it\n")
    with pytest.MonkeyPatch.context() as patch, lines.open() as stdin:
        patch.setattr(sys, "stdin", stdin)
        patch.setenv("LOOPWRIGHT_HOME", str(server.context.settings.home))
        told = lw("repl")
    assert (told.code, f"{run}: message m1: {LATER}" in told.out) == (0, True), told


@pytest.mark.item("rec-35")
@pytest.mark.parametrize("way", [by_http, by_socket, by_mcp, by_remote_command, by_prompt])
def test_every_interface_records_a_message(shared: Served, lw: Place, way: Any) -> None:
    """With who sent it; the next iteration reads it, after a person has answered the gate."""
    run, gate = shared.gated()
    way(shared, run, lw)
    [told] = shared("GET", f"/api/v1/runs/{run}/snapshot").json["messages"]
    assert (told["text"], told["state"]) == ("Keep it", "waiting")
    assert told["by"] == {by_mcp: ME, by_prompt: ME}.get(way, "first-start")
    shared("POST", f"/api/v1/gates/{gate}/continue", {"text": "again"})
    shared.until(run, "waiting")
    [told] = shared("GET", f"/api/v1/runs/{run}/snapshot").json["messages"]
    assert told["state"] == "delivered to iteration 2"


@pytest.mark.item("rec-35")
def test_a_run_that_has_ended_is_a_conflict(shared: Served) -> None:
    """With a hint; an empty text is refused before that."""
    run = shared.start(shared.definition(shared.script("x"), max=1))
    shared.until(run, "completed", "exhausted")
    reply = shared("POST", f"/api/v1/runs/{run}/messages", {"text": "late"})
    assert (reply.status, reply.code) == (409, "ended")
    reply = shared("POST", f"/api/v1/runs/{run}/messages", {"text": ""})
    assert (reply.status, reply.code) == (400, "bad-message")


TOO_LONG = "the message has 262,146 bytes; at most 262,144 are accepted"


def answer_by_http(server: Served, run: str, text: str, lw: Place) -> str:
    return str(server("POST", f"/api/v1/runs/{run}/messages", {"text": text}).json)


def answer_by_socket(server: Served, run: str, text: str, lw: Place) -> str:
    answers: list[Any] = []

    async def go() -> None:
        async with tab(server) as one:
            answers.append(await one.say("run:tell", {"run": run, "text": text}))

    talk(go())
    return str(answers)


def answer_by_mcp(server: Served, run: str, text: str, lw: Place) -> str:
    context = server.context
    loops = RoleLoops(here=context.here, settings=context.settings, cwd=server.folder, agents=[])
    work = LoopTools(loops=loops).answer("loop_tell", {"id": run, "text": text})
    done = asyncio.run_coroutine_threadsafe(work, server.loop).result(SECONDS)
    return done.text


def answer_by_remote_command(server: Served, run: str, text: str, lw: Place) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPWRIGHT_TOKEN", server.token)
        told = lw("tell", run, text, "--server", f"http://127.0.0.1:{server.port}")
    return told.err + told.out


def answer_by_command(server: Served, run: str, text: str, lw: Place) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPWRIGHT_HOME", str(server.context.settings.home))
        told = lw("tell", run, text)
    return told.err + told.out


def answer_by_prompt(server: Served, run: str, text: str, lw: Place) -> str:
    lines = lw.write("lines", f"/loops tell {run} {text}\n")
    with pytest.MonkeyPatch.context() as patch, lines.open() as stdin:
        patch.setattr(sys, "stdin", stdin)
        patch.setenv("LOOPWRIGHT_HOME", str(server.context.settings.home))
        told = lw("repl")
    return told.err + told.out


@pytest.mark.item("rec-35")
@pytest.mark.parametrize(
    "way",
    [
        answer_by_http,
        answer_by_socket,
        answer_by_mcp,
        answer_by_remote_command,
        answer_by_command,
        answer_by_prompt,
    ],
)
def test_one_limit_for_messages_with_the_same_words(shared: Served, lw: Place, way: Any) -> None:
    """It counts bytes; the longest message is accepted and read whole, a longer one is refused."""
    run, gate = shared.gated()
    assert TOO_LONG in way(shared, run, "é" * (MAX_TEXT_BYTES // 2 + 1), lw)
    assert "m1" in way(shared, run, "é" * (MAX_TEXT_BYTES // 2), lw)
    shared("POST", f"/api/v1/gates/{gate}/reject")


def test_a_message_of_a_person_is_not_cut() -> None:
    """Only what agents write to each other is."""
    text = "x" * 100_000
    assert render_sender("ann", text, told=True) == f"Message from ann: {text}"
    assert len(render_sender("step", text)) < 20_000
