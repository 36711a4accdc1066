"""The way back: a plan written as a native definition is the same plan."""

import json

import pytest
from hypothesis import HealthCheck, given, settings

from loopwright.dialects import native
from loopwright.model.actions import Action, CallAgent, ModelCycle, Repeat, Step, Wait
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import Limits
from loopwright.model.record import Ref
from loopwright.syntax.document import Document
from loopwright.syntax.readers import read
from tests.dialects.native.plans import PLANS
from tests.dialects.reading import plan_of

CALL = CallAgent(agent="a")


@given(PLANS)
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_export_loses_nothing(plan: Plan) -> None:
    """Lowering what was exported gives the plan again, without a finding."""
    again, problems = native.lower(Document.plain(native.export(plan), file="exported"))
    assert [one.render() for one in problems] == []
    assert again == plan


@given(PLANS)
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
def test_export_survives_being_written(plan: Plan) -> None:
    """The same through JSON text, as a file would hold it."""
    text = json.dumps(native.export(plan))
    document, problems = read(text.encode(), file="exported.json")
    assert problems == []
    assert document is not None
    assert native.lower(document) == (plan, [])


def test_small_plans_stay_small() -> None:
    """What equals its default is left out."""
    text = "name: x\nagent: claude\ngoal: Go.\nrepeat: {max: 3, until: {signal: DONE}}\n"
    assert native.export(plan_of(text)) == {
        "name": "x",
        "goal": "Go.",
        "agents": {"claude": {"use": "claude"}},
        "repeat": {"max": 3, "until": {"signal": "DONE"}, "agent": "claude"},
    }


def loop(**changes: object) -> Repeat:
    return Repeat(**({"body": CALL, "max": 1} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("action", "says"),
    [
        pytest.param(ModelCycle(agent="a"), "a cycle of main that is not an iteration", id="cycle"),
        pytest.param(loop(body=loop()), "a repeat as the body of main", id="loop-as-body"),
        pytest.param(loop(body=Wait(ms=1)), "a wait as the body of main", id="wait-as-body"),
        pytest.param(loop(limits=Limits(no_progress=3)), "without progress", id="no-progress"),
    ],
)
def test_what_has_no_words_is_refused(action: Action, says: str) -> None:
    """A part that native cannot say is named, never dropped."""
    with pytest.raises(native.NotExpressible, match="cannot say this") as caught:
        native.export(Plan(name="x", steps=(Step(id="main", action=action),)))
    assert says in caught.value.message


def test_names_of_other_dialects_are_kept() -> None:
    """Ids and agents that native would not take from a person survive a conversion."""
    plan = Plan(
        name="x",
        steps=(
            Step(id="Read_It", action=CallAgent(agent="coder@some/model:8b")),
            Step(
                id="B",
                needs=("Read_It",),
                action=CallAgent(agent="inner.coder", prompt=(Ref(of="output", name="Read_It"),)),
            ),
        ),
        agents={"coder@some/model:8b": Agent(), "inner.coder": Agent()},
        dialect="zenflow",
    )
    made = native.export(plan)
    assert made["converted_from"] == "zenflow"
    again, problems = native.lower(Document.plain(made, file="exported"))
    assert problems == []
    assert again == plan
    del made["converted_from"]
    _, problems = native.lower(Document.plain(made, file="exported"))
    assert {one.code for one in problems} == {"bad-id"}
