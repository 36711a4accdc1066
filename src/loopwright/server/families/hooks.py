"""Incoming hooks: messages from elsewhere that start a run, signed by Standard Webhooks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import msgspec

from loopwright.app.incoming import MOST_AT_ONCE
from loopwright.app.views.hooks import hook_item
from loopwright.server.answers import as_response
from loopwright.server.arrivals import Arrivals
from loopwright.server.coming_shapes import HookList, HookMade, HookTaken
from loopwright.server.context import Context
from loopwright.server.paging import PageQuery, paged
from loopwright.server.refusals import Refusal
from loopwright.server.routes import Answer, Asked, Body, Family, Route

BASE = "/api/v1/hooks"
MESSAGE_BYTES = 256_000
HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")


class HookBody(Body):
    """What a message starts; its words follow on `message`."""

    name: str
    stored: str
    message: Annotated[str, msgspec.Meta(max_length=10_000)] = ""
    at_once: Annotated[int, msgspec.Meta(ge=1, le=MOST_AT_ONCE)] = 4
    allow_unknown_cost: bool = False  # limits in USD need not cover agents of unknown cost


async def listed(asked: Asked) -> Answer:
    hooks = asked.context.part(Arrivals).hooks
    page = paged(asked, "hooks", hooks.all(), lambda one: one.name)
    return {"hooks": [hook_item(hooks, one) for one in page.entries], "next": page.next}


async def added(asked: Asked) -> Answer:
    body, hooks = asked.body(HookBody), asked.context.part(Arrivals).hooks
    hook = hooks.add(
        body.name,
        body.stored,
        by=asked.who.name,
        message=body.message,
        at_once=body.at_once,
        allow_unknown_cost=body.allow_unknown_cost,
    )
    return {**hook_item(hooks, hook), "secret": hook.secret}


async def removed(asked: Asked) -> Answer:
    asked.context.part(Arrivals).hooks.remove(asked.params["name"], by=asked.who.name)
    return None


async def taken(asked: Asked) -> Answer:
    """202 for a message that is new, 200 for one that was taken before."""
    if asked.context.closing.is_set():
        raise Refusal(503, "draining", "the server is about to stop", headers={"Retry-After": "5"})
    headers = asked.request.headers
    message, at, signatures = (",".join(headers.getlist(name)) for name in HEADERS)
    peer = asked.request.client.host if asked.request.client else ""
    arrival, new = asked.context.part(Arrivals).take(
        asked.params["name"], (message, at, signatures), asked.raw, peer
    )
    told = {"id": arrival.id, "run": arrival.run, "taken": new}
    return as_response(told, 202 if new else 200)


@asynccontextmanager
async def living(context: Context) -> AsyncIterator[None]:
    """What was taken is started for as long as the server lives."""
    job = asyncio.ensure_future(context.part(Arrivals).working())
    try:
        yield
    finally:
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)


FAMILY = Family(
    name="hooks",
    prefix=BASE,
    living=living,
    routes=(
        Route(
            method="GET",
            path=BASE,
            handle=listed,
            need="admin",
            say="Hooks by which messages from elsewhere start runs",
            query=PageQuery,
            answer=HookList,
        ),
        Route(
            method="POST",
            path=BASE,
            handle=added,
            need="admin",
            say="Make a hook for a stored definition; its secret is told once",
            body=HookBody,
            answer=HookMade,
            status=201,
            repeatable=False,
        ),
        Route(
            method="DELETE",
            path=f"{BASE}/{{name}}",
            handle=removed,
            need="admin",
            say="End a hook",
            status=204,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{name}}",
            handle=taken,
            need="signed",
            say="A message, signed by Standard Webhooks: starts a run, once for each webhook-id",
            takes="application/json",
            answer=HookTaken,
            status=202,
            also=(200,),
            body_bytes=MESSAGE_BYTES,
            repeatable=False,
        ),
    ),
)
