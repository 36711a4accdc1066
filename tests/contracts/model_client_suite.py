"""What the contract tests of `ModelClient` stand on: each client with a script to answer by.

A new client joins the suite by one more line in `CLIENTS`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import TypeAlias

from loopwright.gateway.client import Gateway
from loopwright.model.chat import (
    AttemptFailed,
    CallLimits,
    ChatTool,
    ModelEvent,
    ModelRequest,
    UserMessage,
)
from loopwright.ports import ModelClient
from loopwright.testing import FakeClock
from loopwright.testing.models import ScriptedModel
from loopwright.testing.wires import WireScript, WireServer

READ = ChatTool(
    name="fs.read",
    description="Read a file.",
    schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)
LIST = ChatTool(name="fs.list", description="List a folder.", schema={})
HELLO = (UserMessage(text="hello"),)


class World:
    """A client, the model to ask, its clock, and how many connections were closed on it."""

    def __init__(
        self, client: ModelClient, model: str, clock: FakeClock, given_up: Callable[[], int]
    ) -> None:
        self.client = client
        self.model = model
        self.clock = clock
        self.given_up = given_up

    def request(self, **fields: object) -> ModelRequest:
        """A request for the model of this world."""
        given = {"models": (self.model,), "messages": HELLO, "tools": (READ, LIST), **fields}
        return ModelRequest(**given)  # type: ignore[arg-type]

    async def events(self, request: ModelRequest) -> list[ModelEvent]:
        """Everything an exchange tells. Pauses between tries pass at once."""
        told: list[ModelEvent] = []
        async with aclosing(self.client.stream(request)) as stream:
            async for event in stream:
                told.append(event)
                if isinstance(event, AttemptFailed) and event.wait_ms:
                    soon = asyncio.get_running_loop().call_later
                    soon(0.01, self.clock.advance, event.wait_ms)
        return told


Opener: TypeAlias = Callable[[WireScript], AbstractAsyncContextManager[World]]


@asynccontextmanager
async def in_memory(script: WireScript) -> AsyncIterator[World]:
    """The public fake."""
    model = ScriptedModel(script)
    yield World(model, "local/fake-model", model.clock, lambda: model.given_up)


def over(provider: str, model: str) -> Opener:
    """The real gateway, over the fake wire that this provider speaks."""

    @asynccontextmanager
    async def opened(script: WireScript) -> AsyncIterator[World]:
        clock = FakeClock()
        with WireServer(script) as wires:
            env = {"LOOPWRIGHT_MODEL_BASE_URL": f"{wires.url}/v1"}
            async with Gateway(env=env, clock=clock, dice=lambda: 0.0) as gateway:

                def left() -> int:
                    return sum(request.end == "client left" for request in wires.requests)

                yield World(gateway, f"{provider}/{model}", clock, left)

    return opened


CLIENTS: dict[str, Opener] = {
    "memory": in_memory,
    "chat": over("local", "fake-model"),
    "responses": over("openai-responses", "gpt-4.1"),
    "anthropic": over("anthropic", "claude-opus-5"),
}
PATIENT = CallLimits(tries=3, longest_wait_ms=60_000)
