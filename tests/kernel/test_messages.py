"""Messages and the coordinator, decided: who reads what when, and the one end of each message."""

from __future__ import annotations

from typing import Any

import pytest

from loopwright.kernel.coordination import (
    MAX_TEXT_BYTES,
    MOST_FAILURES,
    MOST_WAKES,
    RefusedToolUse,
    caller_of,
    use,
)
from loopwright.kernel.event_parts import AgentCall
from loopwright.kernel.events import (
    AnyEvent,
    CoordinatorFinalized,
    CoordinatorNarrated,
    EffectRequested,
    MessageDelivered,
    MessageDropped,
    MessageSent,
    RunReopened,
    StepFinished,
    Usage,
)
from loopwright.kernel.frames import CoordinatorNotice
from loopwright.kernel.messages import KEPT_NOTICES, MAILBOX_SIZE, MOST_NOTICES, tell
from loopwright.model.actions import CallAgent, Cel, Each, Repeat, Step, Steps
from loopwright.model.checks import Judge
from loopwright.model.plan import Coordinator, Plan
from loopwright.model.policy import Limits
from loopwright.model.record import JsonValue, LiteralItems, literal
from tests.kernel.driving import Driver, Fail, Reply, plan_of_steps
from tests.support.laws.run import event_problems

WORK = CallAgent(agent="a", prompt=literal("Work."))
LISTENS = Coordinator(agent="c")
A_B = (Step(id="a", action=WORK), Step(id="b", action=WORK, needs=("a",)))
LOOP = Step(
    id="dev",
    action=Repeat(body=Steps(steps=(Step(id="w", action=WORK),)), max=2, at_cap="complete"),
)
CALL = "/coordinator#{}"


def plan(*steps: Step, **more: Any) -> Plan:
    return plan_of_steps(*(steps or A_B), **{"coordinator": LISTENS, **more})


class Run(Driver):
    """A driver whose agents can use the tools of their run."""

    def use(self, effect: str, tool: str, **arguments: JsonValue) -> list[AnyEvent] | str:
        """Use a tool in a call under way; what follows, or why not."""
        caller = caller_of(self.state, self.state.pending[effect])
        if isinstance(caller, RefusedToolUse):
            return caller.why
        found = use(self.state, caller, tool, arguments, self.texts)
        return found.why if isinstance(found, RefusedToolUse) else self.append(*found)

    def forward(self, effect: str, to: str, text: str = "hi", **more: JsonValue) -> list[AnyEvent]:
        found = self.use(effect, "forward_to_agent", target_step_id=to, text=text, **more)
        assert isinstance(found, list), found
        return found

    def heard(self, *numbers: int) -> None:
        """Let calls of the coordinator end without a word."""
        for number in numbers:
            self.answer(CALL.format(number), "")

    def lawful(self) -> Run:
        assert event_problems(self.plan, self.events) == []
        return self

    @property
    def drops(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, MessageDropped)]

    @property
    def asked(self) -> list[str]:
        return [event.effect for event in self.events if isinstance(event, EffectRequested)]


def begun(*steps: Step, **more: Any) -> Run:
    run = Run(plan(*steps, **more))
    run.start()
    return run


def finish(run: Run) -> Run:
    """Answer everything that is left."""
    run.run()
    assert run.state.finished is not None
    return run.lawful()


# -- the coordinator is called ---------------------------------------------------------------------


def test_it_is_called_at_the_start_and_then_for_what_happened_meanwhile() -> None:
    """One call at a time; what comes while it listens is told in the next."""
    run = begun()
    assert sorted(run.asked) == [CALL.format(1), "a/agent#1"]
    run.answer("a/agent#1", "x")
    assert CALL.format(2) not in run.asked
    run.heard(1)
    assert run.asked[-1] == CALL.format(2)
    assert [(one.kind, one.step) for one in run.state.mail.coordinator.shown] == [
        ("step.finished", "a"),
        ("step.started", "b"),
    ]
    finish(run)


def test_it_takes_nobodys_place() -> None:
    """A plan that allows one call at once still hears from its coordinator."""
    run = begun(parallel=1)
    assert sorted(run.asked) == [CALL.format(1), "a/agent#1"]
    finish(run)


def test_a_run_waits_for_its_last_words_and_no_longer() -> None:
    """All steps have ended: it may sum up; then, or when its time is over, the run ends."""
    run = begun(Step(id="a", action=WORK))
    run.answer("a/agent#1", "x")
    assert run.state.finished is None
    assert "/hold#1" in run.state.pending
    run.heard(1)
    run.use(CALL.format(2), "finalize", summary="Done.")
    run.heard(2)
    assert run.ended == ("completed", "done", "Done.")
    run.lawful()


def test_time_ends_the_last_words() -> None:
    """A coordinator that says nothing does not hold the run."""
    run = begun(Step(id="a", action=WORK))
    run.answer("a/agent#1", "x")
    run.fire("/hold#1")
    assert run.ended == ("completed", "done", "x")
    run.lawful()


def test_a_paused_run_calls_no_agent() -> None:
    """The next call waits until the run goes on."""
    run = begun()
    run.pause()
    run.answer("a/agent#1", "x")
    run.heard(1)
    assert CALL.format(2) not in run.asked
    run.resume()
    assert CALL.format(2) in run.asked
    finish(run)


def test_a_run_that_is_stopped_withdraws_its_call() -> None:
    """The call gets its one answer, and what it was shown is dropped."""
    run = begun()
    run.heard(1)
    run.use("a/agent#1", "send_message", text="hi")
    assert run.asked[-1] == CALL.format(2)
    run.cancel()
    assert run.drops == ["workflow-cancelled"]
    assert run.ended[0] == "cancelled"
    run.lawful()


@pytest.mark.parametrize(
    ("failing", "waits"),
    [
        pytest.param(Fail("exit"), False, id="at once"),
        pytest.param(Fail("overloaded"), True, id="wait"),
    ],
)
def test_a_call_that_fails_is_made_again_and_then_given_up(failing: Fail, waits: bool) -> None:
    """What it was shown is shown again; after some failures nobody listens, and writers learn."""
    run = begun()
    run.use("a/agent#1", "send_message", text="hi")
    for number in range(1, MOST_FAILURES + 1):
        run.answer(CALL.format(number), failing)
        wait = f"/coordinator-backoff#{number}"
        assert (wait in run.state.pending) is (waits and number < MOST_FAILURES)
        if wait in run.state.pending:
            run.fire(wait)
    assert run.state.mail.coordinator.call is None
    assert run.drops == ["coordinator-failed"]
    run.use("a/agent#1", "send_message", text="again")
    assert run.drops == ["coordinator-failed"] * 2
    finish(run)


def test_a_failure_is_forgotten_when_it_works_again() -> None:
    """Only failures in a row count."""
    run = begun()
    run.answer(CALL.format(1), Fail("exit"))
    run.heard(2)
    assert (run.state.mail.coordinator.failures, run.state.mail.coordinator.trouble) == (0, None)
    finish(run)


def test_budget_and_number_of_calls_are_limits() -> None:
    """A coordinator has no money of its own, and is called only so often."""
    run = begun(limits=Limits(usd=1.0))
    run.answer(CALL.format(1), Reply("", usage=Usage(usd=2.0)))
    run.use("a/agent#1", "send_message", text="hi")
    assert run.drops == ["budget"]
    few = begun(coordinator=Coordinator(agent="c", max_calls=1))
    few.heard(1)
    few.use("a/agent#1", "send_message", text="hi")
    assert few.drops == ["max-wake-cycles"]
    finish(few)


def test_notices_have_an_end_but_messages_stay() -> None:
    """Of very much that happens the newest is told; nothing that was written is left out."""
    run = begun()
    run.use("a/agent#1", "send_message", text="hi")
    for number in range(2 * MOST_NOTICES):
        tell(run.state, CoordinatorNotice("step.started", step=str(number)))
    notices = run.state.mail.coordinator.notices
    assert KEPT_NOTICES < len(notices) <= MOST_NOTICES
    assert notices[0].message is not None
    assert notices[-1].step == str(2 * MOST_NOTICES - 1)


# -- its tools -------------------------------------------------------------------------------------


def test_tools_that_are_used_wrongly_say_so() -> None:
    """Nothing is written, and the reason is one that a model can act on."""
    run = begun()
    call = CALL.format(1)
    assert run.use(call, "dance") == (
        "there is no tool 'dance' here; there are forward_to_agent, narrate, finalize"
    )
    assert run.use("a/agent#1", "narrate", text="x") == (
        "there is no tool 'narrate' here; there are send_message, read_inbox"
    )
    assert run.use(call, "forward_to_agent", text="x") == "target_step_id must name a step"
    assert run.use(call, "forward_to_agent", target_step_id="a") == "text must say something"
    assert run.use(call, "narrate", text=7) == "text must say something"
    too_long = run.use(call, "finalize", summary="x" * (MAX_TEXT_BYTES + 1))
    assert str(too_long).startswith("text may have")
    assert run.use(call, "finalize") is not None
    assert run.use(call, "finalize") == "finalize was already called"
    finish(run)


def test_a_coordinator_that_does_not_narrate() -> None:
    """Its narrations are refused, and plain words are not told."""
    run = begun(coordinator=Coordinator(agent="c", narrates=False))
    assert run.use(CALL.format(1), "narrate", text="x") == "this coordinator does not narrate"
    run.answer(CALL.format(1), "words")
    assert run.of(CoordinatorNarrated) == []
    finish(run)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param("All is well.", ["All is well."], id="plain words"),
        pytest.param(
            '{"tools": [{"name": "narrate", "args": {"text": "x"}}, {}, 3]}', ["x"], id="tools"
        ),
        pytest.param('{"tools": 3}', ['{"tools": 3}'], id="no list"),
        pytest.param('{"x": NaN}', ['{"x": NaN}'], id="no JSON"),
        pytest.param("  ", [], id="nothing"),
    ],
)
def test_an_answer_without_tools_speaks_for_itself(words: str, told: list[str]) -> None:
    """An object with tools is as good as using them; any other words are narrated."""
    run = begun()
    run.answer(CALL.format(1), words)
    assert [event.text for event in run.of(CoordinatorNarrated)] == told
    finish(run)


def test_two_forwards_in_one_answer_are_two_messages() -> None:
    """Each has an id of its own."""
    one = '{"name": "forward_to_agent", "args": {"target_step_id": "b", "text": "%s"}}'
    run = begun()
    run.answer(CALL.format(1), f'{{"tools": [{one % "x"}, {one % "y"}]}}')
    assert [event.message for event in run.of(MessageSent)] == ["m1", "m2"]
    run.answer("a/agent#1", "x")
    (read,) = [f for f in run.of(MessageDelivered) if f.to == "b"]
    assert read.messages == ("m1", "m2")
    finish(run)


def test_words_beside_tools_are_not_narrated() -> None:
    """Who has used a tool in the call has said what it wanted."""
    run = begun()
    run.use(CALL.format(1), "narrate", text="x")
    run.answer(CALL.format(1), "thinking aloud")
    assert [event.text for event in run.of(CoordinatorNarrated)] == ["x"]
    finish(run)


def test_the_last_word_closes_the_box() -> None:
    """What waited is dropped, and what comes later too; it is called no more."""
    run = begun()
    run.use("a/agent#1", "send_message", text="early")
    run.use(CALL.format(1), "finalize", summary="Over.")
    assert run.drops == ["mailbox-closed-by-finalize"]
    run.use("a/agent#1", "send_message", text="late")
    assert run.drops == ["mailbox-closed-by-finalize"] * 2
    run.heard(1)
    assert [event.summary for event in run.of(CoordinatorFinalized)] == ["Over."]
    finish(run)
    assert CALL.format(2) not in run.asked


def test_unknown_kinds_are_information() -> None:
    """Only cancel and context_update mean something else."""
    run = begun()
    for kind in ("dance", 7, "context_update"):
        run.forward(CALL.format(1), "b", kind=kind)
    assert [f.intent for f in run.of(MessageSent)] == ["info", "info", "context_update"]
    finish(run)


# -- inboxes ---------------------------------------------------------------------------------------


def test_a_call_under_way_reads_what_came() -> None:
    """Read once; a second look finds nothing, and a later try of the call still has it."""
    run = begun(Step(id="a", action=WORK))
    run.forward(CALL.format(1), "a")
    (read,) = run.use("a/agent#1", "read_inbox")
    assert isinstance(read, MessageDelivered)
    assert run.use("a/agent#1", "read_inbox") == []
    assert [one.text for one in run.state.mail.delivered["a"]] == ["hi"]
    finish(run)
    assert run.state.mail.delivered == {}


def test_what_waits_for_others_stays_where_it_is() -> None:
    """Reading one inbox leaves the others alone."""
    run = begun()
    run.forward(CALL.format(1), "b")
    assert run.use("a/agent#1", "read_inbox") == []
    finish(run)


def test_a_loop_that_ends_leaves_nobody_to_read() -> None:
    """Mail for an inner step is read in the next iteration, and dropped when there is none."""
    run = begun(LOOP)
    run.forward(CALL.format(1), "w", "one")
    run.answer("dev.0.w/agent#1", "x")
    assert [f.effect for f in run.of(MessageDelivered) if f.messages] == ["dev.1.w/agent#1"]
    run.forward(CALL.format(1), "w", "two")
    run.answer("dev.1.w/agent#1", "x")
    assert run.drops == ["target-terminal"]
    finish(run)


def test_an_item_that_ends_leaves_nobody_to_read() -> None:
    """Items do not come again: what an item's step has not read is dropped with it."""
    each = Each(items=LiteralItems(values=("x", "y")), parallel=2)
    body = Steps(steps=(Step(id="w", action=WORK),))
    run = begun(Step(id="each", action=Repeat(body=body, each=each)))
    run.forward(CALL.format(1), "each[0].w", "for w")
    run.forward(CALL.format(1), "each[1].w", "for the other")
    run.answer("each[0].w/agent#1", "x")
    assert run.drops == ["target-terminal"]
    assert "each[1].w" in run.state.mail.inboxes
    finish(run)


@pytest.mark.parametrize("to", ["b", "coordinator"])
def test_a_full_box_takes_no_more(to: str) -> None:
    """There is an end to what may wait."""
    run = begun()
    effect, tool = (
        (CALL.format(1), "forward_to_agent") if to == "b" else ("a/agent#1", "send_message")
    )
    run.use(effect, tool, target_step_id=to, text="first")
    mail = run.state.mail
    box = mail.inboxes.get("b")
    if box is not None:
        box.extend([box[0]] * (MAILBOX_SIZE - 1))
    else:
        mail.coordinator.notices.extend([mail.coordinator.notices[-1]] * MAILBOX_SIZE)
    run.use(effect, tool, target_step_id=to, text="one too many")
    assert run.drops == ["mailbox-full"]


def test_a_missing_item_is_nobody() -> None:
    """An item that the list does not have is an unknown step."""
    each = Each(items=LiteralItems(values=("x",)))
    run = begun(Step(id="each", action=Repeat(body=WORK, each=each)))
    run.forward(CALL.format(1), "each[7]")
    assert run.drops == ["unknown-step"]
    finish(run)


# -- a message that stops a step -------------------------------------------------------------------


def test_a_cancel_that_comes_too_late_is_dropped() -> None:
    """The step was ended from outside in the same moment."""
    run = begun(Step(id="a", action=WORK, limits=Limits(wall_ms=50)))
    caller = caller_of(run.state, run.state.pending[CALL.format(1)])
    assert not isinstance(caller, RefusedToolUse)
    sent = use(
        run.state, caller, "forward_to_agent", {"target_step_id": "a", "kind": "cancel"}, run.texts
    )
    assert isinstance(sent, list)
    end = StepFinished(at=run.clock, path="a", status="failed")
    run.append(*sent, run.answer_event(run.request("a/agent#1"), Fail("exit")), end)
    assert run.drops == ["target-terminal"]


def test_a_step_that_is_stopped_completes() -> None:
    """Its call is withdrawn, its content says so, and the message was read."""
    run = begun()
    run.forward(CALL.format(1), "a", "", kind="cancel")
    end = run.step_end("a")
    assert (end.status, end.reason, end.output) == ("completed", "cancelled", "cancelled")
    assert "b/agent#1" in run.state.pending
    finish(run)


# -- steps that answer after their end -------------------------------------------------------------


def test_an_ended_step_answers_and_its_writers_read_it() -> None:
    """One call for all that waits; what comes meanwhile waits for the next."""
    run = begun()
    run.answer("a/agent#1", Reply("A", session="s-1"))
    run.forward(CALL.format(1), "a", "one?")
    run.forward(CALL.format(1), "a", "two?")
    call = run.state.pending["a/reply#1"].call
    assert call == AgentCall(agent="a", role="reply", step="a")
    assert run.state.mail.sessions == {"a": "s-1"}
    run.use("a/reply#1", "send_message", text="by the way")
    run.answer("a/reply#1", "Two.")
    replies = [f for f in run.of(MessageSent) if f.intent == "reply"]
    assert [(f.sender, f.to, f.text) for f in replies] == [("a", "coordinator", "Two.")]
    assert "a/reply#2" in run.state.pending
    finish(run)


def test_an_answer_waits_for_a_place() -> None:
    """The limit on calls at once holds for answers too."""
    run = begun(parallel=1)
    run.answer("a/agent#1", "A")
    run.forward(CALL.format(1), "a")
    assert "a/reply#1" not in run.asked
    run.answer("b/agent#1", "B")
    assert "a/reply#1" in run.asked
    finish(run)


def test_an_answer_to_a_person_is_an_event_and_no_more() -> None:
    """People read the events: nothing waits for them."""
    run = Run(plan(coordinator=None))
    run.start()
    run.answer("a/agent#1", "A")
    run.append(MessageSent(at=run.clock, path="", to="a", text="?", sender="ann", message="m1"))
    run.answer("a/reply#1", "Yes.")
    assert [(f.to, f.text) for f in run.of(MessageSent)][1:] == [("ann", "Yes.")]
    finish(run)


def test_answers_are_limited_in_number_and_money() -> None:
    """Beyond the limits a message is dropped, not answered."""
    run = begun()
    run.answer("a/agent#1", "A")
    run.state.mail.replies.wakes["a"] = MOST_WAKES
    run.forward(CALL.format(1), "a")
    assert run.drops == ["max-wake-cycles"]
    poor = begun(limits=Limits(usd=1.0))
    poor.answer("a/agent#1", Reply("A", usage=Usage(usd=0.5)))
    poor.forward(CALL.format(1), "a")
    poor.answer("a/reply#1", Reply("x", usage=Usage(usd=2.0)))
    poor.forward(CALL.format(1), "a")
    assert poor.drops[-1] == "budget"


def test_a_loop_of_one_step_answers_after_its_end() -> None:
    """It is one step to whoever writes to it, under way and afterwards."""
    loop = Step(id="one", action=Repeat(body=WORK, max=1, at_cap="complete"))
    run = begun(loop)
    run.answer("one.0/agent#1", "x")
    run.forward(CALL.format(1), "one")
    assert "one/reply#1" in run.state.pending
    run.answer("one/reply#1", Fail("exit"))
    assert any(one.kind == "reply.failed" for one in run.state.mail.coordinator.notices)
    finish(run)


def test_a_judge_has_no_tools() -> None:
    """It judges; its words are told to the coordinator under its own name."""
    loop = Repeat(body=WORK, max=1, until=Judge(agent="j"), at_cap="complete")
    run = begun(Step(id="one", action=loop))
    run.answer("one.0/agent#1", "x")
    assert "judge" in str(run.use("one.0/check0#1", "send_message", text="x"))
    run.answer("one.0/check0#1", Reply("", result='{"done": true}'))
    run.heard(1)
    told = [(one.kind, one.step) for one in run.state.mail.coordinator.shown]
    assert ("check.verdict", "one.judge") in told
    finish(run)


# -- the same after any crash ----------------------------------------------------------------------


def test_a_run_cut_anywhere_continues_as_before() -> None:
    """Every event of a talk can be the last before a crash; all messages still have one end."""
    run = begun(*A_B, LOOP)
    run.use("a/agent#1", "send_message", text="hi")
    run.forward(CALL.format(1), "dev.0.w")
    run.answer("a/agent#1", "A")
    run.forward(CALL.format(1), "a")
    run.use(CALL.format(1), "narrate", text="so far")
    run.heard(1)
    finish(run)
    for end in run.ends[:-1]:
        again = Run(run.plan, events=run.events[:end], texts=run.texts)
        again.start()
        finish(again)


@pytest.mark.parametrize(
    ("ended", "reason"), [("skipped", "no-transcript"), ("failed", "target-terminal")]
)
def test_a_step_that_cannot_answer_is_not_asked(ended: str, reason: str) -> None:
    """Who was left out has said nothing; who has failed is not called again."""
    first = Step(id="a", action=WORK, when=Cel(text="1 > 2") if ended == "skipped" else None)
    run = begun(first, Step(id="b", action=WORK, needs=("a",), join="all_done"))
    if ended == "failed":
        run.answer("a/agent#1", Fail("exit"))
    run.forward(CALL.format(1), "a")
    assert run.drops == [reason]
    finish(run)


def test_only_what_runs_can_be_stopped() -> None:
    """A step that has yet to begin is left alone."""
    run = begun()
    run.forward(CALL.format(1), "b", kind="cancel")
    assert run.drops == ["not-running"]
    finish(run)


def test_nobody_listens_where_there_is_no_coordinator() -> None:
    """The message is dropped, and the run goes on."""
    run = Run(plan(coordinator=None))
    run.start()
    run.use("a/agent#1", "send_message", text="hi")
    assert run.drops == ["no-coordinator"]
    finish(run)


def test_a_delivery_of_some_leaves_the_others() -> None:
    """What an event does not name stays in the inbox."""
    run = begun()
    run.forward(CALL.format(1), "b", "one")
    run.forward(CALL.format(1), "b", "two")
    run.append(MessageDelivered(at=run.clock, path="b", to="b", messages=("m1",)))
    assert [one.id for one in run.state.mail.inboxes["b"]] == ["m2"]


def test_sessions_of_inner_steps_are_not_kept() -> None:
    """Only a step of the plan itself is ever called again."""
    run = begun(LOOP)
    run.answer("dev.0.w/agent#1", Reply("x", session="s"))
    assert run.state.mail.sessions == {}
    finish(run)


def test_what_it_was_shown_when_time_is_over_is_dropped() -> None:
    """The deadline of the run ends everything at once; no message is left without an end."""
    run = begun(limits=Limits(wall_ms=1_000))
    run.heard(1)
    run.use("a/agent#1", "send_message", text="hi")
    run.fire("/deadline#1")
    assert run.ended[:2] == ("exhausted", "deadline")
    assert run.drops == ["run-ended"]
    run.lawful()


def test_a_run_that_continues_is_listened_to_again() -> None:
    """After its end and a reopening the coordinator is called anew, with effects of new names."""
    run = begun(Step(id="a", action=WORK))
    run.use(CALL.format(1), "finalize", summary="Bad.")
    run.answer("a/agent#1", Fail("exit"))
    run.heard(1)
    assert (run.end.outcome, run.texts.read(run.end.output)) == ("failed", "Bad.")
    run.append(RunReopened(at=run.clock))
    assert run.state.mail.coordinator.shown[0].kind == "run.reopened"
    run.forward(CALL.format(2), "a", "once more")
    read = run.use("a~2/agent#1", "read_inbox")
    assert isinstance(read, list)
    assert isinstance(read[0], MessageDelivered)
    run.answer("a~2/agent#1", "good")
    assert "/hold#2" in run.state.pending
    assert run.state.mail.delivered == {}
    run.heard(2, 3)
    assert run.ended == ("completed", "done", "good")
    run.lawful()
