"""Links that answer one gate, once, without an account.

The code of a link is in the fragment of the address (`#`), which browsers do not send and logs
do not contain. Opening the page decides nothing.
"""

from typing import Annotated, Literal

import msgspec
from starlette.responses import Response

from loopwright.errors import Conflict
from loopwright.http.context import Context
from loopwright.http.operation_routes import app_of
from loopwright.http.requests import (
    Answer,
    Body,
    Route,
    RouteFamily,
    RouteRequest,
)
from loopwright.operations.accounts.access import Rates
from loopwright.operations.api_types import LinkAnswer
from loopwright.views.formats import reveal
from loopwright.workers.notifiers import GateLinks

LINKS_BASE = "/api/v1/links"
PER_SECOND = 20  # for each address
PAGE = """<!doctype html>
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
SCRIPT = """
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


async def page(_request: RouteRequest) -> Answer:
    return Response(PAGE, media_type="text/html")


async def script(_request: RouteRequest) -> Answer:
    return Response(SCRIPT, media_type="text/javascript")


LINKS_FAMILY = RouteFamily(
    name="links",
    prefix=LINKS_BASE,
    routes=(
        Route(
            method="GET",
            path="/decide",
            handle=page,
            need="open",
            say="The page behind a link that answers a gate",
            answer=str,
            media="text/html",
        ),
        Route(
            method="GET",
            path="/decide.js",
            handle=script,
            need="open",
            say="The script of that page",
            answer=str,
            media="text/javascript",
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
