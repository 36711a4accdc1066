"""The laws of the kernel over random plans and random worlds."""

from __future__ import annotations

import random
import re
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from loopwright.kernel.decide import settle
from loopwright.kernel.event_parts import AgentCall, CommandCall, SleepCall
from loopwright.kernel.events import (
    EffectRequested,
    GateOpened,
    IterationStarted,
    StepFinished,
    StepSkipped,
    Usage,
)
from loopwright.kernel.fold import apply, fold
from loopwright.model.actions import Decision, Repeat, Steps
from loopwright.model.ids import iteration_number, last_id, parent_path
from loopwright.model.plan import Coordinator, Plan
from tests.kernel.driving import Driver, Fail, People, Reply, Script, ScriptedAnswer, without_time
from tests.kernel.invariants import broken_laws
from tests.model.plans import runnable_plans
from tests.support.laws.messages import letters
from tests.support.laws.run import steps_left_open

AGENT: list[ScriptedAnswer] = [
    Reply("still trying", session="s"),
    Reply("trying", usage=Usage(5, 5, 0.1)),
    Reply("good work\nDONE", usage=Usage(10, 10, 0.2)),
    Reply('see {"ok": 1}', usage=Usage(1, 1, 0.01)),
    Reply("as told", result='{"ok": true, "done": true}'),
    Reply("as told", result='{"ok": "true", "done": "true"}'),
    Fail("bad_result"),
    Reply("trying"),
    Fail("agent"),
    Fail("rate_limited", retry_after_ms=30),
    None,
]
FORWARD = '{"tools": [{"name": "forward_to_agent", "args": {"target_step_id": "%s", "text": "x"}}]}'
LISTENER: list[ScriptedAnswer] = [
    *[Reply(FORWARD % name) for name in ("s0", "s1", "s2", "main", "nobody")],
    Reply("So far so good."),
    Reply(""),
    Fail("exit"),
    Fail("overloaded"),
    None,
]
PROGRAM: list[ScriptedAnswer] = [
    Reply("built", code=0),
    Reply("2 failed", code=1),
    Fail("wall_timeout"),
    Fail("not_found"),
    None,
]
PERSON: list[tuple[Decision, str] | None] = [
    ("approve", ""),
    ("reject", "no"),
    ("continue", "more"),
    None,
]


def world(seed: int, *, patient: bool = False) -> tuple[Script, People]:
    """Answers that are a function of a seed and what is asked; a patient world always answers."""

    def pick(rows: list[object], name: str) -> object:
        choices = rows[:-1] if patient else rows
        return choices[zlib.crc32(f"{seed}:{name}".encode()) % len(choices)]

    def script(request: EffectRequested) -> ScriptedAnswer:
        rows = AGENT if isinstance(request.call, AgentCall) else PROGRAM
        assert isinstance(request.call, AgentCall | CommandCall)
        if isinstance(request.call, AgentCall) and request.call.role in ("coordinator", "reply"):
            rows = LISTENER
        return pick(list(rows), request.effect)

    def people(gate: GateOpened) -> tuple[Decision, str] | None:
        decided = pick(list(PERSON), gate.gate)
        # A person who always asks for more would never let a loop end.
        if decided == ("continue", "more") and seed % 3 == 0:
            return ("approve", "")
        return decided

    return script, people


def driver(plan: Plan, seed: int, **more: object) -> Driver:
    script, people = world(seed)
    return Driver(plan, script, people, **more)


SEEDS = st.integers(0, 2**16)
FEW = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
MANY = settings(max_examples=2_000, suppress_health_check=[HealthCheck.too_slow])


def at_rest(plan: Plan, seed: int) -> Driver:
    """A run that went as far as it can; a gate at the cap may go round a few times at most."""
    return driver(plan, seed).run(most=400)


# -- each law as a function of one example ---------------------------------------------------------


def law_of_order(plan: Plan, seed: int) -> None:
    run = at_rest(plan, seed)
    assert broken_laws(run.events, ended=run.state.finished is not None) == []
    assert list(letters(run.events, ended=run.state.finished is not None)) == []
    assert list(steps_left_open(plan, run.events)) == []
    assert run.state.ignored == 0
    if run.state.finished is None:
        assert run.state.pending or run.state.gates, "nothing is awaited, yet it is not at its end"


def law_of_determinism(plan: Plan, seed: int) -> None:
    one, two = at_rest(plan, seed), at_rest(plan, seed)
    assert one.events == two.events


def law_of_quiescence(plan: Plan, seed: int) -> None:
    run = at_rest(plan, seed)
    assert settle(run.state, run.texts, run.clock) == []
    for end in run.ends:
        state = fold(plan, run.events[:end])
        assert settle(state, run.texts, run.events[end - 1].at) == []
        assert settle(state, run.texts, run.events[end - 1].at) == []


def law_of_crashes(plan: Plan, seed: int, *, exactly: bool, one_by_one: bool = False) -> None:
    run = at_rest(plan, seed)
    boundaries = set(run.ends)
    for length in range(1, len(run.events)):
        again = run.cut(length).run(most=400)
        assert broken_laws(again.events, ended=again.state.finished is not None) == []
        where = f"cut after {length}: {run.events[length - 1]}"
        if length in boundaries or one_by_one:
            assert summary(again) == summary(run), where
        else:  # in the middle of an append: a failure may overtake what was just about to begin
            assert (again.state.finished is None) == (run.state.finished is None), where
        if exactly and length in boundaries:
            assert without_time(again.events) == without_time(run.events)


def summary(run: Driver) -> object:
    """What a run came to, or what it waits for."""
    if run.state.finished is not None:
        end = run.state.finished
        passes = sum(isinstance(event, IterationStarted) for event in run.events)
        return end.outcome, end.reason, run.texts.read(end.output), end.error, passes
    return sorted(run.state.pending), sorted(run.state.gates)


def law_of_one_answer(plan: Plan, seed: int) -> None:
    run = driver(plan, seed).start()
    plain = at_rest(plan, seed)
    given_before: list[object] = []
    for _ in range(400):
        known = len(run.events)
        if not run.step():
            break
        given_before.append(run.events[known])
        for old in (given_before[0], given_before[-1]):
            state = run.state
            before = state.ignored
            apply(state, old)
            assert state.ignored == before + 1
            assert settle(state, run.texts, run.clock) == []
    assert without_time(run.events) == without_time(plain.events)


def law_of_life(plan: Plan, seed: int) -> None:
    """Where everyone answers, in whichever order, every run comes to its end."""
    script, people = world(seed, patient=True)
    run = Driver(plan, script, people, order=random.Random(seed).randrange).run(most=2_000)
    assert run.state.finished is not None, f"forgotten: {run.events[-3:]}"
    assert broken_laws(run.events) == []
    assert (run.state.agents.calls, run.state.pending, run.state.gates) == (0, {}, {})


def law_of_stops(plan: Plan, seed: int) -> None:
    run = at_rest(plan, seed)
    for end in run.ends:
        stopped = run.cut(end)
        if stopped.state.finished is None:
            stopped.cancel()
            assert stopped.ended[:2] == ("cancelled", "stopped")
            assert broken_laws(stopped.events) == []


def law_of_pauses(plan: Plan, seed: int) -> None:
    """Paused and resumed around any answer, a run in a quiet world ends as without."""
    run = at_rest(plan, seed)
    rng = random.Random(seed)
    again = driver(plan, seed).start()
    for _ in range(400):
        if rng.random() < 0.3 and again.state.finished is None:
            again.pause()
            again.step()
            if again.state.finished is None:
                again.resume()
        elif not again.step():
            break
    assert broken_laws(again.events, ended=again.state.finished is not None) == []
    if plan.parallel is None and not any(isinstance(f.call, SleepCall) for f in requests(run)):
        assert summary(again)[:2] == summary(run)[:2]


def requests(run: Driver) -> list[EffectRequested]:
    return [event for event in run.events if isinstance(event, EffectRequested)]


def law_of_caps(plan: Plan, seed: int) -> None:
    run = at_rest(plan, seed)
    limits = dict(caps("", plan.steps))
    for event in run.events:
        if isinstance(event, IterationStarted) and iteration_number(event.path) >= 0:
            most = limits[pattern(parent_path(event.path))]
            granted = sum(
                getattr(one, "decision", "") == "continue" and one.path == parent_path(event.path)
                for one in run.events
            )
            assert most is None or event.iteration <= most + granted


AGAIN = re.compile(r"~\d+")


def pattern(path: str) -> str:
    """A path without its numbers."""
    kept = []
    path = AGAIN.sub("", path)
    while path:
        inside = path.endswith("]") or last_id(path).lstrip("-").isdigit()
        kept.append("*" if inside else last_id(path))
        path = parent_path(path)
    return "/".join(reversed(kept))


def caps(prefix: str, steps: tuple[object, ...]) -> list[tuple[str, int | None]]:
    found: list[tuple[str, int | None]] = []
    for step in steps:
        found += _caps_of(f"{prefix}/{step.id}".lstrip("/"), step.action)
    return found


def _caps_of(path: str, action: object) -> list[tuple[str, int | None]]:
    if isinstance(action, Repeat):
        return [(path, action.max), *_caps_of(f"{path}/*", action.body)]
    return caps(path, action.steps) if isinstance(action, Steps) else []


LAWS = {
    "order": law_of_order,
    "determinism": law_of_determinism,
    "quiescence": law_of_quiescence,
    "one answer": law_of_one_answer,
    "life": law_of_life,
    "stops": law_of_stops,
    "pauses": law_of_pauses,
    "caps": law_of_caps,
}


@pytest.mark.item("inv-3", "inv-26")
@FEW
@given(plan=runnable_plans(), seed=SEEDS)
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
def test_law(law: object, plan: Plan, seed: int) -> None:
    """Any plan in any world keeps the law."""
    law(plan, seed)


@FEW
@given(plan=runnable_plans(sequential=True), seed=SEEDS)
def test_crash_anywhere_in_a_sequential_run(plan: Plan, seed: int) -> None:
    """Cut after any event, a sequential run goes on with the very same events."""
    law_of_crashes(plan, seed, exactly=True, one_by_one=True)


@FEW
@given(plan=runnable_plans(), seed=SEEDS)
def test_crash_anywhere_in_a_parallel_run(plan: Plan, seed: int) -> None:
    """Cut after any event, a run comes to the same end."""
    law_of_crashes(plan, seed, exactly=plan.parallel is None)


def listened_to(plan: Plan) -> Plan:
    """A plan with a coordinator that has little patience."""
    return replace(plan, coordinator=Coordinator(agent="lead", max_calls=5, hold_ms=50))


@FEW
@given(plan=runnable_plans().map(listened_to), seed=SEEDS)
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
def test_law_with_a_coordinator(law: object, plan: Plan, seed: int) -> None:
    """The same where a coordinator listens and writes to whoever may be there."""
    law(plan, seed)


@FEW
@given(plan=runnable_plans(sequential=True).map(listened_to), seed=SEEDS)
def test_crash_anywhere_with_a_coordinator(plan: Plan, seed: int) -> None:
    """Cut after any event, steps and messages come to an end by the same laws."""
    run = at_rest(plan, seed)
    for length in range(1, len(run.events)):
        again = run.cut(length).run(most=400)
        ended = again.state.finished is not None
        assert broken_laws(again.events, ended=ended) == []
        assert list(letters(again.events, ended=ended)) == []
        assert outcomes(again) == outcomes(run)


def outcomes(run: Driver) -> object:
    """How the run and every step ended, without what was said about it."""
    end = run.state.finished
    steps = {f.path: f.status for f in run.events if isinstance(f, StepFinished | StepSkipped)}
    return (end.outcome, end.reason, steps) if end else steps


@pytest.mark.deep
@pytest.mark.timeout(1_800)
@MANY
@given(plan=runnable_plans(), seed=SEEDS)
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
def test_law_deeply(law: object, plan: Plan, seed: int) -> None:
    """The same with many more plans and worlds."""
    law(plan, seed)


@pytest.mark.deep
@pytest.mark.timeout(1_800)
@MANY
@given(sequential=st.booleans(), data=st.data(), seed=SEEDS)
def test_crash_anywhere_deeply(sequential: bool, data: st.DataObject, seed: int) -> None:
    """The same for crashes."""
    plan = data.draw(runnable_plans(sequential=sequential))
    law_of_crashes(plan, seed, exactly=plan.parallel is None, one_by_one=sequential)
