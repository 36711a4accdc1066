"""Artifacts of runs and sessions: list, upload files or archives, read and remove."""

import asyncio
from typing import Annotated

import msgspec

from loopwright.errors import InputError
from loopwright.operations.api_types import ArtifactList, ArtifactVersions, Request
from loopwright.operations.trackers import (
    UPLOAD_BYTES,
    ArtifactAccess,
    ArtifactScope,
    artifact_view,
    artifacts_in,
)
from loopwright.operations.uploads import File, saved_name
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    FileContent,
    HttpRoute,
    RawBody,
    operation,
)

RUN = "/api/v1/runs/{run}/artifacts"
SESSION = "/api/v1/sessions/{session}/artifacts"
ONE = "/{artifact}"
UPLOAD_SECONDS = 120.0


class OfRunOrSession(Request):
    """A run or a session, by its whole id."""

    run: str = ""
    session: str = ""


class ArtifactReference(OfRunOrSession, kw_only=True):
    """An artifact, by its id."""

    artifact: str


class UploadArtifact(OfRunOrSession, kw_only=True):
    """What the file is called; of an archive, whether its files are taken one by one."""

    data: bytes
    name: Annotated[str, msgspec.Meta(max_length=8_000)] = ""
    unpack: bool = False


class ReadArtifact(ArtifactReference, kw_only=True):
    """Which version; without a number the newest."""

    version: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)] | None = None


@operation(
    "artifacts.list",
    "query",
    "viewer",
    "Artifacts and uploaded files, the oldest first",
    http=HttpRoute("GET", RUN, other_paths=(SESSION,)),
)
async def list_artifacts(app: App, _caller: Caller, request: OfRunOrSession) -> ArtifactList:
    """The artifacts, each in its newest version."""
    artifacts, scope = artifact_scope(app, request)
    return ArtifactList(artifacts=[artifact_view(one) for one in artifacts.all(scope)])


@operation(
    "artifacts.upload",
    "raw",
    "editor",
    "Give a file, or with `unpack` the files of a zip or tar; the same name again is "
    "the next version",
    http=HttpRoute(
        "POST",
        RUN,
        other_paths=(SESSION,),
        status=201,
        schema="UploadQuery",
        raw=RawBody(field="data", most_bytes=UPLOAD_BYTES, seconds=UPLOAD_SECONDS),
    ),
    audit=("artifact.added",),
    draining="serve",
)
async def upload(app: App, caller: Caller, request: UploadArtifact) -> ArtifactList:
    """Store a file, or the files of an archive."""
    artifacts, scope = artifact_scope(app, request)
    files, data = artifacts.uploads, request.data
    if not data:
        raise InputError("there is nothing in it", code="empty-upload")

    def keep() -> list[File]:
        return files.keep_all(data) if request.unpack else [files.keep(request.name, data)]

    kept = await asyncio.to_thread(keep)
    added = artifacts.added(scope, kept, by=caller.name)
    items = await files.enter_aside(scope.scope, kept, added)
    if not await asyncio.to_thread(files.are_there, kept):
        await asyncio.to_thread(keep)  # they were removed with another artifact meanwhile
    views = await asyncio.to_thread(lambda: [artifact_view(one) for one in items])
    return ArtifactList(artifacts=views)


@operation(
    "artifacts.show",
    "query",
    "viewer",
    "One artifact, with all its versions",
    http=HttpRoute("GET", f"{RUN}{ONE}", other_paths=(f"{SESSION}{ONE}",)),
)
async def show(app: App, _caller: Caller, request: ArtifactReference) -> ArtifactVersions:
    """An artifact and its versions, the newest last."""
    artifacts, scope = artifact_scope(app, request)
    versions = [artifact_view(one) for one in artifacts.versions(scope, request.artifact)]
    return ArtifactVersions(**msgspec.structs.asdict(versions[-1]), versions=versions)


@operation(
    "artifacts.remove",
    "command",
    "editor",
    "Delete an uploaded file, with all its versions",
    http=HttpRoute("DELETE", f"{RUN}{ONE}", other_paths=(f"{SESSION}{ONE}",), status=204),
    audit=("artifact.removed",),
    draining="serve",
)
async def remove(app: App, caller: Caller, request: ArtifactReference) -> None:
    """Remove an uploaded file."""
    artifacts, scope = artifact_scope(app, request)
    await artifacts.remove(scope, request.artifact, by=caller.name)


@operation(
    "artifacts.read",
    "raw",
    "viewer",
    "The content of an artifact, whole or in parts",
    http=HttpRoute(
        "GET",
        f"{RUN}{ONE}/content",
        other_paths=(f"{SESSION}{ONE}/content",),
        schema="ContentQuery",
    ),
)
async def read(app: App, _caller: Caller, request: ReadArtifact) -> FileContent:
    """The bytes of one version of an artifact."""
    artifacts, scope = artifact_scope(app, request)
    item = artifacts.version(scope, request.artifact, request.version)
    data, digest = await asyncio.to_thread(artifacts.content, item)
    return FileContent(data=data, digest=digest, name=saved_name(item))


def artifact_scope(app: App, request: OfRunOrSession) -> tuple[ArtifactAccess, ArtifactScope]:
    """The artifacts of a data directory, and which of them are meant."""
    artifacts = artifacts_in(app.settings, app.service, app.access())
    if request.session:
        return artifacts, artifacts.of_session(request.session)
    return artifacts, artifacts.of_run(request.run)


OPERATIONS = (list_artifacts, upload, show, remove, read)
