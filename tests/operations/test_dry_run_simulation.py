"""Dry runs: the real kernel with stubs, and no real calls."""

import pytest

from loopwright.model.actions import (
    AskPerson,
    CallAgent,
    Cel,
    Each,
    LoopGate,
    ModelCycle,
    Repeat,
    Step,
    Steps,
    Wait,
)
from loopwright.model.checks import (
    AllOf,
    AnyOf,
    CommandCheck,
    Judge,
    PersonCheck,
    Regex,
    Signal,
    SpendCheck,
    ToolResultCheck,
)
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import ConversationHistory, Limits, Retry
from loopwright.model.record import ItemsExpr, JsonValue, LiteralItems
from loopwright.operations.dry_run.simulation import ScenarioResult, simulate
from loopwright.operations.dry_run.stub_answers import sample

CALL = CallAgent(agent="worker")
CHECKED = Repeat(
    body=CALL, max=4, until=AllOf(parts=(Signal(word="DONE"), CommandCheck(argv=("pytest",))))
)


def plan_of(*steps: Step, **more: object) -> Plan:
    return Plan(name="p", steps=steps, **more)  # type: ignore[arg-type]


def endings(plan: Plan) -> dict[str, ScenarioResult]:
    return {ending.scenario: ending for ending in simulate(plan).endings}


def told(ending: ScenarioResult) -> tuple[str, str, int]:
    return ending.outcome, ending.reason, ending.iterations


def test_every_way_a_checked_loop_can_end() -> None:
    """Each ending is one that the kernel came to: done, cap, broken check, failed agent."""
    found = endings(plan_of(Step(id="main", action=CHECKED)))
    assert {name: told(ending) for name, ending in found.items()} == {
        "everything works": ("completed", "command", 1),
        "no check ever passes": ("exhausted", "max_iterations", 4),
        "no check can be run": ("failed", "check_broken", 3),
        "main fails": ("failed", "error", 1),
    }


@pytest.mark.parametrize(
    ("plan", "scenario", "expected"),
    [
        pytest.param(
            plan_of(Step(id="main", action=Repeat(body=CALL, max=3, gate=LoopGate()))),
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
            "no check can be run",
            ("exhausted", "max_iterations", 2),
            id="judge that never answers",
        ),
    ],
)
def test_scenarios(plan: Plan, scenario: str, expected: tuple[str, str, int]) -> None:
    """What a person, the clock, money and conditions lead to."""
    assert told(endings(plan)[scenario]) == expected


def test_a_failing_step_spoils_what_needs_it() -> None:
    """Each step that can fail has a scenario, with what became of the others; groups have none."""
    inner = Steps(steps=(Step(id="x", action=CALL), Step(id="y", action=CALL, needs=("x",))))
    plan = plan_of(Step(id="a", action=CALL), Step(id="g", action=inner, needs=("a",)))
    found = endings(plan)
    assert [name for name in found if name.endswith(" fails")] == ["a fails", "x fails", "y fails"]
    assert found["a fails"].steps == {"a": "failed", "g": "cancelled"}
    assert found["y fails"].calls == {"worker": 3}


def test_the_worst_case_is_counted_not_guessed() -> None:
    """Checks pass in the last iteration only, every call needs all its tries, lists are long."""
    listed = Repeat(body=CALL, each=Each(items=ItemsExpr(expr="x"), max_items=30))
    plan = plan_of(
        Step(id="dev", action=CHECKED, retry=Retry(attempts=2)),
        Step(id="ship", action=listed, needs=("dev",)),
    )
    worst = simulate(plan).worst
    assert (worst.outcome, worst.iterations) == ("completed", 34)
    assert worst.calls == {"worker": 4 * 2 + 30}


def test_a_rehearsal_has_an_end() -> None:
    """A plan that could go on for longer than anybody waits is told as such."""
    loop = Repeat(body=Repeat(body=CALL, max=1_000, at_cap="complete"), max=1_000)
    told = simulate(plan_of(Step(id="main", action=loop))).report()
    assert told.worst.complete is False


def test_what_is_assumed_is_said() -> None:
    """A list that is computed has a made-up length; a written one has its own."""
    loops = {
        "a": Each(items=ItemsExpr(expr="x")),
        "b": Each(items=LiteralItems(values=(1, 2, 3))),
    }
    plan = plan_of(*[Step(id=n, action=Repeat(body=CALL, each=e)) for n, e in loops.items()])
    found = simulate(plan)
    assert found.assumed == ("a: a list of 2 items, of at most 1000",)
    assert found.endings[0].iterations == 5


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


TALK = Repeat(
    body=ModelCycle(agent="coder", nudge="Go on."),
    max=5,
    until=AnyOf(parts=(ToolResultCheck(tool="shell.exec", exit_code=0), SpendCheck(usd=0.5))),
    memory=ConversationHistory(window=1_000, strategy="periodic-summary"),
)


def talk(**more: object) -> Plan:
    agents = {"coder": Agent(spec="model:a/b", tools=("fs.read",), **more)}  # type: ignore[arg-type]
    return plan_of(Step(id="main", action=TALK, limits=Limits(usd=2)), agents=agents)


def test_turns_of_a_chat_model() -> None:
    """Every turn is a call; stop rules, the cap, a failure and the money end the loop."""
    found = endings(talk())
    assert {name: told(ending) for name, ending in found.items()} == {
        "everything works": ("completed", "tool-result", 1),
        "no check ever passes": ("exhausted", "max_iterations", 5),
        "main fails": ("failed", "error", 1),
        "the budget runs out": ("exhausted", "budget", 1),
    }
    assert found["no check ever passes"].calls == {"coder": 5}
    made = simulate(talk())
    assert made.worst.size == (5, 5)
    assert made.assumed == ("main: no summary is needed, of at most 3 more calls",)


def test_people_who_are_asked_about_tools() -> None:
    """A tool that a person must see first is asked about once in each turn that is not the last."""
    found = endings(talk(approvals={"fs.read": "always"}))
    assert found["a person rejects"].gates == 5
    assert told(found["a person rejects"]) == ("exhausted", "max_iterations", 5)
    assert "a person rejects" not in endings(talk(approvals={"fs.read": "never"}))


def test_a_result_that_a_model_hands_in() -> None:
    """A cycle with a schema has a result of its form, so that what reads it can go on."""
    schema: dict[str, JsonValue] = {"type": "object", "properties": {"n": {"type": "integer"}}}
    cycle = Step(id="a", action=ModelCycle(agent="coder", schema=schema))
    after = Step(id="b", action=CALL, needs=("a",))
    found = endings(plan_of(cycle, after, agents={"coder": Agent()}))
    assert found["everything works"].steps == {"a": "completed", "b": "completed"}


def test_a_chat_model_behind_a_call_is_one_call() -> None:
    """What stands behind an agent does not change what a plan can come to."""
    plan = plan_of(Step(id="a", action=CALL), agents={"worker": Agent(spec="model:a/b")})
    assert endings(plan)["everything works"].calls == {"worker": 1}


@pytest.mark.parametrize(
    ("plan", "usd"),
    [
        pytest.param(plan_of(Step(id="a", action=CALL)), None, id="nothing"),
        pytest.param(plan_of(Step(id="a", action=CALL), limits=Limits(usd=5)), 5, id="the run"),
        pytest.param(talk(), 2, id="its step"),
        pytest.param(
            plan_of(
                Step(id="a", action=CALL, limits=Limits(usd=1)),
                Step(id="b", action=CALL, limits=Limits(usd=2)),
                Step(id="c", action=Wait(ms=1)),
            ),
            3,
            id="the sum of steps",
        ),
        pytest.param(
            plan_of(Step(id="a", action=CALL, limits=Limits(usd=1)), Step(id="b", action=CALL)),
            None,
            id="one that is not limited",
        ),
        pytest.param(
            plan_of(
                Step(
                    id="a",
                    action=Repeat(
                        body=Steps(steps=(Step(id="b", action=CALL, limits=Limits(usd=1)),)), max=4
                    ),
                )
            ),
            4,
            id="as often as a loop is made",
        ),
        pytest.param(
            plan_of(
                Step(
                    id="a",
                    action=Repeat(
                        body=CALL, limits=Limits(usd=7), each=Each(items=LiteralItems(values=()))
                    ),
                    limits=Limits(usd=9),
                )
            ),
            7,
            id="the least around it",
        ),
    ],
)
def test_the_most_that_may_be_spent(plan: Plan, usd: float | None) -> None:
    """It is read off the limits, wherever they stand."""
    worst = simulate(plan).report().worst
    assert worst.usd == usd


def test_a_person_rejects_what_has_passed_the_other_checks() -> None:
    """Asked together with a command, the person is asked when the command has passed."""
    until = AllOf(parts=(CommandCheck(argv=("pytest",)), PersonCheck()))
    found = endings(plan_of(Step(id="main", action=Repeat(body=CALL, max=3, until=until))))
    assert told(found["a person rejects"]) == ("failed", "rejected", 1)


def test_a_budget_that_ends_nothing_is_no_ending() -> None:
    """A loop of one iteration ends at its limit of iterations, whatever it spent."""
    loop = Repeat(body=CALL, max=1, until=CommandCheck(argv=("pytest",)))
    plan = plan_of(Step(id="main", action=loop), limits=Limits(usd=1.0))
    assert not any(
        told(one)[1] == "max_iterations"
        for name, one in endings(plan).items()
        if name == "the budget runs out"
    )
