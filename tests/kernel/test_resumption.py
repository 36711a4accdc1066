"""A run that ended without completing and is resumed: each way of ending, each kind of body."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import pytest

from loopwright.kernel.events import (
    AnyEvent,
    EffectRequested,
    GateOpened,
    IterationFinished,
    IterationStarted,
    RunReopened,
    StepStarted,
    Usage,
)
from loopwright.kernel.fold import fold
from loopwright.kernel.frames import RepeatBody
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    Each,
    LoopGate,
    Repeat,
    RunCommand,
    Step,
    Steps,
)
from loopwright.model.chat import AssistantMessage, ModelTurn, RequestedCall, TextPart, encode_turn
from loopwright.model.checks import AnyOf, CommandCheck, Judge, Regex
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import Limits, ProgressLog, StageOutputs
from loopwright.model.record import LiteralItems
from tests.kernel.driving import Driver, Fail, Reply, Script, ScriptedAnswer, decisions
from tests.support.laws.run import event_problems
from tests.support.laws.state_picture import picture

CALL = CallAgent(agent="worker")
USED = Usage(input_tokens=10, output_tokens=10, usd=1.0)
BROKEN = Fail(detail="broken", usage=USED)


# -- bodies ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Body:
    """A plan, and the effects that a run of it makes when nothing goes wrong, in their order."""

    plan: Plan
    effects: tuple[str, ...]
    at: str  # the effect during which the run ends


def one(action: Action, **more: object) -> Plan:
    return Plan(name="t", steps=(Step(id="main", action=action),), **more)  # type: ignore[arg-type]


def loop(body: Action, most: int, **more: object) -> Repeat:
    return Repeat(body=body, max=most, until=Regex(pattern="DONE"), at_cap="complete", **more)  # type: ignore[arg-type]


GRAPH = Steps(
    steps=(
        Step(id="a", action=CALL),
        Step(id="b", action=CALL, needs=("a",)),
        Step(id="c", action=CALL, needs=("b",)),
    )
)
CHAT = {"worker": Agent(spec="model:openai/gpt-5")}

BODIES = {
    "single-call": Body(
        one(loop(CALL, 4, memory=ProgressLog())),
        tuple(f"main.{n}/agent#1" for n in range(4)),
        "main.2/agent#1",
    ),
    "nested": Body(
        one(loop(loop(CALL, 2), 2)),
        tuple(f"main.{n}.{m}/agent#1" for n in range(2) for m in range(2)),
        "main.1.0/agent#1",
    ),
    "graph": Body(
        Plan(name="t", steps=GRAPH.steps, on_failure="cascade"),
        ("a/agent#1", "b/agent#1", "c/agent#1"),
        "b/agent#1",
    ),
    "for-each": Body(
        one(
            Repeat(
                body=CALL,
                each=Each(
                    items=LiteralItems(values=("x", "y", "z")), parallel=1, on_item_error="stop"
                ),
            )
        ),
        tuple(f"main[{n}]/agent#1" for n in range(3)),
        "main[1]/agent#1",
    ),
    "stages": Body(
        one(loop(GRAPH, 2, memory=StageOutputs())),
        tuple(f"main.{n}.{name}/agent#1" for n in range(2) for name in "abc"),
        "main.1.b/agent#1",
    ),
    "chat": Body(
        one(CALL, agents=CHAT),
        ("main.0/model#1", "main.0/tool1#1", "main.1/model#1", "main.1/tool1#1", "main.2/model#1"),
        "main.1/model#1",
    ),
}


def spoken(text: str, *tools: str) -> Reply:
    """A turn of a model that says something or uses tools."""
    message = AssistantMessage(parts=(TextPart(text=text),) if text else ())
    calls = tuple(RequestedCall(id=f"c{n}", tool=tool) for n, tool in enumerate(tools))
    return Reply(text, result=encode_turn(ModelTurn(message=message, calls=calls)), usage=USED)


def turn(request: EffectRequested) -> Reply:
    """Two turns that use a tool, then one that says it is done."""
    return spoken("ready") if request.iteration == 3 else spoken("", "look")


def good(request: EffectRequested) -> ScriptedAnswer:
    """An answer for everything that is asked."""
    if "/model#" in request.effect:
        return turn(request)
    return Reply(f"ok {request.effect}", usage=USED if "/agent#" in request.effect else None)


# -- ways of ending --------------------------------------------------------------------------------


def until(body: Body, last: Callable[[Driver], None], plan: Plan | None = None) -> Driver:
    """Answer well until the effect at which the run ends is pending, then let it end."""
    script: Script = lambda request: None if request.effect == body.at else good(request)  # noqa: E731
    driver = Driver(plan or body.plan, script=script)
    driver.start()
    for _ in range(100):
        if body.at in driver.state.pending:
            break
        driver.step()
    assert body.at in driver.state.pending
    last(driver)
    driver.script = good
    driver.run()
    return driver


def by_failure(body: Body) -> Driver:
    return until(body, lambda driver: driver.answer(body.at, BROKEN) and None)


def by_stop(body: Body) -> Driver:
    return until(body, lambda driver: driver.cancel() and None)


def by_deadline(body: Body) -> Driver:
    plan = msgspec.structs.replace(body.plan, limits=Limits(wall_ms=1_000_000))
    return until(body, lambda driver: driver.fire("/deadline#1") and None, plan)


def by_budget(body: Body) -> Driver:
    """The budget is used up by the answers before the effect."""
    paid = [name for name in body.effects[: body.effects.index(body.at)] if "/tool" not in name]
    plan = msgspec.structs.replace(body.plan, limits=Limits(usd=float(len(paid))))
    return Driver(plan, script=good).run()


ENDINGS = {
    "failure": (by_failure, ("failed", "error"), "#2", {}),
    "stop": (by_stop, ("cancelled", "stopped"), "#2", {}),
    "deadline": (by_deadline, ("exhausted", "deadline"), "#2", {}),
    "budget": (by_budget, ("exhausted", "budget"), "#1", {"limits": Limits(usd=100.0)}),
}


def resumed(driver: Driver, mode: str = "continue", **more: object) -> list[AnyEvent]:
    """Resume a run and let it run to its end; the events of that."""
    before = len(driver.events)
    driver.clock += 1
    driver.append(RunReopened(at=driver.clock, mode=mode, **more))  # type: ignore[arg-type]
    driver.run()
    assert event_problems(driver.plan, driver.events) == []
    assert picture(fold(driver.plan, driver.events)) == picture(driver.state)
    return driver.events[before:]


def asked(events: list[AnyEvent]) -> list[str]:
    """The effects that were asked for, without timers."""
    found = [event.effect for event in events if isinstance(event, EffectRequested)]
    return [one for one in found if "deadline#" not in one]


@pytest.mark.item("rec-1", "rec-2", "rec-5")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", BODIES)
def test_a_resumed_run_asks_only_for_what_has_no_answer(kind: str, ending: str) -> None:
    """The effect at which the run ended is asked for again under the next number, then the rest."""
    body, (end, how, number, more) = BODIES[kind], ENDINGS[ending]
    driver = end(body)
    assert (driver.end.outcome, driver.end.reason) == how
    new = resumed(driver, **more)
    first = body.effects.index(body.at)
    again = body.at.removesuffix("#1") + number
    assert asked(new) == [again, *body.effects[first + 1 :]]
    assert driver.end.outcome == "completed"
    spent = [event for event in driver.events if getattr(event, "usage", None) is USED]
    assert driver.state.usage.usd == pytest.approx(len(spent))


@pytest.mark.item("rec-1")
@pytest.mark.parametrize("ending", ["failure", "stop", "deadline"])
@pytest.mark.parametrize("kind", BODIES)
def test_a_run_can_be_resumed_again_and_again(kind: str, ending: str) -> None:
    """Every resume continues at the same place, and no effect has the name of an earlier one."""
    body = BODIES[kind]
    driver = ENDINGS[ending][0](body)
    name = body.at.removesuffix("#1")
    for number in (2, 3):
        driver.script = lambda request: BROKEN if request.effect.startswith(name) else good(request)
        assert asked(resumed(driver)) == [f"{name}#{number}"]
        assert driver.end.outcome == "failed"
    driver.script = good
    assert asked(resumed(driver))[0] == f"{name}#4"
    assert driver.end.outcome == "completed"


@pytest.mark.item("rec-4")
@pytest.mark.parametrize("kind", BODIES)
def test_a_restarted_run_begins_with_its_first_effect(kind: str) -> None:
    """Everything is asked for again, under names of its own."""
    body = BODIES[kind]
    driver = by_failure(body)
    begun = {name.partition(".")[0].partition("/")[0].partition("[")[0] for name in body.effects}
    new = asked(resumed(driver, mode="restart"))
    assert len(new) == len(body.effects)
    if kind == "graph":
        assert new == ["a~2/agent#1", "b~2/agent#1", "c/agent#1"]
    else:
        assert begun == {"main"}
        assert new == [name.replace("main", "main~2", 1) for name in body.effects]
    assert driver.end.outcome == "completed"


# -- what a loop knows -----------------------------------------------------------------------------


def passes(events: list[AnyEvent]) -> list[tuple[int | None, bool]]:
    return [(f.iteration, f.resumed) for f in events if isinstance(f, IterationStarted)]


@pytest.mark.item("rec-1")
def test_a_resumed_loop_knows_what_it_learned() -> None:
    """Iterations 3 and 4 follow, the third begins again, and the log of progress is complete."""
    driver = by_failure(BODIES["single-call"])
    new = resumed(driver)
    assert passes(new) == [(3, True), (4, False)]
    ends = [f.iteration for f in driver.events if isinstance(f, IterationFinished)]
    assert ends == [1, 2, 3, 3, 4]
    driver = by_failure(BODIES["single-call"])
    driver.script = lambda request: None
    driver.clock += 1
    driver.append(RunReopened(at=driver.clock, mode="continue"))
    body = driver.state.owners["main"].body
    assert isinstance(body, RepeatBody)
    assert [line.split("ok ")[1] for line in body.memory.learnings] == [
        "main.0/agent#1",
        "main.1/agent#1",
    ]


@pytest.mark.item("rec-3")
def test_a_loop_at_its_cap_takes_the_next_iteration_with_more_allowed() -> None:
    """What it learned stays, and its iterations count on."""
    action = Repeat(body=CALL, max=2, until=Regex(pattern="DONE"), memory=ProgressLog())
    driver = Driver(one(action), script=good).run()
    assert driver.ended[:2] == ("exhausted", "max_iterations")
    assert passes(resumed(driver, passes=4)) == [(3, False), (4, False)]
    assert driver.ended[:2] == ("exhausted", "max_iterations")


def test_a_nested_loop_at_its_cap_takes_the_next_iteration_with_more_allowed() -> None:
    """The iteration of the loop around it is resumed."""
    inner = Repeat(body=CALL, max=1, until=Regex(pattern="#3|DONE"), at_cap="fail")
    driver = Driver(one(loop(inner, 2)), script=lambda request: Reply("no")).run()
    assert driver.end.outcome == "failed"
    driver.script = lambda request: Reply("DONE")
    new = resumed(driver, passes=3)
    assert asked(new)[0] == "main.0.1/agent#1"
    assert driver.end.outcome == "completed"


def test_a_stalled_loop_gets_as_many_iterations_as_before() -> None:
    """It does not end again at once."""
    action = Repeat(
        body=CALL, max=9, until=Regex(pattern="DONE"), limits=Limits(identical=2), at_cap="complete"
    )
    driver = Driver(one(action), script=lambda request: Reply("same")).run()
    assert driver.ended[:2] == ("exhausted", "stalled")
    assert passes(resumed(driver)) == [(3, False), (4, False)]


# -- checks and people -----------------------------------------------------------------------------


def test_an_iteration_that_has_its_answer_continues_with_its_checks() -> None:
    """The agent is not called again; the check that was under way is run again."""
    action = Repeat(body=CALL, max=2, until=CommandCheck(argv=("check",)))
    plan = one(action, limits=Limits(wall_ms=1_000_000))
    driver = Driver(plan, script=lambda r: None if "check" in r.effect else Reply("ok")).run()
    assert driver.ended[:2] == ("exhausted", "deadline")
    driver.script = lambda request: Reply("ok", code=0)
    assert asked(resumed(driver)) == ["main.0/check0#2"]
    assert driver.end.outcome == "completed"


def test_a_broken_check_is_asked_again() -> None:
    """Under the next number, about the same answer."""
    judge = Judge(agent="judge", on_error="fail")
    driver = Driver(
        one(Repeat(body=CALL, max=2, until=judge)),
        script=lambda r: Fail(detail="down") if "check" in r.effect else Reply("ok"),
    ).run()
    assert driver.end.reason == "check_broken"
    driver.script = lambda r: Reply("", result='{"done":true}')
    new = asked(resumed(driver))
    assert new[0] == "main.0/check0#2"
    assert not any("/agent#" in effect for effect in new)


@pytest.mark.parametrize("ending", ["reject", "stop"])
def test_a_gate_of_an_ended_run_is_asked_again_under_a_new_id(ending: str) -> None:
    """The work that it is about is not done again."""
    action = Repeat(body=CALL, max=2, until=Regex(pattern="DONE"), gate=LoopGate())
    driver = Driver(one(action), script=good).run()
    if ending == "stop":
        driver.cancel()
    else:
        driver.decide("reject")
    driver.people = decisions("approve")
    new = resumed(driver)
    gates = [event.gate for event in driver.events if isinstance(event, GateOpened)]
    assert len(gates) == len(set(gates)) == 2
    assert asked(new) == []
    assert driver.end.outcome == "completed"


def test_a_rejected_question_is_asked_again() -> None:
    """A step that asks a person is such a place too."""
    driver = Driver(one(AskPerson()), people=decisions("reject")).run()
    assert driver.end.reason == "rejected"
    driver.people = decisions("approve")
    resumed(driver)
    assert driver.end.outcome == "completed"


# -- conversations ---------------------------------------------------------------------------------


@pytest.mark.item("rec-1")
def test_only_the_tool_that_was_stopped_is_run_again() -> None:
    """The model is not asked again, and a tool call with an answer keeps it."""

    def script(request: EffectRequested) -> ScriptedAnswer:
        if "/model#" in request.effect:
            return spoken("", "look", "look") if request.iteration == 1 else turn(request)
        return None if "/tool2" in request.effect else Reply("seen")

    driver = Driver(BODIES["chat"].plan, script=script).run()
    driver.cancel()
    assert driver.end.outcome == "cancelled"
    driver.script = lambda r: Reply("seen") if "/tool2#" in r.effect else script(r) or good(r)
    new = asked(resumed(driver))
    assert new[:2] == ["main.0/tool2#2", "main.1/model#1"]


# -- graphs and items ------------------------------------------------------------------------------


def test_items_that_failed_or_never_began_follow_and_others_are_kept() -> None:
    """Side by side, one item fails and the rest are cancelled."""
    each = Each(items=LiteralItems(values=tuple("abcde")), parallel=2, on_item_error="stop")
    plan = one(Repeat(body=CALL, each=each))
    driver = Driver(plan, script=lambda r: BROKEN if r.effect == "main[1]/agent#1" else good(r))
    driver.run()
    assert driver.end.outcome == "failed"
    driver.script = good
    new = resumed(driver)
    assert "main[1]/agent#2" in asked(new)
    ends = [event for event in driver.events if isinstance(event, IterationFinished)]
    ended = [event.path for event in ends if event.status == "completed"]
    assert sorted(ended) == [f"main[{n}]" for n in range(5)]
    assert driver.end.outcome == "completed"


def test_a_command_that_failed_is_run_again_and_skipped_steps_follow() -> None:
    """What a failure left out has its turn now; what completed keeps its result."""
    plan = Plan(
        name="t",
        steps=(
            Step(id="a", action=CALL),
            Step(id="b", action=RunCommand(argv=("make",)), needs=("a",)),
            Step(id="c", action=CALL, needs=("b",)),
        ),
    )
    driver = Driver(plan, script=lambda r: Reply("", code=2) if "command" in r.effect else good(r))
    driver.run()
    driver.script = lambda r: Reply("", code=0)
    new = resumed(driver)
    assert asked(new) == ["b/command#2", "c/agent#1"]
    assert [f.path for f in new if isinstance(f, StepStarted)] == ["b", "c"]


def test_an_older_log_is_read_as_it_was_written() -> None:
    """Without a mode, the loop begins anew under another name."""
    driver = by_failure(BODIES["single-call"])
    assert asked(resumed(driver, mode=""))[0] == "main~2.0/agent#1"


def test_a_cancelled_run_is_not_reopened_without_a_mode() -> None:
    """In older logs it has ended for good."""
    driver = by_stop(BODIES["single-call"])
    driver.append(RunReopened(at=driver.clock))
    assert driver.end.outcome == "cancelled"


@pytest.mark.parametrize("limit", ["loop", "step", "wall-clock"])
def test_time_limits_count_anew(limit: str) -> None:
    """A run that a time limit ended does not end again at once."""
    limits = {
        "loop": Limits(wall_ms=50),
        "step": Limits(),
        "wall-clock": Limits(ends_at=1_100),
    }[limit]
    action = Repeat(body=CALL, max=2, until=Regex(pattern="DONE"), limits=limits, at_cap="complete")
    step = Step(id="main", action=action, limits=Limits(wall_ms=50 if limit == "step" else None))
    driver = Driver(Plan(name="t", steps=(step,)), script=lambda request: None).run()
    assert driver.end.reason == "deadline"
    driver.script = good
    resumed(driver)
    assert driver.end.outcome == "completed"


def test_another_time_limit_replaces_the_one_that_was_reached() -> None:
    """Of the loop whose time was up."""
    action = Repeat(body=CALL, max=2, until=Regex(pattern="DONE"), limits=Limits(wall_ms=50))
    driver = Driver(one(action), script=lambda request: None).run()
    driver.clock += 1
    driver.append(RunReopened(at=driver.clock, mode="continue", time_ms=500))
    [timer] = driver.timers()
    assert timer.call.until == driver.clock + 500


def test_a_new_budget_renews_what_a_place_inside_has_used_up() -> None:
    """A limit of a loop would otherwise end it again at once."""
    action = Repeat(
        body=CALL, max=4, until=Regex(pattern="DONE"), limits=Limits(usd=2), at_cap="complete"
    )
    driver = Driver(one(action), script=good).run()
    assert driver.end.reason == "budget"
    assert passes(resumed(driver, limits=Limits(usd=50))) == [(3, False), (4, False)]
    assert driver.end.outcome == "completed"


@pytest.mark.item("rec-1")
@pytest.mark.parametrize("earlier", [1, 2])
def test_a_check_that_was_cut_off_after_an_unclear_one_is_asked_under_a_new_number(
    earlier: int,
) -> None:
    """The unclear check is asked first then, and each has its own numbers."""
    judges = tuple(Judge(agent="worker", prompt=()) for _ in range(2))
    plan = one(Repeat(body=CALL, max=1, until=AnyOf(parts=judges), at_cap="complete"))
    first, second = "main.0/check0", "main.0/check1"

    def unclear(request: EffectRequested) -> ScriptedAnswer:
        if request.effect.startswith(first):
            return BROKEN
        return None if request.effect.startswith(second) else Reply("ok")

    driver = Driver(plan, script=unclear)
    driver.run()
    driver.cancel()
    driver.run()
    for _ in range(1, earlier):
        resumed_and_cut_off(driver)
    done = '{"done": true}'
    driver.script = lambda request: Reply("", result=done if "check1" in request.effect else "{}")
    resumed(driver)
    names = asked(driver.events)
    assert len(names) == len(set(names))
    number = earlier + 1
    assert names[-2:] == [f"{first}#{number}", f"{second}#{number}"]
    assert driver.end.outcome == "completed"


def resumed_and_cut_off(driver: Driver) -> None:
    """Resume a run that then waits for an effect, and stop it there."""
    driver.clock += 1
    driver.append(RunReopened(at=driver.clock, mode="continue"))
    driver.run()
    driver.cancel()
    driver.run()
