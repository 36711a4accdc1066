"""Real processes, a real file, kill -9: a run that dies anywhere goes on as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from loopwright.kernel.events import GateAnswered, HistoryCompressed
from tests.faults.walking import Children, compare, events_of, judge, stumble, walk

CHUNKS = 4
MOST_POINTS = 2_000


@pytest.fixture
def children() -> Iterator[Callable[[str], Children]]:
    """Makes the program that makes children."""
    started: list[Children] = []

    def start(scenario: str) -> Children:
        started.append(Children(scenario))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.item("inv-1", "inv-2", "inv-3", "inv-4", "inv-5", "inv-6", "inv-17")
def test_a_sequential_run_dies_everywhere(
    chunk: int, children: Callable[[str], Children], tmp_path: Path
) -> None:
    """Killed at every point in turn and started again, it ends with exactly the same events."""
    points = range(1 + chunk, MOST_POINTS, CHUNKS)
    kills = 0
    for problems in walk(children("sequential"), tmp_path, "facts", points):
        assert problems == [], f"kill {points[kills - 1]}"
        kills += 1
    assert kills > 120 / CHUNKS


@pytest.mark.item("zenflow-69")
def test_a_workflow_is_whole_wherever_it_dies(
    children: Callable[[str], Children], tmp_path: Path
) -> None:
    """Killed at any point, what is stored of every step can be read and fits together; started
    again, the run ends with exactly the events of one that was left in peace."""
    points = range(1, MOST_POINTS, 3)
    kills = 0
    for problems in walk(children("workflow"), tmp_path, "facts", points):
        assert problems == [], f"kill {points[kills - 1]}"
        kills += 1
    assert kills > 25


def roles_die(children: Children, folder: Path, points: range) -> int:
    kills = 0
    for problems in walk(children, folder, "facts", points):
        assert problems == [], f"kill {points[kills - 1]}"
        kills += 1
    return kills


@pytest.mark.item("coqui-42")
def test_a_loop_of_roles_dies_between_its_stages_and_inside_them(
    children: Callable[[str], Children], tmp_path: Path
) -> None:
    """Started again, it ends with the events of one that was left in peace: no stage whose end was
    recorded is run twice, and none is stuck. A call that was under way is made again, and that is
    recorded.
    """
    assert roles_die(children("roles"), tmp_path, range(1, MOST_POINTS, 7)) > 6


@pytest.mark.deep
def test_a_loop_of_roles_dies_at_every_point(
    children: Callable[[str], Children], tmp_path: Path
) -> None:
    """The same at every single point."""
    assert roles_die(children("roles"), tmp_path, range(1, MOST_POINTS)) > 45


@pytest.mark.item("inv-1", "inv-4", "inv-11", "inv-12", "inv-13", "aldo-33", "aldo-36")
def test_a_chat_model_and_its_tools_die_everywhere(
    children: Callable[[str], Children], tmp_path: Path
) -> None:
    """Tools side by side, calls that a person in another process decides about, a history that is
    cut: no tool is run twice, none that is not approved, each decision counts once.
    """
    points = range(1, MOST_POINTS, 13)
    kills = 0
    for problems in walk(children("working"), tmp_path, "end", points):
        assert problems == [], f"kill {points[kills - 1]}"
        kills += 1
    assert kills > 10
    whole = events_of(tmp_path / "undisturbed")
    assert sum(isinstance(event, HistoryCompressed) for event in whole) == 2
    assert sum(isinstance(event, GateAnswered) for event in whole) == 2


@pytest.mark.deep
@pytest.mark.parametrize("scenario", ["working", "tidying"])
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_chat_models_die_at_every_point(
    scenario: str, chunk: int, children: Callable[[str], Children], tmp_path: Path
) -> None:
    """The same at every point, and for a loop of cycles with summaries."""
    points = range(1 + chunk, MOST_POINTS, CHUNKS)
    kills = 0
    for problems in walk(children(scenario), tmp_path, "end", points):
        assert problems == [], f"kill {points[kills - 1]}"
        kills += 1
    assert kills > 100 / CHUNKS


@pytest.mark.deep
@pytest.mark.parametrize(
    ("scenario", "kind"),
    [
        pytest.param("parallel", "any order", id="four items at once"),
        pytest.param("interfered", "end", id="pause, resume, answers, stop"),
        pytest.param("judged", "facts", id="scripts, judges, work after a rejection, a new try"),
    ],
)
@pytest.mark.item("inv-8", "inv-11", "inv-14")
def test_other_runs_die_everywhere(
    scenario: str, kind: str, children: Callable[[str], Children], tmp_path: Path
) -> None:
    """The same for work side by side and for people who interfere: it comes to the same."""
    kills = 0
    for problems in walk(children(scenario), tmp_path, kind, range(1, MOST_POINTS)):
        assert problems == [], f"kill {kills}"
        kills += 1
    assert kills > 100


def again_and_again(children: Children, folder: Path, scenario: str, seed: int) -> None:
    """A run whose driver dies many times, at points by chance."""
    home, reference = folder / str(seed), folder / "undisturbed"
    for place in (home, reference):
        place.mkdir(exist_ok=True)
    if not any(reference.iterdir()):
        assert children.live(reference) == 0
    died = stumble(children, home, Random(seed), most=20)
    assert children.live(home) == 0
    assert judge(home, scenario) == [], f"{scenario}, seed {seed}, {died} deaths"
    if scenario in ("sequential", "judged"):
        assert compare("facts", reference, home) == [], f"seed {seed}, {died} deaths"


@pytest.mark.parametrize(("scenario", "seeds"), [("sequential", 8), ("judged", 4), ("working", 2)])
def test_a_run_dies_again_and_again(
    scenario: str, seeds: int, children: Callable[[str], Children], tmp_path: Path
) -> None:
    """Runs that die up to twenty times each end with the same events as an undisturbed one."""
    program = children(scenario)
    for seed in range(seeds):
        again_and_again(program, tmp_path, scenario, seed)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("scenario", "seeds"),
    [("sequential", 70), ("parallel", 70), ("interfered", 70), ("judged", 70), ("tidying", 20)],
)
def test_many_runs_die_again_and_again(
    scenario: str, seeds: int, children: Callable[[str], Children], tmp_path: Path
) -> None:
    """Many more of each kind."""
    program = children(scenario)
    for seed in range(seeds):
        again_and_again(program, tmp_path, scenario, seed)
