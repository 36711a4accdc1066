"""What may change while a run is under way, and what stays as it was."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from loopwright.dialects import rondoflow
from loopwright.errors import Conflict, NotFound
from loopwright.model.plan import Agent, Plan
from loopwright.operations.run_request import RunStart
from loopwright.operations.settings import Settings
from loopwright.operations.wiring import Local, local
from loopwright.syntax.document import Document

PROBE = """\
import os, pathlib, sys, time
system = os.environ.get("LOOPWRIGHT_SYSTEM", "")
model = os.environ.get("LOOPWRIGHT_MODEL", "")
number = os.environ["LOOPWRIGHT_ITERATION"]
pathlib.Path(f"seen-{number}").write_text(f"{system}/{model}")
while number == "1" and not pathlib.Path("go").exists():
    time.sleep(0.01)
print("pass", number)
"""


def assistant(agent: str) -> Plan:
    """An assistant of two iterations with a persona, bound to a program."""
    value = {
        "name": "helper",
        "persona": "You are careful.",
        "model": "small",
        "loopEnabled": True,
        "loopCriteria": {"type": "max_iterations", "value": ""},
        "maxIterations": 2,
    }
    plan, found = rondoflow.lower(Document.plain(value, file="assistant.json"))
    assert plan is not None, found
    (name,) = plan.agents
    spec = msgspec.structs.replace(plan.agents[name], spec=agent)
    return msgspec.structs.replace(plan, agents={name: spec})


async def seen(workspace: Path, number: int) -> str:
    file = workspace / f"seen-{number}"
    for _ in range(3_000):
        if file.exists() and file.read_text():
            return file.read_text()
        await asyncio.sleep(0.02)
    raise AssertionError(f"pass {number} did not begin")


async def started(here: Local, workspace: Path) -> tuple[str, str, Agent]:
    (workspace / "probe.py").write_text(PROBE)
    plan = assistant("command:python3 probe.py")
    run = await here.service.start(RunStart(plan=plan, workspace=workspace, message="go"))
    ((name, agent),) = plan.agents.items()
    return run, name, agent


@pytest.mark.item("rondoflow-18")
def test_an_edited_persona_and_model_reach_the_next_iteration(tmp_path: Path) -> None:
    """The iteration under way keeps what it was given; the next one sees the edit; the cap
    stays.
    """

    async def body() -> None:
        async with local(Settings(home=tmp_path / "home")) as here:
            run, name, agent = await started(here, tmp_path)
            assert await seen(tmp_path, 1) == "You are careful./small"
            edited = msgspec.structs.replace(agent, system="You are bold.", model="large")
            await here.service.change_agent(run, name, edited, by="ann")
            (tmp_path / "go").touch()
            await here.driver.rest(run)
            assert await seen(tmp_path, 2) == "You are bold./large"
            state = here.service.state(run)
            assert state.finished is not None
            assert (state.finished.outcome, state.finished.reason) == (
                "completed",
                "max_iterations",
            )
            assert state.root.body.results["main"].iterations == 2

    asyncio.run(body())


def test_only_an_agent_of_an_open_run_can_be_edited(tmp_path: Path) -> None:
    """An unknown name is refused, and so is a run that has ended."""

    async def body() -> None:
        async with local(Settings(home=tmp_path / "home")) as here:
            (tmp_path / "go").touch()
            run, name, agent = await started(here, tmp_path)
            with pytest.raises(NotFound, match="nobody"):
                await here.service.change_agent(run, "nobody", agent)
            await here.driver.rest(run)
            with pytest.raises(Conflict, match="has ended"):
                await here.service.change_agent(run, name, agent)

    asyncio.run(body())


def test_an_edit_leaves_what_lists_show(tmp_path: Path) -> None:
    """A run that is paused while an agent is edited is shown as paused, whoever comes first."""

    async def body() -> None:
        async with local(Settings(home=tmp_path / "home")) as here:
            run, name, agent = await started(here, tmp_path)
            await seen(tmp_path, 1)
            service = here.service
            await asyncio.gather(service.pause(run), service.change_agent(run, name, agent))
            assert here.log.row(run).headline.status == "paused"
            await service.stop(run)
            await here.driver.rest(run)

    asyncio.run(body())


def test_runs_are_found_by_short_names(tmp_path: Path) -> None:
    """`last` is the newest run; the end of an id is enough when only one has it."""

    async def body() -> None:
        async with local(Settings(home=tmp_path / "home")) as here:
            (tmp_path / "go").touch()
            first, *_ = await started(here, tmp_path)
            second, *_ = await started(here, tmp_path)
            await here.driver.rest(first)
            await here.driver.rest(second)
            assert here.service.find("last") == second
            assert here.service.find(first[-8:]) == first
            with pytest.raises(NotFound):
                here.service.find("zzzzzzzz")

    asyncio.run(body())
