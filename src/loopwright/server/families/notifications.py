"""Notifications: what people should know of their runs, also when they were away."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import msgspec

from loopwright.errors import LoopwrightError
from loopwright.server.context import Context
from loopwright.server.notices import Level, Notice
from loopwright.server.noticing import Noticing
from loopwright.server.refusals import Refusal
from loopwright.server.routes import Answer, Asked, Body, Family, Query, Route
from loopwright.server.shapes import NotificationPage, ReadCount

BASE = "/api/v1/notifications"
FORGET_SECONDS = 600.0


class NotificationsQuery(Query):
    """Which, and which page of them."""

    unread: bool = False
    mine: bool = False
    waiting: bool = False
    session: str | None = None
    run: str | None = None
    level: Level | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50
    cursor: str | None = None


class ReadBody(Body):
    """What was read: these, or this one and all that are older."""

    ids: Annotated[list[str], msgspec.Meta(max_length=200)] = []
    up_to: str | None = None


async def listed(asked: Asked) -> Answer:
    context, query, who = asked.context, asked.query(NotificationsQuery), asked.who.name
    notices = context.part(Noticing).notices
    after = context.cursors.place("notices", query.cursor) if query.cursor is not None else ""

    def fits(one: Notice) -> bool:
        return (
            not (query.unread and who in one.read_by)
            and query.session in (None, one.session)
            and query.run in (None, one.run)
            and query.level in (None, one.level)
            and (not query.waiting or notices.waits(one))
        )

    owner = who if query.mine else None
    found = notices.page(after, query.limit, fits, owner=owner)
    page = found[: query.limit]
    more = context.cursors.after("notices", page[-1].id) if len(found) > query.limit else None
    return {"notifications": [notices.item(one, who) for one in page], "next": more}


async def read_one(asked: Asked) -> Answer:
    notices = asked.context.part(Noticing).notices
    return {"read": notices.read([asked.params["notification"]], asked.who.name)}


async def read_many(asked: Asked) -> Answer:
    body, who = asked.body(ReadBody), asked.who.name
    if bool(body.ids) == (body.up_to is not None):
        raise Refusal(422, "bad-field", "give `ids`, or `up_to` for one and all that are older")
    notices = asked.context.part(Noticing).notices
    if body.up_to is not None:
        return {"read": notices.read_up_to(body.up_to, who)}
    return {"read": notices.read(body.ids, who)}


@asynccontextmanager
async def living(context: Context) -> AsyncIterator[None]:
    """Facts are looked at for as long as the server lives."""
    noticing = context.part(Noticing)
    jobs = [asyncio.ensure_future(noticing.work()), asyncio.ensure_future(_forgetting(noticing))]
    try:
        yield
    finally:
        noticing.close()
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


async def _forgetting(noticing: Noticing) -> None:
    while True:
        with contextlib.suppress(LoopwrightError):
            noticing.notices.forget_old()
        await asyncio.sleep(FORGET_SECONDS)


FAMILY = Family(
    name="notifications",
    prefix=BASE,
    living=living,
    routes=(
        Route(
            method="GET",
            path=BASE,
            handle=listed,
            need="viewer",
            say="What happened to runs, newest first; kept for thirty days",
            query=NotificationsQuery,
            answer=NotificationPage,
        ),
        Route(
            method="POST",
            path=f"{BASE}/read",
            handle=read_many,
            need="viewer",
            say="Whoever asks has read these, or one and all that are older",
            body=ReadBody,
            answer=ReadCount,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{notification}}/read",
            handle=read_one,
            need="viewer",
            say="Whoever asks has read this one",
            answer=ReadCount,
        ),
    ),
)
