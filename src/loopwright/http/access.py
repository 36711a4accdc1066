"""Sign-in, and pages behind one-time links: the setup page, and one that answers a gate, once,
without an account. Opening a page decides nothing.

The code of a link is in the fragment of the address (`#`), which browsers do not send and
logs do not contain.
"""

from typing import Annotated, Literal

import msgspec
from starlette.responses import Response

from loopwright.errors import Conflict
from loopwright.http.clients import DEVICE_COOKIE, device_cookie, expired_cookie, session_cookie
from loopwright.http.context import Context, SignInAttempt, client_address
from loopwright.http.operation_routes import app_of, body_type, caller_from, request_of
from loopwright.http.requests import (
    Answer,
    Body,
    Route,
    RouteFamily,
    RouteRequest,
)
from loopwright.http.responses import as_response
from loopwright.operations.accounts.access import Rates
from loopwright.operations.api_types import (
    LinkAnswer,
    Me,
)
from loopwright.operations.use_cases import accounts
from loopwright.views.formats import reveal
from loopwright.workers.notifiers import GateLinks

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
            say="Create an account, or set its password, with a one-time link",
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


def page_routes(path: str, html: str, script: str, say: str) -> tuple[Route, Route]:
    """The routes of a page that anybody may open, and of its script."""

    async def page(_request: RouteRequest) -> Answer:
        return Response(html, media_type="text/html")

    async def page_script(_request: RouteRequest) -> Answer:
        return Response(script, media_type="text/javascript")

    return (
        Route(
            method="GET",
            path=path,
            handle=page,
            need="open",
            say=say,
            answer=str,
            media="text/html",
        ),
        Route(
            method="GET",
            path=f"{path}.js",
            handle=page_script,
            need="open",
            say="The script of that page",
            answer=str,
            media="text/javascript",
        ),
    )


SETUP_FAMILY = RouteFamily(
    name="setup",
    prefix="/setup",
    routes=page_routes("/setup", PAGE, SCRIPT, "The page behind a one-time link"),
)


LINKS_BASE = "/api/v1/links"
PER_SECOND = 20  # for each address
LINK_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Loopwright: a decision</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid; padding: .5rem }
textarea { display: block; width: 100%; box-sizing: border-box }
</style>
<h1>A decision</h1>
<p id="result" role="status"></p>
<pre id="question"></pre>
<form id="form" hidden>
<label>Words to go with it <textarea name="text" maxlength="10000"></textarea></label>
<button value="approve">Approve</button> <button value="reject">Reject</button>
</form>
<script src="/decide.js"></script>
</html>
"""
LINK_SCRIPT = """
const result = document.getElementById("result"), form = document.getElementById("form");
async function say(decision, text) {
  const reply = await fetch("/api/v1/links", {
    method: "POST",
    headers: {"Content-Type": "application/json"},
    body: JSON.stringify({code: location.hash.slice(1), decision, text}),
  });
  const answer = await reply.json();
  const words = decision === "look" ? `${answer.name} asks:` : `Done: ${decision}.`;
  result.textContent = reply.ok ? words : answer.detail;
  form.hidden = !reply.ok || decision !== "look";
  if (reply.ok) document.getElementById("question").textContent = answer.shown.join("\\n");
}
form.addEventListener("submit", (event) => {
  event.preventDefault();
  say(event.submitter.value, new FormData(form).get("text"));
});
say("look", "");
"""


class LinkBody(Body):
    """The code of a link, and what is decided; `look` decides nothing."""

    code: Annotated[str, msgspec.Meta(max_length=200)]
    decision: Literal["look", "approve", "reject"] = "look"
    text: Annotated[str, msgspec.Meta(max_length=10_000)] = ""


def links_of(context: Context) -> GateLinks:
    return GateLinks(context.records, context.clock)


def _rates(context: Context) -> Rates:
    return Rates(context.clock, PER_SECOND)


async def answered(request: RouteRequest) -> Answer:
    context, body = request.context, request.body(LinkBody)
    peer = request.request.client.host if request.request.client else ""
    context.part(_rates).count(peer)
    links = links_of(context)
    link = links.look(body.code)
    if body.decision != "look":
        run = await links.answer(context.part(app_of), body.code, body.decision, body.text)
        name = context.here.log.row(run).headline.name
        return {"run": run, "name": name, "decision": body.decision, "shown": []}
    for item in context.service.inbox(context.here.log.gates(link.run)):
        if item.id == link.gate and item.digest == link.digest:
            shown = item.shown or reveal(item.message)
            return {"run": link.run, "name": item.name, "decision": None, "shown": shown}
    raise Conflict("this was decided already, or is not asked any more", code="no-longer-waiting")


LINKS_FAMILY = RouteFamily(
    name="links",
    prefix=LINKS_BASE,
    routes=(
        *page_routes(
            "/decide", LINK_PAGE, LINK_SCRIPT, "The page behind a link that answers a gate"
        ),
        Route(
            method="POST",
            path=LINKS_BASE,
            handle=answered,
            need="open",
            say="Look at the gate of a link, or answer it, once",
            body=LinkBody,
            answer=LinkAnswer,
            repeatable=False,
        ),
    ),
)
