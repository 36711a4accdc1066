"""Commands of the prompt about projects, sprints, todos and artifacts."""

import shlex
from pathlib import Path

from msgspec.structs import asdict

from loopwright.cli.artifact import put_artifacts, read_upload
from loopwright.cli.repl.session import ReplSession
from loopwright.cli.trackers import SESSION, put_list
from loopwright.errors import InputError
from loopwright.model.record import JsonValue
from loopwright.model.trackers import TODO_STATUSES
from loopwright.operations.accounts.access import Access
from loopwright.operations.problems import unknown_input
from loopwright.operations.runs import current_user
from loopwright.operations.trackers import (
    UPLOAD_BYTES,
    ArtifactAccess,
    ArtifactScope,
    TrackerOperations,
    artifact_view,
)
from loopwright.operations.uploads import Uploads
from loopwright.syntax.document import did_you_mean


class Misused(Exception):
    """A command without what it needs."""


def _given(session: ReplSession) -> ArtifactAccess:
    here, settings = session.here, session.terminal.settings
    access = Access(here.log, here.service.clock)
    uploads = Uploads(home=settings.home, trackers=here.trackers, clock=here.service.clock)
    return ArtifactAccess(
        log=here.log, tracker_scopes=here.tracker_scopes, uploads=uploads, access=access
    )


def _trackers(session: ReplSession) -> TrackerOperations:
    return TrackerOperations(given=_given(session), by=current_user())


def _where(session: ReplSession, reference: str) -> ArtifactScope:
    given = _given(session)
    if reference.startswith(SESSION):
        return given.of_session(reference)
    return given.of_run(session.here.service.find(reference))


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
    put_list(session.terminal, "projects", _trackers(session).projects(rest), at_prompt=True)


async def create_project(session: ReplSession, rest: str) -> None:
    title, slug = split_title(rest, "--slug")
    _put_one(session, _trackers(session).create_project(title, slug=slug))


async def change_project(session: ReplSession, rest: str) -> None:
    project, status = _words(rest, 2)
    _put_one(session, _trackers(session).change_project(project, {"status": status}))


async def show_sprints(session: ReplSession, rest: str) -> None:
    put_list(session.terminal, "sprints", _trackers(session).sprints(rest), at_prompt=True)


async def create_sprint(session: ReplSession, rest: str) -> None:
    project, written = _words(rest, 2)
    title, criteria = split_title(written, "--criteria")
    _put_one(session, _trackers(session).create_sprint(project, title, criteria=criteria))


async def move_sprint(session: ReplSession, rest: str) -> None:
    sprint, status, *notes = rest.split(maxsplit=2) if rest.count(" ") else _words(rest, 2)
    line = _trackers(session).move_sprint(sprint, status, notes=notes[0] if notes else "")
    _put_one(session, line)


async def show_todos(session: ReplSession, rest: str) -> None:
    reference, _, status = (rest or "last").partition(" ")
    if reference in TODO_STATUSES and not status:  # of the newest run
        reference, status = "last", reference
    found = _trackers(session).todos(_where(session, reference), status.strip())
    put_list(session.terminal, "todos", found, at_prompt=True)


async def add_todo(session: ReplSession, rest: str) -> None:
    reference, written = _words(rest, 2)
    title, priority = split_title(written, "--priority")
    where = _where(session, reference)
    _put_one(session, _trackers(session).add_todo(where, title, priority=priority or "medium"))


async def change_todo(session: ReplSession, rest: str) -> None:
    reference, todo, status = _words(rest, 3)
    where = _where(session, reference)
    _put_one(session, _trackers(session).change_todo(where, todo, {"status": status}))


async def show_artifacts(session: ReplSession, rest: str) -> None:
    found = _given(session).all(_where(session, rest or "last"))
    put_artifacts(session.terminal, [asdict(artifact_view(one)) for one in found])


async def put_artifact(session: ReplSession, rest: str) -> None:
    reference, file = _words(rest, 2)
    given, where = _given(session), _where(session, reference)
    files = [given.uploads.keep(Path(file).name, read_upload(file, UPLOAD_BYTES))]
    added = given.added(where, files, by=current_user())
    items = given.uploads.enter(where.scope, files, added)
    put_artifacts(session.terminal, [asdict(artifact_view(one)) for one in items])
