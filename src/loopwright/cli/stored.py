"""`stored`: definitions kept by name, of this home or at a server, for runs and for hooks."""

import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from loopwright.cli.address import DEFINITIONS, definition_path
from loopwright.cli.completing import complete_dialects, complete_stored
from loopwright.cli.door import Door
from loopwright.cli.looking import put_rows
from loopwright.cli.piped import SHOWN, STDIN, piped_definition
from loopwright.cli.texts import cleaned, one_line
from loopwright.cli.verb import Verb, door_of, group
from loopwright.errors import Conflict, DefinitionError, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.app.definitions import Definitions
    from loopwright.cli.remote import Remote

Told = dict[str, Any]
_NAME = click.argument("name", metavar="NAME", shell_complete=complete_stored)


class _Shelf(Protocol):
    """Where definitions are stored, here or at a server, as programs read them."""

    def all(self) -> list[Told]:
        """All of them, without their texts."""

    def get(self, name: str) -> Told: ...

    def put(self, name: str, text: str, *, dialect: str | None, seen: int) -> Told:
        """Store it in the place of the version that was seen; 0 is none."""

    def remove(self, name: str) -> None: ...

    def approve(self, name: str, digest: str) -> Told: ...


class _Afar:
    """Those of a server elsewhere."""

    def __init__(self, remote: "Remote") -> None:
        self._remote = remote

    def all(self) -> list[Told]:
        found: list[Told] = []
        cursor: str | None = None
        while True:
            page = self._remote.get(DEFINITIONS, cursor=cursor)
            found += page["definitions"]
            cursor = page["next"]
            if cursor is None:
                return found

    def get(self, name: str) -> Told:
        found: Told = self._remote.get(definition_path(name))
        return found

    def put(self, name: str, text: str, *, dialect: str | None, seen: int) -> Told:
        made: Told = self._remote.put(
            definition_path(name), {"text": text, "dialect": dialect}, seen
        )
        return made

    def remove(self, name: str) -> None:
        self._remote.delete(definition_path(name))

    def approve(self, name: str, digest: str) -> Told:
        told: Told = self._remote.post(f"{definition_path(name)}/approve", {"digest": digest})
        return told


class _Here:
    """Those of this home."""

    def __init__(self, definitions: "Definitions", me: str) -> None:
        from loopwright.app.views.stored import stored_item  # noqa: PLC0415 - help stays quick

        self._definitions, self._me, self._told = definitions, me, stored_item

    def all(self) -> list[Told]:
        return [self._told(one, text=False) for one in self._definitions.all()]

    def get(self, name: str) -> Told:
        return self._told(self._definitions.get(name))

    def put(self, name: str, text: str, *, dialect: str | None, seen: int) -> Told:
        made = self._definitions.save(name, text, by=self._me, dialect=dialect, expected=seen)
        return self._told(made)

    def remove(self, name: str) -> None:
        self._definitions.remove(name, by=self._me)

    def approve(self, name: str, digest: str) -> Told:
        return self._told(self._definitions.approve(name, digest, by=self._me))


@contextmanager
def _shelf(door: Door) -> "Iterator[_Shelf]":
    if door.remote is not None:
        yield _Afar(door.remote)
        return
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick

    with definitions_here(door) as definitions:
        yield _Here(definitions, current_user())


@contextmanager
def definitions_here(door: Door) -> "Iterator[Definitions]":
    """The stored definitions of this home."""
    from loopwright.app.access import Access  # noqa: PLC0415 - help stays quick
    from loopwright.app.definitions import Definitions  # noqa: PLC0415 - help stays quick
    from loopwright.app.opening import open_log  # noqa: PLC0415 - help stays quick
    from loopwright.runtime.clock import SystemClock  # noqa: PLC0415 - help stays quick

    with closing(open_log(door.settings)) as log:
        yield Definitions(log, Access(log, SystemClock()))


# -- looking ---------------------------------------------------------------------------------------


@click.command("ls", cls=Verb, remote=True)
@click.pass_context
def stored_ls(ctx: click.Context, /) -> None:
    """Stored definitions by name."""
    door = door_of(ctx)
    with _shelf(door) as shelf:
        found = shelf.all()
    if door.as_json:
        door.put_json({"definitions": found})
        return
    rows = []
    for one in found:
        state = "ready" if one["enabled"] else "needs approval"
        who = (one["by"] or "-", one["changed_at"])
        rows.append([one["name"], one["dialect"], state, *who, _programs(one)])
    empty = "nothing is stored; `loopwright stored put NAME FILE` stores a definition"
    put_rows(door, ("NAME", "DIALECT", "STATE", "BY", "CHANGED", "PROGRAMS"), rows, empty)


def _programs(one: Told) -> str:
    return ", ".join(map(str, one["programs"])) or "-"


@click.command("show", cls=Verb, remote=True)
@_NAME
@click.option("--source", is_flag=True, help="The text as it was stored, and nothing else.")
@click.pass_context
def stored_show(ctx: click.Context, /, *, name: str, source: bool) -> None:
    """One stored definition: who stored it and when, and whether it may be run."""
    door = door_of(ctx)
    with _shelf(door) as shelf:
        found = shelf.get(name)
    if door.as_json:
        door.put_json(found)
    elif source:
        _put_source(door, str(found["text"]))
    else:
        _put_one(door, found)


def _put_source(door: Door, text: str) -> None:
    """On a terminal nothing hidden may drive it; whatever else reads gets every byte."""
    if sys.stdout.isatty():
        door.put(cleaned(text))
        return
    sys.stdout.buffer.write(text.encode(errors="surrogatepass"))
    sys.stdout.buffer.flush()


def _put_one(door: Door, one: Told) -> None:
    name, digest = one["name"], one["digest"]
    state = "ready"
    if not one["enabled"]:
        state = f"needs approval: `loopwright stored approve {name} {digest}`"
    rows = [
        ("name", name),
        ("dialect", one["dialect"]),
        ("digest", digest),
        ("stored", f"by {one['by'] or '-'} at {one['changed_at']}, version {one['version']}"),
        ("state", state),
        ("programs", _programs(one)),
    ]
    for key, value in rows:
        door.put(f"{key:<9} {one_line(str(value))}")


# -- changing --------------------------------------------------------------------------------------


@click.command(
    "put",
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright stored put triage triage.yaml", "then: loopwright run stored:triage"),
        ("loopwright stored put triage triage.yaml --replace", "what is stored so far goes"),
    ],
)
@_NAME
@click.argument("file", metavar="FILE|-")
@click.option(
    "--dialect", metavar="NAME", shell_complete=complete_dialects, help="Do not guess the dialect."
)
@click.option("--replace", is_flag=True, help="Replace the definition that is stored by that name.")
@click.pass_context
def stored_put(
    ctx: click.Context, /, *, name: str, file: str, dialect: str | None, replace: bool
) -> None:
    """Store the text of a definition under a name, so that runs and hooks can be started by it.

    A change by somebody else meanwhile is not overwritten. Files that a definition names are not
    stored with it: such a definition is refused.
    """
    door = door_of(ctx)
    shown = SHOWN if file == STDIN else file
    text = _read(ctx, file, shown)
    with _shelf(door) as shelf:
        seen = _version(shelf, name)
        if seen and not replace:
            raise _taken(name)
        try:
            made = shelf.put(name, text, dialect=dialect, seen=seen)
        except Conflict as conflict:
            raise (_changed(name) if seen else _taken(name)) from conflict
        except DefinitionError as error:
            raise _told_as(error, name, shown) from error
    _warn(door, text, shown, dialect)
    where = f" --server {door.remote.url}" if door.remote is not None else ""
    door.done(f"{name} is stored; `loopwright run stored:{name}{where}` runs it", made)


def _read(ctx: click.Context, file: str, shown: str) -> str:
    """The text of a file or of stdin. One that is none is told as `run` tells it."""
    from loopwright.app.dialects import (  # noqa: PLC0415 - help stays quick
        definition_bytes,
        parse_definition,
    )

    data = piped_definition(ctx) if file == STDIN else definition_bytes(Path(file), shown)
    try:
        return data.decode()
    except UnicodeDecodeError:
        parse_definition(data, file=shown)
        raise


def _version(shelf: _Shelf, name: str) -> int:
    try:
        return int(shelf.get(name)["version"])
    except NotFound:
        return 0


def _taken(name: str) -> Conflict:
    hint = "give another name, or --replace to put this in its place"
    return Conflict(f"{name} is stored already", code="name-taken", hint=hint)


def _changed(name: str) -> Conflict:
    hint = f"`loopwright stored show {name}` shows what is there now"
    return Conflict(f"{name} was changed meanwhile", code="changed-meanwhile", hint=hint)


def _told_as(error: DefinitionError, name: str, file: str) -> DefinitionError:
    """What is wrong with a definition, with the file as it is called here."""
    from loopwright.cli.afar import renamed  # noqa: PLC0415 - errors only

    words = error.message.removeprefix(f"{name} ")
    message = f"{file} {words}" if words != error.message else words
    return DefinitionError(message, problems=[renamed(one, name, file) for one in error.problems])


def _warn(door: Door, text: str, shown: str, dialect: str | None) -> None:
    from loopwright.app.dialects import parse_definition  # noqa: PLC0415 - help stays quick

    try:
        read = parse_definition(text.encode(), file=shown, force=dialect)
    except DefinitionError:  # a server of a later version may take what is none here
        return
    for warning in read.warnings:
        door.say(warning.render(), tone="warn")


@click.command("rm", cls=Verb, remote=True)
@_NAME
@click.pass_context
def stored_rm(ctx: click.Context, /, *, name: str) -> None:
    """Delete a stored definition; its runs continue."""
    door = door_of(ctx)
    with _shelf(door) as shelf:
        shelf.remove(name)
    door.done(f"{name} is deleted", {"name": name, "removed": True})


@click.command("approve", cls=Verb, remote=True)
@_NAME
@click.argument("digest", metavar="DIGEST")
@click.pass_context
def stored_approve(ctx: click.Context, /, *, name: str, digest: str) -> None:
    """Let a definition from elsewhere be run, exactly as it was shown with this digest."""
    door = door_of(ctx)
    with _shelf(door) as shelf:
        told = shelf.approve(name, digest)
    door.done(f"{name} may be run now", told)


_GROUP = group(
    "stored",
    "Definitions stored by name. `run stored:NAME` runs one.",
    [stored_ls, stored_show, stored_put, stored_rm, stored_approve],
)

VERBS = {"stored": _GROUP}
