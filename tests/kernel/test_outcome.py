"""How loops end: the stop rules in their order, and what they hand on."""

from __future__ import annotations

import pytest

from loopwright.kernel.facts import (
    CheckVerdict,
    EffectRequested,
    GateOpened,
    IterationFinished,
    IterationStarted,
    Usage,
)
from loopwright.model.actions import CallAgent, Gate, Repeat, RunCommand, Step, Steps
from loopwright.model.checks import AllOf, AnyOf, Cap, Check, Command, Contains, Regex, Signal
from loopwright.model.memory import ProgressLog
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits
from loopwright.model.template import literal
from tests.kernel.driving import (
    Driver,
    Fail,
    Reply,
    Said,
    by_effect,
    by_pass,
    decisions,
    drive,
    kind,
    plan_of,
)
from tests.kernel.invariants import broken_laws

WORK = CallAgent(agent="a")
TESTS = Command(argv=("make", "test"))


def loop(**more: object) -> Plan:
    return plan_of(Repeat(**{"body": WORK, "max": 3, **more}))


# -- a check ends it -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("until", "texts", "codes", "ended", "passes"),
    [
        pytest.param(
            Signal(word="DONE"), ["a", "b\nDONE"], [0], ("completed", "signal", "b\nDONE"), 2,
            id="signal",
        ),
        pytest.param(
            Regex(pattern="DONE|COMPLETE", ignore_case=True), ["is complete now"], [0],
            ("completed", "regex", "is complete now"), 1, id="regex in any case",
        ),
        pytest.param(
            Regex(pattern="([", invalid=True), ["(["], [0],
            ("exhausted", "max_iterations", "(["), 3, id="invalid regex runs to the cap",
        ),
        pytest.param(
            Regex(pattern="yes"), ["no", "no", "yes"], [0], ("completed", "regex", "yes"), 3,
            id="on the last allowed pass",
        ),
        pytest.param(
            TESTS, ["a", "b"], [1, 0], ("completed", "command", "b"), 2, id="tests pass on try 2"
        ),
        pytest.param(
            TESTS, ["a"], [1], ("exhausted", "max_iterations", "a"), 3, id="tests never pass"
        ),
        pytest.param(
            Cap(), ["a", "b", "c"], [0], ("exhausted", "max_iterations", "c"), 3, id="cap alone"
        ),
        pytest.param(
            AnyOf(parts=(TESTS, Signal(word="DONE"))), ["DONE"], [1],
            ("completed", "signal", "DONE"), 1, id="any",
        ),
        pytest.param(
            AllOf(parts=(Signal(word="DONE"), TESTS)), ["DONE"], [1, 0],
            ("completed", "command", "DONE"), 2, id="all",
        ),
    ],
)  # fmt: skip
def test_checks_end_loops(
    until: Check, texts: list[str], codes: list[int], ended: object, passes: int
) -> None:
    """A loop ends on the pass whose checks pass, with its output and the check's name."""
    run = drive(loop(until=until), by_pass(*texts, commands=codes))
    assert run.ended == ended
    assert run.passes == passes
    assert broken_laws(run.facts) == []


@pytest.mark.item("B8")
def test_both_verdicts_are_shown() -> None:
    """A signal beside failing tests does not complete, and the log shows both verdicts."""
    both = AllOf(parts=(Signal(word="DONE"), TESTS))
    run = drive(loop(until=both, max=1), by_pass("DONE", commands=[Reply("1 failed", code=1)]))
    assert run.ended[:2] == ("exhausted", "max_iterations")
    assert [(v.index, v.check, v.verdict, v.evidence) for v in run.of(CheckVerdict)] == [
        (0, "signal", "pass", ""),
        (1, "command", "fail", "1 failed"),
    ]


@pytest.mark.item("B6")
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            CallAgent(agent="a", prompt=literal("Work.\nEnd with:\nDONE")), id="own prompt"
        ),
        pytest.param(WORK, id="message of the run"),
        pytest.param(
            Steps(
                steps=(
                    Step(id="s", action=CallAgent(agent="a", prompt=literal("End with:\nDONE"))),
                )
            ),
            id="prompt of a step",
        ),
        pytest.param(
            Repeat(
                body=CallAgent(agent="a", prompt=literal("End with:\nDONE")),
                max=1,
                at_cap="complete",
            ),
            id="prompt of an inner loop",
        ),
    ],
)
def test_an_echoed_request_does_not_complete(body: object) -> None:
    """An agent that repeats what it was asked, tag and all, has not finished."""
    plan = loop(body=body, max=1, until=Signal(word="DONE"))
    message = "End with:\nDONE" if body is WORK else "Go."
    run = drive(plan, by_pass("End with:\nDONE"), message=message)
    assert run.of(CheckVerdict)[-1].verdict == "fail"
    said = drive(plan, by_pass("I did it\nDONE"), message=message)
    assert said.of(CheckVerdict)[-1].verdict == "pass"


def test_a_signal_of_a_program_is_no_echo() -> None:
    """Without an agent the request is the run's message."""
    plan = loop(body=RunCommand(argv=("x",)), max=1, until=Signal(word="DONE"))
    run = drive(plan, by_pass(commands=[Reply("x\nDONE", code=0)]))
    assert run.ended[:2] == ("completed", "signal")


# -- checks that cannot be asked -------------------------------------------------------------------

BROKEN, SLOW = Fail("not_found", "no such program"), Fail("wall_timeout", "took too long")


@pytest.mark.parametrize(
    ("more", "commands", "ended", "passes"),
    [
        pytest.param({}, [BROKEN], ("failed", "check_broken"), 3, id="three in a row"),
        pytest.param({}, [BROKEN, BROKEN, 1, BROKEN, BROKEN, 0], ("completed", "command"), 6,
                     id="a check that could be asked resets the count"),
        pytest.param({"broken_after": 1}, [BROKEN], ("failed", "check_broken"), 1, id="at once"),
        pytest.param({"broken_after": 0}, [BROKEN], ("exhausted", "max_iterations"), 8,
                     id="never counted"),
        pytest.param({}, [SLOW], ("exhausted", "max_iterations"), 8, id="too slow is not broken"),
        pytest.param({}, [BROKEN, BROKEN, 0], ("completed", "command"), 3, id="mended in time"),
        pytest.param({"until": AnyOf(parts=(TESTS, Contains(text="ok")))}, [BROKEN],
                     ("completed", "contains"), 1, id="another check passes"),
        pytest.param({"max": 3, "at_cap": "complete"}, [BROKEN], ("failed", "check_broken"), 3,
                     id="also on the last pass"),
    ],
)  # fmt: skip
def test_broken_checks(more: dict[str, object], commands: list[Said], ended: object,
                       passes: int) -> None:  # fmt: skip
    """A check that could not be asked so often in a row fails the loop instead of going on."""
    run = drive(loop(**{"max": 8, "until": TESTS, **more}), by_pass("ok", commands=commands))
    assert run.ended[:2] == ended
    assert run.passes == passes


def test_broken_check_says_why() -> None:
    """The verdict carries the reason, and the end says how often."""
    run = drive(loop(max=8, until=TESTS), by_pass("x", commands=[BROKEN]))
    verdicts = run.of(CheckVerdict)
    assert {(v.verdict, v.evidence) for v in verdicts} == {("error", "no such program")}
    assert run.end.error is not None
    assert run.end.error.detail == "the check could not be asked 3 times in a row"


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
    """The definition says what running out of passes means; the reason says that it happened."""
    run = drive(loop(at_cap=at_cap), by_pass("x"))
    assert run.ended == ended
    assert run.passes == 3
    assert len(run.of(IterationStarted)) == 3
    if at_cap == "fail":
        assert run.end.error is not None
        assert run.end.error.detail == "3 of 3 passes made and the check has not passed"


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
    """A person may accept, refuse, or grant one pass after the other, each asked for anew."""
    run = Driver(loop(at_cap="ask"), by_pass("one", "two", "three", "four", "five")).run()
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
    assert broken_laws(run.facts) == []


def test_words_at_the_cap() -> None:
    """A refusal says why; words with one more pass are its feedback."""
    run = Driver(loop(at_cap="ask", max=1), by_pass("x")).run()
    run.decide("continue", "try again")
    assert run.state.owners["main"].body.feedback == "try again"
    run.run()
    run.decide("reject")
    assert run.end.error is not None
    assert run.end.error.detail == "rejected by a person at the cap"


def test_done_on_a_granted_pass() -> None:
    """A pass that a person granted may complete the loop by its check."""
    plan = loop(at_cap="ask", max=1, until=Signal(word="DONE"))
    run = Driver(plan, by_pass("x", "DONE")).run()
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
    run = drive(loop(max=2, output=mode, until=until), by_pass(*texts))
    assert run.ended[2] == output
    assert run.end.result == '{"n":2}'


@pytest.mark.parametrize(
    ("met", "size"), [pytest.param(True, 500, id="done"), pytest.param(False, 300, id="cap")]
)
def test_long_learning(met: bool, size: int) -> None:
    """At the cap the learning is handed on, after a passed check the whole text."""
    until = Contains(text="x") if met else Cap()
    run = drive(loop(max=1, output="learning", until=until), by_pass("x" * 500))
    assert len(run.ended[2]) == size


def test_all_of_long_outputs() -> None:
    """Headings of all passes stand before texts that were stored."""
    run = drive(loop(max=2, output="all"), by_pass("a" * 500, "b" * 500))
    assert run.ended[2] == f"## Iteration 1\n\n{'a' * 500}\n\n## Iteration 2\n\n{'b' * 500}"


def test_learnings_are_kept_for_the_next_pass() -> None:
    """A progress log holds one line for each pass before, oldest first."""
    plan = loop(memory=ProgressLog(chars=5), max=4)
    run = Driver(plan, by_pass("first try", "\n", "third", None)).run()
    body = run.state.owners["main"].body
    assert body.learnings == ["first", "(iteration 2 produced no output)", "third"]


def test_no_learnings_without_a_log() -> None:
    """Memory that nobody asked for is not kept."""
    run = Driver(loop(max=4), by_pass("x", None)).run()
    body = run.state.owners["main"].body
    assert (body.learnings, body.outputs) == ([], [])


def test_sessions_go_on() -> None:
    """The agent's own session is remembered for the passes after."""
    run = Driver(loop(), by_pass(Reply("x", session="s1"), None)).run()
    assert run.state.owners["main"].body.session == "s1"


def test_marks_are_remembered() -> None:
    """An agent's bookmarks are known after an answer, be it good or bad."""
    run = Driver(loop(), by_pass(Reply("x", mark=0), Fail(mark=4))).run()
    assert run.state.marks == {"a": {0, 4}}


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
    run = drive(loop(max=6, limits=Limits(identical=2)), by_pass(*texts))
    assert run.ended == ended
    assert run.passes == passes


def test_done_is_not_stalled() -> None:
    """A passed check comes before the rule about equal results."""
    plan = loop(limits=Limits(identical=1), until=Contains(text="ok"))
    assert drive(plan, by_pass("ok")).ended == ("completed", "contains", "ok")


def test_a_failing_agent_ends_the_loop() -> None:
    """Without a retry the first failure is the end, and the pass is shown as failed."""
    run = drive(loop(), by_pass("x", Fail("exit", "code 2", text="half")))
    assert run.ended == ("failed", "error", "half")
    assert run.passes == 2
    assert run.end.error is not None
    assert (run.end.error.type, run.end.error.detail) == ("exit", "code 2")
    assert [f.status for f in run.of(IterationFinished)] == ["completed", "failed"]


def test_an_agent_that_was_ended_from_outside() -> None:
    """A call that the world cancelled makes a cancelled run; the pass before keeps its output."""
    run = drive(loop(output="all"), by_pass("one", Fail("cancelled", "killed", text="half")))
    assert run.ended == ("cancelled", "killed", "## Iteration 1\n\none")


def test_events_of_a_pass_come_in_order() -> None:
    """Started, asked, answered, checked, finished; then the next pass or the end."""
    run = drive(loop(max=1, until=Contains(text="x")), by_pass("x"))
    assert [kind(fact) for fact in run.facts] == [
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
    """One append for each pass: the answer with everything up to the next request."""
    run = drive(loop(max=50), by_pass("x"))
    assert len(run.ends) == 51


# -- a look before the first pass ------------------------------------------------------------------


def command_before(code: Said | int) -> dict[str, object]:
    return {"main.-1/check0#1": code}


@pytest.mark.item("B17")
@pytest.mark.parametrize(
    ("check_first", "code", "ended", "passes"),
    [
        pytest.param(True, 0, ("completed", "command"), 0, id="holds before: no pass"),
        pytest.param(True, 1, ("exhausted", "max_iterations"), 2, id="does not hold: all passes"),
        pytest.param(True, BROKEN, ("exhausted", "max_iterations"), 2, id="broken: all passes"),
        pytest.param(False, 0, ("completed", "command"), 1, id="by default one pass runs"),
    ],
)
def test_check_first(check_first: bool, code: Said | int, ended: object, passes: int) -> None:
    """A criterion that holds from the beginning costs one pass, or none with `check_first`."""
    later = 0 if code == 0 else 1
    answers = command_before(code) | {f"main.{n}/check0#1": later for n in range(2)}
    run = drive(loop(max=2, until=TESTS, check_first=check_first), by_effect(answers))
    assert run.ended[:2] == ended
    assert run.passes == passes
    asked = [fact for fact in run.of(EffectRequested) if fact.effect.endswith("/agent#1")]
    assert len(asked) == passes
    assert broken_laws(run.facts) == []


@pytest.mark.parametrize("mode", ["last", "all", "learning", "result"])
def test_nothing_done_has_no_output(mode: str) -> None:
    """A loop that was done before its first pass hands on nothing."""
    plan = loop(until=TESTS, check_first=True, output=mode)
    assert drive(plan, by_effect(command_before(0))).end.output is None


def test_looking_begins_nothing() -> None:
    """The look before the first pass touches no step of the body and asks no one."""
    body = Steps(steps=(Step(id="s", action=WORK),))
    plan = loop(body=body, max=1, until=TESTS, check_first=True, gate=Gate())
    run = drive(plan, by_effect(command_before(1) | {"main.0/check0#1": 0}), decisions("approve"))
    assert run.ended[:2] == ("completed", "command")
    assert [f.path for f in run.facts if kind(f) in ("step.started", "step.skipped")] == [
        "main",
        "main.0.s",
    ]
    assert run.of(GateOpened) == []
    assert broken_laws(run.facts) == []


def test_first_look_is_cancelled_cleanly() -> None:
    """Stopped during the look before the first pass, every request has its answer."""
    run = Driver(loop(until=TESTS, check_first=True), by_effect(command_before(None))).run()
    run.cancel()
    assert run.ended[:2] == ("cancelled", "stopped")
    assert broken_laws(run.facts) == []


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
    """No pass begins when what may be used is used up, wherever the limit is written."""
    repeat = Repeat(body=WORK, max=9, limits=limits if place == "loop" else Limits())
    more = {"run": {"limits": limits}, "step": {"limits_of_step": limits}, "loop": {}}[place]
    run = drive(plan_of(repeat, **more), by_pass(SPEND))
    assert run.ended == ("exhausted", "budget", "x")
    assert run.passes == passes
    assert run.end.error is not None
    assert run.end.error.detail == words
    assert run.state.usage == Usage(40 * passes, 10 * passes, 0.25 * passes)


def test_done_with_the_last_money() -> None:
    """A check that passes comes before the budget."""
    plan = loop(limits=Limits(usd=0.2), until=Contains(text="x"))
    assert drive(plan, by_pass(SPEND)).ended == ("completed", "contains", "x")


def test_a_failed_call_costs_too() -> None:
    """What a failing call used counts."""
    run = drive(loop(), by_pass(Fail(usage=Usage(1, 2, 0.5))))
    assert run.state.usage == Usage(1, 2, 0.5)


def test_money_does_not_drift() -> None:
    """Many small sums add up to what a person expects."""
    run = drive(loop(max=300), by_pass(Reply("x", usage=Usage(0, 0, 0.1))))
    assert run.state.usage.usd == 30.0


def test_inner_loop_stops_at_the_outer_budget() -> None:
    """Children spend their parent's money."""
    inner = Repeat(body=WORK, max=9)
    run = drive(loop(body=inner, limits=Limits(usd=0.5)), by_pass(SPEND))
    assert run.ended == ("exhausted", "budget", "x")
    assert run.state.usage.usd == 0.5
