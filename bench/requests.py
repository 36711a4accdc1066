"""What building a request costs with a long history: python bench/requests.py

The history has 300 turns of two tool calls each, with their results, and eight tools are offered.
Measured is the CPU from our records to the bytes that a connection is given; beside it the same
without the shortcut around the SDK's walk. Each figure is the best of five. Exit code 1 when a wire
misses the target.
"""

import asyncio
import sys
import time
from collections.abc import Callable

import httpx2
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import ModelConnectionError
from pydantic_ai.models import Model

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
    ChatTool,
    ModelRequest,
    TextPart,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from loopwright.prompts.conversation import pair_calls

TARGET_MS = 20.0
TURNS = 300
ROUNDS = 5


class NoNetwork(httpx2.AsyncBaseTransport):
    """In place of a network: notes the time at which the body is complete, and breaks off."""

    built = 0.0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert len(await request.aread()) > 100_000
        self.built = time.process_time()
        raise httpx2.ConnectError("nothing is sent here", request=request)


def history(turns: int) -> tuple[AnyMessage, ...]:
    """A task and turns with two calls and their results."""
    made: list[AnyMessage] = [UserMessage(text="Make the tests pass.")]
    for turn in range(turns):
        ids = (f"call_{turn}_a", f"call_{turn}_b")
        calls = tuple(
            CallPart(id=one, tool="fs.read", args=f'{{"path":"src/module_{turn}.py"}}')
            for one in ids
        )
        made.append(AssistantMessage(parts=(TextPart(text="I look at two files."), *calls)))
        results = tuple(ToolResult(id=one, tool="fs.read", text="x = 1\n" * 30) for one in ids)
        made.append(ToolMessage(results=results))
    return tuple(made)


def tools() -> tuple[ChatTool, ...]:
    """Eight tools with a schema each."""
    fields: dict[str, object] = {f"field_{n}": {"type": "string"} for n in range(4)}
    return tuple(
        ChatTool(
            name="fs.read" if number == 0 else f"tool.{number}",
            description="Does what its name says.",
            schema={"type": "object", "properties": {**fields}},
        )
        for number in range(8)
    )


async def build(model: Model, request: ModelRequest) -> None:
    """Everything up to the point where the bytes would go out."""
    messages = pair_calls(request.messages)
    names = wire_names(tool_names(request.tools, messages))
    try:
        async with model_request_stream(
            model,
            library_messages(request, names),
            model_settings=library_settings(request.decoding),
            model_request_parameters=library_parameters(request, names),
            instrument=False,
        ):
            pass
    except ModelConnectionError:
        return


async def measure(spec: str, client: type[AsyncOpenAI] | type[AsyncAnthropic]) -> float:
    """CPU milliseconds of one request, the best of five."""
    to = endpoint_of(spec, {"LOOPWRIGHT_MODEL_BASE_URL": "http://127.0.0.1:9/v1"})
    assert isinstance(to, Endpoint)
    make: Callable[..., Model] = claude.model if to.wire == "anthropic" else chat.model
    request = ModelRequest(models=(spec,), messages=history(TURNS), tools=tools(), system="Work.")
    best = float("inf")
    network = NoNetwork()
    async with httpx2.AsyncClient(transport=network) as http:
        model = make(to, http, client=client)
        for _ in range(ROUNDS):
            begin = time.process_time()
            await build(model, request)
            best = min(best, network.built - begin)
    return best * 1e3


def main() -> int:
    lines: list[tuple[str, type[AsyncOpenAI] | type[AsyncAnthropic], bool]] = [
        ("openai/gpt-4.1", chat.Client, True),
        ("openai/gpt-4.1", AsyncOpenAI, False),
        ("openai-responses/gpt-4.1", chat.Client, True),
        ("openai-responses/gpt-4.1", AsyncOpenAI, False),
        ("anthropic/claude-opus-5", claude.Client, True),
        ("anthropic/claude-opus-5", AsyncAnthropic, False),
    ]
    missed = False
    for spec, client, ours in lines:
        ms = asyncio.run(measure(spec, client))
        missed = missed or (ours and ms > TARGET_MS)
        what = "" if ours else "without the shortcut"
        print(f"{spec:28}{ms:10.1f} ms CPU  {what}")
    print(f"{TURNS} turns: at most {TARGET_MS:.0f} ms {'MISSED' if missed else 'met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
