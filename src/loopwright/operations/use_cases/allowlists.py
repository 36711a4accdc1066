"""What editors may start runs with, and in which folders; admins change both lists.

Coding CLIs, plugins and kinds of specs are listed without starting a program. No path of this
machine is shown unless an admin has written it into the list.
"""

import asyncio
import shutil
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from loopwright.agents.clis.catalogue import CLIS
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
from loopwright.operations.api_types import Request
from loopwright.operations.run_admission import MOST_PATH_CHARS, WorkspaceRoot, WorkspaceRoots
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    HttpRoute,
    PageRequest,
    operation,
    page_of,
)
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


class AddAgent(Request):
    """An agent that editors may start runs with from now on."""

    name: str
    spec: str
    sandbox: ConfinedLevel | None = None
    allow_off: bool = False
    pass_env: Variables = ()


class ChangeAgent(Request):
    """What is different; a field that is not given stays as it is."""

    agent: str
    sandbox: ConfinedLevel | UnsetType | None = UNSET
    allow_off: bool | UnsetType = UNSET
    pass_env: Variables | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    approve: bool = False  # the files of the program as they are now


class AgentReference(Request):
    """An agent of the list, by its name."""

    agent: str


@operation(
    "agents.list",
    "query",
    "viewer",
    "The agents of this server, and which of them editors may start runs with",
    http=HttpRoute("GET", BASE),
)
async def list_agents(app: App, caller: Caller, request: PageRequest) -> AgentList:
    """A page of everything that `agent` of a start can name."""
    found = await asyncio.to_thread(_all, _registry(app), app.settings.agent)
    if caller.role != "admin":
        found = [_without_program(one) for one in found]
    page = page_of(
        app.cursors,
        "agents",
        found,
        lambda one: f"{one.kind} {one.spec} {one.name or ''}",
        limit=request.limit,
        cursor=request.cursor,
    )
    return AgentList(agents=page.entries, next=page.next)


@operation(
    "agents.add",
    "command",
    "admin",
    "Approve an agent: editors may start runs with it",
    http=HttpRoute("POST", BASE, status=201, schema="AddBody"),
    audit=("agent.added",),
    draining="serve",
)
async def add_agent(app: App, caller: Caller, request: AddAgent) -> AgentItem:
    """Add an agent to the list."""
    entry = AgentEntry(
        name=request.name,
        spec=request.spec,
        sandbox=request.sandbox,
        allow_off=request.allow_off,
        pass_env=request.pass_env,
    )
    return _of_entry(_registry(app).add(entry, by=caller.name), app.settings.agent)


@operation(
    "agents.change",
    "command",
    "admin",
    "Change an agent of the list: its sandbox level, variables, approval, on or off",
    http=HttpRoute("PATCH", f"{BASE}/{{agent}}", schema="ChangeAgentBody"),
    audit=("agent.changed",),
    draining="serve",
)
async def change_agent(app: App, caller: Caller, request: ChangeAgent) -> AgentItem:
    """Change an agent of the list, also a built-in one."""
    given = EntryChange(
        sandbox=request.sandbox,
        allow_off=_given(request.allow_off),
        pass_env=None if isinstance(request.pass_env, UnsetType) else request.pass_env,
        enabled=_given(request.enabled),
        approve=request.approve,
    )
    changed = _registry(app).change(request.agent, given, by=caller.name)
    return _of_entry(changed, app.settings.agent)


@operation(
    "agents.remove",
    "command",
    "admin",
    "Remove an agent from the list; runs that use it continue",
    http=HttpRoute("DELETE", f"{BASE}/{{agent}}", status=204),
    audit=("agent.removed",),
    draining="serve",
)
async def remove_agent(app: App, caller: Caller, request: AgentReference) -> None:
    """Remove an agent from the list."""
    _registry(app).remove(request.agent, by=caller.name)


def _registry(app: App) -> AgentRegistry:
    assert app.registry is not None, "this process has no list of agents"
    return app.registry()


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


WORKSPACES = "/api/v1/workspaces"


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


class AddWorkspace(Request):
    """A folder of the server that editors may choose workspaces in from now on."""

    path: str


class WorkspaceReference(Request):
    """The folder that is meant."""

    path: str


@operation(
    "workspaces.list",
    "query",
    "editor",
    "The folders that editors may choose workspaces in",
    http=HttpRoute("GET", WORKSPACES),
)
async def list_workspaces(app: App, _caller: Caller, request: PageRequest) -> RootList:
    """A page of the approved folders, by path."""
    page = page_of(
        app.cursors,
        "workspaces",
        _roots(app).all(),
        lambda one: one.path,
        limit=request.limit,
        cursor=request.cursor,
    )
    return RootList(workspaces=[_item(one) for one in page.entries], next=page.next)


@operation(
    "workspaces.add",
    "command",
    "admin",
    "Approve a folder: editors may choose workspaces in it",
    http=HttpRoute("POST", WORKSPACES, status=201, schema="RootBody"),
    audit=("workspace.added",),
    draining="serve",
)
async def add_workspace(app: App, caller: Caller, request: AddWorkspace) -> RootItem:
    """Approve a folder."""
    return _item(_roots(app).add(request.path, by=caller.name))


@operation(
    "workspaces.remove",
    "command",
    "admin",
    "Remove a folder from the list; runs that work in it continue",
    http=HttpRoute("DELETE", WORKSPACES, status=204, schema="RootQuery"),
    audit=("workspace.removed",),
    draining="serve",
)
async def remove_workspace(app: App, caller: Caller, request: WorkspaceReference) -> None:
    """Remove a folder from the list."""
    _roots(app).remove(request.path[:MOST_PATH_CHARS], by=caller.name)


def _roots(app: App) -> WorkspaceRoots:
    assert app.roots is not None, "this process has no list of folders"
    return app.roots()


def _item(root: WorkspaceRoot) -> RootItem:
    return RootItem(
        path=root.path,
        source=root.source,
        by=root.by or None,
        approved_at=timestamp(root.approved_at) if root.approved_at else None,
    )


OPERATIONS = (
    *(list_agents, add_agent, change_agent, remove_agent),
    *(list_workspaces, add_workspace, remove_workspace),
)
