"""Leaving and coming back over real sockets; the rules themselves are tested with a clock."""

import asyncio
import json
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwright.operations.loops.loop_disconnects import LEASH
from loopwright.ports import Append
from tests.http.served import Served, served, wait_for
from tests.http.talking import tab, talk
from tests.http.test_assistants import made, people, start, status
from tests.http.test_serving import are_gone, at_work, lasting_agent, serving, tidy
from tests.http.test_sockets import MANUAL, begin

__all__ = ["tidy"]


@pytest.fixture
def at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server where the time to come back is none."""
    monkeypatch.setenv("RONDOFLOW_TEARDOWN_GRACE_MS", "0")
    with served(tmp_path) as own:
        yield own


@pytest.mark.item("rondoflow-47", "rondoflow-48", "rondoflow-51", "rondoflow-52", "rondoflow-72")
def test_the_last_socket_leaves(at_once: Served) -> None:
    """Another tab keeps the loop; the last one gone ends it, and its starter is told later."""
    agent, other = made(at_once, loopCriteria=MANUAL), people(at_once, "editor")

    async def go() -> None:
        async with tab(at_once) as one:
            async with tab(at_once) as two, tab(at_once, other) as stranger:
                run = (await begin(one, agent))["run"]
                await two.first("notification", agentId=agent, level="action_required")
                await stranger.leave()
                await two.leave()
                assert (await one.say("unsubscribe", {"run": "x"}))["ok"]
            assert status(at_once, agent)["active"]
        at_once.until(status(at_once, agent)["run"], "cancelled")
        assert status(at_once, agent)["error"] == "torn_down"
        async with tab(at_once) as one:
            note = await one.first("notification", level="critical")
            assert (note["agentId"], note["run"]) == (agent, status(at_once, agent)["run"])
            assert (note["kind"], note["run"]) == ("loop.torn_down", run)
            assert "its starter was away" in note["title"]
            at_once.call(lambda: None)
            wait_for(
                lambda: at_once("GET", f"/api/v1/notifications?run={run}&level=critical").json[
                    "notifications"
                ]
            )
            answer = await one.say("notifications:read", {"ids": [note["id"]]})
            assert answer["ok"], answer

    talk(go())


@pytest.mark.item("rondoflow-72")
@pytest.mark.parametrize("how", ["keep", "http", "switched-off"])
def test_loops_that_continue_without_their_starter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A loop that says so, one that was started over HTTP, and all where it is switched off."""
    monkeypatch.setenv("RONDOFLOW_TEARDOWN_GRACE_MS", "0")
    if how == "switched-off":
        monkeypatch.setenv("RONDOFLOW_TEARDOWN_ON_DISCONNECT", "0")
    with served(tmp_path) as own:
        stays_without_its_starter(own, how)


def stays_without_its_starter(at_once: Served, how: str) -> None:
    agent = made(at_once, loopCriteria=MANUAL)

    async def go() -> None:
        async with tab(at_once) as one:
            if how == "http":
                assert (await asyncio.to_thread(start, at_once, agent)).status == 202
            else:
                await begin(one, agent, **({"onDisconnect": "keep"} if how == "keep" else {}))
            await one.first("notification", agentId=agent, level="action_required")

    talk(go())
    assert status(at_once, agent)["active"]


def test_an_assistant_may_say_so(at_once: Served) -> None:
    """The setting of an assistant counts for every loop of it that does not say otherwise."""
    agent = made(at_once, loopCriteria=MANUAL, onDisconnect="teardown")

    async def go() -> None:
        async with tab(at_once) as one:
            await begin(one, agent)
            await one.first("notification", agentId=agent, level="action_required")

    talk(go())
    at_once.until(status(at_once, agent)["run"], "cancelled")


def by_runs(own: Served, **more: Any) -> str:
    agent = own.script(*["some work"] * 9, name="runs.json")
    return own.start(own.definition(agent, until={"person": True}), **more)


def by_document(own: Served, **more: Any) -> str:
    """The document of an assistant that is not kept here."""
    document = {"name": "fixer", "id": "kept-nowhere", "loopEnabled": True, "loopCriteria": MANUAL}
    agent = own.script(*["some work"] * 9, name="document.json")
    return own.start(json.dumps(document), message="Do it.", agent=agent, **more)


def by_loops(own: Served, **more: Any) -> str:
    agent = own.script({"text": "STATUS: BLOCKED\nNo keys."}, name="loops.json")
    body = {"definition": "harness", "goal": "g", "agent": agent, **more}
    reply = own("POST", "/api/v1/loops", body)
    assert reply.status == 201, reply.body
    return str(reply.json["loop"]["id"])


def twice(own: Served) -> str:
    """A run that was asked for a second iteration, and waits after it."""
    run = by_runs(own)
    own.until(run, "waiting")
    gate = own("GET", f"/v1/runs/{run}/approvals").json["approvals"][0]["gateId"]
    own("POST", f"/api/v1/gates/{gate}/continue", {"text": "More."})
    wait_for(lambda: own("GET", f"/api/v1/runs/{run}").json["iterations"] == 2)
    own("POST", f"/api/v1/runs/{run}/stop")
    return run


def by_fork(own: Served, **more: Any) -> str:
    reply = own("POST", f"/api/v1/runs/{twice(own)}/fork", {"at": "main.0", **more})
    assert reply.status == 201, reply.body
    return str(reply.json["run"])


def by_edit(own: Served, **more: Any) -> str:
    """The third family calls the choice as its system would."""
    renamed = {"onDisconnect": more["on_disconnect"]} if more else {}
    body = {"newText": "Again.", "checkpointId": "main.1", **renamed}
    reply = own("POST", f"/v1/runs/{twice(own)}/edit-and-resume", body)
    assert reply.status == 200, reply.body
    return str(reply.json["newRunId"])


DOORS = [by_runs, by_document, by_loops]
OPEN = ("running", "waiting", "paused")


@pytest.fixture(scope="module")
def by_choice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server where every run is left its choice, and there is no time to come back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPWRIGHT_TEARDOWN_GRACE_MS", "0")
        with served(tmp_path_factory.mktemp("choice")) as own:
            yield own


def left(own: Served, door: Callable[..., str], *, token: str | None = None, **more: Any) -> str:
    """A run that is started while a tab of its starter is open, which is closed then."""
    runs: list[str] = []

    async def go() -> None:
        async with tab(own, token) as one:
            runs.append(await asyncio.to_thread(door, own, **more))
            assert (await one.say("unsubscribe", {"run": "x"}))["ok"]

    talk(go())
    return runs[0]


def told_on_return(own: Served, run: str) -> None:
    """Whoever comes back is told once that it was ended."""

    async def go() -> None:
        async with tab(own) as one:
            note = await one.first("notification", level="critical", run=run)
            assert "its starter was away" in note["title"]
            assert note["kind"] in ("loop.torn_down", "run.torn_down")

    talk(go())


@pytest.mark.item("rondoflow-47")
@pytest.mark.parametrize("door", [*DOORS, by_fork, by_edit])
def test_every_interface_leaves_the_choice(by_choice: Served, door: Callable[..., str]) -> None:
    """What shall be torn down is, with the last tab of its starter; by default nothing is."""
    kept = left(by_choice, door)
    assert by_choice("GET", f"/api/v1/runs/{kept}").json["status"] in OPEN
    by_choice("POST", f"/api/v1/runs/{kept}/stop")
    torn = left(by_choice, door, on_disconnect="teardown")
    by_choice.until(torn, "cancelled")
    assert by_choice.context.here.log.row(torn).headline.reason == "torn_down"
    told_on_return(by_choice, torn)


def test_runs_of_a_person_without_a_socket_continue(by_choice: Served) -> None:
    """Their runs are not ended, whoever else leaves."""
    agent = by_choice.script(*["some work"] * 9, name="absent.json")
    definition = by_choice.definition(agent, until={"person": True})
    body = {"definition": definition, "on_disconnect": "teardown"}
    started = by_choice("POST", "/api/v1/runs", body, token=people(by_choice, "admin", "absent"))
    run = str(started.json["run"])
    left(by_choice, by_runs, token=people(by_choice, "editor", "elsewhere"))
    by_choice.call(lambda: None)
    assert by_choice("GET", f"/api/v1/runs/{run}").json["status"] in OPEN
    by_choice("POST", f"/api/v1/runs/{run}/stop")


@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/loops"])
def test_a_choice_that_is_none(by_choice: Served, path: str) -> None:
    """There are two."""
    body = {"definition": "harness", "on_disconnect": "perhaps"}
    body |= {"goal": "g"} if path.endswith("loops") else {}
    reply = by_choice("POST", path, body)
    assert reply.status in (400, 422)
    assert b"on_disconnect" in reply.body


def test_a_start_and_its_disconnect_rule_are_stored_together(
    by_choice: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is to be ended is written down with the start: no crash comes between them."""
    written: list[Append] = []
    log = by_choice.context.here.log
    append = log.append

    async def seen(one: Append) -> None:
        written.append(one)
        await append(one)

    monkeypatch.setattr(log, "append", seen)
    run = by_runs(by_choice, on_disconnect="teardown")
    first = next(one for one in written if one.run == run)
    assert [(record.kind, record.key) for record in first.records] == [(LEASH, run)]
    agent = made(by_choice, loopCriteria=MANUAL)
    assert start(by_choice, agent).status == 202
    run = status(by_choice, agent)["run"]
    first = next(one for one in written if one.run == run)
    assert [(record.kind, record.key) for record in first.records] == [(LEASH, run)]


@pytest.mark.usefixtures("tidy")
@pytest.mark.item("rondoflow-53", "J11")
def test_a_signal_with_loops_and_sockets(tmp_path: Path) -> None:
    """The processes of all loops end with the server, sockets or not, and though the database is
    held by somebody else.
    """
    with serving(tmp_path) as one:
        agents = [
            made(one.ask, name=f"{n}", agent=lasting_agent(tmp_path, f"{n}.txt"), maxIterations=100)
            for n in range(3)
        ]
        for agent in agents:
            assert start(one.ask, agent).status == 202
        left = at_work(tmp_path, 3)

        async def go() -> None:
            async with tab(one.ask) as follower:
                run = status(one.ask, agents[0])["run"]
                assert (await follower.say("subscribe", {"run": run, "after": 0}))["ok"]
                stuck = sqlite3.connect(tmp_path / "home" / "loopwright.db", timeout=5)
                stuck.execute("BEGIN IMMEDIATE")
                began = time.monotonic()
                assert await asyncio.to_thread(one.end, signal.SIGTERM) == 0
                assert time.monotonic() - began < 10
                are_gone(left)
                stuck.close()

        talk(go())
