"""What is open inside a step when it is tried again."""

from __future__ import annotations

from msgspec.structs import replace

from loopwright.kernel.event_parts import LookupCall
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateClosed,
    MessageSent,
    StepRetried,
)
from loopwright.model.actions import CallAgent, LoopGate, Repeat, Step, Steps
from loopwright.model.checks import Signal
from loopwright.model.policy import Limits, Retry
from tests.kernel.driving import Driver, Fail, plan_of, plan_of_steps
from tests.kernel.invariants import broken_laws

CODER = CallAgent(agent="coder")
TIMED = Repeat(body=CODER, max=1, at_cap="complete", limits=Limits(wall_ms=60))
GATED = Repeat(body=CODER, max=2, until=Signal(word="DONE"), gate=LoopGate())
TWICE = Retry(attempts=2, on=("any",))


def without_artifact(repeat: Repeat) -> Driver:
    """A loop that has to leave an artifact; its agent has made one iteration."""
    driver = Driver(plan_of_steps(Step(id="main", action=repeat, needs_artifact=True))).start()
    driver.answer("main.0/agent#1", "Code.")
    return driver


def try_again(driver: Driver) -> None:
    """Let a person try the loop again after a look that found no artifact."""
    driver.answer("main/artifact#1", 1)
    (gate,) = (one for one in driver.open_gates() if one.path == "main")
    driver.append(driver.decision_event(gate, "continue"))
    driver.answer("main/artifact#2", 1)


def as_earlier_versions(driver: Driver, closing: type[AnyEvent]) -> Driver:
    """The same run, recorded by a version that closed nothing before the step was retried."""
    (retried,) = (n for n, one in enumerate(driver.events) if isinstance(one, StepRetried))
    kept = [
        event
        for n, event in enumerate(driver.events)
        if n > retried or not isinstance(event, closing)
    ]
    assert len(kept) < len(driver.events)
    return Driver(driver.plan, events=kept).start()


def test_time_limit_of_a_loop_when_the_loop_is_tried_again_begins_anew() -> None:
    """The timer of the first try is withdrawn."""
    driver = without_artifact(TIMED)
    try_again(driver)
    (withdrawn,) = driver.of(EffectFailed)
    assert isinstance(withdrawn, EffectFailed)
    assert withdrawn.effect == "main/loop-deadline#1"
    assert sorted(driver.state.pending) == ["main~2.0/agent#1", "main~2/loop-deadline#1"]
    assert broken_laws(driver.events, ended=False) == []


def test_timer_of_an_earlier_try_when_its_loop_has_ended_changes_nothing() -> None:
    """A run that an earlier version recorded can still end."""
    later = Step(id="later", action=CODER, needs=("main",))
    plan = plan_of_steps(Step(id="main", action=TIMED, needs_artifact=True), later)
    driver = Driver(plan).start()
    driver.answer("main.0/agent#1", "Code.")
    try_again(driver)
    earlier = as_earlier_versions(driver, EffectFailed)
    earlier.answer("main~2.0/agent#1", "Code.")
    earlier.answer("main~2/artifact#1", 0)
    assert sorted(earlier.state.pending) == ["later/agent#1", "main/loop-deadline#1"]
    earlier.fire("main/loop-deadline#1")
    earlier.answer("later/agent#1", "Done.")
    assert earlier.end.outcome == "completed"


def test_gate_of_an_iteration_when_its_loop_is_tried_again_is_closed() -> None:
    """The time of the loop is up while a person is asked about its first iteration."""
    timed = replace(GATED, limits=Limits(wall_ms=60))
    driver = Driver(plan_of(timed, retry=TWICE, outcome="partial")).start()
    driver.answer("main.0/agent#1", "Code.")
    (gate,) = driver.open_gates()
    new = driver.fire("main/loop-deadline#1")
    assert closed_before_the_next_try(new) == [gate.gate]
    assert driver.open_gates() == []
    driver.answer("main~2.0/agent#1", "Code.")
    assert [gate.path for gate in driver.open_gates()] == ["main~2.0"]
    assert broken_laws(driver.events, ended=False) == []


def test_gate_of_an_iteration_when_the_graph_around_its_loop_is_tried_again_is_closed() -> None:
    """Another step of the graph fails while a person is asked."""
    steps = (Step(id="loop", action=GATED), Step(id="other", action=CODER))
    driver = Driver(plan_of(Steps(steps=steps, on_failure="abort"), retry=TWICE)).start()
    driver.answer("main.loop.0/agent#1", "Code.")
    (gate,) = driver.open_gates()
    new = driver.answer("main.other/agent#1", Fail("agent"))
    assert closed_before_the_next_try(new) == [gate.gate]
    assert driver.open_gates() == []
    assert sorted(driver.state.pending) == ["main~2.loop.0/agent#1", "main~2.other/agent#1"]
    assert broken_laws(driver.events, ended=False) == []


def closed_before_the_next_try(new: list[AnyEvent]) -> list[str]:
    (retried,) = (n for n, event in enumerate(new) if isinstance(event, StepRetried))
    return [event.gate for event in new[:retried] if isinstance(event, GateClosed)]


def stop_message(driver: Driver) -> MessageSent:
    """A message that stops the loop."""
    return MessageSent(
        at=driver.clock,
        path="",
        to="main",
        text="Stop.",
        sender="ann",
        message="m1",
        intent="cancel",
    )


def stopped_at_a_gate() -> Driver:
    """A loop that a message stops while a person is asked about its first iteration."""
    driver = without_artifact(GATED)
    assert [gate.path for gate in driver.open_gates()] == ["main.0"]
    driver.append(stop_message(driver))
    return driver


def test_gate_of_an_earlier_try_when_it_is_answered_changes_nothing() -> None:
    """Earlier versions asked a stopped loop for an artifact, and tried it again."""
    driver = without_artifact(GATED)
    (gate,) = driver.open_gates()
    lookup = EffectRequested(
        at=driver.clock, path="main", effect="main/artifact#1", call=LookupCall(since=0)
    )
    recorded = [
        *driver.events,
        stop_message(driver),
        lookup,
        EffectDone(at=driver.clock, path="main", effect=lookup.effect, code=1),
        StepRetried(at=driver.clock, path="main", attempt=2),
        driver.decision_event(gate, "approve"),
    ]
    earlier = Driver(driver.plan, events=recorded).start()
    assert earlier.ended == ("completed", "cancelled", "cancelled")


def test_loop_that_a_message_stops_when_an_artifact_is_required_completes_without_one() -> None:
    """No artifact is looked for, and no person is asked for one."""
    driver = stopped_at_a_gate()
    assert driver.open_gates() == []
    assert list(driver.state.pending) == []
    assert driver.ended == ("completed", "cancelled", "cancelled")
    assert broken_laws(driver.events, ended=True) == []
