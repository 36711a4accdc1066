"""The client: keys, prices, failover, time."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Coroutine
from contextlib import aclosing

import msgspec
import pytest

from loopwright.gateway.client import Gateway
from loopwright.gateway.models import Catalogue
from loopwright.model.chat import (
    AttemptFailed,
    CallLimits,
    ModelAnswer,
    ModelEvent,
    ModelRequest,
    Pricing,
    UnansweredRequest,
    UserMessage,
)
from loopwright.testing import FakeClock
from loopwright.testing.wires import ScriptedFault, ScriptedTurn, WireScript, WireServer

SECRET = "sk-proj-very-secret-0123456789"
HELLO = (UserMessage(text="hello"),)
LAZY = """
import sys, loopwright.gateway, loopwright.cli.main
heavy = {"pydantic_ai", "openai", "anthropic", "genai_prices", "httpx2"}
print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def events_of(gateway: Gateway, request: ModelRequest) -> list[ModelEvent]:
    async with aclosing(gateway.stream(request)) as stream:
        return [event async for event in stream]


def test_the_library_is_loaded_when_it_is_needed() -> None:
    """Importing the room, or the command line, loads neither the library nor an SDK."""
    done = subprocess.run(
        [sys.executable, "-c", LAZY], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout.replace("'", '"')) == []


def test_loading_in_advance() -> None:
    """Everything is loaded before the first request; what cannot be is told by the request."""

    async def work() -> None:
        env = {"LOOPWRIGHT_MODEL_BASE_URL": "http://127.0.0.1:9", "GEMINI_API_KEY": "x"}
        async with Gateway(env=env, clock=FakeClock()) as gateway:
            await gateway.load(["local/x", "anthropic/y", "google/z", "nobody/w"])
        assert {"loopwright.gateway.library.chat", "loopwright.gateway.library.claude"} <= set(
            sys.modules
        )

    run(work())


@pytest.mark.parametrize("provider", ["openai", "openai-responses", "anthropic", "local"])
def test_no_event_has_the_key(provider: str) -> None:
    """A service that quotes the key in its error does not get it into our events."""
    words = f"Incorrect API key provided: {SECRET}. Also sk-other-key-of-somebody is wrong."

    async def work() -> None:
        script = WireScript(otherwise=ScriptedTurn(fault=ScriptedFault(status=401, message=words)))
        with WireServer(script) as wires:
            env = {"LOOPWRIGHT_MODEL_BASE_URL": wires.url, "LOOPWRIGHT_MODEL_API_KEY": SECRET}
            async with Gateway(env=env, clock=FakeClock()) as gateway:
                request = ModelRequest(models=(f"{provider}/gpt-4.1",), messages=HELLO)
                told = await events_of(gateway, request)
            assert wires.requests[-1].key == SECRET
        text = msgspec.json.encode(told).decode()
        assert "Incorrect API key provided: ***" in text
        assert SECRET not in text
        assert "sk-other-key" not in text

    run(work())


def test_a_denied_price_is_not_asked() -> None:
    """With `deny` a model of unknown price is left out before anything is sent; a listed one of
    the list answers.
    """

    async def work() -> None:
        with WireServer(WireScript(otherwise=ScriptedTurn(text="paid"))) as wires:
            env = {"LOOPWRIGHT_MODEL_BASE_URL": f"{wires.url}/v1"}
            elsewhere = Catalogue()  # to it, no model runs on this machine
            async with Gateway(env=env, clock=FakeClock(), catalogue=elsewhere) as gateway:
                both = ModelRequest(
                    models=("local/unlisted", "openai/gpt-4o"),
                    messages=HELLO,
                    pricing=Pricing(unknown="deny"),
                )
                answer = (await events_of(gateway, both))[-1]
                alone = msgspec.structs.replace(both, models=("local/unlisted",))
                end = (await events_of(gateway, alone))[-1]
            assert [request.model for request in wires.asked] == ["gpt-4o"]
        assert isinstance(answer, ModelAnswer)
        assert answer.attempts[-1].usage.price == "listed"
        assert isinstance(end, UnansweredRequest)
        assert end.failure.kind == "no_price"

    run(work())


def test_failover_reports_the_hopeful_failure() -> None:
    """When no model answers, the one that named a time is told, so that the run can wait."""

    async def work() -> None:
        limited = ScriptedTurn(fault=ScriptedFault(status=429, retry_after=7_200))
        script = WireScript(turns=(limited, ScriptedTurn(fault=ScriptedFault(status=401))))
        clock = FakeClock()
        with WireServer(script) as wires:
            env = {"LOOPWRIGHT_MODEL_BASE_URL": f"{wires.url}/v1"}
            async with Gateway(env=env, clock=clock) as gateway:
                request = ModelRequest(models=("openai/a", "openai/b"), messages=HELLO)
                end = (await events_of(gateway, request))[-1]
        assert isinstance(end, UnansweredRequest)
        assert end.failure.kind == "rate_limited"
        assert end.failure.model == "openai/a"
        assert end.failure.retry_at_ms == clock.now_ms() + 7_200_000
        assert [one.model for one in end.attempts] == ["openai/a", "openai/b"]

    run(work())


def test_the_deadline_for_everything_ends_a_pause() -> None:
    """A pause that would last beyond the deadline is cut there, and says so."""

    async def work() -> None:
        script = WireScript(otherwise=ScriptedTurn(fault=ScriptedFault(status=529)))
        clock = FakeClock()
        with WireServer(script) as wires:
            env = {"LOOPWRIGHT_MODEL_BASE_URL": f"{wires.url}/v1"}
            async with Gateway(env=env, clock=clock, dice=lambda: 1.0) as gateway:
                limits = CallLimits(total_ms=9_000, base_ms=20_000, tries=5)
                request = ModelRequest(models=("openai/a",), messages=HELLO, limits=limits)
                told: list[ModelEvent] = []
                async with aclosing(gateway.stream(request)) as stream:
                    async for event in stream:
                        told.append(event)
                        if isinstance(event, AttemptFailed):
                            later = asyncio.get_running_loop().call_later
                            later(0.01, clock.advance, 9_000)
        end = told[-1]
        assert isinstance(end, UnansweredRequest)
        assert end.failure.kind == "wall_timeout"
        assert len(end.attempts) == 1

    run(work())


def test_nobody_to_ask() -> None:
    """A server that is not there is a network failure that costs nothing; no model is no model."""

    async def work() -> None:
        with WireServer() as wires:
            gone = wires.url
        env = {"LOOPWRIGHT_MODEL_BASE_URL": f"{gone}/v1"}
        async with Gateway(env=env, clock=FakeClock()) as gateway:
            request = ModelRequest(models=("local/x",), messages=HELLO, limits=CallLimits(tries=1))
            end = (await events_of(gateway, request))[-1]
            nobody = (await events_of(gateway, ModelRequest(models=(), messages=HELLO)))[-1]
        assert isinstance(end, UnansweredRequest)
        assert end.failure.kind == "network"
        assert end.attempts[0].usage.usd == 0.0
        assert isinstance(nobody, UnansweredRequest)
        assert nobody.failure.kind == "no_model"

    run(work())


def test_google_without_its_extra_says_so() -> None:
    """The failure names what to install, unless it is installed."""

    async def work() -> None:
        async with Gateway(env={"GEMINI_API_KEY": "x"}, clock=FakeClock()) as gateway:
            request = ModelRequest(models=("google/gemini-2.5-flash",), messages=HELLO)
            end = (await events_of(gateway, request))[-1]
        assert isinstance(end, UnansweredRequest)
        assert end.failure.kind == "no_model"
        assert "loopwright[google]" in end.failure.detail

    run(work())


def test_many_streams_at_once() -> None:
    """A hundred streams over one gateway come to their ends, each with its whole text."""

    async def work() -> None:
        text = "word " * 200
        with WireServer(WireScript(otherwise=ScriptedTurn(text=text, chunk=40))) as wires:
            env = {"LOOPWRIGHT_MODEL_BASE_URL": f"{wires.url}/v1"}
            async with Gateway(env=env, clock=FakeClock()) as gateway:
                request = ModelRequest(models=("local/x",), messages=HELLO)
                ends = await asyncio.gather(*(events_of(gateway, request) for _ in range(100)))
        assert all(
            isinstance(one[-1], ModelAnswer) and one[-1].message.text == text for one in ends
        )

    run(work())
