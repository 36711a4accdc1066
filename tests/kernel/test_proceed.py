"""What begins when: graphs of steps, passes over lists, places among the parallel calls."""

from __future__ import annotations

import json
from itertools import product

import pytest

from loopwright.kernel.calls import AgentCall, CommandCall, SleepCall
from loopwright.kernel.decide import settle
from loopwright.kernel.facts import (
    AnyFact,
    EffectDone,
    EffectFailed,
    EffectRequested,
    IterationStarted,
    RunStarted,
    StepFinished,
    StepSkipped,
    StepStarted,
    Usage,
)
from loopwright.kernel.fold import fold
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    Cycle,
    Each,
    Repeat,
    RunCommand,
    RunScript,
    Step,
    Steps,
    Stop,
    Wait,
)
from loopwright.model.checks import Contains, Expr
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits
from loopwright.model.template import Items, ItemsExpr, ItemsFrom, Lit, Ref
from tests.kernel.driving import (
    Driver,
    Fail,
    Reply,
    by_effect,
    by_pass,
    drive,
    plan_of,
    plan_of_steps,
)
from tests.kernel.invariants import broken_laws

WORK = CallAgent(agent="a")


def step(name: str, *needs: str, action: Action = WORK, **more: object) -> Step:
    return Step(id=name, action=action, needs=needs, **more)


def statuses(run: Driver) -> dict[str, str]:
    """How each step of the run ended."""
    return {
        fact.path: fact.status for fact in run.facts if isinstance(fact, StepFinished | StepSkipped)
    }


# -- single actions --------------------------------------------------------------------------------


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
            WORK, Fail("cancelled", "gone"), ("cancelled", "gone", ""), id="ended outside"
        ),
    ],
)
def test_actions_end(action: Action, said: object, ended: object) -> None:
    """The answer of a single action is the end of its step."""
    run = drive(plan_of(action), by_effect({}, default=said))
    assert run.ended == ended


def test_bad_code_is_told() -> None:
    """A program's code is part of the error."""
    run = drive(plan_of(RunCommand(argv=("x",))), by_effect({}, default=3))
    assert run.end.error is not None
    assert (run.end.error.type, run.end.error.detail) == ("exit", "the command ended with code 3")


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
        step("end", "a", action=Stop(reason=reason)),
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
    assert broken_laws(run.facts) == []


@pytest.mark.parametrize(
    "action",
    [
        pytest.param(RunScript(text="x"), id="script"),
        pytest.param(Cycle(agent="a"), id="cycle"),
        pytest.param(Repeat(body=WORK, max=1, until=Expr(text="x")), id="check by expression"),
    ],
)
def test_what_has_no_decider_is_a_defect(action: Action) -> None:
    """A plan with something that cannot be decided is never quietly passed over."""
    with pytest.raises(AssertionError, match="no decider"):
        drive(plan_of(action))


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
    steps: list[Step] = [step("bad", on_error="continue")]
    answers: dict[str, object] = {"bad/agent#1": Fail()}
    for name, fate in zip(("x", "y"), fates, strict=True):
        # What stands behind a tolerated failure is skipped.
        steps.append(step(name, *(["bad"] if fate == "skipped" else []), on_error="continue"))
        if fate == "failed":
            answers[f"{name}/agent#1"] = Fail()
    steps.append(step("last", "x", "y", join=join))
    run = drive(plan_of_steps(*steps), by_effect(answers))
    found = statuses(run)
    assert (found["x"], found["y"]) == fates
    assert found["last"] == ("completed" if RULES[join](fates) else "skipped")
    assert broken_laws(run.facts) == []


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
    assert run.end.error.detail == "broke"
    assert broken_laws(run.facts) == []


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
    assert broken_laws(run.facts) == []


def test_delay_between_passes() -> None:
    """Between two passes, and only there, a loop waits."""
    run = drive(plan_of(Repeat(body=WORK, max=3, delay_ms=70)), by_pass("x"))
    waits = [f for f in run.of(EffectRequested) if isinstance(f.call, SleepCall)]
    assert [f.effect for f in waits] == ["main/delay#1", "main/delay#2"]
    assert [f.call.until - f.at for f in waits] == [70, 70]


# -- one pass for each item ------------------------------------------------------------------------


def over(*values: object, **more: object) -> Plan:
    each = {k: more.pop(k) for k in ("parallel", "on_item_error", "max_items") if k in more}
    return plan_of(
        Repeat(body=WORK, each=Each(items=Items(values=values), **each), **more),
        **{k: more.pop(k) for k in ("limits_of_step",) if k in more},
    )


def rows(run: Driver) -> list[dict[str, object]]:
    return json.loads(run.texts.read(run.end.result))["iterations"]


def test_items_in_order() -> None:
    """Results come in the order of the list, in whichever order the answers came."""
    answers = by_effect({f"main[{n}]/agent#1": f"r{n}" for n in range(4)})
    run = Driver(over("a", "b", "c", "d"), answers, order=lambda choices: choices - 1).run()
    assert run.ended == ("completed", "items", "r3")
    assert [(r["index"], r["item"], r["status"], r["content"]) for r in rows(run)] == [
        (0, "a", "completed", "r0"),
        (1, "b", "completed", "r1"),
        (2, "c", "completed", "r2"),
        (3, "d", "completed", "r3"),
    ]
    assert run.passes == 4
    assert broken_laws(run.facts) == []


def test_all_outputs_of_items() -> None:
    """With `all`, each item that completed has a heading."""
    answers = by_effect({"main[0]/agent#1": "zero", "main[1]/agent#1": Fail()}, default="two")
    run = drive(over(1, 2, 3, output="all", on_item_error="continue"), answers)
    assert run.ended == ("completed", "items", "## Item 0\n\nzero\n\n## Item 2\n\ntwo")


@pytest.mark.parametrize("parallel", [1, 2, 3, None])
def test_never_more_at_once_than_allowed(parallel: int | None) -> None:
    """At no moment are more passes under way than the definition allows."""
    run = drive(over(*range(7), parallel=parallel))
    most, open_now = 0, 0
    for fact in run.facts:
        open_now += isinstance(fact, IterationStarted)
        most = max(most, open_now)
        open_now -= type(fact).__name__ == "IterationFinished"
    assert most == (parallel or 7)
    assert run.end.outcome == "completed"


def test_a_long_list_is_begun_in_parts() -> None:
    """Without a number a hundred passes are under way at most."""
    run = Driver(over(*range(150)), by_effect({}, default=None)).start()
    assert len(run.state.pending) == 100


@pytest.mark.parametrize(
    ("policy", "ended", "begun"),
    [
        pytest.param("stop", ("failed", "error", "ok"), 2, id="stop"),
        pytest.param("continue", ("completed", "items", "ok"), 4, id="continue"),
    ],
)
def test_failing_items(policy: str, ended: object, begun: int) -> None:
    """A failing item ends the loop, or is one row among the others."""
    plan = over(*"abcd", parallel=1, on_item_error=policy)
    run = drive(plan, by_effect({"main[1]/agent#1": Fail("agent", "broke")}))
    assert run.ended == ended
    assert len(run.of(IterationStarted)) == begun
    row = rows(run)[1]
    assert (row["status"], row["error"]) == ("failed", {"type": "agent", "detail": "broke"})
    assert [r["status"] for r in rows(run)][2:] == ["cancelled" if begun == 2 else "completed"] * 2
    if policy == "stop":
        assert run.end.error is not None
        assert run.end.error.detail == "broke"


def test_items_under_way_finish_after_a_failure() -> None:
    """What has begun is not thrown away when another item fails; nothing new begins."""
    run = Driver(over(*range(5), parallel=2)).start()
    run.answer("main[0]/agent#1", Fail())
    assert sorted(run.state.pending) == ["main[1]/agent#1"]
    run.answer("main[1]/agent#1", "late")
    assert run.ended == ("failed", "error", "late")


@pytest.mark.parametrize(
    ("items", "reason", "detail"),
    [
        pytest.param(
            ItemsFrom(ref=Ref(of="input", name="text")), "not-a-list", "found str", id="text"
        ),
        pytest.param(
            ItemsFrom(ref=Ref(of="input", name="no")), "not-a-list", "nothing", id="nothing"
        ),
        pytest.param(
            ItemsFrom(ref=Ref(of="message")), "not-a-list", "found Blob", id="stored text"
        ),
        pytest.param(ItemsExpr(expr="x"), "not-a-list", "found nothing", id="no evaluator yet"),
        pytest.param(Items(values=(1, 2, 3, 4)), "too-many-items", "4 items, at most 3", id="many"),
    ],
)
def test_bad_lists(items: object, reason: str, detail: str) -> None:
    """Something that is no list, or too long a one, fails the step before anything begins."""
    plan = plan_of(Repeat(body=WORK, each=Each(items=items, max_items=3)))
    run = drive(plan, inputs={"text": "abc"}, message="m" * 500)
    assert run.ended[:2] == ("failed", reason)
    assert run.end.error is not None
    assert detail in run.end.error.detail
    assert run.of(IterationStarted) == []


def test_empty_list() -> None:
    """Nothing to do is done."""
    run = drive(over())
    assert run.ended == ("completed", "items", "")
    assert rows(run) == []


def test_list_of_an_earlier_step() -> None:
    """The list may come from the structured result of a step before."""
    plan = plan_of_steps(
        step("find"),
        step(
            "fix",
            "find",
            action=Repeat(
                body=WORK,
                each=Each(items=ItemsFrom(ref=Ref(of="result", name="find", field="files"))),
            ),
        ),
    )
    run = drive(plan, by_effect({"find/agent#1": Reply("", result='{"files": ["a", "b"]}')}))
    assert run.end.outcome == "completed"
    assert [f.path for f in run.of(IterationStarted)] == ["fix[0]", "fix[1]"]


SPEND = Reply("x", usage=Usage(0, 0, 0.5))


@pytest.mark.parametrize("policy", ["stop", "continue"])
@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_budget_of_items(policy: str, parallel: int) -> None:
    """No item begins when the money is used up, and that is what the end says."""
    plan = over(*range(6), parallel=parallel, on_item_error=policy, limits=Limits(usd=0.5))
    run = drive(plan, by_effect({}, default=SPEND))
    assert run.ended == ("exhausted", "budget", "x")
    assert len(run.of(IterationStarted)) == parallel
    assert run.end.error is not None


def test_items_of_items() -> None:
    """A list inside a pass over a list."""
    inner = Repeat(body=WORK, each=Each(items=Items(values=(1, 2))))
    run = drive(plan_of(Repeat(body=inner, each=Each(items=Items(values=("a", "b"))))))
    assert {f.path for f in run.of(IterationStarted)} == {
        "main[0]", "main[1]", "main[0][0]", "main[0][1]", "main[1][0]", "main[1][1]",
    }  # fmt: skip
    assert run.end.outcome == "completed"


# -- places among the parallel calls ---------------------------------------------------------------


def calls_at_once(facts: list[AnyFact]) -> int:
    most, calls = 0, set()
    for fact in facts:
        if isinstance(fact, EffectRequested) and isinstance(fact.call, AgentCall):
            calls.add(fact.effect)
        elif isinstance(fact, EffectDone | EffectFailed):
            calls.discard(fact.effect)
        most = max(most, len(calls))
    return most


@pytest.mark.parametrize("parallel", [1, 2, 5])
def test_parallel_calls_are_capped(parallel: int) -> None:
    """At most so many agents are called at once in a whole run, and all get their turn."""
    plan = plan_of_steps(
        *[step(f"s{n}") for n in range(4)],
        step("loop", action=Repeat(body=WORK, max=3)),
        parallel=parallel,
    )
    run = drive(plan)
    assert calls_at_once(run.facts) == parallel
    assert run.ended[:2] == ("exhausted", "max_iterations")
    assert set(statuses(run).values()) == {"completed", "exhausted"}


def test_a_loop_does_not_keep_its_place() -> None:
    """Who waits longest gets the place that an answer frees, before the next pass of the same."""
    loop = Repeat(body=WORK, max=3)
    run = drive(plan_of_steps(step("a", action=loop), step("b", action=loop), parallel=1))
    asked = [f.path for f in run.of(EffectRequested)]
    assert asked == ["a.0", "b.0", "a.1", "b.1", "a.2", "b.2"]


def test_a_place_that_is_not_needed_goes_to_the_next() -> None:
    """When who waits has no money left, the one behind is not forgotten."""
    plan = plan_of_steps(
        step("first"),
        step("poor", limits=Limits(tokens=0)),
        step("rich"),
        step("last"),
        parallel=1,
        on_failure="skip",
    )
    run = drive(plan)
    assert statuses(run) == {
        "first": "completed", "poor": "exhausted", "rich": "completed", "last": "completed",
    }  # fmt: skip


def test_items_without_money_do_not_hang() -> None:
    """Passes that wait for a place end when the budget is used up meanwhile."""
    plan = Plan(
        name="t",
        steps=over(*range(5), on_item_error="continue").steps,
        limits=Limits(usd=0.5),
        parallel=1,
    )
    run = drive(plan, by_effect({}, default=SPEND))
    assert [r["status"] for r in rows(run)] == ["completed", *["exhausted"] * 4]


def test_resume_forgets_no_one_who_waits() -> None:
    """Pausing and resuming while calls wait for a place leaves none behind."""
    plan = plan_of_steps(*[step(f"s{n}") for n in range(4)], parallel=1)
    run = Driver(plan).start()
    run.pause()
    run.resume()
    assert len(run.state.pending) == 1
    run.run()
    assert set(statuses(run).values()) == {"completed"}


def test_a_withdrawn_call_frees_its_place() -> None:
    """A call that a deadline ends makes room for the next."""
    plan = plan_of_steps(
        step("slow", limits=Limits(wall_ms=50)), step("next"), parallel=1, on_failure="skip"
    )
    run = drive(plan, by_effect({"slow/agent#1": None}))
    assert statuses(run) == {"slow": "exhausted", "next": "completed"}


def test_who_waits_may_be_closed() -> None:
    """A waiting call whose place has ended is passed over."""
    plan = plan_of_steps(
        step("slow"), step("gone", limits=Limits(wall_ms=50)), step("next"), parallel=1
    )
    run = Driver(plan).start()
    run.fire("gone/deadline#1")
    run.answer("slow/agent#1", "x")
    assert sorted(run.state.pending) == ["next/agent#1"]


def test_programs_and_people_need_no_place() -> None:
    """Only agents are counted: programs and gates are not held up by them."""
    plan = plan_of_steps(
        step("a"),
        step("b", action=RunCommand(argv=("x",))),
        step("c", action=AskPerson()),
        parallel=1,
    )
    run = Driver(plan).start()
    assert sorted(run.state.pending) == ["a/agent#1", "b/command#1"]
    assert len(run.state.gates) == 1


def test_nothing_follows_from_nothing() -> None:
    """Before its first fact a run decides nothing."""
    run = Driver(plan_of(WORK))
    run.cancel()
    assert run.kinds() == ["cancel.requested"]
    run.append(RunStarted(at=0, run="r", plan="p", name="t"))
    assert run.ended[:2] == ("cancelled", "stopped")


def test_settled_is_settled() -> None:
    """Asking again gives nothing, from the same state and from a new one."""
    run = Driver(over(1, 2, 3, parallel=2)).start()
    assert settle(run.state, run.texts) == []
    assert settle(fold(run.plan, run.facts), run.texts) == []
