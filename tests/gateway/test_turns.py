"""Turns as a performer makes them: what is asked, what the engine is told, what tools do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field

import msgspec
import pytest

from loopwright.engine.services import schema_problem
from loopwright.errors import LoopwrightError
from loopwright.gateway.turns import INTERRUPTED, ModelTurns, models_of, request_of
from loopwright.kernel.event_parts import AgentCall, AnyCall, ModelCall, ToolCall
from loopwright.model.chat import (
    CallPart,
    ChatTool,
    Pricing,
    RequestedCall,
    UserMessage,
    decode_turn,
)
from loopwright.model.chat import ModelTurn as Taken
from loopwright.model.plan import Agent
from loopwright.model.record import JsonValue
from loopwright.ports import Answer, Delta, EffectFailure, EffectJob, EffectSuccess, ToolReply
from loopwright.prompts.conversation import HAND_IN, SEND, submit_tool
from loopwright.testing.models import ScriptedModel
from loopwright.testing.wires import (
    ScriptedCall,
    ScriptedFault,
    ScriptedTurn,
    ScriptedUsage,
    WireScript,
)
from tests.support.jobs import effect_job

AGENT = Agent(spec="model:local/tiny", system="Be brief.")
SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
}
READ = ChatTool(name="fs.read", description="Reads.")


@dataclass
class Ended:
    text: str
    error: bool = False
    code: int | None = None


@dataclass
class Offer:
    tools: tuple[ChatTool, ...] = (READ,)
    problems: tuple[str, ...] = ()


@dataclass
class Bench:
    """Tools that do nothing but remember."""

    done: list[tuple[str, JsonValue, bool]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    end: Ended = field(default_factory=lambda: Ended("seen"))
    safe: tuple[str, ...] = ("fs.read",)

    async def specs(self) -> Offer:
        return Offer()

    async def resolve(self, call: CallPart) -> RequestedCall:
        return RequestedCall(id=call.id, tool=call.tool, arguments={"by": "bench"}, paths=("a",))

    async def run(
        self, tool: str, arguments: JsonValue, *, approved: bool = False, key: str = ""
    ) -> Ended:
        self.done.append((tool, arguments, approved))
        self.keys.append(key)
        return self.end

    def repeatable(self, tool: str) -> bool:
        return tool in self.safe


@dataclass
class Bus:
    said: list[tuple[str, str]] = field(default_factory=list)

    def publish(self, delta: Delta) -> None:
        self.said.append((delta.kind, delta.text))


@dataclass
class Letters:
    ok: bool = True
    sent: list[JsonValue] = field(default_factory=list)

    def use(self, tool: str, arguments: JsonValue) -> Awaitable[ToolReply]:
        async def told() -> ToolReply:
            self.sent.append(arguments)
            return ToolReply(text="queued: m1" if self.ok else "dropped: nobody", ok=self.ok)

        return told()

    def end_waiting(self) -> None:
        """A model does not wait for messages."""


@dataclass
class Room:
    """A performer with everything around it."""

    model: ScriptedModel
    bench: Bench = field(default_factory=Bench)
    bus: Bus = field(default_factory=Bus)

    def perform(self, job: EffectJob) -> Answer:
        turns = ModelTurns(self.model, lambda _: self.bench, self.bus, schema_problem)

        async def performed() -> Answer:
            return await turns.perform(job)

        return asyncio.run(performed())


def room(*turns: ScriptedTurn, **more: object) -> Room:
    return Room(ScriptedModel(WireScript(turns=turns)), **more)  # type: ignore[arg-type]


def job(call: AnyCall | None = None, **more: object) -> EffectJob:
    made: dict[str, object] = {
        "run": "run_1",
        "effect": "main.0/model#1",
        "path": "main.0",
        "iteration": 1,
        "attempt": 1,
        "call": call or ModelCall(agent="coder"),
        "workspace": ".",
        "token": "t",
        "agent": AGENT,
        "messages": (UserMessage(text="Mend it."),),
    }
    return effect_job(**{**made, **more})


def taken(answer: Answer) -> Taken:
    assert isinstance(answer, EffectSuccess)
    assert answer.result is not None
    return decode_turn(answer.result)


def failed(answer: Answer) -> EffectFailure:
    assert isinstance(answer, EffectFailure)
    return answer


@pytest.mark.item("W28")
def test_a_turn_with_two_calls() -> None:
    """Text, calls under the tools' own names and usage reach the engine; those who look on too."""
    here = room(
        ScriptedTurn(
            text="I look.",
            calls=(ScriptedCall(name="fs.read", id="c1"), ScriptedCall(name="fs.read", id="c2")),
            usage=ScriptedUsage(input=100, output=7),
        )
    )
    answer = here.perform(job())
    turn = taken(answer)
    assert [(call.id, call.tool, call.arguments) for call in turn.calls] == [
        ("c1", "fs.read", {"by": "bench"}),
        ("c2", "fs.read", {"by": "bench"}),
    ]
    assert (turn.finish, turn.message.text, answer.output) == ("tool_calls", "I look.", "I look.")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (100, 7)
    assert answer.usage.unpriced == 1, "a price that nobody knows is told as such"
    assert "".join(text for kind, text in here.bus.said if kind == "text") == "I look."
    [request] = here.model.requests
    assert [tool.name for tool in request.tools] == ["fs.read"]
    assert request.system == "Be brief."


def test_a_result_is_a_call_of_its_own() -> None:
    """What is handed in is checked against its form; the toolbox never sees it."""
    good = ScriptedCall(name="submit_result", args={"n": 3}, id="a")
    bad = ScriptedCall(name="submit_result", args={"n": "x"}, id="b")
    none = ScriptedCall(name="submit_result", raw="{", id="c")
    here = room(ScriptedTurn(calls=(good, bad, none)))
    calls = taken(here.perform(job(offers=(submit_tool(SCHEMA),)))).calls
    assert [(call.arguments, bool(call.problem)) for call in calls] == [
        ({"n": 3}, False),
        ({"n": "x"}, True),
        ("{", True),
    ]


def test_a_turn_that_hands_nothing_in() -> None:
    """Where a result is due, words alone are no answer; what they cost is not lost."""
    here = room(ScriptedTurn(text="Done!", usage=ScriptedUsage(input=9, output=1)))
    answer = failed(here.perform(job(offers=(submit_tool(SCHEMA),))))
    assert (answer.error.type, answer.output) == ("bad_result", "Done!")
    assert answer.usage is not None
    assert answer.usage.input_tokens == 9


def test_a_forced_turn_offers_nothing_else() -> None:
    """The one tool that is left is the one that hands in."""
    here = room(ScriptedTurn(calls=(ScriptedCall(name="submit_result", args={"n": 1}),)))
    here.perform(job(offers=(submit_tool(SCHEMA),), forced=True))
    assert [tool.name for tool in here.model.requests[0].tools] == ["submit_result"]


def test_a_summary_is_words() -> None:
    """It has no tools, and what it says is its output."""
    here = room(ScriptedTurn(text="All is well."))
    answer = here.perform(job(ModelCall(agent="coder", role="summary"), system="Sum up."))
    assert isinstance(answer, EffectSuccess)
    assert (answer.output, answer.result) == ("All is well.", None)
    assert here.model.requests[0].tools == ()
    assert here.model.requests[0].system == "Sum up."


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        pytest.param(ScriptedFault(status=401), "not_signed_in", id="key"),
        pytest.param(ScriptedFault(status=402), "budget_limit", id="credit"),
        pytest.param(ScriptedFault(status=404), "not_found", id="model"),
        pytest.param(ScriptedFault(status=400), "bad_input", id="request"),
        pytest.param(ScriptedFault(status=503), "overloaded", id="busy"),
        pytest.param(ScriptedFault(status=429, retry_after=3_600), "rate_limited", id="limit"),
    ],
)
def test_failures_by_name(fault: ScriptedFault, kind: str) -> None:
    """Each failure of a service is one that a policy can name."""
    here = room(ScriptedTurn(fault=fault, times=None))
    error = failed(here.perform(job())).error
    assert error.type == kind
    assert (error.resets_at is not None) == (kind == "rate_limited")


def test_a_prompt_that_is_too_long() -> None:
    """The engine hears that the conversation has to become shorter."""
    here = room(ScriptedTurn(overflow=True, times=None))
    assert failed(here.perform(job())).error.type == "overflow"


# -- judges and others that answer once ------------------------------------------------------------


def judge(**more: object) -> EffectJob:
    call = AgentCall(agent="coder", role="judge")
    return job(call, prompt="Is it good?", messages=(), **more)


@pytest.mark.parametrize(
    ("turns", "result"),
    [
        pytest.param(
            [ScriptedTurn(calls=(ScriptedCall(name="submit_result", args={"n": 1}),))],
            '{"n":1}',
            id="tool",
        ),
        pytest.param([ScriptedTurn(text='I say {"n": 2}')], '{"n": 2}', id="words"),
        pytest.param(
            [ScriptedTurn(text="Hm."), ScriptedTurn(text='{"n": 3}')], '{"n": 3}', id="asked again"
        ),
        pytest.param([ScriptedTurn(text="Hm."), ScriptedTurn(text="Hm.")], None, id="never"),
    ],
)
def test_a_single_answer_with_a_form(turns: list[ScriptedTurn], result: str | None) -> None:
    """One more request when the first answer does not fit; then it has failed."""
    here = room(*turns)
    answer = here.perform(judge(schema=SCHEMA))
    if result is None:
        assert failed(answer).error.type == "bad_result"
        assert HAND_IN in here.model.requests[1].messages[-1].text  # type: ignore[union-attr]
    else:
        assert isinstance(answer, EffectSuccess)
        assert answer.result == result
    assert len(here.model.requests) == len(turns)


def test_a_single_answer_in_words() -> None:
    """Without a form the words are the answer."""
    answer = room(ScriptedTurn(text="Yes.")).perform(judge())
    assert isinstance(answer, EffectSuccess)
    assert (answer.output, answer.result) == ("Yes.", None)


def test_a_judge_that_cannot_be_asked() -> None:
    """The failure is the service's, with what was spent before."""
    assert (
        failed(room(ScriptedTurn(fault=ScriptedFault(status=401))).perform(judge())).error.type
        == "not_signed_in"
    )


# -- tools -----------------------------------------------------------------------------------------


def tool(name: str = "fs.read", **more: object) -> EffectJob:
    call = ToolCall(agent="coder", tool=name, call="c1")
    return job(call, effect="main.0/tool1#1", arguments='{"path":"a"}', **more)


@pytest.mark.parametrize("approved", [False, True])
def test_a_tool_is_done(approved: bool) -> None:
    """With its arguments, and with a person's word where there is one."""
    here = room()
    answer = here.perform(tool(approved=approved))
    assert isinstance(answer, EffectSuccess)
    assert answer.output == "seen"
    assert here.bench.done == [("fs.read", {"path": "a"}, approved)]
    assert all(key.endswith("#1") for key in here.bench.keys), "what is kept is kept once"


def test_a_tool_that_fails_is_reported_to_the_model() -> None:
    """What went wrong is the output, and the exit code is kept."""
    here = room(bench=Bench(end=Ended('{"error":"no"}', error=True, code=2)))
    answer = failed(here.perform(tool()))
    assert (answer.error.type, answer.output, answer.code) == ("tool", '{"error":"no"}', 2)


@pytest.mark.item("aldo-28")
@pytest.mark.parametrize(
    ("name", "runs"),
    [pytest.param("fs.read", 1, id="reads"), pytest.param("fs.write", 0, id="writes")],
)
def test_a_call_whose_end_was_not_recorded(name: str, runs: int) -> None:
    """After a crash what changes nothing is done again; all else is told, and not done."""
    here = room()
    answer = here.perform(tool(name, again=True))
    assert len(here.bench.done) == runs
    assert isinstance(answer, EffectSuccess) == bool(runs)
    if isinstance(answer, EffectFailure):
        assert answer.error.detail == INTERRUPTED


@pytest.mark.parametrize("ok", [True, False])
def test_a_message_to_the_coordinator(ok: bool) -> None:
    """It goes to the run, and the model is told what became of it."""
    letters = Letters(ok)
    answer = room().perform(tool(SEND.name, talk=letters))
    assert isinstance(answer, EffectSuccess) == ok
    assert letters.sent == [{"path": "a"}]
    assert answer.output.startswith("queued" if ok else "dropped")


def test_a_message_without_anybody_there() -> None:
    """A tool of the run that the run does not have is a failure, and no defect."""
    assert failed(room().perform(tool(SEND.name))).error.type == "tool"


def test_a_grant_that_cannot_be_given() -> None:
    """What an agent asks for and nobody has is told with the fix."""
    model = ScriptedModel(WireScript())

    def none(_: EffectJob) -> Bench:
        raise LoopwrightError("there is no MCP server 'x'", hint="describe it")

    async def performed() -> Answer:
        return await ModelTurns(model, none, Bus(), schema_problem).perform(job())

    answer = failed(asyncio.run(performed()))
    assert (answer.error.type, answer.error.detail) == (
        "not_found",
        "there is no MCP server 'x'; describe it",
    )


# -- what is asked ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "budgeted", "pricing"),
    [
        pytest.param({}, False, Pricing(unknown="allow"), id="no limit"),
        pytest.param({}, True, Pricing(unknown="deny"), id="limited money"),
        pytest.param({"unknown_price": "allow"}, True, Pricing(unknown="allow"), id="said so"),
        pytest.param({"unknown_price": "what"}, True, Pricing(unknown="deny"), id="nonsense"),
        pytest.param(
            {"unknown_price": {"input_usd": 3, "output_usd": True}},
            True,
            Pricing(unknown="assume", input_usd=3.0),
            id="assumed",
        ),
    ],
)
def test_unknown_prices(options: dict[str, JsonValue], budgeted: bool, pricing: Pricing) -> None:
    """Where money is limited a model without a price is not asked, unless its author says so."""
    agent = msgspec.structs.replace(AGENT, options=options)
    assert request_of(job(agent=agent, budgeted=budgeted), ()).pricing == pricing


def test_everything_an_agent_says_about_its_answers() -> None:
    """Temperature, lengths, times and models of the agent are those of the request."""
    agent = Agent(
        spec="model:a/b, c/d",
        temperature=0.2,
        options={"max_output_tokens": 99, "seed": True, "top_p": 0.5},
    )
    request = request_of(job(agent=agent, idle_ms=5, wall_ms=7), ())
    assert request.models == models_of(agent) == ("a/b", "c/d")
    assert (request.decoding.temperature, request.decoding.max_output_tokens) == (0.2, 99)
    assert (request.decoding.seed, request.decoding.top_p) == (None, 0.5)
    for wrong in (True, "x", 2):
        odd = msgspec.structs.replace(agent, options={"top_p": wrong})
        assert request_of(job(agent=odd), ()).decoding.top_p is None
    assert (request.limits.first_token_ms, request.limits.total_ms) == (5, 7)
    assert request.key == "run_1/main.0/model#1"
