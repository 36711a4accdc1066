"""Earlier results in prompts: needed steps, the previous iteration, and their maximum length."""

import json

import pytest

from loopwright.kernel.events import AnyEvent, RunFinished
from loopwright.model.actions import CallAgent, Each, Repeat, Step, Steps
from loopwright.model.checks import Judge
from loopwright.model.policy import PreviousOutput
from loopwright.model.record import LiteralItems, literal
from loopwright.prompts.calls import NEED_BYTES, PROMPT_BYTES, compose
from tests.kernel.driving import Driver, Fail, Reply, plan_of_steps


def call(prompt: str = "", **more: object) -> CallAgent:
    return CallAgent(agent="w", prompt=literal(prompt), show_needs=True, **more)  # type: ignore[arg-type]


def started(*steps: Step, message: str = "") -> Driver:
    return Driver(plan_of_steps(*steps), message=message).start()


def shown(driver: Driver, path: str) -> str:
    """What the agent at a place is shown now."""
    return compose(driver.state, driver.state.owners[path], driver.texts).text


def pair(first: CallAgent | Repeat, prompt: str = "Sum up.") -> tuple[Step, Step]:
    return (
        Step(id="a", action=first),
        Step(id="b", action=call(prompt), needs=("a",), join="all_done"),
    )


def after(
    said: Reply | str, effect: str = "a/agent#1", first: CallAgent | Repeat | None = None
) -> str:
    """The prompt of a step after another one said something."""
    driver = started(*pair(first or call()), message="Go.")
    driver.answer(effect, said)
    return shown(driver, "b")


def test_needs_are_below_the_task() -> None:
    """With what the run was started with between them."""
    assert after("done") == (
        "Sum up.\n\n## Flow Context\n\nGo.\n\n## Previous Step Results\n\n### a\n\ndone"
    )


def test_a_failed_step_leaves_nothing() -> None:
    """Only what completed is shown."""
    driver = started(*pair(call()))
    driver.answer("a/agent#1", Fail("agent"))
    assert shown(driver, "b") == "Sum up."


def test_results_are_shown_as_json() -> None:
    """Below the text."""
    assert after(Reply("text", result='{"n":1}')).endswith('text\n\nResult:\n\n{"n":1}')


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        pytest.param({"n": 1, "long": "x" * 20_000}, {"n": 1}, id="large-field"),
        pytest.param({f"f{n}": "x" * 1_000 for n in range(40)}, None, id="many-fields"),
    ],
)
def test_a_large_object_stays_an_object(value: dict[str, object], kept: object) -> None:
    """Small fields are kept as long as there is room; the others are named."""
    text = after(Reply("", result=json.dumps(value))).partition("Result:\n\n")[2]
    found = json.loads(text)
    assert found.pop("_truncated") is True
    left_out = found.pop("_left_out")
    assert len(text) <= NEED_BYTES
    assert found
    assert found.items() <= value.items()
    assert set(left_out.split(", ")) == set(value) - set(found)
    assert kept is None or found == kept


def test_a_large_list_keeps_its_head() -> None:
    """There are no fields to choose from."""
    text = after(Reply("", result=json.dumps(["x" * 100] * 1_000)))
    assert "[… truncated" in text


def test_a_loop_that_hands_on_everything_is_not_cut() -> None:
    """But the prompt as a whole is, below what is asked."""
    everything = Repeat(body=call(), max=1, output="all", at_cap="complete")
    long = "y" * (2 * NEED_BYTES)
    assert long in after(long, "a.0/agent#1", everything)
    text = after("y" * 2 * PROMPT_BYTES, "a.0/agent#1", everything)
    assert text.startswith("Sum up.")
    assert len(text.encode()) <= PROMPT_BYTES


def test_a_task_that_fills_the_prompt() -> None:
    """The prompt still has its end."""
    driver = started(*pair(call(), "z" * 2 * PROMPT_BYTES))
    driver.answer("a/agent#1", "done")
    assert len(shown(driver, "b").encode()) <= PROMPT_BYTES


# -- passes ----------------------------------------------------------------------------------------

INNER = Steps(steps=(Step(id="code", action=call("Write.")),))


def repeat(body: CallAgent | Steps, **more: object) -> Repeat:
    return Repeat(body=body, max=3, memory=PreviousOutput(by_step=True), **more)  # type: ignore[arg-type]


def test_steps_of_an_iteration_see_its_number_from_the_first_one_on() -> None:
    """And the steps of the iteration before by their names."""
    driver = started(Step(id="dev", action=repeat(INNER)))
    assert shown(driver, "dev.0.code") == "Write.\n\n## Iteration 1"
    driver.answer("dev.0.code/agent#1", "first")
    assert shown(driver, "dev.1.code") == (
        "Write.\n\n## Previous Iteration Output (Iteration 1)\n\n### code\n\nfirst"
        "\n\n## Iteration 2"
    )


def test_a_single_call_receives_nothing_in_its_first_iteration() -> None:
    """Its prompt is as it was written; later it sees what it said."""
    driver = started(Step(id="dev", action=repeat(call("Write."))))
    assert shown(driver, "dev.0") == "Write."
    driver.answer("dev.0/agent#1", "first")
    assert "(Iteration 1)\n\nfirst\n\n## Iteration 2" in shown(driver, "dev.1")


def test_a_judge_is_read() -> None:
    """Its words stand in the next iteration, once."""
    driver = started(Step(id="dev", action=repeat(INNER, until=Judge(agent="j"))))
    driver.answer("dev.0.code/agent#1", "first")
    driver.answer("dev.0/check0#1", Reply(result='{"done": false, "reason": "no tests"}'))
    assert "## Judge Feedback\n\nno tests" in shown(driver, "dev.1.code")


def test_a_counted_loop_does_not_hide_the_item() -> None:
    """The item of the list around it is shown, with its index."""
    inner = Steps(steps=(Step(id="in", action=repeat(call("Fix."))),))
    items = Each(items=LiteralItems(values=("a", "b")), parallel=2)
    driver = started(Step(id="all", action=Repeat(body=inner, each=items)))
    assert shown(driver, "all[1].in.0") == 'Fix.\n\n## forEach Item (index: 1)\n"b"'


def test_a_result_that_did_not_fit_is_reported() -> None:
    """The second request has the form and the reason."""
    driver = started(Step(id="a", action=call("Count.", schema={"type": "object"})))
    driver.answer("a/agent#1", Fail("bad_result", "count: 'x' is not a number"))
    driver.step()
    text = shown(driver, "a")
    assert '{"type":"object"}' in text
    assert text.endswith("The answer before did not fit: count: 'x' is not a number")
    last: AnyEvent = driver.events[-1]
    assert not isinstance(last, RunFinished)


def test_files_are_named_beside_the_prompt() -> None:
    """Reading them is not the business of a pure room."""
    driver = started(Step(id="a", action=call("Go.", context_files=("a.md",))))
    found = compose(driver.state, driver.state.owners["a"], driver.texts)
    assert (found.text, found.files) == ("Go.", ("a.md",))
