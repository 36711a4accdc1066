"""Gates opened by running effects: opened, answered, closed, never left open."""

from __future__ import annotations

import pytest

from loopwright.kernel.events import (
    CancelRequested,
    GateAnswered,
    GateClosed,
    GateOpened,
    RunFinished,
)
from loopwright.kernel.fold import fold
from loopwright.kernel.gates import tool_gate
from loopwright.model.actions import CallAgent, Repeat
from loopwright.model.actions import Decision as Word
from loopwright.ports.headline import status_of
from tests.kernel.driving import Driver, Reply, plan_of
from tests.kernel.invariants import broken_laws

PLAN = plan_of(Repeat(body=CallAgent(agent="a"), max=1))
EFFECT = "main.0/agent#1"


def asked(*numbers: int) -> Driver:
    """A run whose agent has asked these questions."""
    run = Driver(PLAN).start()
    for number in numbers or (0,):
        run.append(question(run, number))
    return run


def question(run: Driver, number: int = 0) -> GateOpened:
    gate, digest = tool_gate("r_test", EFFECT, "May I?", "rm -r", number)
    return GateOpened(
        at=run.clock,
        path="main.0",
        iteration=1,
        gate=gate,
        digest=digest,
        message="May I?",
        answers=("approve", "reject"),
        about="tool",
        effect=EFFECT,
    )


def decide(run: Driver, word: Word, number: int = 0) -> None:
    event = question(run, number)
    run.append(
        GateAnswered(at=run.clock, path="main.0", iteration=1, gate=event.gate, decision=word)
    )


def known(run: Driver) -> list[tuple[bool, str | None]]:
    """The questions of the effect: open or not, and what was decided."""
    gates = run.state.pending[EFFECT].gates or {}
    return [(gate.open, gate.decision) for gate in gates.values()]


def test_a_run_waits_while_all_that_is_under_way_asks() -> None:
    """Lists show that a person is needed, and when none is needed any more."""
    run = Driver(PLAN).start()
    assert status_of(run.state) == "running"
    run.append(question(run))
    assert status_of(run.state) == "waiting"
    decide(run, "approve")
    assert status_of(run.state) == "running"


@pytest.mark.parametrize("word", ["approve", "reject"])
def test_a_decision_is_kept_with_the_effect(word: Word) -> None:
    """Whoever takes the run up again finds what was decided; the effect itself goes on."""
    run = asked()
    assert known(run) == [(True, None)]
    decide(run, word)
    assert known(run) == [(False, word)]
    again = fold(PLAN, run.events).pending[EFFECT].gates or {}
    assert [gate.decision for gate in again.values()] == [word]


def test_an_answer_of_the_effect_closes_what_it_asked() -> None:
    """A question that is still open when its effect is answered is closed before all else."""
    run = asked(0, 1)
    decide(run, "approve", number=1)
    new = run.append(run.answer_event(run.request(EFFECT), Reply("done")))
    assert [type(event) for event in new[:2]] == [type(new[0]), GateClosed]
    assert [event.reason for event in new if isinstance(event, GateClosed)] == [
        "answered without it"
    ]
    assert run.state.gates == run.state.queues.stale == {}
    assert run.state.finished is not None
    assert not broken_laws(run.events)
    assert fold(PLAN, run.events).queues.stale == {}


def test_a_stop_closes_the_question_with_the_effect() -> None:
    """No question is left open by a run that has ended, and its last event stays the last."""
    run = asked()
    new = run.append(CancelRequested(at=run.clock))
    assert [event.reason for event in new if isinstance(event, GateClosed)] == ["stopped"]
    assert isinstance(run.events[-1], RunFinished)
    assert not broken_laws(run.events)


def test_a_late_decision_changes_nothing() -> None:
    """A decision that comes after the question was closed is counted as ignored."""
    run = asked()
    run.append(run.answer_event(run.request(EFFECT), Reply("done")))
    before = run.state.ignored
    decide(run, "approve")
    assert run.state.ignored == before + 1


def test_the_name_of_a_question_follows_from_what_is_asked() -> None:
    """The same question has the same name after a restart; any difference makes another one."""
    names = {
        tool_gate("r", "e#1", "m", "a", 0)[0],
        tool_gate("r", "e#2", "m", "a", 0)[0],
        tool_gate("r", "e#1", "m", "b", 0)[0],
        tool_gate("r", "e#1", "m", "a", 1)[0],
        tool_gate("s", "e#1", "m", "a", 0)[0],
    }
    assert len(names) == 5
    assert tool_gate("r", "e#1", "m", "a", 0) == tool_gate("r", "e#1", "m", "a", 0)
