"""Tokens: list one's own, create one, and revoke one."""

from typing import Annotated

import msgspec

from loopwright.errors import NotFound
from loopwright.operations.accounts.access import NewToken, Role, TokenRecord
from loopwright.operations.accounts.people import People, as_role
from loopwright.operations.request_types import Request
from loopwright.operations.response_types import TokenItem, TokenList, TokenMade
from loopwright.operations.use_cases.operation import App, Caller, HttpRoute, PageRequest, operation
from loopwright.operations.use_cases.pages import page_of
from loopwright.views.event_records import timestamp

BASE = "/api/v1/tokens"
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
    kind="query",
    role="viewer",
    summary="One's own tokens; an admin sees all",
    request=PageRequest,
    response=TokenList,
    http=HttpRoute(method="GET", path=BASE),
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
    kind="command",
    role="viewer",
    summary="Add a token for oneself; its text is shown once",
    request=AddToken,
    response=TokenMade,
    http=HttpRoute(method="POST", path=BASE, status=201, schema="TokenBody"),
    audit=("token.created",),
    draining="serve",
    repeatable=False,
    family=FAMILY,
)
async def add(app: App, caller: Caller, request: AddToken) -> TokenMade:
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
    kind="command",
    role="admin",
    summary="Add a token for a user; its text is shown once",
    request=AddTokenForUser,
    response=TokenMade,
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
    kind="command",
    role="viewer",
    summary="End a token",
    request=TokenReference,
    response=TokenItem,
    http=HttpRoute(method="DELETE", path=f"{BASE}/{{token}}"),
    audit=("token.revoked",),
    draining="serve",
    family=FAMILY,
)
async def revoke(app: App, caller: Caller, request: TokenReference) -> TokenItem:
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


OPERATIONS = (list_tokens, add, add_for_user, revoke)
