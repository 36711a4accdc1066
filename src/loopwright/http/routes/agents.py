"""Agents and workspace folders of the server: what editors may use; admins change the lists.

Coding CLIs, plugins and kinds of specs are listed without starting a program. No path of this
machine is shown unless an admin has written it into the list.
"""

import asyncio
import shutil
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from loopwright.agents.clis.catalogue import CLIS
from loopwright.http.requests import (
    Answer,
    Body,
    PageQuery,
    Query,
    Route,
    RouteFamily,
    RouteRequest,
    paged,
)
from loopwright.model.sandbox import ConfinedLevel, SandboxLevel
from loopwright.operations.agents.allowlist import (
    MODELS,
    MOST_VARIABLES,
    SCRIPTS,
    AgentEntry,
    AgentRegistry,
    EntryChange,
)
from loopwright.operations.agents.programs import PREFIX, plugins
from loopwright.operations.run_admission import MOST_PATH_CHARS, WorkspaceRoot
from loopwright.views.event_records import timestamp

BASE = "/api/v1/agents"
KINDS = {
    "acp:CMD ARG…": "Any agent that speaks the Agent Client Protocol on stdio",
    "command:CMD ARG…": "A program: the prompt on stdin, the answer on stdout",
    "jsonl:CMD ARG…": "The same, with JSON lines on stdout",
    "model:PROVIDER/NAME": "A chat model with tools",
    "script:FILE": "Answers from a file of the workspace",
}
ENTRY_OF_KIND = {"model:PROVIDER/NAME": MODELS, "script:FILE": SCRIPTS}
Variables = Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_VARIABLES)]


class AgentItem(msgspec.Struct):
    """One of them; `spec` is what `agent` and `agents` of a start take, and so is `name`."""

    spec: str
    kind: str  # cli, plugin, listed, or pattern: what is in capitals is to be filled in
    title: str
    available: bool
    default: bool  # the agent of a definition that names none
    hint: str | None
    name: str | None = None  # on the list; null for a pattern that only admins may use
    listed: bool = False  # whether editors may start runs with it
    source: str | None = None  # built-in, settings, plugin or admin
    sandbox: SandboxLevel | None = None  # the lowest level it runs at; null: that of the server
    allow_off: bool = False  # whether it may run without a sandbox
    pass_env: list[str] = []  # names of variables of the server that it may be given
    by: str | None = None  # who approved it
    approved_at: str | None = None
    problem: str | None = None  # why its program may not be started, for admins


class AgentList(msgspec.Struct):
    """All of them."""

    agents: list[AgentItem]
    next: str | None


class AddBody(Body):
    """An agent that editors may start runs with from now on."""

    name: str
    spec: str
    sandbox: ConfinedLevel | None = None
    allow_off: bool = False
    pass_env: Variables = ()


class ChangeAgentBody(Body):
    """What is different; a field that is not given stays as it is."""

    sandbox: ConfinedLevel | UnsetType | None = UNSET
    allow_off: bool | UnsetType = UNSET
    pass_env: Variables | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    approve: bool = False  # the files of the program as they are now


async def list_agents(asked: RouteRequest) -> Answer:
    context = asked.context
    found = await asyncio.to_thread(_all, context.registry, context.settings.agent)
    if asked.who.role != "admin":
        found = [_without_program(one) for one in found]
    page = paged(asked, "agents", found, lambda one: f"{one.kind} {one.spec} {one.name or ''}")
    return AgentList(agents=page.entries, next=page.next)


async def added(asked: RouteRequest) -> Answer:
    body, registry = asked.body(AddBody), asked.context.registry
    entry = AgentEntry(
        name=body.name,
        spec=body.spec,
        sandbox=body.sandbox,
        allow_off=body.allow_off,
        pass_env=body.pass_env,
    )
    made = registry.add(entry, by=asked.who.name)
    return _of_entry(made, asked.context.settings.agent)


async def changed(asked: RouteRequest) -> Answer:
    body, registry = asked.body(ChangeAgentBody), asked.context.registry
    change = EntryChange(
        sandbox=body.sandbox,
        allow_off=_given(body.allow_off),
        pass_env=None if isinstance(body.pass_env, UnsetType) else body.pass_env,
        enabled=_given(body.enabled),
        approve=body.approve,
    )
    made = registry.change(asked.params["agent"], change, by=asked.who.name)
    return _of_entry(made, asked.context.settings.agent)


async def removed(asked: RouteRequest) -> Answer:
    asked.context.registry.remove(asked.params["agent"], by=asked.who.name)
    return None


def _given(value: bool | UnsetType) -> bool | None:  # noqa: FBT001 - the value of a field
    return None if isinstance(value, UnsetType) else value


def _all(registry: AgentRegistry, default: str | None) -> list[AgentItem]:
    """Everything that can be named; a plugin may take its time to load."""
    entries = {one.name: one for one in registry.all()}
    found = [
        _with_entry(
            AgentItem(
                spec=name,
                kind="cli",
                title=cli.title,
                available=(there := shutil.which(name) is not None),
                default=default == name,
                hint=None if there else cli.install,
            ),
            entries.pop(name),
        )
        for name, cli in CLIS.items()
    ]
    found += [
        _with_entry(
            AgentItem(
                spec=f"{PREFIX}{one.name}",
                kind="plugin",
                title=f"{one.name} of {one.origin}",
                available=not one.problem,
                default=default == f"{PREFIX}{one.name}",
                hint="`loopwright doctor` says why it is off" if one.problem else None,
            ),
            entries.pop(f"{PREFIX}{one.name}", None),
        )
        for one in plugins()
    ]
    found += [
        _with_entry(
            AgentItem(
                spec=spec, kind="pattern", title=say, available=True, default=False, hint=None
            ),
            entries.pop(ENTRY_OF_KIND.get(spec, ""), None),
        )
        for spec, say in KINDS.items()
    ]
    return found + [
        msgspec.structs.replace(_of_entry(one, default), problem=registry.problem(one))
        for one in entries.values()
    ]


def _of_entry(entry: AgentEntry, default: str | None) -> AgentItem:
    """An entry of the list alone."""
    item = AgentItem(
        spec=entry.spec,
        kind="cli" if entry.name in CLIS else "listed",
        title=CLIS[entry.name].title if entry.name in CLIS else entry.name,
        available=True,
        default=default in (entry.spec, entry.name),
        hint=None,
    )
    return _with_entry(item, entry)


def _without_program(item: AgentItem) -> AgentItem:
    """A program of the list as others than admins see it: by its name, which a start takes too."""
    item = msgspec.structs.replace(item, problem=None)
    if item.kind != "listed" or item.name is None:
        return item
    return msgspec.structs.replace(item, spec=item.name)


def _with_entry(item: AgentItem, entry: AgentEntry | None) -> AgentItem:
    if entry is None:
        return item
    return msgspec.structs.replace(
        item,
        name=entry.name,
        listed=entry.enabled,
        source=entry.source,
        sandbox=entry.sandbox,
        allow_off=entry.allow_off,
        pass_env=list(entry.pass_env),
        by=entry.by or None,
        approved_at=timestamp(entry.approved_at) if entry.approved_at else None,
    )


FAMILY = RouteFamily(
    name="agents",
    prefix=BASE,
    routes=(
        Route(
            method="GET",
            path=BASE,
            handle=list_agents,
            need="viewer",
            say="The agents of this server, and which of them editors may start runs with",
            query=PageQuery,
            answer=AgentList,
        ),
        Route(
            method="POST",
            path=BASE,
            handle=added,
            need="admin",
            say="Approve an agent: editors may start runs with it",
            body=AddBody,
            answer=AgentItem,
            status=201,
        ),
        Route(
            method="PATCH",
            path=f"{BASE}/{{agent}}",
            handle=changed,
            need="admin",
            say="Change an agent of the list: its sandbox level, variables, approval, on or off",
            body=ChangeAgentBody,
            answer=AgentItem,
        ),
        Route(
            method="DELETE",
            path=f"{BASE}/{{agent}}",
            handle=removed,
            need="admin",
            say="Take an agent off the list; runs that use it continue",
            status=204,
        ),
    ),
)


WORKSPACES_BASE = "/api/v1/workspaces"


class RootItem(msgspec.Struct):
    """A folder that editors may choose workspaces in."""

    path: str
    source: str  # settings, server (the folder that it was started in) or admin
    by: str | None
    approved_at: str | None


class RootList(msgspec.Struct):
    """All of them."""

    workspaces: list[RootItem]
    next: str | None


class RootBody(Body):
    """A folder of the server that editors may choose workspaces in from now on."""

    path: str


class RootQuery(Query):
    """The folder that is meant."""

    path: str


async def list_workspaces(asked: RouteRequest) -> Answer:
    found = [_item(one) for one in asked.context.roots.all()]
    page = paged(asked, "workspaces", found, lambda one: one.path)
    return RootList(workspaces=page.entries, next=page.next)


async def add_workspace(asked: RouteRequest) -> Answer:
    path = asked.body(RootBody).path
    return _item(asked.context.roots.add(path, by=asked.who.name))


async def remove_workspace(asked: RouteRequest) -> Answer:
    path = asked.query(RootQuery).path[:MOST_PATH_CHARS]
    asked.context.roots.remove(path, by=asked.who.name)
    return None


def _item(root: WorkspaceRoot) -> RootItem:
    return RootItem(
        path=root.path,
        source=root.source,
        by=root.by or None,
        approved_at=timestamp(root.approved_at) if root.approved_at else None,
    )


WORKSPACES_FAMILY = RouteFamily(
    name="workspaces",
    prefix=WORKSPACES_BASE,
    routes=(
        Route(
            method="GET",
            path=WORKSPACES_BASE,
            handle=list_workspaces,
            need="editor",
            say="The folders that editors may choose workspaces in",
            query=PageQuery,
            answer=RootList,
        ),
        Route(
            method="POST",
            path=WORKSPACES_BASE,
            handle=add_workspace,
            need="admin",
            say="Approve a folder: editors may choose workspaces in it",
            body=RootBody,
            answer=RootItem,
            status=201,
        ),
        Route(
            method="DELETE",
            path=WORKSPACES_BASE,
            handle=remove_workspace,
            need="admin",
            say="Take a folder off the list; runs that work in it continue",
            query=RootQuery,
            status=204,
        ),
    ),
)
