"""The way back: a plan written as a native definition is the same plan."""

import json

import pytest
from hypothesis import HealthCheck, given, settings

from loopwright.dialects import native
from loopwright.model.actions import (
    Action,
    CallAgent,
    Cycle,
    Each,
    Repeat,
    RunScript,
    Step,
    Steps,
)
from loopwright.model.checks import Expr, Judge
from loopwright.model.memory import StageOutputs
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits
from loopwright.model.template import ItemsExpr
from loopwright.syntax import Document, read
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
    "action",
    [
        pytest.param(CallAgent(agent="a", context_files=("x",)), id="files"),
        pytest.param(RunScript(text="x"), id="script"),
        pytest.param(Cycle(agent="a"), id="cycle"),
        pytest.param(Steps(steps=(), parallel=2), id="parallel-steps"),
        pytest.param(loop(body=loop()), id="loop-as-body"),
        pytest.param(loop(until=Judge(agent="a")), id="judge"),
        pytest.param(loop(until=Expr(text="x")), id="expression"),
        pytest.param(loop(memory=StageOutputs()), id="stages"),
        pytest.param(loop(limits=Limits(no_progress=3)), id="no-progress"),
        pytest.param(loop(each=Each(items=ItemsExpr(expr="x"))), id="items-expression"),
    ],
)
def test_what_has_no_words_is_refused(action: Action) -> None:
    """A part that native cannot say yet is named, never dropped."""
    with pytest.raises(native.NotExpressible, match="cannot say this yet"):
        native.export(Plan(name="x", steps=(Step(id="main", action=action),)))


def test_conditions_and_outcomes_have_no_words() -> None:
    """The same for what belongs to a step and to the whole plan."""
    step = Step(id="main", action=CALL, when="x")
    with pytest.raises(native.NotExpressible, match="condition of main"):
        native.export(Plan(name="x", steps=(step,)))
    with pytest.raises(native.NotExpressible, match="some_completed"):
        native.export(Plan(name="x", steps=(), outcome="some_completed"))
