"""`artifact`: files that runs and sessions created or were given."""

import asyncio
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlencode

import click
from msgspec.structs import asdict

from loopwright.cli.completion import complete_runs
from loopwright.cli.formats import open_service, put_rows
from loopwright.cli.terminal import Terminal
from loopwright.cli.verb import Verb, group, terminal_of
from loopwright.errors import Conflict, LoopwrightError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.cli.remote_client import RemoteClient
    from loopwright.model.trackers import Item
    from loopwright.operations.trackers import ArtifactAccess, ArtifactScope
    from loopwright.operations.uploads import File

SESSION = "ses_"
SIZE = "a file has at most 64 MB"
JsonObject = dict[str, Any]
_WHERE = click.argument("where", metavar="RUN|SESSION", shell_complete=complete_runs)


class ArtifactClient(Protocol):
    """Artifacts of a run or a session, here or at a server, as programs read them."""

    def all(self) -> list[JsonObject]: ...

    def put(self, name: str, data: bytes, *, unpack: bool) -> list[JsonObject]: ...

    def get(self, name: str, version: int | None) -> bytes: ...

    def remove(self, name: str) -> None: ...


class _RemoteArtifacts:
    """Artifacts of a remote server."""

    def __init__(self, remote: "RemoteClient", where: str) -> None:
        kind, name = ("sessions", where) if where.startswith(SESSION) else ("runs", "")
        self._remote = remote
        self._base = f"/api/v1/{kind}/{quote(name or remote.run(where), safe='')}/artifacts"

    def all(self) -> list[JsonObject]:
        found: list[JsonObject] = self._remote.get(self._base)["artifacts"]
        return found

    def put(self, name: str, data: bytes, *, unpack: bool) -> list[JsonObject]:
        query = urlencode({"name": name, "unpack": str(unpack).lower()})
        made: list[JsonObject] = self._remote.upload(f"{self._base}?{query}", data)["artifacts"]
        return made

    def get(self, name: str, version: int | None) -> bytes:
        if "/" in name:  # a path such as iteration-2/claude.jsonl.gz, and no part of an address
            name = next((one["id"] for one in self.all() if one["name"] == name), name)
        which = "" if version is None else f"?version={version}"
        return self._remote.download(f"{self._base}/{quote(name, safe='')}/content{which}")

    def remove(self, name: str) -> None:
        self._remote.delete(f"{self._base}/{quote(name, safe='')}")


class _LocalArtifacts:
    """Those of this home."""

    def __init__(self, given: "ArtifactAccess", where: "ArtifactScope", me: str) -> None:
        self._given, self._where, self._me = given, where, me

    def all(self) -> list[JsonObject]:
        return self._told(self._given.all(self._where))

    def put(self, name: str, data: bytes, *, unpack: bool) -> list[JsonObject]:
        uploads = self._given.uploads

        def keep() -> "list[File]":
            return uploads.keep_all(data) if unpack else [uploads.keep(name, data)]

        files = keep()
        items = uploads.enter(
            self._where.scope, files, self._given.added(self._where, files, by=self._me)
        )
        if not uploads.are_there(files):
            keep()  # they were taken away with another artifact meanwhile
        return self._told(items)

    @staticmethod
    def _told(items: "list[Item]") -> list[JsonObject]:
        from loopwright.operations.trackers import artifact_view  # noqa: PLC0415 - help stays quick

        return [asdict(artifact_view(one)) for one in items]

    def get(self, name: str, version: int | None) -> bytes:
        item = self._given.version(self._where, name, version)
        return self._given.content(item)[0]

    def remove(self, name: str) -> None:
        asyncio.run(self._given.remove(self._where, name, by=self._me))


@contextmanager
def _artifacts(terminal: Terminal, where: str) -> "Iterator[ArtifactClient]":
    if terminal.remote is not None:
        yield _RemoteArtifacts(terminal.remote, where)
        return
    from loopwright.operations.runs import current_user  # noqa: PLC0415 - help stays quick
    from loopwright.operations.trackers import artifacts_in  # noqa: PLC0415 - help stays quick

    with open_service(terminal) as service:
        given = artifacts_in(terminal.settings, service)
        if where.startswith(SESSION):
            yield _LocalArtifacts(given, given.of_session(where), current_user())
        else:
            yield _LocalArtifacts(given, given.of_run(service.find(where)), current_user())


@click.command("ls", cls=Verb, remote=True)
@_WHERE
@click.pass_context
def artifact_ls(ctx: click.Context, /, *, where: str) -> None:
    """What was made or given there, the oldest first."""
    terminal = terminal_of(ctx)
    with _artifacts(terminal, where) as artifacts:
        found = artifacts.all()
    put_artifacts(terminal, found)


def put_artifacts(terminal: Terminal, found: list[JsonObject]) -> None:
    if terminal.as_json:
        terminal.put_json({"artifacts": found})
        return
    rows = [
        (one["id"], one["version"], one["size"], one["by"] or "-", one["name"]) for one in found
    ]
    empty = "there are none; `loopwright artifact put RUN FILE` gives one"
    put_rows(terminal, ("ID", "VERSION", "BYTES", "BY", "NAME"), rows, empty)


@click.command(
    "put",
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright artifact put last report.txt", "the same name again is the next version"),
        ("loopwright artifact put last sources.zip --unpack", "each file of it is an artifact"),
    ],
)
@_WHERE
@click.argument("file", metavar="FILE|-")
@click.option("--name", metavar="NAME", help="How it is called there, else as the file is.")
@click.option("--unpack", is_flag=True, help="Take the files of a zip, a tar or a tar.gz.")
@click.pass_context
def artifact_put(
    ctx: click.Context, /, *, where: str, file: str, name: str | None, unpack: bool
) -> None:
    """Give a run or a session a file; what is text its agents can read."""
    from loopwright.operations.trackers import UPLOAD_BYTES  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    data = read_upload(file, UPLOAD_BYTES)
    with _artifacts(terminal, where) as artifacts:
        made = artifacts.put(
            name or (Path(file).name if file != "-" else "stdin"), data, unpack=unpack
        )
    put_artifacts(terminal, made)


def read_upload(file: str, most: int) -> bytes:
    """A file, or stdin; bounded, and never nothing."""
    try:
        if file == "-":
            data = sys.stdin.buffer.read(most + 1)
        else:
            with open(file, "rb") as opened:
                data = opened.read(most + 1)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise LoopwrightError(f"{file} cannot be read: {why}", code="no-file") from error
    if len(data) > most:
        raise LoopwrightError(f"{file} is too large: {SIZE}", code="too-large")
    if not data:
        raise LoopwrightError(f"there is nothing in {file}", code="empty-upload")
    return data


@click.command(
    "get",
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright artifact get last art_0123456789abcdef -o report.txt", ""),
        ("loopwright artifact get last iteration-2/claude.jsonl.gz -o claude.jsonl.gz", ""),
    ],
)
@_WHERE
@click.argument("name", metavar="ARTIFACT")
@click.option(
    "--version", type=click.IntRange(1, 1 << 53), metavar="N", help="Which; else the newest."
)
@click.option("--output", "-o", metavar="FILE", help="A new file for it; else stdout.")
@click.pass_context
def artifact_get(
    ctx: click.Context, /, *, where: str, name: str, version: int | None, output: str | None
) -> None:
    """The bytes of an artifact, as they are."""
    terminal = terminal_of(ctx)
    if terminal.as_json and output is None:
        raise click.UsageError("with --json, name a file with --output", ctx)
    with _artifacts(terminal, where) as artifacts:
        data = artifacts.get(name, version)
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    _write(Path(output), data)
    if terminal.as_json:
        terminal.put_json({"id": name, "file": output, "bytes": len(data)})
    else:
        terminal.say(f"{output}: {len(data)} bytes")


def _write(place: Path, data: bytes) -> None:
    """Into a new file: an existing one may be somebody's work."""
    try:
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError as error:
        raise Conflict(f"{place} is there already", code="exists") from error
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise LoopwrightError(f"{place} cannot be written: {why}", code="no-file") from error
    with os.fdopen(handle, "wb") as file:
        file.write(data)


@click.command("rm", cls=Verb, remote=True)
@_WHERE
@click.argument("name", metavar="ARTIFACT")
@click.pass_context
def artifact_rm(ctx: click.Context, /, *, where: str, name: str) -> None:
    """Take away a file that was given, with all its versions; what a run made stays with it."""
    terminal = terminal_of(ctx)
    with _artifacts(terminal, where) as artifacts:
        artifacts.remove(name)
    terminal.done(f"{name} is deleted", {"id": name, "removed": True})


_GROUP = group(
    "artifact",
    "Files that runs and sessions have, made there or given by people.",
    [artifact_ls, artifact_put, artifact_get, artifact_rm],
)

VERBS = {"artifact": _GROUP}
