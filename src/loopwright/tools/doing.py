"""Around each call: its time limit, its thread, and what is shown of a long result."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import replace

from loopwright.tools.native import Bench, Call, Work
from loopwright.tools.outcome import Refusal, ToolOutcome
from loopwright.tools.shelf import Shelf

RESULT_BYTES = 32 * 1024
HEAD_BYTES = 8 * 1024
# How long a call that was given up is waited for, so that it does nothing behind our back.
_LAST_SECONDS = 5.0


@asynccontextmanager
async def in_time(seconds: float) -> AsyncIterator[None]:
    """Refusal when the block takes longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Refusal("timeout", f"the time limit of {seconds:g} s was reached") from None


async def done_in_thread(work: Work, bench: Bench, call: Call) -> ToolOutcome:
    """Do it off the event loop. When the wait is cancelled, the work is told and waited for."""
    doing = asyncio.ensure_future(asyncio.to_thread(work, bench, call))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        call.stop.set()
        await asyncio.wait([doing], timeout=_LAST_SECONDS)
        if doing.done() and not doing.cancelled():
            doing.exception()  # seen, so that nobody complains about it
        raise


def capped(outcome: ToolOutcome, shelf: Shelf) -> ToolOutcome:
    """The outcome, its head alone if it is long; the rest is kept and can be read on."""
    data = outcome.text.encode(errors="replace")
    if len(data) <= RESULT_BYTES:
        return outcome
    handle = shelf.put(data)
    head = data[:HEAD_BYTES].decode(errors="ignore")
    size = len(head.encode())
    note = f"[the first {size} of {len(data)} bytes; read on with result.more: {handle}]"
    return replace(outcome, text=f"{head}\n{note}")
