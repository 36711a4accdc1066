"""What is known of a loop afterwards: iterations, figures, and forgetting it."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from loopwright.app.loop_records import figures, forget, history, iteration
from loopwright.app.preparing import Wish, prepare_named
from loopwright.app.settings import Settings
from loopwright.app.wiring import Local, local
from loopwright.errors import Conflict, NotFound

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
    wish = Wish(message="Build it", agents=[agent], workspace=str(tmp_path), home=tmp_path / "home")
    start, _ = prepare_named("harness", wish)
    return await here.service.start(start)


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
    assert len(first["stages"][1]["summary"]) == 200
    found: Any = figures(here.service, run)
    assert found["iterations"] == {"total": 2, "by_status": {"needs_rework": 1, "completed": 1}}
    assert found["stages"]["by_role"] == {"plan": 2, "coder": 2, "reviewer": 2}
    assert len(found["timings"]["iteration_timings"]) == 2
    assert iteration(here.service, run, f"{run}.1")["iteration_number"] == 1
    with pytest.raises(NotFound):
        iteration(here.service, run, "run_other.1")
    assert forget(here.service, run, by="ann")["deleted"] is True
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
    assert only["stages"][1]["summary"] == "FAILED: no space"
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
    assert forget(here.service, run, by="ann")["id"] == run
