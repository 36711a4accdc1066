"""What the workloads of chat models work on: cycles, tools side by side, requests, streams."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from loopwright.kernel.event_parts import ModelCall
from loopwright.kernel.events import Usage
from loopwright.model.actions import CallAgent, ModelCycle, Repeat, Step
from loopwright.model.chat import (
    AssistantMessage,
    CallPart,
    ModelTurn,
    RequestedCall,
    TextPart,
    encode_turn,
)
from loopwright.model.checks import Cap
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import ConversationHistory
from loopwright.ports import Answer, EffectJob, EffectSuccess

TOOL_SECONDS = 0.2
LOOK_SECONDS = 0.002
STREAM = """
otherwise:
  text: {text}
  chunk: 8
  delta_ms: 20
"""


def _turn(job: EffectJob) -> str:
    """Two calls of a tool, with ids of their own."""
    ids = [f"call_{job.iteration}_{n}" for n in (1, 2)]
    parts = tuple(CallPart(id=one, tool="noop") for one in ids)
    message = AssistantMessage(parts=(TextPart(text="two more"), *parts))
    calls = tuple(RequestedCall(id=one, tool="noop", arguments={}, paths=()) for one in ids)
    return encode_turn(ModelTurn(message=message, calls=calls, finish="tool_calls"))


class Chatter:
    """A model that always wants two tools, and tools that take no time, or so much."""

    def __init__(self, tool_seconds: float = 0.0) -> None:
        self._seconds = tool_seconds

    def perform(self, job: EffectJob) -> Answer | Awaitable[Answer]:
        if isinstance(job.call, ModelCall):
            used = Usage(input_tokens=100 * job.iteration, output_tokens=20)
            return EffectSuccess(output="two more", result=_turn(job), usage=used)
        return self._slow() if self._seconds else EffectSuccess(output="done")

    async def _slow(self) -> Answer:
        await asyncio.sleep(self._seconds)
        return EffectSuccess(output="done")


def cycles_plan(cycles: int) -> Plan:
    """A loop of cycles with two tools each. The window is as long as the conversation of the same
    number of iterations needs, so nothing is cut.
    """
    body = Repeat(
        body=ModelCycle(agent="chat"),
        max=cycles,
        until=Cap(),
        memory=ConversationHistory(window=1_000_000_000),
        at_cap="complete",
    )
    agents = {"chat": Agent(spec="model:local/tiny")}
    return Plan(name="cycles", steps=(Step(id="main", action=body),), agents=agents)


def talk_plan() -> Plan:
    """One call of a chat model."""
    agents = {"chat": Agent(spec="model:local/tiny", tools=())}
    step = Step(id="main", action=CallAgent(agent="chat"))
    return Plan(name="talk", steps=(step,), agents=agents)


def request_cost() -> float:
    """CPU milliseconds to build a request after 300 turns, of the dearest wire."""
    found = spec_from_file_location(
        "request_cost", Path(__file__).resolve().parents[1] / "requests.py"
    )
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    lines = [
        ("openai/gpt-4.1", module.chat.Client),
        ("openai-responses/gpt-4.1", module.chat.Client),
        ("anthropic/claude-opus-5", module.claude.Client),
    ]
    return max(asyncio.run(module.measure(spec, client)) for spec, client in lines)


@contextmanager
def server(folder: Path, characters: int) -> Iterator[str]:
    """A server that streams, in a process of its own."""
    script = folder / "stream.yaml"
    script.write_text(STREAM.format(text="word " * (characters // 5)), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "loopwright.testing.wires", "--script", str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


class Lag:
    """How long the event loop was not there for others: the longest time, in milliseconds."""

    def __init__(self) -> None:
        self.worst = 0.0
        self._task: asyncio.Task[None] | None = None

    async def _look(self) -> None:
        while True:
            begin = time.perf_counter()
            await asyncio.sleep(LOOK_SECONDS)
            late = time.perf_counter() - begin - LOOK_SECONDS
            self.worst = max(self.worst, late * 1e3)

    def __enter__(self) -> Lag:
        self._task = asyncio.ensure_future(self._look())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
