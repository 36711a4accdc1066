"""What goes over each wire: recorded bodies, the same with and without the shortcut, and never a
call without its result.
"""

import asyncio
import json
import os
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import AsyncAnthropic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI
from pydantic_ai.direct import model_request_stream

from loopwright.gateway.client import Gateway
from loopwright.gateway.library import chat, claude
from loopwright.gateway.library.messages import (
    library_messages,
    library_parameters,
    library_settings,
    tool_names,
)
from loopwright.gateway.models import Endpoint, endpoint_of, wire_names
from loopwright.model.chat import (
    AnyMessage,
    AssistantMessage,
    CallPart,
    DecodingOptions,
    FilePart,
    ModelAnswer,
    ModelEvent,
    ModelRequest,
    SystemMessage,
    TextPart,
    ThoughtPart,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from loopwright.testing import FakeClock
from loopwright.testing.wires import ScriptedCall, ScriptedTurn, WireScript, WireServer
from tests.gateway.histories import TOOLS, tool_turns

GOLDEN = Path(__file__).parent / "golden"
MODELS = {
    "anthropic": "anthropic/claude-opus-5",
    "chat": "openai/gpt-4.1",
    "local": "local/fake-model",
    "responses": "openai-responses/gpt-4.1",
}
DECODING = DecodingOptions(temperature=0.15, max_output_tokens=2_000)


def env_of(wires: WireServer) -> dict[str, str]:
    return {"LOOPWRIGHT_MODEL_BASE_URL": f"{wires.url}/v1"}


async def last_event(gateway: Gateway, request: ModelRequest) -> ModelEvent:
    last: ModelEvent | None = None
    async with aclosing(gateway.stream(request)) as stream:
        async for event in stream:
            last = event
    assert last is not None
    return last


async def conversation(wires: WireServer, model: str) -> None:
    """Two parallel calls with thoughts, their results (one an error), a word, and an answer."""
    history: tuple[AnyMessage, ...] = (UserMessage(text="What does the build say?"),)
    async with Gateway(env=env_of(wires), clock=FakeClock()) as gateway:
        for word in ("Go on.", ""):
            request = ModelRequest(
                models=(model,),
                system="You are careful.",
                messages=history,
                tools=TOOLS,
                decoding=DECODING,
            )
            answer = await last_event(gateway, request)
            assert isinstance(answer, ModelAnswer)
            one, two = answer.message.calls
            results = (
                ToolResult(id=two.id, tool=two.tool, text="no such program", error=True),
                ToolResult(id=one.id, tool=one.tool, text="all: test"),
            )
            history += (answer.message, ToolMessage(results=results))
            history += (UserMessage(text=word),) if word else ()
        assert isinstance(
            await last_event(gateway, ModelRequest(models=(model,), messages=history)), ModelAnswer
        )


@pytest.mark.parametrize("name", MODELS)
def test_bodies_are_as_recorded(name: str) -> None:
    """Three requests of a conversation with two parallel calls in each turn, byte for byte of
    their JSON. Renew them with LOOPWRIGHT_RENEW_WIRES=1, and read what has changed.
    """
    calls = (
        ScriptedCall(name="fs_read", args={"path": "Makefile"}),
        ScriptedCall(name="shell_exec", args={"argv": ["make", "-n"]}),
    )
    turn = ScriptedTurn(text="I look.", thinking="Two things at once.", calls=calls, times=2)
    with WireServer(WireScript(turns=(turn, ScriptedTurn(text="It is red.")))) as wires:
        asyncio.run(conversation(wires, MODELS[name]))
        assert wires.refused == []
        bodies = [request.body for request in wires.asked]
    file = GOLDEN / f"{name}.json"
    if os.environ.get("LOOPWRIGHT_RENEW_WIRES"):
        file.write_text(json.dumps(bodies, indent=1) + "\n", encoding="utf-8")
    assert bodies == json.loads(file.read_text(encoding="utf-8"))


def test_the_recorded_bodies_answer_every_call() -> None:
    """In the recordings too each call of a turn is answered, in the words of its own wire."""
    [_, second, _] = json.loads((GOLDEN / "chat.json").read_text(encoding="utf-8"))
    assert [m["role"] for m in second["messages"]] == [
        "system", "user", "assistant", "tool", "tool", "user",
    ]  # fmt: skip
    [_, second, _] = json.loads((GOLDEN / "anthropic.json").read_text(encoding="utf-8"))
    answered = [part["type"] for part in second["messages"][2]["content"]]
    assert answered == ["tool_result", "tool_result", "text"]


TOLD = '{"error":"no such program","type":"not_found"}'
REFUSED = '{"rejected":true,"reason":"not today","approver":"ann"}'


@pytest.mark.parametrize(
    ("wire", "text", "seen"),
    [
        pytest.param("chat", "no such program", '{"error":"no such program"}', id="chat, words"),
        pytest.param("chat", '{"error":"no"}', '{"error":"no"}', id="chat, an object"),
        pytest.param("chat", TOLD, TOLD, id="chat, an object with more"),
        pytest.param("chat", REFUSED, REFUSED, id="chat, a rejection"),
        pytest.param("chat", '{"error', '{"error":"{\\"error"}', id="chat, cut off"),
        pytest.param("responses", '{"error":"no"}', '{"error":"no"}', id="responses, an object"),
        pytest.param("anthropic", "no such program", "no such program", id="anthropic, words"),
        pytest.param("anthropic", '{"error":"no"}', "no", id="anthropic, an object"),
        pytest.param("anthropic", TOLD, TOLD, id="anthropic, an object with more"),
        pytest.param("anthropic", REFUSED, REFUSED, id="anthropic, a rejection"),
    ],
)
@pytest.mark.item("aldo-28", "aldo-29", "aldo-35", "W5")
def test_an_error_is_reported_once(wire: str, text: str, seen: str) -> None:
    """Each wire carries an error in its own form, and none of them inside another error."""
    history = (
        UserMessage(text="Look."),
        AssistantMessage(parts=(CallPart(id="c1", tool="fs.read", args="{}"),)),
        ToolMessage(results=(ToolResult(id="c1", tool="fs.read", text=text, error=True),)),
    )
    with WireServer(WireScript(otherwise=ScriptedTurn(text="ok"))) as wires:
        asyncio.run(_told(wires, ModelRequest(models=(MODELS[wire],), messages=history)))
        [sent] = wires.asked
    if wire == "responses":
        assert sent.body["input"][-1]["output"] == seen
    elif wire == "chat":
        assert sent.body["messages"][-1]["content"] == seen
    else:
        [part] = sent.body["messages"][-1]["content"]
        assert (part["is_error"], part["content"][0]["text"]) == (True, seen)


async def _told(wires: WireServer, request: ModelRequest) -> None:
    async with Gateway(env=env_of(wires), clock=FakeClock()) as gateway:
        assert isinstance(await last_event(gateway, request), ModelAnswer)


async def body(to: Endpoint, client: Any, request: ModelRequest, wires: WireServer) -> bytes:
    """The bytes that a client sends for a request."""
    make = claude.model if to.wire == "anthropic" else chat.model
    names = wire_names(tool_names(request.tools, request.messages))
    async with (
        httpx2.AsyncClient() as http,
        model_request_stream(
            make(to, http, client=client),
            library_messages(request, names, to.wire),
            model_settings=library_settings(request.decoding),
            model_request_parameters=library_parameters(request, names),
            instrument=False,
        ) as stream,
    ):
        async for _ in stream:
            pass
    return wires.requests[-1].raw


@pytest.mark.parametrize("turns", [0, 1, 40])
@pytest.mark.parametrize("name", MODELS)
def test_the_shortcut_sends_the_same_body(name: str, turns: int) -> None:
    """With and without the shortcut around the SDK's walk the same bytes are sent."""
    plain = AsyncAnthropic if name == "anthropic" else AsyncOpenAI
    short = claude.Client if name == "anthropic" else chat.Client
    with WireServer(WireScript(otherwise=ScriptedTurn(text="ok"))) as wires:
        to = endpoint_of(MODELS[name], env_of(wires))
        assert isinstance(to, Endpoint)
        request = ModelRequest(
            models=(MODELS[name],),
            system="Be good.",
            messages=tool_turns(turns),
            tools=TOOLS,
            decoding=DecodingOptions(
                max_output_tokens=500,
                schema={"type": "object", "properties": {"a": {"type": "string"}}}
                if turns == 1
                else None,
            ),
        )
        bodies = [asyncio.run(body(to, client, request, wires)) for client in (plain, short)]
        assert wires.refused == []
    assert bodies[0] == bodies[1]


IDS = st.sampled_from(["", "a", "b", "c"])
NAMES = st.sampled_from(["fs.read", "fs_read", "shell exec", "x" * 80])
TEXTS = st.sampled_from(["", "word", "two words"])
CALLS = st.builds(CallPart, id=IDS, tool=NAMES, args=st.sampled_from(["{}", '{"a": 1}', '{"cut']))
PARTS = st.one_of(CALLS, st.builds(TextPart, text=TEXTS), st.builds(ThoughtPart, text=TEXTS))
RESULTS = st.builds(ToolResult, id=IDS, tool=NAMES, text=TEXTS, error=st.booleans())
MESSAGES = st.one_of(
    st.builds(UserMessage, text=TEXTS),
    st.builds(SystemMessage, text=TEXTS),
    st.builds(AssistantMessage, parts=st.lists(PARTS, max_size=4).map(tuple)),
    st.builds(ToolMessage, results=st.lists(RESULTS, max_size=4).map(tuple)),
)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.item("W2")
def test_every_call_has_exactly_one_result(name: str) -> None:
    """Whatever the history, crashes and doubled ids included: a server that checks each call for
    its one result, right after its turn, accepts every request.
    """
    with (
        WireServer(WireScript(otherwise=ScriptedTurn(text="ok"))) as wires,
        asyncio.Runner() as runner,
    ):
        gateway = runner.run(_opened(wires))

        @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(st.lists(MESSAGES, max_size=7))
        def accepted(history: list[AnyMessage]) -> None:
            messages = (UserMessage(text="the task"), *history)
            request = ModelRequest(models=(MODELS[name],), messages=messages, tools=TOOLS)
            answer = runner.run(last_event(gateway, request))
            assert isinstance(answer, ModelAnswer), answer
            assert wires.requests[-1].complaints() == []

        accepted()
        runner.run(gateway.close())


async def _opened(wires: WireServer) -> Gateway:
    return Gateway(env=env_of(wires), clock=FakeClock())


PICTURE = FilePart(name="a.png", media_type="image/png", data=b"\x89PNG\r\n...")
PAPER = FilePart(name="b.pdf", media_type="application/pdf", data=b"%PDF-1.7 ...")


@pytest.mark.item("zenflow-80")
@pytest.mark.parametrize(
    ("wire", "kinds"),
    [
        ("anthropic", ["text", "image", "document"]),
        ("chat", ["text", "image_url", "file"]),
        ("responses", ["input_text", "input_image", "input_file"]),
    ],
)
def test_files_are_parts_of_the_message(wire: str, kinds: list[str]) -> None:
    """As each wire has them, behind the text."""
    message = UserMessage(text="Look.", files=(PICTURE, PAPER))

    async def body() -> Any:
        with WireServer(WireScript(turns=(ScriptedTurn(text="seen"),))) as wires:
            async with Gateway(env=env_of(wires), clock=FakeClock()) as gateway:
                request = ModelRequest(models=(MODELS[wire],), messages=(message,))
                assert isinstance(await last_event(gateway, request), ModelAnswer)
            return wires.asked[-1].body

    sent = asyncio.run(body())
    [said] = sent["input"] if wire == "responses" else sent["messages"]
    assert [one["type"] for one in said["content"]] == kinds
