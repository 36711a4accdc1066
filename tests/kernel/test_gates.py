"""Gates: what a person is asked, under which id, and what a decision does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loopwright.kernel.events import CheckVerdict, GateClosed, GateOpened, IterationFinished
from loopwright.model.actions import AskPerson, CallAgent, LoopGate, Repeat, Rework, Step
from loopwright.model.checks import AllOf, AnyOf, Contains, PersonCheck
from loopwright.model.policy import Limits
from loopwright.model.record import Lit, Ref, literal
from tests.kernel.driving import (
    Driver,
    People,
    by_iteration,
    decisions,
    drive,
    plan_of,
    plan_of_steps,
)
from tests.kernel.invariants import broken_laws

WORK = CallAgent(agent="a")
PERSON = plan_of(Repeat(body=WORK, max=3, until=PersonCheck()))
GATED = plan_of(Repeat(body=WORK, max=3, until=Contains(text="GOOD"), gate=LoopGate()))


@pytest.mark.parametrize("plan", [PERSON, GATED], ids=["check", "after each pass"])
@pytest.mark.parametrize(
    ("answers", "ended", "passes"),
    [
        pytest.param(["approve"], ("completed", "approved", "one"), 1, id="approve"),
        pytest.param([("reject", "no")], ("failed", "rejected", "one"), 1, id="reject"),
        pytest.param(
            [("continue", "more"), "approve"], ("completed", "approved", "two"), 2, id="go on once"
        ),
        pytest.param(["continue"], ("exhausted", "max_iterations", "three"), 3, id="go on always"),
    ],
)
def test_decisions(plan: object, answers: list[object], ended: object, passes: int) -> None:
    """Approve ends with that pass's output, reject fails, continue goes on with feedback."""
    run = drive(plan, by_iteration("one", "two", "three"), decisions(*answers))
    assert run.ended == ended
    assert run.passes == passes
    assert broken_laws(run.events) == []


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        pytest.param("not good", "not good", id="own words"),
        pytest.param("", "nope", id="words of the definition"),
    ],
)
def test_rejection_has_words(text: str, detail: str) -> None:
    """A rejection says why: what the person said, else what the definition says."""
    plan = plan_of(Repeat(body=WORK, max=2, until=PersonCheck(rejected="nope")))
    run = drive(plan, by_iteration("x"), decisions(("reject", text)))
    assert run.end.error is not None
    assert (run.end.error.type, run.end.error.detail) == ("rejected", detail)
    (ended,) = run.of(IterationFinished)
    assert (ended.status, ended.reason) == ("failed", "rejected")


def test_rejection_without_words_after_an_iteration() -> None:
    """A gate after each iteration says who rejected when nobody said why."""
    run = drive(GATED, by_iteration("x"), decisions("reject"))
    assert run.end.error is not None
    assert run.end.error.detail == "rejected by a person"


def test_a_check_that_passes_asks_no_one() -> None:
    """A gate after each iteration is about passes that did not end the loop."""
    run = drive(GATED, by_iteration("GOOD"))
    assert run.ended == ("completed", "contains", "GOOD")
    assert run.of(GateOpened) == []


def test_nothing_begins_while_a_person_is_asked() -> None:
    """The run waits for the person alone, and the gate shows the output."""
    run = drive(PERSON, by_iteration("one"))
    assert run.state.finished is None
    assert run.state.pending == {}
    (gate,) = run.of(GateOpened)
    assert (gate.output, gate.iteration, gate.about) == ("one", 1, "pass")
    assert gate.message == "Review iteration 1. Accept?"


def test_feedback_reaches_the_next_iteration() -> None:
    """What the person said is there for the next iteration, and for that one only."""
    run = Driver(PERSON, by_iteration("x")).run()
    run.decide("continue", "use tabs")
    assert run.state.owners["main"].body.progress.feedback == "use tabs"
    run.run()
    run.decide("continue")
    assert run.state.owners["main"].body.progress.feedback == ""


def test_ids_are_derived_and_unique() -> None:
    """Each iteration has a gate of its own, and the same run asks under the same ids."""
    one = drive(PERSON, by_iteration("x"), decisions("continue"))
    two = drive(PERSON, by_iteration("x"), decisions("continue"))
    ids = [gate.gate for gate in one.of(GateOpened)]
    assert len(set(ids)) == 3
    assert ids == [gate.gate for gate in two.of(GateOpened)]
    assert all(name.startswith("gate_") for name in ids)


@pytest.mark.parametrize("size", [5, 5_000], ids=["short", "stored"])
def test_digest_names_what_is_shown(size: int) -> None:
    """Another output or another question has another digest; the same has the same."""

    def digest(output: str, message: str) -> str:
        check = PersonCheck(message=literal(message))
        run = drive(plan_of(Repeat(body=WORK, max=1, until=check)), by_iteration(output))
        return run.of(GateOpened)[0].digest

    a, b = "a" * size, "b" * size
    assert digest(a, "ok?") == digest(a, "ok?")
    assert len({digest(a, "ok?"), digest(b, "ok?"), digest(a, "fine?")}) == 3


def test_double_answer_changes_nothing() -> None:
    """The first decision counts; a second one is counted as ignored."""
    run = Driver(PERSON, by_iteration("x")).run()
    (gate,) = run.open_gates()
    run.decide("continue")
    version = len(run.events)
    assert run.append(run.decision_event(gate, "reject")) == run.events[version:]
    assert len(run.events) == version + 1
    assert run.state.ignored == 1
    run.run()
    assert run.state.finished is None


def test_answer_after_the_gate_closed_changes_nothing() -> None:
    """A gate that a deadline closed takes no decision any more."""
    plan = plan_of(Repeat(body=WORK, max=3, until=PersonCheck(), limits=Limits(wall_ms=100)))
    run = Driver(plan, by_iteration("x")).start()
    run.step()
    (gate,) = run.open_gates()
    run.fire("main/loop-deadline#1")
    assert [event.reason for event in run.of(GateClosed)] == ["deadline"]
    run.append(run.decision_event(gate, "approve"))
    assert run.ended == ("exhausted", "deadline", "")


def test_answer_to_an_invented_gate_changes_nothing() -> None:
    """A decision about a gate that never was is ignored."""
    run = Driver(PERSON, by_iteration("x")).run()
    (gate,) = run.open_gates()
    event = run.decision_event(gate, "approve")
    run.append(type(event)(at=event.at, path=event.path, gate="gate_0", decision="approve"))
    assert run.state.finished is None
    assert len(run.state.gates) == 1


def test_closing_what_is_not_open_changes_nothing() -> None:
    """A gate can be closed once; another time is ignored."""
    run = Driver(PERSON, by_iteration("x")).run()
    (gate,) = run.open_gates()
    run.decide("continue")
    run.append(GateClosed(at=run.clock, path=gate.path, gate=gate.gate, reason="late"))
    assert run.state.ignored == 1


def test_two_people_are_asked_twice() -> None:
    """One approval does not stand for two: each person's check has a gate of its own."""
    both = AllOf(parts=(PersonCheck(message=literal("one?")), PersonCheck(message=literal("two?"))))
    run = Driver(plan_of(Repeat(body=WORK, max=2, until=both)), by_iteration("x")).run()
    run.decide("approve")
    assert [gate.message for gate in run.open_gates()] == ["two?"]
    run.decide("approve")
    assert run.ended == ("completed", "approved", "x")
    assert len({gate.gate for gate in run.of(GateOpened)}) == 2


def test_second_person_may_disagree() -> None:
    """In `any`, the next person is asked when the one before goes on."""
    either = AnyOf(parts=(PersonCheck(), PersonCheck(message=literal("and you?"))))
    run = Driver(plan_of(Repeat(body=WORK, max=2, until=either)), by_iteration("x")).run()
    run.decide("continue", "hm")
    run.decide("reject", "no")
    assert run.ended == ("failed", "rejected", "x")
    assert [event.verdict for event in run.of(CheckVerdict)] == ["fail", "rejected"]


def test_a_check_that_asked_needs_no_second_question() -> None:
    """With a person among the checks, the gate after the iteration stays closed."""
    plan = plan_of(Repeat(body=WORK, max=2, until=PersonCheck(), gate=LoopGate()))
    run = drive(plan, by_iteration("x", "y"), decisions(("continue", "again"), "approve"))
    assert len(run.of(GateOpened)) == 2
    assert run.ended == ("completed", "approved", "y")


# -- a gate as a step ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "decision", "text", "ended"),
    [
        pytest.param(AskPerson(), "approve", "yes", ("completed", "approved", ""), id="approve"),
        pytest.param(
            AskPerson(capture=True),
            "approve",
            "yes",
            ("completed", "approved", "yes"),
            id="capture",
        ),
        pytest.param(AskPerson(), "reject", "no", ("failed", "rejected", ""), id="reject"),
        pytest.param(AskPerson(), "reject", "", ("failed", "rejected", ""), id="reject, no words"),
    ],
)
def test_gate_step(step: AskPerson, decision: str, text: str, ended: object) -> None:
    """A gate step completes or fails with the decision; it may hand on what was said."""
    run = Driver(plan_of(step)).run()
    assert run.state.pending == {}
    run.decide(decision, text)
    assert run.ended == ended
    if decision == "reject":
        assert run.end.error is not None
        assert run.end.error.detail == (text or "rejected by a person")


@pytest.mark.parametrize(
    ("answers", "ended"),
    [
        pytest.param(["reject"], ("cancelled", "rejected"), id="reject"),
        pytest.param(["approve"], ("completed", "done"), id="approve"),
    ],
)
@pytest.mark.parametrize("rework", [None, Rework(agent="fixer", attempts=1)], ids=["plain", "used"])
def test_a_rejection_may_end_the_run(
    answers: list[str], ended: tuple[str, str], rework: Rework | None
) -> None:
    """A gate step may say that a rejection ends everything, not just what follows from it."""
    ask = AskPerson(reject="cancel", on_reject=rework)
    plan = plan_of_steps(Step(id="ask", action=ask), Step(id="other", action=WORK))
    run = drive(plan, by_iteration("x"), decisions(*answers))
    assert run.ended[:2] == ended
    assert broken_laws(run.events) == []


@pytest.mark.item("archon-85")
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param("approve", {"status": "satisfied", "waited_ms": 40}, id="without a text"),
        pytest.param(
            ("approve", "done it"),
            {"status": "satisfied", "waited_ms": 40, "payload": "done it"},
            id="with a text",
        ),
    ],
)
def test_timed_gate_when_approved_says_how_long_it_waited(said: Any, expected: Any) -> None:
    """The output is a JSON object with the time and the text of the person."""
    ask = AskPerson(message=literal("Go on?"), approved='{"status": "satisfied"}', timed=True)
    run = Driver(plan_of_steps(Step(id="s", action=ask))).run()
    [gate] = run.open_gates()
    run.clock = gate.at + 39
    run.decide(*([said] if isinstance(said, str) else said))
    run.run()
    assert json.loads(str(run.ended[2])) == expected


def test_gate_step_asks_with_its_message() -> None:
    """The question may quote what came before; without one there is a plain question."""
    ask = AskPerson(message=(Lit(text="Ship "), Ref(of="output", name="work"), Lit(text="?")))
    plan = plan_of_steps(
        Step(id="work", action=WORK),
        Step(id="ship", action=ask, needs=("work",)),
        Step(id="plain", action=AskPerson(), needs=("work",)),
    )
    run = drive(plan, by_iteration("v2"))
    assert [(gate.path, gate.message) for gate in run.open_gates()] == [
        ("plain", "Continue?"),
        ("ship", "Ship v2?"),
    ]


def test_gate_as_the_body_of_a_loop() -> None:
    """A loop may go round a question; the question and the check are two gates."""
    plan = plan_of(Repeat(body=AskPerson(capture=True), max=2, until=PersonCheck()))
    run = Driver(plan).run()
    run.decide("approve", "answer")
    assert run.open_gates()[0].message == "Review iteration 1. Accept?"
    run.decide("approve")
    assert run.ended == ("completed", "approved", "answer")
    assert len({gate.gate for gate in run.of(GateOpened)}) == 2


@pytest.mark.item("archon-85")
@pytest.mark.parametrize(
    ("people", "ended"),
    [
        pytest.param(lambda _: None, ("completed", "deadline", "late"), id="nobody"),
        pytest.param(decisions("approve"), ("completed", "approved", "came"), id="in time"),
    ],
)
def test_a_gate_that_nobody_has_to_answer(people: People, ended: object) -> None:
    """Its step completes when its time is up, with an output that says so."""
    ask = AskPerson(message=literal("Has it come?"), approved="came", expired="late")
    plan = plan_of_steps(Step(id="s", action=ask, limits=Limits(wall_ms=100)))
    run = drive(plan, by_iteration("x"), people)
    assert run.ended == ended
    assert broken_laws(run.events) == []
