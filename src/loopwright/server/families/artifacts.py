"""Artifacts of runs and of sessions: listed, given as files or archives, read in parts."""

import asyncio
from collections.abc import Iterator
from typing import Annotated

import msgspec

from loopwright.app.given import UPLOAD_BYTES, Given, Where, told
from loopwright.app.uploads import File, Uploads, saved_name
from loopwright.server.coming_shapes import ArtifactList, ArtifactVersions
from loopwright.server.context import Context
from loopwright.server.ranges import Conditions, part_of
from loopwright.server.refusals import Refusal
from loopwright.server.routes import Answer, Asked, Family, Query, Route

RUNS, SESSIONS = "/api/v1/runs/{run}", "/api/v1/sessions/{session}"
UPLOAD_SECONDS = 120.0
BYTES = "application/octet-stream"


class UploadQuery(Query):
    """What the file is called; of an archive, whether its files are taken one by one."""

    name: Annotated[str, msgspec.Meta(max_length=8_000)] = ""
    unpack: bool = False


class ContentQuery(Query):
    """Which version; without a number the newest."""

    version: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)] | None = None


def given_of(context: Context) -> Given:
    here = context.here
    uploads = Uploads(home=context.settings.home, trackers=here.trackers, clock=context.clock)
    return Given(log=here.log, desks=here.desks, uploads=uploads, access=context.access)


def _where(asked: Asked) -> tuple[Given, Where]:
    given = given_of(asked.context)
    if "run" in asked.params:
        return given, given.of_run(asked.params["run"])
    return given, given.of_session(asked.params["session"])


async def listed(asked: Asked) -> Answer:
    given, where = _where(asked)
    return {"artifacts": [told(one) for one in given.all(where)]}


async def uploaded(asked: Asked) -> Answer:
    (given, where), query = _where(asked), asked.query(UploadQuery)
    files = given.uploads
    if not asked.raw:
        raise Refusal(422, "empty-upload", "there is nothing in it")

    def keep() -> list[File]:
        return files.keep_all(asked.raw) if query.unpack else [files.keep(query.name, asked.raw)]

    kept = await asyncio.to_thread(keep)
    added = given.added(where, kept, by=asked.who.name)
    items = await files.enter_aside(where.scope, kept, added)
    if not await asyncio.to_thread(files.are_there, kept):
        await asyncio.to_thread(keep)  # they were taken away with another artifact meanwhile
    return await asyncio.to_thread(lambda: {"artifacts": [told(one) for one in items]})


async def removed(asked: Asked) -> Answer:
    given, where = _where(asked)
    await given.remove_aside(where, asked.params["artifact"], by=asked.who.name)
    return None


async def shown(asked: Asked) -> Answer:
    given, where = _where(asked)
    versions = given.versions(where, asked.params["artifact"])
    return {**told(versions[-1]), "versions": [told(one) for one in versions]}


async def content(asked: Asked) -> Answer:
    given, where = _where(asked)
    item = given.version(where, asked.params["artifact"], asked.query(ContentQuery).version)
    data, digest = await asyncio.to_thread(given.content, item)
    headers = asked.request.headers
    wishes = Conditions(headers.get("range"), headers.get("if-range"), headers.get("if-none-match"))
    response = part_of(data, digest, wishes)
    response.headers["Content-Type"] = BYTES  # whatever it is, no browser opens it by itself
    response.headers["Content-Disposition"] = f'attachment; filename="{saved_name(item)}"'
    response.headers["Content-Security-Policy"] = "sandbox; default-src 'none'"
    return response


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
