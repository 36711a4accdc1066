"""Outgoing webhooks: the addresses that are stored, and test messages to them.

Deliveries are signed by the rules of Standard Webhooks. Every address is checked when it is added
and again before every delivery.
"""

import secrets
from collections.abc import Callable

import msgspec

from loopwright.errors import LoopwrightError, NotFound
from loopwright.operations.accounts.access import Access
from loopwright.operations.outgoing_requests import Resolve, Target, check_url, resolve
from loopwright.operations.response_types import WebhookItem
from loopwright.operations.webhooks.incoming_hooks import new_secret, sign
from loopwright.ports import Clock, EventLog, RecordStore, StoredRecord
from loopwright.views.event_records import timestamp

HOOK, DELIVERY, SEEN = "webhook", "delivery", "webhook-seen"
CURSOR = "(cursor)"
TEST = "webhook.test"

Send = Callable[[Target, dict[str, str], bytes], int]
"""Sends a body to a target; returns the status, raises OSError if there is no answer."""


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """An address that receives deliveries; its secret is needed for signing, so it is stored."""

    id: str
    url: str
    secret: str
    kinds: list[str]
    active: bool = True
    by: str = ""
    created_at: int = 0
    problem: str = ""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery to one address."""

    id: str
    hook: str
    body: str
    tries: int = 0


class DeliveryTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a test message."""

    id: str
    status: int | None = None
    delivered: bool = False
    problem: str | None = None


class OutgoingWebhooks:
    """The stored addresses that receive deliveries."""

    def __init__(
        self,
        log: EventLog,
        records: RecordStore,
        access: Access,
        clock: Clock,
        *,
        loopback: bool = False,
    ) -> None:
        self._loopback = loopback  # whether deliveries to this machine are allowed
        self._log = log
        self._records = records
        self._access = access
        self._clock = clock
        self.resolve: Resolve = resolve

    def all(self) -> list[Hook]:
        return [
            msgspec.json.decode(record.body, type=Hook) for record in self._records.records(HOOK)
        ]

    def check(self, url: str) -> None:
        """Refuse an address that may not be sent to. It queries name servers, so it may be slow."""
        check_url(url, self.resolve, loopback=self._loopback)

    def add(self, url: str, kinds: list[str], *, by: str, is_checked: bool = False) -> Hook:
        """Add an address; its secret is shown once, now."""
        if not is_checked:
            self.check(url)
        hook = Hook(
            id=f"hook_{secrets.token_hex(8)}",
            url=url,
            secret=new_secret(),
            kinds=kinds,
            by=by,
            created_at=self._clock.now_ms(),
        )
        _, cursor = self._log.nudges(0)
        puts: list[tuple[StoredRecord, int | None]] = [(stored_card(HOOK, hook.id, hook), 0)]
        if self._records.record(SEEN, CURSOR) is None:
            puts.append((StoredRecord(kind=SEEN, key=CURSOR, body=str(cursor).encode()), None))
        audit = [self._access.row(by, "webhook.added", hook.id, url)]
        self._records.change(puts, audit=audit)
        return hook

    def remove(self, name: str, *, by: str) -> None:
        if self._records.record(HOOK, name) is None:
            raise NotFound(f"no webhook {name[:80]!a}")
        waiting = [
            (record.kind, record.key) for record in self._records.records(DELIVERY, owner=name)
        ]
        audit = [self._access.row(by, "webhook.removed", name)]
        self._records.change(drops=[(HOOK, name), *waiting], audit=audit)

    def post(self, hook: Hook, delivery: Delivery, send: Send) -> int:
        """Send a delivery once; the status of the response. The address is checked again."""
        target = check_url(hook.url, self.resolve, loopback=self._loopback)
        at = str(self._clock.now_ms() // 1_000)
        body = delivery.body.encode()
        headers = {
            "content-type": "application/json",
            "webhook-id": delivery.id,
            "webhook-timestamp": at,
            "webhook-signature": sign(hook.secret, delivery.id, at, body),
        }
        return send(target, headers, body)

    def trial(self, name: str, send: Send, *, by: str) -> Callable[[], DeliveryTrial]:
        """A message of kind `webhook.test` for an address, once; the returned function sends it and
        may be called in any thread.
        """
        found = self._records.record(HOOK, name)
        if found is None:
            raise NotFound(f"no webhook {name[:80]!a}")
        hook = msgspec.json.decode(found.body, type=Hook)
        told = {"type": TEST, "timestamp": timestamp(self._clock.now_ms()), "data": {}}
        body = msgspec.json.encode(told).decode()
        delivery = Delivery(id=f"msg_{secrets.token_hex(16)}", hook=hook.id, body=body)
        self._records.change(audit=[self._access.row(by, "webhook.tested", hook.id)])

        def sent() -> DeliveryTrial:
            try:
                status = self.post(hook, delivery, send)
            except LoopwrightError as error:
                return DeliveryTrial(id=delivery.id, problem=error.message)
            except OSError as error:
                why = (error.strerror or str(error)).lower()
                return DeliveryTrial(id=delivery.id, problem=f"it does not answer: {why}")
            good = 200 <= status < 300
            problem = None if good else f"it answers with {status}"
            return DeliveryTrial(id=delivery.id, status=status, delivered=good, problem=problem)

        return sent


def webhook_item(hook: Hook) -> WebhookItem:
    """An address without its secret."""
    return WebhookItem(
        id=hook.id,
        url=hook.url,
        kinds=list(hook.kinds),
        active=hook.active,
        problem=hook.problem or None,
        created_at=timestamp(hook.created_at),
    )


def stored_card(
    kind: str, key: str, value: msgspec.Struct, owner: str = "", due: int | None = None
) -> StoredRecord:
    """A record that is stored for webhooks."""
    return StoredRecord(kind=kind, key=key, body=msgspec.json.encode(value), owner=owner, due=due)
