"""The start page, health, readiness, version, metrics and the OpenAPI description.

A server that can read but not write is not ready, because runs started there would not move. So
writes to the disk of the data directory are tried from time to time, not at every request.
"""

import asyncio
import base64
import hashlib
import os
from pathlib import Path

import msgspec
from starlette.responses import Response

from loopwright import __version__
from loopwright.errors import StorageError
from loopwright.http.context import MEDIA, Context
from loopwright.http.requests import Answer, Route, RouteFamily, RouteRequest
from loopwright.http.responses import as_response
from loopwright.model.record import JsonValue
from loopwright.operations.api_types import Health, LoopHealth, Version
from loopwright.operations.preflight import LOOPS, TASKS, fingerprint
from loopwright.operations.settings_files import unusable
from loopwright.ports import OPEN_STATUSES
from loopwright.views.event_records import timestamp

PROBE = "disk.probe"
PROBE_BYTES = 65_536  # a commit or two
KEPT_MS = 5_000
SECONDS = 2.0
WELL, SLOW = "ok", "slow"


class Disk:
    """One for a server. Who asks gets what was found in the last seconds, or waits for a try."""

    def __init__(self, context: Context) -> None:
        self._home = context.settings.home
        self._clock = context.clock
        self._found = WELL
        self._until = 0
        self._trying: asyncio.Future[str] | None = None

    async def state(self) -> str:
        """`ok`, or in a word why nothing can be written."""
        if self._trying is None and self._clock.now_ms() < self._until:
            return self._found
        if self._trying is None:  # else one hangs there, and a second would hang too
            self._trying = asyncio.ensure_future(asyncio.to_thread(tried, self._home))
            self._trying.add_done_callback(self._ended)
        done, _ = await asyncio.wait([self._trying], timeout=SECONDS)
        return self._found if done else SLOW

    def _ended(self, trying: "asyncio.Future[str]") -> None:
        self._trying = None
        if not trying.cancelled():
            self._found = trying.result()
            self._until = self._clock.now_ms() + KEPT_MS


def tried(home: Path) -> str:
    """Write a little, and take it away again."""
    place = home / PROBE
    try:
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, bytes(PROBE_BYTES))
            os.fsync(handle)
        finally:
            os.close(handle)
        place.unlink()
    except OSError as error:
        return unusable(home, error).code
    return WELL


API = 1


def _parts(request: RouteRequest) -> dict[str, str]:
    """How each part is, in a word; the reasons are for the log, not for strangers."""
    context = request.context
    try:
        context.service.rows(limit=1)
        database = "ok"
    except StorageError as error:
        database = error.code
    return {"database": database, "server": "draining" if context.closing.is_set() else "ok"}


async def healthz(request: RouteRequest) -> Answer:
    parts = _parts(request)
    well = parts["database"] == "ok"
    return _told("ok" if well else "ill", parts, well=well)


async def readyz(request: RouteRequest) -> Answer:
    parts, now = _parts(request), request.context.clock.now_ms()
    if not all(request.context.pulse.is_ready(name, now) for name in (TASKS, LOOPS)):
        parts["managers"] = "stale"
    await _add_disk(request, parts)
    ready = all(one == "ok" for one in parts.values())
    return _told("ready" if ready else "not ready", parts, well=ready)


async def _add_disk(request: RouteRequest, parts: dict[str, str]) -> None:
    """The disk, if it cannot be written to."""
    state = await request.context.part(Disk).state()
    if state != WELL:
        parts["disk"] = state


def _told(status: str, parts: dict[str, str], *, well: bool) -> Answer:
    response = as_response({"status": status, "parts": parts}, 200 if well else 503)
    if not well:
        response.headers["Retry-After"] = "5"
    return response


async def loop_health(request: RouteRequest) -> Answer:
    """For a client that is about to start a loop: whether the loop would run, and whether this is
    its data directory.
    """
    context, now = request.context, request.context.clock.now_ms()
    parts, pulse = _parts(request), context.pulse
    await _add_disk(request, parts)
    managers: dict[str, dict[str, JsonValue]] = {}
    for name in (TASKS, LOOPS):
        last = pulse.beats.get(name)
        managers[name] = {
            "available": True,
            "ready": pulse.is_ready(name, now),
            "last_tick_at": None if last is None else timestamp(last),
        }
    managers[LOOPS]["last_reconcile_at"] = managers[LOOPS]["last_tick_at"]
    return {
        "status": "ok" if all(one == "ok" for one in parts.values()) else "ill",
        "version": __version__,
        "uptime_seconds": (now - pulse.began) / 1_000,
        "workspace_id": fingerprint(context.serving.workspace),
        "database_id": fingerprint(context.settings.home),
        "managers": managers,
    }


async def version(_request: RouteRequest) -> Answer:
    return Version(version=__version__, api=API)


async def metrics(request: RouteRequest) -> Answer:
    context = request.context
    rows = context.here.log.rows(statuses=OPEN_STATUSES)
    text = context.metrics.text(context.service, open_rows=rows, listeners=context.feed.readers)
    return Response(text, media_type=MEDIA)


async def openapi(request: RouteRequest) -> Answer:
    return request.context.described


FAMILY = RouteFamily(
    name="health",
    prefix="/",
    routes=(
        Route(
            method="GET",
            path="/healthz",
            handle=healthz,
            need="open",
            say="Whether the server lives, part by part",
            answer=Health,
            also=(503,),
        ),
        Route(
            method="GET",
            path="/readyz",
            handle=readyz,
            need="open",
            say="Whether the server takes work",
            answer=Health,
            also=(503,),
        ),
        Route(
            method="GET",
            path="/api/v1/health",
            handle=loop_health,
            need="open",
            say="Whether a loop that is started now will move",
            answer=LoopHealth,
        ),
        Route(
            method="GET",
            path="/api/version",
            handle=version,
            need="open",
            say="The version of the server and of its API",
            answer=Version,
        ),
        Route(
            method="GET",
            path="/metrics",
            handle=metrics,
            need="viewer",
            say="Figures for Prometheus",
            answer=str,
            media="text/plain",
        ),
        Route(
            method="GET",
            path="/openapi.json",
            handle=openapi,
            need="viewer",
            say="This description",
            answer=dict[str, JsonValue],
        ),
    ),
)


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
<li><a href="/openapi.json">/openapi.json</a>: every route, for signed-in users</li>
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
    """What this server is, and where to continue."""

    name: str
    version: str
    api: int
    description: str
    health: str
    sign_in: str


async def front(request: RouteRequest) -> Answer:
    """Browsers name HTML among what they take; programs do not."""
    if HTML in request.request.headers.get("accept", "").lower():
        response = Response(PAGE, media_type=HTML)
        response.headers["Content-Security-Policy"] = POLICY
    else:
        answer = Front(
            name="loopwright",
            version=__version__,
            api=API,
            description="/openapi.json",
            health="/healthz",
            sign_in="POST /api/v1/session, or Authorization: Bearer TOKEN",
        )
        response = as_response(answer, 200)
    response.headers["Vary"] = "Accept"
    return response


START_PAGE_FAMILY = RouteFamily(
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
