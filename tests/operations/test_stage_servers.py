"""Trackers for coding agents: a server for each call, scoped to it, at the level of the agent."""

import asyncio
import json
import os
import stat
from pathlib import Path
from unittest.mock import patch

import pytest

from loopwright.agents.sandbox import bubblewrap
from loopwright.kernel.event_parts import AgentCall
from loopwright.kernel.events import EffectDone
from loopwright.model.access import LEVELS, has_tracker
from loopwright.model.actions import CallAgent, Step
from loopwright.model.plan import Access, Agent, Plan
from loopwright.model.record import literal
from loopwright.operations.agents.tools import StageServers, open_workshop
from loopwright.operations.run_request import RunStart
from loopwright.operations.settings import Settings
from loopwright.operations.wiring import Local, local
from loopwright.ports import EffectJob
from tests.safety import asking_cli
from tests.safety.test_access import TOOLKIT_CALLS
from tests.support.jobs import effect_job

SESSION = "a-session"
ORDER = [
    *("artifact.create", "artifact.list", "todo.add", "todo.list", "sprint.create"),
    *("sprint.list", "project.list", "skill.list", "skill.read", "artifact.delete"),
    *("todo.complete", "todo.delete", "artifact.update", "artifact.read", "todo.update"),
    *("sprint.move", "memory.save", "memory.search", "memory.delete"),
]


def plan(level: Access | None) -> Plan:
    action = CallAgent(agent="worker", prompt=literal("Use everything."))
    agent = Agent(spec="claude", access=level, role="coder" if level else None)
    return Plan(name="p", steps=(Step(id="main", action=action),), agents={"worker": agent})


async def played(top: Path, level: Access | None) -> tuple[dict[str, list[object]], Local]:
    """A run whose agent uses everything; what came of it."""
    (top / "work" / ".loopwright" / "skills").mkdir(parents=True, exist_ok=True)
    (top / "work" / ".loopwright" / "skills" / "knitting.md").write_text("Two left.")
    env = {"PATH": f"{top / 'bin'}:{os.environ['PATH']}", "HOME": str(top / "home")}
    with patch.dict(os.environ, env):
        async with local(Settings(home=top / "data", durability="normal")) as here:
            start = RunStart(
                plan=plan(level), workspace=top / "work", message="Go.", session=SESSION
            )
            run = await here.service.start(start)
            await here.driver.rest(run)
            events = [one.event for one in here.service.events(run)]
            [done] = [one for one in events if isinstance(one, EffectDone)]
            return json.loads(here.tracker_scopes._read(done.output)), here


@pytest.mark.item("coqui-26", "coqui-27", "coqui-62")
@pytest.mark.parametrize("level", LEVELS)
def test_a_coding_agent_has_the_trackers_of_its_level(tmp_path: Path, level: Access) -> None:
    """Every tool is tried by its name: offered and done at its levels, unknown at all others."""
    if bubblewrap.works() is not None and level != "full":
        pytest.skip(f"bubblewrap cannot work here: {bubblewrap.works()}")
    (tmp_path / "home").mkdir()
    empty = [(name.replace(".", "_"), _plain(name)) for name in ORDER]
    asking_cli.install(tmp_path / "bin", empty)
    came, _ = asyncio.run(played(tmp_path, level))
    wanted = {name for name in TOOLKIT_CALLS if has_tracker(Agent(access=level), name)}
    assert set(came["listed"]) == {*(name.replace(".", "_") for name in wanted), "result_more"}
    for name in ORDER:
        worked, told = came[name.replace(".", "_")]
        if name not in wanted:
            assert "there is no tool" in str(told)
        elif _needs_id(name):
            assert "not-found" in str(told), told  # it was done, and there is nothing of that id
        else:
            assert worked, told


def _plain(name: str) -> dict[str, object]:
    return dict(TOOLKIT_CALLS[name][0])


def _needs_id(name: str) -> bool:
    return "id" in TOOLKIT_CALLS[name][0]


@pytest.mark.item("coqui-62")
def test_what_a_coding_agent_leaves_belongs_to_the_session(tmp_path: Path) -> None:
    """And a stage that is begun anew and says the same again leaves it once for each call."""
    (tmp_path / "home").mkdir()
    calls: list[tuple[str, dict[str, object]]] = [("todo_add", {"todos": [{"title": "t"}]})] * 2
    asking_cli.install(tmp_path / "bin", calls)

    async def work() -> list[str]:
        await played(tmp_path, "full")
        async with local(Settings(home=tmp_path / "data", durability="normal")) as here:
            return [str(one.values["created_by"]) for one in here.trackers.all(SESSION, "todo")]

    assert asyncio.run(work()) == ["coder", "coder"]


def job(top: Path, run: str, effect: str = "main/agent#1") -> EffectJob:
    return effect_job(
        run=run,
        effect=effect,
        path="main",
        iteration=1,
        attempt=1,
        call=AgentCall(agent="worker"),
        workspace=str(top),
        token="t",
        scope=SESSION,
        agent=Agent(spec="claude", access="full"),
    )


def test_nobody_else_gets_in(tmp_path: Path) -> None:
    """The folder is this user's alone, a wrong token is turned away, and afterwards all is gone."""

    async def work() -> None:
        async with local(Settings(home=tmp_path / "data", durability="normal")) as here:
            start = RunStart(plan=plan("full"), workspace=tmp_path, drive=False)
            run = await here.service.start(start)
            shop = open_workshop(os.environ, "t")
            servers = StageServers(here.tracker_scopes, shop, tmp_path / "results")
            agent = Agent(spec="claude", access="full")
            async with servers.serve(job(tmp_path, run), agent) as server:
                assert server is not None
                folder = Path(server.config).parent
                assert stat.S_IMODE(folder.stat().st_mode) == 0o700
                assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
                reader, writer = await asyncio.open_unix_connection(folder / "socket")
                writer.write(b"wrong\n")
                assert await asyncio.wait_for(reader.read(), 60) == b""
                writer.close()
                words = " ".join(server.argv)
                assert (folder / "token").read_text().strip() not in words
            assert not folder.exists()
            async with servers.serve(job(tmp_path, run), Agent(spec="claude")) as none:
                assert none is None
            await shop.close()

    asyncio.run(work())


def test_the_same_words_again_after_a_crash_change_nothing(tmp_path: Path) -> None:
    """The key is the effect, the tool, what was said, and how often: the second life adds none."""

    async def work() -> int:
        async with local(Settings(home=tmp_path / "data", durability="normal")) as here:
            start = RunStart(plan=plan("full"), workspace=tmp_path, drive=False)
            run = await here.service.start(start)
            shop = open_workshop(os.environ, "t")
            servers = StageServers(here.tracker_scopes, shop, tmp_path / "results")
            for _ in range(2):  # two lives of one effect
                served = await servers._served(job(tmp_path, run), ("todo.add",))
                for _ in range(3):
                    await served.answer("todo_add", {"todos": [{"title": "again"}]})
            await shop.close()
            return len(here.trackers.all(SESSION, "todo"))

    assert asyncio.run(work()) == 3
