"""How loops end: the stop rules in their order, and what they hand on."""

from __future__ import annotations

import pytest

from loopwright.kernel.events import GateOpened, IterationFinished, IterationStarted, Usage
from loopwright.model.actions import CallAgent, Repeat, Steps
from loopwright.model.checks import Cap, CommandCheck, Contains, Judge, Signal
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits, ProgressLog
from tests.kernel.driving import (
    Driver,
    Fail,
    Reply,
    by_effect,
    by_iteration,
    drive,
    kind,
    plan_of,
)
from tests.kernel.invariants import broken_laws
from tests.kernel.shapes import step

WORK = CallAgent(agent="a")
TESTS = CommandCheck(argv=("make", "test"))


def loop(**more: object) -> Plan:
    return plan_of(Repeat(**{"body": WORK, "max": 3, **more}))


# -- at the cap ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at_cap", "ended"),
    [
        pytest.param("exhaust", ("exhausted", "max_iterations", "x"), id="exhaust"),
        pytest.param("complete", ("completed", "max_iterations", "x"), id="complete"),
        pytest.param("fail", ("failed", "max_iterations", "x"), id="fail"),
    ],
)
def test_at_the_cap(at_cap: str, ended: object) -> None:
    """The definition says what running out of iterations means; the reason says that it
    happened.
    """
    run = drive(loop(at_cap=at_cap), by_iteration("x"))
    assert run.ended == ended
    assert run.passes == 3
    assert len(run.of(IterationStarted)) == 3
    if at_cap == "fail":
        assert run.end.error is not None
        assert run.end.error.detail == "3 of 3 iterations made and the check has not passed"


@pytest.mark.parametrize(
    ("answers", "ended", "passes"),
    [
        pytest.param(["approve"], ("completed", "approved", "three"), 3, id="approve"),
        pytest.param([("reject", "no use")], ("failed", "rejected", "three"), 3, id="reject"),
        pytest.param(["continue", "approve"], ("completed", "approved", "four"), 4, id="one more"),
        pytest.param(
            ["continue", "continue", "reject"], ("failed", "rejected", "five"), 5, id="two more"
        ),
    ],
)
def test_asked_at_the_cap(answers: list[object], ended: object, passes: int) -> None:
    """A person may accept, refuse, or grant one iteration after the other, each asked for anew."""
    run = Driver(loop(at_cap="ask"), by_iteration("one", "two", "three", "four", "five")).run()
    for answer in answers:
        assert run.state.pending == {}
        decision, text = (answer, "") if isinstance(answer, str) else answer
        run.decide(decision, text)
        run.run()
    assert run.ended == ended
    assert run.passes == passes
    gates = run.of(GateOpened)
    assert len({gate.gate for gate in gates}) == len(gates) == len(answers)
    assert {gate.about for gate in gates} == {"cap"}
    assert gates[0].output == "three"
    assert broken_laws(run.events) == []


def test_words_at_the_cap() -> None:
    """A refusal says why; words with one more pass are its feedback."""
    run = Driver(loop(at_cap="ask", max=1), by_iteration("x")).run()
    run.decide("continue", "try again")
    assert run.state.owners["main"].body.progress.feedback == "try again"
    run.run()
    run.decide("reject")
    assert run.end.error is not None
    assert run.end.error.detail == "rejected by a person at the cap"


def test_done_on_a_granted_pass() -> None:
    """An iteration that a person granted may complete the loop by its check."""
    plan = loop(at_cap="ask", max=1, until=Signal(word="DONE"))
    run = Driver(plan, by_iteration("x", "DONE")).run()
    run.decide("continue")
    assert run.run().ended == ("completed", "signal", "DONE")


# -- output ----------------------------------------------------------------------------------------

TWO = "## Iteration 1\n\none\n\n## Iteration 2\n\ntwo"


@pytest.mark.parametrize(
    ("mode", "met", "output"),
    [
        pytest.param("last", True, "two", id="last"),
        pytest.param("last", False, "two", id="last, at the cap"),
        pytest.param("all", True, TWO, id="all"),
        pytest.param("all", False, TWO, id="all, at the cap"),
        pytest.param("learning", True, "two", id="learning, but done: the whole text"),
        pytest.param("learning", False, "two", id="learning, at the cap"),
        pytest.param("result", True, '{"n":2}', id="result"),
    ],
)
def test_output_modes(mode: str, met: bool, output: str) -> None:
    """What a loop hands on is chosen in the definition."""
    until = Contains(text="two") if met else Cap()
    texts = [Reply("one", result='{"n":1}'), Reply("two", result='{"n":2}')]
    run = drive(loop(max=2, output=mode, until=until), by_iteration(*texts))
    assert run.ended[2] == output
    assert run.end.result == '{"n":2}'


@pytest.mark.parametrize(
    ("met", "size"), [pytest.param(True, 500, id="done"), pytest.param(False, 300, id="cap")]
)
def test_long_learning(met: bool, size: int) -> None:
    """At the cap the learning is handed on, after a passed check the whole text."""
    until = Contains(text="x") if met else Cap()
    run = drive(loop(max=1, output="learning", until=until), by_iteration("x" * 500))
    assert len(run.ended[2]) == size


def test_all_of_long_outputs() -> None:
    """Headings of all iterations stand before texts that were stored."""
    run = drive(loop(max=2, output="all"), by_iteration("a" * 500, "b" * 500))
    assert run.ended[2] == f"## Iteration 1\n\n{'a' * 500}\n\n## Iteration 2\n\n{'b' * 500}"


def test_all_that_was_said_in_the_steps_of_an_iteration() -> None:
    """Each step under its name, in the order written, then the judge; who says nothing is left
    out.
    """
    body = Steps(steps=(step("draft"), step("quiet"), step("polish", "draft")))
    answers = {
        "main.0.draft/agent#1": "one",
        "main.0.quiet/agent#1": "",
        "main.0.polish/agent#1": "shine",
        "main.0/check0#1": Reply(result='{"done":true,"reason":"fine"}'),
    }
    run = drive(loop(body=body, output="all", until=Judge(agent="j")), by_effect(answers))
    assert run.ended == (
        "completed",
        "judge",
        "## Iteration 1\n\n### draft\n\none\n\n### polish\n\nshine"
        "\n\n### Judge Feedback (Iteration 1)\n\nfine",
    )


def test_learnings_are_kept_for_the_next_iteration() -> None:
    """A progress log holds one line for each iteration before, oldest first."""
    plan = loop(memory=ProgressLog(chars=5), max=4)
    run = Driver(plan, by_iteration("first try", "\n", "third", None)).run()
    body = run.state.owners["main"].body
    assert body.memory.learnings == ["first", "(iteration 2 produced no output)", "third"]


def test_no_learnings_without_a_log() -> None:
    """Memory that nobody asked for is not kept."""
    run = Driver(loop(max=4), by_iteration("x", None)).run()
    body = run.state.owners["main"].body
    assert (body.memory.learnings, body.memory.outputs) == ([], [])


def test_sessions_continue() -> None:
    """The agent's own session is remembered for the iterations after."""
    run = Driver(loop(), by_iteration(Reply("x", session="s1"), None)).run()
    assert run.state.owners["main"].body.memory.sessions[""].id == "s1"


def test_a_session_outside_of_loops_has_no_use() -> None:
    """A single call has no later iteration to go on with its session."""
    assert drive(plan_of(WORK), by_iteration(Reply("x", session="s"))).ended[0] == "completed"


def test_sessions_belong_to_the_innermost_loop() -> None:
    """A session of an inner loop is not handed to the loop around it."""
    inner = Repeat(body=WORK, max=2)
    run = Driver(loop(body=inner), by_effect({"main.0.0/agent#1": Reply(session="s")}, None)).run()
    assert run.state.owners["main.0"].body.memory.sessions[""].id == "s"
    assert run.state.owners["main"].body.memory.sessions == {}


def test_marks_are_remembered() -> None:
    """An agent's bookmarks are known after an answer, be it good or bad."""
    run = Driver(loop(), by_iteration(Reply("x", mark=0), Fail(mark=4))).run()
    assert run.state.agents.marks == {"a": {0, 4}}


# -- other ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "passes", "ended"),
    [
        pytest.param(["a", "a"], 2, ("exhausted", "stalled", "a"), id="two equal"),
        pytest.param(["a", "b", "b"], 3, ("exhausted", "stalled", "b"), id="later"),
        pytest.param(["a", "b"] * 3, 6, ("exhausted", "max_iterations", "b"), id="never twice"),
        pytest.param(["x" * 500], 2, ("exhausted", "stalled", "x" * 500), id="stored texts"),
    ],
)
def test_identical_results(texts: list[str], passes: int, ended: object) -> None:
    """So many equal results in a row, and the loop has stalled."""
    run = drive(loop(max=6, limits=Limits(identical=2)), by_iteration(*texts))
    assert run.ended == ended
    assert run.passes == passes


def test_done_is_not_stalled() -> None:
    """A passed check comes before the rule about equal results."""
    plan = loop(limits=Limits(identical=1), until=Contains(text="ok"))
    assert drive(plan, by_iteration("ok")).ended == ("completed", "contains", "ok")


def test_a_failing_agent_ends_the_loop() -> None:
    """Without a retry the first failure is the end, and the iteration is shown as failed."""
    run = drive(loop(), by_iteration("x", Fail("exit", "code 2", text="half")))
    assert run.ended == ("failed", "error", "half")
    assert run.passes == 2
    assert run.end.error is not None
    assert (run.end.error.type, run.end.error.detail) == ("exit", "code 2")
    assert [f.status for f in run.of(IterationFinished)] == ["completed", "failed"]


def test_an_agent_that_was_ended_from_outside() -> None:
    """A call that the world cancelled makes a cancelled run; the iteration before keeps its
    output.
    """
    run = drive(loop(output="all"), by_iteration("one", Fail("cancelled", "killed", text="half")))
    assert run.ended == ("cancelled", "killed", "## Iteration 1\n\none")


def test_events_of_an_iteration_come_in_order() -> None:
    """Started, asked, answered, checked, finished; then the next iteration or the end."""
    run = drive(loop(max=1, until=Contains(text="x")), by_iteration("x"))
    assert [kind(event) for event in run.events] == [
        "run.started",
        "step.started",
        "iteration.started",
        "effect.requested",
        "effect.done",
        "check.verdict",
        "iteration.finished",
        "step.finished",
        "run.finished",
    ]


def test_answer_and_next_request_share_an_append() -> None:
    """One append for each iteration: the answer with everything up to the next request."""
    run = drive(loop(max=50), by_iteration("x"))
    assert len(run.ends) == 51


# -- budgets ---------------------------------------------------------------------------------------

SPEND = Reply("x", usage=Usage(40, 10, 0.25))


@pytest.mark.parametrize(
    ("limits", "passes", "words"),
    [
        pytest.param(Limits(usd=0.5), 2, "spent 0.5000 of 0.5 USD", id="money"),
        pytest.param(Limits(usd=0.6), 3, "spent 0.7500 of 0.6 USD", id="money, passed by one"),
        pytest.param(Limits(tokens=100), 2, "used 100 of 100 tokens", id="tokens"),
        pytest.param(Limits(tokens=1, usd=9), 1, "used 50 of 1 tokens", id="the first of two"),
    ],
)
@pytest.mark.parametrize("place", ["run", "step", "loop"])
def test_budgets(limits: Limits, passes: int, words: str, place: str) -> None:
    """No iteration begins when what may be used is used up, wherever the limit is written."""
    repeat = Repeat(body=WORK, max=9, limits=limits if place == "loop" else Limits())
    more = {"run": {"limits": limits}, "step": {"limits_of_step": limits}, "loop": {}}[place]
    run = drive(plan_of(repeat, **more), by_iteration(SPEND))
    assert run.ended == ("exhausted", "budget", "x")
    assert run.passes == passes
    assert run.end.error is not None
    assert run.end.error.detail == words
    assert run.state.usage == Usage(40 * passes, 10 * passes, 0.25 * passes)


def test_done_with_the_last_money() -> None:
    """A check that passes comes before the budget."""
    plan = loop(limits=Limits(usd=0.2), until=Contains(text="x"))
    assert drive(plan, by_iteration(SPEND)).ended == ("completed", "contains", "x")


def test_a_failed_call_costs_too() -> None:
    """What a failing call used counts."""
    run = drive(loop(), by_iteration(Fail(usage=Usage(1, 2, 0.5))))
    assert run.state.usage == Usage(1, 2, 0.5)


def test_money_does_not_drift() -> None:
    """Many small sums add up to what a person expects."""
    run = drive(loop(max=300), by_iteration(Reply("x", usage=Usage(0, 0, 0.1))))
    assert run.state.usage.usd == 30.0


def test_inner_loop_stops_at_the_outer_budget() -> None:
    """Children spend their parent's money."""
    inner = Repeat(body=WORK, max=9)
    run = drive(loop(body=inner, limits=Limits(usd=0.5)), by_iteration(SPEND))
    assert run.ended == ("exhausted", "budget", "x")
    assert run.state.usage.usd == 0.5
