"""Impossible token counts are ignored, and nothing is printed on stderr about them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import aclosing

import pytest

from loopwright.gateway.client import Gateway
from loopwright.model.chat import ModelAnswer, ModelEvent, ModelRequest, UserMessage
from loopwright.testing import FakeClock

HEAD = '"id":"1","object":"chat.completion.chunk","created":1,"model":"m"'
SAID = f'{{{HEAD},"choices":[{{"index":0,"delta":{{"role":"assistant","content":"ok"}}}}]}}'
LAST = f'{{{HEAD},"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}]}}'


async def _answered(counts: str) -> ModelEvent | None:
    usage = f'{{{HEAD},"choices":[],"usage":{counts}}}'
    stream = "".join(f"data: {one}\n\n" for one in (SAID, LAST, usage, "[DONE]")).encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + stream)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    env = {"LOOPWRIGHT_MODEL_BASE_URL": f"http://127.0.0.1:{port}/v1"}
    last: ModelEvent | None = None
    async with server, Gateway(env=env, clock=FakeClock()) as gateway:
        request = ModelRequest(models=("local/m",), messages=(UserMessage(text="hi"),))
        async with aclosing(gateway.stream(request)) as events:
            async for event in events:
                last = event
    return last


COUNTS = [
    '{"prompt_tokens":1e400,"completion_tokens":1,"total_tokens":1}',
    '{"prompt_tokens":3,"completion_tokens":-1e400,"total_tokens":1}',
    '{"prompt_tokens":1e30,"completion_tokens":1,"total_tokens":1}',
    '{"prompt_tokens":"3","completion_tokens":[],"total_tokens":1}',
]


@pytest.mark.item("I-11")
def test_counts_that_cannot_be() -> None:
    """The answers count, their usage is unknown, and no library says a word about it: in a process
    of its own, since filters of warnings belong to a process.
    """
    done = subprocess.run(
        [sys.executable, "-m", __name__], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")
    assert done.stdout.decode().split() == ["unknown"] * len(COUNTS)


def main() -> None:
    for counts in COUNTS:
        event = asyncio.run(_answered(counts))
        assert isinstance(event, ModelAnswer), event
        measured = event.attempts[-1].usage.measured
        sys.stdout.write("known\n" if measured else "unknown\n")


if __name__ == "__main__":
    main()
