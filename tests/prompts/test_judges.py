"""The prompt of a judge: the result of the iteration, its earlier verdicts, the answer format."""

from loopwright.kernel.frames import IterationOwner
from loopwright.model.actions import CallAgent, Repeat, Step, Steps
from loopwright.model.checks import Goal, Judge
from loopwright.model.record import literal
from loopwright.prompts.judges import VERDICT, compose_judge
from tests.kernel.driving import Driver, Fail, Reply, plan_of

WORK = CallAgent(agent="w")
SCHEMA = {"type": "object", "required": ["done"], "properties": {"done": {"type": "boolean"}}}


def started(judge: Judge | Goal, body: CallAgent | Steps = WORK) -> Driver:
    return Driver(plan_of(Repeat(body=body, max=3, until=judge)), message="Make it work.").start()


def shown(driver: Driver, judge: Judge | Goal, path: str = "main.0") -> str:
    owner = driver.state.owners[path]
    assert isinstance(owner, IterationOwner)
    return compose_judge(driver.state, owner, judge, driver.texts).text


def test_a_judge_sees_task_work_and_form() -> None:
    """With a prompt of ours where the definition has none."""
    judge = Judge(agent="j")
    driver = started(judge)
    driver.answer("main.0/agent#1", Reply("I did it.", result='{"n":1}'))
    text = shown(driver, judge)
    assert text.startswith("Judge whether the task below is done.")
    for words in ("Make it work.", "## Iteration 1", "I did it.", '{"n":1}', '"required":["done"]'):
        assert words in text
    assert "did not have this form" not in text


def test_a_goal_has_a_prompt_of_its_own_and_our_form() -> None:
    """A judge may bring a schema, a goal does not."""
    goal = Goal(agent="j", prompt=literal("Is the build green?"))
    driver = started(goal)
    driver.answer("main.0/agent#1", "yes")
    owner = driver.state.owners["main.0"]
    assert isinstance(owner, IterationOwner)
    found = compose_judge(driver.state, owner, goal, driver.texts)
    assert found.text.startswith("Is the build green?")
    assert found.schema == VERDICT
    own = compose_judge(driver.state, owner, Judge(agent="j", schema=SCHEMA), driver.texts)
    assert own.schema == SCHEMA


def test_every_step_of_the_iteration_is_shown() -> None:
    """In the order in which they are written, only those that have ended."""
    body = Steps(steps=(Step(id="a", action=WORK, needs=("b",)), Step(id="b", action=WORK)))
    judge = Judge(agent="j")
    driver = started(judge, body)
    assert "### " not in shown(driver, judge)
    driver.answer("main.0.b/agent#1", "from b")
    driver.answer("main.0.a/agent#1", "from a")
    text = shown(driver, judge)
    assert text.index("### a\n\nfrom a") < text.index("### b\n\nfrom b")


def test_a_look_before_the_work_has_nothing_to_show() -> None:
    """A call that has not been answered leaves no output."""
    judge = Judge(agent="j")
    assert "### " not in shown(started(judge), judge)


def test_what_it_said_before_is_shown() -> None:
    """So that it can see whether its objections were met."""
    judge = Judge(agent="j")
    driver = started(judge)
    driver.answer("main.0/agent#1", "one")
    driver.answer("main.0/check0#1", Reply(result='{"done": false, "reason": "no tests"}'))
    driver.answer("main.1/agent#1", "two")
    assert "## Judge Feedback (Iteration 1)\n\nno tests" in shown(driver, judge, "main.1")


def test_an_answer_without_the_form_is_asked_for_again() -> None:
    """The second time it is told so."""
    judge = Judge(agent="j")
    driver = started(judge)
    driver.answer("main.0/agent#1", "one")
    driver.answer("main.0/check0#1", Fail("bad_result", "no object"))
    assert "The answer before did not have this form." in shown(driver, judge)
