"""Exclusive workspaces: a second run is refused, and how a folder is released."""

from pathlib import Path

import pytest

from loopwright.errors import Conflict
from loopwright.model.actions import AskPerson, Step
from loopwright.model.plan import Plan
from loopwright.operations.run_control import reopen
from loopwright.operations.run_request import RunStart
from loopwright.testing import always, never
from loopwright.testing.fakes import failed
from tests.engine.world import Process, World, quiet, run
from tests.support.plans import WORKER

ALONE = Plan(name="alone", steps=(Step(id="a", action=WORKER),), exclusive="workspace")
ASKS = Plan(name="asks", steps=(Step(id="a", action=AskPerson()),), exclusive="workspace")


async def begin(process: Process, folder: Path, plan: Plan = ALONE) -> str:
    name = await process.service.start(RunStart(plan=plan, workspace=folder, message="Go."))
    await quiet()
    return name


@pytest.mark.parametrize(
    ("plan", "dies", "state"),
    [
        pytest.param(ALONE, False, "running", id="driven"),
        pytest.param(ALONE, True, "left behind by a process that is gone", id="nobody drives it"),
        pytest.param(ASKS, False, "waiting for a person", id="waiting"),
    ],
)
@pytest.mark.item("archon-65")
def test_a_folder_holds_one_run(plan: Plan, dies: bool, state: str, tmp_path: Path) -> None:
    """A second run in it is refused, also by another way to the folder and another definition, and
    told who holds it and how that one stands."""

    async def body() -> None:
        world = World()
        process = world.process(never())
        holder = await begin(process, tmp_path, plan)
        if dies:
            world.kill(process)
            process = world.process(never())
        (tmp_path / "link").symlink_to(tmp_path)
        for folder in (tmp_path, tmp_path / "link"):
            with pytest.raises(Conflict) as error:
                await begin(process, folder)
            assert error.value.code == "key-taken"
            assert f"{holder} ({plan.name}) holds workspace {tmp_path}" in str(error.value)
            assert f"it is {state}" in str(error.value)
            assert f"loopwright stop {holder}" in str(error.value)
        assert [row.run for row in process.log.rows()] == [holder]

    run(body())


@pytest.mark.item("archon-65")
def test_a_paused_run_holds_its_folder(tmp_path: Path) -> None:
    """Whoever is not driven is not gone."""

    async def body() -> None:
        process = World().process(never())
        holder = await begin(process, tmp_path)
        await process.service.pause(holder)
        with pytest.raises(Conflict, match="it is paused"):
            await begin(process, tmp_path)

    run(body())


def test_other_folders_and_other_plans_are_free(tmp_path: Path) -> None:
    """Only runs that want a folder for themselves are kept out of it."""

    async def body() -> None:
        process = World().process(never())
        (tmp_path / "other").mkdir()
        plain = Plan(name="plain", steps=ALONE.steps)
        await begin(process, tmp_path)
        await begin(process, tmp_path / "other")
        await begin(process, tmp_path, plain)
        assert len(process.log.rows(statuses=("running",))) == 3

    run(body())


@pytest.mark.item("archon-64")
def test_a_killed_run_can_be_abandoned(tmp_path: Path) -> None:
    """It holds its folder until somebody stops it; then the next may start."""

    async def body() -> None:
        world = World()
        killed = world.process(never())
        holder = await begin(killed, tmp_path)
        world.kill(killed)
        process = world.process(always("ok"))
        assert process.status(holder) == "running"
        with pytest.raises(Conflict, match=holder):
            await begin(process, tmp_path)
        await process.service.stop(holder, by="ann")
        await quiet()
        assert process.status(holder) == "cancelled"
        name = await begin(process, tmp_path)
        assert process.status(name) == "completed"

    run(body())


@pytest.mark.item("archon-66")
def test_a_plain_run_never_takes_up_an_old_one(tmp_path: Path) -> None:
    """After a failure, or beside one that was left behind, a start is a start: a new id, from the
    first step on; the old run stays as it was."""

    async def body() -> None:
        world = World()
        process = world.process(lambda job: failed("agent"))
        old = await begin(process, tmp_path)
        before = process.events(old)
        process.scripted.script = always("ok")
        new = await begin(process, tmp_path)
        assert new != old
        assert process.status(new) == "completed"
        assert process.events(old) == before
        assert [job.run for job in process.scripted.jobs] == [old, new]

    run(body())


def test_who_continues_needs_the_folder_too(tmp_path: Path) -> None:
    """A run that failed let go of its folder; while another has it, it stays closed."""

    async def body() -> None:
        process = World().process(lambda job: failed("agent"))
        old = await begin(process, tmp_path)
        process.scripted.script = never()
        new = await begin(process, tmp_path)
        with pytest.raises(Conflict, match=f"{new} .alone. holds"):
            await reopen(process.service, old)
        await process.service.stop(new)
        await quiet()
        await reopen(process.service, old)
        assert process.status(old) == "running"

    run(body())
