"""The commands of the prompt as one table: syntax, completion and action of each."""

import argparse
import re
import shlex
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from loopwright.cli.inbox import put_inbox
from loopwright.cli.repl.session import ReplSession, suggest_command
from loopwright.cli.repl.tracker_commands import (
    Misused,
    add_todo,
    change_project,
    change_todo,
    create_project,
    create_sprint,
    move_sprint,
    put_artifact,
    show_artifacts,
    show_projects,
    show_sprints,
    show_todos,
)
from loopwright.cli.run_lists import put_runs
from loopwright.cli.show import put_run
from loopwright.errors import DefinitionError, LoopwrightError
from loopwright.model.actions import Decision
from loopwright.model.record import JsonValue
from loopwright.operations.accounts.access import current_user
from loopwright.operations.library import DefinitionLibrary
from loopwright.operations.loops.loop_details import edit, edit_of, retry, skip
from loopwright.operations.mcp.loop_tools import described
from loopwright.operations.messages import WHEN_WORDS
from loopwright.operations.problems import known_problem
from loopwright.operations.run_control import (
    ResumeChanges,
    resume_all,
    runs_to_pause,
)
from loopwright.operations.run_lists import run_item
from loopwright.operations.run_start import StartPlace, named_source, prepare_start, start_request
from loopwright.operations.run_variables import names_only
from loopwright.operations.use_cases import runs as operations
from loopwright.operations.use_cases.gates import NamedAnswer, answer_named
from loopwright.operations.use_cases.operation import RunReference
from loopwright.operations.use_cases.run_changes import MessageRun, send_message
from loopwright.operations.use_cases.run_queries import run_detail
from loopwright.ports import CHAT_SURFACE
from loopwright.syntax.document import Diagnostic

NEWEST = 20
USAGE_EXIT_CODE = 2
_EDITS = {"goal": "goal", "max": "max_iterations", "labels": "labels"}
ALL = "all"
_NEW_TODO = "RUN|SESSION TITLE [--priority LEVEL]"
_FLAGS = "[--input NAME=VALUE] [--max N] [--worktree] [--allow-unknown-cost]"
_RESUME = (
    "resume RUN|all [--max N] [--budget LIMITS] [--time DURATION] [--agent SPEC] [--restart] "
    "[--accept-changes] [--allow-unknown-cost] [--env NAME]"
)
Act = Callable[[ReplSession, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ReplCommand:
    """A command: its words, its arguments, its description."""

    words: str
    usage: str
    about: str
    act: Act
    takes: str = ""  # what Tab offers after it: `run`, `gate` or `open`


async def obey(session: ReplSession, line: str) -> bool:
    """Run a line; False if the person wants to leave."""
    line = line.strip()
    if not line:
        return True
    if line in ("/quit", "/exit"):
        return False
    if not line.startswith("/"):
        session.failures.append(USAGE_EXIT_CODE)
        session.terminal.tell("commands begin with /; /help lists them", tone="warn")
        return True
    command, rest = _found(line)
    if command is None or (rest and command.usage == command.words):  # it takes nothing more
        session.failures.append(USAGE_EXIT_CODE)
        session.terminal.tell(_unknown(line, command), tone="warn")
        return True
    try:
        await command.act(session, rest)
    except Misused:
        session.failures.append(USAGE_EXIT_CODE)
        session.terminal.tell(f"write {command.usage}", tone="warn")
    except LoopwrightError as error:
        session.failures.append(known_problem(error).exit)
        _print_problem(session, error)
    return True


def _unknown(line: str, command: ReplCommand | None) -> str:
    """A suggestion for an unknown command."""
    words = line.split()
    written = " ".join(words[: 1 if command is None else len(command.words.split()) + 1])
    near = suggest_command(words, [one.words for one in COMMANDS])
    below = [one.words for one in COMMANDS if one.words.startswith(f"{words[0]} ")]
    there = f"there are {', '.join(below)}" if below else "/help lists them"
    return f"unknown command {written} ({f'did you mean {near}?' if near else there})"


def _print_problem(session: ReplSession, error: LoopwrightError) -> None:
    """A command that failed, as a message."""
    problems = error.problems if isinstance(error, DefinitionError) else ()
    found = [one.render() for one in problems if isinstance(one, Diagnostic)]
    hint = f"\n  {error.hint}" if error.hint and not isinstance(error, DefinitionError) else ""
    for line in found or [f"{error.message}{hint}"]:
        session.terminal.tell(line, tone="bad")


def complete(session: ReplSession, before: str) -> Iterator[str]:
    """Completions for the last word of a line."""
    words = before.split()
    if before.endswith(" ") or not words:
        words.append("")
    command, _ = _found(" ".join(words[:-1]))
    nested = {
        one.words.split()[len(words) - 1]
        for one in COMMANDS
        if one.words.split()[: len(words) - 1] == words[:-1]
        and len(one.words.split()) >= len(words)
    }
    yield from sorted(nested)
    service = session.here.service
    if command is not None and command.takes == "gate":
        yield from (gate.gate for gate in service.gates())
    if command is not None and command.takes in ("run", "open"):
        yield from (row.run for row in service.rows(limit=NEWEST))
        if command.takes == "open":
            yield ALL


def _found(line: str) -> tuple[ReplCommand | None, str]:
    """The longest command that a line begins with, and its arguments."""
    words = line.split()
    for count in (2, 1):
        name = " ".join(words[:count])
        for one in COMMANDS:
            if one.words == name:
                return one, line.split(maxsplit=count)[count] if len(words) > count else ""
    return None, ""


# -- looking ---------------------------------------------------------------------------------------


async def _help(session: ReplSession, rest: str) -> None:
    wanted = f"/{rest.removeprefix('/')}" if rest else ""
    for one in COMMANDS:
        if one.words.startswith(wanted):
            session.terminal.put(f"{one.usage:<46} {one.about}")
    if not wanted:
        session.terminal.put(f"{'/quit':<46} leave")


async def _loops(session: ReplSession, _: str) -> None:
    service = session.here.service
    rows = [row for row in service.rows(limit=NEWEST) if row.headline.surface != CHAT_SURFACE]
    items = [run_item(service.log, row) for row in rows]
    if items:
        put_runs(session.terminal, items)
    else:
        session.terminal.put("no loops yet")


async def _status(session: ReplSession, rest: str) -> None:
    if not rest:
        await _loops(session, "")
        return
    service = session.here.service
    put_run(session.terminal, run_detail(service, service.find(rest)))


async def _inbox(session: ReplSession, _: str) -> None:
    put_inbox(session.terminal, session.here.service.inbox())


# -- starting --------------------------------------------------------------------------------------


_START_FLAGS = ("--worktree", "--allow-unknown-cost")
_START_VALUES = ("--input", "--max")


def _start_options(rest: str) -> tuple[set[str], dict[str, list[str]], str, str]:
    """Flags, options with their values, the definition, and the goal as it is written."""
    flags: set[str] = set()
    given: dict[str, list[str]] = {name: [] for name in _START_VALUES}
    name, message = _next_word(rest)
    while name in _START_FLAGS or name in _START_VALUES:
        if name in _START_FLAGS:
            flags.add(name)
        else:
            value, message = _next_word(message)
            given[name].append(value)
        name, message = _next_word(message)
    return flags, given, name, message.strip()


def _next_word(text: str) -> tuple[str, str]:
    """The first word of a text, which may have a part in quotes, and the rest."""
    found = re.match(r"""\s*((?:[^\s"']|"[^"]*"|'[^']*')+)\s*""", text)
    if found is None:
        return "", ""
    return re.sub(r"""["']""", "", found[1]), text[found.end() :]


async def _start(session: ReplSession, rest: str) -> None:
    flags, given, name, message = _start_options(rest)
    most = given["--max"][-1] if given["--max"] else ""
    if not name or name.startswith("--") or (given["--max"] and not most.isdecimal()):
        raise Misused
    request = start_request(
        {
            "inputs": given["--input"],
            "max": int(most) if most else None,
            "worktree": True if "--worktree" in flags else None,
            "allow_unknown_cost": "--allow-unknown-cost" in flags,
            "message": message or None,
            "agents": session.agents,
        }
    )
    place = StartPlace(settings=session.terminal.settings, can_ask=True)
    start, definition = prepare_start(place, request, named_source(name))
    for warning in definition.warnings:
        session.terminal.tell(warning.render(), tone="warn")
    run = await session.start(start)
    session.terminal.put(run)


# -- deciding --------------------------------------------------------------------------------------


def _answer(decision: str) -> Act:
    async def act(session: ReplSession, rest: str) -> None:
        reference, _, text = rest.partition(" ")
        if not reference:
            raise Misused
        reply = NamedAnswer(decision=cast(Decision, decision), text=text.strip())
        answered = await answer_named(session.app, session.caller, reference, reply)
        session.terminal.put(f"{answered.run}: {decision}")

    return act


# -- steering --------------------------------------------------------------------------------------


async def _pause(session: ReplSession, rest: str) -> None:
    service = session.here.service
    if not rest:
        raise Misused
    runs = runs_to_pause(service) if rest.casefold() == ALL else [service.find(rest)]
    paused = [run for run in runs if service.log.row(run).headline.status != "paused"]
    for run in paused:
        await operations.pause(session.app, session.caller, RunReference(run=run))
    _count(session, "paused", paused, runs)


async def _resume(session: ReplSession, rest: str) -> None:
    if not rest:
        raise Misused
    here = session.here
    if rest.casefold() != ALL:
        reference, changes = _resume_options(rest)
        one = await operations.resume_named(session.app, session.caller, reference, changes)
        session.show(one.run, seen=one.seen)
        session.terminal.say(one.words)
        return
    taken = await resume_all(here)
    for one in taken:
        session.show(one.run, seen=one.seen)
    runs = [one.run for one in taken]
    _count(session, "resumed", runs, runs)


def _resume_options(rest: str) -> tuple[str, ResumeChanges]:
    """The run and the options of `resume RUN --max N --budget LIMITS --time T --agent SPEC
    --restart --accept-changes --allow-unknown-cost --env NAME`.
    """
    parser = argparse.ArgumentParser(prog="resume", add_help=False, exit_on_error=False)
    parser.add_argument("run")
    parser.add_argument("--agent", action="append", default=[])
    parser.add_argument("--budget")
    parser.add_argument("--max", type=int)
    parser.add_argument("--time")
    parser.add_argument("--restart", action="store_true")
    parser.add_argument("--allow-unknown-cost", action="store_true")
    parser.add_argument("--accept-changes", action="store_true")
    parser.add_argument("--env", action="append", default=[])
    try:
        given, unknown = parser.parse_known_args(shlex.split(rest))
    except (argparse.ArgumentError, ValueError, SystemExit) as error:
        raise Misused from error
    if unknown:
        raise Misused
    changes = ResumeChanges(
        agents=tuple(given.agent),
        budget=given.budget,
        passes=given.max,
        time=given.time,
        restart=given.restart,
        allow_unknown_cost=given.allow_unknown_cost,
        accept_changes=given.accept_changes,
        env=names_only(given.env, "the history of this prompt"),
    )
    return given.run, changes


async def _stop(session: ReplSession, rest: str) -> None:
    if not rest:
        raise Misused
    app, caller, service = session.app, session.caller, session.here.service
    if rest.casefold() == ALL:
        runs = await operations.stop_all_open(app, caller)
    else:
        runs = [(await operations.stop_open(app, caller, service.find(rest))).run]
    _count(session, "stopped", runs, runs)


def _what_it_stopped_at(word: str) -> Act:
    """Try again or leave out the stage that a loop of roles stopped at."""
    act_on = retry if word == "retry" else skip

    async def act(session: ReplSession, rest: str) -> None:
        reference, _, note = rest.partition(" ")
        allow = reference == "--allow-unknown-cost"
        if allow:
            reference, _, note = note.strip().partition(" ")
        if not reference:
            raise Misused
        service, changes = session.here.service, ResumeChanges(allow_unknown_cost=allow)
        seen = session.here.log.version(service.find(reference))
        run = await act_on(
            service, reference, note=note.strip(), by=current_user(), changes=changes
        )
        session.show(run, seen=seen)
        session.terminal.put(f"{run}: {word}")

    return act


async def _message(session: ReplSession, rest: str) -> None:
    reference, _, text = rest.partition(" ")
    if not text.strip():
        raise Misused
    run = session.here.service.find(reference)
    request = MessageRun(run=run, text=text.strip())
    sent = await send_message(session.app, session.caller, request)
    session.terminal.put(f"{sent.run}: message {sent.message}: {WHEN_WORDS[sent.when]}")


async def _edit(session: ReplSession, rest: str) -> None:
    reference, _, change = rest.partition(" ")
    name, _, value = change.strip().partition(" ")
    if name not in _EDITS or not value.strip():
        raise Misused
    wanted = edit_of({_EDITS[name]: _edited(name, value.strip())})
    run = await edit(session.here.service, reference, wanted, by=current_user())
    session.terminal.put(f"{run}: changed {name}")


def _edited(name: str, value: str) -> JsonValue:
    if name == "labels":
        return [*value.split()]
    if name == "max":
        return (
            None
            if value == "none"
            else int(value)
            if value.isascii() and value.isdigit()
            else value
        )
    return value


async def _definitions(session: ReplSession, _: str) -> None:
    for one in DefinitionLibrary(session.terminal.settings.home, Path.cwd()).all():
        session.terminal.put(described(one))


def _count(session: ReplSession, word: str, changed: list[str], runs: list[str]) -> None:
    for run in runs:
        session.terminal.put(f"{run}: {word}" if run in changed else f"{run} was {word} already")
    if not runs:
        session.terminal.put(f"nothing to do: 0 {word}")
    elif len(runs) > 1:
        session.terminal.put(f"{len(changed)} {word}")


COMMANDS = (
    ReplCommand("/help", "/help [COMMAND]", "what can be written here", _help),
    ReplCommand("/loops", "/loops", "every loop with its status and progress", _loops),
    ReplCommand(
        "/loops start", f"/loops start {_FLAGS} FILE|NAME GOAL", "start a loop here", _start
    ),
    ReplCommand("/loops status", "/loops status RUN", "one loop in detail", _status, "run"),
    ReplCommand(
        "/loops definitions", "/loops definitions", "what can be run by its name", _definitions
    ),
    ReplCommand(
        "/loops retry",
        "/loops retry [--allow-unknown-cost] RUN [NOTE]",
        "try again the stage that it stopped at",
        _what_it_stopped_at("retry"),
        "run",
    ),
    ReplCommand(
        "/loops skip",
        "/loops skip [--allow-unknown-cost] RUN [NOTE]",
        "leave that stage out",
        _what_it_stopped_at("skip"),
        "run",
    ),
    ReplCommand(
        "/loops tell", "/loops tell RUN TEXT", "send a message to its agents", _message, "open"
    ),
    ReplCommand("/loops edit", "/loops edit RUN goal|max|labels VALUE", "change it", _edit, "open"),
    ReplCommand(
        "/loops pause", "/loops pause RUN|all", "pause after the current stage", _pause, "open"
    ),
    ReplCommand("/loops resume", f"/loops {_RESUME}", "continue it here", _resume, "run"),
    ReplCommand("/loops stop", "/loops stop RUN|all", "end it now", _stop, "open"),
    ReplCommand("/projects", "/projects [STATUS]", "projects that loops belong to", show_projects),
    ReplCommand(
        "/projects create",
        "/projects create TITLE [--slug SLUG]",
        "create a project",
        create_project,
    ),
    ReplCommand(
        "/projects change",
        "/projects change PROJECT STATUS",
        "active, completed or archived",
        change_project,
    ),
    ReplCommand(
        "/sprints", "/sprints [PROJECT]", "sprints of active projects, or of one", show_sprints
    ),
    ReplCommand(
        "/sprints create",
        "/sprints create PROJECT TITLE [--criteria TEXT]",
        "plan a sprint",
        create_sprint,
    ),
    ReplCommand(
        "/sprints move", "/sprints move SPRINT STATUS [NOTES]", "its next status", move_sprint
    ),
    ReplCommand(
        "/todos", "/todos [RUN|SESSION] [STATUS]", "todos of the newest run, or of one", show_todos
    ),
    ReplCommand("/todos add", f"/todos add {_NEW_TODO}", "add a todo", add_todo, "run"),
    ReplCommand(
        "/todos change", "/todos change RUN|SESSION TODO STATUS", "its status", change_todo, "run"
    ),
    ReplCommand(
        "/artifacts", "/artifacts [RUN|SESSION]", "what was made or given", show_artifacts, "run"
    ),
    ReplCommand(
        "/artifacts put", "/artifacts put RUN|SESSION FILE", "give it a file", put_artifact, "run"
    ),
    ReplCommand("/inbox", "/inbox", "what waits for a person", _inbox),
    ReplCommand("/workflow list", "/workflow list", "the newest runs", _loops),
    ReplCommand(
        "/workflow run",
        f"/workflow run {_FLAGS} FILE [MESSAGE]",
        "start a workflow here",
        _start,
    ),
    ReplCommand(
        "/workflow status", "/workflow status [RUN]", "all, or one in detail", _status, "run"
    ),
    ReplCommand(
        "/workflow approve",
        "/workflow approve GATE|RUN [TEXT]",
        "continue a run",
        _answer("approve"),
        "gate",
    ),
    ReplCommand(
        "/workflow reject",
        "/workflow reject GATE|RUN [TEXT]",
        "turn it down",
        _answer("reject"),
        "gate",
    ),
    ReplCommand(
        "/workflow continue",
        "/workflow continue GATE|RUN TEXT",
        "ask for another iteration",
        _answer("continue"),
        "gate",
    ),
    ReplCommand("/workflow resume", f"/workflow {_RESUME}", "continue it here", _resume, "run"),
    ReplCommand("/workflow cancel", "/workflow cancel RUN|all", "end it now", _stop, "open"),
    ReplCommand(
        "/workflow abandon", "/workflow abandon RUN", "give it up permanently", _stop, "run"
    ),
)
