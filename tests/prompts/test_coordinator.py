"""The prompts of the coordinator and of a step that answers a message."""

from __future__ import annotations

from loopwright.kernel.events import MessageSent
from loopwright.kernel.frames import QueuedMessage
from loopwright.model.actions import CallAgent, Repeat, RunCommand, Step
from loopwright.model.plan import Coordinator
from loopwright.model.record import literal
from loopwright.prompts.calls import TASK, compose, compose_coordinator, compose_reply
from loopwright.prompts.sections import MESSAGE_BYTES, render_messages
from tests.kernel.driving import Driver, Reply, plan_of_steps

WORK = CallAgent(agent="a", prompt=literal("Say A."))
ONE = Step(id="one", action=Repeat(body=WORK, max=1, at_cap="complete"))


def begun(*steps: Step, **more: object) -> Driver:
    coordinator = Coordinator(agent="c", **more)  # type: ignore[arg-type]
    plan = plan_of_steps(*(steps or (ONE,)), coordinator=coordinator)
    return Driver(plan, message="Release 1.2").start()


def write(run: Driver, to: str, text: str = "hi", sender: str = "coordinator") -> None:
    number = run.state.mail.sent + 1
    run.append(
        MessageSent(at=run.clock, path="", to=to, text=text, sender=sender, message=f"m{number}")
    )


def test_the_first_call_sees_what_the_run_is_for() -> None:
    """The message of the run, who can be written to, and the tools."""
    shown = compose_coordinator(begun().state, begun().texts)
    assert shown.text.startswith(TASK)
    assert "- run.started: Release 1.2" in shown.text
    assert "## Steps that can be written to\n\n- one" in shown.text
    assert "forward_to_agent" in shown.text
    assert "All steps have ended" not in shown.text
    assert (shown.schema, shown.session) == (None, None)


def test_a_prompt_of_its_own_comes_first() -> None:
    """What the definition says to the coordinator stands in the place of our words."""
    run = begun(prompt=literal("Be brief."))
    assert compose_coordinator(run.state, run.texts).text.startswith("Be brief.\n\n## Run")


def test_later_calls_see_what_has_happened_since() -> None:
    """Steps that began and ended with what they said, messages with who wrote, and the end."""
    run = begun()
    write(run, "coordinator", "half way", sender="one.0")
    run.answer("one.0/agent#1", "A")
    run.answer("/coordinator#1", Reply("", session="s-9"))
    shown = compose_coordinator(run.state, run.texts)
    assert "- message from=one.0: half way" in shown.text
    assert "- step.finished step=one completed (max_iterations): A" in shown.text
    assert "All steps have ended: sum up with finalize." in shown.text
    assert shown.session == "s-9"


def test_nobody_to_write_to() -> None:
    """A run of programs has no agents to write to, and says so."""
    run = begun(Step(id="make", action=RunCommand(argv=("make",))))
    assert (
        "## Steps that can be written to\n\n(none)"
        in compose_coordinator(run.state, run.texts).text
    )


def test_a_reply_is_distinguished_from_a_message() -> None:
    """An answer of a step that was written to is marked as one."""
    run = begun()
    run.answer("one.0/agent#1", Reply("A", session="s-1"))
    write(run, "one", "why?")
    shown = compose_reply(run.state, "one", "one/reply#1", run.texts)
    assert "Say A." in shown.text
    assert "## Your answer\n\nA" in shown.text
    assert "[coordinator]: why?" in shown.text
    assert shown.session == "s-1"
    run.answer("one/reply#1", "Because.")
    run.answer("/coordinator#1", "")
    text = compose_coordinator(run.state, run.texts).text
    assert "- reply from=one: Because." in text


def test_a_worker_reads_its_messages_below_its_task() -> None:
    """Each is a turn of whoever wrote it; a long one is cut."""
    run = begun(ONE, Step(id="b", action=WORK, needs=("one",)))
    write(run, "b", "mind the gap")
    write(run, "b", "x" * (MESSAGE_BYTES + 1), sender="ann")
    run.answer("one.0/agent#1", "A")
    shown = compose(run.state, run.state.owners["b"], run.texts)
    assert shown.text.startswith(
        "Say A.\n\n## Messages\n\n[coordinator]: mind the gap\n\n[ann]: xx"
    )
    assert "truncated" in shown.text


def test_no_messages_no_section() -> None:
    """Who has no mail sees nothing of it."""
    run = begun()
    assert render_messages((), run.texts) == []
    letter = QueuedMessage(id="m1", sender="x", to="y", text="z")
    assert render_messages([letter], run.texts) == ["## Messages\n\n[x]: z"]
