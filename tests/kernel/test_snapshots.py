"""Snapshots of the workspace: when they are taken, what they change, and protected files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec
import pytest

from loopwright.kernel.event_parts import AgentCall, DiffStat, Snapshot, SnapshotCall
from loopwright.kernel.events import (
    AnyEvent,
    CancelRequested,
    CheckVerdict,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateOpened,
    IterationFinished,
    RunReopened,
    RunStarted,
    StepFinished,
    Usage,
)
from loopwright.kernel.fold import fold
from loopwright.kernel.snapshots import CUT_OFF_MS, has_unrecorded, name_files
from loopwright.model.actions import (
    AskPerson,
    CallAgent,
    Each,
    LoopGate,
    Repeat,
    RunCommand,
    Step,
    Steps,
    Wait,
)
from loopwright.model.checks import (
    AllOf,
    AnyOf,
    Cap,
    CommandCheck,
    Contains,
    Judge,
    PersonCheck,
    ScriptCheck,
    SpendCheck,
)
from loopwright.model.plan import Agent, Plan, check_words
from loopwright.model.policy import Limits, Retry, WorkspacePolicy
from loopwright.model.record import LiteralItems
from tests.kernel.driving import Driver, Fail, People, Reply, ScriptedAnswer, decisions, nobody
from tests.kernel.test_forking import fork
from tests.support.laws.run import event_problems
from tests.support.laws.state_picture import picture

WORK = CallAgent(agent="coder")
CHECK = CommandCheck(argv=("./test.sh", "-q", "--config=tests/c.ini"))
LOOP = Repeat(body=WORK, max=4, until=CHECK)
ON = WorkspacePolicy(snapshots=True)
GUARDED = WorkspacePolicy(snapshots=True, protect=("tests/**",))
TOUCHED = ("tests/test_a.py",)


def plan(*steps: Step, policy: WorkspacePolicy = ON, **more: object) -> Plan:
    return Plan(name="t", steps=steps, workspace=policy, **more)  # type: ignore[arg-type]


def of_loop(loop: Repeat = LOOP, policy: WorkspacePolicy = ON, **more: object) -> Plan:
    return plan(Step(id="main", action=loop), policy=policy, **more)


def trees(
    *,
    passes_at: int = 3,
    touched: dict[int, tuple[str, ...]] | None = None,
    fails: tuple[int, ...] = (),
    agent: Callable[[EffectRequested], ScriptedAnswer] = lambda _: Reply("worked"),
) -> Callable[[EffectRequested], ScriptedAnswer]:
    """A world in which the n-th snapshot is the tree `tN`, where `touched` says which protected
    files differ from the baseline; the check passes from an iteration on.
    """

    def script(request: EffectRequested) -> ScriptedAnswer:
        if isinstance(request.call, SnapshotCall):
            number = int(request.effect.rpartition("#")[2])
            if number in fails:
                return Fail(type="snapshot", detail="the disk is full")
            changed = (touched or {}).get(number, ()) if request.call.protect else ()
            stat = DiffStat(1, number, 0)
            return Reply(
                snapshot=Snapshot(
                    tree=f"t{number}",
                    changed=stat if request.call.previous else DiffStat(),
                    protected=changed,
                    protected_count=len(changed),
                )
            )
        if "/check" in request.effect:
            return Reply(code=0 if (request.iteration or 0) >= passes_at else 1)
        return agent(request)

    return script


def drive(
    made: Plan, script: Callable[[EffectRequested], ScriptedAnswer], people: People = nobody
) -> Driver:
    run = Driver(made, script, people).run()
    assert event_problems(made, run.events) == []
    assert picture(fold(made, run.events)) == picture(run.state)
    return run


def snapshots(events: list[AnyEvent]) -> list[tuple[str, str]]:
    """Where each snapshot was requested, and the tree that it is compared with."""
    return [
        (event.path, event.call.previous)
        for event in events
        if isinstance(event, EffectRequested) and isinstance(event.call, SnapshotCall)
    ]


def finished(events: list[AnyEvent]) -> list[IterationFinished]:
    return [event for event in events if isinstance(event, IterationFinished)]


GRAPH = Steps(
    steps=(
        Step(id="plan", action=WORK),
        Step(id="build", action=RunCommand(argv=("make",)), needs=("plan",)),
        Step(id="ask", action=AskPerson(), needs=("build",)),
        Step(id="wait", action=Wait(ms=5), needs=("ask",)),
    )
)


@pytest.mark.item("rec-10")
@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(
            of_loop(), [("", ""), ("main.0", "t1"), ("main.1", "t2"), ("main.2", "t3")], id="loop"
        ),
        pytest.param(
            plan(*GRAPH.steps), [("", ""), ("plan", "t1"), ("build", "t2")], id="graph of steps"
        ),
        pytest.param(
            of_loop(Repeat(body=GRAPH, max=1)),
            [("", ""), ("main.0.plan", "t1"), ("main.0.build", "t2"), ("main.0", "t1")],
            id="steps inside an iteration, which is compared with its beginning",
        ),
        pytest.param(
            of_loop(Repeat(body=WORK, each=Each(items=LiteralItems(values=(1, 2)), parallel=1))),
            [("", ""), ("main[0]", "t1"), ("main[1]", "t2")],
            id="items of a list",
        ),
        pytest.param(
            of_loop(Repeat(body=WORK, max=3, until=CHECK, check_first=True)),
            [("", ""), ("main.0", "t1"), ("main.1", "t2"), ("main.2", "t3")],
            id="a look before the first iteration needs none of its own",
        ),
        pytest.param(of_loop(policy=WorkspacePolicy(snapshots=False)), [], id="off"),
        pytest.param(of_loop(policy=WorkspacePolicy()), [], id="not decided"),
    ],
)
def test_snapshots_are_taken_before_the_run_and_after_each_writer(
    made: Plan, expected: list[tuple[str, str]]
) -> None:
    """Before anything begins, after each iteration's body, and after each step that can write."""
    run = drive(made, trees(), decisions("approve"))
    assert snapshots(run.events) == expected


def test_a_snapshot_comes_before_the_checks_of_its_iteration() -> None:
    """Every verdict and the end of an iteration name the tree that they are about."""
    run = drive(of_loop(), trees())
    order = [
        event.effect
        for event in run.events
        if isinstance(event, EffectRequested)
        if event.iteration == 1
    ]
    assert order == ["main.0/agent#1", "main.0/snapshot#2", "main.0/check0#1"]
    assert [event.tree for event in run.events if isinstance(event, CheckVerdict)] == [
        "t2",
        "t3",
        "t4",
    ]
    assert [(one.tree, one.changed) for one in finished(run.events)] == [
        ("t2", DiffStat(1, 2, 0)),
        ("t3", DiffStat(1, 3, 0)),
        ("t4", DiffStat(1, 4, 0)),
    ]


def test_an_iteration_costs_one_more_append() -> None:
    """The request shares the append of the agent's answer, the answer that of what follows."""
    with_snapshots = drive(of_loop(), trees())
    without = drive(of_loop(policy=WorkspacePolicy()), trees())
    assert len(with_snapshots.ends) - len(without.ends) == 1 + 3


def test_without_snapshots_no_event_has_a_trace_of_them() -> None:
    """Fields of snapshots stay empty, so that events are written as before."""
    run = drive(of_loop(policy=WorkspacePolicy()), trees())
    assert all(not one.tree and one.changed is None for one in finished(run.events))
    assert all(not event.tree for event in run.events if isinstance(event, CheckVerdict))


@pytest.mark.parametrize(
    ("made", "people"),
    [
        pytest.param(of_loop(), nobody, id="loop"),
        pytest.param(plan(*GRAPH.steps), decisions("approve"), id="graph"),
        pytest.param(of_loop(Repeat(body=GRAPH, max=2)), decisions("approve"), id="both"),
        pytest.param(of_loop(policy=GUARDED), nobody, id="protected"),
    ],
)
@pytest.mark.item("rec-17")
def test_a_run_that_is_cut_anywhere_takes_no_recorded_snapshot_again(
    made: Plan, people: People
) -> None:
    """Cut after every append and after every event, it ends with exactly the same events."""
    whole = drive(made, trees(touched={3: TOUCHED}), people)
    for length in range(1, len(whole.events)):
        again = whole.cut(length).run()
        assert [_timeless(event) for event in again.events] == [_timeless(f) for f in whole.events]
        asked = [effect for effect, _ in _asked(again.events)]
        assert len(asked) == len(set(asked))


def _asked(events: list[AnyEvent]) -> list[tuple[str, str]]:
    return [(event.effect, event.path) for event in events if isinstance(event, EffectRequested)]


def _timeless(event: AnyEvent) -> tuple[object, ...]:
    skip = ("at", "ms", "call")
    names = [name for name in event.__struct_fields__ if name not in skip]
    return (type(event), *(getattr(event, name) for name in names))


@pytest.mark.parametrize(
    ("fails", "outcome"), [((1,), "completed"), ((2, 3), "completed")], ids=["first", "later"]
)
def test_a_failed_snapshot_fails_no_iteration(fails: tuple[int, ...], outcome: str) -> None:
    """Without protected files a run is no worse for want of a snapshot."""
    run = drive(of_loop(), trees(fails=fails))
    assert run.end.outcome == outcome
    assert len(finished(run.events)) == 3


@pytest.mark.item("rec-41")
@pytest.mark.parametrize(
    ("fails", "outcome", "iterations"),
    [
        pytest.param((1,), "failed", 0, id="first"),
        pytest.param((5,), "exhausted", 3, id="after the checks"),
    ],
)
def test_protected_files_that_cannot_be_verified_let_nothing_complete(
    fails: tuple[int, ...], outcome: str, iterations: int
) -> None:
    """A run does not begin without its first snapshot; an iteration whose checks passed fails."""
    run = drive(of_loop(Repeat(body=WORK, max=3, until=CHECK), GUARDED), trees(fails=fails))
    assert run.end.outcome == outcome
    said = [one.evidence for one in run.events if isinstance(one, CheckVerdict)][-1:]
    said += [run.end.error.detail] if run.end.error is not None else []
    assert said == ["protected files could not be verified: the disk is full"]
    assert len(finished(run.events)) == iterations


@pytest.mark.item("rec-41")
def test_a_check_that_changes_a_protected_file_fails_its_iteration() -> None:
    """The change of the check is seen before the iteration passes, and the loop continues."""
    made = of_loop(Repeat(body=WORK, max=4, until=CHECK), GUARDED)
    run = drive(made, trees(passes_at=2, touched={4: TOUCHED}))
    verdicts = [
        (v.iteration, v.check, v.verdict) for v in run.events if isinstance(v, CheckVerdict)
    ]
    assert verdicts == [
        (1, "command", "fail"),
        (2, "command", "pass"),
        (2, "protect", "fail"),
        (3, "command", "pass"),
    ]
    assert [one.done for one in finished(run.events)] == [False, False, True]
    assert run.end.outcome == "completed"


@pytest.mark.item("rec-41")
def test_a_changed_protected_file_fails_the_checks_until_it_is_reverted() -> None:
    """The check command passes in iteration 2, the iteration does not; reverting heals it."""
    made = of_loop(policy=GUARDED)
    run = drive(made, trees(passes_at=2, touched={3: TOUCHED, 4: TOUCHED}))
    verdicts = [
        (v.iteration, v.check, v.verdict) for v in run.events if isinstance(v, CheckVerdict)
    ]
    assert verdicts == [
        (1, "command", "fail"),
        (2, "protect", "fail"),
        (2, "command", "pass"),
        (3, "protect", "fail"),
        (3, "command", "pass"),
        (4, "command", "pass"),
    ]
    said = next(v for v in run.events if isinstance(v, CheckVerdict) and v.check == "protect")
    assert (said.evidence, said.index) == ("protected files changed: tests/test_a.py", 1)
    assert [one.done for one in finished(run.events)] == [False, False, False, True]
    assert run.end.outcome == "completed"


@pytest.mark.item("rec-41")
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(of_loop(policy=GUARDED), id="command check"),
        pytest.param(of_loop(Repeat(body=WORK, max=2, until=Cap()), GUARDED), id="counted loop"),
        pytest.param(
            of_loop(Repeat(body=WORK, max=2, until=Contains(text="worked")), GUARDED), id="text"
        ),
        pytest.param(
            of_loop(Repeat(body=WORK, max=2, until=CHECK, at_cap="complete"), GUARDED), id="at cap"
        ),
        pytest.param(
            of_loop(Repeat(body=WORK, each=Each(items=LiteralItems(values=(1, 2)))), GUARDED),
            id="items",
        ),
        pytest.param(plan(Step(id="main", action=WORK), policy=GUARDED), id="one step"),
        pytest.param(
            plan(Step(id="main", action=WORK, on_error="continue"), policy=GUARDED), id="tolerated"
        ),
        pytest.param(
            plan(
                Step(id="main", action=WORK, retry=Retry(attempts=2, on=("any",))), policy=GUARDED
            ),
            id="retried",
        ),
    ],
)
def test_nothing_completes_with_changed_protected_files(made: Plan) -> None:
    """Whatever ends the run otherwise, it is not completed."""
    touched = dict.fromkeys(range(2, 30), TOUCHED)
    run = drive(made, trees(passes_at=1, touched=touched))
    assert run.end.outcome != "completed"
    assert not any(one.done for one in finished(run.events))


def test_a_limit_on_money_ends_a_loop_with_changed_protected_files() -> None:
    """Reaching it is no success, so protected files do not matter."""
    loop = Repeat(body=WORK, max=5, until=AnyOf(parts=(SpendCheck(usd=0.5), CHECK)))
    paid = Reply("worked", usage=Usage(usd=1.0))
    run = drive(of_loop(loop, GUARDED), trees(touched={2: TOUCHED}, agent=lambda _: paid))
    assert (run.end.outcome, run.end.reason) == ("exhausted", "budget")


@pytest.mark.item("rec-41", "rec-16")
@pytest.mark.parametrize(
    ("loop", "decision", "outcome"),
    [
        pytest.param(
            Repeat(body=WORK, max=2, until=CHECK, gate=LoopGate()),
            "approve",
            "completed",
            id="gate",
        ),
        pytest.param(
            Repeat(body=WORK, max=2, until=AllOf(parts=(CHECK, PersonCheck()))),
            "approve",
            "completed",
            id="person as a check",
        ),
        pytest.param(
            Repeat(body=WORK, max=2, until=CHECK, gate=LoopGate()), "continue", "failed", id="no"
        ),
    ],
)
def test_a_person_accepts_changed_protected_files_at_a_gate(
    loop: Repeat, decision: str, outcome: str
) -> None:
    """The gate names them; approving makes them the new baseline."""
    touched = dict.fromkeys(range(2, 30), TOUCHED)
    script = trees(passes_at=1, touched=touched)

    def world(request: EffectRequested) -> ScriptedAnswer:
        said = script(request)
        call = request.call
        if isinstance(call, SnapshotCall) and call.baseline not in ("", "t1"):
            assert isinstance(said, Reply)
            assert said.snapshot is not None
            return Reply(snapshot=Snapshot(tree=said.snapshot.tree))
        return said

    run = drive(of_loop(loop, GUARDED), world, decisions(decision))  # type: ignore[arg-type]
    gate = next(event for event in run.events if isinstance(event, GateOpened))
    assert "Protected files changed: tests/test_a.py. Approving accepts them" in gate.message
    assert gate.snapshot is not None
    assert gate.snapshot.changed == DiffStat(1, 2, 0)
    assert run.end.outcome == outcome or (outcome == "failed" and run.end.outcome == "exhausted")


def test_a_step_outside_of_loops_fails_unless_a_person_is_asked_next() -> None:
    """Without checks the step itself fails; a gate right after it decides instead."""
    steps = (Step(id="work", action=WORK), Step(id="ship", action=WORK, needs=("work",)))
    run = drive(plan(*steps, policy=GUARDED), trees(touched={2: TOUCHED, 3: TOUCHED}))
    ended = [event for event in run.events if isinstance(event, StepFinished)]
    assert [(one.path, one.status, one.reason) for one in ended] == [
        ("work", "failed", "protected")
    ]
    asked = (steps[0], Step(id="ask", action=AskPerson(), needs=("work",)))
    made = plan(*asked, policy=GUARDED)
    accepted = drive(made, trees(touched={2: TOUCHED}), decisions("approve"))
    assert accepted.end.outcome == "completed"
    rejected = drive(made, trees(touched={2: TOUCHED}), decisions("reject"))
    assert rejected.end.outcome == "failed"


def test_a_run_that_is_reopened_takes_a_snapshot_first() -> None:
    """Files may have changed meanwhile; protected files are still compared with the first tree."""
    made = of_loop(policy=GUARDED)

    def broken(request: EffectRequested) -> ScriptedAnswer:
        return Fail(detail="it broke") if request.iteration == 2 else Reply("worked")

    run = drive(made, trees(agent=broken, passes_at=1))
    assert run.end.outcome == "completed"
    run = drive(made, trees(agent=broken, passes_at=9))
    assert run.end.outcome == "failed"
    before = len(run.events)
    run.script = trees(passes_at=1)
    run.append(RunReopened(at=run.clock + 1))
    run.run()
    assert event_problems(made, run.events) == []
    asked = [f.call for f in run.events[before:] if isinstance(f, EffectRequested)]
    first = asked[0]
    assert isinstance(first, SnapshotCall)
    assert (first.first, first.baseline, first.previous != "") == ("t1", "t1", True)
    assert run.end.outcome == "completed"


def test_a_fork_takes_a_snapshot_before_anything_else() -> None:
    """Its trees follow those of the run that it comes from."""
    run = drive(of_loop(), trees())
    other = fork(run, "main.0").run()
    assert event_problems(other.plan, other.events) == []
    own = other.events[len([f for f in run.events if f.at <= 0]) :]
    asked = [(f.effect, f.call.previous) for f in own if _is_snapshot(f)]
    assert asked[-3:] == [("/snapshot#3", "t2"), ("main.1/snapshot#4", "t3"), asked[-1]]
    assert isinstance(other.events[0], RunStarted)


def _is_snapshot(event: AnyEvent) -> bool:
    return isinstance(event, EffectRequested) and isinstance(event.call, SnapshotCall)


@pytest.mark.item("rec-10", "rec-17")
@pytest.mark.parametrize("policy", [ON, GUARDED], ids=["plain", "protected"])
@pytest.mark.parametrize(
    "made",
    [of_loop(), plan(*GRAPH.steps), of_loop(Repeat(body=GRAPH, max=2))],
    ids=["loop", "graph", "both"],
)
def test_a_stop_anywhere_records_what_was_written_before_the_run_ends(
    made: Plan, policy: WorkspacePolicy
) -> None:
    """Stopped after every append: one last snapshot where a call or a snapshot was under way, and
    none where nothing can have been written since the one before.
    """
    made = msgspec.structs.replace(made, workspace=policy)
    whole = drive(made, trees(), decisions("approve"))
    last = set[bool]()
    for end in whole.ends[:-1]:
        run = whole.cut(end)
        under_way = {type(run.state.pending[one].call) for one in run.state.pending}
        taken = run.state.snapshots.taken
        run.append(CancelRequested(at=run.clock + 1))
        asked = [f for f in run.events[end:] if isinstance(f, EffectRequested)]
        assert [f.path for f in asked] == [""] * len(asked)
        assert bool(asked) >= (taken and bool(under_way & {AgentCall, SnapshotCall}))
        assert bool(asked) == (run.state.finished is None)
        last.add(bool(asked))
        if asked:
            _end_at_second_stop(run.cut(len(run.events)))
        again = run.cut(len(run.events)).run()  # killed while it is taken
        run.run()
        assert [_timeless(f) for f in again.events] == [_timeless(f) for f in run.events]
        assert event_problems(run.plan, run.events) == []
        assert run.end.outcome == "cancelled"
        assert not taken or not has_unrecorded(run.state)
    assert True in last


def _end_at_second_stop(run: Driver) -> None:
    """A stop while the last snapshot is being taken ends the run with the next append, without it;
    a resume takes one again.
    """
    [asked] = [one for one in run.state.pending.values() if isinstance(one.call, SnapshotCall)]
    run.append(CancelRequested(at=run.clock + 1))
    assert run.end.outcome == "cancelled"
    withdrawn = [f for f in run.events if isinstance(f, EffectFailed) and f.effect == asked.effect]
    assert [f.error.type for f in withdrawn] == ["cancelled"]
    assert has_unrecorded(run.state)
    assert event_problems(run.plan, run.events) == []
    run.append(RunReopened(at=run.clock + 1, mode="continue"))
    call = next(iter(run.state.pending.values())).call
    assert isinstance(call, SnapshotCall)
    assert not call.within_ms


def test_a_last_snapshot_that_fails_does_not_hold_up_a_stop() -> None:
    """The run ends as stopped; the changes count as not recorded."""
    whole = drive(of_loop(), trees())
    cuts = (whole.cut(end) for end in whole.ends)
    run = next(one for one in cuts if "main.0/agent#1" in one.state.pending)
    run.script = trees(fails=tuple(range(2, 9)))
    run.append(CancelRequested(at=run.clock + 1))
    call = next(iter(run.state.pending.values())).call
    assert isinstance(call, SnapshotCall)
    assert call.within_ms == CUT_OFF_MS
    assert run.run().end.outcome == "cancelled"
    assert has_unrecorded(run.state)


def test_a_time_limit_of_the_run_records_the_call_that_it_cuts_off() -> None:
    """One snapshot of limited time follows the call, then the run ends."""
    made = of_loop(limits=Limits(wall_ms=100))
    run = drive(made, trees(agent=lambda _: None))
    assert run.end.outcome == "exhausted"
    assert snapshots(run.events) == [("", ""), ("", "t1")]
    assert not has_unrecorded(run.state)


def test_a_deadline_ends_a_run_that_waits_for_its_first_snapshot() -> None:
    """The timer runs from the beginning."""
    made = of_loop(limits=Limits(wall_ms=100))
    run = Driver(made, lambda _: None).run()
    assert event_problems(made, run.events) == []
    assert run.end.outcome == "exhausted"
    withdrawn = [event.effect for event in run.events if isinstance(event, EffectFailed)]
    assert withdrawn == ["/snapshot#1"]


@pytest.mark.item("rec-10")
@pytest.mark.parametrize(
    ("step", "places"),
    [
        (Step(id="main", action=Repeat(body=WORK, limits=Limits(pass_wall_ms=10))), "main.0"),
        (Step(id="main", action=Repeat(body=GRAPH, limits=Limits(pass_wall_ms=10))), "main.0"),
        (Step(id="main", action=Repeat(body=WORK, limits=Limits(wall_ms=10))), "main"),
        (Step(id="main", action=Repeat(body=WORK), limits=Limits(wall_ms=10)), "main"),
        (Step(id="main", action=WORK, limits=Limits(wall_ms=10)), "main"),
    ],
    ids=["iteration", "graph", "loop", "step of a loop", "step"],
)
def test_work_that_a_deadline_cuts_off_has_a_snapshot_of_its_place(step: Step, places: str) -> None:
    """Exactly one, after the call was ended, also when the run is killed at any moment."""
    whole = drive(msgspec.structs.replace(plan(step), workspace=ON), trees(agent=lambda _: None))
    assert whole.end.outcome == "exhausted"
    assert snapshots(whole.events) == [("", ""), (places, "t1")]
    [ended] = [n for n, f in enumerate(whole.events) if isinstance(f, EffectFailed)]
    asked = [n for n, f in enumerate(whole.events) if _is_snapshot(f)]
    assert asked[0] < ended < asked[1]
    assert not has_unrecorded(whole.state)
    for end in whole.ends[:-1]:
        again = whole.cut(end).run()
        assert snapshots(again.events) == snapshots(whole.events)
        assert event_problems(again.plan, again.events) == []


def test_judges_write_nothing() -> None:
    """Their calls lead to no snapshot."""
    loop = Repeat(body=WORK, max=1, until=Judge(agent="judge"))
    run = drive(
        of_loop(loop, agents={"judge": Agent()}),
        trees(agent=lambda _: Reply("ok", result='{"done": true}')),
    )
    assert len(snapshots(run.events)) == 2


def test_the_words_of_check_commands_are_watched() -> None:
    """Options are cut at their equals sign, and scripts are split into words."""
    script = ScriptCheck(text="bash ./check.sh && (python tests/run.py)")
    loop = Repeat(body=Repeat(body=WORK, max=1, until=script), max=1, until=CHECK)
    inside = Steps(steps=(Step(id="a", action=loop),))
    assert check_words(plan(Step(id="main", action=inside))) == (
        "./test.sh",
        "-q",
        "tests/c.ini",
        "bash",
        "./check.sh",
        "&&",
        "python",
        "tests/run.py",
    )


@pytest.mark.parametrize(
    ("paths", "count", "words"),
    [
        (("a",), 1, "a"),
        (("a", "b", "c", "d", "e", "f"), 6, "a, b, c, d, e and 1 more"),
        (("a",), 12, "a and 11 more"),
    ],
    ids=["one", "six", "cut"],
)
def test_long_lists_of_files_are_cut(paths: tuple[str, ...], count: int, words: str) -> None:
    """Five files are named."""
    assert name_files(paths, count) == words


def test_an_answer_without_a_tree_counts_as_failed() -> None:
    """A performer that says done and has no tree has not taken a snapshot."""
    made = of_loop(Repeat(body=WORK, max=1, until=CHECK), GUARDED)
    run = drive(made, lambda r: Reply("ok", code=0))
    assert run.end.outcome == "failed"
    done = [event for event in run.events if isinstance(event, EffectDone)]
    assert [event.effect for event in done] == ["/snapshot#1"]


# -- protected files and a resume ------------------------------------------------------------------


def broken_call(request: EffectRequested) -> ScriptedAnswer:
    return Fail(detail="it broke") if request.iteration == 2 else Reply("worked")


def changed_meanwhile(made: Plan) -> Driver:
    """A run whose agent fails in iteration 2; every later snapshot has a changed protected file,
    which is compared with whatever baseline is asked for.
    """
    run = drive(made, trees(agent=broken_call, passes_at=9))
    assert run.end.outcome == "failed"
    assert not any(getattr(f, "snapshot", None) and f.snapshot.protected for f in run.events)
    good = trees(passes_at=1)

    def script(request: EffectRequested) -> ScriptedAnswer:
        if not isinstance(request.call, SnapshotCall):
            return good(request)
        reply = good(request)
        differs = request.call.baseline == "t1"
        assert isinstance(reply, Reply)
        assert reply.snapshot is not None
        touched = msgspec.structs.replace(reply.snapshot, protected=TOUCHED, protected_count=1)
        return dataclasses.replace(reply, snapshot=touched) if differs else reply

    run.script = script
    return run


@pytest.mark.item("rec-41")
@pytest.mark.parametrize("mode", ["continue", "restart", ""])
def test_failing_and_resuming_does_not_accept_a_changed_protected_file(mode: str) -> None:
    """The change was made in the call that failed, before a snapshot of it: the run cannot complete
    however often it is resumed.
    """
    made = of_loop(policy=GUARDED)
    run = changed_meanwhile(made)
    for _ in range(2):
        run.append(RunReopened(at=run.clock + 1, mode=mode, passes=9))  # type: ignore[arg-type]
        run.run()
        assert run.end.outcome != "completed"
        verdicts = [f for f in run.events if isinstance(f, CheckVerdict) and f.check == "protect"]
        assert "protected files changed" in str(verdicts[-1].evidence)
    assert event_problems(made, run.events) == []


@pytest.mark.item("rec-41")
@pytest.mark.parametrize("mode", ["continue", "restart"])
def test_a_person_accepts_changed_protected_files_when_resuming(mode: str) -> None:
    """The files as they are now become the baseline, and the run completes."""
    made = of_loop(policy=GUARDED)
    run = changed_meanwhile(made)
    run.append(RunReopened(at=run.clock + 1, mode=mode, accept_changes=True))  # type: ignore[arg-type]
    run.run()
    assert run.end.outcome == "completed"
    assert picture(fold(made, run.events)) == picture(run.state)
