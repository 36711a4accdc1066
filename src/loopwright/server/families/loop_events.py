"""What happens to a loop of roles, as a stream: `connected`, `stage_changed`, `done`, the end."""

from collections.abc import AsyncIterator

import msgspec
from starlette.responses import StreamingResponse

from loopwright.app.views.loops import loop_status
from loopwright.app.views.stage_moves import Move, StageMoves
from loopwright.errors import NotFound
from loopwright.model.record import JsonValue
from loopwright.ports import OPEN_STATUSES
from loopwright.server.families.events import EventsQuery, cursor
from loopwright.server.families.loops import BASE, row_of
from loopwright.server.loop_refusals import refuse
from loopwright.server.loop_shapes import LoopFailure
from loopwright.server.routes import Answer, Asked, Family, Route

STREAM = "text/event-stream"
AT_ONCE = 500
GONE = "cancelled"


async def events(asked: Asked) -> Answer:
    """Refused before anything is sent, if there is no such loop."""
    run = row_of(asked).run
    after = cursor(asked.request, asked.query(EventsQuery).after)
    headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    return StreamingResponse(_stream(asked, run, after), media_type=STREAM, headers=headers)


async def _stream(asked: Asked, run: str, after: int) -> AsyncIterator[bytes]:
    context, seen = asked.context, 0
    log, wait = context.here.log, context.serving.limits.recheck_seconds
    moves = StageMoves(context.service.plan(log.read(run, limit=1)[0].fact))
    yield b"retry: 1000\n\n" + _event("connected", {"loop_id": run})
    try:
        while not context.closing.is_set() and context.people.still(asked.who):
            facts = log.read(run, after=seen, limit=AT_ONCE)
            found = [move for one in facts if (move := moves.take(one)) is not None]
            frames = [_moved(move) for move in found if move.seq > after]
            if facts and facts[-1].seq > after:
                frames.append(_event("activity", {"cursor": facts[-1].seq}, seq=facts[-1].seq))
            if frames:
                yield b"".join(frames)
            seen = facts[-1].seq if facts else seen
            row = log.row(run)
            if seen >= row.version and row.headline.status not in OPEN_STATUSES:
                yield _event("done", {"status": loop_status(row), "reason": row.headline.reason})
                return
            if not await context.feed.moved(run, seen, wait):
                yield b": still here\n\n"
    except NotFound:  # somebody has deleted it meanwhile
        yield _event("done", {"status": GONE, "reason": "deleted"})


def _moved(move: Move) -> bytes:
    told: dict[str, JsonValue] = {
        "iteration": move.iteration,
        "stage_index": move.index,
        "role": move.role,
        "status": move.status,
    }
    return _event("stage_changed", told, seq=move.seq)


def _event(name: str, value: object, *, seq: int | None = None) -> bytes:
    number = b"" if seq is None else b"id: %d\n" % seq
    return number + b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))


FAMILY = Family(
    name="loop events",
    prefix=f"{BASE}/",
    refuse=refuse,
    failure=LoopFailure,
    routes=(
        Route(
            method="GET",
            path=f"{BASE}/{{loop}}/events",
            handle=events,
            need="viewer",
            say="What happens to a loop, as server-sent events, until it has ended",
            query=EventsQuery,
            streams=True,
        ),
    ),
)
