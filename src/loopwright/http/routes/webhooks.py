"""Outgoing webhooks (gates, ends of runs), and incoming webhooks that start runs.

Both are signed by Standard Webhooks. Messages of incoming webhooks start runs in the order in
which they came, with limited concurrency.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Annotated, Literal

import msgspec

from loopwright.errors import Conflict, LoopwrightError, NotFound, StorageError, VersionConflict
from loopwright.http.context import Context
from loopwright.http.rate_limits import Rates
from loopwright.http.requests import (
    Answer,
    Body,
    PageQuery,
    Route,
    RouteFamily,
    RouteRequest,
    check_texts,
    paged,
)
from loopwright.http.responses import RequestRefusal, as_response
from loopwright.operations.agents.permissions import Rights
from loopwright.operations.incoming_webhooks import (
    MOST_AT_ONCE,
    Arrival,
    Hooks,
    Incoming,
    hook_item,
)
from loopwright.operations.outgoing_requests import send
from loopwright.operations.response_types import (
    HookList,
    HookMade,
    HookTaken,
    WebhookList,
    WebhookMade,
)
from loopwright.operations.run_admission import acting_as
from loopwright.operations.run_launch import launch_run
from loopwright.operations.run_start import StartOptions, prepare_file
from loopwright.operations.runs import row_ended
from loopwright.workers.background_tasks import NAME, BackgroundTask
from loopwright.workers.webhooks import DeliveryTrial, aside, webhook_item

OUTGOING_BASE = "/api/v1/webhooks"


class WebhookBody(Body):
    """Whom to tell, and of what."""

    url: str
    kinds: tuple[Literal["gate.opened", "run.finished"], ...] = ("gate.opened", "run.finished")


async def list_outgoing(asked: RouteRequest) -> Answer:
    page = paged(asked, "webhooks", asked.context.webhooks.all(), lambda one: one.id)
    return {"webhooks": [webhook_item(hook) for hook in page.entries], "next": page.next}


async def add_outgoing(asked: RouteRequest) -> Answer:
    body, webhooks = asked.body(WebhookBody), asked.context.webhooks
    await aside(lambda: webhooks.check(body.url))
    hook = webhooks.add(body.url, list(body.kinds), by=asked.who.name, is_checked=True)
    return {**webhook_item(hook), "secret": hook.secret}


async def remove_outgoing(asked: RouteRequest) -> Answer:
    asked.context.webhooks.remove(asked.params["webhook"], by=asked.who.name)
    return None


async def send_test_message(asked: RouteRequest) -> Answer:
    webhooks, name = asked.context.webhooks, asked.params["webhook"]
    return await aside(webhooks.trial(name, send, by=asked.who.name))


@asynccontextmanager
async def run_outgoing_deliveries(context: Context) -> AsyncIterator[None]:
    """Deliveries are made for as long as the server lives."""
    job = asyncio.ensure_future(context.webhooks.working(send))
    try:
        yield
    finally:
        job.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await job


OUTGOING_FAMILY = RouteFamily(
    name="webhooks",
    prefix=OUTGOING_BASE,
    living=run_outgoing_deliveries,
    routes=(
        Route(
            method="GET",
            path=OUTGOING_BASE,
            handle=list_outgoing,
            need="admin",
            say="Outgoing webhooks",
            query=PageQuery,
            answer=WebhookList,
        ),
        Route(
            method="POST",
            path=OUTGOING_BASE,
            handle=add_outgoing,
            need="admin",
            say="Add an outgoing webhook; its secret is shown once",
            body=WebhookBody,
            answer=WebhookMade,
            status=201,
            repeatable=False,
        ),
        Route(
            method="DELETE",
            path=f"{OUTGOING_BASE}/{{webhook}}",
            handle=remove_outgoing,
            need="admin",
            say="Tell an address no more",
            status=204,
        ),
        Route(
            method="POST",
            path=f"{OUTGOING_BASE}/{{webhook}}/test",
            handle=send_test_message,
            need="admin",
            say="Send an address a message to try it, once, and tell what it answered",
            answer=DeliveryTrial,
            repeatable=False,
        ),
    ),
)


_LOG = logging.getLogger(NAME)
QUEUE = 200  # messages of a hook that wait for their turn
PER_SECOND = 50  # for each hook
UNSIGNED_PER_SECOND = 50  # for each address
LOOK_S = 1.0
FORGET_EVERY = 600
AGAIN_MS = (1_000, 10_000, 60_000, 600_000)  # until a message that broke its start is tried again


class Arrivals:
    """What comes in by hooks, while the server lives."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.hooks = Hooks(context.access, context.definitions)
        self._rates = Rates(context.clock, PER_SECOND)
        self._strangers = Rates(context.clock, UNSIGNED_PER_SECOND)
        self._news = asyncio.Event()
        self._broken: dict[str, tuple[int, int]] = {}  # by run: how often, and when again

    def take(
        self, name: str, given: tuple[str, str, str], body: bytes, peer: str
    ) -> tuple[Arrival, bool]:
        """A message that came in, and whether it is new."""
        try:
            hook = self.hooks.checked(name, given, body)
        except LoopwrightError:
            self._strangers.count(peer)  # who guesses is told 429 sooner or later
            raise
        self._rates.count(hook.name)
        known = self.hooks.known(hook.name, given[0])
        if known is not None:
            return known, False
        if len(self.hooks.at("waiting", hook.name, QUEUE)) >= QUEUE:
            raise RequestRefusal(
                429,
                "queue-full",
                f"{QUEUE} messages of this hook wait already",
                headers={"Retry-After": "30"},
            )
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise RequestRefusal(400, "bad-json", "the body is not UTF-8") from error
        check_texts(text)
        try:
            arrival = self.hooks.take(hook, given[0], text)
        except VersionConflict:
            again = self.hooks.known(hook.name, given[0])
            assert again is not None, "it was there a moment ago"
            return again, False
        self._news.set()
        return arrival, True

    async def working(self) -> None:
        """Start what waits, for as long as the server lives."""
        rounds, work = 0, BackgroundTask("starting what came in by hooks")
        while True:
            with work.round():
                for hook in self.hooks.all():
                    await self._work(hook)
                if rounds % FORGET_EVERY == 0:
                    self.hooks.forget_old()
            rounds += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK_S)
            self._news.clear()

    async def _work(self, hook: Incoming) -> None:
        going = self.hooks.at("going", hook.name)
        ended = [one for one in going if self._has_ended(one.run)]
        for one in ended:
            self.hooks.move(one, "done")
        room = hook.at_once - (len(going) - len(ended))
        now = self._context.clock.now_ms()
        waiting = [one for one in self.hooks.at("waiting", hook.name) if self._is_due(one, now)]
        for one in waiting[: max(room, 0)]:
            try:
                await self._start(hook, one)
            except Conflict as conflict:
                if conflict.code == "key-taken":  # its turn comes when the other has ended
                    return
                self.hooks.move(one, "done", conflict.message)
            except StorageError:
                raise
            except LoopwrightError as error:
                _LOG.warning("hook %s: %s", hook.name, error)
                self.hooks.move(one, "done", _problem(error))
            except Exception as error:
                self._put_off(one, error, now)
            else:
                self._broken.pop(one.run, None)
                self.hooks.move(one, "going")

    def _is_due(self, arrival: Arrival, now: int) -> bool:
        return self._broken.get(arrival.run, (0, 0))[1] <= now

    def _put_off(self, arrival: Arrival, error: Exception, now: int) -> None:
        """A defect of ours is no fault of the message: it stays, and others go first."""
        tries = self._broken.get(arrival.run, (0, 0))[0]
        self._broken[arrival.run] = (tries + 1, now + AGAIN_MS[min(tries, len(AGAIN_MS) - 1)])
        _LOG.error("hook %s: %s is kept", arrival.hook, arrival.id, exc_info=error)
        if not tries:
            problem = f"{arrival.id} is tried again: unexpected {type(error).__name__}"
            self.hooks.move(arrival, "waiting", problem)

    def _has_ended(self, run: str) -> bool:
        try:
            return row_ended(self._context.here.log.row(run))
        except NotFound:
            return True

    async def _start(self, hook: Incoming, arrival: Arrival) -> None:
        """Start the run of a message, unless we did so just before a crash."""
        context = self._context
        with contextlib.suppress(NotFound):
            context.here.log.row(arrival.run)
            return
        stored = context.definitions.runnable(hook.definition)
        wish = StartOptions(
            message="\n\n".join(filter(None, [hook.message, self.hooks.words(arrival)])),
            workspace=str(context.serving.workspace),
            default_agent=context.settings.agent,
            models=context.settings.models,
            home=context.settings.home,
            agent_names=context.service.agent_names(),
            rights=Rights(attended=True),
            allow_unknown_cost=hook.allow_unknown_cost,
        )
        text = stored.text.encode(errors="surrogatepass")
        start, _ = prepare_file(stored.name, wish, data=text, dialect=stored.dialect)
        start = replace(start, by=f"hook:{hook.name}", run=arrival.run, author=stored.role)
        # The folder is that of the server: nobody has chosen it for this definition.
        start = replace(start, workspace_by=stored.role)
        with acting_as("admin"):  # who made the hook; the definition has an author of its own
            await launch_run(context.service, start)


def _problem(error: LoopwrightError) -> str:
    """Why a message started nothing; a hook has an option of its own against an unknown cost."""
    if error.code != "unknown-cost":
        return error.message
    return f"{error.message} (add the hook again with --allow-unknown-cost, or {error.hint})"


INCOMING_BASE = "/api/v1/hooks"
MESSAGE_BYTES = 256_000
HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")


class HookBody(Body):
    """What a message starts; its words follow on `message`."""

    name: str
    stored: str
    message: Annotated[str, msgspec.Meta(max_length=10_000)] = ""
    at_once: Annotated[int, msgspec.Meta(ge=1, le=MOST_AT_ONCE)] = 4
    allow_unknown_cost: bool = False  # limits in USD need not cover agents of unknown cost


async def list_incoming(asked: RouteRequest) -> Answer:
    hooks = asked.context.part(Arrivals).hooks
    page = paged(asked, "hooks", hooks.all(), lambda one: one.name)
    return {"hooks": [hook_item(hooks, one) for one in page.entries], "next": page.next}


async def add_incoming(asked: RouteRequest) -> Answer:
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


async def remove_incoming(asked: RouteRequest) -> Answer:
    asked.context.part(Arrivals).hooks.remove(asked.params["name"], by=asked.who.name)
    return None


async def accept_message(asked: RouteRequest) -> Answer:
    """202 for a message that is new, 200 for one that was taken before."""
    headers = asked.request.headers
    message, at, signatures = (",".join(headers.getlist(name)) for name in HEADERS)
    peer = asked.request.client.host if asked.request.client else ""
    arrival, new = asked.context.part(Arrivals).take(
        asked.params["name"], (message, at, signatures), asked.raw, peer
    )
    told = {"id": arrival.id, "run": arrival.run, "taken": new}
    return as_response(told, 202 if new else 200)


@asynccontextmanager
async def run_incoming_queue(context: Context) -> AsyncIterator[None]:
    """What was taken is started for as long as the server lives."""
    job = asyncio.ensure_future(context.part(Arrivals).working())
    try:
        yield
    finally:
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)


INCOMING_FAMILY = RouteFamily(
    name="hooks",
    prefix=INCOMING_BASE,
    living=run_incoming_queue,
    routes=(
        Route(
            method="GET",
            path=INCOMING_BASE,
            handle=list_incoming,
            need="admin",
            say="Incoming webhooks, which start runs",
            query=PageQuery,
            answer=HookList,
        ),
        Route(
            method="POST",
            path=INCOMING_BASE,
            handle=add_incoming,
            need="admin",
            say="Add an incoming webhook for a stored definition; its secret is shown once",
            body=HookBody,
            answer=HookMade,
            status=201,
            repeatable=False,
        ),
        Route(
            method="DELETE",
            path=f"{INCOMING_BASE}/{{name}}",
            handle=remove_incoming,
            need="admin",
            say="End a hook",
            status=204,
        ),
        Route(
            method="POST",
            path=f"{INCOMING_BASE}/{{name}}",
            handle=accept_message,
            need="signed",
            say="A message, signed by Standard Webhooks: starts a run, once for each webhook-id",
            takes="application/json",
            answer=HookTaken,
            status=202,
            also=(200,),
            body_bytes=MESSAGE_BYTES,
            repeatable=False,
            draining="refuse",
        ),
    ),
)
