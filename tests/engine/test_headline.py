"""What lists show of a run, and which rows of the inbox an append changes."""

import pytest

from loopwright.kernel.events import AnyEvent, GateAnswered, GateClosed, GateOpened, RunPaused
from loopwright.model.actions import AskPerson, CallAgent, LoopGate, Repeat, Step, Wait
from loopwright.model.policy import Limits
from loopwright.ports.headline import gate_changes, headline_of, status_of, wake_time
from tests.kernel.driving import Driver, Fail, drive, plan_of, plan_of_steps

CALL = CallAgent(agent="worker")


def asking(**more: object) -> Driver:
    """A run that waits at a gate after its first iteration."""
    driver = Driver(plan_of(Repeat(body=CALL, max=3, gate=LoopGate()), **more)).start()
    driver.answer("main.0/agent#1", "x")
    return driver


def test_a_run_that_works_is_running() -> None:
    """An agent under way means running."""
    assert status_of(Driver(plan_of(CALL)).start().state) == "running"


def test_a_run_that_waits_for_time_is_running() -> None:
    """A timer is no person: the run goes on by itself, and the time is known."""
    driver = Driver(plan_of(Wait(ms=500))).start()
    assert status_of(driver.state) == "running"
    assert wake_time(driver.state) == driver.clock + 500


def test_a_run_at_a_gate_is_waiting() -> None:
    """An open gate and nothing under way means waiting, with a time limit too."""
    assert status_of(asking().state) == "waiting"
    limited = asking(limits=Limits(wall_ms=1_000))
    assert status_of(limited.state) == "waiting"
    assert wake_time(limited.state) is not None


def test_work_beside_a_gate_is_running() -> None:
    """While something else is under way the run does not wait yet."""
    steps = (Step(id="ask", action=AskPerson()), Step(id="work", action=CALL))
    driver = Driver(plan_of_steps(*steps)).start()
    assert status_of(driver.state) == "running"
    driver.answer("work/agent#1", "done")
    assert status_of(driver.state) == "waiting"


def test_a_paused_run_is_paused() -> None:
    """Paused is shown whatever else is open."""
    driver = asking()
    driver.pause()
    assert status_of(driver.state) == "paused"
    driver.resume()
    assert status_of(driver.state) == "waiting"


@pytest.mark.parametrize(
    ("driver", "outcome", "reason"),
    [
        (drive(plan_of(CALL)), "completed", "done"),
        (drive(plan_of(CALL), lambda request: Fail()), "failed", "error"),
        (drive(plan_of(Repeat(body=CALL, max=2))), "exhausted", "max_iterations"),
    ],
    ids=["completed", "failed", "exhausted"],
)
def test_an_ended_run_shows_its_outcome(driver: Driver, outcome: str, reason: str) -> None:
    """Outcome and reason are two fields, and the end has a time."""
    headline = headline_of(driver.state)
    assert (headline.status, headline.reason) == (outcome, reason)
    assert headline.finished_at == driver.end.at
    assert headline.wake_at is None


def test_a_headline_repeats_how_the_run_was_started() -> None:
    """Name, workspace and start come from the first event."""
    driver = Driver(plan_of(CALL)).start()
    headline = headline_of(driver.state)
    assert (headline.name, headline.workspace, headline.dialect) == ("t", "/ws", "native")
    assert headline.started_at == driver.events[0].at
    assert headline.finished_at is None


def opened(gate: str) -> GateOpened:
    return GateOpened(
        at=7, path="main.0", gate=gate, digest="d", message="Well?", answers=("approve",)
    )


def answered(gate: str) -> GateAnswered:
    return GateAnswered(at=8, path="main.0", gate=gate, decision="approve")


def closed(gate: str) -> GateClosed:
    return GateClosed(at=8, path="main.0", gate=gate, reason="stopped")


@pytest.mark.parametrize(
    ("events", "added", "taken"),
    [
        pytest.param([RunPaused(at=1)], [], [], id="no gate"),
        pytest.param([opened("a"), opened("b")], ["a", "b"], [], id="opened"),
        pytest.param([answered("a"), closed("b")], [], ["a", "b"], id="answered and closed"),
        pytest.param([opened("a"), closed("a")], [], ["a"], id="opened and closed at once"),
        pytest.param([answered("a"), opened("b")], ["b"], ["a"], id="the next one"),
    ],
)
def test_the_inbox_follows_the_events(
    events: list[AnyEvent], added: list[str], taken: list[str]
) -> None:
    """A gate that opens is a row, one that is answered or closed is none."""
    driver = Driver(plan_of(CALL)).start()
    rows, gone = gate_changes(driver.state, events)
    assert ([row.gate for row in rows], [row.gate for row in gone]) == (added, taken)
    for row in rows:
        assert (row.run, row.path, row.digest, row.message) == (
            driver.state.run,
            "main.0",
            "d",
            "Well?",
        )
        assert row.opened_at == 7
