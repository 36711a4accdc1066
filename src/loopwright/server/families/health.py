"""Whether the server lives and is ready, which version it is, and what it serves."""

from starlette.responses import Response

from loopwright import __version__
from loopwright.app.moments import timestamp
from loopwright.app.pulse import LOOPS, TASKS, fingerprint
from loopwright.errors import StorageError
from loopwright.model.record import JsonValue
from loopwright.ports import OPEN_STATUSES
from loopwright.server.answers import as_response
from loopwright.server.disk import WELL, Disk
from loopwright.server.metrics import MEDIA
from loopwright.server.routes import Answer, Asked, Family, Route
from loopwright.server.shapes import Health, LoopHealth, Version

API = 1


def _parts(asked: Asked) -> dict[str, str]:
    """How each part is, in a word; the reasons are for the log, not for strangers."""
    context = asked.context
    try:
        context.service.rows(limit=1)
        database = "ok"
    except StorageError as error:
        database = error.code
    return {"database": database, "server": "draining" if context.closing.is_set() else "ok"}


async def healthz(asked: Asked) -> Answer:
    parts = _parts(asked)
    well = parts["database"] == "ok"
    return _told("ok" if well else "ill", parts, well=well)


async def readyz(asked: Asked) -> Answer:
    parts, now = _parts(asked), asked.context.clock.now_ms()
    if not all(asked.context.pulse.is_ready(name, now) for name in (TASKS, LOOPS)):
        parts["managers"] = "stale"
    await _add_disk(asked, parts)
    ready = all(one == "ok" for one in parts.values())
    return _told("ready" if ready else "not ready", parts, well=ready)


async def _add_disk(asked: Asked, parts: dict[str, str]) -> None:
    """A disk that takes no writes, where it does not."""
    state = await asked.context.part(Disk).state()
    if state != WELL:
        parts["disk"] = state


def _told(status: str, parts: dict[str, str], *, well: bool) -> Answer:
    response = as_response({"status": status, "parts": parts}, 200 if well else 503)
    if not well:
        response.headers["Retry-After"] = "5"
    return response


async def loop_health(asked: Asked) -> Answer:
    """For whoever is about to start a loop: whether it would move, and whether it is this home."""
    context, now = asked.context, asked.context.clock.now_ms()
    parts, pulse = _parts(asked), context.pulse
    await _add_disk(asked, parts)
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


async def version(_asked: Asked) -> Answer:
    return Version(version=__version__, api=API)


async def metrics(asked: Asked) -> Answer:
    context = asked.context
    rows = context.here.log.rows(statuses=OPEN_STATUSES)
    text = context.metrics.text(context.service, open_rows=rows, listeners=context.feed.listeners)
    return Response(text, media_type=MEDIA)


async def openapi(asked: Asked) -> Answer:
    return asked.context.described


FAMILY = Family(
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
