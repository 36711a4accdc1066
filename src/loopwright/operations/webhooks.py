"""Incoming and outgoing webhooks.

A message that is signed with the secret of an incoming webhook starts one run. It is stored before
it is acknowledged, with the id that its run will have. So an accepted message is started even after
a crash, and a repeated message starts nothing. Signatures follow Standard Webhooks version 1, also
for outgoing webhooks. Lists never contain secrets.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from loopwright.errors import Conflict, LoopwrightError, NotFound, NotSignedIn, VersionConflict
from loopwright.operations.accounts.access import Access
from loopwright.operations.api_types import HookItem, WebhookItem
from loopwright.operations.definitions import Definitions
from loopwright.operations.outgoing_requests import Resolve, Target, check_url, resolve
from loopwright.ports import Clock, EventLog, RecordStore, StoredRecord
from loopwright.views.event_records import sortable_id, timestamp

TOLERANCE_MS = 300_000  # how far a signature may be from now, before and after
MOST_SIGNATURES = 8  # of one message: during a change of the secret, a client sends two for a while
MOST_ID = 200
PREFIX = "whsec_"


def new_secret() -> str:
    return f"{PREFIX}{base64.b64encode(secrets.token_bytes(32)).decode()}"


def sign(secret: str, message: str, at: str, body: bytes) -> str:
    """The signature of a message with this id, sent at this second."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    text = f"{message}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()


def is_signed(secret: str, given: tuple[str, str, str], body: bytes, now_ms: int) -> bool:
    """Whether one of the signatures is ours and of now; `given` is id, timestamp, signatures."""
    message, at, signatures = given
    if not (0 < len(message) <= MOST_ID and message.isascii() and message.isprintable()):
        return False
    if not (at.isascii() and at.isdigit() and len(at) <= 12):
        return False
    wanted = sign(secret, message, at, body).encode()
    listed = [one.encode(errors="replace") for one in signatures.split(" ")[:MOST_SIGNATURES]]
    same = [hmac.compare_digest(wanted, one) for one in listed]  # all of them, in the same time
    return any(same) and abs(int(at) * 1_000 - now_ms) <= TOLERANCE_MS


INCOMING_HOOK, ARRIVAL, WORDS = "incoming", "arrival", "arrival-words"
KEEP_MS = 3 * 86_400_000  # how long a message is known again
MOST_AT_ONCE = 100
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_NOBODYS = new_secret()

Stage: TypeAlias = Literal["waiting", "going", "done"]


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """A hook; its secret is needed to check, so it is kept."""

    name: str
    definition: str  # the name of a stored one
    secret: str
    message: str = ""  # text before the message of the sender
    at_once: int = 4  # runs of it at the same time; the others wait
    allow_unknown_cost: bool = False
    by: str = ""
    created_at: int = 0
    problem: str = ""


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was taken."""

    id: str
    hook: str
    run: str
    at: int
    problem: str = ""


class Hooks:
    """The incoming webhooks of a data directory, and their messages."""

    def __init__(self, access: Access, definitions: Definitions) -> None:
        self._access = access
        self._records = access.records
        self._clock = access.clock
        self._definitions = definitions

    # -- hooks ---------------------------------------------------------------------------------

    def all(self) -> list[Incoming]:
        return [
            msgspec.json.decode(record.body, type=Incoming)
            for record in self._records.records(INCOMING_HOOK)
        ]

    def get(self, name: str) -> Incoming | None:
        record = self._records.record(INCOMING_HOOK, name)
        return None if record is None else msgspec.json.decode(record.body, type=Incoming)

    def add(
        self,
        name: str,
        definition: str,
        *,
        by: str,
        message: str = "",
        at_once: int = 4,
        allow_unknown_cost: bool = False,
    ) -> Incoming:
        """Create an incoming webhook; its secret is shown only now."""
        if _NAME.fullmatch(name) is None:
            raise LoopwrightError(
                f"{name[:80]!a} cannot be the name of a hook",
                code="bad-hook-name",
                hint="use a-z, 0-9, dashes and underscores, at most 63 of them",
            )
        if not 1 <= at_once <= MOST_AT_ONCE:
            raise LoopwrightError(
                f"a hook has 1 to {MOST_AT_ONCE} runs at once, not {at_once}", code="out-of-range"
            )
        self._definitions.get(definition)
        hook = Incoming(
            name=name,
            definition=definition,
            secret=new_secret(),
            message=message,
            at_once=at_once,
            allow_unknown_cost=allow_unknown_cost,
            by=by,
            created_at=self._clock.now_ms(),
        )
        try:
            audit = [self._access.row(by, "hook.added", name, definition)]
            self._records.change([(_hook_record(hook), 0)], audit=audit)
        except VersionConflict as conflict:
            raise Conflict(f"there is a hook {name!r} already", code="name-taken") from conflict
        return hook

    def remove(self, name: str, *, by: str) -> None:
        """End a hook; what it took and did not start yet is let go."""
        if self.get(name) is None:
            raise NotFound(f"no hook {name[:80]!a}")
        kept = [
            (kind, record.key)
            for stage in ("waiting", "going", "done")
            for record in self._records.records(ARRIVAL, owner=f"{stage}/{name}")
            for kind in (ARRIVAL, WORDS)
        ]
        audit = [self._access.row(by, "hook.removed", name)]
        self._records.change(drops=[(INCOMING_HOOK, name), *kept], audit=audit)

    # -- messages ------------------------------------------------------------------------------

    def checked(self, name: str, given: tuple[str, str, str], body: bytes) -> Incoming:
        """The hook, if the message is signed for it and of now; the same answer for all others."""
        hook = self.get(name)
        secret = hook.secret if hook is not None else _NOBODYS
        signed = is_signed(secret, given, body, self._clock.now_ms())
        if hook is None or not signed:
            raise NotSignedIn(
                "no such incoming webhook, or the message has no valid signature for this moment",
                code="bad-signature",
                hint="sign webhook-id, webhook-timestamp and the body as Standard Webhooks says",
            )
        return hook

    def known(self, hook: str, message: str) -> Arrival | None:
        """The same message, taken before."""
        record = self._records.record(ARRIVAL, _key(hook, message))
        return None if record is None else _arrival(record)

    def take(self, hook: Incoming, message: str, text: str) -> Arrival:
        """Keep a message; from here on it will be started. VersionConflict: it is known."""
        now = self._clock.now_ms()
        run = f"run_{sortable_id(now)}"
        arrival = Arrival(id=message, hook=hook.name, run=run, at=now)
        words = StoredRecord(kind=WORDS, key=_key(hook.name, message), body=text.encode())
        audit = [self._access.row(f"hook:{hook.name}", "hook.taken", run, message)]
        self._records.change(
            [(_arrival_record(arrival, "waiting", now), 0), (words, None)], audit=audit
        )
        return arrival

    def words(self, arrival: Arrival) -> str:
        """The text of a stored message."""
        record = self._records.record(WORDS, _key(arrival.hook, arrival.id))
        return "" if record is None else record.body.decode()

    def at(self, stage: Stage, hook: str, limit: int | None = None) -> list[Arrival]:
        """Messages of a hook in a stage, the oldest first."""
        found = self._records.records(ARRIVAL, owner=f"{stage}/{hook}", limit=limit)
        return sorted(map(_arrival, found), key=lambda one: one.run)

    def move(self, arrival: Arrival, stage: Stage, problem: str = "") -> None:
        """Process a message; its text is stored no longer than needed. A webhook whose message was
        started has no problem any more.
        """
        now = self._clock.now_ms()
        moved = msgspec.structs.replace(arrival, problem=problem)
        puts: list[tuple[StoredRecord, int | None]] = [(_arrival_record(moved, stage, now), None)]
        audit = []
        hook = self.get(arrival.hook)
        if problem and hook is not None:
            puts.append((_hook_record(msgspec.structs.replace(hook, problem=problem)), None))
            who = f"hook:{hook.name}"
            audit.append(self._access.row(who, "hook.failed", hook.name, problem))
        elif stage == "going" and hook is not None and hook.problem:
            puts.append((_hook_record(msgspec.structs.replace(hook, problem="")), None))
        drops = [] if stage == "waiting" else [(WORDS, _key(arrival.hook, arrival.id))]
        self._records.change(puts, drops=drops, audit=audit)

    def forget_old(self) -> None:
        due = self._records.records(ARRIVAL, due_by=self._clock.now_ms(), limit=1_000)
        if due:
            self._records.change(drops=[(ARRIVAL, record.key) for record in due])


def _key(hook: str, message: str) -> str:
    return f"{hook}/{message}"


def _hook_record(hook: Incoming) -> StoredRecord:
    return StoredRecord(kind=INCOMING_HOOK, key=hook.name, body=msgspec.json.encode(hook))


def _arrival_record(arrival: Arrival, stage: Stage, now: int) -> StoredRecord:
    """Only what is done is forgotten in its time."""
    return StoredRecord(
        kind=ARRIVAL,
        key=_key(arrival.hook, arrival.id),
        body=msgspec.json.encode(arrival),
        owner=f"{stage}/{arrival.hook}",
        due=now + KEEP_MS if stage == "done" else None,
    )


def _arrival(record: StoredRecord) -> Arrival:
    return msgspec.json.decode(record.body, type=Arrival)


def hook_item(hooks: Hooks, hook: Incoming) -> HookItem:
    """An incoming webhook as a line of a list, with how many messages of it wait."""
    return HookItem(
        name=hook.name,
        stored=hook.definition,
        message=hook.message,
        at_once=hook.at_once,
        allow_unknown_cost=hook.allow_unknown_cost,
        waiting=len(hooks.at("waiting", hook.name)),
        problem=hook.problem or None,
        created_at=timestamp(hook.created_at),
    )


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
