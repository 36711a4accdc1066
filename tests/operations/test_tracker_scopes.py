"""Trackers: what a stage creates, and what later stages and the session find."""

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import pytest

from loopwright.kernel.event_parts import ToolCall
from loopwright.kernel.events import EffectDone, EffectRequested
from loopwright.model.actions import CallAgent, Repeat, Step, Steps
from loopwright.model.checks import Regex
from loopwright.model.plan import Agent, Plan
from loopwright.model.record import literal
from loopwright.operations.run_request import RunStart
from loopwright.operations.settings import Settings
from loopwright.operations.wiring import Local, local
from loopwright.testing.wires import ScriptedCall, ScriptedTurn, WireRequest, WireServer

SESSION = "5e55105e55105e55105e55105e551000"


def stage(name: str, before: str | None = None) -> Step:
    needs = (before,) if before else ()
    action = CallAgent(agent=name, prompt=literal(f"You are {name}."))
    return Step(id=name, action=action, needs=needs)


def harness(most: int = 3) -> Plan:
    """Two stages in rounds, until the second one approves."""
    loop = Repeat(
        body=Steps(steps=(stage("planner"), stage("worker", "planner"))),
        max=most,
        until=Regex(pattern="APPROVED"),
    )
    agents = {
        "planner": Agent(spec="model:local/tiny", role="plan", access="readonly"),
        "worker": Agent(spec="model:local/tiny", role="coder", access="full"),
    }
    return Plan(name="harness", steps=(Step(id="main", action=loop),), agents=agents)


@dataclass
class Mind:
    """A model with a list of turns for each stage; when they are used up it says so."""

    turns: dict[str, list[ScriptedTurn]]
    seen: list[WireRequest] = field(default_factory=list)

    def __call__(self, request: WireRequest) -> ScriptedTurn:
        self.seen.append(request)
        mine = next((n for n in self.turns if f"You are {n}." in request.raw.decode()), "")
        left = self.turns.get(mine, [])
        return left.pop(0) if left else ScriptedTurn(text="I have nothing to say.")


def call(name: str, **args: object) -> ScriptedCall:
    return ScriptedCall(name=name, args=args)  # type: ignore[arg-type]


def play(
    top: Path, plan: Plan, mind: Mind, look: Callable[[Local, str], None], session: str = SESSION
) -> str:
    """A run of the plan for a session, and a look at what is left of it."""
    (top / "work").mkdir(exist_ok=True)

    async def whole() -> str:
        async with local(Settings(home=top / "home", durability="normal")) as here:
            start = RunStart(plan=plan, workspace=top / "work", message="Build.", session=session)
            run = await here.service.start(start)
            await here.driver.rest(run)
            look(here, run)
            return run

    with (
        WireServer(None, choose=mind) as wires,
        patch.dict(os.environ, {"LOOPWRIGHT_MODEL_BASE_URL": f"{wires.url}/v1"}),
    ):
        return asyncio.run(whole())


def answers(here: Local, run: str) -> dict[str, list[str]]:
    """What tools have answered, by tool."""
    asked: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    for numbered in here.service.events(run):
        event = numbered.event
        if isinstance(event, EffectRequested) and isinstance(event.call, ToolCall):
            asked[event.effect] = event.call.tool
        if isinstance(event, EffectDone) and event.effect in asked:
            found.setdefault(asked[event.effect], []).append(
                here.tracker_scopes._read(event.output)
            )
    return found


@pytest.mark.item("coqui-62", "coqui-24")
def test_stages_and_the_session_share_what_they_make(tmp_path: Path) -> None:
    """A plan and todos of the first stage are there for the second, and in the session after it."""
    mind = Mind(
        {
            "planner": [
                ScriptedTurn(
                    text="I plan.",
                    calls=(
                        call("artifact_create", type="plan", title="The plan", content="1. Do."),
                        call("todo_add", todos=[{"title": "Do it"}, {"title": "Check it"}]),
                    ),
                ),
                ScriptedTurn(text="Planned."),
            ],
            "worker": [
                ScriptedTurn(text="I look.", calls=(call("artifact_list"), call("todo_list"))),
                ScriptedTurn(text="APPROVED"),
            ],
        }
    )

    def look(here: Local, run: str) -> None:
        told = answers(here, run)
        artifacts = json.loads(told["artifact.list"][0])["artifacts"]
        by_type = {one["type"]: one for one in artifacts}
        assert by_type["plan"]["created_by"] == "plan"
        assert by_type["loop_output"]["title"] == "Loop output: plan (iter 1, stage 0)"
        assert [one["title"] for one in json.loads(told["todo.list"][0])["todos"]] == [
            *("Do it", "Check it")
        ]
        kept = here.trackers.all(SESSION, "artifact")
        assert [one.text("content") for one in kept] == ["1. Do."]
        made = here.tracker_scopes.made(SESSION, "artifact")
        assert [one.text("content") for one in made] == ["Planned.", "APPROVED"]
        assert here.log.rows(session=SESSION)[0].run == run

    play(tmp_path, harness(), mind, look)


@pytest.mark.item("coqui-62")
def test_two_loops_of_a_session_share_one_scope(tmp_path: Path) -> None:
    """What the first loop left, the second one reads; another session sees nothing of it."""
    first = Mind(
        {"planner": [ScriptedTurn(text="P1.")], "worker": [ScriptedTurn(text="APPROVED one")]}
    )
    play(tmp_path, harness(), first, lambda here, run: None)
    look_first = [
        ScriptedTurn(text="I look.", calls=(call("artifact_list"),)),
        ScriptedTurn(text="P2."),
    ]
    second = Mind({"planner": look_first, "worker": [ScriptedTurn(text="APPROVED two")]})

    def look(here: Local, run: str) -> None:
        listed = json.loads(answers(here, run)["artifact.list"][0])["artifacts"]
        assert len(listed) == 2
        assert {one["type"] for one in listed} == {"loop_output"}

    play(tmp_path, harness(), second, look)
    other = [ScriptedTurn(text="I look.", calls=(call("artifact_list"),)), ScriptedTurn(text="P3.")]
    third = Mind({"planner": other, "worker": [ScriptedTurn(text="APPROVED three")]})

    def nothing(here: Local, run: str) -> None:
        assert json.loads(answers(here, run)["artifact.list"][0]) == {"artifacts": []}

    play(tmp_path, harness(), third, nothing, session="another")


@pytest.mark.item("coqui-61")
def test_every_round_is_a_sprint(tmp_path: Path) -> None:
    """A rejected round ends rejected with its summary, the accepted one complete."""
    mind = Mind(
        {
            "planner": [ScriptedTurn(text="Plan A\nmore"), ScriptedTurn(text="Plan B")],
            "worker": [ScriptedTurn(text="Needs changes."), ScriptedTurn(text="APPROVED")],
        }
    )

    def look(here: Local, run: str) -> None:
        first, second = here.tracker_scopes.made(SESSION, "sprint")
        assert first.text("title") == "harness — iteration 1"
        assert first.text("status") == "rejected"
        assert first.text("summary") == (
            "- plan [completed]: Plan A\n- coder [completed]: Needs changes."
        )
        assert (second.text("title"), second.text("status")) == (
            *("harness — iteration 2", "complete"),
        )

    play(tmp_path, harness(), mind, look)


@pytest.mark.item("coqui-61")
def test_the_last_round_at_the_limit_is_complete(tmp_path: Path) -> None:
    """A limit ends the sprint like an acceptance does; the run tells them apart."""
    mind = Mind({"planner": [ScriptedTurn(text="P.")], "worker": [ScriptedTurn(text="no")]})

    def look(here: Local, run: str) -> None:
        assert [one.text("status") for one in here.tracker_scopes.made(SESSION, "sprint")] == [
            "complete"
        ]
        assert here.log.row(run).headline.status == "exhausted"

    play(tmp_path, harness(1), mind, look)


@pytest.mark.item("coqui-24")
def test_an_empty_output_is_no_artifact(tmp_path: Path) -> None:
    """A stage that said nothing leaves none."""
    mind = Mind({"planner": [ScriptedTurn(text="")], "worker": [ScriptedTurn(text="APPROVED")]})

    def look(here: Local, run: str) -> None:
        titles = [one.text("title") for one in here.tracker_scopes.made(SESSION, "artifact")]
        assert "Loop output: plan (iter 1, stage 0)" not in titles

    play(tmp_path, harness(), mind, look)


@pytest.mark.item("coqui-27")
def test_no_stage_has_tools_that_start_anything(tmp_path: Path) -> None:
    """Of all that a model is offered, nothing starts loops, background work, schedules or hooks."""
    mind = Mind({"planner": [ScriptedTurn(text="P.")], "worker": [ScriptedTurn(text="APPROVED")]})
    play(tmp_path, harness(), mind, lambda here, run: None)
    offered = {name for request in mind.seen for name in request.tools}
    assert "artifact_create" in offered
    words = ("loop", "background", "schedule", "webhook", "task", "gate")
    assert not [name for name in offered if any(word in name for word in words)]


def test_a_sprint_of_ones_own_moves_by_the_rules(tmp_path: Path) -> None:
    """An impossible move is told to the model and changes nothing; the engine's stay."""
    ids: list[str] = []

    def mind(request: WireRequest) -> ScriptedTurn:
        text = request.raw.decode()
        if "You are planner." not in text:
            return ScriptedTurn(text="APPROVED")
        return turns.pop(0) if turns else ScriptedTurn(text="P.")

    turns = [ScriptedTurn(text="1", calls=(call("sprint_create", title="Mine"),))]

    def look(here: Local, run: str) -> None:
        ids.append(here.trackers.all(SESSION, "sprint")[0].id)
        made = here.tracker_scopes.made(SESSION, "sprint")
        ids.append(made[0].id)

    play(tmp_path, harness(), mind, look)  # type: ignore[arg-type]
    own, engine = ids
    turns = [
        ScriptedTurn(text="2", calls=(call("sprint_move", id=own, status="complete"),)),
        ScriptedTurn(text="3", calls=(call("sprint_move", id=own, status="in_progress"),)),
        ScriptedTurn(text="4", calls=(call("sprint_move", id=engine, status="review"),)),
    ]

    def look_again(here: Local, run: str) -> None:
        assert here.trackers.all(SESSION, "sprint")[0].text("status") == "in_progress"
        assert len(answers(here, run)["sprint.move"]) == 1

    play(tmp_path, harness(), mind, look_again)  # type: ignore[arg-type]
