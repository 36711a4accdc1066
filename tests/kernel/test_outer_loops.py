"""What is seen from inside of loops in loops, lists of outputs, and paths of an answer."""

import pytest

from loopwright.kernel.checks import CheckResult, inspect
from loopwright.kernel.references import fill
from loopwright.model.actions import CallAgent, Repeat, Step, Steps
from loopwright.model.checks import Cap, ResultPath
from loopwright.model.record import Lit, Ref
from tests.kernel.driving import Driver, Fail, Texts, by_effect, plan_of

INNER = Repeat(body=CallAgent(agent="a"), max=2, until=Cap(), at_cap="complete")
NESTED = plan_of(Repeat(body=Steps(steps=(Step(id="in", action=INNER),)), max=2, until=Cap()))


@pytest.mark.parametrize(
    ("ref", "text"),
    [
        pytest.param(Ref(of="iteration"), "1", id="own pass"),
        pytest.param(Ref(of="iteration", up=1), "2", id="one loop out"),
        pytest.param(Ref(of="previous"), "", id="nothing before"),
        pytest.param(Ref(of="previous", json=True), "null", id="nothing, as JSON"),
        pytest.param(Ref(of="previous", up=1), 'say "x"\n', id="the round before"),
        pytest.param(Ref(of="previous", up=1, json=True), '"say \\"x\\"\\n"', id="as JSON"),
        pytest.param(Ref(of="iteration", up=2), "", id="out of all loops"),
        pytest.param(Ref(of="iteration", up=3), "", id="further out"),
        pytest.param(Ref(of="message", json=True), '"Do the work."', id="the message as JSON"),
    ],
)
def test_a_reference_may_look_further_out(ref: Ref, text: str) -> None:
    """What is said of an iteration can be said of one so many loops out, and filled in as JSON."""
    run = Driver(NESTED, script=by_effect({}, 'say "x"\n')).start()
    while "main.1.in.0/agent#1" not in run.state.pending:
        run.step()
    owner = run.state.owners["main.1.in.0"]
    assert fill(run.state, owner, (Lit(text="["), ref, Lit(text="]")), run.texts) == f"[{text}]"


def test_a_stored_text_is_filled_in_as_json() -> None:
    """It is the text that is filled in, not where it is stored."""
    run = Driver(NESTED, message="m" * 300).start()
    owner = run.state.owners["main.0.in.0"]
    ref = Ref(of="message", json=True)
    assert fill(run.state, owner, (ref,), run.texts) == '"' + "m" * 300 + '"'


@pytest.mark.parametrize(
    ("second", "ended"),
    [
        pytest.param("two", ("completed", "done", '["one","two"]'), id="both"),
        pytest.param(Fail(), ("failed", "error", '["one",""]'), id="one failed"),
    ],
)
def test_steps_may_come_to_a_list(second: str | Fail, ended: tuple[str, str, str]) -> None:
    """The outputs of all, in the order written, also when the whole has failed."""
    steps = tuple(Step(id=name, action=CallAgent(agent="a")) for name in ("x", "y"))
    plan = plan_of(Steps(steps=steps, output="list"))
    script = by_effect({"main.x/agent#1": "one", "main.y/agent#1": second})
    run = Driver(plan, script=script, order=lambda choices: choices - 1).run()
    end = run.step_end()
    assert (end.status, end.reason, run.texts.read(end.output)) == ended


@pytest.mark.parametrize(
    ("path", "output", "result", "said"),
    [
        pytest.param(("done",), None, '{"done":true}', CheckResult("pass", "true"), id="result"),
        pytest.param(
            ("done",), '{"done":true}', '{"done":0}', CheckResult("fail"), id="result first"
        ),
        pytest.param(
            ("a", 1), 'x {"a":[0,"yes"]}', None, CheckResult("pass", "yes"), id="in prose"
        ),
        pytest.param(("a", 2), '{"a":[0,"yes"]}', None, CheckResult("fail"), id="beyond the list"),
        pytest.param(("a",), "[1]", None, CheckResult("fail"), id="a name of a list"),
        pytest.param((0,), '{"a":1}', None, CheckResult("fail"), id="a number of a mapping"),
        pytest.param((), "words", None, CheckResult("pass", "words"), id="all of it"),
        pytest.param((), "", None, CheckResult("fail"), id="nothing said"),
        pytest.param((), "null", None, CheckResult("fail"), id="null"),
        pytest.param((), "[]", None, CheckResult("pass", "[]"), id="an empty list is something"),
    ],
)
def test_a_path_of_the_answer(
    path: tuple[str | int, ...], output: str | None, result: str | None, said: CheckResult
) -> None:
    """It passes when something is there that is not false, 0, null or an empty text."""
    leaf = ResultPath(path=path)
    found = inspect(leaf, Texts(), output=output, result=result, instructions="")
    assert found == said
