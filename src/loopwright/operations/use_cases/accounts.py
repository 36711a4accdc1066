"""Accounts: who the caller is, and who did what."""

import hashlib
from typing import Annotated

import msgspec

from loopwright.operations.response_types import AuditItem, AuditPage, Me
from loopwright.operations.use_cases.operation import App, Caller, HttpRoute, Request, operation
from loopwright.views.event_records import timestamp

BASE = "/api/v1"


class ShowCaller(Request):
    """No parameters."""


class ReadAuditLog(Request):
    """Which rows of the record; `cursor` is where a page ended, `before` the number of a row."""

    subject: str = ""
    cursor: str | None = None
    before: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 100


@operation(
    "access.me",
    kind="query",
    role="viewer",
    summary="The authenticated user",
    request=ShowCaller,
    response=Me,
    http=HttpRoute(method="GET", path=f"{BASE}/me"),
)
async def me(_app: App, caller: Caller, _request: ShowCaller) -> Me:
    """Who calls, with which role."""
    return Me(name=caller.name, role=caller.role)


@operation(
    "access.audit",
    kind="query",
    role="admin",
    summary="Who did what, newest first",
    request=ReadAuditLog,
    response=AuditPage,
    http=HttpRoute(method="GET", path=f"{BASE}/audit", schema="AuditQuery"),
)
async def audit(app: App, _caller: Caller, request: ReadAuditLog) -> AuditPage:
    """A page of the audit log. A cursor is for one subject."""
    kind = f"audit {hashlib.sha256(request.subject.encode()).hexdigest()[:16]}"
    before = request.before
    if request.cursor is not None:
        before = int(app.cursors().place(kind, request.cursor))
    limit = request.limit
    found = app.cards.audited(before=before, subject=request.subject, limit=limit + 1)
    rows = [
        AuditItem(
            id=row.id,
            at=timestamp(row.at),
            who=row.who,
            via=row.via,
            action=row.action,
            subject=row.subject,
            detail=row.detail,
        )
        for row in found[:limit]
    ]
    more = app.cursors().after(kind, str(rows[-1].id)) if len(found) > limit else None
    return AuditPage(rows=rows, next=more)


OPERATIONS = (me, audit)
