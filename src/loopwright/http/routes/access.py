"""Sign-in, and the setup page behind a one-time link.

The code of the link is in the fragment of the address (`#`), which browsers do not send and
logs do not contain.
"""

from starlette.responses import Response

from loopwright.http.clients import DEVICE_COOKIE, device_cookie, expired_cookie, session_cookie
from loopwright.http.operation_routes import app_of, body_type, caller_from, request_of
from loopwright.http.rate_limits import SignInAttempt, client_address
from loopwright.http.requests import (
    Answer,
    Route,
    RouteFamily,
    RouteRequest,
)
from loopwright.http.responses import as_response
from loopwright.operations.api_types import (
    Me,
)
from loopwright.operations.use_cases import accounts

BASE = "/api/v1"
SETUP = "(setup)"  # counts attempts with one-time links, which have no name
SIGN_IN_BYTES = 16_384


SIGN_IN_BODY = body_type(accounts.SignIn, "SignInBody")
SETUP_BODY = body_type(accounts.SetUpAccount, "SetupBody")


async def sign_in(route_request: RouteRequest) -> Answer:
    body, context = route_request.body(SIGN_IN_BODY), route_request.context
    request = request_of(accounts.sign_in, body, {})
    attempt = _attempt(route_request, request.name)
    context.sign_ins.count(attempt)
    signed = await accounts.sign_in(context.part(app_of), caller_from(route_request), request)
    response = as_response(Me(name=signed.name, role=signed.role), 200)
    device_cookie(context.serving, response, context.sign_ins.remember(attempt))
    session_cookie(context.serving, response, signed.secret)
    return response


def _attempt(route_request: RouteRequest, name: str) -> SignInAttempt:
    request, proxies = route_request.request, route_request.context.serving.trusted_proxies
    address = client_address(request.scope, proxies)
    return SignInAttempt(address, name, request.cookies.get(DEVICE_COOKIE, ""))


async def sign_out(request: RouteRequest) -> Answer:
    caller = caller_from(request)
    await accounts.sign_out(request.context.part(app_of), caller, accounts.ShowCaller())
    response = Response(status_code=204)
    expired_cookie(request.context.serving, response)
    return response


async def setup(route_request: RouteRequest) -> Answer:
    body, context = route_request.body(SETUP_BODY), route_request.context
    context.sign_ins.count(_attempt(route_request, SETUP))
    request = request_of(accounts.set_up, body, {})
    return await accounts.set_up(context.part(app_of), caller_from(route_request), request)


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
            body=SIGN_IN_BODY,
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
            body=SETUP_BODY,
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
<p id="result" role="status"></p>
<script src="/setup.js"></script>
</html>
"""
SCRIPT = """
const result = document.getElementById("result");
document.getElementById("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = Object.fromEntries(new FormData(event.target));
  const reply = await fetch("/api/v1/setup", {
    method: "POST",
    headers: {"Content-Type": "application/json"},
    body: JSON.stringify({...given, code: location.hash.slice(1)}),
  });
  const answer = await reply.json();
  result.textContent = reply.ok ? `Done: ${answer.name} is ${answer.role}.` : answer.detail;
});
"""


async def page(_request: RouteRequest) -> Answer:
    return Response(PAGE, media_type="text/html")


async def script(_request: RouteRequest) -> Answer:
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
