"""`artifact`: files that runs and sessions created or were given."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loopwright.cli.completion import complete_runs
from loopwright.cli.formats import put_rows
from loopwright.cli.terminal import Terminal
from loopwright.cli.verb import Verb, group, terminal_of
from loopwright.errors import Conflict, LoopwrightError

if TYPE_CHECKING:
    from loopwright.client.client import CommandClient
    from loopwright.operations.api_types import ArtifactItem

SESSION = "ses_"
SIZE = "a file has at most 64 MB"
_WHERE = click.argument("where", metavar="RUN|SESSION", shell_complete=complete_runs)


def scope_of(client: "CommandClient", where: str) -> dict[str, str]:
    """The fields that name a run or a session in a request."""
    if where.startswith(SESSION):
        return {"session": where}
    return {"run": client.find_run(where)}


@click.command("ls", cls=Verb, remote=True)
@_WHERE
@click.pass_context
def artifact_ls(ctx: click.Context, /, *, where: str) -> None:
    """List the artifacts of a run or a session, oldest first."""
    from loopwright.operations.use_cases import artifacts  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    with terminal.client() as client:
        wanted = artifacts.OfRunOrSession(**scope_of(client, where))
        found = client.call(artifacts.list_artifacts, wanted).artifacts
    put_artifacts(terminal, found)


def put_artifacts(terminal: Terminal, found: "list[ArtifactItem]") -> None:
    if terminal.as_json:
        terminal.put_json({"artifacts": found})
        return
    rows = [(one.id, one.version, one.size, one.by or "-", one.name) for one in found]
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
@click.option("--name", metavar="NAME", help="Name of the artifact. Default: the name of the file.")
@click.option("--unpack", is_flag=True, help="Unpack the files of a zip, tar or tar.gz.")
@click.pass_context
def artifact_put(
    ctx: click.Context, /, *, where: str, file: str, name: str | None, unpack: bool
) -> None:
    """Add a file to a run or a session; its agents can read text files."""
    from loopwright.operations.trackers import UPLOAD_BYTES  # noqa: PLC0415 - help stays quick
    from loopwright.operations.use_cases import artifacts  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    data = read_upload(file, UPLOAD_BYTES)
    called = name or (Path(file).name if file != "-" else "stdin")
    with terminal.client() as client:
        scope = scope_of(client, where)
        given = artifacts.UploadArtifact(data=data, name=called, unpack=unpack, **scope)
        made = client.call(artifacts.upload, given).artifacts
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
    "--version",
    type=click.IntRange(1, 1 << 53),
    metavar="N",
    help="Default: the newest.",
)
@click.option("--output", "-o", metavar="FILE", help="Write to this new file instead of stdout.")
@click.pass_context
def artifact_get(
    ctx: click.Context, /, *, where: str, name: str, version: int | None, output: str | None
) -> None:
    """Print the content of an artifact, or save it in a file."""
    terminal = terminal_of(ctx)
    if terminal.as_json and output is None:
        raise click.UsageError("with --json, name a file with --output", ctx)
    from loopwright.operations.use_cases import artifacts  # noqa: PLC0415 - help stays quick

    with terminal.client() as client:
        scope = scope_of(client, where)
        if "/" in name:  # a path such as iteration-2/claude.jsonl.gz, which is not an id
            listed = client.call(artifacts.list_artifacts, artifacts.OfRunOrSession(**scope))
            name = next((one.id for one in listed.artifacts if one.name == name), name)
        wanted = artifacts.ReadArtifact(artifact=name, version=version, **scope)
        data = client.call(artifacts.read, wanted).data
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
    """Into a new file: an existing one may contain work."""
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
    """Delete an uploaded file with all its versions; files that a run made are kept."""
    from loopwright.operations.use_cases import artifacts  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    with terminal.client() as client:
        scope = scope_of(client, where)
        client.call(artifacts.remove, artifacts.ArtifactReference(artifact=name, **scope))
    terminal.done(f"{name} is deleted", {"id": name, "removed": True})


_GROUP = group(
    "artifact",
    "Files that runs and sessions made, and files that people added.",
    [artifact_ls, artifact_put, artifact_get, artifact_rm],
)

VERBS = {"artifact": _GROUP}
