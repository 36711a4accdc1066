"""What a server sends by itself: server-sent events and events of Socket.IO."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from tests.golden import transcript_runs
from tests.golden.transcript_text import Normaliser
from tests.http.served import Served, wait_for
from tests.http.talking import Tab, tab

EVENTS = "run:events"
STREAM = {"Accept": "text/event-stream"}
CONTINUED_AFTER = 3  # the event that a second connection has seen already


def normaliser_of(server: Served) -> Normaliser:
    """For what a server sends."""
    words = {str(server.folder): "<folder>", f"127.0.0.1:{server.port}": "<server-address>"}
    return Normaliser(words)


# -- server-sent events ----------------------------------------------------------------------------


def sse_of(server: Served, name: str) -> str:
    """The stream of a run from its beginning, the rest after an event, and what is refused."""
    run = transcript_runs.start(server, name)
    transcript_runs.finish(server, name, run)
    normaliser = normaliser_of(server)
    path = f"/api/v1/runs/{run}/events"
    parts: list[str] = []
    for words, headers in (
        ("", {}),
        (f"Last-Event-ID: {CONTINUED_AFTER}\n", {"Last-Event-ID": str(CONTINUED_AFTER)}),
        ("Last-Event-ID: x\n", {"Last-Event-ID": "x"}),
        ("Last-Event-ID: 9999\n", {"Last-Event-ID": "9999"}),
    ):
        reply = server("GET", path, headers={**STREAM, **headers})
        kind = reply.headers.get("content-type", "no content type")
        head = f"GET {normaliser.inline(path)}\n{words}{reply.status} {kind}\n"
        parts.append(head + stream_text(reply.body.decode(), normaliser))
    return "\n".join(parts)


def stream_text(text: str, normaliser: Normaliser) -> str:
    """A stream, normalised: the data as JSON; comments keep a connection open and are left out."""
    lines: list[str] = []
    for line in text.splitlines():
        name, _, value = line.partition(": ")
        if line.startswith(":"):
            continue
        if name == "data":
            shown = json.dumps(normaliser.json(json.loads(value)), ensure_ascii=False)
            lines.append(f"data: {shown}")
        elif line.startswith("{"):
            shown = json.dumps(normaliser.json(json.loads(line)), ensure_ascii=False, indent=1)
            lines.append(shown)
        else:
            lines.append(line)
    while lines and not lines[0]:
        lines.pop(0)
    return "\n".join(lines) + "\n"


# -- Socket.IO -------------------------------------------------------------------------------------

LAST_NOTES = ("run.completed", "run.failed", "loop.completed", "loop.failed")
"""Kinds of the last notification about a run."""


def socket_of(server: Served, name: str) -> str:
    """All events that a client receives that follows a run."""
    answers: list[tuple[str, Any]] = []
    got: list[tuple[str, Any]] = []

    async def go() -> None:
        async with tab(server) as one:
            run = await asyncio.to_thread(transcript_runs.start, server, name)

            def kinds() -> list[str]:
                return [note["kind"] for note in one.all("notification") if note["run"] == run]

            def asked(number: int) -> None:
                wait_for(lambda: kinds().count("gate.opened") >= number)

            # How far the run is by now is not known, so the number of the answer is not shown.
            answer = await one.say("subscribe", {"run": run, "after": 0})
            answers.append(("subscribe", {**answer, "seq": "<seq>"}))
            await asyncio.to_thread(transcript_runs.finish, server, name, run, asked)
            await one.until(lambda: any(e["kind"] == "run.finished" for e in _events(one)))
            await one.until(lambda: any(kind in LAST_NOTES for kind in kinds()))
            if name == "rondoflow":
                await one.first("agent:status", status="idle")
            answers.append(("subscribe", await one.say("subscribe", {"run": run})))
            answers.append(("unsubscribe", await one.say("unsubscribe", {"run": run})))
            answers.append(("unsubscribe", await one.say("unsubscribe", {"run": run})))
            # A new connection is also told about the runs before.
            ours = [pair for pair in one.got if pair[1].get("run", run) == run]
            got.extend(pair for pair in ours if pair[0] != EVENTS)
            got.extend((EVENTS, event) for event in _events(one))

    _talk(go())
    # Families of events are sent by tasks of their own: each is shown in its own order.
    got.sort(key=lambda pair: pair[0])
    return _shown(answers, got, normaliser_of(server))


def _events(one: Tab) -> list[dict[str, Any]]:
    """The events of a run; how many come together depends on time."""
    return [event for data in one.all(EVENTS) for event in data["events"]]


Speaks = Callable[[Tab, str, list[tuple[str, Any]]], Coroutine[Any, Any, None]]


async def _starts(one: Tab, agent: str, answers: list[tuple[str, Any]]) -> None:
    said = {"agentId": agent, "message": "Do it."}
    answers.append(("loop:start", await one.say("loop:start", said)))


async def _until_idle(one: Tab, agent: str, answers: list[tuple[str, Any]]) -> None:
    await _starts(one, agent, answers)
    await one.first("agent:status", agentId=agent, status="idle")


async def _until_error(one: Tab, agent: str, answers: list[tuple[str, Any]]) -> None:
    await _starts(one, agent, answers)
    await one.first("agent:status", agentId=agent, status="error")


def _decides(*, approved: bool) -> Speaks:
    async def go(one: Tab, agent: str, answers: list[tuple[str, Any]]) -> None:
        await _starts(one, agent, answers)
        note = await one.first("manual_approval_required", agentId=agent)
        await one.first("notification", agentId=agent, level="action_required")
        for review in ("gate_0", note["loopId"]):
            said = {"agentId": agent, "loopId": review, "approved": approved}
            answers.append(("loop:approve", await one.say("loop:approve", said)))
        await one.first("agent:status", agentId=agent, status="idle" if approved else "error")

    return go


async def _refusals(one: Tab, agent: str, answers: list[tuple[str, Any]]) -> None:
    said: tuple[tuple[str, dict[str, Any]], ...] = (
        ("loop:start", {"agentId": "agent_nobody", "message": "x"}),
        ("loop:start", {"agentId": agent}),
        ("loop:stop", {"agentId": agent}),
        ("loop:approve", {"agentId": agent, "loopId": "gate_0", "approved": True}),
        ("loop:nothing", {"agentId": agent}),
        ("notifications:read", {"ids": ["ntf_0"]}),
        ("run:tell", {"run": "run_0", "text": "x"}),
        ("run:resume", {"run": "run_0"}),
        ("subscribe", {"run": "run_0"}),
        ("unsubscribe", {"run": "run_0"}),
        ("subscribe", {}),
    )
    for event, data in said:
        answers.append((event, await one.say(event, data)))


async def _stops(one: Tab, agent: str, answers: list[tuple[str, Any]]) -> None:
    await _starts(one, agent, answers)
    await one.first("agent:status", agentId=agent, status="running")
    run = answers[0][1]["run"]
    answers.append(("run:tell", await one.say("run:tell", {"run": run, "text": "Shorter."})))
    again = {"agentId": agent, "message": "Do it."}
    answers.append(("loop:start", await one.say("loop:start", again)))
    await one.first("agent:error", type="RESOURCE_ERROR")
    answers.append(("loop:stop", await one.say("loop:stop", {"agentId": agent})))
    await one.first("agent:status", agentId=agent, status="idle")


REGEX = {"type": "regex", "value": "DONE"}
MANUAL = {"type": "manual", "value": ""}
STAYS = {"text": "at work", "delay": 60}

LOOPS: dict[str, tuple[tuple[Any, ...], dict[str, Any], Speaks]] = {
    "loop": (("one", "it is DONE"), {"loopCriteria": REGEX}, _until_idle),
    "loop_capped": (("one", "two"), {"loopCriteria": REGEX, "maxIterations": 2}, _until_idle),
    "loop_approved": (("one",), {"loopCriteria": MANUAL}, _decides(approved=True)),
    "loop_rejected": (("one",), {"loopCriteria": MANUAL}, _decides(approved=False)),
    "loop_failed": (("one", {"fail": "it broke"}), {"loopCriteria": REGEX}, _until_error),
    "loop_refused": (("one",), {"loopCriteria": REGEX}, _refusals),
    "loop_stopped": ((STAYS,), {"loopCriteria": REGEX}, _stops),
}
"""Loops of assistants: what the agent says, the settings, and what the client does."""


def loop_of(server: Served, name: str) -> str:
    """All events that the person receives who starts the loop of an assistant, in order."""
    replies, settings, speaks = LOOPS[name]
    agent = server.script(*replies, name=f"{name}.replies.yaml")
    body = {"name": name, "loopEnabled": True, "agent": agent, **settings}
    made = server("POST", "/api/agents", body)
    assert made.status == 201, made.body
    assistant = str(made.json["data"]["id"])
    answers: list[tuple[str, Any]] = []
    got: list[tuple[str, Any]] = []

    async def go() -> None:
        async with tab(server) as one:
            await speaks(one, assistant, answers)
            await one.say("unsubscribe", {"run": "run_0"})  # answered behind what came before
            named = (assistant, "agent_nobody")  # a new connection is also told about the others
            got.extend(pair for pair in one.got if pair[1].get("agentId", assistant) in named)

    _talk(go())
    return _shown(answers, got, normaliser_of(server))


def _shown(
    answers: list[tuple[str, Any]], got: list[tuple[str, Any]], normaliser: Normaliser
) -> str:
    lines: list[str] = []
    for head, pairs in (("answered", answers), ("received", got)):
        for event, data in pairs:
            shown = json.dumps(normaliser.json(data), ensure_ascii=False)
            lines.append(f"{head} {event} {shown}\n")
    return "".join(lines)


def _talk(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 90))
