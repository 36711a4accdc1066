"""Artifacts of runs and of sessions: listed, given as files or archives, read in parts."""

import asyncio
from collections.abc import Iterator
from typing import Annotated

import msgspec

from loopwright.app.moments import timestamp
from loopwright.app.uploads import File, Uploads, artifact_item, not_given, saved_name
from loopwright.errors import NotFound
from loopwright.model.record import JsonValue
from loopwright.model.trackers import Item
from loopwright.server.coming_shapes import ArtifactList, ArtifactVersions
from loopwright.server.context import Context
from loopwright.server.families.loops import sessions_of
from loopwright.server.ranges import Conditions, part_of
from loopwright.server.refusals import Refusal
from loopwright.server.routes import Answer, Asked, Family, Query, Route

RUNS, SESSIONS = "/api/v1/runs/{run}", "/api/v1/sessions/{session}"
UPLOAD_BYTES = 64_000_000
UPLOAD_SECONDS = 120.0
BYTES = "application/octet-stream"


class UploadQuery(Query):
    """What the file is called; of an archive, whether its files are taken one by one."""

    name: Annotated[str, msgspec.Meta(max_length=8_000)] = ""
    unpack: bool = False


class ContentQuery(Query):
    """Which version; without a number the newest."""

    version: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)] | None = None


def uploads_of(context: Context) -> Uploads:
    here = context.here
    return Uploads(home=context.settings.home, trackers=here.trackers, clock=context.clock)


def _scope(asked: Asked) -> tuple[str, str | None]:
    """Whose artifacts are meant: those of the session of a run, or of a run alone."""
    run = asked.params.get("run")
    if run is None:
        return sessions_of(asked.context).get(asked.params["session"]).id, None
    return asked.context.here.log.row(run).headline.session or run, run


def _all(asked: Asked) -> list[Item]:
    scope, run = _scope(asked)
    here = asked.context.here
    made = here.desks.made(scope, "artifact", run=run)
    return [*made, *here.trackers.all(scope, "artifact")]


async def listed(asked: Asked) -> Answer:
    return {"artifacts": [_told(one) for one in _all(asked)]}


async def uploaded(asked: Asked) -> Answer:
    scope, _ = _scope(asked)
    query, files = asked.query(UploadQuery), uploads_of(asked.context)
    if not asked.raw:
        raise Refusal(422, "empty-upload", "there is nothing in it")

    def keep() -> list[File]:
        return files.keep_all(asked.raw) if query.unpack else [files.keep(query.name, asked.raw)]

    kept = await asyncio.to_thread(keep)
    items = await files.enter_aside(scope, kept, by=asked.who.name)
    if not await asyncio.to_thread(files.are_there, kept):
        await asyncio.to_thread(keep)  # they were taken away with another artifact meanwhile
    row = asked.context.access.row(asked.who.name, "artifact.added", scope, f"{len(kept)} files")
    asked.context.cards.change(audit=[row])
    return await asyncio.to_thread(lambda: {"artifacts": [_told(one) for one in items]})


async def removed(asked: Asked) -> Answer:
    """Everything of it goes at once: whoever gave a secret by mistake must be able to take it."""
    scope, name = _scope(asked)[0], asked.params["artifact"]
    made = asked.context.here.trackers.get(scope, "artifact", name) is None
    if made and any(one.id == name for one in _all(asked)):
        raise not_given(name)
    item = uploads_of(asked.context).remove(scope, name)
    about = f"{item.text('title')} of {scope}"
    row = asked.context.access.row(asked.who.name, "artifact.removed", name, about)
    asked.context.cards.change(audit=[row])
    return None


async def shown(asked: Asked) -> Answer:
    versions = _versions(asked)
    return {**_told(versions[-1]), "versions": [_told(one) for one in versions]}


async def content(asked: Asked) -> Answer:
    wanted = asked.query(ContentQuery).version
    versions = _versions(asked)
    found = [one for one in versions if wanted in (None, one.version)]
    if not found:
        raise NotFound(f"no version {wanted} of this artifact")
    data, digest = await asyncio.to_thread(uploads_of(asked.context).content, found[-1])
    given = asked.request.headers
    wishes = Conditions(given.get("range"), given.get("if-range"), given.get("if-none-match"))
    response = part_of(data, digest, wishes)
    response.headers["Content-Type"] = BYTES  # whatever it is, no browser opens it by itself
    name = saved_name(found[-1])
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    response.headers["Content-Security-Policy"] = "sandbox; default-src 'none'"
    return response


def _versions(asked: Asked) -> list[Item]:
    name = asked.params["artifact"]
    kept = asked.context.here.trackers.versions(_scope(asked)[0], "artifact", name)
    found = kept or [one for one in _all(asked) if one.id == name]
    if not found:
        raise NotFound(f"no artifact {name[:80]!a}")
    return found


def _told(item: Item) -> dict[str, JsonValue]:
    return {**artifact_item(item), "at": timestamp(item.at)}


def _routes() -> Iterator[Route]:
    for base in (RUNS, SESSIONS):
        yield Route(
            method="GET",
            path=f"{base}/artifacts",
            handle=listed,
            need="viewer",
            say="What was made or given, the oldest first",
            answer=ArtifactList,
        )
        yield Route(
            method="POST",
            path=f"{base}/artifacts",
            handle=uploaded,
            need="editor",
            say="Give a file, or with `unpack` the files of a zip or tar; the same name again is "
            "the next version",
            query=UploadQuery,
            takes=BYTES,
            answer=ArtifactList,
            status=201,
            body_bytes=UPLOAD_BYTES,
            body_seconds=UPLOAD_SECONDS,
        )
        yield Route(
            method="GET",
            path=f"{base}/artifacts/{{artifact}}",
            handle=shown,
            need="viewer",
            say="One artifact, with all its versions",
            answer=ArtifactVersions,
        )
        yield Route(
            method="DELETE",
            path=f"{base}/artifacts/{{artifact}}",
            handle=removed,
            need="editor",
            say="Take away a file that was given, with all its versions",
            status=204,
        )
        yield Route(
            method="GET",
            path=f"{base}/artifacts/{{artifact}}/content",
            handle=content,
            need="viewer",
            say="Its bytes, whole or in parts",
            query=ContentQuery,
            media=BYTES,
        )


FAMILY = Family(name="artifacts", prefix="/api/v1/artifacts", routes=tuple(_routes()))
