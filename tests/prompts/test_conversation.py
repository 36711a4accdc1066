"""What a chat model is sent: the task on top, then the conversation, then what is new."""

from __future__ import annotations

import msgspec
import pytest

from loopwright.kernel.events import AgentChanged, HistoryCompressed, MessageSent
from loopwright.kernel.frames import CycleBody, HistoryEntry, IterationOwner, ToolAnswer
from loopwright.model.actions import Action, CallAgent, ModelCycle, Repeat, Step
from loopwright.model.chat import (
    AssistantMessage,
    CallPart,
    ModelTurn,
    RequestedCall,
    TextPart,
    ToolMessage,
    UserMessage,
    decode_turn,
    encode_turn,
)
from loopwright.model.checks import AllOf, Cap, CommandCheck, Contains, NoCalls
from loopwright.model.plan import Agent, Coordinator, Plan
from loopwright.model.policy import ConversationHistory, Memory, NoMemory, ProgressLog, SameSession
from loopwright.model.record import Lit
from loopwright.prompts.conversation import (
    BEFORE,
    HAND_IN,
    LEFT_OUT,
    SEND,
    SUMMARY_SYSTEM,
    converse,
    is_paired,
    summarise,
)
from tests.kernel.driving import Driver, Fail, Reply

CHAT = Agent(spec="model:local/tiny", system="You are brief.")
SCHEMA = {"type": "object"}
ASK = (Lit(text="Mend it."),)


def begun(action: Action, *, lead: bool = False, agent: Agent = CHAT) -> Driver:
    agents = {"coder": agent, **({"lead": Agent(spec="command:x")} if lead else {})}
    plan = Plan(
        name="t",
        steps=(Step(id="main", action=action),),
        agents=agents,
        coordinator=Coordinator(agent="lead") if lead else None,
    )
    return Driver(plan).start()


def place(run: Driver, path: str = "main.0") -> IterationOwner:
    owner = run.state.owners[path]
    assert isinstance(owner, IterationOwner)
    return owner


def texts(run: Driver, path: str = "main.0") -> list[str]:
    sent = converse(run.state, place(run, path), CHAT, run.texts).messages
    return [one.text for one in sent if isinstance(one, UserMessage)]


def turn(text: str, *ids: str) -> Reply:
    parts = (TextPart(text=text), *(CallPart(id=one, tool="fs.read") for one in ids))
    calls = tuple(RequestedCall(id=one, tool="fs.read", arguments={}, paths=()) for one in ids)
    message = AssistantMessage(parts=parts)
    return Reply(text, result=encode_turn(ModelTurn(message=message, calls=calls)))


def test_a_first_turn() -> None:
    """The author's words to the model, and the task as any agent would be shown it."""
    run = begun(CallAgent(agent="coder", prompt=ASK))
    talk = converse(run.state, place(run), CHAT, run.texts)
    assert talk.system == "You are brief."
    assert talk.messages == (UserMessage(text="Mend it."),)
    assert (talk.tools, talk.forced) == ((), False)


def test_a_later_turn_has_everything_before_it() -> None:
    """Turns and results follow in their order, each call with its result."""
    run = begun(CallAgent(agent="coder", prompt=ASK))
    run.answer("main.0/model#1", turn("I look.", "c1", "c2"))
    run.answer("main.0/tool2#1", "two")
    run.answer("main.0/tool1#1", Fail("tool", text="no such file"))
    sent = converse(run.state, place(run, "main.1"), CHAT, run.texts).messages
    assert is_paired(sent)
    assert [type(one) for one in sent] == [UserMessage, AssistantMessage, ToolMessage]
    results = sent[2]
    assert isinstance(results, ToolMessage)
    assert [(one.id, one.text, one.error) for one in results.results] == [
        ("c1", "no such file", True),
        ("c2", "two", False),
    ]


@pytest.mark.parametrize(
    ("schema", "lead", "names"),
    [
        pytest.param(None, False, [], id="none"),
        pytest.param(SCHEMA, False, ["submit_result"], id="result"),
        pytest.param(None, True, [SEND.name], id="coordinator"),
        pytest.param(SCHEMA, True, ["submit_result", SEND.name], id="both"),
    ],
)
def test_tools_of_the_run(schema: dict[str, object] | None, lead: bool, names: list[str]) -> None:
    """A result is handed in by a tool, and a coordinator is written to by one."""
    run = begun(CallAgent(agent="coder", prompt=ASK, schema=schema), lead=lead)  # type: ignore[arg-type]
    talk = converse(run.state, place(run), CHAT, run.texts)
    assert [tool.name for tool in talk.tools] == names
    assert "JSON object" not in talk.messages[0].text  # type: ignore[union-attr]


def test_a_missing_result_is_demanded() -> None:
    """After a turn that handed nothing in, the model is told to, and may do nothing else."""
    run = begun(CallAgent(agent="coder", prompt=ASK, schema=SCHEMA))
    run.answer("main.0/model#1", Fail("bad_result"))
    talk = converse(run.state, place(run), CHAT, run.texts)
    assert talk.forced
    assert texts(run) == ["Mend it.", HAND_IN]


def test_a_loop_around_shows_what_its_iterations_left() -> None:
    """The second iteration begins a new conversation, with the memory of the loop in its task."""
    body = CallAgent(agent="coder", prompt=ASK)
    until = Contains(text="DONE")
    run = begun(Repeat(body=body, max=3, until=until, memory=ProgressLog()))
    run.answer("main.0.0/model#1", turn("Not yet."))
    [task] = texts(run, "main.1.0")
    assert task.startswith("Mend it.")
    assert "Progress Log" in task


def asked(run: Driver, text: str, *ids: str) -> Reply:
    """A turn as its performer records it, with the task if it has to be known later."""
    [due] = [
        path for path in run.state.owners if isinstance(run.state.owners[path].body, CycleBody)
    ]
    task = converse(run.state, place(run, due), CHAT, run.texts).task
    said = turn(text, *ids)
    assert said.result is not None
    record = msgspec.structs.replace(decode_turn(said.result), task=task)
    return Reply(text, result=encode_turn(record))


THREADED = [
    pytest.param(CallAgent(agent="coder", prompt=ASK, session="thread"), NoMemory(), id="call"),
    pytest.param(CallAgent(agent="coder", prompt=ASK), SameSession(), id="memory"),
]


@pytest.mark.parametrize(("body", "memory"), THREADED)
def test_a_thread_continues_in_the_next_iteration(body: CallAgent, memory: Memory) -> None:
    """Everything that was said before, the task among it, then the task of this iteration."""
    run = begun(Repeat(body=body, max=3, until=Contains(text="DONE"), memory=memory))
    run.answer("main.0.0/model#1", asked(run, "I look.", "c1"))
    assert converse(run.state, place(run, "main.0.0"), CHAT, run.texts).task == "Mend it."
    run.answer("main.0.0/tool1#1", "found")
    run.answer("main.0.1/model#1", asked(run, "Not yet."))
    talk = converse(run.state, place(run, "main.1.0"), CHAT, run.texts)
    assert is_paired(talk.messages)
    kinds = [type(one) for one in talk.messages]
    assert kinds == [UserMessage, AssistantMessage, ToolMessage, AssistantMessage, UserMessage]
    assert talk.messages[0] == UserMessage(text="Mend it.")
    assert talk.messages[-1].text.startswith("Mend it.")  # type: ignore[union-attr]
    run.answer("main.1.0/model#1", asked(run, "I look again.", "c2"))
    run.answer("main.1.0/tool1#1", "found more")
    later = converse(run.state, place(run, "main.1.1"), CHAT, run.texts)
    assert later.messages[:5] == talk.messages
    assert [type(one) for one in later.messages[5:]] == [AssistantMessage, ToolMessage]
    assert later.task == ""
    run.answer("main.1.1/model#1", asked(run, "Nearly."))
    third = converse(run.state, place(run, "main.2.0"), CHAT, run.texts).messages
    assert third[:7] == later.messages
    assert [type(one) for one in third[7:]] == [AssistantMessage, UserMessage]


def test_without_a_thread_no_task_is_kept() -> None:
    """What nobody goes on with is not recorded twice."""
    run = begun(Repeat(body=CallAgent(agent="coder", prompt=ASK), max=3, until=Contains(text="D")))
    assert converse(run.state, place(run, "main.0.0"), CHAT, run.texts).task == ""


def test_another_model_behind_the_agent_begins_a_new_thread() -> None:
    """With the first one back, its thread goes on."""
    body = CallAgent(agent="coder", prompt=ASK, session="thread")
    run = begun(Repeat(body=body, max=4, until=Contains(text="DONE")))
    other = Agent(spec="model:local/other", system="You are brief.")
    run.append(AgentChanged(at=run.clock, agent="coder", becomes=other))
    run.answer("main.0.0/model#1", asked(run, "Not yet."))  # it had begun before
    assert [
        one.text
        for one in converse(  # type: ignore[union-attr]
            run.state, place(run, "main.1.0"), CHAT, run.texts
        ).messages
    ] == ["Mend it."]
    run.append(AgentChanged(at=run.clock, agent="coder", becomes=CHAT))
    run.answer("main.1.0/model#1", asked(run, "Not yet either."))
    assert len(converse(run.state, place(run, "main.2.0"), CHAT, run.texts).messages) == 3


def test_a_long_thread_is_cut_before_the_task() -> None:
    """Old turns go with their tasks; a summary stands before the task while anything else does."""
    agent = msgspec.structs.replace(CHAT, options={"context_window": 400})
    body = CallAgent(agent="coder", prompt=ASK, session="thread")
    run = begun(Repeat(body=body, max=9, until=Contains(text="DONE")), agent=agent)
    for number in range(4):
        said = asked(run, f"{number} " + "x" * 700)
        run.answer(f"main.{number}.0/model#1", said)
    cuts = [event for event in run.events if isinstance(event, HistoryCompressed)]
    assert cuts
    messages = converse(run.state, place(run, "main.4.0"), CHAT, run.texts).messages
    assert len(messages) < 9
    assert messages[-1] == UserMessage(text="Mend it.")
    assert isinstance(messages[-2], AssistantMessage)
    assert messages[-2].text.startswith("3 ")


def test_a_thread_that_was_cut_begins_with_a_user() -> None:
    """Services want that; what stood there is gone, so the model is told just this."""
    agent = msgspec.structs.replace(CHAT, options={"context_window": 400})
    body = CallAgent(agent="coder", prompt=ASK, session="thread")
    run = begun(Repeat(body=body, max=9, until=Contains(text="DONE")), agent=agent)
    for number in range(3):
        long = "x" * 700
        run.answer(f"main.0.{number}/model#1", asked(run, long, f"c{number}"))
        run.answer(f"main.0.{number}/tool1#1", "found")
    run.answer("main.0.3/model#1", asked(run, "Not yet."))
    messages = converse(run.state, place(run, "main.1.0"), CHAT, run.texts).messages
    assert messages[0] == UserMessage(text=LEFT_OUT)
    assert isinstance(messages[1], AssistantMessage)
    assert messages[-1] == UserMessage(text="Mend it.")
    assert is_paired(messages)


def test_a_chat_is_gone_on_with() -> None:
    """A cycle of its own takes over a chat that the message holds."""
    chat = '{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}]}'
    cycle = ModelCycle(agent="coder", prompt=(Lit(text=chat),))
    run = begun(Repeat(body=cycle, max=2, until=Cap(), memory=ConversationHistory(window=9_000)))
    sent = converse(run.state, place(run), CHAT, run.texts).messages
    assert [type(one) for one in sent] == [UserMessage, AssistantMessage]


def test_messages_stand_where_they_came() -> None:
    """What others wrote is told with who wrote it, between the turns."""
    run = begun(CallAgent(agent="coder", prompt=ASK), lead=True)
    run.answer("main.0/model#1", turn("I look.", "c1"))
    run.append(
        MessageSent(at=run.clock, path="", to="main", text="Hurry.", message="m1", sender="lead")
    )
    run.answer("main.0/tool1#1", "one")
    assert texts(run, "main.1") == ["Mend it.", "[lead]: Hurry."]


def test_a_summary_replaces_what_was_dropped() -> None:
    """It is told as one, after the task."""
    run = begun(CallAgent(agent="coder", prompt=ASK))
    place(run).parent.talk.history.append(HistoryEntry(kind="summary", text="a.py is fine."))
    assert texts(run) == ["Mend it.", f"{BEFORE}\n\na.py is fine."]


def test_what_a_summary_is_made_of() -> None:
    """The dropped part goes to the model as a text with who said what, and nothing of it asks."""
    run = begun(CallAgent(agent="coder", prompt=ASK))
    said = turn("I look.", "c1").result
    assert said is not None
    results = HistoryEntry(kind="tools", answers=(ToolAnswer("c1", "fs.read", "print(1)"),))
    place(run).parent.talk.history += [
        HistoryEntry(kind="user", text="Careful."),
        HistoryEntry(kind="model", text=said),
        results,
        *[HistoryEntry(kind="model", text=said), results] * 2,
    ]
    talk = summarise(place(run), run.texts)
    assert talk.system == SUMMARY_SYSTEM
    [told] = talk.messages
    assert isinstance(told, UserMessage)
    assert told.text == (
        "[user]\nCareful.\n\n[agent]\nI look.\n(calls fs.read {})\n\n[result of fs.read]\nprint(1)"
    )


@pytest.mark.item("rec-29")
def test_a_cycle_knows_its_completion_criteria() -> None:
    """The criteria stand in the system prompt; a check that failed is told with the next turn."""
    until = AllOf(parts=(NoCalls(), CommandCheck(argv=("pytest", "-q"))))
    memory = ConversationHistory(window=8_000)
    cycle = ModelCycle(agent="coder", prompt=ASK)
    run = begun(Repeat(body=cycle, max=5, until=until, memory=memory, criteria=True))
    first = converse(run.state, place(run), CHAT, run.texts)
    assert first.system == (
        "You are brief.\n\n## When the work is done\n\nThe work is done when all of these hold:\n"
        "- you reply without calling a tool\n- `pytest -q` exits with 0"
    )
    assert texts(run) == ["Mend it."]
    run.answer("main.0/model#1", turn("I look.", "c1"))
    run.answer("main.0/tool1#1", "one")
    run.answer("main.0/check1#1", Reply("1 failed", code=1))
    assert texts(run, "main.1") == [
        "Mend it.",
        "## Checks that failed after iteration 1\n\n- `pytest -q` exited with 1:\n\n    1 failed",
    ]
