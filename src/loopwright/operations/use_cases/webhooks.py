"""Webhooks: outgoing ones are notified of gates and ends; messages to incoming ones start runs.

Both are signed by Standard Webhooks. Secrets are shown once.
"""

import asyncio
from dataclasses import replace
from typing import Annotated, Literal, TypeAlias

import msgspec

from loopwright.errors import InputError, LoopwrightError, VersionConflict
from loopwright.operations.accounts.access import Rates, TooManyRequests, acting_as
from loopwright.operations.api_types import (
    HookList,
    HookMade,
    HookTaken,
    Request,
    WebhookList,
    WebhookMade,
)
from loopwright.operations.outgoing_requests import run_in_daemon_thread, send
from loopwright.operations.problems import NO_CONTROL, control_character
from loopwright.operations.run_start import StartPlace, launch_run, prepare_start, start_request
from loopwright.operations.use_cases.definitions import definitions_of
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    HttpRoute,
    PageRequest,
    RawBody,
    operation,
    page_of,
)
from loopwright.operations.webhooks import (
    MOST_AT_ONCE,
    Arrival,
    DeliveryTrial,
    Hooks,
    Incoming,
    OutgoingWebhooks,
    hook_item,
    webhook_item,
)

OUTGOING = "/api/v1/webhooks"
INCOMING = "/api/v1/hooks"
WebhookKind: TypeAlias = Literal["gate.opened", "run.finished"]
KINDS: tuple[WebhookKind, ...] = ("gate.opened", "run.finished")


class AddWebhook(Request):
    """Whom to tell, and of what."""

    url: str
    kinds: tuple[WebhookKind, ...] = KINDS


class WebhookReference(Request):
    """An outgoing webhook, by its id."""

    webhook: str


@operation("webhooks.list", "query", "admin", "Outgoing webhooks", http=HttpRoute("GET", OUTGOING))
async def list_webhooks(app: App, _caller: Caller, request: PageRequest) -> WebhookList:
    """A page of the outgoing webhooks, without their secrets."""
    page = page_of(
        app.cursors,
        "webhooks",
        _webhooks(app).all(),
        lambda one: one.id,
        limit=request.limit,
        cursor=request.cursor,
    )
    return WebhookList(webhooks=[webhook_item(one) for one in page.entries], next=page.next)


@operation(
    "webhooks.add",
    "command",
    "admin",
    "Add an outgoing webhook; its secret is shown once",
    http=HttpRoute("POST", OUTGOING, status=201, schema="WebhookBody"),
    audit=("webhook.added",),
    draining="serve",
    repeatable=False,
)
async def add_webhook(app: App, caller: Caller, request: AddWebhook) -> WebhookMade:
    """Add an address after its name was resolved, which may be slow."""
    webhooks = _webhooks(app)
    await run_in_daemon_thread(lambda: webhooks.check(request.url))
    hook = webhooks.add(request.url, list(request.kinds), by=caller.name, is_checked=True)
    return WebhookMade(**msgspec.structs.asdict(webhook_item(hook)), secret=hook.secret)


@operation(
    "webhooks.remove",
    "command",
    "admin",
    "Delete an outgoing webhook",
    http=HttpRoute("DELETE", f"{OUTGOING}/{{webhook}}", status=204),
    audit=("webhook.removed",),
    draining="serve",
)
async def remove_webhook(app: App, caller: Caller, request: WebhookReference) -> None:
    """Remove an address; messages that wait for it are dropped."""
    _webhooks(app).remove(request.webhook, by=caller.name)


@operation(
    "webhooks.test",
    "command",
    "admin",
    "Send a test message to an address, once, and return its response",
    http=HttpRoute("POST", f"{OUTGOING}/{{webhook}}/test"),
    audit=("webhook.tested",),
    draining="serve",
    repeatable=False,
)
async def test_webhook(app: App, caller: Caller, request: WebhookReference) -> DeliveryTrial:
    """Send one test message."""
    trial = _webhooks(app).trial(request.webhook, send, by=caller.name)
    return await run_in_daemon_thread(trial)


def _webhooks(app: App) -> OutgoingWebhooks:
    assert app.webhooks is not None, "this process has no outgoing webhooks"
    return app.webhooks()


# -- incoming --------------------------------------------------------------------------------------

MESSAGE_BYTES = 256_000
QUEUE = 200  # messages of a webhook that wait for their turn
PER_SECOND = 50  # for each webhook
UNSIGNED_PER_SECOND = 50  # for each address


class AddHook(Request):
    """What a message starts; its words follow on `message`."""

    name: str
    stored: str
    message: Annotated[str, msgspec.Meta(max_length=10_000)] = ""
    at_once: Annotated[int, msgspec.Meta(ge=1, le=MOST_AT_ONCE)] = 4
    allow_unknown_cost: bool = False  # limits in USD need not cover agents of unknown cost


class HookReference(Request):
    """An incoming webhook, by its name."""

    name: str


class ReceiveMessage(Request):
    """A message for an incoming webhook, with what its signature covers."""

    name: str
    body: bytes
    message: str = ""
    sent_at: str = ""
    signatures: str = ""


class IncomingMessages:
    """What a process keeps for incoming webhooks: how many messages came in, and a signal for the
    worker that starts their runs.
    """

    def __init__(self, app: App) -> None:
        self.hooks = Hooks(app.access(), definitions_of(app))
        self.rates = Rates(app.service.clock, PER_SECOND)
        self.unsigned = Rates(app.service.clock, UNSIGNED_PER_SECOND)
        self.added = asyncio.Event()


@operation(
    "hooks.list",
    "query",
    "admin",
    "Incoming webhooks, which start runs",
    http=HttpRoute("GET", INCOMING),
)
async def list_hooks(app: App, _caller: Caller, request: PageRequest) -> HookList:
    """A page of the incoming webhooks, without their secrets."""
    hooks = app.part(IncomingMessages).hooks
    page = page_of(
        app.cursors,
        "hooks",
        hooks.all(),
        lambda one: one.name,
        limit=request.limit,
        cursor=request.cursor,
    )
    return HookList(hooks=[hook_item(hooks, one) for one in page.entries], next=page.next)


@operation(
    "hooks.add",
    "command",
    "admin",
    "Add an incoming webhook for a stored definition; its secret is shown once",
    http=HttpRoute("POST", INCOMING, status=201, schema="HookBody"),
    audit=("hook.added",),
    draining="serve",
    repeatable=False,
)
async def add_hook(app: App, caller: Caller, request: AddHook) -> HookMade:
    """Create an incoming webhook."""
    hooks = app.part(IncomingMessages).hooks
    hook = hooks.add(
        request.name,
        request.stored,
        by=caller.name,
        message=request.message,
        at_once=request.at_once,
        allow_unknown_cost=request.allow_unknown_cost,
    )
    return HookMade(**msgspec.structs.asdict(hook_item(hooks, hook)), secret=hook.secret)


@operation(
    "hooks.remove",
    "command",
    "admin",
    "Delete an incoming webhook",
    http=HttpRoute("DELETE", f"{INCOMING}/{{name}}", status=204),
    audit=("hook.removed",),
    draining="serve",
)
async def remove_hook(app: App, caller: Caller, request: HookReference) -> None:
    """Remove an incoming webhook; its messages that wait are dropped."""
    app.part(IncomingMessages).hooks.remove(request.name, by=caller.name)


@operation(
    "hooks.receive",
    "raw",
    "signed",
    "A message, signed by Standard Webhooks: starts a run, once for each webhook-id",
    http=HttpRoute(
        "POST",
        f"{INCOMING}/{{name}}",
        status=202,
        also=(200,),
        status_of=lambda taken: 202 if taken.taken else 200,
        headers={
            "message": "webhook-id",
            "sent_at": "webhook-timestamp",
            "signatures": "webhook-signature",
        },
        raw=RawBody(field="body", media="application/json", most_bytes=MESSAGE_BYTES),
    ),
    audit=("hook.taken",),
    draining="refuse",
    repeatable=False,
)
async def receive(app: App, caller: Caller, request: ReceiveMessage) -> HookTaken:
    """Store a message of which a worker starts a run; a message that is known is not stored."""
    messages = app.part(IncomingMessages)
    hooks, given = messages.hooks, (request.message, request.sent_at, request.signatures)
    try:
        hook = hooks.checked(request.name, given, request.body)
    except LoopwrightError:
        messages.unsigned.count(caller.address)  # a client that guesses is refused after a while
        raise
    messages.rates.count(hook.name)
    known = hooks.known(hook.name, request.message)
    if known is not None:
        return _taken(known, is_new=False)
    if len(hooks.at("waiting", hook.name, QUEUE)) >= QUEUE:
        raise TooManyRequests(
            f"{QUEUE} messages of this hook wait already",
            code="queue-full",
            headers={"Retry-After": "30"},
        )
    text = _message_text(request.body)
    try:
        arrival = hooks.take(hook, request.message, text)
    except VersionConflict:
        again = hooks.known(hook.name, request.message)
        assert again is not None, "it was there a moment ago"
        return _taken(again, is_new=False)
    messages.added.set()
    return _taken(arrival, is_new=True)


def _taken(arrival: Arrival, *, is_new: bool) -> HookTaken:
    return HookTaken(id=arrival.id, run=arrival.run, taken=is_new)


def _message_text(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise LoopwrightError("the body is not UTF-8", code="bad-json") from error
    problem = control_character(text)
    if problem is not None:
        raise InputError(f"the text: {problem}", code="bad-character", hint=NO_CONTROL)
    return text


async def start_message(app: App, hook: Incoming, arrival: Arrival) -> None:
    """Start the run of a message that is stored, with the id that it was given then."""
    stored = definitions_of(app).runnable(hook.definition)
    words = app.part(IncomingMessages).hooks.words(arrival)
    message = "\n\n".join(filter(None, [hook.message, words]))
    request = start_request({"message": message, "allow_unknown_cost": hook.allow_unknown_cost})
    place = StartPlace(
        settings=app.settings,
        workspace=app.workspace,
        agent_names=app.service.agent_names(),
        can_ask=True,
    )
    start, _ = prepare_start(place, request, stored.source())
    # The folder is that of the server: it was not chosen for this definition.
    start = replace(
        start,
        by=f"hook:{hook.name}",
        run=arrival.run,
        workspace_by=stored.role,
    )
    with acting_as("admin"):  # who made the hook; the definition has an author of its own
        await launch_run(app.service, start)


OPERATIONS = (
    list_webhooks,
    add_webhook,
    remove_webhook,
    test_webhook,
    list_hooks,
    add_hook,
    remove_hook,
    receive,
)
