"""Commands on runs of a remote server, with the same output and exit codes as local ones."""

import contextlib
import os
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args
from urllib.parse import quote

import click
import msgspec

from loopwright.cli.remote_client import RemoteClient
from loopwright.cli.run_output import WrittenLines, say_line
from loopwright.cli.terminal import (
    Terminal,
    as_json,
    exit_code,
    one_line,
    put_result,
    say_final_line,
)
from loopwright.client.servers import definition_path
from loopwright.errors import Conflict, DefinitionError, LoopwrightError, NotFound
from loopwright.syntax.document import Diagnostic
from loopwright.views.formats import without_signs
from loopwright.views.progress import ProgressLine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from loopwright.cli.start_options import StartManner
    from loopwright.model.record import JsonValue
    from loopwright.operations.loop_definition import LoopOptions
    from loopwright.operations.run_request import LocalStart
    from loopwright.operations.run_start import DefinitionSource

ALL = "all"
ENDED = "run.finished"
REQUEST = "(request)"  # the server's name for a definition that was sent to it
RUNS = "/api/v1/runs"
REHEARSALS = "/api/v1/rehearsals"
LOOPS = "/api/v1/loops"


def remote_events(
    terminal: Terminal, run: str, after: int, *, follow: bool, in_dialect: bool
) -> "Iterator[dict[str, JsonValue]]":
    """The events of a remote run, or those in the format of its own system."""
    remote, retry = terminal.remote, not terminal.options.no_retry
    assert remote is not None
    if in_dialect:
        return remote.told(run, after, follow=follow, retry=retry)
    return remote.follow(run, after, retry=retry) if follow else remote.events(run, after)


def answer_remote_gate(
    terminal: Terminal, reference: str, decision: str, body: "dict[str, JsonValue]", *, go_on: bool
) -> int:
    """Answer a gate there; the server drives the run on, which is seen through."""
    remote = terminal.remote
    assert remote is not None
    gate = remote.gate(reference)
    asked = remote.gates() if go_on else ()
    run = next((str(one["run"]) for one in asked if one["id"] == gate), "")
    seen = int(remote.get(f"{RUNS}/{quote(run)}/snapshot")["seq"]) if run else 0
    summary = remote.post(f"/api/v1/gates/{quote(gate)}/{decision}", body)
    if run:
        return follow_remote_run(terminal, run, seen)
    if terminal.as_json:
        terminal.put_json(summary)
    else:
        terminal.say(f"{decision}: {gate}; {summary['run']} continues at {remote.url}")
    return 0


def control_remote_runs(terminal: Terminal, reference: str, verb: str, word: str) -> int:
    """Pause, resume or stop one run there, or all."""
    remote = terminal.remote
    assert remote is not None
    wanted = {"pause": ("running", "waiting"), "resume": ("paused",)}.get(
        verb, ("running", "waiting", "paused")
    )
    if reference == ALL:
        runs = [str(item["run"]) for item in remote.runs(wanted)[0]]
    else:
        runs = [remote.run(reference)]
        _check_open(remote, runs[0], verb)
    for run in runs:
        answer = remote.post(f"{RUNS}/{quote(run)}/{verb}")
        if verb == "stop" and isinstance(answer, dict) and answer.get("stop") == "stopping":
            left = ", ".join(str(pid) for pid in answer.get("processes", ()))
            why = f"its processes {left} have not ended yet" if left else "it has not ended yet"
            raise Conflict(f"{run} is stopping: {why}", code="stopping")
    if terminal.as_json:
        terminal.put_json({word: list(runs), "count": len(runs), "runs": list(runs)})
    for run in [] if terminal.as_json else runs:
        terminal.say(f"{run}: {word}")
    return 0


def _check_open(remote: RemoteClient, run: str, verb: str) -> None:
    """A stop of a run that has ended is a conflict on the command line."""
    if verb != "stop":
        return
    now = remote.get(f"{RUNS}/{quote(run)}")
    if now["status"] not in ("running", "waiting", "paused"):
        raise Conflict(f"{run} has already ended: {now['status']} ({now['reason']})", code="ended")


def _check_ready(remote: RemoteClient) -> None:
    """Do not start a run on a server that cannot drive it; older servers do not report this."""
    from loopwright.operations.preflight import check_health  # noqa: PLC0415 - help stays quick

    try:
        told = remote.get("/api/v1/health")
    except NotFound:
        return
    check_health(told, remote.url)


# -- starting --------------------------------------------------------------------------------------


def start_remote_run(
    terminal: Terminal,
    request: "LocalStart",
    source: "DefinitionSource | LoopOptions | None",
    manner: "StartManner",
) -> int:
    """Start a run there, and watch it until it rests unless it is let go. The definition is sent
    with the files that it names; without a source it is one that is stored there.
    """
    remote = terminal.remote
    assert remote is not None
    _check_sendable(request)
    if source is None:
        file = str(request.stored)
        stored = remote.get(definition_path(file))
        text: bytes = str(stored["text"]).encode(errors="surrogatepass")
        dialect: str | None = str(stored["dialect"])
        body, folder = request_body(request), None
    else:
        file, text, dialect, folder = _read_source(terminal, request, source)
        body = request_body(request) | {"definition": text.decode(errors="replace")}
        body |= {"dialect": dialect} if dialect else {}
        body |= _files(file, text, dialect, folder)
    _warn(terminal, file, text, dialect=dialect, folder=folder, given=request.inputs)
    if manner["dry_run"]:
        return _rehearse(terminal, file, body)
    _check_ready(remote)
    started = _sent(remote, RUNS, body, file)
    run = str(started["run"])
    if manner["detach"]:
        if terminal.as_json:
            terminal.put_json(started)
        else:
            terminal.put(run)
        return 0
    terminal.say(f"driven by {remote.url}")
    foreign = manner["exit_codes"] == "dialect"
    return follow_remote_run(terminal, run, jsonl=manner["jsonl"], foreign=foreign)


_LOCAL_ONLY = {
    "env": "--env is not sent to a server: name the variables in the definition (pass_env) and set "
    "them in the environment of the server",
    "in_workspace": "--no-worktree is for runs on this machine; leave it out",
    "loop_tools": "--loop-tools is for runs on this machine; use `loops:` there",
}
"""Why a choice of `LocalStart` is not sent to a server."""


def _check_sendable(request: "LocalStart") -> None:
    for name, reason in _LOCAL_ONLY.items():
        if getattr(request, name):
            raise click.UsageError(reason)


def request_body(request: "LocalStart") -> "dict[str, JsonValue]":
    """The choices of a start as they are sent; those that were not made are left out."""
    from loopwright.operations.run_request import StartRun  # noqa: PLC0415 - help stays quick

    sent = cast("dict[str, JsonValue]", msgspec.to_builtins(request))
    return {name: sent[name] for name in StartRun.__struct_fields__ if name in sent}


def _read_source(
    terminal: Terminal, request: "LocalStart", source: "DefinitionSource | LoopOptions"
) -> "tuple[str, bytes, str | None, Path | None]":
    """A definition: what it is called here, its text and dialect, and the folder of its files."""
    from loopwright.operations.dialects import OF_LOOPS, definition_bytes  # noqa: PLC0415 - quick help
    from loopwright.operations.library import DefinitionLibrary  # noqa: PLC0415 - help stays quick
    from loopwright.operations.loop_definition import (  # noqa: PLC0415 - help stays quick
        COMMAND_LINE,
        LoopOptions,
        loop_definition,
    )

    if isinstance(source, LoopOptions):
        return COMMAND_LINE, loop_definition(request, source)[1], "native", None
    file, here = source.file, Path.cwd()
    if source.data is not None:
        data, dialect, folder = source.data, source.dialect, here
    elif source.library is not None:
        library = DefinitionLibrary(terminal.settings.home, source.library)
        data, dialect, folder = library.get(file).data, OF_LOOPS, here
    else:
        data, dialect = definition_bytes(Path(file)), source.dialect
        folder = Path(file).absolute().parent
    _check_json(file, data)
    return file, data, dialect, folder


def _check_json(file: str, definition: bytes) -> None:
    """Refuse a JSON file that is not JSON: the server does not know the name of the file."""
    from loopwright.operations.dialects import MAX_BYTES  # noqa: PLC0415 - help stays quick
    from loopwright.syntax.readers import read  # noqa: PLC0415 - help stays quick

    if not file.lower().endswith(".json"):
        return
    document, problems = read(definition, file=file, limit=MAX_BYTES)
    if document is None:
        raise DefinitionError(f"{file} cannot be read", problems=problems)


def _files(
    file: str, definition: bytes, dialect: str | None, folder: "Path | None"
) -> "dict[str, JsonValue]":
    """The files that it names; without a folder those of the workspace there count."""
    from loopwright.operations.dialects import packed  # noqa: PLC0415 - help stays quick

    if folder is None:
        return {}
    found = packed(definition, file=file, dialect=dialect, folder=folder)
    return {} if found is None else {"files": {**found}}


def _warn(
    terminal: Terminal,
    file: str,
    definition: bytes,
    *,
    dialect: str | None,
    folder: "Path | None",
    given: "Mapping[str, JsonValue]",
) -> None:
    """Warnings are shown before the start; the server reports errors."""
    from loopwright.operations.dialects import parse_definition  # noqa: PLC0415 - help stays quick

    with contextlib.suppress(LoopwrightError):
        read = parse_definition(definition, file=file, force=dialect, files=folder, given=given)
        for warning in read.warnings:
            terminal.say(warning.render(), tone="warn")


def _rehearse(terminal: Terminal, file: str, body: "dict[str, JsonValue]") -> int:
    from loopwright.cli.charts import put_dry_run  # noqa: PLC0415 - only when asked for

    assert terminal.remote is not None
    found = _sent(terminal.remote, REHEARSALS, body, file)
    for warning in cast("list[str]", found.get("warnings", [])):
        terminal.say(f"warning: {warning}", tone="warn")
    put_dry_run(terminal, found)
    return 0


def _sent(
    remote: RemoteClient, path: str, body: "dict[str, JsonValue]", file: str
) -> "dict[str, JsonValue]":
    """Post it; errors and warnings about the definition name the file as it is called here."""
    try:
        answer: dict[str, JsonValue] = remote.post(path, body)
    except LoopwrightError as error:
        error.message = error.message.replace(REQUEST, file)
        error.hint = error.hint.replace(REQUEST, file) if error.hint else None
        if isinstance(error, DefinitionError):
            error.problems = tuple(
                rename_problem_file(one, REQUEST, file) for one in error.problems
            )
        raise
    warnings = answer.get("warnings")
    if isinstance(warnings, list):
        answer["warnings"] = [str(one).replace(REQUEST, file) for one in warnings]
    return answer


def rename_problem_file(problem: object, known_as: str, file: str) -> object:
    """A problem of a definition with the name that it has here."""
    if isinstance(problem, Diagnostic) and problem.file == known_as:
        return replace(problem, file=file)
    return problem


# -- seeing a run through --------------------------------------------------------------------------


def follow_remote_run(
    terminal: Terminal,
    run: str,
    after: int = 0,
    *,
    jsonl: bool = False,
    foreign: bool = False,
    watch: "Literal['events', 'text', 'nothing']" = "events",
) -> int:
    """Show the events of a remote run after an event until it rests; the exit code reports its
    result.
    """
    _show_until_rest(terminal, run, after, jsonl=jsonl, watch=watch)
    return _finish(terminal, run, jsonl=jsonl, foreign=foreign)


def _show_until_rest(
    terminal: Terminal,
    run: str,
    after: int,
    *,
    jsonl: bool,
    watch: "Literal['events', 'text', 'nothing']",
) -> None:
    remote = terminal.remote
    assert remote is not None
    try:
        retry = not terminal.options.no_retry
        written = WrittenLines(terminal)
        follows = _until_rest(remote, run, after, retry=retry, text=watch == "text")
        for event in () if watch == "nothing" else follows:
            if event["kind"] == "delta":
                written.take(str(event["said"]), str(event["text"]))
                continue
            written.end()
            told = event.pop("told", None)
            if jsonl:
                terminal.put(as_json(event))
            _tell(terminal, event, told)
    except KeyboardInterrupt:
        terminal.tell(f"{run} keeps running")
        terminal.say(f"  loopwright watch {run} --server {remote.url}")
        raise


def _finish(terminal: Terminal, run: str, *, jsonl: bool, foreign: bool = False) -> int:
    """Print how a run ended or why it waits; the exit code says the same."""
    remote = terminal.remote
    assert remote is not None
    ended, page = remote.get(f"{RUNS}/{quote(run)}"), remote.get(f"{RUNS}/{quote(run)}/snapshot")
    line = str(page["headline"])
    if not terminal.has_signs(sys.stderr):
        line = without_signs(line)
    say_final_line(terminal, run, line, str(ended["status"]))
    for command in _next_shown(str(ended["status"]), page["next"]):
        terminal.say(f"  {command} --server {remote.url}")
    if not jsonl:
        put_result(terminal, ended)
    return exit_code(ended, _codes(str(page["dialect"])) if foreign else None)


def _next_shown(status: str, commands: "Sequence[str]") -> "list[str]":
    """Commands that a person needs now: how to answer, or how to resume a run that has ended."""
    if status in ("waiting", "paused"):
        return [*commands]
    return [one for one in commands if one.startswith("loopwright resume ")]


def watch_remote_run(terminal: Terminal, reference: str, *, jsonl: bool, no_wait: bool) -> int:
    """Show a run there from now on, including text as agents write it. At a gate, ask here."""
    from loopwright.cli.gate_prompts import ask_remote  # noqa: PLC0415 - only when asked for

    remote = terminal.remote
    assert remote is not None
    run = remote.run(reference)
    now = remote.get(f"{RUNS}/{quote(run)}/snapshot")
    seen, status = int(now["seq"]), str(now["status"])
    while True:
        if status == "running":
            _show_until_rest(terminal, run, seen, jsonl=jsonl, watch="text")
        now = remote.get(f"{RUNS}/{quote(run)}/snapshot")
        if no_wait or not terminal.can_ask or now["status"] != "waiting":
            break
        seen = int(now["seq"])
        try:
            if not ask_remote(terminal, run):
                break
        except KeyboardInterrupt:
            terminal.tell(f"{run} keeps waiting")
            raise
        rests = remote.get(f"{RUNS}/{quote(run)}")["status"] in ("waiting", "paused")
        status = "waiting" if rests else "running"
    return _finish(terminal, run, jsonl=jsonl)


def _until_rest(
    remote: RemoteClient, run: str, after: int, *, retry: bool, text: bool = False
) -> "Iterator[dict[str, JsonValue]]":
    """Events as they arrive, until the run has ended or only a person can advance it."""
    held = False
    for event in remote.follow(run, after, retry=retry, words=True, text=text):
        yield event
        held = held or event["kind"] in ("gate.opened", "run.paused")
        if held and remote.get(f"{RUNS}/{quote(run)}")["status"] != "running":
            return


def _codes(dialect: str) -> "Mapping[str, int]":
    from loopwright.operations.dialects import exit_codes  # noqa: PLC0415 - help stays quick

    return exit_codes(dialect)


# -- going on otherwise ----------------------------------------------------------------------------


def steer_remote_run(
    terminal: Terminal, reference: str, verb: str, body: "dict[str, JsonValue]"
) -> int:
    """Try again or leave out what a loop of roles there stopped at, and see it through."""
    remote = terminal.remote
    assert remote is not None
    run = remote.run(reference)
    loop = remote.get(f"{LOOPS}/{quote(run)}")
    seen = int(remote.get(f"{RUNS}/{quote(run)}/snapshot")["seq"])
    newest = quote(str(loop["iteration"]["id"]))
    path = {"retry": f"iterations/{newest}/retry", "skip": "skip-stage"}[verb]
    remote.post(f"{LOOPS}/{quote(run)}/{path}", body)
    return follow_remote_run(terminal, run, seen)


def edit_remote_run(remote: RemoteClient, reference: str, body: "dict[str, JsonValue]") -> str:
    """Change a loop of roles that is under way there; its id."""
    run = remote.run(reference)
    remote.patch(f"{LOOPS}/{quote(run)}", body)
    return run


def resume_remote_run(
    terminal: Terminal,
    reference: str,
    body: "dict[str, JsonValue]",
    *,
    jsonl: bool = False,
    detach: bool = False,
) -> int:
    """Resume one run there and see it through, unless it is left to the server."""
    remote = terminal.remote
    assert remote is not None
    run = remote.run(reference)
    seen = int(remote.get(f"{RUNS}/{quote(run)}/snapshot")["seq"])
    now = remote.post(f"{RUNS}/{quote(run)}/resume", body)
    if detach:
        if terminal.as_json:
            terminal.put_json(now)
        else:
            terminal.put(run)
            terminal.say(str(now["message"]))
        return 0
    rests = now["status"] in ("waiting", "paused")  # nothing comes that could be waited for
    return follow_remote_run(
        terminal, run, seen, jsonl=jsonl, watch="nothing" if rests else "events"
    )


def fork_remote_run(
    terminal: Terminal, reference: str, body: "dict[str, JsonValue]", *, jsonl: bool
) -> int:
    """Create a new remote run that continues from a place of another, and follow it."""
    remote = terminal.remote
    assert remote is not None
    made = remote.post(f"{RUNS}/{quote(remote.run(reference))}/fork", body)
    return follow_remote_run(terminal, str(made["run"]), int(made["seq"]), jsonl=jsonl)


def agents_for_request(given: "Sequence[str]") -> "dict[str, JsonValue]":
    """The backends of agents, for all or by name, in the form of a request."""
    from loopwright.operations.run_start import agent_choices  # noqa: PLC0415 - help stays quick

    default, named = agent_choices(given)
    return {**({"agent": default} if default else {}), "agents": dict(named)}


def env_for_request(given: "Sequence[str]") -> "dict[str, JsonValue]":
    """Variables with their values, as a request has them."""
    from loopwright.operations.run_variables import read_variables  # noqa: PLC0415 - help stays quick

    return {"env": {**read_variables(given, os.environ)}} if given else {}


# -- facts in words --------------------------------------------------------------------------------


def _tell(terminal: Terminal, event: "dict[str, JsonValue]", told: "JsonValue") -> None:
    """An event as it is shown here, with its text. A server of a later version may have kinds of
    events that this command does not know.
    """
    kind = str(event["kind"])
    if kind not in known_kinds():
        path = one_line(str(event.get("path", "")))
        terminal.say(f"{path}: unknown event {one_line(kind)}; a newer loopwright would know it")
    elif isinstance(told, dict) and kind != ENDED:  # the end is reported last, with the result
        good = told.get("good")
        detail = str(told.get("detail", ""))
        say_line(
            terminal,
            ProgressLine(str(told.get("text", "")), None if good is None else bool(good), detail),
        )


@cache
def known_kinds() -> frozenset[str]:
    """Every kind of event that this version writes."""
    from loopwright.kernel.events import AnyEvent  # noqa: PLC0415 - help stays quick

    return frozenset(str(kind.__struct_config__.tag) for kind in get_args(AnyEvent))
