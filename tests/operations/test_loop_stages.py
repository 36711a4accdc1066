"""Stages of loops of roles: who moves them, side by side or not, and what becomes of lost ones."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from loopwright.errors import Conflict
from loopwright.kernel.events import EffectFailed, StepFinished, StepStarted
from loopwright.model.trackers import Item, TrackerChange
from loopwright.operations.preflight import check_health
from loopwright.operations.use_cases.role_loops import RoleLoops, StartRoleLoop
from loopwright.operations.wiring import Local
from tests.operations.test_loop_records import round_of
from tests.operations.test_loop_steering import Played, in_a_home, until

BOTH = [{"role": "coder", "prompt": "ONE"}, {"role": "coder", "prompt": "TWO"}]


def program(played: Played, text: str, name: str = "agent.sh") -> str:
    """A program behind the roles."""
    file = played.folder / name
    file.write_text(f"#!/bin/sh\n{text}", encoding="utf-8")
    file.chmod(0o755)
    return f"command:{file}"


def programs_of(played: Played) -> list[bytes]:
    """What runs of the programs behind the roles."""
    found: list[bytes] = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append(place.read_bytes())
    return [line for line in found if bytes(played.folder) in line]


# -- who moves it ----------------------------------------------------------------------------------


@pytest.mark.item("coqui-17")
@in_a_home
async def test_without_a_worker_nothing_is_started(played: Played) -> None:
    """The worker is closed or has not been heard for long, or the workspace is not there: the
    refusal says which, and neither a loop nor a project is left behind.
    """
    options = StartRoleLoop(definition="harness", goal="x")
    played.says(round_of("APPROVED"))
    gone = RoleLoops(
        here=played.here,
        settings=played.loops.settings,
        cwd=played.folder / "gone",
        agents=played.loops.agents,
    )
    driver = played.here.driver
    for loops, silent, words in (
        (gone, 0, "is not there"),
        (played.loops, 60_000, "has not responded for 60 s"),
    ):
        driver.looked_at -= silent
        with pytest.raises(Conflict, match=words) as refused:
            await loops.start(options)
        assert refused.value.code == "no-worker"
        driver.looked_at += silent
    await driver.close()
    with pytest.raises(Conflict, match="has been closed"):
        await played.loops.start(options)
    assert played.loops.rows() == []
    assert played.here.trackers.all("*", "project") == []


@pytest.mark.item("coqui-17")
@pytest.mark.parametrize(
    ("told", "words"),
    [
        pytest.param({"status": "ill"}, "ill", id="ill"),
        pytest.param(
            {"status": "ok", "managers": {"loops": {"ready": False, "last_tick_at": "T"}}},
            "its loops have not moved since T",
            id="not moving",
        ),
        pytest.param(
            {"managers": {"tasks": {"ready": False}}}, "since its start", id="never moved"
        ),
    ],
)
def test_a_server_that_would_not_move_it_gets_nothing(told: object, words: str) -> None:
    """Its health is asked before anything is sent there."""
    with pytest.raises(Conflict, match=words):
        check_health(told, "http://there")


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(None, id="nothing"),
        pytest.param({"status": "ok", "managers": {"loops": {"ready": True}}}, id="well"),
        pytest.param({"managers": {"loops": "?"}}, id="another form"),
    ],
)
def test_a_server_that_is_well_is_believed(told: object) -> None:
    """One that does not tell is not refused."""
    check_health(told, "http://there")


# -- side by side ----------------------------------------------------------------------------------


@pytest.mark.item("coqui-20")
@in_a_home
async def test_stages_never_overlap_and_loops_do(played: Played) -> None:
    """The first stage of each loop ends only when the other loop's has begun; within a loop each
    begins after the one before it has ended.
    """
    played.define("pair", roles=BOTH)
    wait = 'while [ "$(ls begun | wc -l)" -lt 2 ]; do sleep 0.02; done'
    agent = program(played, f'mkdir -p begun; : > "begun/$LOOPWRIGHT_RUN"\n{wait}\necho APPROVED\n')
    played.loops = played.with_agents(agent)
    runs = [await played.start("pair") for _ in range(2)]
    async with asyncio.timeout(60):
        for run in runs:
            await played.here.driver.rest(run)
    for run in runs:
        assert played.status(run)["status"] == "completed"
        events = [one.event for one in played.here.service.events(run)]
        moves = [
            (type(event), event.path)
            for event in events
            if isinstance(event, StepStarted | StepFinished) and event.path != "main"
        ]
        first, second = dict.fromkeys(path for _, path in moves)
        assert moves == [
            *((StepStarted, first), (StepFinished, first)),
            *((StepStarted, second), (StepFinished, second)),
        ]


@pytest.mark.item("coqui-23")
@in_a_home
async def test_every_stage_has_a_session_of_its_own(played: Played) -> None:
    """Each agent begins afresh, also in the next round; all belong to the session of the loop."""

    def said(number: int, review: str) -> dict[str, Any]:
        names = ("plan", "coder", "reviewer")
        return {
            name: {"text": review if name == "reviewer" else name, "session": f"{name}-{number}"}
            for name in names
        }

    played.says(said(1, "Rejected"), said(2, "APPROVED"))
    run = await played.rested(session="talk-1")
    told = played.status(run)
    assert told["session_id"] == "talk-1"
    assert [(one["session_id"], one["parent_session_id"]) for one in told["stages"]] == [
        ("plan-2", "talk-1"),
        ("coder-2", "talk-1"),
        ("reviewer-2", "talk-1"),
    ]
    played.loops = played.with_agents(
        program(played, 'echo "<$LOOPWRIGHT_SESSION>" >> given; echo APPROVED\n')
    )
    played.define("pair", roles=BOTH)
    alone = await played.rested("pair")
    assert (played.folder / "given").read_text().split() == ["<>", "<>"]
    assert played.status(alone)["session_id"] == alone


# -- lost and broken -------------------------------------------------------------------------------


def end_program(supervisor: str) -> None:
    """End the program below a supervisor, in a sandbox or not."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)


@pytest.mark.item("coqui-39")
@in_a_home
async def test_a_stage_that_is_killed_fails_the_loop(played: Played) -> None:
    """Whoever ends the process of a stage from outside has ended the loop; what failed is told."""
    played.define("pair", roles=BOTH)
    played.loops = played.with_agents(
        program(played, "echo $LOOPWRIGHT_SUPERVISOR > pid.new\nmv pid.new pid\nsleep 60\n")
    )
    run = await played.start("pair")
    await until((played.folder / "pid").exists)
    end_program((played.folder / "pid").read_text().partition(":")[0])
    await played.here.driver.rest(run)
    told = played.status(run)
    assert (told["status"], told["stages"][0]["status"]) == ("failed", "failed")
    assert told["stages"][0]["summary"].startswith("FAILED: ")
    assert told["completed_at"] is not None


@pytest.mark.item("coqui-40")
@in_a_home
async def test_a_stage_that_cannot_be_sent_fails_the_loop(played: Played) -> None:
    """The program went away after the start: the dispatch record has the error and its ids."""
    played.define("pair", roles=BOTH)
    played.loops = played.with_agents(program(played, 'rm "$0"; echo done\n'))
    run = await played.rested("pair")
    told = played.status(run)
    sent = told["metadata"]["dispatch"]
    assert (told["status"], sent["status"], sent["stage_id"]) == (
        *("failed", "failed", "main.0.coder-2"),
    )
    assert "not_found" in sent["message"]
    assert sent["task_id"] == "main.0.coder-2/agent#1"


@pytest.mark.item("coqui-41")
@pytest.mark.parametrize(
    ("limit", "kind"),
    [
        pytest.param({"max_silence": 1}, "idle_timeout", id="silent"),
        pytest.param({"max_seconds": 1}, "wall_timeout", id="too long"),
    ],
)
def test_a_stage_without_a_sign_of_life_or_over_time_is_killed(
    limit: dict[str, int], kind: str, tmp_path: Path
) -> None:
    """Its process is gone and its loop has failed."""

    @in_a_home
    async def play(played: Played) -> None:
        chatty = "while :; do echo .; sleep 0.1; done" if kind == "wall_timeout" else "sleep 60"
        played.define("one", roles=[{"role": "coder", "prompt": "x", **limit}])
        played.loops = played.with_agents(program(played, f"{chatty}\n"))
        run = await played.rested("one")
        events = [one.event for one in played.here.service.events(run)]
        assert [event.error.type for event in events if isinstance(event, EffectFailed)] == [kind]
        assert played.status(run)["status"] == "failed"
        assert programs_of(played) == []

    play(tmp_path)


def test_a_stage_has_an_hour_by_default(tmp_path: Path) -> None:
    """Nobody has to say it."""

    @in_a_home
    async def play(played: Played) -> None:
        played.says(round_of("APPROVED"))
        run = await played.rested()
        agents = played.here.service.state(run).plan.agents
        assert {one.wall_ms for one in agents.values()} == {3_600_000}

    play(tmp_path)


# -- artifacts -------------------------------------------------------------------------------------


ARTIFACT = [
    {"role": "plan", "prompt": "Plan it.", "artifact_required": True},
    {"role": "reviewer", "prompt": "Read it."},
]


def supply(here: Local, scope: str, title: str) -> None:
    """Leave an artifact in a session, as a person or another tool would."""
    item = Item(
        scope=scope,
        kind="artifact",
        id=f"id-{title}",
        at=here.service.clock.now_ms(),
        values={"title": title, "type": "document", "content": "x"},
    )

    def work(book: TrackerChange) -> str:
        book.put(item)
        return "ok"

    here.trackers.change(f"test/{title}", work)


@pytest.mark.item("coqui-66")
@in_a_home
async def test_a_missing_artifact_blocks_and_supplying_it_continues(played: Played) -> None:
    """The stage said a lot and left nothing: the loop is blocked before the next one. With the
    artifact there, trying again goes on without asking the agent once more.
    """
    played.define("left", roles=ARTIFACT)
    played.says({"plan": "A long plan.", "reviewer": "APPROVED"})
    run = await played.rested("left", session="talk-1")
    assert played.status(run)["status"] == "blocked"
    (gate,) = played.here.service.log.gates(run)
    assert "artifact" in gate.message
    supply(played.here, "talk-1", "plan")
    await played.retry(run)
    await played.here.driver.rest(run)
    assert played.status(run)["status"] == "completed"
    assert played.asked(run).count("main.0.plan") == 3  # the agent once, and two looks


@in_a_home
async def test_without_the_artifact_the_stage_is_asked_again_or_left(played: Played) -> None:
    """Trying again asks the agent once more, which is looked at anew; leaving it out goes on."""
    played.define("left", roles=ARTIFACT)
    played.says({"plan": ["A plan.", "Another."], "reviewer": "APPROVED"})
    run = await played.rested("left")
    await played.retry(run, "leave it this time")
    await played.here.driver.rest(run)
    assert played.status(run)["status"] == "blocked"
    await played.skip(run)
    await played.here.driver.rest(run)
    assert played.status(run)["status"] == "completed"


@in_a_home
async def test_an_artifact_of_the_stage_itself_is_seen(played: Played) -> None:
    """One that was there when the stage ended blocks nothing; an older one does not count."""
    played.define("left", roles=ARTIFACT)
    supply(played.here, "talk-1", "old")
    played.says({"plan": {"text": "A plan.", "delay": 0.5}, "reviewer": "APPROVED"})
    run = await played.start("left", session="talk-1")
    await until(lambda: played.live(run)["current_stage"] is not None)
    supply(played.here, "talk-1", "new")
    await played.here.driver.rest(run)
    assert played.status(run)["status"] == "completed"
