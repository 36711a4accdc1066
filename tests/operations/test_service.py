"""The use cases: what people and programs may do with runs, and what they are told if not."""

import asyncio
import pwd
from pathlib import Path
from typing import Any

import pytest

from loopwright.errors import Conflict, LoopwrightError, NotFound
from loopwright.kernel.events import (
    CancelRequested,
    GateAnswered,
    GateOpened,
    RunPaused,
    RunResumed,
    RunStarted,
)
from loopwright.model.actions import AskPerson, CallAgent, LoopGate, Repeat, Step
from loopwright.model.checks import Cap
from loopwright.model.plan import Plan
from loopwright.model.record import Blob
from loopwright.operations.accounts import access
from loopwright.operations.run_request import RunStart
from loopwright.ports import OPEN_STATUSES, Append
from loopwright.testing import always, by_iteration, never
from tests.engine.world import Process, World, quiet, run
from tests.support.plans import loop, plan_of, step

CALL = CallAgent(agent="worker")
GATED = plan_of(
    step("main", Repeat(body=CALL, max=5, gate=LoopGate(answers=("approve", "reject", "continue"))))
)
YES_NO = plan_of(step("ask", AskPerson()))
TWO_GATES = plan_of(step("a", AskPerson()), step("b", AskPerson()))


def passes(count: int) -> Plan:
    return loop(most=count, until=Cap())


async def at_gate(process: Process, plan: Plan = GATED) -> tuple[str, str]:
    """A run that waits, and the gate it waits at."""
    name = await process.start(plan)
    await process.driver.rest(name)
    (gate,) = process.log.gates(name)
    return name, gate.gate


def refused(error: pytest.ExceptionInfo[LoopwrightError]) -> str:
    return error.value.code


# -- starting --------------------------------------------------------------------------------------


def test_a_run_needs_its_workspace(tmp_path: Path) -> None:
    """Without the folder nothing is created, and the fix is named."""

    async def body() -> None:
        process = World().process()
        missing = RunStart(plan=passes(1), workspace=tmp_path / "none")
        with pytest.raises(LoopwrightError, match="--workspace") as error:
            await process.service.start(missing)
        assert refused(error) == "no-workspace"
        assert process.service.rows() == []

    run(body())


def test_a_run_knows_how_it_was_started(tmp_path: Path) -> None:
    """Message, inputs, workspace, plan and who started it are its first event."""

    async def body() -> None:
        process = World().process(never())
        start = RunStart(
            plan=passes(1),
            workspace=tmp_path,
            message="Do it.",
            inputs={"n": 1},
            by="ann",
            key="k",
        )
        name = await process.service.start(start)
        (first, *_) = process.events(name)
        assert isinstance(first, RunStarted)
        assert (first.run, first.message, first.inputs) == (name, "Do it.", {"n": 1})
        assert (first.workspace, first.by, first.key) == (str(tmp_path), "ann", "k")
        assert process.service.plan(first) == passes(1)

    run(body())


def test_ids_sort_by_age() -> None:
    """A later run has a greater id, and no two are the same."""

    async def body() -> None:
        process = World().process()
        names = []
        for _ in range(20):
            process.clock.elapse(1)
            names.append(await process.start(YES_NO))
        assert names == sorted(set(names))
        assert all(name.startswith("run_") and len(name) == 30 for name in names)

    run(body())


def test_a_run_that_is_not_to_be_driven_here_has_no_owner() -> None:
    """A detached start leaves the run for whoever comes."""

    async def body() -> None:
        process = World().process(never())
        name = await process.start(passes(1), drive=False)
        await quiet()
        assert (process.log.row(name).owner, process.scripted.jobs) == (None, [])
        assert process.service.recover() == [name]

    run(body())


@pytest.mark.item("inv-16", "rondoflow-9")
def test_a_key_is_held_by_one_open_run() -> None:
    """A second start under the same key is refused by the name of the first, which goes on."""

    async def body() -> None:
        process = World().process(never())
        name = await process.start(passes(2), key="assistant-1")
        await quiet()
        with pytest.raises(Conflict, match=name) as error:
            await process.start(passes(2), key="assistant-1")
        assert refused(error) == "key-taken"
        assert [row.run for row in process.service.rows()] == [name]
        assert process.driver.is_driving(name)
        await process.start(passes(2), key="assistant-2")

    run(body())


@pytest.mark.item("rondoflow-31")
def test_a_key_is_free_after_the_end() -> None:
    """However a run ended, its key may be used again."""

    async def body() -> None:
        process = World().process(never())
        first = await process.start(passes(1), key="k")
        await process.service.stop(first)
        await quiet()
        second = await process.start(passes(1), key="k")
        await quiet()
        process.scripted.answer(second, "main.0/agent#1", "x")
        await process.driver.rest(second)
        assert await process.start(passes(1), key="k")

    run(body())


# -- looking ---------------------------------------------------------------------------------------


def test_a_run_is_found_by_its_beginning() -> None:
    """An id may be cut as long as it fits one run."""

    async def body() -> None:
        process = World().process()
        first = await process.start(YES_NO)
        process.clock.elapse(10_000_000)
        second = await process.start(YES_NO)
        assert process.service.find(first) == first
        common = next(n for n in range(30) if first[n] != second[n])
        assert process.service.find(second[: common + 1]) == second
        with pytest.raises(Conflict) as error:
            process.service.find(first[:common])
        assert refused(error) == "ambiguous"

    run(body())


@pytest.mark.parametrize("reference", ["", "run_nobody", "gate_x", "%", "run_%", "*", "a\0b"])
def test_what_fits_no_run_is_not_found(reference: str) -> None:
    """Nothing is guessed: an empty or strange reference fits no run, not even the only one."""

    async def body() -> None:
        process = World().process()
        await process.start(YES_NO)
        with pytest.raises(NotFound):
            process.service.find(reference)

    run(body())


@pytest.mark.parametrize("size", [1_025, 5 << 20], ids=["just too long", "5 MB"])
def test_a_large_output_comes_back_whole(size: int) -> None:
    """A long text is stored once beside the events and read back exactly."""

    async def body() -> None:
        text = "ü" + "z" * (size - 2)
        process = World().process(always(text))
        state = await process.finish(passes(2))
        assert state.finished is not None
        assert isinstance(state.finished.output, Blob)
        assert state.finished.output.size == size
        assert process.service.read_text(state.finished.output) == text
        biggest = max(len(one) for one in process.log._disk.blobs.values())
        assert biggest == size

    run(body())


# -- answering -------------------------------------------------------------------------------------


@pytest.mark.item("rondoflow-29")
@pytest.mark.parametrize(
    ("decision", "outcome", "reason"),
    [("approve", "completed", "approved"), ("reject", "failed", "rejected")],
)
def test_a_decision_ends_the_loop(decision: str, outcome: str, reason: str) -> None:
    """Approval completes with that pass's output, rejection fails."""

    async def body() -> None:
        process = World().process(by_iteration(["the work"]))
        name, gate = await at_gate(process)
        assert await process.service.answer(gate, decision, by="ann") == name  # type: ignore[arg-type]
        await process.driver.rest(name)
        finished = process.state(name).finished
        assert finished is not None
        assert (finished.outcome, finished.reason) == (outcome, reason)
        assert finished.output == "the work"

    run(body())


def test_feedback_reaches_the_next_iteration() -> None:
    """To continue with a text starts another iteration that is shown the text."""

    async def body() -> None:
        process = World().process()
        name, gate = await at_gate(process)
        await process.service.answer(gate, "continue", text="Shorter, please.", by="ann")
        await process.driver.rest(name)
        assert process.scripted.jobs[-1].iteration == 2
        assert "Shorter, please." in process.scripted.jobs[-1].prompt.text

    run(body())


@pytest.mark.item("inv-11")
def test_two_answers_at_once_are_one() -> None:
    """Of two people who answer at the same time one wins; the other is told who did."""

    async def body() -> None:
        process = World().process()
        name, gate = await at_gate(process)
        answers = await asyncio.gather(
            process.service.answer(gate, "approve", by="ann"),
            process.service.answer(gate, "reject", by="bob"),
            return_exceptions=True,
        )
        (lost,) = [answer for answer in answers if isinstance(answer, Conflict)]
        (won,) = [event for event in process.events(name) if isinstance(event, GateAnswered)]
        assert lost.code == "already-resolved"
        assert f"{won.decision} by {won.by} at 2023-11-14T" in str(lost)

    run(body())


@pytest.mark.item("G8", "inv-11")
def test_a_hundred_answers_from_many_processes_are_one() -> None:
    """However many answer from wherever, exactly one counts."""

    async def body() -> None:
        world = World()
        driving = world.process()
        name, gate = await at_gate(driving)
        others = [world.process() for _ in range(10)]
        answers = await asyncio.gather(
            *(
                others[n % 10].looker.answer(gate, "approve" if n % 2 else "reject", by=f"p{n}")
                for n in range(100)
            ),
            return_exceptions=True,
        )
        lost = [answer for answer in answers if isinstance(answer, Conflict)]
        assert (len(lost), {answer.code for answer in lost}) == (99, {"already-resolved"})
        assert driving.kinds(name).count("gate.answered") == 1

    run(body())


def test_an_answer_never_reaches_a_gate_that_was_not_recorded() -> None:
    """An answer named by the run that comes too late does not answer the next iteration's gate."""

    async def body() -> None:
        world = World()
        process, late = world.process(), world.process()
        name, gate = await at_gate(process)
        append = late.log.append

        async def overtaken(what: Append) -> None:
            late.log.append = append  # type: ignore[method-assign]
            await process.service.answer(name, "continue", by="ann")
            await process.driver.rest(name)
            await append(what)

        late.log.append = overtaken  # type: ignore[method-assign]
        with pytest.raises(Conflict, match="continue by ann") as error:
            await late.looker.answer(name, "approve", by="bob")
        assert refused(error) == "already-resolved"
        answered = [f.gate for f in process.events(name) if isinstance(f, GateAnswered)]
        assert answered == [gate]
        assert process.status(name) == "waiting"

    run(body())


@pytest.mark.item("rondoflow-30")
@pytest.mark.parametrize("reference", ["gate_invented", "gate_"])
def test_an_invented_gate_has_no_effect(reference: str) -> None:
    """A reference that fits no gate, or more than one, answers nothing."""

    async def body() -> None:
        process = World().process()
        await at_gate(process)
        await at_gate(process)
        with pytest.raises(LoopwrightError) as error:
            await process.service.answer(reference, "approve")
        assert refused(error) in ("not-found", "ambiguous")
        assert len(process.log.gates()) == 2

    run(body())


@pytest.mark.item("rondoflow-30")
def test_a_gate_that_was_answered_says_by_whom() -> None:
    """A stale answer changes nothing, during the run and after its end, by id or its beginning."""

    async def body() -> None:
        process = World().process()
        name, gate = await at_gate(process)
        await process.service.answer(gate, "continue", by="ann")
        await process.driver.rest(name)
        for _ in range(2):
            for reference in (gate, gate[:20]):
                with pytest.raises(Conflict, match="continue by ann") as error:
                    await process.service.answer(reference, "approve", by="bob")
                assert refused(error) == "already-resolved"
            await process.service.stop(name)
            await quiet()

    run(body())


def test_what_is_approved_is_what_was_shown() -> None:
    """An answer with another digest is refused; with the right one it counts."""

    async def body() -> None:
        process = World().process()
        name, gate = await at_gate(process)
        (opened,) = [event for event in process.events(name) if isinstance(event, GateOpened)]
        with pytest.raises(Conflict) as error:
            await process.service.answer(gate, "approve", digest="0" * 32)
        assert refused(error) == "changed-since-shown"
        assert len(process.log.gates()) == 1
        await process.service.answer(gate, "approve", digest=opened.digest)

    run(body())


def test_a_decision_must_be_offered() -> None:
    """A gate that takes yes or no takes nothing else, and says what it takes."""

    async def body() -> None:
        process = World().process()
        _, gate = await at_gate(process, YES_NO)
        with pytest.raises(Conflict, match="approve, reject") as error:
            await process.service.answer(gate, "continue", text="hm")
        assert refused(error) == "bad-decision"

    run(body())


def test_a_run_with_two_gates_needs_the_gate() -> None:
    """A run id is enough only where one gate is open; the refusal lists them."""

    async def body() -> None:
        process = World().process()
        name = await process.start(TWO_GATES)
        await process.driver.rest(name)
        gates = process.log.gates(name)
        with pytest.raises(Conflict) as error:
            await process.service.answer(name, "approve")
        assert refused(error) == "ambiguous"
        for gate in gates:
            assert gate.gate in str(error.value)
        await process.service.answer(gates[0].gate, "approve")
        await quiet()
        assert process.status(name) == "waiting"
        await process.service.answer(name, "approve")
        await process.driver.rest(name)
        assert process.status(name) == "completed"

    run(body())


def test_a_run_that_waits_for_nobody_says_so() -> None:
    """Answering a run that works is refused."""

    async def body() -> None:
        process = World().process(never())
        name = await process.start(passes(1))
        with pytest.raises(Conflict) as error:
            await process.service.answer(name, "approve")
        assert refused(error) == "no-longer-waiting"

    run(body())


# -- control ---------------------------------------------------------------------------------------


@pytest.mark.item("rondoflow-37", "rondoflow-38")
def test_pausing_twice_is_pausing() -> None:
    """A second pause adds nothing; a second resume neither."""

    async def body() -> None:
        process = World().process(never())
        name = await process.start(passes(3))
        await quiet()
        for _ in range(2):
            await process.service.pause(name, by="ann")
            await quiet()
        assert process.status(name) == "paused"
        assert process.service.state(name).control.paused
        for _ in range(2):
            await process.service.resume(name)
            await quiet()
        assert process.status(name) == "running"
        assert process.kinds(name).count("run.paused") == 1
        assert process.kinds(name).count("run.resumed") == 1
        (paused,) = [event for event in process.events(name) if isinstance(event, RunPaused)]
        assert paused.by == "ann"

    run(body())


@pytest.mark.item("inv-14")
def test_stopping_twice_is_stopping() -> None:
    """A stop is recorded once, ends what is under way, and later says that it was over."""

    async def body() -> None:
        world = World()
        process, other = world.process(never()), world.process()
        name = await process.start(passes(3))
        await quiet()
        assert await other.looker.stop(name, by="ann") is True
        assert await other.looker.stop(name, by="bob") is True, "the driver has not looked yet"
        await process.tick()
        assert await process.service.stop(name) is False
        (asked,) = [f for f in process.events(name) if isinstance(f, CancelRequested)]
        assert (asked.by, asked.reason) == ("ann", "stopped")
        assert process.status(name) == "cancelled"
        assert process.scripted.held == {}

    run(body())


def test_a_stop_that_loses_against_the_end_is_no_error() -> None:
    """A run that ends while somebody stops it has simply ended."""

    async def body() -> None:
        process = World().process(never())
        name = await process.start(passes(1))
        await quiet()
        log, version = process.log, process.log.version

        def ends_meanwhile(run: str) -> int:
            log.version = version  # type: ignore[method-assign]
            found = version(run)
            process.scripted.answer(name, "main.0/agent#1", "x")
            return found

        log.version = ends_meanwhile  # type: ignore[method-assign]
        assert await process.service.stop(name) in (True, False)
        await quiet()
        assert process.status(name) in ("cancelled", "exhausted")
        assert await process.service.stop(name) is False

    run(body())


@pytest.mark.item("rondoflow-35")
def test_stop_closes_the_gate() -> None:
    """A stop at a gate closes it; a late approval does nothing."""

    async def body() -> None:
        process = World().process()
        name, gate = await at_gate(process)
        assert await process.service.stop(name)
        await quiet()
        assert (process.status(name), process.log.gates()) == ("cancelled", [])
        assert "gate.closed" in process.kinds(name)
        before = process.log.version(name)
        for reference in (gate, name):
            with pytest.raises(Conflict) as error:
                await process.service.answer(reference, "approve")
            assert refused(error) == "no-longer-waiting"
        assert process.log.version(name) == before

    run(body())


def test_an_ended_run_takes_no_orders() -> None:
    """Pause and resume of an ended run are refused with how it ended."""

    async def body() -> None:
        process = World().process()
        state = await process.finish(passes(1))
        for order in (process.service.pause, process.service.resume):
            with pytest.raises(Conflict, match="exhausted") as error:
                await order(state.run)
            assert refused(error) == "ended"

    run(body())


def test_orders_need_a_run() -> None:
    """What does not exist is not found, whatever is asked."""

    async def body() -> None:
        service = World().process().service
        for order in (service.pause, service.resume, service.stop):
            with pytest.raises(NotFound):
                await order("run_none")

    run(body())


def test_resume_takes_up_what_no_process_drives() -> None:
    """A run that a crash left behind goes on, whatever it was at."""

    async def body() -> None:
        world = World()
        dying = world.process(never())
        name = await dying.start(passes(2))
        await quiet()
        world.kill(dying)
        process = world.process(never())
        await process.service.resume(name)
        await quiet()
        assert set(process.scripted.held) == {(name, "main.0/agent#1")}

    run(body())


def test_two_processes_that_resume_a_run_at_once_resume_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both see it paused. One of them writes the event and counts the run."""

    async def body() -> None:
        world = World()
        dying = world.process(never())
        name = await dying.start(passes(2))
        await dying.service.pause(name)
        await quiet()
        world.kill(dying)
        first, second = world.process(never()), world.process(never())
        assert second.service.state(name).control.paused
        tell, answers = second.service._append_event, []

        async def tell_later(*what: Any, **how: Any) -> None:
            """The other process comes first, once."""
            if not answers:
                answers.append(await first.service.resume(name))
                how["expected"] = 1  # what was read before that
            await tell(*what, **how)

        monkeypatch.setattr(second.service, "_append_event", tell_later)
        answers.append(await second.service.resume(name))
        assert answers == [True, False]
        events = [one.event for one in second.service.events(name)]
        assert sum(isinstance(one, RunResumed) for one in events) == 1

    run(body())


def test_resume_of_a_run_that_is_driven_elsewhere_is_refused_by_name() -> None:
    """Two drivers never drive one run."""

    async def body() -> None:
        world = World()
        first, second = world.process(never()), world.process(never())
        name = await first.start(passes(2))
        with pytest.raises(Conflict, match=str(first.owner.pid)) as error:
            await second.service.resume(name)
        assert refused(error) == "already-driven"

    run(body())


@pytest.mark.item("rondoflow-34")
def test_after_a_stop_no_later_pass_begins_and_a_new_start_is_possible() -> None:
    """Stop during an iteration: its call is cancelled, nothing follows, the key is free."""

    async def body() -> None:
        process = World().process(never())
        name = await process.start(passes(3), key="k")
        await quiet()
        await process.service.stop(name)
        await process.tick(60_000)
        assert process.kinds(name).count("iteration.started") == 1
        assert len(process.scripted.jobs) == 1
        assert await process.start(passes(3), key="k")

    run(body())


def test_open_statuses_are_those_that_can_still_end() -> None:
    """A list of open runs has no ended one and misses no open one."""

    async def body() -> None:
        process = World().process()
        ended = (await process.finish(passes(1))).run
        name, _ = await at_gate(process)
        assert [row.run for row in process.service.rows(OPEN_STATUSES)] == [name]
        assert {row.run for row in process.service.rows()} == {ended, name}
        assert len(process.service.rows(limit=1)) == 1

    run(body())


def test_a_step_gate_carries_what_the_person_said() -> None:
    """With `capture` the text of an approval is the output of the step."""

    async def body() -> None:
        process = World().process()
        plan = plan_of(Step(id="ask", action=AskPerson(capture=True)))
        name, gate = await at_gate(process, plan)
        await process.service.answer(gate, "approve", text="blue")
        await process.driver.rest(name)
        finished = process.state(name).finished
        assert finished is not None
        assert finished.output == "blue"

    run(body())


@pytest.mark.parametrize("known", [True, False], ids=["has a name", "is a number"])
def test_a_person_is_known_by_the_user_id(monkeypatch: pytest.MonkeyPatch, *, known: bool) -> None:
    """By the name that the machine has for it, whatever variables say; in a container there may be
    none.
    """
    for name in ("USER", "LOGNAME", "LOOPWRIGHT_USER"):
        monkeypatch.setenv(name, "somebody-else")
    monkeypatch.setattr(access.os, "getuid", lambda: 0 if known else 2**31 - 7)
    expected = pwd.getpwuid(0).pw_name if known else f"uid-{2**31 - 7}"
    assert access.current_user() == expected
