"""Iterations judged by expressions, judges, scripts and fields, and their gates."""

import pytest

from loopwright.kernel.events import CheckVerdict, EffectRequested, GateOpened, StepRetried, Usage
from loopwright.model.actions import (
    UNREADABLE,
    AskPerson,
    CallAgent,
    Cel,
    Compare,
    Condition,
    Decision,
    EveryOf,
    LoopGate,
    Repeat,
    Rework,
    RunScript,
    SomeOf,
    Steps,
)
from loopwright.model.checks import (
    AnyOf,
    Check,
    Expr,
    Goal,
    Judge,
    ResultField,
    ScriptCheck,
    Signal,
)
from loopwright.model.policy import Limits, Retry
from loopwright.model.record import Ref
from tests.kernel.driving import (
    Driver,
    Fail,
    People,
    Reply,
    ScriptedAnswer,
    by_effect,
    decisions,
    drive,
    plan_of,
    plan_of_steps,
)
from tests.kernel.invariants import broken_laws
from tests.kernel.shapes import WORK, statuses, step

JUDGE = Judge(agent="judge")


def verdicts(run: object) -> list[tuple[str, str]]:
    return [(f.check, f.verdict) for f in run.events if isinstance(f, CheckVerdict)]  # type: ignore[attr-defined]


def requests(run: object) -> list[str]:
    return [f.effect for f in run.events if isinstance(f, EffectRequested)]  # type: ignore[attr-defined]


# -- expressions -----------------------------------------------------------------------------------


@pytest.mark.item("zenflow-16")
def test_an_expression_sees_the_number_of_the_iteration() -> None:
    """`iteration` counts from 0: `iteration >= 1` holds after the second iteration."""
    run = drive(plan_of(Repeat(body=WORK, max=5, until=Expr(text="iteration >= 1"))))
    assert run.ended[:2] == ("completed", "expr")
    assert verdicts(run) == [("expr", "fail"), ("expr", "pass")]


@pytest.mark.parametrize(
    "text",
    ["content.contains('ok')", "status == 'completed'", "!has(result.x)"],
)
def test_an_expression_sees_what_the_iteration_said(text: str) -> None:
    """Content, status and result are those of the iteration that has just ended."""
    run = drive(plan_of(Repeat(body=WORK, max=2, until=Expr(text=text))), by_effect({}, "ok"))
    assert run.ended[:2] == ("completed", "expr")


def test_an_expression_sees_the_steps_of_the_iteration() -> None:
    """Inner steps are those of the iteration under judgement, hyphens and all."""
    body = Steps(steps=(step("do-it"), step("review", "do-it")))
    until = Expr(text="steps.review.content.contains('LGTM') && steps.do-it.status == 'completed'")
    answers = {"main.1.review/agent#1": "LGTM"}
    run = drive(plan_of(Repeat(body=body, max=5, until=until)), by_effect(answers, "no"))
    assert run.ended[:2] == ("completed", "expr")
    assert broken_laws(run.events) == []


@pytest.mark.item("zenflow-21", "B13")
@pytest.mark.parametrize(
    ("on_error", "ended", "count"),
    [("fail", ("failed", "check_broken"), 1), ("count", ("failed", "check_broken"), 3)],
)
def test_an_expression_that_cannot_be_evaluated(
    on_error: str, ended: tuple[str, str], count: int
) -> None:
    """A missing key ends the loop at once, or is counted like any check that is broken."""
    until = Expr(text="steps.nope.content == 'x'", on_error=on_error)
    plan = plan_of(Repeat(body=Steps(steps=(step("nope"), step("b"))), max=9, until=until))
    broken = Expr(text="result.missing.deep == 1", on_error=on_error)
    run = drive(plan_of(Repeat(body=WORK, max=9, until=broken)))
    assert run.ended[:2] == ended
    assert verdicts(run) == [("expr", "error")] * count
    assert drive(plan).ended[0] == "exhausted"


# -- conditions ------------------------------------------------------------------------------------


def about(name: str, op: str, value: object) -> Condition:
    return Compare(ref=Ref(of="output", name=name), op=op, value=value)


@pytest.mark.item("archon-54")
@pytest.mark.parametrize(
    ("when", "expected"),
    [
        pytest.param(about("a", "==", "7"), "completed", id="same text"),
        pytest.param(about("a", "!=", "7"), "skipped", id="other text"),
        pytest.param(about("a", ">=", 7), "completed", id="number"),
        pytest.param(about("a", "<", "7"), "skipped", id="not less"),
        pytest.param(about("a", "<=", "7.5"), "completed", id="at most"),
        pytest.param(about("a", ">", "6.5"), "completed", id="more"),
        pytest.param(about("a", ">", "7"), "skipped", id="not more"),
        pytest.param(about("a", ">", "x"), "failed", id="no number"),
        pytest.param(about("a", ">", True), "failed", id="true is not a number"),
        pytest.param(about("ghost", "<", 1), "failed", id="nothing is not a number"),
        pytest.param(
            Compare(ref=Ref(of="run"), op="<", value=f"{UNREADABLE}$a =~ x"),
            "failed",
            id="unreadable",
        ),
        pytest.param(EveryOf(parts=(about("a", "==", "7"), about("a", "!=", "7"))), "skipped"),
        pytest.param(EveryOf(parts=(about("a", "==", "7"), about("a", "<", 8))), "completed"),
        pytest.param(EveryOf(parts=()), "completed", id="every one of none"),
        pytest.param(SomeOf(parts=(about("a", "==", "7"), about("a", ">", "x"))), "completed"),
        pytest.param(SomeOf(parts=(about("a", "==", "8"), about("a", ">", 7))), "skipped"),
        pytest.param(SomeOf(parts=()), "skipped", id="some one of none"),
        pytest.param(Cel(text="steps.a.content == '7'"), "completed", id="cel"),
        pytest.param(Cel(text="steps.a.result.n > 1", missing="false"), "skipped", id="absent"),
        pytest.param(Cel(text="steps.a.result.n > 1"), "failed", id="absent is an error"),
        pytest.param(Cel(text="1 +"), "failed", id="no expression"),
    ],
)
def test_conditions(when: Condition, expected: str) -> None:
    """A condition is looked at once its step is ready; what cannot be told fails the step."""
    plan = plan_of_steps(step("a"), step("b", "a", when=when))
    assert statuses(drive(plan, by_effect({}, "7")))["b"] == expected


def test_a_condition_that_cannot_be_evaluated_may_skip() -> None:
    """By policy the step is left out instead, with the reason on record."""
    plan = plan_of_steps(step("a"), step("b", "a", when=about("a", ">", 1), when_error="skip"))
    run = drive(plan, by_effect({}, "text"))
    assert statuses(run)["b"] == "skipped"


# -- judges ----------------------------------------------------------------------------------------


def judged(*said: object, **more: object) -> object:
    """A loop of single calls whose judge says these things, pass by pass."""
    answers = {f"main.{n}/check0#1": one for n, one in enumerate(said)}
    return drive(plan_of(Repeat(body=WORK, max=4, until=JUDGE, **more)), by_effect(answers, "ok"))


def done(value: object) -> Reply:
    return Reply(text="I looked", result=f'{{"done": {value}, "reason": "because"}}')


@pytest.mark.item("zenflow-18", "zenflow-25", "B15")
def test_a_judge_ends_the_loop_by_true_alone() -> None:
    """Only the value true counts; a text that says so does not."""
    run = judged(done("false"), done('"true"'), done("true"))
    assert run.ended[:2] == ("completed", "judge")
    assert verdicts(run) == [("judge", "fail"), ("judge", "fail"), ("judge", "pass")]


@pytest.mark.item("zenflow-22", "zenflow-24")
def test_a_judge_that_does_not_answer_is_asked_once_more() -> None:
    """An answer without the form is asked for again; then it counts as an error and goes on."""
    answers = {
        "main.0/check0#1": Fail("bad_result"),
        "main.0/check0#2": Fail("bad_result"),
        "main.1/check0#1": Fail("bad_result"),
        "main.1/check0#2": done("true"),
    }
    run = drive(plan_of(Repeat(body=WORK, max=4, until=JUDGE)), by_effect(answers, "ok"))
    assert run.ended[:2] == ("completed", "judge")
    assert verdicts(run) == [("judge", "error"), ("judge", "pass")]


@pytest.mark.item("zenflow-23")
def test_a_judge_that_always_fails_exhausts_the_loop() -> None:
    """Without a limit on broken checks the loop makes all its iterations and then has failed."""
    run = judged(*[Fail("agent")] * 4, at_cap="fail", broken_after=0)
    assert run.ended[:2] == ("failed", "max_iterations")


@pytest.mark.item("zenflow-17")
def test_the_judge_is_not_asked_when_the_expression_holds() -> None:
    """The parts of `any` are asked in order, and the first yes decides."""
    until = AnyOf(parts=(Expr(text="iteration >= 0"), JUDGE))
    run = drive(plan_of(Repeat(body=WORK, max=3, until=until)))
    assert verdicts(run) == [("expr", "pass")]
    assert not any("check1" in effect for effect in requests(run))


# -- scripts and fields ----------------------------------------------------------------------------


@pytest.mark.item("archon-21")
def test_a_script_decides_by_its_code() -> None:
    """Exit 0 completes, any other code goes on."""
    until = ScriptCheck(text="test -f done")
    answers = {"main.0/check0#1": 1, "main.1/check0#1": 0}
    run = drive(plan_of(Repeat(body=WORK, max=5, until=until)), by_effect(answers, "ok"))
    assert run.ended[:2] == ("completed", "script")
    assert verdicts(run) == [("script", "fail"), ("script", "pass")]


def test_a_script_as_a_step() -> None:
    """A script runs under its interpreter, and a bad code fails the step."""
    plan = plan_of_steps(step("s", action=RunScript(text="echo hi")))
    run = drive(plan, by_effect({"s/script#1": Reply(text="hi", code=0)}))
    (asked,) = [f for f in run.events if isinstance(f, EffectRequested)]
    assert asked.call.argv == ("bash", "-c", "echo hi")  # type: ignore[union-attr]
    assert run.ended[0] == "completed"
    assert drive(plan, by_effect({"s/script#1": Reply(code=3)})).ended[0] == "failed"


@pytest.mark.item("archon-69")
@pytest.mark.parametrize(
    ("value", "ended"), [("true", "completed"), ('"true"', "exhausted"), ("1", "exhausted")]
)
def test_a_field_must_be_exactly_true(value: str, ended: str) -> None:
    """Neither a text nor a number stands for true."""
    plan = plan_of(Repeat(body=WORK, max=1, until=ResultField(field="ready")))
    answer = Reply(text="x", result=f'{{"ready": {value}}}')
    assert drive(plan, by_effect({"main.0/agent#1": answer})).ended[0] == ended


# -- gates of interactive loops --------------------------------------------------------------------


def interactive(*answers: object, says: dict[str, str], **more: object) -> object:
    gate = LoopGate(first_always=True, approve_continues=True, reject="cancel", **more)
    plan = plan_of(Repeat(body=WORK, max=5, until=Signal(word="DONE"), gate=gate))
    return drive(plan, by_effect(says, "work"), decisions(*answers))


@pytest.mark.item("archon-39", "archon-43")
def test_the_first_iteration_is_shown_even_when_it_signals() -> None:
    """A bare approval of an iteration that has signalled ends the loop without another call."""
    run = interactive("approve", says={"main.0/agent#1": "DONE"})
    assert run.ended[:2] == ("completed", "signal")
    assert [e for e in requests(run) if "agent" in e] == ["main.0/agent#1"]


@pytest.mark.item("archon-42", "archon-44")
def test_an_approval_without_a_signal_asks_for_more() -> None:
    """A later iteration that signals ends the loop without asking."""
    run = interactive("approve", says={"main.1/agent#1": "DONE"})
    assert run.ended[:2] == ("completed", "signal")
    assert len([f for f in run.events if isinstance(f, GateOpened)]) == 1


@pytest.mark.item("archon-46")
def test_a_rejection_at_a_loop_gate_cancels_the_run() -> None:
    """Nothing further starts, and the reason is on record."""
    run = interactive("reject", says={})
    assert run.ended[:2] == ("cancelled", "rejected")
    assert broken_laws(run.events) == []


def in_turn(*answers: Decision) -> People:
    """Each gate that opens gets the next decision."""
    left = iter(answers)
    return lambda gate: (next(left), "no")


@pytest.mark.item("archon-62")
def test_a_rejected_approval_is_worked_on_and_asked_again() -> None:
    """The agent works after each rejection; the one that makes the number ends it."""
    action = AskPerson(on_reject=Rework(agent="fixer", attempts=3))
    run = drive(plan_of(action), by_effect({}, "ok"), in_turn("reject", "approve"))
    assert run.ended[:2] == ("completed", "approved")
    assert requests(run) == ["main/rework#1"]
    run = drive(plan_of(action), by_effect({}, "ok"), in_turn("reject", "reject", "reject"))
    assert run.ended[:2] == ("failed", "rejected")
    assert requests(run) == ["main/rework#1", "main/rework#2"]
    assert broken_laws(run.events) == []


@pytest.mark.parametrize(
    ("check", "asked"),
    [
        pytest.param(JUDGE, "main.0/check0#1", id="judge"),
        pytest.param(Goal(agent="judge"), "main.0/check0#1", id="goal"),
        pytest.param(ScriptCheck(text="true"), "main.0/check0#1", id="script"),
    ],
)
def test_a_check_under_way_is_not_asked_again(check: Check, asked: str) -> None:
    """A pause and a resume look at every place anew; whoever judges is left in peace."""
    run = Driver(plan_of(Repeat(body=WORK, max=2, until=check))).start()
    run.answer("main.0/agent#1", "x")
    assert sorted(run.state.pending) == [asked]
    run.pause()
    assert run.resume()[1:] == []
    assert sorted(run.state.pending) == [asked]


@pytest.mark.parametrize(
    ("said", "limits", "ended"),
    [
        pytest.param(Fail("exit", "code 2"), Limits(), ("failed", "error"), id="it fails"),
        pytest.param(
            Fail("cancelled", "killed"), Limits(), ("cancelled", "killed"), id="it is ended"
        ),
        pytest.param(
            Reply("x", usage=Usage(usd=0.5)),
            Limits(usd=0.5),
            ("exhausted", "budget"),
            id="too dear",
        ),
        pytest.param(
            Reply("x", usage=Usage(usd=0.2)),
            Limits(usd=0.5),
            ("failed", "rejected"),
            id="affordable",
        ),
    ],
)
def test_work_on_a_rejection_is_as_any_other(
    said: ScriptedAnswer, limits: Limits, ended: tuple[str, str]
) -> None:
    """Where it fails the step has failed, and it is not begun when nothing is left to spend."""
    action = AskPerson(on_reject=Rework(agent="fixer", attempts=3))
    run = drive(plan_of(action, limits=limits), by_effect({}, said), decisions("reject"))
    assert run.ended[:2] == ended
    assert requests(run)[0] == "main/rework#1"
    assert broken_laws(run.events) == []


# -- a whole step again ----------------------------------------------------------------------------


@pytest.mark.item("zenflow-52")
def test_a_failed_loop_begins_anew() -> None:
    """With retries for any failure the loop starts again at its first iteration, under a new
    name.
    """
    loop = Repeat(body=CallAgent(agent="a"), max=2, at_cap="complete")
    steps = step("loop", action=loop, retry=Retry(attempts=2, on=("any",)))
    answers = {"loop.1/agent#1": Fail("agent")}
    run = drive(plan_of_steps(steps), by_effect(answers, "ok"))
    assert run.ended[:2] == ("completed", "max_iterations")
    assert [f.attempt for f in run.events if isinstance(f, StepRetried)] == [2]
    agents = [effect for effect in requests(run) if "/agent" in effect]
    assert agents == ["loop.0/agent#1", "loop.1/agent#1", "loop~2.0/agent#1", "loop~2.1/agent#1"]


def test_retries_come_to_an_end() -> None:
    """The last try's failure is the step's."""
    loop = Repeat(body=CallAgent(agent="a"), max=1)
    steps = step("loop", action=loop, retry=Retry(attempts=3, on=("any",)))
    answers = {f"loop{name}.0/agent#1": Fail("agent") for name in ("", "~2", "~3")}
    run = drive(plan_of_steps(steps), by_effect(answers, "ok"))
    assert run.ended[:2] == ("failed", "error")
    assert len(requests(run)) == 3


def test_steps_after_a_new_try_begin() -> None:
    """The run and its other steps go on after a step that was begun anew, at any depth."""
    inner = Steps(steps=(step("a"), step("b", "a")))
    again = Retry(attempts=2, on=("any",))
    plan = plan_of_steps(
        step("first", action=inner, retry=again),
        step("second", "first", action=Steps(steps=(step("c", action=inner, retry=again),))),
        step("last", "second"),
    )
    answers = {"first.b/agent#1": Fail("agent"), "second.c.b/agent#1": Fail("agent")}
    run = drive(plan, by_effect(answers, "ok"))
    assert run.ended[:2] == ("completed", "done")
    assert requests(run)[-3:] == [
        "second.c~2.a/agent#1",
        "second.c~2.b/agent#1",
        "last/agent#1",
    ]
    assert broken_laws(run.events) == []


def test_what_a_person_rejects_is_not_begun_anew() -> None:
    """A policy that tries again after any failure does not overrule a person."""
    loop = Repeat(body=CallAgent(agent="a"), max=1, at_cap="ask")
    steps = step("loop", action=loop, retry=Retry(attempts=3, on=("any",)))
    run = drive(plan_of_steps(steps), by_effect({}, "ok"), in_turn("reject"))
    assert run.ended[:2] == ("failed", "rejected")
    assert requests(run) == ["loop.0/agent#1"]


# -- what a run comes to ---------------------------------------------------------------------------


@pytest.mark.item("zenflow-51", "archon-56", "archon-57")
@pytest.mark.parametrize(
    ("rule", "answers", "when", "ended"),
    [
        pytest.param("partial", {}, None, ("completed", "done"), id="all completed"),
        pytest.param("partial", {"a/agent#1": Fail()}, None, ("failed", "partial"), id="some"),
        pytest.param(
            "partial", {"a/agent#1": Fail(), "b/agent#1": Fail()}, None, ("failed", "error"), id="0"
        ),
        pytest.param("partial", {}, Cel(text="false"), ("completed", "done"), id="all skipped"),
        pytest.param("some_completed", {"a/agent#1": Fail()}, None, ("failed", "error"), id="any"),
        pytest.param(
            "some_completed", {}, Cel(text="false"), ("failed", "nothing_completed"), id="none"
        ),
    ],
)
def test_expected_result_of_a_run(
    rule: str, answers: dict[str, object], when: Condition | None, ended: tuple[str, str]
) -> None:
    """The rule of the plan makes one outcome of those of its steps."""
    plan = plan_of_steps(step("a", when=when), step("b", when=when), outcome=rule)
    assert drive(plan, by_effect(answers, "ok")).ended[:2] == ended
