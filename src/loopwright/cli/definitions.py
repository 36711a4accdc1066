"""Definitions by name: `definitions`, `stored` definitions and the `roles` of agents.

Stored definitions are in the data directory or on a server; runs and incoming webhooks use them.
"""

import sys
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from loopwright.cli.completion import complete_dialects, complete_stored
from loopwright.cli.formats import put_rows, table, terminal_width
from loopwright.cli.start_options import STDIN, STDIN_NAME, piped_definition
from loopwright.cli.terminal import Terminal, cleaned, one_line
from loopwright.cli.verb import CONTEXT, Verb, common_options, group, terminal_of
from loopwright.errors import Conflict, DefinitionError, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.client.client import CommandClient
    from loopwright.model.record import JsonValue
    from loopwright.operations.agents.roles import RoleFile
    from loopwright.operations.api_types import DefinitionItem
    from loopwright.operations.definitions import Definitions
    from loopwright.operations.library import DefinitionLibrary, LibraryEntry
    from loopwright.operations.use_cases.definitions import DefinitionReference

WRONG = 2


def _known(terminal: Terminal) -> "DefinitionLibrary":
    from pathlib import Path  # noqa: PLC0415 - help stays quick

    from loopwright.operations.library import DefinitionLibrary  # noqa: PLC0415 - help stays quick

    return DefinitionLibrary(terminal.settings.home, Path.cwd())


def _complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    names = _known(terminal_of(ctx)).names()
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command(
    "show", cls=Verb, examples=[("loopwright definitions show harness", "its stages, in words")]
)
@click.argument("name", metavar="NAME", shell_complete=_complete)
@click.option("--source", is_flag=True, help="The file as it is written, to copy and change.")
@click.pass_context
def show(ctx: click.Context, /, *, name: str, source: bool) -> int:
    """Show one definition: its stages, what ends it, its parameters."""
    terminal = terminal_of(ctx)
    found = _known(terminal).get(name)
    if terminal.as_json:
        terminal.put_json(found.as_dict())
    elif source:
        terminal.put(cleaned(found.data.decode(errors="replace")).rstrip("\n"))
    else:
        _put_definition(terminal, found)
    return 0 if found.is_valid else WRONG


@click.command("validate", cls=Verb)
@click.argument("name", metavar="[NAME]", required=False, shell_complete=_complete)
@click.pass_context
def validate(ctx: click.Context, /, *, name: str | None) -> int:
    """Check one definition, or all. Exit code 2 if one is invalid."""
    terminal = terminal_of(ctx)
    known = _known(terminal)
    found = known.all() if name is None else [known.get(name)]
    if terminal.as_json:
        terminal.put_json({"definitions": [one.as_dict() for one in found]})
    for problem in [problem for one in found for problem in one.problems]:
        terminal.tell(problem.render(), tone="bad" if problem.severity == "error" else "warn")
    wrong = [one for one in found if not one.is_valid]
    if not wrong:
        terminal.say(f"{len(found)} definitions: valid" if len(found) > 1 else "valid", tone="good")
    return WRONG if wrong else 0


@click.command(
    "diff",
    cls=Verb,
    examples=[("loopwright definitions diff harness", "what you have changed in it")],
)
@click.argument("name", metavar="NAME", shell_complete=_complete)
@click.pass_context
def diff(ctx: click.Context, /, *, name: str) -> None:
    """How a definition differs from the built-in one of its name."""
    terminal = terminal_of(ctx)
    text = _known(terminal).difference(name)
    if terminal.as_json:
        terminal.put_json({"name": name, "diff": text})
    elif text:
        terminal.put(cleaned(text).rstrip("\n"))
    else:
        terminal.say(f"{name} is as it is built in")


@click.group(
    context_settings=CONTEXT,
    invoke_without_command=True,
    params=common_options(),
    commands={"show": show, "validate": validate, "diff": diff},
)
@click.pass_context
def definitions(ctx: click.Context, /) -> None:
    """What `loopwright run NAME` knows: the project's definitions in .loopwright/loops/, your own
    in the folder loops/ of the data directory, and those that are built in. A definition of the
    project overrides one of the same name. Files that cannot be used are listed too, with their
    errors.
    """
    if ctx.invoked_subcommand is not None:
        return
    terminal = terminal_of(ctx)
    found = _known(terminal).all()
    if terminal.as_json:
        listed: list[JsonValue] = [one.as_dict() for one in found]
        terminal.put_json({"definitions": listed, "count": len(listed)})
        return
    _put_table(terminal, found)
    for one in found:
        for problem in one.problems if not one.is_valid else ():
            terminal.tell(problem.render(), tone="bad")


def _put_table(terminal: Terminal, found: "list[LibraryEntry]") -> None:
    rows = [["NAME", "FROM", "ROLES", "ENDS", "PARAMETERS"]]
    rows += [
        [one.name, one.source, one.chain, one.termination, _parameters(one)]
        if one.is_valid
        else [one.name, one.source, "cannot be used: see below", "", ""]
        for one in found
    ]
    lines = table(rows, terminal_width())
    terminal.put(terminal.painted(lines[0], "dim", sys.stdout))
    for line, one in zip(lines[1:], found, strict=True):
        terminal.put(terminal.painted(line, "plain" if one.is_valid else "bad", sys.stdout))


def _parameters(one: "LibraryEntry") -> str:
    """Their names; one that may be left out has a question mark."""
    return ", ".join(
        f"{each['name']}{'' if each['required'] else '?'}" for each in _listed(one, "parameters")
    )


def _listed(one: "LibraryEntry", key: str) -> "list[dict[str, JsonValue]]":
    found = one.about.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _put_definition(terminal: Terminal, one: "LibraryEntry") -> None:
    terminal.put(terminal.painted(f"{one.name}  {one.chain}", "bold", sys.stdout))
    terminal.put(one_line(str(one.about.get("description", ""))))
    terminal.put(
        f"from       {one.file}" + (f" (hides: {', '.join(one.hides)})" if one.hides else "")
    )
    terminal.put(f"version    {one.version}")
    for number, stage in enumerate(_listed(one, "roles"), start=1):
        terminal.put(f"stage {number}    {stage['name']} ({stage['role']})")
        terminal.put(f"           {one_line(str(stage['prompt']))}")
    terminal.put(f"ends       {one.termination}  {_ending(one)}".rstrip())
    for each in _listed(one, "parameters"):
        usual = "required" if each["required"] else f"default {one_line(str(each['default']))}"
        terminal.put(f"parameter  {each['name']}: {one_line(str(each['description']))} ({usual})")
    for problem in one.problems:
        terminal.tell(problem.render(), tone="bad" if problem.severity == "error" else "warn")


def _ending(one: "LibraryEntry") -> str:
    found = one.about.get("termination")
    value = found.get("value") if isinstance(found, dict) else None
    if isinstance(value, dict):
        return ", ".join(f"{key}: {one_line(str(each))}" for key, each in value.items())
    return "" if value is None else one_line(str(value))


_NAME = click.argument("name", metavar="NAME", shell_complete=complete_stored)


@contextmanager
def definitions_here(terminal: Terminal) -> "Iterator[Definitions]":
    """The stored definitions of this data directory."""
    from loopwright.engine.services import SystemClock  # noqa: PLC0415 - help stays quick
    from loopwright.operations.accounts.access import Access  # noqa: PLC0415 - help stays quick
    from loopwright.operations.data_directory import open_log  # noqa: PLC0415 - help stays quick
    from loopwright.operations.definitions import Definitions  # noqa: PLC0415 - help stays quick

    with closing(open_log(terminal.settings)) as log:
        yield Definitions(log, Access(log, SystemClock()))


def _reference(name: str) -> "DefinitionReference":
    """A stored definition by its name, which must be one that can be part of an address."""
    from loopwright.client.servers import definition_path  # noqa: PLC0415 - help stays quick
    from loopwright.operations.use_cases.definitions import DefinitionReference  # noqa: PLC0415 - same

    definition_path(name)
    return DefinitionReference(name=name)


# -- looking ---------------------------------------------------------------------------------------


@click.command("ls", cls=Verb, remote=True)
@click.pass_context
def stored_ls(ctx: click.Context, /) -> None:
    """Stored definitions by name."""
    from loopwright.operations.use_cases.definitions import (  # noqa: PLC0415 - help stays quick
        list_definitions,
    )

    terminal = terminal_of(ctx)
    with terminal.client() as client:
        found = client.call_pages(list_definitions, lambda page: page.definitions)
    if terminal.as_json:
        terminal.put_json({"definitions": found})
        return
    rows = []
    for one in found:
        state = "ready" if one.enabled else "needs approval"
        rows.append([one.name, one.dialect, state, one.by or "-", one.changed_at, _programs(one)])
    empty = "nothing is stored; `loopwright stored put NAME FILE` stores a definition"
    put_rows(terminal, ("NAME", "DIALECT", "STATE", "BY", "CHANGED", "PROGRAMS"), rows, empty)


def _programs(one: "DefinitionItem") -> str:
    return ", ".join(one.programs) or "-"


@click.command("show", cls=Verb, remote=True)
@_NAME
@click.option("--source", is_flag=True, help="The text as it was stored, and nothing else.")
@click.pass_context
def stored_show(ctx: click.Context, /, *, name: str, source: bool) -> None:
    """One stored definition: who stored it and when, and whether it may be run."""
    from loopwright.operations.use_cases import definitions as stored  # noqa: PLC0415 - quick help

    terminal = terminal_of(ctx)
    found = terminal.call(stored.show, _reference(name))
    if terminal.as_json:
        terminal.put_json(found)
    elif source:
        _put_source(terminal, found.text or "")
    else:
        _put_stored(terminal, found)


def _put_source(terminal: Terminal, text: str) -> None:
    """On a terminal nothing hidden may drive it; whatever else reads gets every byte."""
    if sys.stdout.isatty():
        terminal.put(cleaned(text))
        return
    sys.stdout.buffer.write(text.encode(errors="surrogatepass"))
    sys.stdout.buffer.flush()


def _put_stored(terminal: Terminal, one: "DefinitionItem") -> None:
    state = "ready"
    if not one.enabled:
        state = f"needs approval: `loopwright stored approve {one.name} {one.digest}`"
    rows = [
        ("name", one.name),
        ("dialect", one.dialect),
        ("digest", one.digest),
        ("stored", f"by {one.by or '-'} at {one.changed_at}, version {one.version}"),
        ("state", state),
        ("programs", _programs(one)),
    ]
    for key, value in rows:
        terminal.put(f"{key:<9} {one_line(str(value))}")


# -- changing --------------------------------------------------------------------------------------


@click.command(
    "put",
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright stored put triage triage.yaml", "then: loopwright run stored:triage"),
        ("loopwright stored put triage triage.yaml --replace", "replaces the stored version"),
    ],
)
@_NAME
@click.argument("file", metavar="FILE|-")
@click.option(
    "--dialect",
    metavar="NAME",
    shell_complete=complete_dialects,
    help="Skip dialect detection.",
)
@click.option("--replace", is_flag=True, help="Replace the definition that is stored by that name.")
@click.pass_context
def stored_put(
    ctx: click.Context, /, *, name: str, file: str, dialect: str | None, replace: bool
) -> None:
    """Store the text of a definition under a name, so that runs and hooks can be started by it.

    A change by another person in the meantime is not overwritten. Files that a definition names are
    not stored with it: such a definition is refused.
    """
    from loopwright.operations.use_cases import definitions as stored  # noqa: PLC0415 - quick help

    terminal = terminal_of(ctx)
    shown = STDIN_NAME if file == STDIN else file
    text = _read(ctx, file, shown)
    with terminal.client() as client:
        seen = _version(client, name)
        if seen and not replace:
            raise _taken(name)
        try:
            match = f'"{seen}"' if seen else None
            wanted = stored.SaveDefinition(name=name, text=text, dialect=dialect, if_match=match)
            made = client.call(stored.save, wanted)
        except Conflict as conflict:
            raise (_changed(name) if seen else _taken(name)) from conflict
        except DefinitionError as error:
            raise _located_error(error, name, shown) from error
    _warn(terminal, text, shown, dialect)
    command = f"loopwright run stored:{name}{terminal.server_suffix}"
    terminal.done(f"{name} is stored; `{command}` runs it", made)


def _read(ctx: click.Context, file: str, shown: str) -> str:
    """The text of a file or of stdin. Errors are reported in the same way as by `run`."""
    from loopwright.operations.dialects import (  # noqa: PLC0415 - help stays quick
        definition_bytes,
        parse_definition,
    )

    data = piped_definition(ctx) if file == STDIN else definition_bytes(Path(file), shown)
    try:
        return data.decode()
    except UnicodeDecodeError:
        parse_definition(data, file=shown)
        raise


def _version(client: "CommandClient", name: str) -> int:
    from loopwright.operations.use_cases import definitions as stored  # noqa: PLC0415 - quick help

    try:
        return client.call(stored.show, _reference(name)).version
    except NotFound:
        return 0


def _taken(name: str) -> Conflict:
    hint = "give another name, or --replace to put this in its place"
    return Conflict(f"{name} is stored already", code="name-taken", hint=hint)


def _changed(name: str) -> Conflict:
    hint = f"`loopwright stored show {name}` shows what is there now"
    return Conflict(f"{name} was changed meanwhile", code="changed-meanwhile", hint=hint)


def _located_error(error: DefinitionError, name: str, file: str) -> DefinitionError:
    """The problems of a definition, with the name of its file."""
    from loopwright.cli.remote_start import rename_problem_file  # noqa: PLC0415 - errors only

    words = error.message.removeprefix(f"{name} ")
    message = f"{file} {words}" if words != error.message else words
    return DefinitionError(
        message, problems=[rename_problem_file(one, name, file) for one in error.problems]
    )


def _warn(terminal: Terminal, text: str, shown: str, dialect: str | None) -> None:
    from loopwright.operations.dialects import parse_definition  # noqa: PLC0415 - help stays quick

    try:
        read = parse_definition(text.encode(), file=shown, force=dialect)
    except DefinitionError:  # a server of a later version may take what is none here
        return
    for warning in read.warnings:
        terminal.say(warning.render(), tone="warn")


@click.command("rm", cls=Verb, remote=True)
@_NAME
@click.pass_context
def stored_rm(ctx: click.Context, /, *, name: str) -> None:
    """Delete a stored definition; its runs continue."""
    from loopwright.operations.use_cases import definitions as stored  # noqa: PLC0415 - quick help

    terminal = terminal_of(ctx)
    terminal.call(stored.remove, _reference(name))
    terminal.done(f"{name} is deleted", {"name": name, "removed": True})


@click.command("approve", cls=Verb, remote=True)
@_NAME
@click.argument("digest", metavar="DIGEST")
@click.pass_context
def stored_approve(ctx: click.Context, /, *, name: str, digest: str) -> None:
    """Approve an imported definition with exactly this digest."""
    from loopwright.operations.use_cases import definitions as stored  # noqa: PLC0415 - quick help

    terminal = terminal_of(ctx)
    approved = terminal.call(stored.approve, stored.ApproveDefinition(name=name, digest=digest))
    terminal.done(f"{name} may be run now", approved)


_GROUP = group(
    "stored",
    "Definitions stored by name. `run stored:NAME` runs one.",
    [stored_ls, stored_show, stored_put, stored_rm, stored_approve],
)


@click.command(
    cls=Verb,
    examples=[
        ("loopwright roles", ""),
        ("loopwright roles reviewer", "show its instructions"),
    ],
)
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--workspace", metavar="DIR", help="Project of the roles. Default: this folder.")
@click.pass_context
def roles(ctx: click.Context, /, name: str | None, workspace: str | None) -> int:
    """The roles that agents can have: built-in, of the data directory (roles/*.md) and of the
    project (.loopwright/roles/*.md and workspace/roles/*.md). A file that cannot be used is listed
    with its errors.
    """
    from loopwright.operations.agents.roles import find_role, find_roles  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    found = find_roles(terminal.settings.home, Path(workspace) if workspace else Path.cwd())
    if name is not None:
        role = find_role(name, found)
        if terminal.as_json:
            terminal.put_json(asdict(role))
        else:
            terminal.put(role.instructions)
        return 0
    bad = [role for role in found.values() if role.problem]
    if terminal.as_json:
        terminal.put_json({"roles": [asdict(role) for role in found.values()]})
    else:
        rows = [["NAME", "ACCESS", "TURNS", "FROM", "WHAT"]]
        rows += [_row(role) for role in found.values()]
        head, *lines = table(rows, terminal_width())
        terminal.put(terminal.painted(head, "dim", sys.stdout))
        for line in lines:
            terminal.put(line)
    for role in found.values():
        for warning in role.warnings:
            terminal.tell(f"{role.file}: {warning}", tone="warn")
    for role in bad:
        terminal.tell(f"{role.file}: {role.problem}", tone="bad")
    return 1 if bad else 0


def _row(role: "RoleFile") -> list[str]:
    turns = str(role.max_turns) if role.max_turns is not None else "-"
    what = one_line(role.description) if role.problem is None else "cannot be used, see below"
    return [role.name, role.access or "-", turns, role.place, what]


VERBS = {
    "definitions": definitions,
    "stored": _GROUP,
    "roles": roles,
}
