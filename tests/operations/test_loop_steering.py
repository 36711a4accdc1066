"""Steering loops of roles: edits, what a loop stopped at, and what it has spent so far."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from loopwright.errors import Conflict, LoopwrightError, NotFound
from loopwright.kernel.events import EffectRequested, RunEdited, StepKept
from loopwright.model.record import JsonValue
from loopwright.operations.loops import loop_details
from loopwright.operations.loops.loop_details import LoopEdit, edit_of
from loopwright.operations.settings import Settings
from loopwright.operations.use_cases.role_loops import RoleLoops, StartRoleLoop
from loopwright.operations.wiring import Local, local
from tests.operations.test_loop_records import reply, round_of
from tests.support.laws.log import check_invariants

Test = Callable[["Played"], Coroutine[Any, Any, None]]
BLOCKED = "STATUS: BLOCKED\nNo credentials."


class Played:
    """A home with loops whose roles say what a file says."""

    def __init__(self, here: Local, folder: Path) -> None:
        self.here = here
        self.folder = folder
        self.home = folder / "home"
        self.loops = self.with_agents()

    def with_agents(self, *agents: str) -> RoleLoops:
        settings = Settings(home=self.home)
        return RoleLoops(here=self.here, settings=settings, cwd=self.folder, agents=agents)

    def says(self, *rounds: dict[str, Any]) -> None:
        """What each role says in each round; of several replies, each once."""
        said = [
            {"when": {"agent": agent, "iteration": number}, **reply(one)}
            for number, texts in enumerate(rounds, start=1)
            for agent, told in texts.items()
            for one in (told if isinstance(told, list) else [told])
        ]
        file = self.folder / "replies.yaml"
        file.write_text(yaml.safe_dump({"replies": said}), encoding="utf-8")
        self.loops = self.with_agents(f"script:{file}")

    def define(self, name: str, **changes: Any) -> None:
        value = {
            "name": name,
            "description": "A loop",
            "roles": [
                {"role": "plan", "prompt": "Plan it."},
                {"role": "coder", "prompt": "Do it."},
                {"role": "reviewer", "prompt": "Read it."},
            ],
            "termination_condition": {"type": "evaluation_bound", "value": "It works"},
            **changes,
        }
        folder = self.home / "loops"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(yaml.safe_dump(value), encoding="utf-8")

    async def start(self, definition: str = "harness", **more: Any) -> str:
        told = await self.loops.start(StartRoleLoop(definition=definition, goal="Build it", **more))
        return told.loop_id

    async def rested(self, definition: str = "harness", **more: Any) -> str:
        run = await self.start(definition, **more)
        await self.here.driver.rest(run)
        return run

    async def edit(self, run: str, wanted: LoopEdit, by: str = "") -> None:
        await loop_details.edit(self.here.service, run, wanted, by=by)

    async def retry(self, run: str, note: str = "") -> None:
        await loop_details.retry(self.here.service, run, note=note)

    async def skip(self, run: str) -> None:
        await loop_details.skip(self.here.service, run)

    def live(self, run: str) -> Any:
        return msgspec.to_builtins(loop_details.live(self.here.service, run))

    def active(self) -> int:
        return len(self.loops.rows("running"))

    def status(self, run: str) -> Any:
        return msgspec.to_builtins(self.loops.status(run))

    def stages(self, run: str) -> list[str]:
        return [one["status"] for one in self.status(run)["stages"]]

    def asked(self, run: str) -> list[str]:
        events = [one.event for one in self.here.service.events(run)]
        return [event.path for event in events if isinstance(event, EffectRequested)]


def in_a_home(test: Test) -> Callable[[Path], None]:
    """Run a test in a home that drives its loops in this process; its log is sound afterwards."""

    async def run(tmp_path: Path) -> None:
        async with local(Settings(home=tmp_path / "home")) as here:
            await test(Played(here, tmp_path))
            assert check_invariants(here.log) == []

    def called(tmp_path: Path) -> None:
        asyncio.run(run(tmp_path))

    called.__name__, called.__doc__ = test.__name__, test.__doc__
    return called


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that another process or the driver brings about."""
    async with asyncio.timeout(seconds):
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)


# -- edits -----------------------------------------------------------------------------------------


@pytest.mark.item("coqui-54")
@in_a_home
async def test_goal_cap_metadata_and_labels_are_changed(played: Played) -> None:
    """Each is seen from then on; metadata is merged, labels are replaced; who did it is kept."""
    played.says(round_of("x", plan={"text": "p", "delay": 60}))
    run = await played.start()
    loops = played.loops
    await played.edit(
        run,
        edit_of({"goal": "Other", "max_iterations": 9, "metadata": {"a": {"b": 1}, "l": [1, 2]}}),
    )
    await played.edit(run, edit_of({"metadata": {"a": {"c": 2}, "l": [3]}}), by="ann")
    await played.edit(run, edit_of({"labels": ["x", "y", "x "]}))
    told = played.status(run)
    assert (told["goal"], told["max_iterations"]) == ("Other", 9)
    del told["metadata"]["dispatch"]
    assert told["metadata"] == {"a": {"b": 1, "c": 2}, "l": [3]}
    assert told["labels"] == ["x", "y"]
    rows = [row for row in played.here.log.audited(subject=run) if row.action == "run.edited"]
    assert ("ann", "metadata") in {(row.who, row.detail) for row in rows}
    await played.edit(run, LoopEdit(unlimited=True))
    assert played.status(run)["max_iterations"] is None
    await loops.control("stop", run)
    with pytest.raises(Conflict):
        await played.edit(run, LoopEdit(goal="Too late"))


@pytest.mark.item("coqui-54")
@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param({}, "missing-field", id="empty"),
        pytest.param([], "missing-field", id="a list"),
        pytest.param({"status": "completed"}, "unknown-field", id="another field"),
        pytest.param({"goal": "  "}, "missing-field", id="empty goal"),
        pytest.param({"goal": 1}, "missing-field", id="goal is a number"),
        pytest.param({"max_iterations": 0}, "out-of-range", id="no iteration"),
        pytest.param({"max_iterations": True}, "out-of-range", id="a yes"),
        pytest.param({"metadata": []}, "bad-value", id="metadata is a list"),
        pytest.param({"metadata": {"dispatch": {}}}, "bad-value", id="what the loop itself tells"),
        pytest.param({"labels": ["a", " "]}, "bad-value", id="empty label"),
        pytest.param({"labels": "a"}, "bad-value", id="labels are a text"),
    ],
)
def test_a_bad_edit_is_refused(body: JsonValue, code: str) -> None:
    """Nothing of it is taken."""
    with pytest.raises(LoopwrightError) as refused:
        edit_of(body)
    assert refused.value.code == code


@pytest.mark.item("coqui-54")
@in_a_home
async def test_a_cap_below_the_iteration_is_a_conflict(played: Played) -> None:
    """The loop is in its second iteration; nothing is changed by what is refused."""
    played.says(round_of("Rejected"), round_of("x", plan={"text": "p", "delay": 60}))
    run = await played.start()
    await until(lambda: played.status(run)["current_iteration"] == 2)
    with pytest.raises(Conflict) as refused:
        await played.edit(run, LoopEdit(max_iterations=1, goal="x"))
    assert refused.value.code == "below-current"
    assert played.status(run)["goal"] == "Build it"
    await played.edit(run, LoopEdit(max_iterations=2))
    await played.loops.control("stop", run)


@in_a_home
async def test_a_loop_that_counts_needs_its_cap(played: Played) -> None:
    """One that ends by its iterations alone would never end."""
    end = {"type": "iteration_bound", "value": 2}
    played.define("twice", termination_condition=end)
    played.says(round_of("x", plan={"text": "p", "delay": 60}))
    run = await played.start("twice")
    with pytest.raises(Conflict):
        await played.edit(run, LoopEdit(unlimited=True))
    await played.loops.control("stop", run)
    with pytest.raises(NotFound):
        await played.edit("run_none", LoopEdit(goal="x"))


@pytest.mark.item("coqui-55")
@in_a_home
async def test_the_next_stage_receives_the_new_goal(played: Played) -> None:
    """The stage under way was asked for the old one, the ones after it are asked for the new."""
    program = played.folder / "agent.sh"
    program.write_text(
        "#!/bin/sh\ncat >> prompts.txt\n"
        "if [ ! -e first ]; then : > first; while [ ! -e go ]; do sleep 0.02; done; fi\n"
        "echo APPROVED\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    roles = [{"role": "coder", "prompt": "ONE"}, {"role": "coder", "prompt": "TWO"}]
    played.define("pair", roles=roles)
    played.loops = played.with_agents(f"command:{program}")
    run = await played.start("pair")
    await until((played.folder / "first").exists)
    await played.edit(run, LoopEdit(goal="Build another"))
    (played.folder / "go").touch()
    await played.here.driver.rest(run)
    first, second = (played.folder / "prompts.txt").read_text().split("# Loop: pair")[1:]
    assert "## Goal\n\nBuild it\n" in first
    assert "## Goal\n\nBuild another\n" in second


# -- what it stopped at ----------------------------------------------------------------------------


@in_a_home
async def test_a_failed_stage_is_tried_again_in_its_place(played: Played) -> None:
    """The stage before is not asked again, the note is told to this one alone, and the history has
    each iteration once.
    """
    coder = [{"fail": "no space"}, "The work."]
    played.says(round_of("Rejected"), round_of("APPROVED", coder=coder))
    run = await played.rested()
    assert (played.status(run)["status"], played.stages(run)) == (
        "failed",
        ["completed", "failed", "cancelled"],
    )
    before = len(played.asked(run))
    assert await played.loops.control("retry", run, note="mind the gap", by="ann") == (
        f"{run}: tries again"
    )
    await played.here.driver.rest(run)
    assert played.asked(run)[before:] == ["main~2.1.implement", "main~2.1.evaluate"]
    told = played.status(run)
    assert (told["status"], told["current_iteration"]) == ("completed", 2)
    assert played.stages(run) == ["completed"] * 3
    assert told["stages"][0]["summary"] == "The plan."


@in_a_home
async def test_a_failed_stage_is_left_out(played: Played) -> None:
    """Its place says so, and the one after it has its turn."""
    played.says(round_of("APPROVED", coder={"fail": "no space"}))
    run = await played.rested()
    await played.loops.control("skip", run, note="by hand")
    await played.here.driver.rest(run)
    told = played.status(run)
    assert (told["status"], told["stages"][1]["summary"]) == (
        "completed",
        "SKIPPED by a person: by hand",
    )
    events = [one.event for one in played.here.service.events(run)]
    assert [event.reason for event in events if isinstance(event, StepKept)] == ["kept", "skipped"]


@in_a_home
async def test_a_blocked_stage_is_tried_again_or_left_out(played: Played) -> None:
    """Both are an answer to the question that is open; the first one asks again."""
    played.says(round_of("APPROVED", coder=[BLOCKED, BLOCKED]))
    run = await played.rested()
    assert played.status(run)["status"] == "blocked"
    await played.retry(run, "here they are")
    await played.here.driver.rest(run)
    assert played.status(run)["status"] == "blocked"
    await played.skip(run)
    await played.here.driver.rest(run)
    assert played.status(run)["status"] == "completed"


@in_a_home
async def test_rounds_rejected_too_often_continue_with_a_note(played: Played) -> None:
    """There is no stage to leave out then."""
    played.define("twice", max_rework_attempts=1)
    played.says(round_of("Rejected"), round_of("APPROVED"))
    run = await played.rested("twice")
    assert played.status(run)["status"] == "blocked"
    with pytest.raises(Conflict):
        await played.skip(run)
    await played.retry(run, "try this")
    await played.here.driver.rest(run)
    assert played.status(run)["status"] == "completed"


@in_a_home
async def test_what_a_person_ended_continues_too(played: Played) -> None:
    """Rejected after a whole round: another one begins, and nothing is left out."""
    played.define("twice", max_rework_attempts=1)
    played.says(round_of("Rejected"), round_of("APPROVED"))
    run = await played.rested("twice")
    await played.here.service.answer(run, "reject")
    await played.here.driver.rest(run)
    assert played.status(run)["status"] == "failed"
    with pytest.raises(Conflict):
        await played.skip(run)
    await played.retry(run)
    await played.here.driver.rest(run)
    assert played.status(run)["status"] == "completed"


@in_a_home
async def test_nothing_is_tried_again_that_did_not_stop(played: Played) -> None:
    """Loops under way, completed, stopped or at their cap are left alone, with a reason."""
    played.says(round_of("Rejected"))
    capped = await played.rested(max_iterations=1)
    with pytest.raises(Conflict) as refused:
        await played.retry(capped)
    assert "--max" in refused.value.message
    played.says(round_of("APPROVED"))
    done = await played.rested()
    with pytest.raises(Conflict):
        await played.skip(done)
    played.says(round_of("x", plan={"text": "p", "delay": 60}))
    running = await played.start()
    with pytest.raises(Conflict):
        await played.retry(running)
    with pytest.raises(LoopwrightError):
        await played.loops.control("retry", "all")
    await played.loops.control("stop", running)


# -- how it stands ---------------------------------------------------------------------------------


@pytest.mark.item("coqui-49")
@in_a_home
async def test_active_means_running(played: Played) -> None:
    """Loops that are paused, blocked or over are not counted."""
    slow = round_of("x", plan={"text": "p", "delay": 60})
    played.says(slow)
    runs = [await played.start() for _ in range(3)]
    assert played.active() == 3
    await played.loops.control("pause", runs[0])
    await played.loops.control("stop", runs[1])
    played.says(round_of("x", plan=BLOCKED))
    await played.rested()
    assert played.active() == 1
    await played.loops.control("stop", "all")
    assert played.active() == 0


@pytest.mark.item("coqui-70")
@in_a_home
async def test_live_spend_is_the_sum_over_stages(played: Played) -> None:
    """Tries and iterations count together, and a stage that told nothing counts as zero."""
    usage = {"input_tokens": 100, "output_tokens": 20, "usd": 0.5}
    played.says(
        round_of("Rejected", plan={"text": "p", "usage": usage}),
        round_of("APPROVED", coder=[{"fail": "no", "usage": usage}, {"text": "c", "usage": usage}]),
    )
    run = await played.rested()
    await played.retry(run)
    await played.here.driver.rest(run)
    told: Any = played.live(run)
    by_stage = [(one["iteration"], one["role"], one["tokens"]) for one in told["stages"]]
    assert by_stage == [
        *[(1, "plan", 120), (1, "coder", 0), (1, "reviewer", 0)],
        *[(2, "plan", 0), (2, "coder", 240), (2, "reviewer", 0)],
    ]
    assert told["budget"]["tokens"] == sum(tokens for _, _, tokens in by_stage)
    assert told["budget"]["usd"] == 1.5
    assert told["budget"]["iterations"] == {"used": 2, "max": 5}
    assert told["current_stage"] is None
    seqs = [one["seq"] for one in told["recent_events"]]
    assert seqs == sorted(seqs, reverse=True)
    with pytest.raises(NotFound):
        played.live("run_none")


@pytest.mark.item("coqui-19")
@in_a_home
async def test_the_stage_under_way_is_shown_with_its_task(played: Played) -> None:
    """Its dispatch has the ids of the task and of the stage, soon after the start."""
    played.says(round_of("x", plan={"text": "p", "delay": 60}))
    run = await played.start()
    await until(lambda: played.status(run)["metadata"]["dispatch"]["status"] != "pending")
    sent = played.status(run)["metadata"]["dispatch"]
    assert (sent["status"], sent["task_id"], sent["stage_id"], sent["stage_index"]) == (
        *("dispatched", "main.0.plan/agent#1", "main.0.plan", 0),
    )
    stage = played.live(run)["current_stage"]
    assert isinstance(stage, dict)
    assert (stage["role"], stage["task_id"]) == ("plan", sent["task_id"])
    await played.loops.control("stop", run)


def test_an_edit_names_what_it_changes() -> None:
    """The event leaves out what stays as it was."""
    event = RunEdited(at=1, labels=())
    assert (event.message, event.passes, event.metadata) == (None, None, None)
