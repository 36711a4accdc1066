"""Sign-in, and the setup page behind a one-time link.

The code of the link is in the fragment of the address (`#`), which browsers do not send and
logs do not contain.
"""

from starlette.responses import Response

from loopwright.http.clients import DEVICE_COOKIE, device_cookie, expired_cookie, session_cookie
from loopwright.http.password_hashes import Hashing
from loopwright.http.rate_limits import SignInAttempt, client_address
from loopwright.http.requests import (
    Answer,
    Body,
    Route,
    RouteFamily,
    RouteRequest,
)
from loopwright.http.responses import as_response
from loopwright.model.record import JsonValue
from loopwright.operations.accounts import people as passwords
from loopwright.operations.accounts.people import Hashed
from loopwright.operations.response_types import (
    Me,
)

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


async def _hashed(asked: RouteRequest, password: str) -> Hashed:
    return await asked.context.part(Hashing).do(lambda: passwords.hashed(password))


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
