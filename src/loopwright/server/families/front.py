"""What answers at `/`: a page that says what this is, or the same as JSON for programs."""

import base64
import hashlib

import msgspec
from starlette.responses import Response

from loopwright import __version__
from loopwright.server.answers import as_response
from loopwright.server.families.health import API
from loopwright.server.routes import Answer, Asked, Family, Route

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 42rem; margin: 4rem auto; padding: 0 1rem }
code, pre { font: 14px/1.5 ui-monospace, monospace; background: #8882; border-radius: .3rem }
code { padding: .1rem .3rem } pre { padding: .8rem; overflow-x: auto }
"""
PAGE = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>Loopwright</title>
<style>{STYLE}</style>
<h1>Loopwright {__version__}</h1>
<p>A server that drives agent loops and tells about them over HTTP. There is no page to work with
here: it is for the command line, for programs and for scripts.</p>
<h2>Come in</h2>
<p>The first start of the server printed a token and a link for the first admin. An admin makes
accounts and tokens for others, on this machine with <code>loopwright user add NAME</code> and
<code>loopwright token create LABEL</code>. People sign in on the command line, or with
<code>POST /api/v1/session</code> and their name and password, which sets a cookie; programs send
<code>Authorization: Bearer TOKEN</code>.</p>
<pre>loopwright login ADDRESS --name NAME
loopwright ls --server ADDRESS</pre>
<h2>Read on</h2>
<ul>
<li><a href="/openapi.json">/openapi.json</a>: every route, for whoever is signed in</li>
<li><a href="/healthz">/healthz</a>, <a href="/readyz">/readyz</a>: whether it is well</li>
<li><a href="/api/version">/api/version</a>: which version answers</li>
</ul>
</html>
"""
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HTML = "text/html"


class Front(msgspec.Struct):
    """What this is, and where to go on."""

    name: str
    version: str
    api: int
    description: str
    health: str
    sign_in: str


async def front(asked: Asked) -> Answer:
    """Browsers name HTML among what they take; programs do not."""
    if HTML in asked.request.headers.get("accept", "").lower():
        response = Response(PAGE, media_type=HTML)
        response.headers["Content-Security-Policy"] = POLICY
    else:
        told = Front(
            name="loopwright",
            version=__version__,
            api=API,
            description="/openapi.json",
            health="/healthz",
            sign_in="POST /api/v1/session, or Authorization: Bearer TOKEN",
        )
        response = as_response(told, 200)
    response.headers["Vary"] = "Accept"
    return response


FAMILY = Family(
    name="front",
    prefix="/",
    routes=(
        Route(
            method="GET",
            path="/",
            handle=front,
            need="open",
            say="What this is and how to come in; a page for browsers",
            answer=Front,
        ),
    ),
)
