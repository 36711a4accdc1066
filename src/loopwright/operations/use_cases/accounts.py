"""Accounts: sign in and out, who the caller is, and who did what."""

import hashlib
from typing import Annotated

import msgspec

from loopwright.model.record import JsonValue
from loopwright.operations.accounts import people as accounts
from loopwright.operations.accounts.people import People
from loopwright.operations.request_types import Request
from loopwright.operations.response_types import AuditItem, AuditPage, Me
from loopwright.operations.use_cases.operation import App, Caller, HttpRoute, operation
from loopwright.views.event_records import timestamp

BASE = "/api/v1"


class ShowCaller(Request):
    """No parameters."""


class SignIn(Request):
    """Name and password."""

    free = ("password",)

    name: str
    password: str


class BegunSession(msgspec.Struct):
    """A person who has signed in, and the secret of their session."""

    name: str
    role: str
    secret: str


class SetUpAccount(Request):
    """The code of a one-time link, and the account that it makes. Anything that is not a code of a
    link is answered alike.
    """

    free = ("password",)

    code: JsonValue
    name: str
    password: str


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
    found = app.records.audited(before=before, subject=request.subject, limit=limit + 1)
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


@operation(
    "access.sign_in",
    kind="command",
    role="open",
    summary="Sign in; the answer sets a cookie",
    request=SignIn,
    response=BegunSession,
    audit=("user.signed_in",),
    draining="serve",
    repeatable=False,
)
async def sign_in(app: App, _caller: Caller, request: SignIn) -> BegunSession:
    """Begin a session, if the password is right."""
    people = People(app.access())
    kept = people.password_of(request.name)
    is_right = await app.run_slowly(lambda: accounts.fits(kept, request.password))
    signed = people.begin(request.name, kept if is_right else None)
    return BegunSession(name=signed.who.name, role=signed.who.role, secret=signed.secret)


@operation(
    "access.sign_out",
    kind="command",
    role="viewer",
    summary="Sign out",
    request=ShowCaller,
    response=type(None),
    audit=("user.signed_out",),
    draining="serve",
    repeatable=False,
)
async def sign_out(app: App, caller: Caller, _request: ShowCaller) -> None:
    """End the session or the token of the caller."""
    if caller.principal is not None:
        People(app.access()).sign_out(caller.principal)


@operation(
    "access.set_up",
    kind="command",
    role="open",
    summary="Make an account, or set its password, by a one-time link",
    request=SetUpAccount,
    response=Me,
    audit=("user.link_used",),
    draining="serve",
    repeatable=False,
)
async def set_up(app: App, _caller: Caller, request: SetUpAccount) -> Me:
    """Create an account, or set its password."""
    people = People(app.access())
    code = request.code if isinstance(request.code, str) else ""
    people.check_link(code, request.name)  # before anything slow
    password = await app.run_slowly(lambda: accounts.hashed(request.password))
    person = people.use_link(code, request.name, password)
    return Me(name=person.name, role=person.role)


OPERATIONS = (me, audit, sign_in, sign_out, set_up)
