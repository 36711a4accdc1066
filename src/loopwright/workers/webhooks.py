"""Outgoing webhooks: deliveries to other servers by the rules of Standard Webhooks.

A delivery is stored in one transaction with the number of the last event considered, so each event
is delivered at least once, with an id that stays the same. There are ten attempts, the last 76
hours after the first. Receivers are served concurrently, each one in order, so a slow receiver
delays neither others nor the shutdown of the server.

The runs of incoming webhooks are started here, too.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from loopwright.errors import Conflict, LoopwrightError, NotFound, StorageError
from loopwright.kernel.events import GateOpened, RunFinished, RunStarted
from loopwright.model.plan import stored_plan
from loopwright.model.record import JsonValue
from loopwright.operations.accounts.access import Access
from loopwright.operations.outgoing_requests import PRIVATE, Resolve, run_in_daemon_thread
from loopwright.operations.run_tail import EventFeed
from loopwright.operations.runs import row_ended
from loopwright.operations.use_cases.notifications import (
    StoredNotification,
    notice_id,
    notice_record,
)
from loopwright.operations.use_cases.operation import App
from loopwright.operations.use_cases.webhooks import IncomingMessages, start_message
from loopwright.operations.webhooks import (
    CURSOR,
    DELIVERY,
    HOOK,
    SEEN,
    Arrival,
    Delivery,
    Hook,
    Incoming,
    OutgoingWebhooks,
    Send,
    stored_card,
)
from loopwright.ports import Clock, EventLog, NumberedEvent, RecordStore, StoredRecord
from loopwright.views.certificate import certify
from loopwright.views.event_records import event_on_wire
from loopwright.views.run_responses import change_counts
from loopwright.views.summary import final_line_at
from loopwright.workers.background_tasks import NAME, BackgroundTask

MOST = 8  # receivers that are served at the same time


class Lanes:
    """The receivers that are being served now."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._busy: dict[str, asyncio.Future[None]] = {}
        self._last: dict[str, int] = {}  # when each was served last
        self._turn = 0

    def begin(
        self, waiting: Iterable[str], work: Callable[[str], Coroutine[Any, Any, None]]
    ) -> None:
        """Start serving waiting receivers, as far as there are free slots: first the one that was
        served longest ago.
        """
        names = sorted(set(waiting).difference(self._busy), key=lambda one: self._last.get(one, 0))
        for name in names[: self._most - len(self._busy)]:
            self._turn += 1
            self._last[name] = self._turn
            self._busy[name] = task = asyncio.ensure_future(work(name))
            task.add_done_callback(partial(self._done, name))

    def _done(self, name: str, _task: asyncio.Future[None]) -> None:
        del self._busy[name]

    async def rest(self) -> None:
        """Wait until all deliveries have ended."""
        while self._busy:
            await asyncio.wait(self._busy.values())

    async def end(self) -> None:
        """Cancel all deliveries."""
        for task in self._busy.values():
            task.cancel()
        await self.rest()


TRIES_S = (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
LOOK_S = 0.5
AT_ONCE = 20
REFUSED_TRIES = 3  # a refused address may be an error of a name server
GONE = 410
NOTICE_PART = 9  # in the ids of notices: no event has this number
TITLE_CHARS = 300
_THIN = ("run", "seq", "path", "gate", "outcome", "reason", "summary")


class DeliveryOutcome(NamedTuple):
    """The result of one attempt: the status, 0 if it could not be sent, and why its address was
    refused, if it was.
    """

    status: int
    refused: str = ""


class Channels(Protocol):
    """Receivers in the settings, each with its own way of delivery."""

    @property
    def hooks(self) -> list[Hook]: ...

    def links_of(
        self, hook: str, delivery: str, run: str, opened: GateOpened
    ) -> list[tuple[StoredRecord, int | None]]:
        """The record to store for the link in a message."""

    def send(self, hook: str, delivery: Delivery, send: Send, resolved: Resolve) -> int:
        """Deliver it; the HTTP status, 0 if it failed."""

    def end(self) -> None:
        """End running deliveries by programs."""


def _also(event: GateOpened | RunFinished) -> tuple[str, ...]:
    """Other names of an event in a list of kinds."""
    failed = isinstance(event, RunFinished) and event.outcome in ("failed", "exhausted")
    return ("run.failed",) if failed else ()


class WebhookDeliveries(OutgoingWebhooks):
    """The deliveries of outgoing webhooks."""

    def __init__(
        self,
        log: EventLog,
        records: RecordStore,
        access: Access,
        clock: Clock,
        channels: Channels | None = None,
        *,
        loopback: bool = False,
    ) -> None:
        super().__init__(log, records, access, clock, loopback=loopback)
        self._channels = channels
        self._lanes = Lanes()
        self._telling = BackgroundTask("telling a receiver")
        self._tried = 0

    # -- noticing ------------------------------------------------------------------------------

    def notice(self) -> int:
        """Create deliveries for new events; returns their number."""
        record = self._records.record(SEEN, CURSOR)
        if record is None:
            return 0
        runs, cursor = self._log.nudges(int(record.body))
        if not runs:
            return 0
        hooks = [hook for hook in [*self.all(), *self._channel_hooks()] if hook.active]
        puts: list[tuple[StoredRecord, int | None]] = []
        drops: list[tuple[str, str]] = []
        made = 0
        for run in runs:
            found = self._new(run, hooks, puts)
            if found is None:
                drops.append((SEEN, run))
            made += found or 0
        puts.append(
            (StoredRecord(kind=SEEN, key=CURSOR, body=str(cursor).encode()), record.version)
        )
        self._records.change(puts, drops=drops)
        return made

    def _new(
        self, run: str, hooks: list[Hook], puts: list[tuple[StoredRecord, int | None]]
    ) -> int | None:
        """Deliveries for the new events of a run; None if the run does not exist any more."""
        seen = self._records.record(SEEN, run)
        after = int(seen.body) if seen is not None else 0
        try:
            events = self._log.read(run, after=after)
        except LoopwrightError:  # deleted, or damaged: there is nothing to deliver
            return None
        made = 0
        for one in events:
            if not isinstance(one.event, GateOpened | RunFinished):
                continue
            body = {
                **event_on_wire(run, one),
                "summary": self._summary(run, one),
                **self._proof(run, one.event),
            }
            kinds = {body["kind"], *_also(one.event)}
            for hook in hooks:
                if kinds.intersection(hook.kinds) and one.event.at >= hook.created_at:
                    record = self._delivery(hook, run, one.seq, body)
                    puts.append((record, None))
                    if self._channels is not None and isinstance(one.event, GateOpened):
                        puts += self._channels.links_of(hook.id, record.key, run, one.event)
                    made += 1
        if events:
            puts.append((StoredRecord(kind=SEEN, key=run, body=str(events[-1].seq).encode()), None))
        return made

    def _summary(self, run: str, one: NumberedEvent) -> str | None:
        """The final line of a run that has ended."""
        if not isinstance(one.event, RunFinished):
            return None
        try:
            return final_line_at(self._log, run, one.seq)
        except LoopwrightError:  # what is damaged is still reported as ended
            return None

    def _proof(self, run: str, event: GateOpened | RunFinished) -> dict[str, JsonValue]:
        """At a gate the changed files; at the end of a run also the checks that decided. It
        contains no output of agents or programs.
        """
        if isinstance(event, GateOpened):
            shown = event.snapshot
            return (
                {}
                if shown is None
                else {"changed": msgspec.structs.asdict(change_counts(shown.changed))}
            )
        try:
            events = [one.event for one in self._log.read(run)]
            if not isinstance(events[0], RunStarted):
                return {}
            plan = stored_plan(self._log.blob, events[0].plan)
            made = certify(plan, events, lambda _: "", self._log.head(run))
        except LoopwrightError:  # deleted, or damaged: the end is delivered without it
            return {}
        return {"certificate": msgspec.to_builtins(made)}

    def _delivery(self, hook: Hook, run: str, seq: int, told: Mapping[str, object]) -> StoredRecord:
        """Thin: what happened and where to read it, never the output of an agent."""
        name = hashlib.sha256(f"{hook.id}/{run}/{seq}".encode()).hexdigest()[:32]
        data = {key: told.get(key) for key in _THIN}
        data |= {key: told[key] for key in ("certificate", "changed") if key in told}
        body = {"type": told["kind"], "timestamp": told["at"], "data": data}
        delivery = Delivery(id=f"msg_{name}", hook=hook.id, body=msgspec.json.encode(body).decode())
        return StoredRecord(
            kind=DELIVERY,
            key=delivery.id,
            body=msgspec.json.encode(delivery),
            owner=hook.id,
            due=self._clock.now_ms(),
        )

    # -- delivering ----------------------------------------------------------------------------

    async def deliver_due(self, send: Send) -> int:
        """Attempt the due deliveries, and wait for them; returns their number."""
        before = self._tried
        self.begin_due(send)
        await self._lanes.rest()
        return self._tried - before

    def begin_due(self, send: Send) -> None:
        """Start the due deliveries of every receiver that is not being served already."""
        self._lanes.begin(self._waiting(), lambda name: self._lane(name, send))

    def _waiting(self) -> set[str]:
        """Receivers with due deliveries. One with many of them hides the others from the first
        query, so then each is queried.
        """
        now = self._clock.now_ms()
        due = self._records.records(DELIVERY, due_by=now, limit=AT_ONCE)
        found = {record.owner for record in due}
        if len(due) == AT_ONCE:
            known = {hook.id for hook in [*self.all(), *self._channel_hooks()]}
            found |= {one for one in known - found if self._due(one, now, 1)}
        return found

    def _due(self, owner: str, now: int, limit: int) -> list[StoredRecord]:
        return self._records.records(DELIVERY, owner=owner, due_by=now, limit=limit)

    async def _lane(self, name: str, send: Send) -> None:
        """Make the due deliveries of one receiver, in order, until one fails: then others get their
        turn.
        """
        with self._telling.round():
            for record in self._due(name, self._clock.now_ms(), AT_ONCE):
                hook = self._hook(name)
                if hook is None or not hook.active:
                    self._records.change(drops=[(DELIVERY, record.key)])
                    continue
                delivery = msgspec.json.decode(record.body, type=Delivery)
                self._tried += 1
                outcome = await run_in_daemon_thread(lambda: self._try(hook, delivery, send))  # noqa: B023 - awaited
                if not self._settle(name, delivery, outcome):
                    return

    def _channel_hooks(self) -> list[Hook]:
        return [] if self._channels is None else self._channels.hooks

    def _hook(self, name: str) -> Hook | None:
        for hook in self._channel_hooks():
            if hook.id == name:
                return hook
        found = self._records.record(HOOK, name)
        return None if found is None else msgspec.json.decode(found.body, type=Hook)

    def _try(self, hook: Hook, delivery: Delivery, send: Send) -> DeliveryOutcome:
        """Send once. The address is checked again, every time."""
        try:
            if self._channels is not None and hook in self._channels.hooks:
                return DeliveryOutcome(self._channels.send(hook.id, delivery, send, self.resolve))
            return DeliveryOutcome(self.post(hook, delivery, send))
        except LoopwrightError as error:
            return DeliveryOutcome(0, error.message if error.code == PRIVATE else "")
        except OSError:
            return DeliveryOutcome(0)

    def _settle(self, name: str, delivery: Delivery, outcome: DeliveryOutcome) -> bool:
        """Store the result; returns whether it was delivered. If the receiver was removed in the
        meantime, nothing is stored.
        """
        hook, status = self._hook(name), outcome.status
        if hook is None or 200 <= status < 300:
            drops = [(DELIVERY, delivery.id)]
            self._records.change(self._recovered(hook), drops=drops)
            return hook is not None
        tries = delivery.tries + 1
        most = REFUSED_TRIES if outcome.refused else len(TRIES_S)
        if status == GONE or tries >= most:
            why = _why_given_up(outcome, tries)
            self._report(hook, why, "webhook.failed", delivery, active=status != GONE)
            self._records.change(drops=[(DELIVERY, delivery.id)])
            return False
        if outcome.refused and tries == 1:
            self._report(hook, f"not sent: {outcome.refused}", "webhook.refused", delivery)
        again = msgspec.structs.replace(delivery, tries=tries)
        due = self._clock.now_ms() + TRIES_S[tries] * 1_000
        record = stored_card(DELIVERY, delivery.id, again, owner=hook.id, due=due)
        self._records.change([(record, None)])
        return False

    def _recovered(self, hook: Hook | None) -> list[tuple[StoredRecord, int | None]]:
        """A receiver whose address was refused before and that now received a delivery."""
        if hook is None or not hook.problem or hook in self._channel_hooks():
            return []
        return [(stored_card(HOOK, hook.id, msgspec.structs.replace(hook, problem="")), None)]

    def _report(
        self, hook: Hook, why: str, action: str, delivery: Delivery, *, active: bool = True
    ) -> None:
        """Record why a delivery failed, for admins and for the person who added the receiver."""
        audit = [self._access.row("webhooks", action, hook.id, why)]
        kept: list[tuple[StoredRecord, int | None]] = []
        if hook not in self._channel_hooks():  # those are in the settings, not in this table
            changed = msgspec.structs.replace(hook, active=active, problem=why)
            kept.append((stored_card(HOOK, hook.id, changed), None))
        if hook.by:
            kept.append((self._notice(hook, why, action, delivery), None))
        self._records.change(kept, audit=audit)

    def _notice(self, hook: Hook, why: str, action: str, delivery: Delivery) -> StoredRecord:
        data = msgspec.json.decode(delivery.body)["data"]
        now, run, seq = self._clock.now_ms(), str(data["run"]), int(data["seq"] or 0)
        notice = StoredNotification(
            id=notice_id(run, now, seq, NOTICE_PART),
            kind=action,
            level="error",
            title=f"Webhook {hook.id}: {why}"[:TITLE_CHARS],
            run=run,
            seq=seq,
            at=now,
            to=hook.by,
            data={"webhook": hook.id, "url": hook.url, "reason": why},
        )
        return notice_record(notice)

    def begin(self) -> None:
        """Channels of the settings receive events from their first start on."""
        if self._channel_hooks() and self._records.record(SEEN, CURSOR) is None:
            _, cursor = self._log.nudges(0)
            record = StoredRecord(kind=SEEN, key=CURSOR, body=str(cursor).encode())
            self._records.change([(record, None)])

    async def working(self, feed: EventFeed, send: Send) -> None:
        """Notice and deliver, as long as the server runs."""
        with contextlib.suppress(StorageError):
            self.begin()
        work = BackgroundTask("telling webhooks")
        try:
            async for _ in feed.changes(LOOK_S, LOOK_S):
                with work.round():
                    self.notice()
                    self.begin_due(send)
        finally:
            if self._channels is not None:
                self._channels.end()
            await self._lanes.end()


def _why_given_up(outcome: DeliveryOutcome, tries: int) -> str:
    if outcome.status == GONE:
        return "it is gone (410)"
    if outcome.refused:
        return f"not sent, {tries} times: {outcome.refused}"
    return f"it failed {tries} times"


_LOG = logging.getLogger(NAME)
INCOMING_LOOK_S = 1.0
FORGET_EVERY = 600
AGAIN_MS = (1_000, 10_000, 60_000, 600_000)  # until a message that broke its start is tried again


class MessageStarter:
    """Starts runs of the messages that wait, as long as the server lives."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._messages = app.part(IncomingMessages)
        self.hooks = self._messages.hooks
        self._broken: dict[str, tuple[int, int]] = {}  # by run: how often, and when again

    async def working(self) -> None:
        """Start what waits, as long as the server lives."""
        rounds, work = 0, BackgroundTask("starting what came in by hooks")
        while True:
            with work.round():
                for hook in self.hooks.all():
                    await self._work(hook)
                if rounds % FORGET_EVERY == 0:
                    self.hooks.forget_old()
            rounds += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._messages.added.wait(), INCOMING_LOOK_S)
            self._messages.added.clear()

    async def _work(self, hook: Incoming) -> None:
        going = self.hooks.at("going", hook.name)
        ended = [one for one in going if self._has_ended(one.run)]
        for one in ended:
            self.hooks.move(one, "done")
        room = hook.at_once - (len(going) - len(ended))
        now = self._app.service.clock.now_ms()
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
        """A defect of the server is not a fault of the message: keep it, and start others."""
        tries = self._broken.get(arrival.run, (0, 0))[0]
        self._broken[arrival.run] = (tries + 1, now + AGAIN_MS[min(tries, len(AGAIN_MS) - 1)])
        _LOG.error("hook %s: %s is kept", arrival.hook, arrival.id, exc_info=error)
        if not tries:
            problem = f"{arrival.id} is tried again: unexpected {type(error).__name__}"
            self.hooks.move(arrival, "waiting", problem)

    def _has_ended(self, run: str) -> bool:
        try:
            return row_ended(self._app.service.log.row(run))
        except NotFound:
            return True

    async def _start(self, hook: Incoming, arrival: Arrival) -> None:
        """Start the run of a message, unless it was started just before a crash."""
        with contextlib.suppress(NotFound):
            self._app.service.log.row(arrival.run)
            return
        await start_message(self._app, hook, arrival)


def _problem(error: LoopwrightError) -> str:
    """Why a message started nothing; a hook has an option of its own against an unknown cost."""
    if error.code != "unknown-cost":
        return error.message
    return f"{error.message} (add the hook again with --allow-unknown-cost, or {error.hint})"
