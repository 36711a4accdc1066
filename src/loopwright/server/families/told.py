"""What happened to a run, in the words of the system that its definition was written for: as a
stream, in pages, and as a tree. Where that has no words of its own, the facts are told as they are.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from loopwright.app.views.cycles import cycle_tree, pass_tree
from loopwright.app.views.telling import Teller, told
from loopwright.errors import LoopwrightError
from loopwright.model.record import JsonValue
from loopwright.ports import Numbered
from loopwright.server.families.approvals import BASE, Failure, refuse
from loopwright.server.families.events import EventsQuery, cursor, streamed, wants_stream
from loopwright.server.refusals import Refusal
from loopwright.server.routes import Answer, Asked, Family, Route
from loopwright.server.streaming import Telling, facts_of

MOST = 1_000


class ToldQuery(EventsQuery):
    """From which number on, and how many at most; `cursor` is where a page ended. With `own` a
    run whose system has no words of its own is refused.
    """

    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST)] = MOST
    cursor: str | None = None
    own: bool = False


class Events(msgspec.Struct):
    """A page of what happened; `next` is the cursor of the one after it."""

    runId: str
    events: list[dict[str, JsonValue]]
    seq: int
    next: str | None


class Tree(msgspec.Struct):
    """The cycles of a run, loop by loop."""

    runId: str
    status: str
    parentRunId: str | None
    loops: list[dict[str, JsonValue]]


async def events(asked: Asked) -> Answer:
    run, query = asked.params["run"], asked.query(ToldQuery)
    asked.context.here.log.row(run)  # refused before anything is sent, if there is none
    teller = Teller(asked.context.service, run, own=query.own)
    if not wants_stream(asked.request):
        return await _page(asked, teller, query)

    def take(numbered: Numbered) -> list[dict[str, JsonValue]] | None:
        return teller.take(numbered) or None

    after = cursor(asked.request, query.after)
    return streamed(asked, run, Telling(after=after, told=take, whole=True, frame=_frames))


def _frames(seq: int, events: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(
        b"id: %d\nevent: %s\ndata: %s\n\n"
        % (seq, str(one["type"]).encode(), msgspec.json.encode(one))
        for one in events
    )


async def _page(asked: Asked, teller: Teller, query: ToldQuery) -> Answer:
    """So many events. A fact may be told by several, so a page can end in the midst of one."""
    context, run = asked.context, teller.run
    after, passed = query.after or 0, 0
    if query.cursor is not None:
        after, passed = _place(context.cursors.place(_kind(run), query.cursor))
    found: list[dict[str, JsonValue]] = []
    more = None
    async for one in facts_of(context, run):
        events = teller.take(one)
        if one.seq <= after:
            continue
        skip = passed if one.seq == after + 1 else 0
        room = query.limit - len(found)
        found += events[skip : skip + room]
        if len(events) - skip > room:
            more = context.cursors.after(_kind(run), f"{one.seq - 1}.{skip + room}")
            break
    return Events(runId=run, events=found, seq=context.here.log.version(run), next=more)


def _kind(run: str) -> str:
    return f"told {run}"


def _place(text: str) -> tuple[int, int]:
    after, dot, passed = text.partition(".")
    if not (dot and after.isdecimal() and passed.isdecimal()):
        raise Refusal(400, "bad-cursor", "this cursor is not from here", hint="begin without one")
    return int(after), int(passed)


async def tree(asked: Asked) -> Answer:
    run, context = asked.params["run"], asked.context
    row, facts = context.here.log.row(run), context.here.log.read(run)
    picture = await context.gallery.picture(run)
    try:
        loops = cycle_tree(told(context.service, run, facts, 0))
    except LoopwrightError as error:
        if error.code != "no-events":
            raise
        loops = []
    parent = picture.forked.parent if picture.forked is not None else None
    return Tree(
        runId=run,
        status=row.headline.status,
        parentRunId=parent,
        loops=loops or pass_tree(facts, context.service.read_text),
    )


FAMILY = Family(
    name="told",
    prefix="/v1/runs/",
    refuse=refuse,
    failure=Failure,
    routes=(
        Route(
            method="GET",
            path=f"{BASE}/events",
            handle=events,
            need="viewer",
            say="What happened, in the words of the definition's own system where it has some",
            query=ToldQuery,
            answer=Events,
            streams=True,
            also=(204,),
        ),
        Route(
            method="GET",
            path=f"{BASE}/tree",
            handle=tree,
            need="viewer",
            say="A run loop by loop and cycle by cycle",
            answer=Tree,
        ),
    ),
)
