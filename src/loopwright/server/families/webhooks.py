"""Webhooks: addresses elsewhere that are told when a gate opens or a run ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from loopwright.app.sending import send
from loopwright.server.context import Context
from loopwright.server.lanes import aside
from loopwright.server.paging import PageQuery, paged
from loopwright.server.routes import Answer, Asked, Body, Family, Route
from loopwright.server.shapes import WebhookList, WebhookMade
from loopwright.server.webhooks import Trial, webhook_item

BASE = "/api/v1/webhooks"


class WebhookBody(Body):
    """Whom to tell, and of what."""

    url: str
    kinds: tuple[Literal["gate.opened", "run.finished"], ...] = ("gate.opened", "run.finished")


async def listed(asked: Asked) -> Answer:
    page = paged(asked, "webhooks", asked.context.webhooks.all(), lambda one: one.id)
    return {"webhooks": [webhook_item(hook) for hook in page.entries], "next": page.next}


async def added(asked: Asked) -> Answer:
    body, webhooks = asked.body(WebhookBody), asked.context.webhooks
    await aside(lambda: webhooks.check(body.url))
    hook = webhooks.add(body.url, list(body.kinds), by=asked.who.name, is_checked=True)
    return {**webhook_item(hook), "secret": hook.secret}


async def removed(asked: Asked) -> Answer:
    asked.context.webhooks.remove(asked.params["webhook"], by=asked.who.name)
    return None


async def tested(asked: Asked) -> Answer:
    webhooks, name = asked.context.webhooks, asked.params["webhook"]
    return await aside(webhooks.trial(name, send, by=asked.who.name))


@asynccontextmanager
async def living(context: Context) -> AsyncIterator[None]:
    """Deliveries are made for as long as the server lives."""
    job = asyncio.ensure_future(context.webhooks.working(send))
    try:
        yield
    finally:
        job.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await job


FAMILY = Family(
    name="webhooks",
    prefix=BASE,
    living=living,
    routes=(
        Route(
            method="GET",
            path=BASE,
            handle=listed,
            need="admin",
            say="Addresses that are told what happens",
            query=PageQuery,
            answer=WebhookList,
        ),
        Route(
            method="POST",
            path=BASE,
            handle=added,
            need="admin",
            say="Tell an address; its secret is told once",
            body=WebhookBody,
            answer=WebhookMade,
            status=201,
            repeatable=False,
        ),
        Route(
            method="DELETE",
            path=f"{BASE}/{{webhook}}",
            handle=removed,
            need="admin",
            say="Tell an address no more",
            status=204,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{webhook}}/test",
            handle=tested,
            need="admin",
            say="Send an address a message to try it, once, and tell what it answered",
            answer=Trial,
            repeatable=False,
        ),
    ),
)
