"""Artifacts of runs and sessions: list, upload files or archives, and read, also in parts.

Ranges and conditional requests follow RFC 9110, sections 13 and 14. A condition that cannot be
parsed is ignored: the response has the whole content.
"""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import msgspec
from starlette.responses import Response

from loopwright.http.context import Context
from loopwright.http.requests import Answer, Query, Route, RouteFamily, RouteRequest
from loopwright.http.responses import RequestRefusal
from loopwright.operations.response_types import ArtifactList, ArtifactVersions
from loopwright.operations.trackers import UPLOAD_BYTES, ArtifactAccess, ArtifactScope, told
from loopwright.operations.uploads import File, Uploads, saved_name

MOST = 10  # entity tags that are looked at
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_TAG = re.compile(r'(?:W/)?"[^"\x00-\x20\x7f-\xff]*"')


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a request says about the content that it wants."""

    range: str | None
    if_range: str | None
    if_none_match: str | None


def part_of(data: bytes, tag: str, wanted: Conditions) -> Response:
    """The content, a part of it, or nothing new."""
    etag = f'"{tag}"'
    headers = {"ETag": etag, "Accept-Ranges": "bytes"}
    if wanted.if_none_match is not None and _matches(wanted.if_none_match, etag):
        return Response(status_code=304, headers=headers)
    if wanted.range is None or wanted.if_range not in (None, etag):
        return Response(data, 200, headers)
    asked = _RANGE.fullmatch(wanted.range.strip())
    if asked is None or asked[0] == "bytes=-":
        return Response(data, 200, headers)
    first, last = _places(asked[1], asked[2], len(data))
    if first > last or first >= len(data):
        raise RequestRefusal(
            416,
            "no-such-range",
            f"the content has {len(data)} bytes",
            headers={"Content-Range": f"bytes */{len(data)}", "ETag": etag},
        )
    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    return Response(data[first : last + 1], 206, headers)


def _places(first: str, last: str, size: int) -> tuple[int, int]:
    if not first:  # so many from the end
        count = int(last)
        return (max(size - count, 0), size - 1) if count else (0, -1)
    return int(first), min(int(last), size - 1) if last else size - 1


def _matches(given: str, etag: str) -> bool:
    if given.strip() == "*":
        return True
    return any(tag.removeprefix("W/") == etag for tag in _TAG.findall(given)[:MOST])


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


def given_of(context: Context) -> ArtifactAccess:
    here = context.here
    uploads = Uploads(home=context.settings.home, trackers=here.trackers, clock=context.clock)
    return ArtifactAccess(log=here.log, desks=here.desks, uploads=uploads, access=context.access)


def _where(asked: RouteRequest) -> tuple[ArtifactAccess, ArtifactScope]:
    given = given_of(asked.context)
    if "run" in asked.params:
        return given, given.of_run(asked.params["run"])
    return given, given.of_session(asked.params["session"])


async def listed(asked: RouteRequest) -> Answer:
    given, where = _where(asked)
    return {"artifacts": [told(one) for one in given.all(where)]}


async def uploaded(asked: RouteRequest) -> Answer:
    (given, where), query = _where(asked), asked.query(UploadQuery)
    files = given.uploads
    if not asked.raw:
        raise RequestRefusal(422, "empty-upload", "there is nothing in it")

    def keep() -> list[File]:
        return files.keep_all(asked.raw) if query.unpack else [files.keep(query.name, asked.raw)]

    kept = await asyncio.to_thread(keep)
    added = given.added(where, kept, by=asked.who.name)
    items = await files.enter_aside(where.scope, kept, added)
    if not await asyncio.to_thread(files.are_there, kept):
        await asyncio.to_thread(keep)  # they were taken away with another artifact meanwhile
    return await asyncio.to_thread(lambda: {"artifacts": [told(one) for one in items]})


async def removed(asked: RouteRequest) -> Answer:
    given, where = _where(asked)
    await given.remove_aside(where, asked.params["artifact"], by=asked.who.name)
    return None


async def shown(asked: RouteRequest) -> Answer:
    given, where = _where(asked)
    versions = given.versions(where, asked.params["artifact"])
    return {**told(versions[-1]), "versions": [told(one) for one in versions]}


async def content(asked: RouteRequest) -> Answer:
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


FAMILY = RouteFamily(name="artifacts", prefix="/api/v1/artifacts", routes=tuple(_routes()))
