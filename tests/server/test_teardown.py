"""Leaving and coming back over real sockets; the rules themselves are tested with a clock."""

import asyncio
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tests.server.served import Served, served
from tests.server.talking import tab, talk
from tests.server.test_assistants import made, people, start, status
from tests.server.test_serving import serving, slow_agent, survivors, wait_for
from tests.server.test_sockets import MANUAL, begin


@pytest.fixture
def at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server where the time to come back is none."""
    monkeypatch.setenv("RONDOFLOW_TEARDOWN_GRACE_MS", "0")
    with served(tmp_path) as own:
        yield own


@pytest.mark.item("rondoflow-47", "rondoflow-48", "rondoflow-51", "rondoflow-52")
def test_the_last_socket_leaves(at_once: Served) -> None:
    """Another tab keeps the loop; the last one gone ends it, and its starter is told later."""
    agent, other = made(at_once, loopCriteria=MANUAL), people(at_once, "editor")

    async def go() -> None:
        async with tab(at_once) as one:
            async with tab(at_once) as two, tab(at_once, other) as stranger:
                await begin(one, agent, onDisconnect="teardown")
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
            assert "nobody was there" in note["title"]

    talk(go())


def test_a_loop_goes_on_by_default(at_once: Served) -> None:
    """Nobody has to stay for a loop that was not told to end."""
    agent = made(at_once, loopCriteria=MANUAL)

    async def go() -> None:
        async with tab(at_once) as one:
            await begin(one, agent)
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


@pytest.mark.item("rondoflow-53", "J11")
def test_a_signal_with_loops_and_sockets(tmp_path: Path) -> None:
    """The processes of all loops end with the server, sockets or not, and though the database is
    held by somebody else.
    """
    with serving(tmp_path) as one:
        agents = [
            made(one.ask, name=f"{n}", agent=slow_agent(tmp_path, f"{n}.txt"), maxIterations=100)
            for n in range(3)
        ]
        for agent in agents:
            assert start(one.ask, agent).status == 202
        wait_for(lambda: all((tmp_path / f"{n}.txt").exists() for n in range(3)))

        async def go() -> None:
            async with tab(one.ask) as follower:
                run = status(one.ask, agents[0])["run"]
                assert (await follower.say("subscribe", {"run": run, "after": 0}))["ok"]
                stuck = sqlite3.connect(tmp_path / "home" / "loopwright.db", timeout=5)
                stuck.execute("BEGIN IMMEDIATE")
                began = time.monotonic()
                assert await asyncio.to_thread(one.end, signal.SIGTERM) == 0
                assert time.monotonic() - began < 10
                stuck.close()

        talk(go())
        wait_for(lambda: survivors(tmp_path) == [])
