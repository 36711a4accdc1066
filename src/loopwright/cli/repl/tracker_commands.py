"""Commands of the prompt about projects, sprints, todos and artifacts."""

import shlex
from pathlib import Path
from typing import Any, TypeVar

from loopwright.cli.artifact import SESSION, put_artifacts, read_upload
from loopwright.cli.repl.session import ReplSession
from loopwright.cli.trackers import put_list
from loopwright.errors import InputError
from loopwright.model.record import JsonValue
from loopwright.model.trackers import TODO_STATUSES
from loopwright.operations.api_types import Request
from loopwright.operations.problems import unknown_input
from loopwright.operations.trackers import UPLOAD_BYTES
from loopwright.operations.use_cases import artifacts, trackers
from loopwright.operations.use_cases.operation import Operation, local_app, local_caller
from loopwright.syntax.document import did_you_mean

Q = TypeVar("Q", bound=Request)
A = TypeVar("A")


class Misused(Exception):
    """A command without what it needs."""


async def _call(session: ReplSession, operation: Operation[Q, A], request: Q) -> A:
    service = session.here.service
    app = local_app(service, session.terminal.settings)
    return await operation(app, local_caller(service.via), request)


def _scope(session: ReplSession, reference: str) -> dict[str, Any]:
    """The fields that name a run or a session in a request."""
    if reference.startswith(SESSION):
        return {"session": reference}
    return {"run": session.here.service.find(reference)}


def _put_one(session: ReplSession, one: dict[str, JsonValue]) -> None:
    words = [one[key] for key in ("id", "slug", "status", "title") if one.get(key)]
    session.terminal.put("  ".join(map(str, words)))


def _words(rest: str, count: int) -> list[str]:
    """The first words, and the rest as one; Misused if there are fewer."""
    found = rest.split(maxsplit=count - 1)
    if len(found) != count:
        raise Misused
    return found


def split_title(rest: str, option: str) -> tuple[str, str]:
    """A title and the value of its one option, which may be left out. Quotes around a title are
    not part of it.
    """
    try:
        words = shlex.split(rest)
    except ValueError:  # a single quote, as in "Bob's part"
        words = rest.split()
    value = ""
    if option in words:
        at = words.index(option)
        value = words[at + 1] if at + 1 < len(words) else ""
        if not value:
            hint = f"write a value after {option}, or leave it out"
            raise InputError(f"{option} needs a value", code="missing-field", hint=hint)
        del words[at : at + 2]
    for word in words:
        if word.startswith("--") and word != "--":
            raise _unknown_option(word, option)
    return " ".join(words), value


def _unknown_option(word: str, option: str) -> InputError:
    error = unknown_input(word)
    near = did_you_mean(word, [option])
    error.hint = f"there is no option {word}; {near or f'this command has {option}'}"
    return error


async def show_projects(session: ReplSession, rest: str) -> None:
    found = await _call(session, trackers.list_projects, trackers.ListProjects(status=rest))
    put_list(session.terminal, "projects", found.projects, at_prompt=True)


async def create_project(session: ReplSession, rest: str) -> None:
    title, slug = split_title(rest, "--slug")
    wanted = trackers.CreateProject(title=title, slug=slug)
    _put_one(session, await _call(session, trackers.create_project, wanted))


async def change_project(session: ReplSession, rest: str) -> None:
    project, status = _words(rest, 2)
    wanted = trackers.ChangeProject(project=project, status=status)
    _put_one(session, await _call(session, trackers.change_project, wanted))


async def show_sprints(session: ReplSession, rest: str) -> None:
    found = await _call(session, trackers.list_sprints, trackers.ListSprints(project=rest))
    put_list(session.terminal, "sprints", found.sprints, at_prompt=True)


async def create_sprint(session: ReplSession, rest: str) -> None:
    project, written = _words(rest, 2)
    title, criteria = split_title(written, "--criteria")
    wanted = trackers.CreateSprint(project=project, title=title, criteria=criteria)
    _put_one(session, await _call(session, trackers.create_sprint, wanted))


async def move_sprint(session: ReplSession, rest: str) -> None:
    sprint, status, *notes = rest.split(maxsplit=2) if rest.count(" ") else _words(rest, 2)
    wanted = trackers.MoveSprint(sprint=sprint, status=status, notes=notes[0] if notes else "")
    _put_one(session, await _call(session, trackers.move_sprint, wanted))


async def show_todos(session: ReplSession, rest: str) -> None:
    reference, _, status = (rest or "last").partition(" ")
    if reference in TODO_STATUSES and not status:  # of the newest run
        reference, status = "last", reference
    wanted = trackers.ListTodos(status=status.strip(), **_scope(session, reference))
    found = await _call(session, trackers.list_todos, wanted)
    put_list(session.terminal, "todos", found.todos, at_prompt=True)


async def add_todo(session: ReplSession, rest: str) -> None:
    reference, written = _words(rest, 2)
    title, priority = split_title(written, "--priority")
    scope = _scope(session, reference)
    wanted = trackers.AddTodo(title=title, priority=priority or "medium", **scope)
    _put_one(session, await _call(session, trackers.add_todo, wanted))


async def change_todo(session: ReplSession, rest: str) -> None:
    reference, todo, status = _words(rest, 3)
    wanted = trackers.ChangeTodo(todo=todo, status=status, **_scope(session, reference))
    _put_one(session, await _call(session, trackers.change_todo, wanted))


async def show_artifacts(session: ReplSession, rest: str) -> None:
    wanted = artifacts.OfRunOrSession(**_scope(session, rest or "last"))
    found = await _call(session, artifacts.list_artifacts, wanted)
    put_artifacts(session.terminal, found.artifacts)


async def put_artifact(session: ReplSession, rest: str) -> None:
    reference, file = _words(rest, 2)
    scope, data = _scope(session, reference), read_upload(file, UPLOAD_BYTES)
    given = artifacts.UploadArtifact(data=data, name=Path(file).name, **scope)
    put_artifacts(session.terminal, (await _call(session, artifacts.upload, given)).artifacts)
