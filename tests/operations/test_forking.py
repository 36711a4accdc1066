"""Forking a run: where it may be done, what is new, and that the other one stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from loopwright.errors import Conflict, LoopwrightError
from loopwright.kernel.event_parts import AgentCall, ModelCall, ToolCall
from loopwright.kernel.events import (
    AgentChanged,
    EffectRequested,
    GateOpened,
    RunForked,
    RunStarted,
    Usage,
)
from loopwright.kernel.frames import RepeatBody
from loopwright.kernel.reopened_runs import places
from loopwright.model.actions import AskPerson, CallAgent, Each, Repeat, Step
from loopwright.model.checks import Contains
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import Limits
from loopwright.model.record import LiteralItems
from loopwright.operations.forks import MAX_EDIT_BYTES, Fork, fork
from loopwright.ports import Answer, EffectJob, EffectSuccess
from loopwright.testing.fakes import answer_of, failed
from tests.engine.world import Process, World, no_schema, quiet, run
from tests.kernel.test_cycles import HELD, call, turn
from tests.kernel.test_cycles import plan as cycle_plan
from tests.support.laws.log import check_invariants
from tests.support.plans import plan_of, step

LOOP = plan_of(step("main", Repeat(body=CallAgent(agent="worker"), max=4)))
PAID = Usage(input_tokens=10, usd=0.1)


def by_model(job: EffectJob) -> Answer | None:
    """A chat model that works for three turns and is done in the fourth; tools always work."""
    if isinstance(job.call, ToolCall):
        return EffectSuccess(output=f"{job.call.call} ok", code=0)
    if not isinstance(job.call, ModelCall):
        return answer_of(f"pass {job.iteration}")
    wanted = [call(f"c{job.iteration}", "shell.exec")] if job.iteration < 4 else []
    said = turn("DONE" if job.iteration >= 4 else "more", *wanted)
    return EffectSuccess(output=said.text, result=said.result, usage=PAID)


def chat(**more: object) -> Plan:
    made = cycle_plan(Contains(text="DONE"), most=6, **more)  # type: ignore[arg-type]
    coder = replace(made.agents["coder"], spec="model:local/one", options={"top_p": 0.5})
    return replace(made, agents={"coder": coder})


@pytest.fixture(autouse=True)
def _address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are checked before they are changed, as at a start; none is ever asked here."""
    monkeypatch.setenv("LOOPWRIGHT_MODEL_BASE_URL", "http://127.0.0.1:9/v1")


async def ended(process: Process, plan: Plan = LOOP, **more: object) -> str:
    name = await process.start(plan, **more)
    await process.driver.rest(name)
    return name


async def forked(process: Process, name: str, at: str | None, **more: object) -> str:
    made, _ = await fork(process.service, name, Fork(at=at, **more), by="ann")  # type: ignore[arg-type]
    await process.driver.rest(made)
    return made


def requests(process: Process, name: str) -> list[str]:
    return [f.effect for f in process.events(name) if isinstance(f, EffectRequested)]


@pytest.mark.item("aldo-48", "aldo-49")
@pytest.mark.parametrize("plan", [LOOP, chat()], ids=["agent", "model"])
def test_every_finished_place_can_be_forked(plan: Plan) -> None:
    """Each fork has an id of its own, goes on to the end, and the other run stays as it was."""

    async def body() -> None:
        process = World().process(by_model)
        name = await ended(process, plan)
        before = process.events(name)
        made = [await forked(process, name, f"main.{number}") for number in range(3)]
        assert process.events(name) == before
        for number, one in enumerate(made):
            events = process.events(one)
            first, [mark] = events[0], [f for f in events if isinstance(f, RunForked)]
            assert isinstance(first, RunStarted)
            assert (first.run, first.parent, first.by) == (one, name, "ann")
            assert (mark.parent, mark.place, mark.by) == (name, f"main.{number}", "ann")
            assert process.state(one).finished == replace(
                process.state(name).finished,  # type: ignore[arg-type]
                at=process.state(one).finished.at,  # type: ignore[union-attr]
            )
            assert process.state(one).usage == process.state(name).usage
        asked = [(job.run, job.effect) for job in process.scripted.jobs]
        assert len(asked) == len(set(asked))
        assert check_invariants(process.log, no_schema) == []

    run(body())


@pytest.mark.item("aldo-49")
def test_another_model_and_words_for_it() -> None:
    """The next turn is asked of the other model, with all that was set; the words are an event."""

    async def body() -> None:
        process = World().process(by_model)
        name = await ended(process, chat())
        made = await forked(process, name, "main.1", model="local/two", edit="Try again.")
        [changed] = [f for f in process.events(made) if isinstance(f, AgentChanged)]
        assert changed.becomes == Agent(spec="model:local/two", options={"top_p": 0.5})
        [mark] = [f for f in process.events(made) if isinstance(f, RunForked)]
        assert mark.text == "Try again."
        assert requests(process, made)[-1] == "main.3/model#1"
        assert process.state(made).plan.agents["coder"].spec == "model:local/two"
        assert process.state(name).plan.agents["coder"].spec == "model:local/one"
        assert check_invariants(process.log, no_schema) == []

    run(body())


def test_a_model_with_its_prefix_and_the_same_one() -> None:
    """`model:X` is X, and nothing changes when it is the one that was there."""

    async def body() -> None:
        process = World().process(by_model)
        name = await ended(process, chat())
        made = await forked(process, name, "main.1", model="model:local/one")
        assert not any(isinstance(f, AgentChanged) for f in process.events(made))

    run(body())


def test_another_agent() -> None:
    """Named as for a start: the calls from the fork on are made of it."""

    async def body() -> None:
        process = World().process(by_model)
        plan = replace(LOOP, agents={"worker": Agent(spec="command:one")})
        name = await ended(process, plan)
        made = await forked(process, name, "main.1", agents=("worker=command:sh",))
        specs = [j.agent.spec for j in process.scripted.jobs if j.run == made and j.agent]
        assert specs == ["command:sh", "command:sh"]
        assert process.state(name).plan.agents["worker"].spec == "command:one"

    run(body())


def test_words_reach_the_next_iteration_of_another_loop() -> None:
    """They are its feedback; keys in them are masked, as in every message."""

    async def body() -> None:
        process = World().process(by_model)
        name = await ended(process)
        made = await forked(process, name, "main.1", edit="Use ghp_" + "a" * 36)
        prompts = [job.prompt.text for job in process.scripted.jobs if job.run == made]
        assert "Feedback from a person" in prompts[0]
        assert "aaaa" not in prompts[0]
        assert "Feedback" not in prompts[1]

    run(body())


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        pytest.param(Fork(at="main.7"), "unknown-place", "no place 'main.7'", id="unknown"),
        pytest.param(Fork(at=None), "no-place", "say where", id="nowhere"),
        pytest.param(Fork(at=""), "unknown-place", "no place ''", id="empty"),
        pytest.param(Fork(at="main"), "not-finished", "has not ended", id="under way"),
        pytest.param(Fork(at="main.2"), "not-finished", "has not ended", id="a pass under way"),
        pytest.param(Fork(at="gone"), "not-finished", "is failed", id="failed"),
        pytest.param(Fork(at="left"), "not-finished", "nothing of it was run", id="skipped"),
        pytest.param(Fork(at="main.0", edit=" "), "bad-edit", "--edit", id="no words"),
        pytest.param(
            Fork(at="main.0", edit="x" * (MAX_EDIT_BYTES + 1)), "bad-edit", "--edit", id="many"
        ),
        pytest.param(
            Fork(at="first", edit="x"), "no-next-pass", "is not an iteration", id="no loop"
        ),
        pytest.param(
            Fork(at="each[0]", edit="x"), "no-next-pass", "is not an iteration", id="an item"
        ),
        pytest.param(Fork(at="main.0", model="a/b"), "no-chat-model", "chat model", id="model"),
        pytest.param(
            Fork(at="main.0", workspace=Path("/nowhere-at-all")),
            "no-workspace",
            "is not a folder",
            id="ws",
        ),
    ],
)
def test_what_is_refused(options: Fork, code: str, words: str) -> None:
    """With the places that would do, and nothing is made."""
    items = Repeat(body=CallAgent(agent="worker"), each=Each(items=LiteralItems(values=("a", "b"))))
    plan = plan_of(
        step("first"),
        Step(id="gone", action=CallAgent(agent="worker"), on_error="continue"),
        step("left", needs=("gone",)),
        step("each", items),
        *LOOP.steps,
    )

    def script(job: EffectJob) -> Answer | None:
        if job.path == "gone":
            return failed("agent")
        return None if job.path in ("main.2", "each[1]") else answer_of("ok")

    async def body() -> None:
        process = World().process(script)
        name = await process.start(plan)
        await quiet()
        with pytest.raises(LoopwrightError, match=words) as error:
            await fork(process.service, name, options)
        assert error.value.code == code
        if "place" in code or code == "not-finished":
            assert error.value.hint is not None
            assert "first, each[0], main.0, main.1" in error.value.hint
        assert [row.run for row in process.log.rows()] == [name]

    run(body())


def test_nothing_has_completed_yet() -> None:
    """There is no place to name, and the refusal says so."""

    async def body() -> None:
        process = World().process(lambda job: None)
        name = await process.start(LOOP)
        await quiet()
        with pytest.raises(Conflict) as error:
            await fork(process.service, name, Fork(at="main.0"))
        assert error.value.hint == "nothing of it has completed yet: start a new run"

    run(body())


def test_of_many_places_the_newest_are_named() -> None:
    """A long run is not listed as a whole."""

    async def body() -> None:
        process = World().process(by_model)
        loop = Repeat(body=CallAgent(agent="worker"), max=40)
        name = await ended(process, plan_of(step("main", loop)))
        with pytest.raises(LoopwrightError) as error:
            await fork(process.service, name, Fork(at="other"))
        assert error.value.hint is not None
        assert "there are: … main.28" in error.value.hint
        assert error.value.hint.endswith("main.39")

    run(body())


def test_what_was_stopped_was_cut_short() -> None:
    """An iteration that a stop ended is no place to go on from; the one before is, also of such a
    run.
    """

    async def body() -> None:
        process = World().process(lambda job: None if job.path == "main.2" else answer_of("ok"))
        name = await process.start(LOOP)
        await quiet()
        await process.service.stop(name)
        await process.driver.rest(name)
        with pytest.raises(Conflict, match="cut short"):
            await fork(process.service, name, Fork(at="main.2"))
        process.scripted.script = by_model
        made = await forked(process, name, "main.1")
        assert process.status(made) == "exhausted"

    run(body())


@pytest.mark.parametrize(
    ("plan", "at", "edit"),
    [
        pytest.param(plan_of(step("main")), "main", None, id="the last step"),
        pytest.param(LOOP, "main.3", None, id="the last pass"),
        pytest.param(LOOP, "main.3", "more", id="no pass is left for the words"),
        pytest.param(chat(), "main.3", None, id="a conversation that is done"),
    ],
)
def test_where_nothing_follows(plan: Plan, at: str, edit: str | None) -> None:
    """A run that would end at once is not made; the refusal says how it would end."""

    async def body() -> None:
        process = World().process(by_model)
        name = await ended(process, plan)
        with pytest.raises(Conflict, match="the run would end at once") as error:
            await fork(process.service, name, Fork(at=at, edit=edit))
        assert error.value.code == "nothing-left"
        assert len(process.log.rows()) == 1

    run(body())


@pytest.mark.item("aldo-49", "aldo-66")
def test_going_on_with_a_conversation_that_was_done() -> None:
    """With words for it there is a next turn, and the model knows all before."""

    async def body() -> None:
        process = World().process(by_model)
        name = await ended(process, chat())
        made = await forked(process, name, "main.3", edit="And the tests?")
        assert requests(process, made)[-1] == "main.4/model#1"
        assert process.status(made) == "completed"
        assert process.state(made).usage.usd == pytest.approx(0.5)

    run(body())


@pytest.mark.item("aldo-49")
def test_a_budget_is_not_spent_twice() -> None:
    """What the original had spent up to there is spent in the fork."""

    async def body() -> None:
        process = World().process(by_model)
        plan = replace(chat(), limits=Limits(usd=0.3))
        name = await ended(process, plan)
        assert process.state(name).usage.usd == pytest.approx(0.3)
        made = await forked(process, name, "main.0")
        assert process.status(made) == "exhausted"
        assert process.state(made).usage.usd == pytest.approx(0.3)

    run(body())


@pytest.mark.item("aldo-33", "aldo-49")
def test_a_pending_approval_waits_in_both() -> None:
    """Each run has its own question about the call; an answer in one is none in the other."""

    async def body() -> None:
        process = World().process(by_model)
        talk = chat(approvals=HELD)
        plan = replace(talk, steps=(step("other"), *talk.steps))
        name = await ended(process, plan)
        made, _ = await fork(process.service, name, Fork(at="other"))
        await process.driver.rest(made)
        [first], [second] = process.log.gates(name), process.log.gates(made)
        assert first.gate != second.gate
        assert check_invariants(process.log, no_schema) == []
        await process.service.answer(first.gate, "approve", by="ann")
        await process.driver.rest(name)
        assert [gate.gate for gate in process.log.gates(made)] == [second.gate]
        assert not any(f == "main.0/tool1#1" for f in requests(process, made))
        await process.service.answer(second.gate, "reject", text="no", by="bob")
        await process.driver.rest(made)
        assert "main.1/model#1" in requests(process, made)
        assert "main.0/tool1#1" not in requests(process, made)
        assert check_invariants(process.log, no_schema) == []

    run(body())


def test_a_run_under_way_is_forked_and_continues() -> None:
    """Whoever drives it notices nothing; what it waits for is asked for in the fork too."""

    async def body() -> None:
        plan = plan_of(step("a"), step("slow"), step("b", needs=("a",)))
        process = World().process(lambda job: None if job.path == "slow" else answer_of("ok"))
        name = await process.start(plan)
        await quiet()
        made, known = await fork(process.service, name, Fork(at="a"))
        await quiet()
        jobs = [job.effect for job in process.scripted.jobs if job.run == made]
        assert jobs == ["slow/agent#1", "b/agent#1"]
        assert isinstance(process.events(made)[known], RunForked)
        for one in (name, made):
            process.scripted.answer(one, "slow/agent#1", "done")
            await process.driver.rest(one)
            assert process.status(one) == "completed"
        assert check_invariants(process.log) == []

    run(body())


def test_a_step_that_asks_is_asked_again() -> None:
    """The question stands in the inbox for each of the two runs."""

    async def body() -> None:
        plan = plan_of(step("a"), step("sure", AskPerson()))
        process = World().process()
        name = await ended(process, plan)
        made, _ = await fork(process.service, name, Fork(at="a"))
        await process.driver.rest(made)
        assert len({gate.gate for gate in process.log.gates()}) == 2
        opened = [f for f in process.events(made) if isinstance(f, GateOpened)]
        assert [gate.gate for gate in process.log.gates(made)] == [f.gate for f in opened]
        assert check_invariants(process.log) == []

    run(body())


def test_forks_of_forks() -> None:
    """A fork is a run like any other."""

    async def body() -> None:
        process = World().process(by_model)
        name = await ended(process)
        one = await forked(process, name, "main.0")
        two = await forked(process, one, "main.2")
        first = process.events(two)[0]
        assert isinstance(first, RunStarted)
        assert first.parent == one
        marks = [f.parent for f in process.events(two) if isinstance(f, RunForked)]
        assert marks == [name, one]
        assert list(places(process.events(two)).values()) == ["exhausted", *["completed"] * 4]
        assert check_invariants(process.log) == []

    run(body())


def test_a_workspace_that_is_kept_by_the_other(tmp_path: Path) -> None:
    """Where an open run has the folder for itself, the fork needs another one."""

    async def body() -> None:
        plan = replace(LOOP, exclusive="workspace")
        process = World().process(lambda job: None if job.path == "main.1" else answer_of("ok"))
        name = await process.start(plan)
        await quiet()
        with pytest.raises(Conflict, match=f"{name} .* holds workspace"):
            await fork(process.service, name, Fork(at="main.0"))
        made, _ = await fork(process.service, name, Fork(at="main.0", workspace=tmp_path))
        first = process.events(made)[0]
        assert isinstance(first, RunStarted)
        assert first.workspace == str(tmp_path)
        assert first.key == f"workspace {resolved}"

    resolved = tmp_path.resolve()
    run(body())


def test_artifacts_are_a_folder_of_its_own(tmp_path: Path) -> None:
    """With what the other run has made so far; what either makes later is its own."""

    async def body() -> None:
        process = World().process(by_model)
        process.service.artifacts = tmp_path
        name = await ended(process, replace(LOOP, settings={"artifacts": ""}))
        (tmp_path / name / "notes.md").write_text("one")
        made = await forked(process, name, "main.0")
        assert (tmp_path / made / "notes.md").read_text() == "one"
        assert process.state(made).plan.settings["artifacts"] == str(tmp_path / made)
        assert process.state(name).plan.settings["artifacts"] == str(tmp_path / name)

    run(body())


def test_without_a_driver_it_is_only_made() -> None:
    """Somebody else may take it up."""

    async def body() -> None:
        process = World().process(by_model)
        name = await ended(process)
        made, _ = await fork(process.looker, name, Fork(at="main.0"))
        assert process.status(made) == "running"
        assert process.driver.recover(process.log.rows(statuses=("running",))) == [made]
        await process.driver.rest(made)
        assert process.status(made) == "exhausted"
        assert isinstance(process.scripted.jobs[-1].call, AgentCall)
        body = process.state(made).owners.get("main")
        assert body is None or isinstance(body.body, RepeatBody)

    run(body())
