"""The order of starts: single actions, graphs of steps, loops inside them."""

from __future__ import annotations

from itertools import product

import pytest

from loopwright.kernel.decide import settle
from loopwright.kernel.event_parts import AgentCall, CommandCall, Failure, SleepCall
from loopwright.kernel.events import (
    EffectRequested,
    IterationStarted,
    RunStarted,
    StepFinished,
    StepStarted,
)
from loopwright.kernel.fold import fold
from loopwright.model.actions import (
    Action,
    Cel,
    FailStep,
    Repeat,
    RunCommand,
    RunScript,
    Step,
    Steps,
    StopRun,
    Wait,
)
from loopwright.model.checks import Contains
from loopwright.model.plan import Plan
from loopwright.model.record import Lit, Ref
from tests.kernel.driving import (
    Driver,
    Fail,
    Reply,
    by_effect,
    by_iteration,
    drive,
    plan_of,
    plan_of_steps,
)
from tests.kernel.invariants import broken_laws
from tests.kernel.shapes import WORK, over, statuses, step

# -- single actions --------------------------------------------------------------------------------


JUDGED = RunScript(
    text="x",
    schema={"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
)


@pytest.mark.parametrize(
    ("action", "call"),
    [
        pytest.param(WORK, AgentCall(agent="a"), id="agent"),
        pytest.param(
            RunCommand(argv=("make", "x y"), timeout_ms=5, env={"A": "b"}),
            CommandCall(argv=("make", "x y"), timeout_ms=5, env={"A": "b"}),
            id="command",
        ),
        pytest.param(Wait(ms=250), SleepCall(until=1_250), id="wait"),
    ],
)
def test_actions_ask_for_effects(action: Action, call: object) -> None:
    """A single action is one request with everything that it needs."""
    run = Driver(plan_of(action)).start()
    (asked,) = run.of(EffectRequested)
    assert asked.call == call


@pytest.mark.parametrize(
    ("action", "said", "ended"),
    [
        pytest.param(WORK, "hi", ("completed", "done", "hi"), id="agent"),
        pytest.param(WORK, Fail("agent", "no"), ("failed", "error", ""), id="agent fails"),
        pytest.param(
            WORK, Fail("agent", "no", text="half"), ("failed", "error", "half"), id="half an answer"
        ),
        pytest.param(
            RunCommand(argv=("x",)),
            Reply("out", code=0),
            ("completed", "done", "out"),
            id="command",
        ),
        pytest.param(
            RunCommand(argv=("x",)), Reply("out", code=3), ("failed", "error", "out"), id="code 3"
        ),
        pytest.param(
            RunCommand(argv=("x",)), Fail("not_found"), ("failed", "error", ""), id="no program"
        ),
        pytest.param(Wait(ms=5), None, ("completed", "done", ""), id="wait"),
        pytest.param(
            Wait(ms=5, output="over"), None, ("completed", "done", "over"), id="output of a wait"
        ),
        pytest.param(
            JUDGED, Reply('{"ok": true}'), ("completed", "done", '{"ok": true}'), id="fits"
        ),
        pytest.param(JUDGED, Reply("ok"), ("failed", "error", "ok"), id="no JSON"),
        pytest.param(
            JUDGED, Reply('{"ok": 1}'), ("failed", "error", '{"ok": 1}'), id="another form"
        ),
        pytest.param(JUDGED, Reply(""), ("failed", "error", ""), id="nothing printed"),
        pytest.param(
            WORK, Fail("cancelled", "gone"), ("cancelled", "gone", ""), id="ended outside"
        ),
    ],
)
def test_actions_end(action: Action, said: object, ended: object) -> None:
    """The answer of a single action is the end of its step."""
    run = drive(plan_of(action), by_effect({}, default=said))
    assert run.ended == ended


def test_bad_code_is_reported() -> None:
    """A program's code is part of the error."""
    run = drive(plan_of(RunCommand(argv=("x",))), by_effect({}, default=3))
    assert run.end.error is not None
    assert (run.end.error.type, run.end.error.detail) == ("exit", "the command ended with code 3")


def test_a_step_that_cannot_run_fails_when_it_is_reached() -> None:
    """It says why, is not tried again, and does not count where it is skipped."""
    fails = FailStep(reason="no command is called x")
    never = Cel(text="1 > 2")
    plan = plan_of_steps(
        step("a"), step("x", "a", action=fails), Step(id="y", action=fails, when=never)
    )
    run = drive(plan, by_effect({}))
    assert statuses(run) == {"a": "completed", "x": "failed", "y": "skipped"}
    (ended,) = [one for one in run.of(StepFinished) if one.status == "failed"]
    assert ended.error == Failure("bad_input", "no command is called x")
    assert broken_laws(run.events) == []


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        pytest.param(
            (Lit(text="enough of "), Ref(of="output", name="a")), "enough of ok", id="own"
        ),
        pytest.param((), "stopped", id="none given"),
    ],
)
def test_stop_ends_the_whole_run(reason: object, expected: str) -> None:
    """A stop step ends everything that is under way, saying why."""
    plan = plan_of_steps(
        step("a"),
        step("slow"),
        step("end", "a", action=StopRun(reason=reason)),
        step("never", "slow"),
    )
    run = drive(plan, by_effect({"slow/agent#1": None}))
    assert run.ended[:2] == ("cancelled", expected)
    assert statuses(run) == {
        "a": "completed",
        "slow": "cancelled",
        "end": "cancelled",
        "never": "cancelled",
    }
    assert broken_laws(run.events) == []


# -- joins -----------------------------------------------------------------------------------------

FATES = ("completed", "failed", "skipped")
RULES = {
    "all_success": lambda fates: set(fates) == {"completed"},
    "finished_ok": lambda fates: "failed" not in fates,
    "one_success": lambda fates: "completed" in fates,
    "none_failed_min_one_success": lambda fates: "failed" not in fates and "completed" in fates,
    "all_done": lambda fates: True,
}


@pytest.mark.parametrize("join", RULES)
@pytest.mark.parametrize("fates", list(product(FATES, FATES)), ids="-".join)
def test_joins(join: str, fates: tuple[str, str]) -> None:
    """A step starts if what it needs ended in a way that its join allows."""
    steps: list[Step] = []
    answers: dict[str, object] = {}
    for name, fate in zip(("x", "y"), fates, strict=True):
        when = Cel(text="false") if fate == "skipped" else None
        steps.append(step(name, on_error="continue", when=when))
        if fate == "failed":
            answers[f"{name}/agent#1"] = Fail()
    steps.append(step("last", "x", "y", join=join))
    run = drive(plan_of_steps(*steps), by_effect(answers))
    found = statuses(run)
    assert (found["x"], found["y"]) == fates
    assert found["last"] == ("completed" if RULES[join](fates) else "skipped")
    assert broken_laws(run.events) == []


def test_what_a_failure_left_out_spoils_what_follows() -> None:
    """Left out by a condition is fine for `finished_ok`; left out behind a failure is not."""
    steps = (
        step("bad", on_error="continue"),
        step("behind", "bad"),
        step("last", "behind", join="finished_ok"),
    )
    run = drive(plan_of_steps(*steps), by_effect({"bad/agent#1": Fail()}))
    assert statuses(run) == {"bad": "failed", "behind": "skipped", "last": "skipped"}


@pytest.mark.parametrize("join", RULES)
def test_joins_of_nothing(join: str) -> None:
    """A step that needs nothing starts under every join."""
    run = drive(plan_of_steps(step("only", join=join)))
    assert statuses(run) == {"only": "completed"}


# -- failing graphs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_failure", "expected"),
    [
        pytest.param(
            "cascade",
            {"bad": "failed", "b": "cancelled", "c": "cancelled", "free": "completed"},
            id="cascade: what depends on it is cancelled, the rest goes on",
        ),
        pytest.param(
            "skip",
            {"bad": "failed", "b": "skipped", "c": "skipped", "free": "completed"},
            id="skip: what depends on it is left out, the rest goes on",
        ),
        pytest.param(
            "abort",
            {"bad": "failed", "b": "cancelled", "c": "cancelled", "free": "cancelled"},
            id="abort: everything ends",
        ),
    ],
)
@pytest.mark.parametrize("inside", [False, True], ids=["run", "inner graph"])
def test_failure_policies(on_failure: str, expected: dict[str, str], inside: bool) -> None:
    """The policy says what a failing step means for the others; the graph has failed anyway."""
    steps = (step("bad"), step("b", "bad"), step("c", "b"), step("free"))
    plan = Plan(name="t", steps=steps, on_failure=on_failure)
    prefix = ""
    if inside:
        plan = plan_of(Steps(steps=steps, on_failure=on_failure))
        prefix = "main."
    run = drive(plan, by_effect({f"{prefix}bad/agent#1": Fail("agent", "broke")}))
    found = {path.removeprefix("main."): said for path, said in statuses(run).items()}
    found.pop("main", None)
    assert found == expected
    assert run.ended[:2] == ("failed", "error")
    assert run.end.error is not None
    assert run.end.error.detail == "step 'bad' failed: broke"
    assert broken_laws(run.events) == []


def test_only_what_a_failure_spoils_is_cancelled() -> None:
    """Behind a tolerated failure steps are skipped, also when another branch has failed."""
    plan = plan_of_steps(
        step("bad"), step("meh", on_error="continue"), step("a", "bad"), step("b", "meh")
    )
    run = drive(plan, by_effect({"bad/agent#1": Fail(), "meh/agent#1": Fail()}))
    assert statuses(run) == {"bad": "failed", "meh": "failed", "a": "cancelled", "b": "skipped"}


def test_tolerated_failures() -> None:
    """A step that may fail does not fail the run, and who accepts any end goes on behind it."""
    plan = plan_of_steps(
        step("try", on_error="continue"), step("clean", "try", join="all_done"), on_failure="abort"
    )
    run = drive(plan, by_effect({"try/agent#1": Fail()}))
    assert run.ended == ("completed", "done", "ok")
    assert statuses(run) == {"try": "failed", "clean": "completed"}


def test_run_of_one_tolerated_failure() -> None:
    """A completed run never has the reason of a failure."""
    run = drive(plan_of_steps(step("try", on_error="continue")), by_effect({}, default=Fail()))
    assert run.ended == ("completed", "done", "")


@pytest.mark.parametrize(
    ("answers", "ended"),
    [
        pytest.param({}, ("completed", "done", "two"), id="all complete"),
        pytest.param({"b/agent#1": Fail()}, ("failed", "error", "one"), id="last fails"),
        pytest.param({"a/agent#1": Fail()}, ("failed", "error", "two"), id="first fails"),
    ],
)
def test_output_is_that_of_the_last_declared(answers: dict[str, object], ended: object) -> None:
    """A graph hands on what the last of its steps that completed said, in declared order."""
    texts = {"a/agent#1": "one", "b/agent#1": Reply("two", result="2")}
    plan = plan_of_steps(step("a"), step("b"))
    assert drive(plan, by_effect(texts | answers)).ended == ended
    late = Driver(plan, by_effect(texts | answers), order=lambda choices: choices - 1).run()
    assert late.ended == ended


def test_worst_step_speaks_for_the_run() -> None:
    """Failed is worse than exhausted, whichever came first."""
    capped = Repeat(body=WORK, max=1)
    plan = plan_of_steps(step("loop", action=capped), step("bad"))
    assert drive(plan, by_effect({"bad/agent#1": Fail()})).ended[:2] == ("failed", "error")
    assert drive(plan).ended[:2] == ("exhausted", "max_iterations")


def test_graph_order() -> None:
    """A step begins as soon as what it needs has ended, and no sooner."""
    plan = plan_of_steps(step("d", "b", "c"), step("b", "a"), step("c", "a"), step("a"), step("e"))
    run = Driver(plan).start()
    assert sorted(run.state.pending) == ["a/agent#1", "e/agent#1"]
    run.answer("a/agent#1", "x")
    assert sorted(run.state.pending) == ["b/agent#1", "c/agent#1", "e/agent#1"]
    run.answer("b/agent#1", "x")
    assert "d/agent#1" not in run.state.pending
    run.answer("c/agent#1", "x")
    assert sorted(run.state.pending) == ["d/agent#1", "e/agent#1"]
    assert run.run().end.outcome == "completed"


def test_loop_in_steps_in_loop() -> None:
    """Loops and graphs nest; every place has a path of its own and counts its own passes."""
    inner = Repeat(body=WORK, max=2, until=Contains(text="fixed"), at_cap="complete")
    body = Steps(steps=(step("plan"), step("fix", "plan", action=inner), step("review", "fix")))
    plan = plan_of(Repeat(body=body, max=3, until=Contains(text="APPROVED")))
    answers = {
        "main.0.fix.0/agent#1": "fixed",
        "main.1.fix.1/agent#1": "fixed",
        "main.1.review/agent#1": "APPROVED",
    }
    run = drive(plan, by_effect(answers))
    assert run.ended == ("completed", "contains", "APPROVED")
    assert run.passes == 2
    begun = [(f.path, f.iteration) for f in run.of(IterationStarted)]
    assert begun == [
        ("main.0", 1),
        ("main.0.fix.0", 1),
        ("main.1", 2),
        ("main.1.fix.0", 1),
        ("main.1.fix.1", 2),
    ]
    steps = {f.path: f.iteration for f in run.of(StepStarted)}
    assert steps["main.1.review"] == 2
    assert broken_laws(run.events) == []


def test_delay_between_iterations() -> None:
    """Between two iterations, and only there, a loop waits."""
    run = drive(plan_of(Repeat(body=WORK, max=3, delay_ms=70)), by_iteration("x"))
    waits = [f for f in run.of(EffectRequested) if isinstance(f.call, SleepCall)]
    assert [f.effect for f in waits] == ["main/delay#1", "main/delay#2"]
    assert [f.call.until - f.at for f in waits] == [70, 70]


def test_nothing_follows_from_nothing() -> None:
    """Before its first event a run decides nothing."""
    run = Driver(plan_of(WORK))
    run.cancel()
    assert run.kinds() == ["cancel.requested"]
    run.append(RunStarted(at=0, run="r", plan="p", name="t"))
    assert run.ended[:2] == ("cancelled", "stopped")


def test_settled_is_settled() -> None:
    """Asking again gives nothing, from the same state and from a new one."""
    run = Driver(over(1, 2, 3, parallel=2)).start()
    assert settle(run.state, run.texts) == []
    assert settle(fold(run.plan, run.events), run.texts) == []
