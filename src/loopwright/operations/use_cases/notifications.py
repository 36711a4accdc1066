"""Notifications: what happened to runs is stored, listed, and marked as read."""

from collections.abc import Callable, Iterable
from typing import Annotated, Literal, TypeAlias

import msgspec

from loopwright.errors import InputError, LoopwrightError, NotFound
from loopwright.model.record import JsonValue
from loopwright.operations.api_types import Notification, NotificationPage, ReadCount, Request
from loopwright.operations.problems import missing_input
from loopwright.operations.use_cases.operation import App, Caller, HttpRoute, operation
from loopwright.ports import NOTICE, Clock, EventLog, RecordStore, StoredRecord
from loopwright.views.event_records import timestamp

SEEN = "notice-seen"
POSITION = "(cursor)"
KEPT_MS = 30 * 86_400_000
MOST = 10_000
AT_ONCE = 200
SAVE_MS = 10_000
_LATEST = 10**13  # milliseconds; so that the newest comes first in the order of keys
_HIGHEST = 10**9

Level: TypeAlias = Literal["info", "action_required", "critical", "error"]


class StoredNotification(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened, for the owner of the run. `name` is the name in the system that the
    run belongs to; `data` is sent over sockets.
    """

    id: str
    kind: str
    level: Level
    title: str
    run: str
    seq: int
    at: int
    to: str
    session: str = ""
    actions: list[str] = []
    data: dict[str, JsonValue] = {}
    told: bool = False
    read_by: list[str] = []


class Cursor(msgspec.Struct, frozen=True):
    """The position up to which the log was read, and when reading began: older events give no
    notifications.
    """

    place: int
    since: int


def notice_id(run: str, at: int, seq: int, part: int = 0) -> str:
    """The id of the notification for an event; in the order of keys the newest comes first. `part`
    distinguishes several notifications of one event, from 0. The code that deletes runs relies on
    the position of the run in it.
    """
    return f"ntf_{_LATEST - at:013d}_{_HIGHEST - seq:09d}{9 - part}_{run}"


Tell: TypeAlias = Callable[[str, int], list[StoredNotification]]
"""The notifications of a run from the event after this number on; NotFound if it does not exist any
more.
"""


class Notices:
    """The notifications of a data directory."""

    def __init__(self, log: EventLog, records: RecordStore, clock: Clock) -> None:
        self._log = log
        self._records = records
        self._clock = clock
        self._cursor: Cursor | None = None
        self._saved_at = 0

    # -- noticing --------------------------------------------------------------------------------

    def moved(self) -> list[str]:
        """The runs that were changed since the last time; the first time is now."""
        cursor = self._cursor or self._stored()
        runs, place = self._log.nudges(cursor.place)
        self._cursor = Cursor(place, cursor.since)
        return runs

    def _stored(self) -> Cursor:
        record = self._records.record(SEEN, POSITION)
        if record is not None:
            return msgspec.json.decode(record.body, type=Cursor)
        _, place = self._log.nudges(0)
        first = Cursor(place, self._clock.now_ms())
        self._records.change([(_cursor_record(first), 0)])
        return first

    def notice(self, runs: Iterable[str], tell: Tell) -> list[StoredNotification]:
        """Store the new notifications of these runs, each once."""
        made: list[StoredNotification] = []
        puts: list[tuple[StoredRecord, int | None]] = []
        drops: list[tuple[str, str]] = []
        assert self._cursor is not None, "the cursor is read first"
        for run in runs:
            try:
                found = [one for one in tell(run, self._seen(run)) if one.at >= self._cursor.since]
            except NotFound:
                drops.append((SEEN, run))
                continue
            except LoopwrightError:  # it is damaged: it gives no notifications
                continue
            if found:
                made += found
                last = str(found[-1].seq).encode()
                puts.append((StoredRecord(kind=SEEN, key=run, body=last), None))
        puts += [(notice_record(one), None) for one in made]
        if made or drops or self._clock.now_ms() - self._saved_at > SAVE_MS:
            puts.append((_cursor_record(self._cursor), None))
            self._records.change(puts, drops)
            self._saved_at = self._clock.now_ms()
        return made

    def _seen(self, run: str) -> int:
        record = self._records.record(SEEN, run)
        return 0 if record is None else int(record.body)

    # -- reading ---------------------------------------------------------------------------------

    def page(
        self,
        after: str,
        limit: int,
        fits: Callable[[StoredNotification], bool],
        *,
        owner: str | None = None,
    ) -> list[StoredNotification]:
        """Notifications from the one after `after` on, newest first, and one more than
        requested.
        """
        found: list[StoredNotification] = []
        while len(found) <= limit:
            records = self._records.records(NOTICE, owner=owner, after=after, limit=AT_ONCE)
            found += [one for record in records if fits(one := _decoded(record))]
            if len(records) < AT_ONCE:
                break
            after = records[-1].key
        return found[: limit + 1]

    def waits(self, one: StoredNotification) -> bool:
        """Whether it is about a gate that is still open."""
        gate = gate_of(one)
        return gate is not None and any(gate == left.gate for left in self._log.gates(one.run))

    def read(self, names: Iterable[str], who: str) -> int:
        """A person has read these; returns how many were unread. NotFound for unknown ids."""
        changed: list[StoredNotification] = []
        for name in dict.fromkeys(names):
            record = self._records.record(NOTICE, name)
            if record is None:
                raise NotFound(f"there is no notification {name[:80]!a}")
            one = _decoded(record)
            if who not in one.read_by:
                changed.append(msgspec.structs.replace(one, read_by=[*one.read_by, who]))
        self._keep(changed)
        return len(changed)

    def read_up_to(self, name: str, who: str) -> int:
        """A person has read this one and all older ones."""
        first = self.read([name], who)
        older = [one.id for one in self.page(name, MOST, lambda one: who not in one.read_by)]
        return first + self.read(older, who)

    # -- sending ---------------------------------------------------------------------------------

    def untold(self, who: str, limit: int) -> list[StoredNotification]:
        """What was not sent to a person yet, oldest first; if there are too many, the newest."""
        found = self.page("", limit, lambda one: not one.told, owner=who)[:limit]
        return found[::-1]

    def mark_sent(self, notices: Iterable[StoredNotification]) -> None:
        self._keep([msgspec.structs.replace(one, told=True) for one in notices])

    def _keep(self, notices: list[StoredNotification]) -> None:
        if notices:
            self._records.change([(notice_record(one), None) for one in notices])

    def forget_old(self) -> int:
        """Delete what was kept for long enough."""
        old = self._records.records(NOTICE, due_by=self._clock.now_ms(), limit=1_000)
        if old:
            self._records.change(drops=[(record.kind, record.key) for record in old])
        return len(old)


def notice_record(notice: StoredNotification) -> StoredRecord:
    """A notification as it is stored."""
    body = msgspec.json.encode(notice)
    due = notice.at + KEPT_MS
    return StoredRecord(kind=NOTICE, key=notice.id, body=body, owner=notice.to, due=due)


def gate_of(one: StoredNotification) -> JsonValue:
    """The gate of a notification; assistants call it the id of their loop."""
    return one.data.get("gate", one.data.get("loopId"))


def _decoded(record: StoredRecord) -> StoredNotification:
    return msgspec.json.decode(record.body, type=StoredNotification)


def _cursor_record(cursor: Cursor) -> StoredRecord:
    return StoredRecord(kind=SEEN, key=POSITION, body=msgspec.json.encode(cursor))


BASE = "/api/v1/notifications"
CURSOR = "notices"


class ListNotifications(Request):
    """Which, and which page of them."""

    unread: bool = False
    mine: bool = False
    waiting: bool = False
    session: str | None = None
    run: str | None = None
    level: Level | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50
    cursor: str | None = None


class MarkNotificationsRead(Request):
    """What was read: these, or this one and all that are older."""

    ids: Annotated[list[str], msgspec.Meta(max_length=200)] = []
    up_to: str | None = None


class NotificationReference(Request):
    """A notification, by its id."""

    notification: str


@operation(
    "notifications.list",
    "query",
    "viewer",
    "Notifications about runs, newest first; kept for thirty days",
    http=HttpRoute("GET", BASE, schema="NotificationsQuery"),
)
async def list_notifications(
    app: App, caller: Caller, request: ListNotifications
) -> NotificationPage:
    """A page of the notifications, those of everybody unless `mine` is set."""
    notices, who = _notices(app), caller.name
    after = "" if request.cursor is None else app.cursors().place(CURSOR, request.cursor)

    def fits(one: StoredNotification) -> bool:
        return (
            not (request.unread and who in one.read_by)
            and request.session in (None, one.session)
            and request.run in (None, one.run)
            and request.level in (None, one.level)
            and (not request.waiting or notices.waits(one))
        )

    limit = request.limit
    found = notices.page(after, limit, fits, owner=who if request.mine else None)
    page = found[:limit]
    more = app.cursors().after(CURSOR, page[-1].id) if len(found) > limit else None
    return NotificationPage(notifications=[_item(notices, one, who) for one in page], next=more)


@operation(
    "notifications.read_many",
    "command",
    "viewer",
    "Mark notifications as read: these, or one and all older ones",
    http=HttpRoute("POST", f"{BASE}/read", schema="ReadBody"),
    audit=(),
    draining="serve",
)
async def read_many(app: App, caller: Caller, request: MarkNotificationsRead) -> ReadCount:
    """Mark notifications as read by the caller."""
    if not request.ids and request.up_to is None:
        raise missing_input("ids", hint="give `ids`, or `up_to` for one and all that are older")
    if request.ids and request.up_to is not None:
        raise InputError("ids and up_to exclude each other", code="mutually-exclusive")
    if request.up_to is not None:
        return ReadCount(read=_notices(app).read_up_to(request.up_to, caller.name))
    return ReadCount(read=_notices(app).read(request.ids, caller.name))


@operation(
    "notifications.read",
    "command",
    "viewer",
    "Mark a notification as read",
    http=HttpRoute("POST", f"{BASE}/{{notification}}/read"),
    audit=(),
    draining="serve",
)
async def read(app: App, caller: Caller, request: NotificationReference) -> ReadCount:
    """Mark one notification as read by the caller."""
    return ReadCount(read=_notices(app).read([request.notification], caller.name))


def _notices(app: App) -> Notices:
    return Notices(app.service.log, app.records, app.service.clock)


def _item(notices: Notices, one: StoredNotification, who: str) -> Notification:
    return Notification(
        id=one.id,
        kind=one.kind,
        level=one.level,
        title=one.title,
        run=one.run,
        seq=one.seq,
        at=timestamp(one.at),
        to=one.to,
        session=one.session or None,
        actions=list(one.actions),
        waiting=notices.waits(one),
        read=who in one.read_by,
        data=dict(one.data),
    )


OPERATIONS = (list_notifications, read_many, read)
