"""The facts of a run for whoever asks over HTTP: one after the other as server-sent events, or all
of them, while other requests have their turn.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import msgspec

from loopwright.errors import StorageError
from loopwright.kernel.facts import RunFinished
from loopwright.ports import OPEN_STATUSES, Numbered
from loopwright.server.context import Context
from loopwright.server.routes import Asked

AT_ONCE = 500
RETRY_MS = 1_000
STREAM = "text/event-stream"
HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """How facts are told in a stream."""

    after: int  # what has a number up to this is known already
    told: Callable[[Numbered], object]  # what is sent for a fact; None: nothing
    whole: bool = False  # whether it has to see the facts up to `after` as well
    follow: bool = True  # else the stream ends with what there is now, and says so


async def stream(asked: Asked, run: str, telling: Telling) -> AsyncIterator[bytes]:
    """Everything after a number, then what comes, until the run has ended or somebody leaves."""
    context, log = asked.context, asked.context.here.log
    limits, quiet_s = context.serving.limits, 0.0
    yield f"retry: {RETRY_MS}\n\n".encode()
    if telling.after > log.version(run):
        yield _event("resync", {"run": run, "seq": log.version(run)})
        return
    seen = 0 if telling.whole else telling.after
    while not context.closing.is_set() and context.people.still(asked.who):
        facts = _read(context, run, seen)
        if facts:
            if frames := b"".join(_frame(one, telling) for one in facts):
                yield frames
            seen, quiet_s = facts[-1].seq, 0.0
            await asyncio.sleep(0)  # others have their turn
        if seen >= log.version(run):
            if not telling.follow:
                yield _event("end", {"run": run, "seq": seen})
                return
            if _ended(context, run, facts):
                return
        step = min(limits.recheck_seconds, limits.heartbeat_seconds)
        if not await context.feed.moved(run, seen, step):
            quiet_s += step
            if quiet_s >= limits.heartbeat_seconds:
                quiet_s = 0.0
                yield b": still here\n\n"


async def facts_of(context: Context, run: str) -> AsyncIterator[Numbered]:
    """All facts of a run that there are now; one that has none at all is damaged."""
    first = context.here.log.row(run).run
    facts = context.here.log.read(first, limit=AT_ONCE) or context.service.facts(first)
    while facts:
        for one in facts:
            yield one
        await asyncio.sleep(0)  # others have their turn
        facts = context.here.log.read(run, after=facts[-1].seq, limit=AT_ONCE)


def _read(context: Context, run: str, after: int) -> list[Numbered]:
    try:
        return context.here.log.read(run, after=after, limit=AT_ONCE)
    except StorageError as error:
        if error.code == "damaged":
            raise
        return []


def _ended(context: Context, run: str, newest: list[Numbered]) -> bool:
    if newest:
        return isinstance(newest[-1].fact, RunFinished)
    return context.here.log.row(run).headline.status not in OPEN_STATUSES


def _frame(numbered: Numbered, telling: Telling) -> bytes:
    told = telling.told(numbered)
    if told is None or numbered.seq <= telling.after:
        return b""
    return b"id: %d\ndata: %s\n\n" % (numbered.seq, msgspec.json.encode(told))


def _event(name: str, value: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))
