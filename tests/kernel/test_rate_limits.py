"""Rate limits: the call waits until the stated time, which does not count as an attempt."""

from __future__ import annotations

import pytest

from loopwright.kernel.effects import (
    LEAST_PARK_MS,
    MOST_PARKS,
    MOST_SHORTAGE_MS,
    MOST_SHORTAGES,
    SHORTAGE,
    parked_until,
)
from loopwright.kernel.event_parts import Failure, SleepCall
from loopwright.kernel.events import EffectRequested, IterationStarted, Usage
from loopwright.model.actions import CallAgent, Repeat
from loopwright.model.checks import CommandCheck, Judge
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import Limits, Retry
from tests.kernel.driving import Driver, Fail, Reply, ScriptedAnswer, by_effect, drive, plan_of
from tests.kernel.invariants import broken_laws

WORK = CallAgent(agent="a")
LATER = 500_000
FULL = Fail("rate_limited", resets_at=LATER)


def loop(**more: object) -> Plan:
    return plan_of(Repeat(**{"body": WORK, "max": 2, **more}))


def sleeps(run: Driver) -> list[tuple[str, int]]:
    """Every wait that was asked for, and until when."""
    asked = [event for event in run.events if isinstance(event, EffectRequested)]
    return [(f.effect, f.call.until) for f in asked if isinstance(f.call, SleepCall)]


@pytest.mark.parametrize(
    ("failure", "parks", "until"),
    [
        pytest.param(Failure("rate_limited", resets_at=9_000), 0, 9_000, id="a time is named"),
        pytest.param(Failure("rate_limited", resets_at=1), 0, 5 + LEAST_PARK_MS, id="in the past"),
        pytest.param(Failure("rate_limited"), 0, None, id="no time is named"),
        pytest.param(Failure("overloaded", resets_at=9_000), 0, None, id="another failure"),
        pytest.param(Failure(SHORTAGE), 0, 5 + LEAST_PARK_MS, id="a shortage of the host"),
        pytest.param(Failure(SHORTAGE), 30, 5 + MOST_SHORTAGE_MS, id="a long shortage"),
        pytest.param(Failure(SHORTAGE), MOST_SHORTAGES, None, id="an endless shortage"),
        pytest.param(Failure("rate_limited", resets_at=9), MOST_PARKS, None, id="again and again"),
    ],
)
def test_until_when(failure: Failure, parks: int, until: int | None) -> None:
    """Only a rate limit with a time parks a call, never for nothing, and not for ever."""
    assert parked_until(failure, parks=parks, now=5) == until


def test_a_parked_call_is_no_iteration_and_no_try() -> None:
    """The call goes on when the allowance is renewed, in the same iteration, though one try is
    all.
    """
    run = drive(loop(), by_effect({"main.0/agent#1": FULL, "main.0/agent#2": FULL}, "ok"))
    assert run.ended == ("exhausted", "max_iterations", "ok")
    assert len(run.of(IterationStarted)) == 2
    assert sleeps(run)[0] == ("main.0/backoff#1", LATER)
    assert [effect for effect, _ in sleeps(run)] == ["main.0/backoff#1", "main.0/backoff#2"]
    assert not broken_laws(run.events)


def test_tries_that_count_are_counted_apart() -> None:
    """After a wait for the allowance a step still has all its tries, and no more than those."""
    plan = plan_of(Repeat(body=WORK, max=1), retry=Retry(attempts=2, base_ms=1))
    busy = Fail("overloaded")
    answers: dict[str, ScriptedAnswer | str | int] = {
        "main.0/agent#1": FULL,
        "main.0/agent#2": busy,
        "main.0/agent#3": FULL,
        "main.0/agent#4": busy,
    }
    run = drive(plan, by_effect(answers, "ok"))
    assert run.ended[:2] == ("failed", "error")
    assert [effect for effect, _ in sleeps(run)] == [f"main.0/backoff#{n}" for n in (1, 2, 3)]
    assert not broken_laws(run.events)


def test_a_provider_that_puts_us_off_for_ever_has_failed() -> None:
    """The call fails after so many waits, and is tried after each of them."""
    run = drive(loop(), by_effect({}, FULL))
    assert run.ended[:2] == ("failed", "error")
    assert len(sleeps(run)) == MOST_PARKS
    assert run.end.error is not None
    assert run.end.error.type == "rate_limited"


def test_a_time_limit_holds_while_a_call_is_parked() -> None:
    """A run whose time is over does not wait for the allowance."""
    run = drive(loop(limits=Limits(wall_ms=10_000)), by_effect({"main.0/agent#1": FULL}, "ok"))
    assert run.ended[:2] == ("exhausted", "deadline")
    assert run.end.at < LATER


def test_a_parked_judge_is_asked_again() -> None:
    """A judge that met the limit has not judged: the same iteration is judged when it can be."""
    plan = loop(until=Judge(agent="judge"))
    yes = Reply(text="fine", result='{"done": true, "reason": "x"}')
    answers: dict[str, ScriptedAnswer | str | int] = {
        "main.0/check0#1": FULL,
        "main.0/check0#2": Fail("bad_result"),
        "main.0/check0#3": yes,
    }
    run = drive(plan, by_effect(answers, "ok"))
    assert run.ended[:2] == ("completed", "judge")
    assert sleeps(run) == [("main.0/park#1", LATER)]


def test_a_parked_judge_stops_with_its_run() -> None:
    """A time limit ends the wait of a judge like any other."""
    plan = loop(until=Judge(agent="judge"), limits=Limits(wall_ms=10_000))
    run = drive(plan, by_effect({"main.0/check0#1": FULL}, "ok"))
    assert run.ended[:2] == ("exhausted", "deadline")
    assert not broken_laws(run.events)


def test_a_shortage_of_the_host_is_neither_an_iteration_nor_an_attempt() -> None:
    """Agents and check commands are started again when the machine can, with growing waits."""
    plan = loop(until=CommandCheck(argv=("t",)), max=1)
    lack = Fail(SHORTAGE)
    answers: dict[str, ScriptedAnswer | str | int] = {
        "main.0/agent#1": lack,
        "main.0/agent#2": lack,
        "main.0/agent#3": "ok",
        "main.0/check0#1": lack,
        "main.0/check0#2": 0,
    }
    run = drive(plan, by_effect(answers, "ok"))
    assert run.ended[0] == "completed"
    assert len(run.of(IterationStarted)) == 1
    assert [effect for effect, _ in sleeps(run)] == [
        "main.0/backoff#1",
        "main.0/backoff#2",
        "main.0/park#1",
    ]
    assert not broken_laws(run.events)


# -- sessions --------------------------------------------------------------------------------------


def sessions(
    answers: dict[str, ScriptedAnswer | str | int], plan: Plan
) -> dict[str, tuple[str, Usage]]:
    """The sessions of the loop after these answers, by the spec of their agent."""
    run = Driver(plan, by_effect(answers, None)).run()
    found = run.state.owners["main"].body.memory.sessions
    return {spec: (session.id, session.used) for spec, session in found.items()}


def test_a_session_adds_up_what_it_used() -> None:
    """What a session has used is known as long as it goes on; a new one begins at nothing."""
    plan = plan_of(Repeat(body=WORK, max=9), agents={"a": Agent(spec="codex")})
    first = Reply("x", session="s1", usage=Usage(10, 2, 0.5))
    more = Reply("x", session="s1", usage=Usage(5, 1, 0.25))
    other = Reply("x", session="s2")
    table: dict[str, ScriptedAnswer | str | int] = {"main.0/agent#1": first, "main.1/agent#1": more}
    assert sessions(table, plan) == {"codex": ("s1", Usage(15, 3, 0.75))}
    table["main.2/agent#1"] = other
    assert sessions(table, plan) == {"codex": ("s2", Usage())}


def test_the_session_of_a_judge_is_its_own() -> None:
    """What a judge says about its session does not touch that of the worker."""
    plan = loop(until=Judge(agent="judge"))
    no = Reply(text="no", result='{"done": false, "reason": "x"}', session="judge-1")
    table: dict[str, ScriptedAnswer | str | int] = {
        "main.0/agent#1": Reply("x", session="worker-1"),
        "main.0/check0#1": no,
    }
    assert sessions(table, plan) == {"": ("worker-1", Usage())}
