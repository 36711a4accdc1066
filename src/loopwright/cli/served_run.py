"""Runs that a server drives: start, resume and fork them there, and follow them until they rest.

Everything goes through the client. The output and the exit codes are those of runs that this
process drives; Ctrl-C leaves the run to its server.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from loopwright.cli.formats import as_dict
from loopwright.cli.gate_prompts import ask_served
from loopwright.cli.run_output import WrittenLines, say_line
from loopwright.cli.terminal import (
    Terminal,
    as_json,
    exit_code,
    one_line,
    put_result,
    say_final_line,
)
from loopwright.client.addresses import RemoteServer, open_client
from loopwright.client.client import Client, FollowOptions
from loopwright.client.servers import definition_path
from loopwright.errors import DefinitionError, LoopwrightError
from loopwright.kernel.events import AnyEvent
from loopwright.model.record import JsonValue
from loopwright.operations.dialects import (
    MAX_BYTES,
    OF_LOOPS,
    definition_bytes,
    exit_codes,
    packed,
    parse_definition,
)
from loopwright.operations.library import DefinitionLibrary
from loopwright.operations.loop_definition import COMMAND_LINE, LoopOptions, loop_definition
from loopwright.operations.preflight import check_health
from loopwright.operations.use_cases import definitions, run_changes, run_queries, runs
from loopwright.operations.use_cases.operation import RunReference
from loopwright.ports import Delta
from loopwright.syntax.document import Diagnostic
from loopwright.syntax.readers import read
from loopwright.views.formats import without_signs
from loopwright.views.progress import ProgressLine

if TYPE_CHECKING:
    from loopwright.cli.start_options import StartManner
    from loopwright.operations.dry_run.simulation import DryRunReport
    from loopwright.operations.run_control import ResumeChanges
    from loopwright.operations.run_request import LocalStart
    from loopwright.operations.run_start import DefinitionSource

REQUEST = "(request)"  # the server's name for a definition that was sent to it
ENDED = "run.finished"
KNOWN_KINDS = frozenset(str(kind.__struct_config__.tag) for kind in AnyEvent.__args__)
"""Every kind of event that this version writes."""


class ServedRun:
    """A run that a server drives, shown here until it rests."""

    def __init__(
        self, terminal: Terminal, client: Client, run: str, *, jsonl: bool = False
    ) -> None:
        self.run = run
        self.is_asking = False  # a person is asked about a gate now
        self._terminal = terminal
        self._client = client
        self._jsonl = jsonl

    async def last_event(self) -> int:
        """The number of its newest event."""
        return (await self._client.call(run_queries.snapshot, RunReference(run=self.run))).seq

    async def status(self) -> str:
        """What it does now."""
        return (await self._client.call(run_queries.show, RunReference(run=self.run))).status

    async def show(self, after: int, *, text: bool = False) -> None:
        """Show its events after a number until it has ended or only a person can advance it; with
        `text` also what agents write.
        """
        written, is_held = WrittenLines(self._terminal), False
        retry = not self._terminal.options.no_retry
        options = FollowOptions(after=after, view="words", text=text, tail=text, retry=retry)
        async for one in self._client.follow(self.run, options):
            if isinstance(one, Delta):
                written.take(one.kind, one.text)
                continue
            written.end()
            self._put(one)
            is_held = is_held or one["kind"] in ("gate.opened", "run.paused")
            if is_held and await self.status() != "running":
                return

    def _put(self, event: dict[str, JsonValue]) -> None:
        words = event.pop("told", None)
        if self._jsonl:
            self._terminal.put(as_json(event))
        _say_event(self._terminal, event, words)

    async def _show_past(self) -> int:
        """Show the events that it has now; the number of the last one."""
        seen, options = 0, FollowOptions(view="words", until_end=False)
        async for one in self._client.follow(self.run, options):
            if not isinstance(one, Delta):
                seen = int(str(one["seq"]))
                self._put(one)
        return seen

    async def watch(self, *, no_wait: bool) -> int:
        """Show it from now on, or as JSON from its first event, with the text that agents write,
        and ask here at its gates.
        """
        seen = await self._show_past() if self._jsonl else await self.last_event()
        is_running = await self.status() == "running"
        while True:
            if is_running:
                await self.show(seen, text=True)
            seen = await self.last_event()
            if no_wait or not self._terminal.can_ask or await self.status() != "waiting":
                return await self.finish()
            self.is_asking = True
            if not await ask_served(self._terminal, self._client, self.run):
                return await self.finish()
            self.is_asking = False
            is_running = await self.status() not in ("waiting", "paused")

    async def finish(self, *, foreign: bool = False) -> int:
        """Print how it ended or why it waits; the exit code says the same."""
        terminal, reference = self._terminal, RunReference(run=self.run)
        ended = await self._client.call(run_queries.show, reference)
        page = await self._client.call(run_queries.snapshot, reference)
        line = page.headline
        if not terminal.has_signs(sys.stderr):
            line = without_signs(line)
        say_final_line(terminal, self.run, line, ended.status)
        for command in _next_shown(ended.status, page.next):
            terminal.say(f"  {command}{terminal.server_suffix}")
        result = as_dict(ended)
        if not self._jsonl:
            put_result(terminal, result)
        return exit_code(result, exit_codes(page.dialect) if foreign else None)


def _next_shown(status: str, commands: Sequence[str]) -> list[str]:
    """Commands that a person needs now: how to answer, or how to resume a run that has ended."""
    if status in ("waiting", "paused"):
        return [*commands]
    return [one for one in commands if one.startswith("loopwright resume ")]


def _say_event(terminal: Terminal, event: dict[str, JsonValue], words: JsonValue) -> None:
    """An event as it is shown here, with its text. A server of a later version may have kinds of
    events that this command does not know.
    """
    kind = str(event["kind"])
    if kind not in KNOWN_KINDS:
        path = one_line(str(event.get("path", "")))
        terminal.say(f"{path}: unknown event {one_line(kind)}; a newer loopwright would know it")
    elif isinstance(words, dict) and kind != ENDED:  # the end is reported last, with the result
        good = words.get("good")
        text, detail = str(words.get("text", "")), str(words.get("detail", ""))
        say_line(terminal, ProgressLine(text, None if good is None else bool(good), detail))


# -- what commands do ------------------------------------------------------------------------------


def follow_served(
    terminal: Terminal, begin: Callable[[Client], Awaitable[tuple[ServedRun, int | None]]]
) -> int:
    """Follow the run that `begin` returns after an event, or None if it does nothing now."""

    async def follow(client: Client, attach: Callable[[ServedRun], None]) -> int:
        one, after = await begin(client)
        attach(one)
        if after is not None:
            await one.show(after)
        return await one.finish()

    return _attended(terminal, follow)


def follow_served_run(terminal: Terminal, run: str, after: int) -> int:
    """Follow a run there after an event."""

    async def begin(client: Client) -> tuple[ServedRun, int | None]:
        return ServedRun(terminal, client, run), after

    return follow_served(terminal, begin)


def watch_served(terminal: Terminal, reference: str, *, jsonl: bool, no_wait: bool) -> int:
    """Show a run there from now on, including text as agents write it. At a gate, ask here."""

    async def watch(client: Client, attach: Callable[[ServedRun], None]) -> int:
        one = ServedRun(terminal, client, await client.find_run(reference), jsonl=jsonl)
        attach(one)
        return await one.watch(no_wait=no_wait)

    return _attended(terminal, watch)


def _attended(
    terminal: Terminal,
    body: Callable[[Client, Callable[[ServedRun], None]], Awaitable[int]],
) -> int:
    """Do something with a client; Ctrl-C says that the run goes its way without this command."""
    attached: list[ServedRun] = []

    async def work() -> int:
        async with _client_of(terminal) as client:
            return await body(client, attached.append)

    try:
        return asyncio.run(work())
    except KeyboardInterrupt:
        for one in attached:
            terminal.tell(f"{one.run} keeps {'waiting' if one.is_asking else 'running'}")
            if not one.is_asking:
                terminal.say(f"  loopwright watch {one.run}{terminal.server_suffix}")
        raise


def _client_of(terminal: Terminal) -> Client:
    return open_client(RemoteServer(terminal.server_url), say=terminal.say)


def resume_served(
    terminal: Terminal, reference: str, changes: "ResumeChanges", *, jsonl: bool, detach: bool
) -> int:
    """Resume one run there and follow it, unless it is left to the server."""
    if detach:

        async def let_go() -> None:
            async with _client_of(terminal) as client:
                request = runs.resume_request(await client.find_run(reference), changes)
                now = await client.call(runs.resume, request)
            if terminal.as_json:
                terminal.put_json(as_dict(now))
            else:
                terminal.put(now.run)
                terminal.say(now.message)

        asyncio.run(let_go())
        return 0

    async def begin(client: Client) -> tuple[ServedRun, int | None]:
        run = await client.find_run(reference)
        one = ServedRun(terminal, client, run, jsonl=jsonl)
        seen = await one.last_event()
        now = await client.call(runs.resume, runs.resume_request(run, changes))
        # nothing comes from a run that waits for a person
        return one, None if now.status in ("waiting", "paused") else seen

    return follow_served(terminal, begin)


def fork_served(
    terminal: Terminal, reference: str, request: run_changes.ForkRun, *, jsonl: bool
) -> int:
    """Create a new run there that continues from a place of another, and follow it."""

    async def begin(client: Client) -> tuple[ServedRun, int | None]:
        sent = msgspec.structs.replace(request, run=await client.find_run(reference))
        made = await client.call(run_changes.fork, sent)
        return ServedRun(terminal, client, made.run, jsonl=jsonl), made.seq

    return follow_served(terminal, begin)


# -- starting --------------------------------------------------------------------------------------

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


def start_served(
    terminal: Terminal,
    request: "LocalStart",
    source: "DefinitionSource | LoopOptions | None",
    options: "StartManner",
) -> int:
    """Start a run there, and follow it until it rests unless it is let go. The definition is sent
    with the files that it names; without a source it is one that is stored there.
    """
    for name, reason in _LOCAL_ONLY.items():
        if getattr(request, name):
            raise click.UsageError(reason)

    async def start(client: Client, attach: Callable[[ServedRun], None]) -> int:
        sent, definition = await _sendable(terminal, client, request, source)
        file = definition.file
        if options["dry_run"]:
            report = await _rehearse(client, sent, file)
            _warn(terminal, definition, request)
            return _put_report(terminal, report)
        # A run is not started on a server that cannot drive it.
        check_health(await client.read_health(), terminal.server_url)
        try:
            started = await client.call(runs.start, sent)
        except LoopwrightError as error:
            raise _renamed(error, file) from error
        _warn(terminal, definition, request)
        started.warnings = [one.replace(REQUEST, file) for one in started.warnings]
        if options["detach"]:
            if terminal.as_json:
                terminal.put_json(as_dict(started))
            else:
                terminal.put(started.run)
            return 0
        terminal.say(f"driven by {terminal.server_url}")
        one = ServedRun(terminal, client, started.run, jsonl=options["jsonl"])
        attach(one)
        await one.show(0)
        return await one.finish(foreign=options["exit_codes"] == "dialect")

    return _attended(terminal, start)


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


async def _rehearse(client: Client, sent: "LocalStart", file: str) -> "DryRunReport":
    try:
        report = await client.call(run_changes.dry_run, sent)
    except LoopwrightError as error:
        raise _renamed(error, file) from error
    report.warnings = [one.replace(REQUEST, file) for one in report.warnings]
    return report


def _put_report(terminal: Terminal, report: "DryRunReport") -> int:
    from loopwright.cli.charts import put_dry_run  # noqa: PLC0415 - only when asked for

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
