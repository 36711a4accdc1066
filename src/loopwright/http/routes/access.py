"""Sign-in, people, tokens and the audit log; the setup page behind a one-time link.

The code of the link is in the fragment of the address (`#`), which browsers do not send and
logs do not contain. Passwords are hashed in threads, few at once, so that guesses cannot block
all processors.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec
from starlette.responses import Response

from loopwright.errors import NotFound
from loopwright.http.clients import DEVICE_COOKIE, device_cookie, expired_cookie, session_cookie
from loopwright.http.context import Context
from loopwright.http.rate_limits import SignInAttempt, client_address
from loopwright.http.requests import (
    Answer,
    Body,
    PageQuery,
    Route,
    RouteFamily,
    RouteRequest,
    paged,
)
from loopwright.http.responses import RequestRefusal, as_response
from loopwright.model.record import JsonValue
from loopwright.operations.accounts import people as passwords
from loopwright.operations.accounts.access import PersonRecord, TokenRecord, require
from loopwright.operations.accounts.people import Hashed, as_role
from loopwright.operations.response_types import (
    LinkMade,
    Me,
    TokenItem,
    TokenList,
    TokenMade,
    UserItem,
    UserList,
)
from loopwright.views.event_records import timestamp

AT_ONCE = 2
MOST_WAITING = 32
_Made = TypeVar("_Made")


class Hashing:
    """Does slow work, one after the other."""

    def __init__(self, _context: Context) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)
        self.inside = 0

    async def do(self, work: Callable[[], _Made]) -> _Made:
        """What comes of some work; 503 when too many wait for theirs."""
        if self.inside >= AT_ONCE + MOST_WAITING:
            raise RequestRefusal(
                503, "busy", "too many passwords are tried just now", headers={"Retry-After": "1"}
            )
        self.inside += 1
        try:
            async with self._places:
                return await asyncio.to_thread(work)
        finally:
            self.inside -= 1


BASE = "/api/v1"
SETUP = "(setup)"  # what one-time links count for in the place of a name
SIGN_IN_BYTES = 16_384


class SignInBody(Body):
    """Name and password."""

    free = ("password",)

    name: str
    password: str


class SetupBody(Body):
    """The code of a one-time link, and the account that it makes. Whatever is no code of a link is
    answered alike.
    """

    free = ("password",)

    code: JsonValue
    name: str
    password: str


class UserBody(Body):
    """A new account."""

    free = ("password",)

    name: str
    role: str = "viewer"
    password: str | None = None


class UserChange(Body):
    """What changes of an account."""

    free = ("password",)

    role: str | None = None
    active: bool | None = None
    password: str | None = None


class TokenBody(Body):
    """A new token, for oneself; at most with one's own role. Made with a token it lives no longer
    than that one and ends with it.
    """

    label: str
    role: str | None = None
    days: Annotated[int, msgspec.Meta(ge=1, le=3_650)] | None = 90


# -- coming in and going out -----------------------------------------------------------------------


async def sign_in(asked: RouteRequest) -> Answer:
    body, context = asked.body(SignInBody), asked.context
    attempt = _attempt(asked, body.name)
    context.sign_ins.count(attempt)
    kept = context.people.password_of(body.name)
    right = await context.part(Hashing).do(lambda: passwords.fits(kept, body.password))
    signed = context.people.begin(body.name, kept if right else None)
    response = as_response({"name": signed.who.name, "role": signed.who.role}, 200)
    device_cookie(context.serving, response, context.sign_ins.remember(attempt))
    session_cookie(context.serving, response, signed.secret)
    return response


def _attempt(asked: RouteRequest, name: str) -> SignInAttempt:
    request, proxies = asked.request, asked.context.serving.trusted_proxies
    address = client_address(request.scope, proxies)
    return SignInAttempt(address, name, request.cookies.get(DEVICE_COOKIE, ""))


async def sign_out(asked: RouteRequest) -> Answer:
    asked.context.people.sign_out(asked.who)
    response = Response(status_code=204)
    expired_cookie(asked.context.serving, response)
    return response


async def setup(asked: RouteRequest) -> Answer:
    body, context = asked.body(SetupBody), asked.context
    context.sign_ins.count(_attempt(asked, SETUP))
    code = body.code if isinstance(body.code, str) else ""
    context.people.check_link(code, body.name)  # before anything slow
    password = await _hashed(asked, body.password)
    person = context.people.use_link(code, body.name, password)
    return {"name": person.name, "role": person.role}


# -- people ----------------------------------------------------------------------------------------


async def users(asked: RouteRequest) -> Answer:
    page = paged(asked, "users", asked.context.people.all(), lambda one: one.name)
    return {"users": [_user(person) for person in page.entries], "next": page.next}


async def add_user(asked: RouteRequest) -> Answer:
    body = asked.body(UserBody)
    role = as_role(body.role)
    password = await _hashed(asked, body.password) if body.password else None
    person = asked.context.people.add(body.name, role, by=asked.who.name, password=password)
    return _user(person)


async def change_user(asked: RouteRequest) -> Answer:
    body, people, name = asked.body(UserChange), asked.context.people, asked.params["name"]
    by = asked.who.name
    role = None if body.role is None else as_role(body.role)
    password = None if body.password is None else await _hashed(asked, body.password)
    return _user(people.change(name, by=by, role=role, active=body.active, password=password))


async def _hashed(asked: RouteRequest, password: str) -> Hashed:
    return await asked.context.part(Hashing).do(lambda: passwords.hashed(password))


async def remove_user(asked: RouteRequest) -> Answer:
    asked.context.people.remove(asked.params["name"], by=asked.who.name)
    return None


async def user_link(asked: RouteRequest) -> Answer:
    context, name = asked.context, asked.params["name"]
    code = context.people.link("viewer", by=asked.who.name, person=name)
    return {"link": f"{context.serving.base}/setup#{code}"}


def _user(person: PersonRecord) -> dict[str, JsonValue]:
    return {
        "name": person.name,
        "role": person.role,
        "active": person.active,
        "created_at": timestamp(person.created_at),
    }


# -- tokens ----------------------------------------------------------------------------------------


async def tokens(asked: RouteRequest) -> Answer:
    """One's own; an admin sees all."""
    who = asked.who
    access = asked.context.access
    found = access.tokens() if who.may("admin") else access.tokens_of(who)
    page = paged(asked, "tokens", found, lambda one: one.id)
    return {"tokens": [_token(token) for token in page.entries], "next": page.next}


async def add_token(asked: RouteRequest) -> Answer:
    body, who, access = asked.body(TokenBody), asked.who, asked.context.access
    role = who.role if body.role is None else as_role(body.role)
    require(who, role)
    if who.by == "token":
        made = access.child_token(body.label, role, of=who, days=body.days)
    else:
        people = asked.context.people
        made = people.new_token(body.label, role, by=who.name, person=who.person, days=body.days)
    return {**_token(made.token), "token": made.text}


async def revoke_token(asked: RouteRequest) -> Answer:
    access, who, name = asked.context.access, asked.who, asked.params["token"]
    own = access.tokens() if who.may("admin") else access.tokens_of(who)
    if name not in [token.id for token in own]:
        raise NotFound(f"no token {name[:80]!a}")
    return _token(access.revoke(name, by=who.name))


def _token(token: TokenRecord) -> dict[str, JsonValue]:
    return {
        "id": token.id,
        "label": token.label,
        "role": token.role,
        "person": token.person or None,
        "parent": token.parent or None,
        "created_at": timestamp(token.created_at),
        "expires_at": None if token.expires_at is None else timestamp(token.expires_at),
        "revoked_at": None if token.revoked_at is None else timestamp(token.revoked_at),
    }


FAMILY = RouteFamily(
    name="access",
    prefix=BASE,
    routes=(
        Route(
            method="POST",
            path=f"{BASE}/session",
            handle=sign_in,
            need="open",
            say="Sign in; the answer sets a cookie",
            body=SignInBody,
            body_bytes=SIGN_IN_BYTES,
            answer=Me,
            repeatable=False,
        ),
        Route(
            method="DELETE",
            path=f"{BASE}/session",
            handle=sign_out,
            need="viewer",
            say="Sign out",
            status=204,
            repeatable=False,
        ),
        Route(
            method="POST",
            path=f"{BASE}/setup",
            handle=setup,
            need="open",
            say="Make an account, or set its password, by a one-time link",
            body=SetupBody,
            body_bytes=SIGN_IN_BYTES,
            answer=Me,
            repeatable=False,
        ),
        Route(
            method="GET",
            path=f"{BASE}/users",
            handle=users,
            need="admin",
            say="People with accounts",
            query=PageQuery,
            answer=UserList,
        ),
        Route(
            method="POST",
            path=f"{BASE}/users",
            handle=add_user,
            need="admin",
            say="Make an account",
            body=UserBody,
            answer=UserItem,
            status=201,
            repeatable=False,
        ),
        Route(
            method="PATCH",
            path=f"{BASE}/users/{{name}}",
            handle=change_user,
            need="admin",
            say="Change role, password or state of an account",
            body=UserChange,
            answer=UserItem,
            repeatable=False,
        ),
        Route(
            method="DELETE",
            path=f"{BASE}/users/{{name}}",
            handle=remove_user,
            need="admin",
            say="Take an account away, with its sessions and tokens",
            status=204,
        ),
        Route(
            method="POST",
            path=f"{BASE}/users/{{name}}/link",
            handle=user_link,
            need="admin",
            say="A one-time link that sets a password",
            answer=LinkMade,
            status=201,
            repeatable=False,
        ),
        Route(
            method="GET",
            path=f"{BASE}/tokens",
            handle=tokens,
            need="viewer",
            say="One's own tokens; an admin sees all",
            query=PageQuery,
            answer=TokenList,
        ),
        Route(
            method="POST",
            path=f"{BASE}/tokens",
            handle=add_token,
            need="viewer",
            say="Add a token for oneself; its text is shown once",
            body=TokenBody,
            answer=TokenMade,
            status=201,
            repeatable=False,
        ),
        Route(
            method="DELETE",
            path=f"{BASE}/tokens/{{token}}",
            handle=revoke_token,
            need="viewer",
            say="End a token",
            answer=TokenItem,
        ),
    ),
)


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Loopwright: your account</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 24rem; margin: 4rem auto; padding: 0 1rem }
label, input, button { display: block; width: 100%; box-sizing: border-box; margin: .4rem 0 }
</style>
<h1>Your account</h1>
<form id="form">
<label>Name <input name="name" autocomplete="username" required maxlength="63"></label>
<label>Password <input name="password" type="password" autocomplete="new-password" required
 minlength="8" maxlength="128"></label>
<button>Set it</button>
</form>
<p id="told" role="status"></p>
<script src="/setup.js"></script>
</html>
"""
SCRIPT = """
const told = document.getElementById("told");
document.getElementById("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = Object.fromEntries(new FormData(event.target));
  const reply = await fetch("/api/v1/setup", {
    method: "POST",
    headers: {"Content-Type": "application/json"},
    body: JSON.stringify({...given, code: location.hash.slice(1)}),
  });
  const answer = await reply.json();
  told.textContent = reply.ok ? `Done: ${answer.name} is ${answer.role}.` : answer.detail;
});
"""


async def page(_asked: RouteRequest) -> Answer:
    return Response(PAGE, media_type="text/html")


async def script(_asked: RouteRequest) -> Answer:
    return Response(SCRIPT, media_type="text/javascript")


SETUP_FAMILY = RouteFamily(
    name="setup",
    prefix="/setup",
    routes=(
        Route(
            method="GET",
            path="/setup",
            handle=page,
            need="open",
            say="The page behind a one-time link",
            answer=str,
            media="text/html",
        ),
        Route(
            method="GET",
            path="/setup.js",
            handle=script,
            need="open",
            say="The script of that page",
            answer=str,
            media="text/javascript",
        ),
    ),
)
