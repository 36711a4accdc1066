"""What a stage is shown: seven parts in their order, and nothing that is stored cut for good."""

import pytest

from loopwright.kernel.events import RunEdited, RunReopened
from loopwright.model.actions import CallAgent, Repeat, RunCommand, Step, Steps
from loopwright.model.checks import Approval, Cap, Goal, Leaf
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import StageOutputs
from loopwright.model.record import Lit, Ref, literal
from loopwright.prompts.calls import compose
from loopwright.prompts.sections import clip_with
from tests.kernel.driving import Driver, Fail, Reply

CRITERIA = (Lit(text="Every claim has a "), Ref(of="input", name="proof"))
STAGES = Steps(
    steps=(
        Step(id="plan", action=CallAgent(agent="plan", prompt=literal("Plan it."))),
        Step(id="build", action=CallAgent(agent="b", prompt=literal("Build it.")), needs=("plan",)),
        Step(
            id="check", action=CallAgent(agent="r", prompt=literal("Check it.")), needs=("build",)
        ),
    )
)
AGENTS = {"plan": Agent(), "b": Agent(role="coder"), "r": Agent(role="reviewer")}


def driver(
    until: Leaf | None = None,
    body: Steps | CallAgent = STAGES,
    memory: StageOutputs | None = None,
    most: int | None = 5,
) -> Driver:
    loop = Repeat(
        body=body,
        max=most,
        until=Approval(words=True, criteria=CRITERIA) if until is None else until,
        memory=memory or StageOutputs(),
    )
    plan = Plan(name="harness", steps=(Step(id="main", action=loop),), agents=AGENTS)
    inputs = {"proof": "source", "depth": 3}
    return Driver(plan, message="Build a cache.", inputs=inputs).start()


def shown(run: Driver, path: str) -> str:
    return compose(run.state, run.state.owners[path], run.texts).text


def first_round(run: Driver, review: str = "NEEDS CHANGES: no test\nSee a.py") -> Driver:
    run.answer("main.0.plan/agent#1", "The plan.")
    run.answer("main.0.build/agent#1", "Built.")
    run.answer("main.0.check/agent#1", review)
    return run


@pytest.mark.item("coqui-21")
def test_seven_parts_in_their_order() -> None:
    """Goal, iteration, stages before, earlier iterations, criteria, parameters, task."""
    run = first_round(driver())
    run.answer("main.1.plan/agent#1", "Second plan.")
    run.answer("main.1.build/agent#1", "Built again.")
    text = shown(run, "main.1.check")
    parts = [
        "# Loop: harness",
        "## Goal\n\nBuild a cache.",
        "## Iteration 2/5\n\nYou are the reviewer, stage 3 of 3.",
        "## Previous Stages This Cycle\n\n### Stage 1: plan\n\nSecond plan.",
        "### Stage 2: coder\n\nBuilt again.",
        "## Previous Iteration Outcomes\n\n- Iteration 1: not approved: NEEDS CHANGES: no test",
        "### Review of iteration 1\n\nNEEDS CHANGES: no test\nSee a.py",
        "## Acceptance Criteria\n\nEvery claim has a source",
        "## Parameters\n\n- proof: source\n- depth: 3",
        "## Your Task\n\nCheck it.\n\nEnd with your verdict",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert "The plan." not in text


@pytest.mark.item("coqui-22")
def test_the_first_stage_of_a_later_iteration_knows_how_the_earlier_ended() -> None:
    """One line for each, and the words of the last review."""
    run = driver()
    assert "Previous" not in shown(run, "main.0.plan")
    text = shown(first_round(run), "main.1.plan")
    assert "- Iteration 1: not approved: NEEDS CHANGES: no test" in text
    assert "Previous Stages" not in text
    assert "End with your verdict" not in text


@pytest.mark.item("coqui-25")
def test_a_long_output_is_shown_in_part_and_kept_whole() -> None:
    """Head, tail and the command that prints all of it."""
    run = driver(memory=StageOutputs(chars=100))
    whole = "a" * 400 + "b" * 400
    run.answer("main.0.plan/agent#1", whole)
    text = shown(run, "main.0.build")
    assert "a" * 50 in text
    assert "b" * 50 in text
    assert "a" * 51 not in text
    assert "[… 700 characters left out; `loopwright show r_test --output main.0.plan`" in text
    found = run.state.owners["main.0"].body.results["plan"]  # type: ignore[union-attr]
    assert run.texts.read(found.output) == whole


def test_what_is_cut_says_so() -> None:
    """With and without a place to look."""
    assert clip_with("abc", 3, "x") == "abc"
    assert clip_with("abcdef", 2, "") == "a\n[… 4 characters left out …]\nf"
    assert clip_with("abcdef", 2, "look") == "a\n[… 4 characters left out; look …]\nf"


def test_a_loop_without_an_end_of_its_own_says_so() -> None:
    """No limit, no criteria, no verdict asked for."""
    text = shown(driver(until=Cap(), most=None), "main.0.plan")
    assert "## Iteration 1 (no limit)" in text
    assert "Acceptance" not in text


def test_an_evaluator_is_read_in_the_next_iteration() -> None:
    """What reached means is a criterion, and why it was not reached is told."""
    run = first_round(driver(until=Goal(agent="plan", prompt=literal("All tests pass."))))
    run.answer("main.0/check0#1", Reply(result='{"done":false,"reason":"Two fail."}'))
    text = shown(run, "main.1.plan")
    assert "## Acceptance Criteria\n\nAll tests pass." in text
    assert "### Answer of the evaluator after iteration 1\n\nTwo fail." in text
    silent = first_round(driver(until=Cap()))
    assert "###" not in shown(silent, "main.1.plan")


def test_a_named_stage_reviews() -> None:
    """It is asked for the verdict, and its words are those that are handed on."""
    until = Approval(stage="build", words=True)
    run = driver(until=until)
    run.answer("main.0.plan/agent#1", "The plan.")
    assert "End with your verdict" in shown(run, "main.0.build")
    run.answer("main.0.build/agent#1", "Not approved.")
    run.answer("main.0.check/agent#1", "Tidied up.")
    assert "### Review of iteration 1\n\nNot approved." in shown(run, "main.1.plan")


def test_a_review_without_words_leaves_none() -> None:
    """Nothing is quoted where nothing was said."""
    assert "### Review" not in shown(first_round(driver(), review=""), "main.1.plan")


def test_a_single_call_is_a_stage_of_its_own() -> None:
    """A loop whose body is one call is told the same, without other stages."""
    run = driver(body=CallAgent(agent="r"))
    text = shown(run, "main.0")
    assert "You are the reviewer." in text
    assert text.endswith("does not go with an approval.")
    run.answer("main.0/agent#1", "no")
    assert "### Review of iteration 1\n\nno" in shown(run, "main.1")


def test_a_program_among_the_stages_is_named_by_its_step() -> None:
    """What it printed stands under its id; one that said nothing says so."""
    body = Steps(
        steps=(
            Step(id="test", action=RunCommand(argv=("t",))),
            Step(id="look", action=CallAgent(agent="b"), needs=("test",)),
        )
    )
    run = driver(body=body)
    run.answer("main.0.test/command#1", Reply("", code=0))
    assert "### Stage 1: test\n\n(no output)" in shown(run, "main.0.look")


def test_an_unfit_answer_is_asked_for_again() -> None:
    """The form of a result, and what was wrong with the one before, stand below the task."""
    body = CallAgent(agent="b", prompt=literal("Do."), schema={"type": "object"})
    run = driver(body=body)
    run.answer("main.0/agent#1", Fail("bad_result", "no object"))
    text = shown(run, "main.0")
    assert "## Result" in text
    assert "The answer before did not fit: no object" in text


def test_very_many_iterations_are_reported_in_part() -> None:
    """The newest are listed, and how many came before them."""
    run = driver(until=Cap(), most=None, body=CallAgent(agent="b"))
    for number in range(202):
        run.answer(f"main.{number}/agent#1", f"said {number}")
    text = shown(run, "main.202")
    assert "- (2 more before these)\n- Iteration 3: said 2\n" in text
    assert "- Iteration 202: said 201" in text


@pytest.mark.parametrize(
    ("asked", "task"),
    [
        pytest.param("Plan it.", "## Your Task\n\nPlan it.\n\nLeave what you made", id="a prompt"),
        pytest.param("", "## Your Task\n\nLeave what you made", id="none"),
    ],
)
def test_a_stage_is_informed_that_it_must_leave_an_artifact(asked: str, task: str) -> None:
    """It stands in its task, and in no other."""
    call = CallAgent(agent="plan", prompt=literal(asked) if asked else ())
    steps = (Step(id="plan", action=call, needs_artifact=True), *STAGES.steps[1:])
    text = shown(driver(body=Steps(steps=steps)), "main.0.plan")
    assert task in text


@pytest.mark.item("coqui-55")
def test_a_changed_goal_is_what_the_next_stage_is_reported() -> None:
    """Also a person's note, told to the stage that is tried again and to no other."""
    run = driver()
    run.append(RunEdited(at=run.clock, message="Build a queue."))
    run.answer("main.0.plan/agent#1", "The plan.")
    assert "## Goal\n\nBuild a queue.\n" in shown(run, "main.0.build")
    run.answer("main.0.build/agent#1", Fail())
    run.append(RunReopened(at=run.clock, stage="retry", note="Mind the gap"))
    text = shown(run, "main~2.0.build")
    assert "## Note from a Person\n\nMind the gap" in text
    assert "### Stage 1: plan\n\nThe plan." in text
    run.answer("main~2.0.build/agent#1", "Built.")
    assert "Mind the gap" not in shown(run, "main~2.0.check")


def test_without_parameters_there_is_no_part_for_them() -> None:
    """An empty part is left out."""
    plan = Plan(
        name="p",
        steps=(Step(id="main", action=Repeat(body=STAGES, max=1, memory=StageOutputs())),),
        agents=AGENTS,
    )
    assert "## Parameters" not in shown(Driver(plan).start(), "main.0.plan")
