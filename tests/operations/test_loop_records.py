"""What is known of a loop afterwards: iterations, figures, and forgetting it."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from loopwright.errors import Conflict, NotFound
from loopwright.http.compat.coqui_payloads import sheet
from loopwright.operations.loops.loop_details import figures, forget, live, loop_row
from loopwright.operations.run_request import StartRun
from loopwright.operations.run_start import DefinitionSource, StartPlace, prepare_start
from loopwright.operations.runs import Service
from loopwright.operations.settings import Settings
from loopwright.operations.use_cases.role_loops import RoleLoops
from loopwright.operations.wiring import Local, local

Test = Callable[[Local, Path], Coroutine[Any, Any, None]]


def in_a_home(test: Test) -> Callable[[Path], None]:
    """Run a test in a home that drives its runs in this process."""

    async def run(tmp_path: Path) -> None:
        async with local(Settings(home=tmp_path / "home")) as here:
            await test(here, tmp_path)

    def called(tmp_path: Path) -> None:
        asyncio.run(run(tmp_path))

    called.__name__, called.__doc__ = test.__name__, test.__doc__
    return called


def reply(one: Any) -> dict[str, Any]:
    return one if isinstance(one, dict) else {"text": one}


def replies(folder: Path, *rounds: dict[str, Any]) -> str:
    said = [
        {
            "when": {"agent": agent, "iteration": number},
            **(one if isinstance(one, dict) else {"text": one}),
        }
        for number, texts in enumerate(rounds, start=1)
        for agent, one in texts.items()
    ]
    (folder / "replies.yaml").write_text(yaml.safe_dump({"replies": said}), encoding="utf-8")
    return f"script:{folder / 'replies.yaml'}"


def round_of(review: str, **others: Any) -> dict[str, Any]:
    return {"plan": "The plan.", "coder": "x" * 300, "reviewer": review, **others}


async def started(here: Local, tmp_path: Path, *rounds: dict[str, Any]) -> str:
    agent = replies(tmp_path, *rounds)
    request = StartRun(message="Build it", agent=agent)
    place = StartPlace(settings=Settings(home=tmp_path / "home"), workspace=tmp_path)
    source = DefinitionSource(file="harness", library=Path.cwd())
    start, _ = prepare_start(place, request, source)
    return await here.service.start(start)


def history(service: Service, reference: str) -> Any:
    """Every iteration with its stages, in their order."""
    found = sheet(service, loop_row(service, service.find(reference)))
    shown = [msgspec.to_builtins(found.in_full(one)) for one in found.cycles]
    return {"status": found.status, "history": shown}


@pytest.mark.item("coqui-50", "coqui-51", "coqui-52", "coqui-56")
@in_a_home
async def test_a_loop_afterwards(here: Local, tmp_path: Path) -> None:
    """History and figures agree; an iteration belongs to its loop; what has ended is forgotten."""
    run = await started(here, tmp_path, round_of("Rejected"), round_of("APPROVED"))
    await here.driver.rest(run)
    told: Any = history(here.service, run)
    assert [one["status"] for one in told["history"]] == ["needs_rework", "completed"]
    assert [one["completed_stage_count"] for one in told["history"]] == [3, 3]
    first = told["history"][0]
    assert [one["role"] for one in first["stages"]] == ["plan", "coder", "reviewer"]
    shown: Any = msgspec.to_builtins(live(here.service, run))
    assert len(shown["stages"][1]["summary"]) == 200
    found: Any = msgspec.to_builtins(figures(here.service, run))
    assert found["iterations"] == {"total": 2, "by_status": {"needs_rework": 1, "completed": 1}}
    assert found["stages"]["by_role"] == {"plan": 2, "coder": 2, "reviewer": 2}
    assert len(found["timings"]["iteration_timings"]) == 2
    assert (first["id"], first["iteration_number"]) == (f"{run}.1", 1)
    assert forget(here.service, run, by="ann").deleted is True
    for call in (history, figures, partial(forget, by="ann")):
        with pytest.raises(NotFound):
            call(here.service, run)


@pytest.mark.item("coqui-38")
@in_a_home
async def test_a_stage_that_fails_says_why(here: Local, tmp_path: Path) -> None:
    """The stage and the iteration have failed, and those behind it never ran."""
    run = await started(here, tmp_path, round_of("x", coder={"fail": "no space"}))
    await here.driver.rest(run)
    told: Any = history(here.service, run)
    (only,) = told["history"]
    assert (told["status"], only["status"]) == ("failed", "failed")
    assert only["stages"][1]["result_summary"] == "FAILED: no space"
    assert only["stages"][2]["status"] == "cancelled"


@pytest.mark.item("coqui-56")
@in_a_home
async def test_a_loop_under_way_is_not_forgotten(here: Local, tmp_path: Path) -> None:
    """It has to be stopped first."""
    run = await started(here, tmp_path, round_of("x", plan={"text": "p", "delay": 60}))
    with pytest.raises(Conflict):
        forget(here.service, run, by="ann")
    await here.service.stop(run)
    await here.driver.rest(run)
    assert forget(here.service, run, by="ann").id == run


async def named(
    here: Local, tmp_path: Path, definition: dict[str, Any], agent: str, **values: str
) -> str:
    """Start a loop of a definition of the project."""
    folder = tmp_path / "workspace" / "loops"
    folder.mkdir(parents=True, exist_ok=True)
    name = definition["name"]
    (folder / f"{name}.json").write_text(json.dumps(definition), encoding="utf-8")
    request = StartRun(message="Build it", agent=agent, inputs=values)
    place = StartPlace(settings=Settings(home=tmp_path / "home"), workspace=tmp_path)
    source = DefinitionSource(file=name, library=tmp_path)
    start, _ = prepare_start(place, request, source)
    return await here.service.start(start)


def script(folder: Path, *said: tuple[str, dict[str, Any]]) -> str:
    """Replies by agent, each for one call in any iteration."""
    written = [{"when": {"agent": agent}, "text": "done", **more} for agent, more in said]
    (folder / "replies.yaml").write_text(yaml.safe_dump({"replies": written}), encoding="utf-8")
    return f"script:{folder / 'replies.yaml'}"


def loop_of(here: Local, run: str) -> Any:
    return msgspec.to_builtins(sheet(here.service, here.log.row(run)).loop())


def statuses(here: Local, tmp_path: Path, run: str) -> Any:
    loops = RoleLoops(here=here, settings=Settings(home=tmp_path / "home"), cwd=tmp_path)
    return msgspec.to_builtins(loops.status(run))


TWO = [
    {"name": "write", "role": "coder", "prompt": "Write."},
    {"name": "polish", "role": "coder", "prompt": "Polish."},
]


@pytest.mark.item("coqui-83")
@pytest.mark.parametrize(
    ("condition", "expected", "status"),
    [
        pytest.param(
            {
                "type": "evaluation_bound",
                "value": {"criteria": "All of {{part}} works", "max_review_rounds": 2},
            },
            "All of the cache works",
            ["needs_rework", "needs_rework"],
            id="a review",
        ),
        pytest.param(
            {
                "type": "goal_bound",
                "value": {"goal_prompt": "{{part}} works", "max_iterations": 2},
            },
            "the cache works",
            ["completed", "completed"],
            id="a goal",
        ),
        pytest.param(
            {"type": "iteration_bound", "value": 2}, None, ["completed", "completed"], id="a number"
        ),
    ],
)
def test_criteria_and_iterations_of_a_record(
    tmp_path: Path, condition: Any, expected: str | None, status: list[str]
) -> None:
    """The criteria have the parameters of the loop, and only a review asks for rework."""

    @in_a_home
    async def told(here: Local, tmp_path: Path) -> None:
        definition = {
            "name": "small",
            "parameters": [{"name": "part", "description": "Which"}],
            "roles": TWO,
            "termination_condition": condition,
        }
        agent = script(tmp_path, *[("coder", {}), ("evaluator", {"text": "NOT_ACHIEVED"})] * 4)
        run = await named(here, tmp_path, definition, agent, part="the cache")
        await here.driver.rest(run)
        loop = loop_of(here, run)
        assert loop["termination_criteria"] == expected
        assert loop["current_stage"] == 1
        found: Any = history(here.service, run)
        assert [one["status"] for one in found["history"]] == status
        seen = statuses(here, tmp_path, run)
        assert seen["current_iteration_status"] == status[-1]
        assert seen["current_iteration"] == loop["current_iteration"] == 2
        assert figures(here.service, run).current_iteration == 2
        assert live(here.service, run).position.iteration == 2
        # The evaluator is not a stage, so the last stage is what was dispatched last.
        assert loop["metadata"]["dispatch"]["stage_id"] == "main.1.polish"
        assert loop["metadata"]["dispatch"]["stage_index"] == 1

    told(tmp_path)


@pytest.mark.item("coqui-84")
@in_a_home
async def test_a_record_of_a_loop_that_is_paused_and_stopped(here: Local, tmp_path: Path) -> None:
    """While it is paused, the stage that was dispatched and the one that is next are told apart;
    after a stop, the current stage is the one that was stopped.
    """
    definition = {
        "name": "small",
        "roles": TWO,
        "termination_condition": {"type": "iteration_bound", "value": 1},
    }
    agent = script(tmp_path, *[("coder", {"delay": 0.3})] * 3)
    run = await named(here, tmp_path, definition, agent)
    await here.service.pause(run, by="me")
    await here.driver.rest(run)
    loop = loop_of(here, run)
    assert (loop["status"], loop["current_stage"]) == ("paused", 1)
    dispatch = loop["metadata"]["dispatch"]
    assert (dispatch["status"], dispatch["stage_id"]) == ("dispatched", "main.0.write")
    assert (dispatch["stage_index"], dispatch["next_stage_index"]) == (0, 1)
    assert "stage 1 (polish)" in dispatch["message"]
    assert statuses(here, tmp_path, run)["metadata"]["dispatch"] == dispatch
    await here.service.resume(run, by="me")
    await here.service.stop(run, by="me")
    await here.driver.rest(run)
    loop = loop_of(here, run)
    assert (loop["status"], loop["current_stage"]) == ("cancelled", 1)
    dispatch = loop["metadata"]["dispatch"]
    assert (dispatch["status"], dispatch["stage_index"]) == ("dispatched", 1)
    assert dispatch["message"] == "stopped"
