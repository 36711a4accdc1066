"""Start runs at a server: the definition is sent with the files that it names."""

import asyncio
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from loopwright.cli.attach import feed_options, follow_runs
from loopwright.cli.charts import put_dry_run
from loopwright.cli.run_output import AttachOptions
from loopwright.cli.start_options import put_detached, say_notes
from loopwright.cli.terminal import Terminal
from loopwright.client.client import Client
from loopwright.client.servers import definition_path
from loopwright.client.transport import RunFeed
from loopwright.errors import DefinitionError, LoopwrightError
from loopwright.operations.dialects import (
    MAX_BYTES,
    OF_LOOPS,
    definition_bytes,
    packed,
    parse_definition,
)
from loopwright.operations.library import DefinitionLibrary
from loopwright.operations.loop_definition import COMMAND_LINE, LoopOptions, loop_definition
from loopwright.operations.preflight import check_health
from loopwright.operations.use_cases import definitions, run_changes, runs
from loopwright.syntax.document import Diagnostic
from loopwright.syntax.readers import read

if TYPE_CHECKING:
    from loopwright.cli.start_options import StartManner
    from loopwright.operations.run_request import LocalStart
    from loopwright.operations.run_start import DefinitionSource
    from loopwright.views.run_responses import StartedRun

_OF_DEFINITION = re.compile(r":\d+:\d+: warning: ")  # where such a warning says what it is about
REQUEST = "(request)"  # the server's name for a definition that was sent to it

_LOCAL_ONLY = {
    "env": "--env is not sent to a server: name the variables in the definition (pass_env) and set "
    "them in the environment of the server",
    "in_workspace": "--no-worktree is for runs on this machine; leave it out",
    "loop_tools": "--loop-tools is for runs on this machine; use `loops:` there",
}
"""Why a choice of `LocalStart` is not sent to a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SentDefinition:
    """A definition as it is sent: what it is called here, and the folder of the files it names."""

    file: str
    text: bytes
    dialect: str | None
    folder: Path | None = None


def start_remote(
    terminal: Terminal,
    request: "LocalStart",
    source: "DefinitionSource | LoopOptions | None",
    options: "StartManner",
) -> int:
    """Start a run there, and follow it until it ends or waits, if wanted. Without a source it is
    of a definition that is stored there.
    """
    for name, reason in _LOCAL_ONLY.items():
        if getattr(request, name):
            raise click.UsageError(reason)
    if options["dry_run"]:
        return asyncio.run(_rehearse(terminal, request, source))
    if options["detach"]:
        return asyncio.run(_start_detached(terminal, request, source))

    async def begin(client: Client) -> list[RunFeed]:
        started = await _start(terminal, client, request, source)
        terminal.say(f"driven by {terminal.server_url}")
        return [await client.open_feed(started.run, 0, feed_options(terminal))]

    shown = AttachOptions(
        no_wait=options["no_wait"],
        jsonl=options["jsonl"],
        foreign_codes=options["exit_codes"] == "dialect",
    )
    return follow_runs(terminal, begin, shown)


async def _start(
    terminal: Terminal,
    client: Client,
    request: "LocalStart",
    source: "DefinitionSource | LoopOptions | None",
) -> "StartedRun":
    sent, definition = await _sendable(terminal, client, request, source)
    # A run is not started on a server that cannot drive it.
    check_health(await client.read_health(), terminal.server_url)
    try:
        started = await client.call(runs.start, sent)
    except LoopwrightError as error:
        raise _renamed(error, definition.file) from error
    _warn(terminal, definition, request)
    started.warnings = [one.replace(REQUEST, definition.file) for one in started.warnings]
    others = [one for one in started.warnings if not _OF_DEFINITION.search(one)]
    say_notes(terminal, [f"warning: {one}" for one in others])
    return started


async def _start_detached(
    terminal: Terminal, request: "LocalStart", source: "DefinitionSource | LoopOptions | None"
) -> int:
    async with terminal.open_client(drives=False, say=terminal.say) as client:
        started = await _start(terminal, client, request, source)
    put_detached(terminal, started, where=f"on {terminal.server_url}")
    return 0


async def _sendable(
    terminal: Terminal,
    client: Client,
    request: "LocalStart",
    source: "DefinitionSource | LoopOptions | None",
) -> "tuple[LocalStart, _SentDefinition]":
    """The request with its definition and the files that this names."""
    if source is None:
        file = str(request.stored)
        definition_path(file)  # refuses what cannot be a name
        reference = definitions.DefinitionReference(name=file)
        stored = await client.call(definitions.show, reference)
        text = (stored.text or "").encode(errors="surrogatepass")
        return request, _SentDefinition(file=file, text=text, dialect=stored.dialect)
    found = _read_source(terminal, request, source)
    dialect, files = found.dialect, None
    if found.folder is not None:
        files = packed(found.text, file=found.file, dialect=dialect, folder=found.folder)
    definition = found.text.decode(errors="replace")
    sent = msgspec.structs.replace(request, definition=definition, dialect=dialect, files=files)
    return sent, found


def _read_source(
    terminal: Terminal, request: "LocalStart", source: "DefinitionSource | LoopOptions"
) -> _SentDefinition:
    if isinstance(source, LoopOptions):
        text = loop_definition(request, source)[1]
        return _SentDefinition(file=COMMAND_LINE, text=text, dialect="native")
    file, dialect, folder = source.file, source.dialect, Path.cwd()
    if source.data is not None:
        text = source.data
    elif source.library is not None:
        library = DefinitionLibrary(terminal.settings.home, source.library)
        text, dialect = library.get(file).data, OF_LOOPS
    else:
        text, folder = definition_bytes(Path(file)), Path(file).absolute().parent
    _check_json(file, text)
    return _SentDefinition(file=file, text=text, dialect=dialect, folder=folder)


def _check_json(file: str, definition: bytes) -> None:
    """Refuse a JSON file that is not JSON: the server does not know the name of the file."""
    if not file.lower().endswith(".json"):
        return
    document, problems = read(definition, file=file, limit=MAX_BYTES)
    if document is None:
        raise DefinitionError(f"{file} cannot be read", problems=problems)


def _warn(terminal: Terminal, definition: _SentDefinition, request: "LocalStart") -> None:
    """Warnings are shown when the server has accepted the definition, as for a local start."""
    try:
        found = parse_definition(
            definition.text,
            file=definition.file,
            force=definition.dialect,
            files=definition.folder,
            given=request.inputs,
        )
    except LoopwrightError:
        return
    for warning in found.warnings:
        terminal.say(warning.render(), tone="warn")


async def _rehearse(
    terminal: Terminal, request: "LocalStart", source: "DefinitionSource | LoopOptions | None"
) -> int:
    async with terminal.open_client(drives=False, say=terminal.say) as client:
        sent, definition = await _sendable(terminal, client, request, source)
        try:
            report = await client.call(run_changes.dry_run, sent)
        except LoopwrightError as error:
            raise _renamed(error, definition.file) from error
    report.warnings = [one.replace(REQUEST, definition.file) for one in report.warnings]
    _warn(terminal, definition, request)
    for warning in report.warnings:
        terminal.say(f"warning: {warning}", tone="warn")
    put_dry_run(terminal, report)
    return 0


def _renamed(error: LoopwrightError, file: str) -> LoopwrightError:
    """An error about a definition with the name that it has here."""
    error.message = error.message.replace(REQUEST, file)
    error.hint = error.hint.replace(REQUEST, file) if error.hint else None
    if isinstance(error, DefinitionError):
        error.problems = tuple(rename_problem_file(one, REQUEST, file) for one in error.problems)
    return error


def rename_problem_file(problem: object, known_as: str, file: str) -> object:
    """A problem of a definition with the name that it has here."""
    if isinstance(problem, Diagnostic) and problem.file == known_as:
        return replace(problem, file=file)
    return problem
