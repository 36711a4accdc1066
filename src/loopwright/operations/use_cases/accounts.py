"""Accounts: sign in and out, who the caller is, who did what, users and their tokens."""

import hashlib
from functools import partial
from typing import Annotated

import msgspec

from loopwright.errors import NotFound
from loopwright.model.record import JsonValue
from loopwright.operations.accounts import people as accounts
from loopwright.operations.accounts.access import NewToken, PersonRecord, Role, TokenRecord
from loopwright.operations.accounts.people import People, as_role, hashed
from loopwright.operations.api_types import (
    AuditItem,
    AuditPage,
    LinkMade,
    Me,
    Request,
    TokenItem,
    TokenList,
    TokenMade,
    UserItem,
    UserList,
)
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    HttpRoute,
    PageRequest,
    operation,
    page_of,
)
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
    "access.me", "query", "viewer", "The authenticated user", http=HttpRoute("GET", f"{BASE}/me")
)
async def me(_app: App, caller: Caller, _request: ShowCaller) -> Me:
    """Who calls, with which role."""
    return Me(name=caller.name, role=caller.role)


@operation(
    "access.audit",
    "query",
    "admin",
    "Who did what, newest first",
    http=HttpRoute("GET", f"{BASE}/audit", schema="AuditQuery"),
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
    "command",
    "open",
    "Sign in; the answer sets a cookie",
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
    "command",
    "viewer",
    "Sign out",
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
    "command",
    "open",
    "Create an account, or set its password, with a one-time link",
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


TOKENS = "/api/v1/tokens"
FAMILY = "access"


class AddToken(Request):
    """A new token, for oneself; at most with one's own role. Made with a token it lives no longer
    than that one and ends with it.
    """

    label: str
    role: str | None = None
    days: Annotated[int, msgspec.Meta(ge=1, le=3_650)] | None = 90


class AddTokenForUser(Request):
    """A new token for a user, or for a program."""

    label: str
    role: str
    days: int
    user: str = ""


class TokenReference(Request):
    """A token, by its id."""

    token: str


@operation(
    "tokens.list",
    "query",
    "viewer",
    "Tokens of the caller; an admin sees all",
    http=HttpRoute("GET", TOKENS),
    family=FAMILY,
)
async def list_tokens(app: App, caller: Caller, request: PageRequest) -> TokenList:
    """A page of the tokens that the caller may see."""
    page = page_of(
        app.cursors,
        "tokens",
        _visible(app, caller),
        lambda one: one.id,
        limit=request.limit,
        cursor=request.cursor,
    )
    return TokenList(tokens=[_item(one) for one in page.entries], next=page.next)


@operation(
    "tokens.add",
    "command",
    "viewer",
    "Add a token for the caller; its text is shown once",
    http=HttpRoute("POST", TOKENS, status=201, schema="TokenBody"),
    audit=("token.created",),
    draining="serve",
    repeatable=False,
    family=FAMILY,
)
async def add_token(app: App, caller: Caller, request: AddToken) -> TokenMade:
    """Create a token, at most with the role of the caller."""
    role = caller.role if request.role is None else as_role(request.role)
    caller.check(role)
    made = _created(app, caller, request, role)
    return TokenMade(**msgspec.structs.asdict(_item(made.token)), token=made.text)


def _created(app: App, caller: Caller, request: AddToken, role: Role) -> NewToken:
    access, who = app.access(), caller.principal
    if who is not None and who.by == "token":
        return access.child_token(request.label, role, of=who, days=request.days)
    person = who.person if who is not None else ""
    return People(access).new_token(
        request.label, role, by=caller.name, person=person, days=request.days
    )


@operation(
    "tokens.add_for_user",
    "command",
    "admin",
    "Add a token for a user; its text is shown once",
    audit=("token.created",),
    draining="serve",
    repeatable=False,
    family=FAMILY,
)
async def add_for_user(app: App, caller: Caller, request: AddTokenForUser) -> TokenMade:
    """Create a token that acts as a user, with at most their role."""
    made = People(app.access()).new_token(
        request.label, as_role(request.role), by=caller.name, person=request.user, days=request.days
    )
    return TokenMade(**msgspec.structs.asdict(_item(made.token)), token=made.text)


@operation(
    "tokens.revoke",
    "command",
    "viewer",
    "End a token",
    http=HttpRoute("DELETE", f"{TOKENS}/{{token}}"),
    audit=("token.revoked",),
    draining="serve",
    family=FAMILY,
)
async def revoke_token(app: App, caller: Caller, request: TokenReference) -> TokenItem:
    """Revoke a token that the caller may see, and all that were created with it."""
    if request.token not in [one.id for one in _visible(app, caller)]:
        hint = "`loopwright token ls` lists them"
        raise NotFound(f"no token {request.token[:80]!a}", hint=hint)
    return _item(app.access().revoke(request.token, by=caller.name))


def _visible(app: App, caller: Caller) -> list[TokenRecord]:
    """The tokens of the caller; all for an admin."""
    if caller.principal is None or caller.principal.may("admin"):
        caller.check("admin")
        return app.access().tokens()
    return app.access().tokens_of(caller.principal)


def _item(token: TokenRecord) -> TokenItem:
    return TokenItem(
        id=token.id,
        label=token.label,
        role=token.role,
        person=token.person or None,
        parent=token.parent or None,
        created_at=timestamp(token.created_at),
        expires_at=None if token.expires_at is None else timestamp(token.expires_at),
        revoked_at=None if token.revoked_at is None else timestamp(token.revoked_at),
    )


USERS = "/api/v1/users"


class AddUser(Request):
    """A new account."""

    free = ("password",)

    name: str
    role: str = "viewer"
    password: str | None = None


class ChangeUser(Request):
    """What changes of an account."""

    free = ("password",)

    name: str
    role: str | None = None
    active: bool | None = None
    password: str | None = None


class UserReference(Request):
    """An account, by its name."""

    name: str


@operation(
    "users.list",
    "query",
    "admin",
    "People with accounts",
    http=HttpRoute("GET", USERS),
    family=FAMILY,
)
async def list_users(app: App, _caller: Caller, request: PageRequest) -> UserList:
    """A page of the accounts, by name."""
    page = page_of(
        app.cursors,
        "users",
        _people(app).all(),
        lambda one: one.name,
        limit=request.limit,
        cursor=request.cursor,
    )
    return UserList(users=[_user_item(one) for one in page.entries], next=page.next)


@operation(
    "users.add",
    "command",
    "admin",
    "Create an account",
    http=HttpRoute("POST", USERS, status=201, schema="UserBody"),
    audit=("user.added",),
    draining="serve",
    repeatable=False,
    family=FAMILY,
)
async def add_user(app: App, caller: Caller, request: AddUser) -> UserItem:
    """Create an account. Without a password it is for tokens, or for a link that sets one."""
    role = as_role(request.role)
    password = await app.run_slowly(partial(hashed, request.password)) if request.password else None
    return _user_item(_people(app).add(request.name, role, by=caller.name, password=password))


@operation(
    "users.change",
    "command",
    "admin",
    "Change role, password or state of an account",
    http=HttpRoute("PATCH", f"{USERS}/{{name}}", schema="UserChange"),
    audit=("user.role", "user.activated", "user.deactivated", "user.password"),
    draining="serve",
    repeatable=False,
    family=FAMILY,
)
async def change_user(app: App, caller: Caller, request: ChangeUser) -> UserItem:
    """Change an account; what is not given stays as it is."""
    role = None if request.role is None else as_role(request.role)
    password = None
    if request.password is not None:
        password = await app.run_slowly(partial(hashed, request.password))
    person = _people(app).change(
        request.name, by=caller.name, role=role, active=request.active, password=password
    )
    return _user_item(person)


@operation(
    "users.remove",
    "command",
    "admin",
    "Remove an account, with its sessions and tokens",
    http=HttpRoute("DELETE", f"{USERS}/{{name}}", status=204),
    audit=("user.removed",),
    draining="serve",
    family=FAMILY,
)
async def remove_user(app: App, caller: Caller, request: UserReference) -> None:
    """Remove an account with everything that signs in to it."""
    _people(app).remove(request.name, by=caller.name)


@operation(
    "users.link",
    "command",
    "admin",
    "A one-time link that sets a password",
    http=HttpRoute("POST", f"{USERS}/{{name}}/link", status=201),
    audit=("user.link",),
    draining="serve",
    repeatable=False,
    family=FAMILY,
)
async def link(app: App, caller: Caller, request: UserReference) -> LinkMade:
    """Create a link with which a user sets a new password."""
    code = _people(app).link("viewer", by=caller.name, person=request.name)
    return LinkMade(link=f"{app.base_url()}/setup#{code}")


def _people(app: App) -> People:
    return People(app.access())


def _user_item(person: PersonRecord) -> UserItem:
    return UserItem(
        name=person.name,
        role=person.role,
        active=person.active,
        created_at=timestamp(person.created_at),
    )


OPERATIONS = (
    *(me, audit, sign_in, sign_out, set_up),
    *(list_users, add_user, change_user, remove_user, link),
    *(list_tokens, add_token, add_for_user, revoke_token),
)
