"""Sessions that loops belong to: make, list, look, close."""

from typing import Annotated

import msgspec

from loopwright.app.moments import timestamp
from loopwright.app.sessions import Session
from loopwright.model.record import JsonValue
from loopwright.server.families.loops import sessions_of
from loopwright.server.paging import PageQuery, newest_first, paged
from loopwright.server.routes import Answer, Asked, Body, Family, Route
from loopwright.server.shapes import SessionItem, SessionList

BASE = "/api/v1/sessions"


class SessionBody(Body):
    """What a session is about."""

    title: Annotated[str, msgspec.Meta(max_length=200)] = ""


async def listed(asked: Asked) -> Answer:
    found = sessions_of(asked.context).all()
    page = paged(asked, "sessions", found, lambda one: newest_first(one.created_at, one.id))
    return {"sessions": [_item(one) for one in page.entries], "next": page.next}


async def made(asked: Asked) -> Answer:
    return _item(sessions_of(asked.context).make(asked.body(SessionBody).title, by=asked.who.name))


async def shown(asked: Asked) -> Answer:
    return _item(sessions_of(asked.context).get(asked.params["session"]))


async def closed(asked: Asked) -> Answer:
    return _item(sessions_of(asked.context).close(asked.params["session"], by=asked.who.name))


def _item(session: Session) -> dict[str, JsonValue]:
    return {
        "id": session.id,
        "title": session.title,
        "by": session.by,
        "status": "open" if session.closed_at is None else "closed",
        "created_at": None if session.created_at is None else timestamp(session.created_at),
        "closed_at": None if session.closed_at is None else timestamp(session.closed_at),
    }


FAMILY = Family(
    name="sessions",
    prefix=BASE,
    routes=(
        Route(
            method="GET",
            path=BASE,
            handle=listed,
            need="viewer",
            say="Sessions that were made here",
            query=PageQuery,
            answer=SessionList,
        ),
        Route(
            method="POST",
            path=BASE,
            handle=made,
            need="editor",
            say="Make a session: its loops share trackers and are told together",
            body=SessionBody,
            answer=SessionItem,
            status=201,
        ),
        Route(
            method="GET",
            path=f"{BASE}/{{session}}",
            handle=shown,
            need="viewer",
            say="One session",
            answer=SessionItem,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{session}}/close",
            handle=closed,
            need="editor",
            say="Close a session: no further loop is started in it",
            answer=SessionItem,
        ),
    ),
)
