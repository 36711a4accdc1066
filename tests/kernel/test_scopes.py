"""Graphs that are a workflow of their own: what is seen inside of them, and from where."""

from __future__ import annotations

import pytest

from loopwright.kernel.references import (
    fill,
    iteration_in_scope,
    missing_value,
    request_text,
    resolve,
    scope_at,
)
from loopwright.model.actions import (
    CallAgent,
    Cel,
    Compare,
    Each,
    Repeat,
    Step,
    Steps,
    WorkflowInputs,
)
from loopwright.model.plan import Plan
from loopwright.model.record import Lit, LiteralItems, Ref, Template, literal
from tests.kernel.driving import Driver, Reply, by_effect, drive, plan_of_steps
from tests.kernel.invariants import broken_laws
from tests.kernel.shapes import WORK, statuses, step

OUTER: Template = (Lit(text="about "), Ref(of="output", name="same"))
INNER = WorkflowInputs(
    message=(Ref(of="message"), Lit(text="/"), Ref(of="item"), Lit(text="/"), *OUTER),
    inputs={"own": (Ref(of="input", name="name"), Ref(of="item", field="x"))},
)


def inside() -> Driver:
    """A run in the middle of a workflow in a workflow: `call` is one, and runs one for each item.

    Every one of them has a step that is called `same`.
    """
    innermost = Steps(steps=(step("same"), step("ask", "same")), given=INNER)
    over = Repeat(body=innermost, each=Each(items=LiteralItems(values=({"x": 1}, {"y": 2}))))
    called = Steps(
        steps=(step("same"), step("fan", "same", action=over)),
        given=WorkflowInputs(message=OUTER, inputs={"name": literal("given")}),
    )
    counted = Repeat(body=Steps(steps=(step("plain", action=called),)), max=2)
    plan = plan_of_steps(
        step("same"), step("loop", "same", action=counted), missing="fail", message=literal("m")
    )
    answers = {
        "same/agent#1": "outermost",
        "loop.0.plain.same/agent#1": "middle",
        "loop.0.plain.fan[0].same/agent#1": Reply("innermost", result='{"n": 1}'),
        "loop.0.plain.fan[1].same/agent#1": None,
        "loop.0.plain.fan[0].ask/agent#1": None,
    }
    inputs = {"name": "the run's", "other": "seen"}
    return Driver(plan, by_effect(answers), inputs=inputs, message="Go").run()


RUN = inside()
ASK = "loop.0.plain.fan[0].ask"
FAN = "loop.0.plain.fan"
PASS = "loop.0.plain.fan[0]"

SEEN = [
    pytest.param(Ref(of="output", name="same"), ASK, "innermost", id="a step beside"),
    pytest.param(Ref(of="output", name="same"), PASS, "innermost", id="a step inside of the pass"),
    pytest.param(Ref(of="output", name="same"), FAN, "middle", id="a step in the middle"),
    pytest.param(Ref(of="output", name="same"), "loop.0", "outermost", id="a step outside"),
    pytest.param(Ref(of="output", name="fan"), ASK, "", id="no step of the outside"),
    pytest.param(
        Ref(of="message"), ASK, 'about outermost/{"x":1}/about middle', id="what it was asked"
    ),
    pytest.param(Ref(of="message"), FAN, "about outermost", id="what the middle was asked"),
    pytest.param(Ref(of="message"), "loop", "Go", id="what the run was asked"),
    pytest.param(Ref(of="input", name="own"), ASK, "given1", id="an input that was given"),
    pytest.param(Ref(of="input", name="name"), ASK, "given", id="an input of the middle"),
    pytest.param(Ref(of="input", name="other"), ASK, "seen", id="an input of the run"),
    pytest.param(Ref(of="input", name="own"), FAN, "", id="an input of the inside"),
    pytest.param(Ref(of="item", field="x"), ASK, "1", id="the item"),
    pytest.param(Ref(of="index"), ASK, "0", id="its index"),
    pytest.param(Ref(of="iteration"), FAN, "1", id="the number of the pass"),
    pytest.param(Ref(of="previous"), ASK, "", id="no pass before"),
    pytest.param(Ref(of="feedback"), ASK, "", id="no words of a person"),
    pytest.param(Ref(of="previous_output", name="same"), ASK, "", id="no step of the pass before"),
]


@pytest.mark.parametrize(("ref", "place", "text"), SEEN)
def test_what_is_seen(ref: Ref, place: str, text: str) -> None:
    """Inside are its own steps, what it was given and its item, and nothing else of the outside."""
    assert fill(RUN.state, RUN.state.owners[place], (ref,), RUN.texts) == text


MISSING = [
    pytest.param(Ref(of="input", name="own"), PASS, None, id="all there"),
    pytest.param(
        Ref(of="input", name="own"), "loop.0.plain.fan[1]", "no field x; it has y", id="x"
    ),
    pytest.param(Ref(of="input", name="other"), ASK, None, id="of the run"),
    pytest.param(Ref(of="message"), ASK, None, id="the message"),
    pytest.param(Ref(of="item", field="y"), ASK, "no field y; it has x", id="of the item"),
    pytest.param(Ref(of="item"), ASK, None, id="the item itself"),
    pytest.param(Ref(of="item", field="y"), "loop.0", "not a JSON object", id="no item"),
    pytest.param(Ref(of="previous_result", name="same", field="n"), ASK, None, id="no pass before"),
    pytest.param(Ref(of="result", name="same", field="n"), FAN, "no field n", id="of a step"),
    pytest.param(Ref(of="result", name="same", field="n"), ASK, None, id="of a result"),
]


@pytest.mark.parametrize(("ref", "place", "why"), MISSING)
def test_what_is_missing(ref: Ref, place: str, why: str | None) -> None:
    """A value that is missing where it was given is missing where it is read."""
    found = missing_value(RUN.state, RUN.state.owners[place], (ref,), RUN.texts)
    assert found is None if why is None else why in (found or "")


def test_what_is_asked_without_a_prompt() -> None:
    """An agent without a prompt gets what its workflow was asked."""
    place = RUN.state.owners
    assert request_text(RUN.state, place["loop.0.plain.fan"], (), RUN.texts) == "about outermost"
    assert request_text(RUN.state, place["loop.0"], (), RUN.texts) == "Go"


def test_expressions_see_the_same() -> None:
    """Only steps of its own have a name in an expression; the item has."""
    scope = scope_at(RUN.state, RUN.state.owners[ASK], RUN.texts)
    assert scope.step_ids == {"same", "ask"}
    assert (scope.variables["item"], scope.variables["iteration"]) == ({"x": 1}, 0)


def test_the_iteration_of_the_same_workflow() -> None:
    """A loop around a workflow is not a loop of what stands inside."""
    owners = RUN.state.owners
    assert iteration_in_scope(owners[ASK]) is None
    assert iteration_in_scope(RUN.state.root) is None
    assert iteration_in_scope(owners["loop.0.plain"]) is owners["loop.0"]


def test_a_condition_sees_the_inside() -> None:
    """A condition of a step inside is about a step inside, not about one of the same name."""
    when = Compare(ref=Ref(of="output", name="same"), op="==", value="inner")
    seen = Cel(text="steps.same.content == 'inner'")
    body = Steps(
        steps=(step("same"), step("yes", "same", when=when), step("too", "same", when=seen)),
        given=WorkflowInputs(),
    )
    plan = plan_of_steps(step("same"), step("call", "same", action=body))
    run = drive(plan, by_effect({"same/agent#1": "outer", "call.same/agent#1": "inner"}))
    assert statuses(run)["call.yes"] == statuses(run)["call.too"] == "completed"
    assert broken_laws(run.events) == []


ENDS = [
    pytest.param(WorkflowInputs(), "failed", "nothing_completed", id="a workflow"),
    pytest.param(None, "completed", "done", id="just steps"),
]


@pytest.mark.parametrize(("given", "status", "reason"), ENDS)
def test_a_workflow_of_which_nothing_completed(
    given: WorkflowInputs | None, status: str, reason: str
) -> None:
    """A workflow has failed when all of its steps were left out; steps alone have not."""
    never = Step(id="never", action=WORK, when=Cel(text="false"))
    run = drive(plan_of_steps(step("call", action=Steps(steps=(never,), given=given))))
    assert run.ended[:2] == (status, reason)


def test_a_workflow_of_which_only_the_end_was_left_out() -> None:
    """It has completed, though it has nothing to say."""
    never = step("never", "first", when=Cel(text="false"))
    body = Steps(steps=(step("first"), never), given=WorkflowInputs(), output="sink")
    run = drive(plan_of_steps(step("call", action=body)))
    assert run.ended[:2] == ("completed", "done")


def test_a_message_that_was_not_given_is_the_one_around() -> None:
    """A workflow that is told nothing is asked what the one around it was asked."""
    ask = step("ask", action=CallAgent(agent="a", prompt=(Ref(of="message"),)))
    inner = Steps(steps=(ask,), given=WorkflowInputs())
    middle = Steps(
        steps=(step("in", action=inner),), given=WorkflowInputs(message=literal("middle"))
    )
    plan = Plan(name="t", steps=(step("call", action=middle),))
    run = Driver(plan, by_effect({}, default=None), message="Go").run()
    place = run.state.owners["call.in.ask"]
    assert resolve(run.state, place, Ref(of="message"), run.texts) == "middle"
