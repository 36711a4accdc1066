"""`agent`: the agents that editors of a server may start runs with."""

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import click

from loopwright.cli.door import Door
from loopwright.cli.looking import put_rows
from loopwright.cli.starting import LevelChoice
from loopwright.cli.verb import Verb, door_of, group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.app.agent_registry import AgentRegistry
    from loopwright.cli.remote import Remote

BASE = "/api/v1/agents"
LEVELS = ("guard", "workspace", "readonly", "none")
SERVER_LEVEL = "server"
Item = dict[str, Any]
_NAME = click.argument("name", metavar="NAME")
_ENV = click.option(
    "--env",
    "variables",
    metavar="NAME",
    multiple=True,
    help="A variable of the server that the agent may be given. May be given more than once.",
)


class _List(Protocol):
    """The list, here or at a server."""

    def all(self) -> list[Item]: ...

    def add(self, fields: Item) -> Item: ...

    def change(self, name: str, fields: Item) -> Item: ...

    def remove(self, name: str) -> None: ...


class _RemoteList:
    """The list of a server."""

    def __init__(self, remote: "Remote") -> None:
        self._remote = remote

    def all(self) -> list[Item]:
        found: list[Item] = self._remote.get(BASE)["agents"]
        return [one for one in found if one["name"] is not None]

    def add(self, fields: Item) -> Item:
        made: Item = self._remote.post(BASE, fields)
        return made

    def change(self, name: str, fields: Item) -> Item:
        made: Item = self._remote.patch(f"{BASE}/{quote(name, safe='')}", fields)
        return made

    def remove(self, name: str) -> None:
        self._remote.delete(f"{BASE}/{quote(name, safe='')}")


class _LocalList:
    """The list of this data directory, whose owner is an admin."""

    def __init__(self, registry: "AgentRegistry", by: str) -> None:
        from loopwright.app.views.agent_entries import entry_item  # noqa: PLC0415 - help stays quick

        self._registry, self._by, self._item = registry, by, entry_item

    def all(self) -> list[Item]:
        registry = self._registry
        return [self._item(one, registry.problem(one)) for one in registry.all()]

    def add(self, fields: Item) -> Item:
        from loopwright.app.agent_registry import AgentEntry  # noqa: PLC0415 - help stays quick

        return self._item(self._registry.add(AgentEntry(**fields), by=self._by))

    def change(self, name: str, fields: Item) -> Item:
        from loopwright.app.agent_registry import EntryChange  # noqa: PLC0415 - help stays quick

        return self._item(self._registry.change(name, EntryChange(**fields), by=self._by))

    def remove(self, name: str) -> None:
        self._registry.remove(name, by=self._by)


@contextmanager
def _open_list(door: Door) -> "Iterator[_List]":
    if door.remote is not None:
        yield _RemoteList(door.remote)
        return
    from loopwright.app.access import Access  # noqa: PLC0415 - help stays quick
    from loopwright.app.agent_registry import (  # noqa: PLC0415 - help stays quick
        AgentRegistry,
        listed_default,
    )
    from loopwright.app.opening import open_log  # noqa: PLC0415 - help stays quick
    from loopwright.app.service import current_user  # noqa: PLC0415 - help stays quick
    from loopwright.runtime.clock import SystemClock  # noqa: PLC0415 - help stays quick

    with closing(open_log(door.settings)) as log:
        registry = AgentRegistry(Access(log, SystemClock()), listed_default(door.settings))
        yield _LocalList(registry, current_user())


@click.command("ls", cls=Verb, remote=True)
@click.pass_context
def agent_ls(ctx: click.Context, /) -> None:
    """Agents that editors may start runs with, and those that are disabled."""
    door = door_of(ctx)
    with _open_list(door) as agents:
        found = agents.all()
    if door.as_json:
        door.put_json({"agents": found})
        return
    rows = []
    for one in found:
        state = "listed" if one["listed"] else "disabled"
        state = "changed" if one["listed"] and one.get("problem") else state
        level = "off allowed" if one["allow_off"] else one["sandbox"] or "-"
        source = one["source"] if one["by"] is None else f"{one['source']}, by {one['by']}"
        rows.append([one["name"], state, level, ",".join(one["pass_env"]) or "-", source])
        rows[-1].append(one["spec"])
    put_rows(door, ("NAME", "STATE", "SANDBOX", "VARIABLES", "SOURCE", "AGENT"), rows, "")


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
@click.option("--sandbox", type=LevelChoice(LEVELS), help="The lowest sandbox level it runs at.")
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
    door = door_of(ctx)
    fields: Item = {
        "name": name,
        "spec": spec,
        "sandbox": sandbox,
        "allow_off": allow_off,
        "pass_env": variables,
    }
    with _open_list(door) as agents:
        made = agents.add(fields)
    door.done(f"editors may start runs with {name}: {made['spec']}", made)


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
    type=LevelChoice((*LEVELS, SERVER_LEVEL)),
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
    fields: Item = {key: value for key, value in given.items() if value is not None}
    if fields.get("sandbox") == SERVER_LEVEL:
        fields["sandbox"] = None
    if variables or no_env:
        fields["pass_env"] = variables
    if not fields:
        raise click.UsageError("say what is to be different", ctx)
    door = door_of(ctx)
    with _open_list(door) as agents:
        made = agents.change(name, fields)
    state = "on the list" if made["listed"] else "disabled"
    door.done(f"{name} is {state}", made)


@click.command("rm", cls=Verb, remote=True)
@_NAME
@click.pass_context
def agent_rm(ctx: click.Context, /, *, name: str) -> None:
    """Take an agent off the list; runs that use it continue."""
    door = door_of(ctx)
    with _open_list(door) as agents:
        agents.remove(name)
    door.done(f"{name} is off the list", {"name": name, "removed": True})


VERBS = {
    "agent": group(
        "agent",
        "Agents that editors of a server may start runs with. Admins of the server and the owner "
        "of the data directory change the list.",
        [agent_ls, agent_add, agent_change, agent_rm],
    )
}
