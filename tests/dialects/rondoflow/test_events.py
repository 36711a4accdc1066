"""What the dialect's own door says about a loop."""

import json

import pytest

from loopwright.dialects.rondoflow.events import (
    AssistantIteration,
    End,
    RondoflowEvent,
    criteria_of,
    event_of_end,
    events_of_iteration,
    loop_state,
    status_of,
)
from loopwright.model.actions import Step, Wait
from loopwright.model.plan import Plan
from tests.dialects.reading import plan_of


def plan(criteria: object) -> Plan:
    document = {"name": "x", "loopEnabled": True, "loopCriteria": criteria, "maxIterations": 5}
    return plan_of(json.dumps(document), dialect="rondoflow")


@pytest.mark.item("rondoflow-17")
def test_an_iteration_reports_its_output_then_its_learning() -> None:
    """Iteration comes first, progress second, each with its documented fields."""
    done = AssistantIteration(iteration=2, max_iterations=5, output="all of it", learning="all")
    assert events_of_iteration(done) == [
        RondoflowEvent("iteration", {"iteration": 2, "maxIterations": 5, "output": "all of it"}),
        RondoflowEvent("progress", {"iteration": 2, "learning": "all"}),
    ]


@pytest.mark.item("rondoflow-28")
def test_a_review_is_asked_for_last() -> None:
    """The request carries the iteration, the output and the id to answer with."""
    done = AssistantIteration(
        iteration=1, max_iterations=5, output="o", learning="l", review="gate_1"
    )
    *_, last = events_of_iteration(done)
    assert [one.name for one in events_of_iteration(done)][:2] == ["iteration", "progress"]
    payload = {"iteration": 1, "output": "o", "loopId": "gate_1"}
    assert last == RondoflowEvent("manual_approval_required", payload)


@pytest.mark.parametrize(
    ("end", "event"),
    [
        pytest.param(
            End(outcome="completed", reason="regex", iterations=2, output="full"),
            RondoflowEvent("completed", {"totalIterations": 2, "finalOutput": "full"}),
            id="criterion-met",
        ),
        pytest.param(
            End(outcome="failed", reason="error", iterations=3, error="exit 1"),
            RondoflowEvent("failed", {"iteration": 3, "error": "Iteration 3: exit 1"}),
            id="failed",
        ),
        pytest.param(
            End(
                outcome="failed",
                reason="rejected",
                iterations=1,
                error="Manual approval was rejected by user",
            ),
            RondoflowEvent(
                "failed", {"iteration": 1, "error": "Manual approval was rejected by user"}
            ),
            id="rejected",
        ),
        pytest.param(
            End(outcome="exhausted", reason="budget", iterations=4),
            RondoflowEvent("failed", {"iteration": 4, "error": "Iteration 4: budget"}),
            id="budget",
        ),
        pytest.param(End(outcome="cancelled", reason="stopped", iterations=1), None, id="stopped"),
    ],
)
def test_the_end_of_a_loop(end: End, event: RondoflowEvent | None) -> None:
    """There is one terminal event, and none for a loop that was stopped."""
    assert event_of_end(end) == event


@pytest.mark.parametrize(
    ("criteria", "shown"),
    [
        (None, {"type": "max_iterations", "value": ""}),
        ({"type": "regex", "value": "DONE"}, {"type": "regex", "value": "DONE"}),
        ({"type": "test_pass", "value": "npm test"}, {"type": "test_pass", "value": "npm test"}),
        ({"type": "manual", "value": "x"}, {"type": "manual", "value": ""}),
    ],
)
def test_criteria_are_read_off_the_plan(criteria: object, shown: object) -> None:
    """The plan alone tells what the criterion was."""
    assert criteria_of(plan(criteria)) == shown


@pytest.mark.item("rondoflow-40")
def test_the_state_of_a_loop() -> None:
    """All documented fields, an empty session, and a log that is a copy."""
    learnings = ["one", "two"]
    state = loop_state(plan(None), agent_id="a1", status="waiting", learnings=learnings)
    assert state == {
        "agentId": "a1",
        "sessionId": "",
        "iteration": 2,
        "maxIterations": 5,
        "criteria": {"type": "max_iterations", "value": ""},
        "status": "running",
        "progressLog": ["one", "two"],
    }
    state["progressLog"].append("three")
    assert learnings == ["one", "two"]


def test_a_plan_without_a_loop_has_no_iterations() -> None:
    """Whatever the plan, the state can be shown."""
    bare = Plan(name="x", steps=(Step(id="main", action=Wait(ms=1)),))
    assert loop_state(bare, agent_id="a", status="failed", learnings=[])["maxIterations"] == 0


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ("running", "running"),
        ("waiting", "running"),
        ("paused", "paused"),
        ("completed", "completed"),
        ("exhausted", "failed"),
        ("failed", "failed"),
        ("cancelled", "failed"),
    ],
)
def test_status_words(status: str, word: str) -> None:
    """Every status of a run is one of four words."""
    assert status_of(status) == word
