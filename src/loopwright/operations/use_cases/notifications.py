"""Notifications: list what happened to runs, and mark it as read."""

from typing import Annotated

import msgspec

from loopwright.errors import InputError
from loopwright.operations.problems import missing_input
from loopwright.operations.request_types import Request
from loopwright.operations.response_types import Notification, NotificationPage, ReadCount
from loopwright.operations.use_cases.operation import App, Caller, HttpRoute, operation
from loopwright.operations.use_cases.stored_notifications import Level, Notices, StoredNotification
from loopwright.views.event_records import timestamp

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
    kind="query",
    role="viewer",
    summary="What happened to runs, newest first; kept for thirty days",
    request=ListNotifications,
    response=NotificationPage,
    http=HttpRoute(method="GET", path=BASE, schema="NotificationsQuery"),
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
    kind="command",
    role="viewer",
    summary="Mark notifications as read: these, or one and all older ones",
    request=MarkNotificationsRead,
    response=ReadCount,
    http=HttpRoute(method="POST", path=f"{BASE}/read", schema="ReadBody"),
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
    kind="command",
    role="viewer",
    summary="Mark a notification as read",
    request=NotificationReference,
    response=ReadCount,
    http=HttpRoute(method="POST", path=f"{BASE}/{{notification}}/read"),
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
