"""Steps that write, a coordinator that listens and writes back, and what becomes of each message.

Agents are functions here: they may use the tools of their run while their call is under way.
"""

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from loopwright.errors import LoopwrightError
from loopwright.kernel.events import (
    CoordinatorFinalized,
    CoordinatorNarrated,
    EffectFailed,
    EffectRequested,
    MessageDelivered,
    MessageDropped,
    MessageSent,
)
from loopwright.model.record import JsonValue
from loopwright.operations.messages import send_message
from loopwright.ports import EffectJob, ToolReply
from tests.engine.world import World, quiet, run
from tests.journeys.flows import (
    JUDGE,
    Cast,
    Played,
    Words,
    failure,
    flow,
    named,
    plan_of,
    play,
    to_the_end,
)
from tests.support.laws.run import event_problems

LISTENS = "  coordinator: {description: Listens.}\n"
LOOP = """
  - id: stages
    loop:
      maxIterations: 3
      steps:
        - {id: worker, agent: w, instructions: Work.}
"""
Act = Callable[[EffectJob], Awaitable[Words]]


def by_place(
    acts: dict[str, Act | Words], default: Words = "ok"
) -> Callable[[EffectJob], Awaitable[Words]]:
    """Who does what, by the place of the call."""

    async def says(job: EffectJob) -> Words:
        act = acts.get(named(job), "" if named(job) == "/coordinator" else default)
        return await act(job) if callable(act) else act

    return says


async def use(job: EffectJob, tool: str, **arguments: JsonValue) -> ToolReply:
    """Use a tool of the run."""
    assert job.talk is not None
    return await job.talk.use(tool, arguments)


async def settled(job: EffectJob, tool: str, **arguments: JsonValue) -> ToolReply:
    """Use a tool and give everybody else time to act on it."""
    told = await use(job, tool, **arguments)
    await quiet(40)
    return told


def only(played: Played, kind: type) -> list:  # type: ignore[type-arg]
    return [event for event in played.events if isinstance(event, kind)]


def lawful(played: Played) -> None:
    assert event_problems(played.plan, played.events) == []


def sends(text: str, *, reads: float = 0) -> Act:
    """A step that writes to the coordinator, and reads what comes back."""

    async def act(job: EffectJob) -> Words:
        told = await use(job, "send_message", text=text)
        heard = await use(job, "read_inbox", wait=reads) if reads else None
        return f"{told.text} | {[one.text for one in heard.messages] if heard else ''}"

    return act


class Coordinator:
    """Answers what it reads by a function of its prompt; keeps what it was told."""

    def __init__(self, *acts: tuple[str, str, dict[str, JsonValue]]) -> None:
        self.acts = list(acts)
        self.told: list[ToolReply] = []
        self.prompts: list[str] = []

    async def __call__(self, job: EffectJob) -> Words:
        """Each act waits for its words in the prompt, and is done once."""
        self.prompts.append(job.prompt.text)
        for act in [act for act in self.acts if act[0] in job.prompt.text]:
            self.acts.remove(act)
            self.told.append(await use(job, act[1], **act[2]))
        return ""


def forward(to: str, text: str = "take care", **more: JsonValue) -> dict[str, JsonValue]:
    return {"target_step_id": to, "text": text, **more}


# -- from a step to the coordinator ----------------------------------------------------------------


@pytest.mark.item("zenflow-59")
@pytest.mark.parametrize(
    ("steps", "sender"),
    [
        pytest.param("  - {id: a, agent: w, instructions: Go.}", "a", id="step"),
        pytest.param(LOOP, "stages.0.worker", id="inner step of a pass"),
        pytest.param(
            "  - id: each\n    loop:\n      forEach: [x]\n      steps:\n"
            "        - {id: deploy, agent: w, instructions: Go.}",
            "each[0].deploy",
            id="inner step of an item",
        ),
        pytest.param(
            "  - {id: each, agent: w, instructions: Go., loop: {forEach: [x]}}",
            "each[0]",
            id="item of a single step",
        ),
    ],
)
def test_a_step_writes_to_the_coordinator_by_its_own_name(steps: str, sender: str) -> None:
    """The message is an event while the call is under way, and the coordinator reads who wrote."""
    listens = Coordinator()
    played = play(
        flow(steps, agents=LISTENS),
        by_place({sender: sends("half way"), "/coordinator": listens}),
    )
    (sent,) = only(played, MessageSent)
    assert (sent.sender, sent.to, sent.text) == (sender, "coordinator", "half way")
    assert any(f"- message from={sender}: half way" in prompt for prompt in listens.prompts)
    (read,) = [event for event in only(played, MessageDelivered) if event.messages]
    assert read.messages == (sent.message,)
    lawful(played)


@pytest.mark.item("zenflow-59")
def test_a_message_is_an_event_before_its_call_has_ended() -> None:
    """The order of the log: asked, written, answered."""
    played = play(flow(LOOP, agents=LISTENS), by_place({"stages.0.worker": sends("half way")}))
    effect = "stages.0.worker/agent#1"
    about = [type(f).__name__ for f in played.events if getattr(f, "effect", "") == effect]
    assert about == ["EffectRequested", "MessageSent", "EffectDone"]


def test_an_empty_message_is_refused() -> None:
    """A tool that is used wrongly says so, and nothing is written."""
    played = play(flow(LOOP, agents=LISTENS), by_place({"stages.0.worker": sends("  ")}))
    assert played.content("stages.0.worker").startswith("text must say something")
    assert only(played, MessageSent) == []


def test_a_judge_writes_to_nobody() -> None:
    """A judge has no inbox and no tools of the run."""
    steps = "  - {id: a, agent: w, instructions: Go., loop: {maxIterations: 1, untilAgent: judge}}"

    async def judge(job: EffectJob) -> Words:
        told = await use(job, "send_message", text="psst")
        return {"done": True, "reason": told.text}

    played = play(flow(steps, agents=LISTENS + JUDGE), by_place({"a.0/judge": judge}))
    assert only(played, MessageSent) == []
    assert played.ended["a"] == "completed"


# -- from the coordinator to a step ----------------------------------------------------------------


@pytest.mark.item("zenflow-60")
@pytest.mark.parametrize("address", ["stages.0.worker", "stages.worker", "worker"])
def test_a_forward_reaches_a_running_inner_step(address: str) -> None:
    """The agent reads it between its turns, as a turn of the sender, and the reading is an
    event.
    """
    listens = Coordinator(("from=stages.0.worker", "forward_to_agent", forward(address)))
    played = play(
        flow(LOOP, agents=LISTENS),
        by_place({"stages.0.worker": sends("which way?", reads=60), "/coordinator": listens}),
    )
    assert played.content("stages.0.worker") == "queued: m1 for coordinator | ['take care']"
    assert listens.told == [ToolReply(text=f"queued: m2 for {address}")]
    (drain,) = [event for event in only(played, MessageDelivered) if event.messages == ("m2",)]
    assert (drain.path, drain.to) == ("stages.0.worker", "stages.worker")
    assert drain.effect == "stages.0.worker/agent#1"
    lawful(played)


@pytest.mark.item("zenflow-60")
def test_what_comes_too_late_for_an_iteration_is_read_in_the_next() -> None:
    """The inbox belongs to the step, not to the iteration: the next prompt begins with what
    waited.
    """
    steps = (
        f"{LOOP.rstrip()}\n        - {{id: rest, agent: w, instructions: R., dependsOn: [worker]}}"
    )

    async def rest(job: EffectJob) -> Words:
        await quiet(60)
        return "ok"

    listens = Coordinator(
        ("step=stages.0.worker completed", "forward_to_agent", forward("stages.0.worker"))
    )
    played = play(
        flow(steps, agents=LISTENS),
        by_place({"/coordinator": listens, "stages.0.rest": rest}),
    )
    assert "[coordinator]" not in played.prompt("stages.0.worker")
    assert "## Messages\n\n[coordinator]: take care" in played.prompt("stages.1.worker")
    assert "[coordinator]" not in played.prompt("stages.2.worker")
    (drain,) = [event for event in only(played, MessageDelivered) if event.messages]
    assert drain.effect == "stages.1.worker/agent#1"
    lawful(played)


@pytest.mark.item("zenflow-60")
def test_mail_waits_for_a_step_that_has_not_begun() -> None:
    """A forward to a later step is in its first prompt."""
    steps = """
  - {id: a, agent: w, instructions: Go.}
  - {id: b, agent: w, instructions: On., dependsOn: [a]}
"""

    async def first(job: EffectJob) -> Words:
        await quiet(40)
        return "ok"

    listens = Coordinator(("run.started", "forward_to_agent", forward("b", "mind the gap")))
    played = play(flow(steps, agents=LISTENS), by_place({"/coordinator": listens, "a": first}))
    assert "[coordinator]: mind the gap" in played.prompt("b")
    assert "mind the gap" not in played.prompt("a")
    lawful(played)


@pytest.mark.item("zenflow-61")
@pytest.mark.parametrize(
    ("steps", "inside"),
    [
        pytest.param(LOOP, "stages.worker", id="loop"),
        pytest.param(
            LOOP.replace("maxIterations: 3", "forEach: [x, y]"), "stages[0].worker", id="items"
        ),
    ],
)
def test_a_loop_takes_no_message(steps: str, inside: str) -> None:
    """The refusal says why and names what can be written to; the text stays in the events."""
    listens = Coordinator(("run.started", "forward_to_agent", forward("stages", "to all of you")))

    async def slowly(job: EffectJob) -> Words:
        await quiet(20)
        return "ok"

    acts: dict[str, Act | Words] = {"/coordinator": listens}
    for place in ("stages.0.worker", "stages[0].worker", "stages[1].worker"):
        acts[place] = slowly
    played = play(flow(steps, agents=LISTENS), by_place(acts))
    (dropped,) = only(played, MessageDropped)
    assert (dropped.reason, dropped.to, dropped.text) == ("container", "stages", "to all of you")
    (told,) = listens.told
    assert not told.ok
    assert "reads no messages itself" in told.text
    assert any(name.startswith(inside.split(".")[0].split("[")[0]) for name in dropped.known)
    assert dropped.known
    assert set(played.ended.values()) == {"completed"}
    lawful(played)


@pytest.mark.item("zenflow-62")
def test_a_forward_to_nobody_is_dropped_once() -> None:
    """Reason, the ids that would have been understood, the text, and exactly one event."""
    steps = "  - {id: a, agent: w, instructions: Go.}\n  - {id: b, agent: w, instructions: Go.}"
    listens = Coordinator(("run.started", "forward_to_agent", forward("c", "hello?")))
    played = play(flow(steps, agents=LISTENS), by_place({"/coordinator": listens}))
    (dropped,) = only(played, MessageDropped)
    assert (dropped.reason, dropped.known, dropped.text) == ("unknown-step", ("a", "b"), "hello?")
    assert listens.told[0].text == "dropped: unknown-step: there is no step 'c'; there are: a, b"
    assert any("was dropped (unknown-step)" in prompt for prompt in listens.prompts)
    lawful(played)


@pytest.mark.item("zenflow-62")
def test_a_bare_name_that_fits_two_steps_is_refused_with_both() -> None:
    """An ambiguous name is an error that lists the candidates, and nobody gets the message."""
    steps = f"{LOOP}{LOOP.replace('stages', 'other')}"

    async def slowly(job: EffectJob) -> Words:
        await quiet(20)
        return "ok"

    listens = Coordinator(("run.started", "forward_to_agent", forward("worker")))
    acts: dict[str, Act | Words] = {"/coordinator": listens}
    acts |= {"stages.0.worker": slowly, "other.0.worker": slowly}
    played = play(flow(steps, agents=LISTENS), by_place(acts))
    (dropped,) = only(played, MessageDropped)
    assert dropped.reason == "ambiguous"
    assert dropped.known == ("stages.0.worker", "other.0.worker")
    assert not any("take care" in job.prompt.text for job in played.cast.jobs if job.path)
    lawful(played)


@pytest.mark.item("zenflow-63")
@pytest.mark.parametrize(
    ("steps", "place", "address"),
    [
        pytest.param("  - {id: a, agent: w, instructions: Go.}", "a", "a", id="step"),
        pytest.param(LOOP, "stages.1.worker", "stages.1.worker", id="inner step"),
        pytest.param(
            "  - {id: a, agent: w, instructions: Go., loop: {maxIterations: 3}}",
            "a.1",
            "a",
            id="loop of one step",
        ),
        pytest.param(
            "  - {id: a, agent: w, instructions: Go., loop: {forEach: [x, y]}}",
            "a[1]",
            "a[1]",
            id="item",
        ),
    ],
)
def test_a_cancel_stops_its_step(steps: str, place: str, address: str) -> None:
    """The call is ended, and the step completes with the content `cancelled`."""

    async def hangs(job: EffectJob) -> Words:
        await use(job, "send_message", text="I hang")
        return None

    cancel = forward(address, "enough", kind="cancel")
    listens = Coordinator(("I hang", "forward_to_agent", cancel))
    played = play(flow(steps, agents=LISTENS), by_place({place: hangs, "/coordinator": listens}))
    ended = {f.effect: f for f in played.events if isinstance(f, EffectFailed)}
    assert ended[f"{place}/agent#1"].error.type == "cancelled"
    step = place if place in played.ends else "a"
    assert played.ends[step].status == "completed"
    assert played.end.outcome == "completed"
    if step == place or address == "a":
        assert played.content(step) == "cancelled"
    lawful(played)


@pytest.mark.item("zenflow-63")
def test_a_cancel_for_a_step_that_does_not_run_is_dropped() -> None:
    """Only what is under way can be stopped; the step runs when its turn comes."""
    steps = """
  - {id: a, agent: w, instructions: Go.}
  - {id: b, agent: w, instructions: On., dependsOn: [a]}
"""
    listens = Coordinator(("run.started", "forward_to_agent", forward("b", "", kind="cancel")))

    async def first(job: EffectJob) -> Words:
        await quiet(40)
        return "ok"

    played = play(flow(steps, agents=LISTENS), by_place({"/coordinator": listens, "a": first}))
    (dropped,) = only(played, MessageDropped)
    assert dropped.reason == "not-running"
    assert played.content("b") == "ok"
    lawful(played)


# -- writing to a step that has ended --------------------------------------------------------------

TWO = """
  - {id: a, agent: w, instructions: Say A.}
  - {id: b, agent: w, instructions: Say B., dependsOn: [a]}
"""


@pytest.mark.item("zenflow-64")
def test_a_message_to_an_ended_step_wakes_it_for_a_reply() -> None:
    """It is called once more with its task, its answer and the message; its result stands."""
    ask = forward("a", "what did you mean?")
    listens = Coordinator(("step.finished step=a", "forward_to_agent", ask))

    async def second(job: EffectJob) -> Words:
        await quiet(60)
        return "B"

    played = play(
        flow(TWO, agents=LISTENS),
        by_place({"/coordinator": listens, "a": "A", "a/reply": "I meant A.", "b": second}),
    )
    prompt = played.prompt("a/reply")
    assert "Say A." in prompt
    assert "## Your answer\n\nA" in prompt
    assert "[coordinator]: what did you mean?" in prompt
    reply = next(event for event in only(played, MessageSent) if event.intent == "reply")
    assert (reply.sender, reply.to, reply.text, reply.reply_to) == (
        "a",
        "coordinator",
        "I meant A.",
        "m1",
    )
    assert any("- reply from=a: I meant A." in prompt for prompt in listens.prompts)
    assert played.content("a") == "A"
    lawful(played)


@pytest.mark.item("zenflow-64")
@pytest.mark.parametrize(
    ("steps", "address", "reason"),
    [
        pytest.param(TWO, "a", "target-terminal", id="a step that failed"),
        pytest.param(
            '  - {id: a, agent: w, instructions: Go., condition: "1 > 2"}\n'
            "  - {id: b, agent: w, instructions: Go., dependsOn: [a]}",
            "a",
            "no-transcript",
            id="a step that was skipped",
        ),
        pytest.param(
            f"{LOOP}  - {{id: b, agent: w, instructions: Go., dependsOn: [stages]}}",
            "stages.0.worker",
            "target-terminal",
            id="an inner step of a loop that has ended",
        ),
    ],
)
def test_or_it_is_dropped_and_the_reason_has_a_name(steps: str, address: str, reason: str) -> None:
    """Whoever cannot answer gets nothing, and the sender is told why."""
    top = address.partition(".")[0]
    kind = "skipped" if reason == "no-transcript" else "finished"
    waits = (f"step.{kind} step={top} ", "forward_to_agent", forward(address))
    listens = Coordinator(waits)

    async def second(job: EffectJob) -> Words:
        await quiet(60)
        return "B"

    acts: dict[str, Act | Words] = {"/coordinator": listens, "b": second}
    if reason == "target-terminal" and top == "a":
        acts["a"] = failure()
    played = play(flow(steps, agents=LISTENS), by_place(acts))
    (dropped,) = only(played, MessageDropped)
    assert (dropped.reason, dropped.text) == (reason, "take care")
    lawful(played)


@pytest.mark.item("zenflow-64")
def test_a_step_that_never_looked_is_asked_after_it_has_ended() -> None:
    """Mail that came while a plain program ran is not lost: the step is woken for it."""

    async def deaf(job: EffectJob) -> Words:
        await use(job, "send_message", text="busy")
        await quiet(60)
        return "A"

    listens = Coordinator(("busy", "forward_to_agent", forward("a")))
    played = play(
        flow("  - {id: a, agent: w, instructions: Go.}", agents=LISTENS),
        by_place({"/coordinator": listens, "a": deaf, "a/reply": "understood"}),
    )
    assert played.calls.count("a/reply") == 1
    assert played.content("a") == "A"
    lawful(played)


@pytest.mark.item("zenflow-64")
def test_answers_come_to_an_end() -> None:
    """A coordinator that asks for ever is stopped by the number of answers a step gives."""

    async def asks(job: EffectJob) -> Words:
        if "step.finished step=a" in job.prompt.text or "reply from=a" in job.prompt.text:
            await use(job, "forward_to_agent", **forward("a", "and?"))
        return ""

    played = play(
        flow("  - {id: a, agent: w, instructions: Go.}", agents=LISTENS),
        by_place({"/coordinator": asks}),
    )
    assert played.calls.count("a/reply") == 10
    assert [event.reason for event in only(played, MessageDropped)] == ["max-wake-cycles"]
    lawful(played)


def test_an_answer_that_fails_is_reported() -> None:
    """The step's result stands, the run completes, and the coordinator hears of it."""
    listens = Coordinator(("step.finished step=a", "forward_to_agent", forward("a")))
    played = play(
        flow("  - {id: a, agent: w, instructions: Go.}", agents=LISTENS),
        by_place({"/coordinator": listens, "a/reply": failure("no voice")}),
    )
    assert played.end.outcome == "completed"
    assert any("reply.failed step=a could not answer" in prompt for prompt in listens.prompts)
    lawful(played)


# -- the coordinator itself ------------------------------------------------------------------------


@pytest.mark.item("zenflow-65")
@pytest.mark.parametrize(
    "coordinator",
    [
        pytest.param(None, id="absent"),
        pytest.param("", id="silent"),
        pytest.param(failure("crashed", "exit"), id="crashes"),
        pytest.param(failure("busy", "overloaded"), id="not available"),
    ],
)
def test_steps_end_the_same_without_a_coordinator(coordinator: Words) -> None:
    """Whatever the coordinator does or fails to do, every step ends as it would have."""
    steps = f"{TWO}  - {{id: c, agent: w, instructions: C., dependsOn: [b]}}"
    agents = "" if coordinator is None else LISTENS
    acts: dict[str, Act | Words] = {"a": sends("hi"), "b": failure(), "/coordinator": coordinator}
    played = play(flow(steps, agents=agents), by_place(acts))
    assert played.top == {"a": "completed", "b": "failed", "c": "cancelled"}
    assert (played.end.outcome, played.end.reason) == ("failed", "partial")
    (sent,) = only(played, MessageSent)
    fates = [f for f in only(played, MessageDelivered) if sent.message in f.messages]
    fates += [f for f in only(played, MessageDropped) if f.message == sent.message]
    assert len(fates) == 1
    lawful(played)


@pytest.mark.item("zenflow-65")
def test_a_coordinator_that_never_answers_does_not_hold_a_run_for_ever() -> None:
    """All steps have ended; after a while the run ends too, and what nobody read is dropped."""

    async def hangs(job: EffectJob) -> Words:
        return None

    played = play(flow(TWO, agents=LISTENS), by_place({"/coordinator": hangs, "a": sends("hi")}))
    assert (played.end.outcome, played.top) == ("completed", {"a": "completed", "b": "completed"})
    assert [event.reason for event in only(played, MessageDropped)] == ["hold-timeout"]
    lawful(played)


@pytest.mark.item("zenflow-65")
def test_a_message_without_a_coordinator_is_dropped() -> None:
    """The writer is told that nobody listens, and goes on."""
    played = play(flow(TWO), by_place({"a": sends("hi")}))
    assert [event.reason for event in only(played, MessageDropped)] == ["no-coordinator"]
    assert played.content("a").startswith("dropped: no-coordinator")
    assert played.ended["b"] == "completed"


def test_what_the_coordinator_reports_and_sums_up() -> None:
    """Narrations are events; the summary is the output of the run, and closes the inbox."""

    async def listens(job: EffectJob) -> Words:
        if "step.finished step=a" in job.prompt.text:
            await use(job, "narrate", text="A is done.")
            await use(job, "finalize", summary="All good.")
            again = await use(job, "finalize", summary="No.")
            assert not again.ok
        return "said in passing"

    async def late(job: EffectJob) -> Words:
        await quiet(80)
        return (await use(job, "send_message", text="late")).text

    played = play(flow(TWO, agents=LISTENS), by_place({"/coordinator": listens, "b": late}))
    told = [event.text for event in only(played, CoordinatorNarrated)]
    assert told == ["said in passing", "A is done."]
    assert [event.summary for event in only(played, CoordinatorFinalized)] == ["All good."]
    assert played.end.output == "All good."
    assert played.content("b").startswith("dropped: mailbox-closed-by-finalize")
    lawful(played)


def test_a_plain_program_coordinates_by_its_answer() -> None:
    """An object with `tools` in the answer is as good as using them; wrong ones are left out."""
    words = """Here you are: {"tools": [
      {"name": "forward_to_agent", "args": {"target_step_id": "b", "text": "mind the gap"}},
      {"name": "narrate", "args": {"text": "On we go."}}, {"name": "dance"}, 7]}"""

    async def first(job: EffectJob) -> Words:
        await quiet(40)
        return "ok"

    async def listens(job: EffectJob) -> Words:
        return words if "run.started" in job.prompt.text else '{"tools": "none"}'

    played = play(flow(TWO, agents=LISTENS), by_place({"/coordinator": listens, "a": first}))
    assert "[coordinator]: mind the gap" in played.prompt("b")
    assert only(played, CoordinatorNarrated)[0].text == "On we go."
    lawful(played)


def test_the_coordinator_is_called_so_often_and_no_more() -> None:
    """Beyond its limit it is not called, and what was written to it is dropped."""
    plan = plan_of(flow(TWO, agents=LISTENS))
    assert plan.coordinator is not None
    plan = replace(plan, coordinator=replace(plan.coordinator, max_calls=1))
    played = play(plan, by_place({"b": sends("hi")}))
    assert played.calls.count("/coordinator") == 1
    assert [event.reason for event in only(played, MessageDropped)] == ["max-wake-cycles"]
    lawful(played)


# -- people ----------------------------------------------------------------------------------------


def test_a_person_writes_to_a_step() -> None:
    """The message is read like any other; an address that means nobody is refused at once."""

    async def body() -> None:
        cast = Cast(by_place({"a": sends("?", reads=300)}))
        process = World().process(performer=cast)
        plan = plan_of(flow(TWO))
        name = await process.start(plan)
        await quiet()
        with pytest.raises(LoopwrightError, match="no step 'z'"):
            await send_message(process.service, name, "z", "hello")
        with pytest.raises(LoopwrightError, match="the message is empty"):
            await send_message(process.service, name, "a", " ")
        assert await send_message(process.service, name, "a", "try harder", by="ann") == "m2"
        played = Played(process, name, cast, plan)
        await to_the_end(played)
        assert "['try harder']" in played.content("a")
        lawful(played)

    run(body())


def test_a_run_that_is_stopped_drops_what_nobody_read() -> None:
    """Each message has one end, also when the run has another than it was meant to."""

    async def body() -> None:
        cast = Cast(by_place({"a": None}))
        process = World().process(performer=cast)
        plan = plan_of(flow(TWO, agents=LISTENS))
        name = await process.start(plan)
        await quiet()
        await send_message(process.service, name, "b", "later")
        await process.service.stop(name)
        played = Played(process, name, cast, plan)
        await to_the_end(played)
        assert [event.reason for event in only(played, MessageDropped)] == ["workflow-cancelled"]
        lawful(played)

    run(body())


# -- names in events -------------------------------------------------------------------------------


@pytest.mark.item("zenflow-47")
def test_events_name_pass_item_inner_step_and_judge() -> None:
    """`loop.0.inner`, `each[0].inner`, `each[0]` and `loop.judge`, as in the documents."""
    steps = """
  - id: loop
    loop:
      maxIterations: 1
      untilAgent: judge
      steps: [{id: inner, agent: w, instructions: Go.}]
  - id: each
    loop: {forEach: [x], steps: [{id: inner, agent: w, instructions: Go.}]}
  - {id: one, agent: w, instructions: Go., loop: {forEach: [x]}}
"""
    played = play(flow(steps, agents=JUDGE), {"loop.0/judge": {"done": True}})
    paths = {getattr(event, "path", "") for event in played.events}
    assert {"loop.0", "loop.0.inner", "each[0]", "each[0].inner", "one[0]"} <= paths
    asked = [f.call for f in played.events if isinstance(f, EffectRequested)]
    assert {getattr(call, "step", "") for call in asked} == {"", "loop.judge"}
    verdicts = [f for f in played.events if type(f).__name__ == "CheckVerdict"]
    assert [f.by for f in verdicts] == ["loop.judge"]  # type: ignore[union-attr]
