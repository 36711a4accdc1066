"""`agent` and `workspace`: agents and folders that editors of a server may use."""

import os
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import click

from loopwright.cli.formats import put_rows
from loopwright.cli.terminal import Terminal
from loopwright.cli.verb import Verb, group, terminal_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.cli.remote_client import RemoteClient
    from loopwright.operations.agents.allowlist import AgentRegistry
    from loopwright.operations.run_admission import WorkspaceRoots

AGENTS_PATH = "/api/v1/agents"
LEVELS = ("guard", "workspace", "readonly", "none")
SERVER_LEVEL = "server"
AgentFields = dict[str, Any]
_NAME = click.argument("name", metavar="NAME")
_ENV = click.option(
    "--env",
    "variables",
    metavar="NAME",
    multiple=True,
    help="A variable of the server that the agent may be given. May be given more than once.",
)


class _AgentList(Protocol):
    """The list, here or at a server."""

    def all(self) -> list[AgentFields]: ...

    def add(self, fields: AgentFields) -> AgentFields: ...

    def change(self, name: str, fields: AgentFields) -> AgentFields: ...

    def remove(self, name: str) -> None: ...


class _RemoteList:
    """The list of a server."""

    def __init__(self, remote: "RemoteClient") -> None:
        self._remote = remote

    def all(self) -> list[AgentFields]:
        found: list[AgentFields] = self._remote.get(AGENTS_PATH)["agents"]
        return [one for one in found if one["name"] is not None]

    def add(self, fields: AgentFields) -> AgentFields:
        made: AgentFields = self._remote.post(AGENTS_PATH, fields)
        return made

    def change(self, name: str, fields: AgentFields) -> AgentFields:
        made: AgentFields = self._remote.patch(f"{AGENTS_PATH}/{quote(name, safe='')}", fields)
        return made

    def remove(self, name: str) -> None:
        self._remote.delete(f"{AGENTS_PATH}/{quote(name, safe='')}")


class _LocalList:
    """The list of this data directory, whose owner is an admin."""

    def __init__(self, registry: "AgentRegistry", by: str) -> None:
        from loopwright.operations.agents.allowlist import entry_item  # noqa: PLC0415 - help stays quick

        self._registry, self._by, self._item = registry, by, entry_item

    def all(self) -> list[AgentFields]:
        registry = self._registry
        return [self._item(one, registry.problem(one)) for one in registry.all()]

    def add(self, fields: AgentFields) -> AgentFields:
        from loopwright.operations.agents.allowlist import AgentEntry  # noqa: PLC0415 - help stays quick

        return self._item(self._registry.add(AgentEntry(**fields), by=self._by))

    def change(self, name: str, fields: AgentFields) -> AgentFields:
        from loopwright.operations.agents.allowlist import EntryChange  # noqa: PLC0415 - help stays quick

        return self._item(self._registry.change(name, EntryChange(**fields), by=self._by))

    def remove(self, name: str) -> None:
        self._registry.remove(name, by=self._by)


@contextmanager
def _open_list(terminal: Terminal) -> "Iterator[_AgentList]":
    if terminal.remote is not None:
        yield _RemoteList(terminal.remote)
        return
    from loopwright.engine.clock import SystemClock  # noqa: PLC0415 - help stays quick
    from loopwright.operations.accounts.access import Access  # noqa: PLC0415 - help stays quick
    from loopwright.operations.agents.allowlist import (  # noqa: PLC0415 - help stays quick
        AgentRegistry,
        listed_default,
    )
    from loopwright.operations.data_directory import open_log  # noqa: PLC0415 - help stays quick
    from loopwright.operations.runs import current_user  # noqa: PLC0415 - help stays quick

    with closing(open_log(terminal.settings)) as log:
        registry = AgentRegistry(Access(log, SystemClock()), listed_default(terminal.settings))
        yield _LocalList(registry, current_user())


@click.command("ls", cls=Verb, remote=True)
@click.pass_context
def agent_ls(ctx: click.Context, /) -> None:
    """Agents that editors may start runs with, and those that are disabled."""
    terminal = terminal_of(ctx)
    with _open_list(terminal) as agents:
        found = agents.all()
    if terminal.as_json:
        terminal.put_json({"agents": found})
        return
    rows = []
    for one in found:
        state = "listed" if one["listed"] else "disabled"
        state = "changed" if one["listed"] and one.get("problem") else state
        level = "off allowed" if one["allow_off"] else one["sandbox"] or "-"
        source = one["source"] if one["by"] is None else f"{one['source']}, by {one['by']}"
        rows.append([one["name"], state, level, ",".join(one["pass_env"]) or "-", source])
        rows[-1].append(one["spec"])
    put_rows(terminal, ("NAME", "STATE", "SANDBOX", "VARIABLES", "SOURCE", "AGENT"), rows, "")


@click.command(
    "add",
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright agent add reviewer 'command:/opt/reviewer --strict'", "approve a program"),
        ("loopwright agent add helper acp:helper --sandbox workspace --env HELPER_KEY", ""),
    ],
)
@_NAME
@click.argument("spec", metavar="AGENT")
@click.option("--sandbox", type=click.Choice(LEVELS), help="The lowest sandbox level it runs at.")
@click.option("--allow-off", is_flag=True, help="Definitions may run it without a sandbox.")
@_ENV
@click.pass_context
def agent_add(
    ctx: click.Context,
    /,
    *,
    name: str,
    spec: str,
    sandbox: str | None,
    allow_off: bool,
    variables: tuple[str, ...],
) -> None:
    """Approve an agent: editors of a server may start runs with it, by NAME or by AGENT.

    A program is named by its whole path, or is found on PATH. Its arguments belong to it: the same
    program with other arguments is another agent. Its files are recorded with their SHA-256
    digests, except for those in folders of the system: a program that was changed is not started.
    """
    terminal = terminal_of(ctx)
    fields: AgentFields = {
        "name": name,
        "spec": spec,
        "sandbox": sandbox,
        "allow_off": allow_off,
        "pass_env": variables,
    }
    with _open_list(terminal) as agents:
        made = agents.add(fields)
    terminal.done(f"editors may start runs with {name}: {made['spec']}", made)


@click.command(
    "change",
    cls=Verb,
    remote=True,
    examples=[
        ("loopwright agent change claude --disable", "editors may not use it any more"),
        ("loopwright agent change codex --sandbox workspace", "it never runs at less"),
        ("loopwright agent change reviewer --approve", "after an update of the program"),
    ],
)
@_NAME
@click.option(
    "--sandbox",
    type=click.Choice((*LEVELS, SERVER_LEVEL)),
    help="The lowest sandbox level it runs at; `server`: that of the server.",
)
@click.option("--allow-off/--no-allow-off", default=None, help="Whether it may run at `off`.")
@click.option("--enable/--disable", "enabled", default=None, help="Whether editors may use it.")
@click.option(
    "--approve", is_flag=True, default=None, help="Approve the files of its program as they are."
)
@click.option("--no-env", is_flag=True, help="It may be given no variables of the server.")
@_ENV
@click.pass_context
def agent_change(
    ctx: click.Context,
    /,
    *,
    name: str,
    variables: tuple[str, ...],
    no_env: bool,
    **given: "str | bool | None",
) -> None:
    """Change an agent of the list, also a built-in one. --env replaces the variables it had."""
    if variables and no_env:
        raise click.UsageError("--env and --no-env exclude each other", ctx)
    fields: AgentFields = {key: value for key, value in given.items() if value is not None}
    if fields.get("sandbox") == SERVER_LEVEL:
        fields["sandbox"] = None
    if variables or no_env:
        fields["pass_env"] = variables
    if not fields:
        raise click.UsageError("say what is to be different", ctx)
    terminal = terminal_of(ctx)
    with _open_list(terminal) as agents:
        made = agents.change(name, fields)
    state = "on the list" if made["listed"] else "disabled"
    terminal.done(f"{name} is {state}", made)


@click.command("rm", cls=Verb, remote=True)
@_NAME
@click.pass_context
def agent_rm(ctx: click.Context, /, *, name: str) -> None:
    """Take an agent off the list; runs that use it continue."""
    terminal = terminal_of(ctx)
    with _open_list(terminal) as agents:
        agents.remove(name)
    terminal.done(f"{name} is off the list", {"name": name, "removed": True})


WORKSPACES_PATH = "/api/v1/workspaces"
NOTE = "and the folder that a server is started in, unless the setting `workspaces` is given"
WorkspaceFields = dict[str, Any]


@contextmanager
def _open_roots(terminal: Terminal) -> "Iterator[WorkspaceRoots]":
    from loopwright.engine.clock import SystemClock  # noqa: PLC0415 - help stays quick
    from loopwright.operations.accounts.access import Access  # noqa: PLC0415 - help stays quick
    from loopwright.operations.data_directory import open_log  # noqa: PLC0415 - help stays quick
    from loopwright.operations.run_admission import WorkspaceRoots  # noqa: PLC0415 - help stays quick

    settings = terminal.settings
    with closing(open_log(settings)) as log:
        access = Access(log, SystemClock())
        yield WorkspaceRoots(access, settings.home, named=settings.workspaces)


def _user() -> str:
    from loopwright.operations.runs import current_user  # noqa: PLC0415 - help stays quick

    return current_user()


@click.command("ls", cls=Verb, remote=True)
@click.pass_context
def workspace_ls(ctx: click.Context, /) -> None:
    """Folders that editors may choose workspaces in."""
    terminal = terminal_of(ctx)
    if terminal.remote is not None:
        found: list[WorkspaceFields] = terminal.remote.get(WORKSPACES_PATH)["workspaces"]
    else:
        with _open_roots(terminal) as roots:
            found = [
                {"path": one.path, "source": one.source, "by": one.by or None}
                for one in roots.all()
            ]
    if terminal.as_json:
        terminal.put_json({"workspaces": found})
        return
    rows = [[one["path"], one["source"], one["by"] or "-"] for one in found]
    put_rows(terminal, ("FOLDER", "SOURCE", "BY"), rows, "no folder was approved")
    if terminal.remote is None:
        terminal.tell(NOTE)


@click.command(
    "add",
    cls=Verb,
    remote=True,
    examples=[("loopwright workspace add /srv/projects", "and every folder in it")],
)
@click.argument("folder", metavar="DIR")
@click.pass_context
def workspace_add(ctx: click.Context, /, *, folder: str) -> None:
    """Approve a folder: editors of a server may choose it, and folders in it, as workspaces.

    Links are resolved now: a link that takes the place of the folder later approves nothing else.
    """
    terminal = terminal_of(ctx)
    if terminal.remote is not None:
        path = str(terminal.remote.post(WORKSPACES_PATH, {"path": folder})["path"])
    else:
        with _open_roots(terminal) as roots:
            path = roots.add(os.path.abspath(os.path.expanduser(folder)), by=_user()).path
    terminal.done(f"editors may choose workspaces in {path}", {"path": path})


@click.command("rm", cls=Verb, remote=True)
@click.argument("folder", metavar="DIR")
@click.pass_context
def workspace_rm(ctx: click.Context, /, *, folder: str) -> None:
    """Take a folder off the list; runs that work in it continue."""
    terminal = terminal_of(ctx)
    if terminal.remote is not None:
        terminal.remote.delete(f"{WORKSPACES_PATH}?path={quote(folder, safe='')}")
        path = folder
    else:
        with _open_roots(terminal) as roots:
            path = roots.remove(os.path.abspath(os.path.expanduser(folder)), by=_user())
    terminal.done(f"{path} is off the list", {"path": path, "removed": True})


VERBS = {
    "agent": group(
        "agent",
        "Agents that editors of a server may start runs with. Admins of the server and the owner "
        "of the data directory change the list.",
        [agent_ls, agent_add, agent_change, agent_rm],
    ),
    "workspace": group(
        "workspace",
        "Folders that editors of a server may choose workspaces in. Admins of the server and the "
        "owner of the data directory change the list.",
        [workspace_ls, workspace_add, workspace_rm],
    ),
}
