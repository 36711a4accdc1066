"""Random histories of several processes: whatever happens, nothing is lost and everything ends."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.simulation import main, problems_of, simulate
from tests.faults.talking import talking_plan

CHUNKS = 8
SEEDS = 1_000
TALKING_CHUNKS = 4
TALKING_SEEDS = 300
DEEP_TALKING_SEEDS = 20_000
DEEP_CHUNKS = 20
DEEP_SEEDS = 100_000


def told(found: dict[int, list[str]], kind: str = "") -> str:
    """How to see the story of each seed that failed."""
    lines = [f"python -m tests.faults.simulation {kind}{seed}: {found[seed][0]}" for seed in found]
    return "\n".join(lines)


def seeds(chunk: int, total: int, chunks: int) -> range:
    size = total // chunks
    return range(chunk * size, (chunk + 1) * size)


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.item("inv-1", "inv-2", "inv-3", "inv-4", "inv-5", "inv-6", "inv-7", "inv-8")
@pytest.mark.item("inv-9", "inv-11", "inv-14", "inv-16", "inv-17", "inv-26")
def test_no_history_breaks_an_invariant(chunk: int) -> None:
    """With crashes, stalls, clock jumps, late and double answers, failing disks: all is well."""
    found = problems_of(seeds(chunk, SEEDS, CHUNKS))
    assert not found, told(found)


@pytest.mark.parametrize("chunk", range(TALKING_CHUNKS))
@pytest.mark.item("inv-4", "inv-10", "inv-11", "inv-12", "inv-13", "inv-14", "inv-26")
@pytest.mark.item("aldo-32", "aldo-33", "aldo-38", "aldo-40", "aldo-41", "aldo-43")
def test_no_conversation_breaks_an_invariant(chunk: int) -> None:
    """The same for plans with chat models: turns, tools, approvals, histories that are cut."""
    found = problems_of(seeds(chunk, TALKING_SEEDS, TALKING_CHUNKS), plans=talking_plan)
    assert not found, told(found, "talking ")


@pytest.mark.deep
@pytest.mark.parametrize("chunk", range(DEEP_CHUNKS))
def test_no_conversation_breaks_an_invariant_deep(chunk: int) -> None:
    """And with many more seeds."""
    found = problems_of(seeds(chunk, DEEP_TALKING_SEEDS, DEEP_CHUNKS), plans=talking_plan)
    assert not found, told(found, "talking ")


@pytest.mark.deep
@pytest.mark.parametrize("chunk", range(DEEP_CHUNKS))
def test_no_history_breaks_an_invariant_deep(chunk: int) -> None:
    """The same with many more seeds."""
    found = problems_of(seeds(chunk, DEEP_SEEDS, DEEP_CHUNKS))
    assert not found, told(found)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(3433, id="the timer of a reopened step outlives its first try"),
        pytest.param(11797, id="a run is reopened elsewhere while its driver waits for the disk"),
        pytest.param(36462, id="a budget ends while a loop elsewhere waits for its next pass"),
    ],
)
def test_a_history_that_once_went_wrong(seed: int) -> None:
    """Found by the deep lane, and mended."""
    assert problems_of(range(seed, seed + 1)) == {}


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(0, id="a tool is taken for one that was begun, a cut changes nothing"),
        pytest.param(19, id="a summary beside the only call that is allowed"),
        pytest.param(32, id="a model that says nothing at all"),
        pytest.param(11920, id="a run is reopened twice, and the second process ends at once"),
        pytest.param(15047, id="a model with a budget becomes a program while it is talked to"),
    ],
)
def test_a_conversation_that_once_went_wrong(seed: int) -> None:
    """Found by the simulation, and mended."""
    assert problems_of(range(seed, seed + 1), plans=talking_plan) == {}


def test_a_seed_is_one_history() -> None:
    """The same seed tells the same story, so that a failure can be looked at again."""

    async def story(seed: int) -> list[str]:
        world = await simulate(seed)
        names = {run: f"run {n}" for n, run in enumerate(world.store.runs)}
        short = {run[-4:]: name for run, name in names.items()}
        return [_renamed(line, short) for line in world.story]

    for seed in range(20):
        assert asyncio.run(story(seed)) == asyncio.run(story(seed))


def _renamed(line: str, names: dict[str, str]) -> str:
    for run, name in names.items():
        line = line.replace(run, name)
    return line


def test_a_scenario_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    """The command that a failure names tells what happened, one line for each thing."""
    main(["3"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "seed 3"
    assert any("RunStarted" in line for line in lines)
