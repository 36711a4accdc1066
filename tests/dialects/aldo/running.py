"""Plans of this dialect run in memory, with scripted models and tools."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from loopwright.dialects.aldo.events import AldoEvent, events_of
from loopwright.kernel.event_parts import ModelCall, ToolCall
from loopwright.kernel.events import EffectRequested, GateOpened, Usage
from loopwright.kernel.frames import CycleBody
from loopwright.kernel.references import request_text
from loopwright.model.actions import Decision
from loopwright.model.chat import AssistantMessage, ModelTurn, RequestedCall, TextPart, encode_turn
from loopwright.model.plan import Plan
from loopwright.model.record import Blob, JsonValue
from tests.kernel.driving import Driver, Fail, Reply, ScriptedAnswer

Speak = Callable[[str, int, str], ScriptedAnswer]
"""What an agent says: its name, the number of the cycle, what it was asked."""


def turn(
    text: str = "",
    *calls: RequestedCall,
    usd: float = 0.0,
    finish: str = "stop",
    model: str = "a/m",
) -> Reply:
    """A model's answer: what it says, and the tools that it wants."""
    message = AssistantMessage(parts=(TextPart(text=text),) if text else ())
    made = ModelTurn(message=message, calls=calls, finish=finish, model=model)  # type: ignore[arg-type]
    usage = Usage(input_tokens=10, output_tokens=5, usd=usd) if usd else None
    return Reply(text, result=encode_turn(made), usage=usage)


def call(id: str, tool: str = "shell.exec", **arguments: JsonValue) -> RequestedCall:
    return RequestedCall(id=id, tool=tool, arguments=arguments, paths=())


def done(text: str = '{"stdout":"tsc: ok"}', *, code: int = 0) -> Reply:
    return Reply(text, code=code)


@dataclass
class Stage:
    """One run; `heard` is what each agent was asked, in the order of asking."""

    plan: Plan
    speak: Speak
    tool: Callable[[ToolCall], ScriptedAnswer] = lambda _: done()
    people: Callable[[GateOpened], tuple[Decision, str] | None] = lambda _: ("approve", "")
    heard: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._said: dict[str, ScriptedAnswer] = {}
        self.driver = Driver(self.plan, script=self._answer, people=self.people)

    def _answer(self, request: EffectRequested) -> ScriptedAnswer:
        if request.effect not in self._said:
            self._said[request.effect] = self._first_answer(request)
        return self._said[request.effect]

    def _first_answer(self, request: EffectRequested) -> ScriptedAnswer:
        if isinstance(request.call, ToolCall):
            return self.tool(request.call)
        assert isinstance(request.call, ModelCall)
        if request.call.role == "summary":
            return Reply("in short", usage=Usage(input_tokens=3, output_tokens=1, usd=0.01))
        owner = self.driver.state.owners[request.path]
        assert isinstance(owner.body, CycleBody)
        asked = request_text(self.driver.state, owner, owner.body.action.prompt, self.driver.texts)
        self.heard.append((request.call.agent, asked))
        return self.speak(request.call.agent, request.iteration or 0, asked)

    def run(self, message: str = "Do it.") -> "Stage":
        self.driver.message = message
        self.driver.run()
        return self

    def events(self) -> list[AldoEvent]:
        log_events = [msgspec.to_builtins(event) for event in self.driver.events]
        return events_of(log_events, self.plan, self.read)

    def read(self, text: JsonValue) -> str:
        if isinstance(text, dict):
            return self.driver.texts.read(msgspec.convert(text, Blob))
        return str(text or "")


def says(*texts: str) -> Speak:
    """The n-th cycle of every agent gets the n-th text, the last one again and again."""
    return lambda agent, cycle, asked: turn(texts[min(cycle, len(texts)) - 1])


BROKEN = Fail("auth", "no key")
