"""Checks inside of loops: which are asked, what they record, and what their end means."""

from __future__ import annotations

import pytest

from loopwright.kernel.events import CheckVerdict, EffectRequested, GateOpened
from loopwright.model.actions import CallAgent, LoopGate, Repeat, RunCommand, Step, Steps
from loopwright.model.checks import AllOf, AnyOf, Cap, Check, CommandCheck, Contains, Regex, Signal
from loopwright.model.plan import Plan
from loopwright.model.record import literal
from tests.kernel.driving import (
    Driver,
    Fail,
    Reply,
    ScriptedAnswer,
    by_effect,
    by_iteration,
    decisions,
    drive,
    kind,
    plan_of,
)
from tests.kernel.invariants import broken_laws

WORK = CallAgent(agent="a")
TESTS = CommandCheck(argv=("make", "test"))


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
    """A loop ends on the iteration whose checks pass, with its output and the check's name."""
    run = drive(loop(until=until), by_iteration(*texts, commands=codes))
    assert run.ended == ended
    assert run.passes == passes
    assert broken_laws(run.events) == []


@pytest.mark.item("B8")
def test_both_verdicts_are_shown() -> None:
    """A signal beside failing tests does not complete, and the log shows both verdicts."""
    both = AllOf(parts=(Signal(word="DONE"), TESTS))
    run = drive(loop(until=both, max=1), by_iteration("DONE", commands=[Reply("1 failed", code=1)]))
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
    run = drive(plan, by_iteration("End with:\nDONE"), message=message)
    assert run.of(CheckVerdict)[-1].verdict == "fail"
    said = drive(plan, by_iteration("I did it\nDONE"), message=message)
    assert said.of(CheckVerdict)[-1].verdict == "pass"


def test_a_signal_of_a_program_is_no_echo() -> None:
    """Without an agent the request is the run's message."""
    plan = loop(body=RunCommand(argv=("x",)), max=1, until=Signal(word="DONE"))
    run = drive(plan, by_iteration(commands=[Reply("x\nDONE", code=0)]))
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
def test_broken_checks(more: dict[str, object], commands: list[ScriptedAnswer], ended: object,
                       passes: int) -> None:  # fmt: skip
    """A check that could not be asked so often in a row fails the loop instead of going on."""
    run = drive(loop(**{"max": 8, "until": TESTS, **more}), by_iteration("ok", commands=commands))
    assert run.ended[:2] == ended
    assert run.passes == passes


def test_broken_check_says_why() -> None:
    """The verdict carries the reason, and the end says how often."""
    run = drive(loop(max=8, until=TESTS), by_iteration("x", commands=[BROKEN]))
    verdicts = run.of(CheckVerdict)
    assert {(v.verdict, v.evidence) for v in verdicts} == {("error", "no such program")}
    assert run.end.error is not None
    assert run.end.error.detail == "the check could not run 3 times in a row: no such program"


# -- a look before the first iteration -------------------------------------------------------------


def command_before(code: ScriptedAnswer | int) -> dict[str, object]:
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
def test_check_first(
    check_first: bool, code: ScriptedAnswer | int, ended: object, passes: int
) -> None:
    """A criterion that holds from the beginning costs one iteration, or none with `check_first`."""
    later = 0 if code == 0 else 1
    answers = command_before(code) | {f"main.{n}/check0#1": later for n in range(2)}
    run = drive(loop(max=2, until=TESTS, check_first=check_first), by_effect(answers))
    assert run.ended[:2] == ended
    assert run.passes == passes
    asked = [event for event in run.of(EffectRequested) if event.effect.endswith("/agent#1")]
    assert len(asked) == passes
    assert broken_laws(run.events) == []


@pytest.mark.parametrize("mode", ["last", "all", "learning", "result"])
def test_nothing_done_has_no_output(mode: str) -> None:
    """A loop that was done before its first iteration hands on nothing."""
    plan = loop(until=TESTS, check_first=True, output=mode)
    assert drive(plan, by_effect(command_before(0))).end.output is None


def test_looking_begins_nothing() -> None:
    """The look before the first iteration touches no step of the body and asks no one."""
    body = Steps(steps=(Step(id="s", action=WORK),))
    plan = loop(body=body, max=1, until=TESTS, check_first=True, gate=LoopGate())
    run = drive(plan, by_effect(command_before(1) | {"main.0/check0#1": 0}), decisions("approve"))
    assert run.ended[:2] == ("completed", "command")
    assert [f.path for f in run.events if kind(f) in ("step.started", "step.skipped")] == [
        "main",
        "main.0.s",
    ]
    assert run.of(GateOpened) == []
    assert broken_laws(run.events) == []


def test_first_look_is_cancelled_cleanly() -> None:
    """Stopped during the look before the first iteration, every request has its answer."""
    run = Driver(loop(until=TESTS, check_first=True), by_effect(command_before(None))).run()
    run.cancel()
    assert run.ended[:2] == ("cancelled", "stopped")
    assert broken_laws(run.events) == []
