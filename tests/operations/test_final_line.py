"""The final line of a run: one format for every outcome."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from loopwright.kernel.event_parts import DiffStat, Snapshot
from loopwright.kernel.events import CancelRequested, RunForked, RunPaused, RunReopened, Usage
from loopwright.kernel.fold import fold
from loopwright.kernel.state import State
from loopwright.model.actions import CallAgent, LoopGate, Repeat, RunCommand, Step
from loopwright.model.checks import AllOf, AnyOf, Check, CommandCheck, Contains, PersonCheck, Signal
from loopwright.model.policy import Limits, WorkspacePolicy
from loopwright.model.record import literal
from loopwright.views.formats import without_signs
from loopwright.views.iterations import history_of
from loopwright.views.status_text import resumed_words
from loopwright.views.summary import FIRST_TOKEN, cost, elapsed, final_line
from tests.kernel.driving import (
    Driver,
    Fail,
    Reply,
    by_effect,
    by_iteration,
    decisions,
    drive,
    plan_of,
    plan_of_steps,
)

CALL = CallAgent(agent="coder", prompt=literal("Make the tests pass."))
TESTS = CommandCheck(argv=("pytest", "-q"))
SPENT = Usage(input_tokens=100, output_tokens=20, usd=0.445)


def loop(until: Check = TESTS, most: int = 5, **more: object) -> Repeat:
    return Repeat(body=CALL, max=most, until=until, **more)  # type: ignore[arg-type]


def stopped(by: str, after: int = 0) -> Driver:
    driver = Driver(plan_of(loop())).start()
    for number in range(after):
        driver.answer(f"main.{number}/agent#1", "x")
        driver.answer(f"main.{number}/check0#1", Reply("no", code=1))
    driver.append(CancelRequested(at=driver.clock, by=by))
    return driver


def paused() -> Driver:
    driver = Driver(plan_of(loop(gate=LoopGate(message=literal("Good?")), until=Signal(word="X"))))
    driver.start().answer("main.0/agent#1", "draft")
    driver.pause()
    return driver


GRAPH = plan_of_steps(
    Step(id="a", action=CALL),
    Step(id="b", action=RunCommand(argv=("make",)), needs=("a",)),
)
ENDINGS: dict[str, tuple[Callable[[], Driver], str]] = {
    "completed": (
        lambda: drive(
            plan_of(loop()),
            by_iteration(Reply("a", usage=SPENT), Reply("b", usage=SPENT), commands=(1, 0)),
        ),
        "✓ Completed in 2 iterations · 0.0 s · $0.89 · pytest -q passed",
    ),
    "one iteration": (
        lambda: drive(plan_of(loop(Signal(word="DONE"))), by_iteration("DONE")),
        "✓ Completed in 1 iteration · 0.0 s · agent signalled completion",
    ),
    "several checks": (
        lambda: drive(
            plan_of(loop(AllOf(parts=(Contains(text="ok"), TESTS)))),
            by_iteration("ok", commands=(0,)),
        ),
        "✓ Completed in 1 iteration · 0.0 s · output contains 'ok' · pytest -q passed",
    ),
    "one of several checks": (
        lambda: drive(
            plan_of(loop(AnyOf(parts=(TESTS, Contains(text="ok"))))),
            by_iteration("ok", commands=(1,)),
        ),
        "✓ Completed in 1 iteration · 0.0 s · output contains 'ok'",
    ),
    "approved": (
        lambda: drive(plan_of(loop(PersonCheck())), by_iteration("x"), decisions("approve")),
        "✓ Completed in 1 iteration · 0.0 s · approved by ann",
    ),
    "limit": (
        lambda: drive(plan_of(loop(most=3)), by_iteration("x", commands=(1,))),
        "■ Stopped at the limit of 3 iterations · 0.0 s · pytest -q failed (exit code 1)",
    ),
    "budget": (
        lambda: drive(
            plan_of(loop(), limits=Limits(usd=0.4)),
            by_iteration(Reply("x", usage=SPENT), commands=(1,)),
        ),
        "■ Stopped by the budget in iteration 1 of 5 · 0.0 s · $0.45 · pytest -q failed",
    ),
    "stopped later": (
        lambda: stopped("root", after=1),
        "■ Stopped by root in iteration 2 of 5 · 0.0 s · "
        "not checked in iteration 2 (iteration 1: pytest -q failed)",
    ),
    "failed later": (
        lambda: drive(plan_of(loop()), by_iteration("a", Fail("exit", "code 3"), commands=(1,))),
        "✗ Failed in iteration 2 of 5: code 3 · 0.0 s · "
        "not checked in iteration 2 (iteration 1: pytest -q failed)",
    ),
    "failed": (
        lambda: drive(plan_of(loop()), lambda _: Fail("exit", "code 3\nand more")),
        "✗ Failed in iteration 1 of 5: code 3 · 0.0 s",
    ),
    "rejected": (
        lambda: drive(plan_of(loop(PersonCheck())), by_iteration("x"), decisions("reject")),
        "✗ Failed in iteration 1 of 5: rejected by ann · 0.0 s",
    ),
    "stopped": (lambda: stopped("root"), "■ Stopped by root in iteration 1 of 5 · 0.0 s"),
    "stopped by the first token": (
        lambda: stopped(FIRST_TOKEN),
        "■ Stopped by the first administrator in iteration 1 of 5 · 0.0 s",
    ),
    "paused": (paused, "‖ Paused in iteration 1 of 5 · 0.0 s"),
    "waiting": (
        lambda: drive(plan_of(loop(PersonCheck())), by_iteration("x")),
        "? Waiting for a decision in iteration 1 of 5 · 0.0 s",
    ),
    "running": (
        lambda: Driver(plan_of(loop())).start(),
        "▶ Running iteration 1 of 5 · 0.0 s",
    ),
    "graph": (lambda: drive(GRAPH, by_effect({})), "✓ Completed 2 steps · 0.0 s"),
    "failed graph": (
        lambda: drive(GRAPH, by_effect({"b/command#1": Fail("exit", "no rule")})),
        "✗ Failed after 1 of 2 steps: step 'b' failed: no rule · 0.0 s",
    ),
    "single step": (lambda: drive(plan_of(CALL), by_iteration("x")), "✓ Completed · 0.0 s"),
}


@pytest.mark.item("rec-36")
@pytest.mark.parametrize("ending", ENDINGS)
def test_every_outcome_has_the_same_format(ending: str) -> None:
    """Sign, outcome with iterations or steps, time, cost and checks, in this order."""
    make, expected = ENDINGS[ending]
    assert final_line(make().state).startswith(expected)


def test_the_time_of_a_run_excludes_the_time_between_its_end_and_a_resume() -> None:
    """Ended after a minute, resumed a day later, ended again after a second."""
    driver = stopped("root")
    driver.append(RunReopened(at=driver.clock + 86_400_000, mode="continue"))
    driver.append(CancelRequested(at=driver.clock + 86_401_000, by="root"))
    assert " · 1.0 s" in final_line(driver.state)


def test_the_time_of_a_fork_begins_with_the_fork() -> None:
    """What its parent took is not counted."""
    driver = stopped("root", after=1)
    events = [event for event in driver.events if event.at <= driver.clock][:-4]
    state = fold(driver.plan, [*events, RunForked(at=60_000_000, parent="run_a", place="main.0")])
    assert "0.0 s" in final_line(state)


def ended() -> State:
    return drive(plan_of(loop(Signal(word="D"))), by_iteration("D")).state


@pytest.mark.item("rec-36")
@pytest.mark.parametrize(
    ("total", "expected"),
    [
        pytest.param(DiffStat(3, 12, 4), " · 3 files changed (+12 −4) · ", id="several"),
        pytest.param(DiffStat(1, 1_200, 0), " · 1 file changed (+1,200 −0) · ", id="one"),
        pytest.param(DiffStat(), " · no files changed · ", id="none"),
        pytest.param(None, "0.0 s · agent signalled completion", id="no snapshots"),
    ],
)
def test_changed_files_come_from_the_newest_snapshot(total: DiffStat | None, expected: str) -> None:
    """Files are left out only where no snapshot was taken."""
    state = ended()
    state.snapshots.newest = None if total is None else Snapshot(tree="t", total=total)
    assert expected in final_line(state)


@pytest.mark.item("rec-36")
@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        pytest.param(Usage(usd=0.89), "$0.89", id="known"),
        pytest.param(Usage(usd=0.0123), "$0.01", id="cents"),
        pytest.param(Usage(usd=0.0023), "$0.0023", id="below one cent"),
        pytest.param(Usage(unpriced=2), "cost unknown", id="unknown"),
        pytest.param(Usage(usd=0.4, unpriced=1), "$0.40 + unknown", id="partly unknown"),
        pytest.param(Usage(input_tokens=5), "$0.00", id="free"),
        pytest.param(Usage(), "", id="nothing used"),
    ],
)
def test_an_unknown_cost_is_never_shown_as_zero(usage: Usage, expected: str) -> None:
    """What is not known is called unknown."""
    assert cost(usage) == expected


@pytest.mark.parametrize(
    ("ms", "expected"),
    [
        (0, "0.0 s"),
        (420, "0.4 s"),
        (9_960, "10 s"),
        (20_300, "20 s"),
        (320_000, "5 min 20 s"),
        (7_500_000, "2 h 5 min"),
        (266_400_000, "3 d 2 h"),
    ],
)
def test_elapsed_time_is_short(ms: int, expected: str) -> None:
    """Two units at most."""
    assert elapsed(ms) == expected


@pytest.mark.item("rec-36")
def test_a_terminal_without_unicode_gets_ascii() -> None:
    """Neither signs nor dots beyond ASCII, and the same parts."""
    state = ended()
    state.snapshots.newest = Snapshot(tree="t", total=DiffStat(3, 12, 4))
    line = final_line(state, signs=False)
    assert line.isascii()
    assert line.startswith("Completed in 1 iteration | 0.0 s | 3 files changed (+12 -4) | ")
    assert line == without_signs(final_line(state))


@pytest.mark.parametrize(
    ("way", "shown"), [("running", "20 s"), ("paused", "0.0 s"), ("ended", "0.0 s")]
)
def test_a_silent_agent_does_not_stop_the_clock(way: str, shown: str) -> None:
    """A run that is running is measured until now, and not until its last event."""
    driver = Driver(plan_of(loop())).start()
    if way == "paused":
        driver.append(RunPaused(at=driver.clock))
        driver.answer("main.0/agent#1", "x")
        driver.answer("main.0/check0#1", Reply("no", code=1))
    elif way == "ended":
        driver.append(CancelRequested(at=driver.clock, by="root"))
    line = final_line(driver.state, now_ms=driver.state.now + 20_000)
    assert f" · {shown}" in line


def test_an_error_is_shortened_and_can_be_left_out() -> None:
    """One line of at most 120 characters; without details only the kind of the error."""
    driver = drive(plan_of(loop()), lambda _: Fail("bad_result", f"{'x' * 500}\nsecret"))
    line = final_line(driver.state)
    assert "x…" in line
    assert "secret" not in line
    assert len(line) < 200
    assert ": bad result · " in final_line(driver.state, details=False)


def test_a_log_folds_to_the_same_line() -> None:
    """The line is derived from the events alone."""
    driver = drive(plan_of(loop()), by_iteration("x", commands=(1,)))
    assert final_line(fold(driver.plan, driver.events)) == final_line(driver.state)


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (DiffStat(), "changes of iteration 1 were not recorded"),
        (DiffStat(1, 2, 3), "1 file changed (+2 −3), changes of iteration 1 were not recorded"),
    ],
    ids=["nothing recorded", "something recorded"],
)
def test_changes_of_a_call_that_was_stopped_are_not_denied(total: DiffStat, expected: str) -> None:
    """The snapshot after the stop failed: what the agent changed until then is not known."""
    plan = msgspec.structs.replace(plan_of(loop()), workspace=WorkspacePolicy(snapshots=True))
    driver = Driver(plan).start()
    driver.answer("/snapshot#1", Reply(snapshot=Snapshot(tree="t1", total=total)))
    assert "no files changed" not in final_line(driver.state)
    driver.append(CancelRequested(at=driver.clock, by="root"))
    driver.answer("/snapshot#2", Fail("snapshot", "the disk is full"))
    line = f"■ Stopped by root in iteration 1 of 5 · 0.0 s · {expected}"
    assert final_line(driver.state) == line
    history = history_of(driver.events)
    assert history.is_incomplete


@pytest.mark.item("rec-36")
@pytest.mark.parametrize(
    ("code", "words"),
    [(1, "Completed at the limit of 2 iterations"), (0, "Completed in 1 iteration")],
    ids=["check failed", "check passed"],
)
def test_a_loop_that_completes_at_its_limit_says_so(code: int, words: str) -> None:
    """As in RondoFlow: the outcome alone would look as if its check had passed."""
    plan = plan_of(loop(most=2, at_cap="complete"))
    driver = drive(plan, by_iteration("a", "b", commands=(code, code)))
    assert driver.state.finished is not None
    assert driver.state.finished.outcome == "completed"
    assert final_line(driver.state).startswith(f"✓ {words} ")


@pytest.mark.item("rec-36")
def test_failed_snapshots_are_counted_from_the_first_iteration_without_one() -> None:
    """Also while the run is running: what the last good snapshot says is not all that changed."""
    plan = msgspec.structs.replace(plan_of(loop()), workspace=WorkspacePolicy(snapshots=True))
    driver = Driver(plan).start()
    driver.answer("/snapshot#1", Reply(snapshot=Snapshot(tree="t1", total=DiffStat(1, 2, 3))))
    known = "1 file changed (+2 −3)"
    for number, missing in enumerate(("changes of iteration 1", "changes since iteration 1")):
        driver.answer(f"main.{number}/agent#1", "x")
        driver.answer(f"main.{number}/snapshot#{number + 2}", Fail("snapshot", "the disk is full"))
        assert f"{known}, {missing} were not recorded" in final_line(driver.state)
        driver.answer(f"main.{number}/check0#1", Reply("no", code=1))
    driver.answer("main.2/agent#1", "x")
    total = Snapshot(tree="t2", total=DiffStat(1, 4, 3))
    driver.answer("main.2/snapshot#4", Reply(snapshot=total))
    assert "not recorded" not in final_line(driver.state)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        pytest.param(Usage(unpriced=1), "(spent an unknown amount; limit $2.00)", id="unknown"),
        pytest.param(Usage(usd=0.4), "(spent $0.40 of $2.00)", id="known"),
    ],
)
def test_a_resumed_run_says_what_it_spent(usage: Usage, expected: str) -> None:
    """An unknown cost is not shown as zero."""
    plan = plan_of(loop(), limits=Limits(usd=2.0))
    driver = drive(plan, lambda _: Fail("exit", "code 3", usage=usage))
    reopened = RunReopened(at=driver.clock, mode="continue")
    driver.append(reopened)
    assert expected in resumed_words(driver.state, reopened)
