"""Dry runs: the real kernel, stubs for the world, and nothing that is called."""

import pytest

from loopwright.app.rehearsing import Ending, rehearse
from loopwright.app.stubs import sample
from loopwright.model.actions import AskPerson, CallAgent, Each, Gate, Repeat, Step, Steps
from loopwright.model.checks import AllOf, Command, Judge, Regex, Signal
from loopwright.model.expr import Cel
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits, Retry
from loopwright.model.record import JsonValue
from loopwright.model.template import Items, ItemsExpr

CALL = CallAgent(agent="worker")
CHECKED = Repeat(
    body=CALL, max=4, until=AllOf(parts=(Signal(word="DONE"), Command(argv=("pytest",))))
)


def plan_of(*steps: Step, **more: object) -> Plan:
    return Plan(name="p", steps=steps, **more)  # type: ignore[arg-type]


def endings(plan: Plan) -> dict[str, Ending]:
    return {ending.story: ending for ending in rehearse(plan).endings}


def told(ending: Ending) -> tuple[str, str, int]:
    return ending.outcome, ending.reason, ending.passes


def test_every_way_a_checked_loop_can_end() -> None:
    """Each ending is one that the kernel came to: done, cap, broken check, failed agent."""
    found = endings(plan_of(Step(id="main", action=CHECKED)))
    assert {name: told(ending) for name, ending in found.items()} == {
        "everything works": ("completed", "command", 1),
        "no check ever passes": ("exhausted", "max_iterations", 4),
        "no check can be asked": ("failed", "check_broken", 3),
        "main fails": ("failed", "error", 1),
    }


@pytest.mark.parametrize(
    ("plan", "story", "expected"),
    [
        pytest.param(
            plan_of(Step(id="main", action=Repeat(body=CALL, max=3, gate=Gate()))),
            "a person rejects",
            ("failed", "rejected", 1),
            id="gate rejected",
        ),
        pytest.param(
            plan_of(Step(id="ask", action=AskPerson())),
            "everything works",
            ("completed", "approved", 0),
            id="gate approved",
        ),
        pytest.param(
            plan_of(
                Step(
                    id="main",
                    action=Repeat(body=CALL, max=2, until=Regex(pattern="x"), at_cap="ask"),
                )
            ),
            "no check ever passes",
            ("completed", "approved", 102),
            id="somebody who always asks for more",
        ),
        pytest.param(
            plan_of(Step(id="a", action=CALL), limits=Limits(wall_ms=1_000)),
            "the time runs out",
            ("exhausted", "deadline", 0),
            id="time",
        ),
        pytest.param(
            plan_of(Step(id="main", action=CHECKED), limits=Limits(usd=5)),
            "the budget runs out",
            ("exhausted", "budget", 1),
            id="budget",
        ),
        pytest.param(
            plan_of(Step(id="a", action=CALL, when=Cel(text="iteration > 3"))),
            "no condition holds",
            ("completed", "done", 0),
            id="condition",
        ),
        pytest.param(
            plan_of(Step(id="main", action=Repeat(body=CALL, max=2, until=Judge(agent="j")))),
            "no check can be asked",
            ("exhausted", "max_iterations", 2),
            id="judge that never answers",
        ),
    ],
)
def test_stories(plan: Plan, story: str, expected: tuple[str, str, int]) -> None:
    """What a person, the clock, money and conditions lead to."""
    assert told(endings(plan)[story]) == expected


def test_a_failing_step_spoils_what_needs_it() -> None:
    """Each step that can fail has a story, with what became of the others; groups have none."""
    inner = Steps(steps=(Step(id="x", action=CALL), Step(id="y", action=CALL, needs=("x",))))
    plan = plan_of(Step(id="a", action=CALL), Step(id="g", action=inner, needs=("a",)))
    found = endings(plan)
    assert [name for name in found if name.endswith(" fails")] == ["a fails", "x fails", "y fails"]
    assert found["a fails"].steps == {"a": "failed", "g": "cancelled"}
    assert found["y fails"].calls == {"worker": 3}


def test_the_worst_case_is_counted_not_guessed() -> None:
    """Checks pass in the last pass only, every call needs all its tries, lists are long."""
    listed = Repeat(body=CALL, each=Each(items=ItemsExpr(expr="x"), max_items=30))
    plan = plan_of(
        Step(id="dev", action=CHECKED, retry=Retry(attempts=2)),
        Step(id="ship", action=listed, needs=("dev",)),
    )
    worst = rehearse(plan).worst
    assert (worst.outcome, worst.passes) == ("completed", 34)
    assert worst.calls == {"worker": 4 * 2 + 30}


def test_a_rehearsal_has_an_end() -> None:
    """A plan that could go on for longer than anybody waits is told as such."""
    loop = Repeat(body=Repeat(body=CALL, max=1_000, at_cap="complete"), max=1_000)
    told = rehearse(plan_of(Step(id="main", action=loop))).as_dict()
    assert isinstance(told["worst"], dict)
    assert told["worst"]["complete"] is False


def test_what_is_assumed_is_said() -> None:
    """A list that is computed has a made-up length; a written one has its own."""
    loops = {
        "a": Each(items=ItemsExpr(expr="x")),
        "b": Each(items=Items(values=(1, 2, 3))),
    }
    plan = plan_of(*[Step(id=n, action=Repeat(body=CALL, each=e)) for n, e in loops.items()])
    found = rehearse(plan)
    assert found.assumed == ("a: a list of 2 items, of at most 1000",)
    assert found.endings[0].passes == 5


def test_results_fit_their_schema() -> None:
    """A step whose agent must give a structured result gets one, so that what follows can go on."""
    schema: dict[str, JsonValue] = {"type": "object", "properties": {"n": {"type": "integer"}}}
    plan = plan_of(Step(id="a", action=CallAgent(agent="w", schema=schema)))
    assert endings(plan)["everything works"].outcome == "completed"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        pytest.param({"type": "string"}, "text", id="text"),
        pytest.param({"type": ["integer", "null"]}, 1, id="several types"),
        pytest.param({"type": []}, {}, id="no type"),
        pytest.param({"enum": ["b", "a"]}, "b", id="choices"),
        pytest.param({"const": 7}, 7, id="constant"),
        pytest.param({"default": 8, "type": "integer"}, 8, id="default"),
        pytest.param({"type": "array"}, [], id="list"),
        pytest.param(
            {"properties": {"a": {"type": "boolean"}, "b": {"type": "number"}}},
            {"a": True, "b": 1.0},
            id="object",
        ),
        pytest.param(True, {}, id="anything"),
        pytest.param({"properties": 3}, {}, id="nonsense"),
    ],
)
def test_samples(schema: JsonValue, value: JsonValue) -> None:
    """A small value for every kind of schema."""
    assert sample(schema) == value
