"""Whatever happens to a conversation: each request has one result for every call, its own.

Conversations are made up: turns with up to four calls, ids that are used twice or are empty, tools
that fail, calls that are turned away, held and decided about, summaries and cuts, a process that
dies between any two events.
"""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.kernel.event_parts import ModelCall, ToolCall
from loopwright.kernel.events import AnyEvent, EffectRequested, GateOpened
from loopwright.kernel.frames import IterationOwner
from loopwright.model.actions import Decision, ModelCycle, Repeat, Step
from loopwright.model.chat import (
    AnyMessage,
    AssistantMessage,
    CallPart,
    ModelTurn,
    RequestedCall,
    TextPart,
    ToolMessage,
    encode_turn,
)
from loopwright.model.checks import Cap
from loopwright.model.ids import MAIN
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import ConversationHistory, Retry
from loopwright.model.record import literal
from loopwright.prompts.conversation import converse, pair_calls, unique_ids
from tests.kernel.driving import Driver, Fail, Reply, ScriptedAnswer, Texts

IDS = st.sampled_from(["", "a", "b", "c", "call_1"])
KINDS = st.sampled_from(["done", "failed", "problem", "approve", "reject"])
CALLS = st.tuples(IDS, KINDS, st.sampled_from([20, 700, 3_000]))
TURNS = st.tuples(
    st.sampled_from(["", "words", "many words " * 60]),
    st.lists(CALLS, max_size=4),
    st.sampled_from(["answer", "fail first", "overflow first"]),
)
STORIES = st.lists(TURNS, min_size=1, max_size=7)
MEMORIES = st.builds(
    ConversationHistory,
    window=st.sampled_from([400, 900, 100_000]),
    strategy=st.sampled_from(["rolling-window", "periodic-summary"]),
)
Story = list[tuple[str, list[tuple[str, str, int]], str]]


class Stage:
    """Plays a story, and keeps every request that would be sent."""

    def __init__(self, story: Story, memory: ConversationHistory, *, at_gateway: bool) -> None:
        self.story = story
        self.at_gateway = at_gateway  # whether ids are made unique where answers come in
        loop = Repeat(
            body=ModelCycle(agent="a", prompt=literal("The task."), nudge="Go on."),
            max=len(story) + 1,
            until=Cap(),
            memory=memory,
        )
        retry = Retry(attempts=3, base_ms=1)
        agent = Agent(approvals={"gated.*": "always"})
        step = Step(id=MAIN, action=loop, retry=retry)
        self.plan = Plan(name="t", steps=(step,), agents={"a": agent})
        self.sent: list[tuple[AnyMessage, ...]] = []

    def play(self, events: Sequence[AnyEvent] = (), texts: Texts | None = None) -> Driver:
        self.driver = Driver(
            self.plan,
            script=self.answer,
            people=self.decide,
            events=list(events),
            texts=texts or Texts(),
        )
        return self.driver.start().run()

    def decide(self, gate: GateOpened) -> tuple[Decision, str]:
        return ("approve" if "gated.approve" in gate.message else "reject"), "because"

    def answer(self, request: EffectRequested) -> ScriptedAnswer:
        if isinstance(request.call, ToolCall):
            failed = request.call.arguments == '"failed"'
            size = int(request.call.tool.rpartition("#")[2])
            text = f"{request.effect} " + "x" * size
            return Fail("tool", text, text=text) if failed else Reply(text)
        if not isinstance(request.call, ModelCall):
            return Reply()
        if request.call.role == "summary":
            return Reply("what was before")
        self.look(request)
        number = (request.iteration or 1) - 1
        text, calls, options = self.story[number] if number < len(self.story) else ("end", [], "")
        first = request.effect.endswith("#1")
        if first and options != "answer" and options:
            return Fail("overflow" if "overflow" in options else "overloaded", "no")
        message = AssistantMessage(
            parts=(
                *((TextPart(text=text),) if text else ()),
                *(CallPart(id=one[0], tool=tool_of(*one), args="{}") for one in calls),
            )
        )
        if self.at_gateway:
            taken = [
                c.id for m in self.sent[-1] if isinstance(m, AssistantMessage) for c in m.calls
            ]
            message = unique_ids(message, taken)
        wanted = tuple(
            RequestedCall(
                id=part.id,
                tool=part.tool,
                arguments=one[1],
                problem="there is no such tool" if one[1] == "problem" else "",
                paths=(),
            )
            for part, one in zip(message.calls, calls, strict=True)
        )
        return Reply(text, result=encode_turn(ModelTurn(message=message, calls=wanted)))

    def look(self, request: EffectRequested) -> None:
        """What the gateway would send for this request."""
        state = self.driver.state
        owner = state.pending[request.effect].owner
        assert isinstance(owner, IterationOwner)
        talk = converse(state, owner, Agent(), self.driver.texts)
        self.sent.append(pair_calls(talk.messages))


def tool_of(id: str, kind: str, size: int) -> str:
    return f"{'gated' if kind in ('approve', 'reject') else 'tool'}.{kind}#{size}"


def check(messages: tuple[AnyMessage, ...]) -> None:
    """Counted by hand: what services ask of a history."""
    ids: Counter[str] = Counter()
    due: list[CallPart] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert sorted(one.id for one in message.results) == sorted(call.id for call in due)
            tools = {call.id: call.tool for call in due}
            assert all(tools[one.id] == one.tool for one in message.results)
            due = []
            continue
        assert due == [], "a result does not follow at once on its call"
        if isinstance(message, AssistantMessage):
            due = list(message.calls)
            ids.update(call.id for call in due)
            assert message.text or due, "nothing is sent that is empty"
        else:
            assert message.text
    assert due == []
    assert all(name and count == 1 for name, count in ids.items())
    assert "The task." in messages[0].text  # type: ignore[union-attr]


@settings(max_examples=150, deadline=None)
@given(STORIES, MEMORIES, st.booleans())
def test_each_request_has_one_result_for_every_call(
    story: Story, memory: ConversationHistory, at_gateway: bool
) -> None:
    """Whatever the story, and also where two calls have one id."""
    stage = Stage(story, memory, at_gateway=at_gateway)
    stage.play()
    assert stage.driver.state.finished is not None
    assert stage.sent
    for messages in stage.sent:
        check(messages)


@settings(max_examples=60, deadline=None)
@given(STORIES, MEMORIES, st.data())
def test_a_conversation_is_the_same_after_a_crash(
    story: Story, memory: ConversationHistory, data: st.DataObject
) -> None:
    """Cut between any two appends and taken up again, each later request is what it would have
    been: nothing is lost, and nothing stands there twice.
    """
    whole = Stage(story, memory, at_gateway=True)
    driver = whole.play()
    end = data.draw(st.sampled_from(driver.ends))
    again = Stage(story, memory, at_gateway=True)
    resumed = again.play(driver.events[:end], driver.texts)
    assert resumed.state.finished is not None
    assert driver.state.finished is not None
    assert resumed.state.finished.output == driver.state.finished.output
    for messages in again.sent:
        check(messages)
        assert messages in whole.sent
