"""Whether a run may start on a server: one check for every interface; approved workspace folders.

A caller with a role below admin may only use agents of the allowlist. A definition counts as
written by the person who stored it: an admin who starts an editor's definition does not approve
the programs in it. The text of a definition by a person below admin may not name another agent,
describe an MCP server, or ask for variables of the server. A listed program must be the one
that was approved. The workspace must be in an approved folder unless an admin chooses it.
Resumes and forks are checked in the same way. The role is that of the request (`acting_as`), by
default editor.

Approved folders are those of the setting `workspaces`, or else the folder in which the server
was started, and those that admins have added. Links are resolved when a folder is approved, so
that a link that replaces the folder later approves nothing else.
"""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from loopwright.agents.specs import UNHELD_KINDS, Spec, parse_spec
from loopwright.errors import (
    Conflict,
    LoopwrightError,
    NotAllowed,
    NotFound,
    StorageError,
    VersionConflict,
)
from loopwright.kernel.event_parts import Worktree
from loopwright.model.plan import Agent, Plan
from loopwright.model.sandbox import (
    COMMAND_SANDBOX,
    EDITOR_VARIABLES,
    INPUTS_PREFIX,
    SandboxLevel,
    command_level,
    is_listed,
    strictest,
)
from loopwright.operations.accounts.access import Access, Role, acting_role, digest, least
from loopwright.operations.agents.allowlist import (
    ANY_SCRIPT,
    AgentEntry,
    AgentRegistry,
    own_variables_of,
    suggest_command,
    with_entry_names,
)
from loopwright.operations.agents.programs import PREFIX, plugin_spec
from loopwright.operations.run_request import RunStart
from loopwright.operations.run_start import agent_choices
from loopwright.ports import StoredRecord

RECORD_KIND = "workspace"
MOST_ROOTS = 1_000
MOST_PATH_CHARS = 4_096
NO_DEFAULT = "{folder} cannot be the folder for workspaces of editors: {why}"

Source: TypeAlias = Literal["settings", "server", "admin"]


class WorkspaceRoot(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that editors may choose workspaces in; `path` has no links."""

    path: str
    source: Source = "admin"
    by: str = ""  # who approved it
    approved_at: int = 0


class WorkspaceRoots:
    """The approved folders of a data directory. `served` is the folder that a server was started
    in; `named` are those of its settings.
    """

    def __init__(
        self, access: Access, home: Path, *, named: Sequence[Path] = (), served: Path | None = None
    ) -> None:
        self._access = access
        self._records = access.records
        self.problem = ""  # why the folder of the server is not one of them
        self._fixed = [WorkspaceRoot(path=_real(one), source="settings") for one in named]
        if served is not None and not named:
            folder = _real(served)
            why = _why_not_implied(Path(folder), Path(_real(home)))
            if why:
                self.problem = NO_DEFAULT.format(folder=folder, why=why)
            else:
                self._fixed = [WorkspaceRoot(path=folder, source="server")]

    def all(self) -> list[WorkspaceRoot]:
        """Every approved folder by its path."""
        found = {one.path: one for one in self._added()}
        found |= {one.path: one for one in self._fixed}
        return [found[path] for path in sorted(found)]

    def contains(self, folder: Path) -> bool:
        """Whether a folder without links is in an approved one, or is one."""
        return any(folder.is_relative_to(one.path) for one in self.all())

    def add(self, path: str, *, by: str) -> WorkspaceRoot:
        """Approve a folder."""
        named = Path(path[:MOST_PATH_CHARS]).expanduser()
        if not named.is_absolute():
            raise LoopwrightError(
                f"{path[:200]!a} is not a whole path",
                code="bad-workspace",
                hint="write the path of a folder of the server, beginning with /",
            )
        if not named.is_dir():
            raise NotFound(f"{named} is not a folder", code="no-workspace", hint="create it first")
        known = self.all()
        real = _real(named)
        if any(one.path == real for one in known):
            raise Conflict(f"{real} is approved already", code="name-taken")
        if len(known) >= MOST_ROOTS:
            raise Conflict(f"there are {MOST_ROOTS:,} folders already", code="too-many")
        made = WorkspaceRoot(path=real, by=by, approved_at=self._access.clock.now_ms())
        record = StoredRecord(kind=RECORD_KIND, key=digest(real), body=msgspec.json.encode(made))
        row = self._access.row(by, "workspace.added", real, "")
        try:
            self._records.change([(record, 0)], audit=[row])
        except VersionConflict as conflict:
            raise Conflict(f"{real} is approved already", code="name-taken") from conflict
        return made

    def remove(self, path: str, *, by: str) -> str:
        """Take a folder off the list; its path. Runs that work in it continue."""
        wanted = {path, _real(Path(path).expanduser())}
        found = next((one for one in self.all() if one.path in wanted), None)
        if found is None:
            raise NotFound(
                f"{path[:200]!a} is not an approved folder",
                hint="`loopwright workspace ls` shows the approved folders",
            )
        if found.source != "admin":
            where = "the setting `workspaces`" if found.source == "settings" else "the server"
            raise Conflict(
                f"{found.path} is approved by {where}, not by the list",
                code="not-on-list",
                hint="set `workspaces` in the settings of the server to other folders",
            )
        row = self._access.row(by, "workspace.removed", found.path, "")
        self._records.change(drops=[(RECORD_KIND, digest(found.path))], audit=[row])
        return found.path

    def _added(self) -> Iterator[WorkspaceRoot]:
        for record in self._records.records(RECORD_KIND):
            yield msgspec.json.decode(record.body, type=WorkspaceRoot)


def _real(path: Path) -> str:
    return os.path.realpath(path)


def _why_not_implied(folder: Path, home: Path) -> str:
    """Why a folder is approved only if it is named explicitly; empty if it is approved by default.
    Links are resolved.
    """
    person = Path(_real(Path(os.path.expanduser("~"))))
    if folder == Path(os.sep):
        return "it is the root folder"
    if folder == person:
        return "it is the home directory of the server's user"
    if person.is_relative_to(folder):
        return "the home directory of the server's user is in it"
    if folder.is_relative_to(home):
        return "it is in the data directory"
    return ""


ADMIN: Role = "admin"
SHOWN_CHARS = 200

Agents: TypeAlias = Mapping[str, Agent]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Authority:
    """Who has chosen the agents, and who has written the rest of the plan."""

    chooser: Role
    author: Role
    from_text: Collection[str]  # agents whose spec is in the text

    def role_for(self, agent: str) -> Role:
        return least(self.chooser, self.author) if agent in self.from_text else self.chooser


class RunAdmission:
    """The check of a server. Every refusal is written to the audit log."""

    def __init__(
        self,
        registry: AgentRegistry,
        access: Access,
        home: Path,
        *,
        roots: WorkspaceRoots | None = None,
        allow_unsandboxed: bool = False,
        editor_variables: Collection[str] = EDITOR_VARIABLES,
    ) -> None:
        self.registry = registry
        self._access = access
        self._home = home
        self._roots = roots or WorkspaceRoots(access, home)
        self._editor_variables = editor_variables
        self._allow_unsandboxed = allow_unsandboxed  # the setting of the server, for all agents

    def names(self) -> Mapping[str, str]:
        """The specs of the agents on the list by name."""
        return self.registry.names()

    def admit(self, start: RunStart) -> RunStart:
        """The start, if it is allowed; NotAllowed with the reason and the remedy otherwise."""
        actor = acting_role()
        author = least(actor, start.author or actor)
        authority = _Authority(chooser=actor, author=author, from_text=start.from_text)
        with self._recorded(start.by, f"start {start.plan.name}"):
            chosen_by = least(actor, start.workspace_by or actor)
            workspace = self._check_workspace(start.workspace, chosen_by)
            self._check_plan(start.plan, authority)
            agents = {
                name: self._admitted(name, agent, authority, workspace)
                for name, agent in start.plan.agents.items()
            }
            if start.sandbox == "off":
                self._check_off(agents)
        plan = msgspec.structs.replace(start.plan, agents=agents)
        is_off = start.sandbox == "off" and not self._allow_unsandboxed
        if author != ADMIN or is_off:
            plan = self._with_command_level(plan, author)
        return replace(start, plan=plan, workspace=workspace, allow_off=start.sandbox == "off")

    def check_workspace(self, workspace: Path, *, by: str, role: Role | None = None) -> None:
        """Refuse a workspace before anything in it is read. `role` is that of the author of a
        record that names it: using a record does not approve its folder.
        """
        actor = acting_role()
        with self._recorded(by, f"workspace {workspace}"):
            self._check_workspace(workspace, least(actor, role or actor))

    def admit_agents(self, agents: Agents, *, run: str, by: str, workspace: Path) -> Agents:
        """Agents that take the place of others in a run, if they are allowed."""
        actor = acting_role()
        authority = _Authority(chooser=actor, author=actor, from_text=())
        with self._recorded(by, run):
            return {
                name: self._admitted(name, agent, authority, workspace)
                for name, agent in agents.items()
            }

    def admit_run(
        self,
        plan: Plan,
        *,
        run: str,
        by: str,
        workspace: Path,
        worktree: Worktree | None = None,
        is_fork: bool = False,
    ) -> None:
        """Refuse to resume or fork a run that the caller could not start in its current form.
        `workspace` is the folder that the run works in, which may be in a worktree.
        """
        actor = acting_role()
        authority = _Authority(chooser=actor, author=actor, from_text=())
        with self._recorded(by, run):
            self._check_workspace(_origin(workspace, worktree), actor, is_recorded=True)
            self._check_plan(plan, authority)
            for name, agent in plan.agents.items():
                self._admitted(name, agent, authority, workspace)
            if plan.sandbox == "off" and (is_fork or actor != ADMIN):
                self._check_off(plan.agents)

    def check_text(self, plan: Plan, *, by: str, what: str) -> None:
        """Refuse to store a definition that the caller could not start."""
        actor, names = acting_role(), self.names()
        if actor == ADMIN:
            return
        authority = _Authority(chooser=actor, author=actor, from_text=plan.agents)
        with self._recorded(by, what):
            self._check_plan(plan, authority)
            for name, agent in plan.agents.items():
                spec = names.get(agent.spec or "", agent.spec)
                if spec:
                    self._admitted(name, msgspec.structs.replace(agent, spec=spec), authority, None)

    # -- what is checked -----------------------------------------------------------------------

    def _admitted(
        self, name: str, agent: Agent, authority: _Authority, workspace: Path | None
    ) -> Agent:
        text, spec = _parsed(agent)
        entry = self.registry.find(text)
        # Only a rehearsal has agents without a spec: nothing is started.
        if entry is None and authority.role_for(name) != ADMIN and agent.spec is not None:
            raise _not_listed(name, text)
        if entry is not None and entry.spec == ANY_SCRIPT and authority.role_for(name) != ADMIN:
            self._check_script(name, text, workspace)
        problem = self.registry.problem(entry) if entry is not None else None
        if problem is not None:
            raise NotAllowed(f"agent {name!r}: {problem}", code="agent-changed")
        least = entry.sandbox if entry is not None else None
        if authority.author != ADMIN:
            _check_servers(name, agent)
            _check_variables(name, agent, spec, entry, self._editor_variables)
            if agent.is_chat:  # its tools start the commands that the definition allows
                least = strictest(least, self._command_level(authority.author))
        if least is None:
            return agent
        return msgspec.structs.replace(agent, sandbox=strictest(agent.sandbox, least))

    def _command_level(self, author: Role) -> SandboxLevel:
        """The least level of commands: what an editor writes can change the workspace alone."""
        return "guard" if author == ADMIN or self._allow_unsandboxed else "workspace"

    def _with_command_level(self, plan: Plan, author: Role) -> Plan:
        level = command_level(self._command_level(author), plan.settings)
        settings = {**plan.settings, COMMAND_SANDBOX: str(level)}
        return msgspec.structs.replace(plan, settings=settings)

    def _check_off(self, agents: Agents) -> None:
        """Refuse `off` unless an admin allows it for every agent that is a program."""
        if self._allow_unsandboxed:
            return
        for name, agent in agents.items():
            text, spec = _parsed(agent)
            if spec is not None and spec.kind in UNHELD_KINDS:
                continue
            entry = self.registry.find(text)
            if entry is None or not entry.allow_off:
                listed = entry.name if entry is not None else "NAME"
                raise NotAllowed(
                    f"agent {name!r}: sandbox level `off` is not allowed on this server; an admin "
                    f"allows it for an agent with `loopwright agent change {listed} --allow-off`",
                    code="unsandboxed",
                )

    def _check_plan(self, plan: Plan, authority: _Authority) -> None:
        if plan.pass_env and authority.author != ADMIN:
            raise _variable_refused("the definition", plan.pass_env[0])

    def _check_script(self, name: str, text: str, workspace: Path | None) -> None:
        """The server itself reads the file of a script, so it may be in the workspace only. Before
        a run starts, it is unknown which workspace that is.
        """
        if workspace is None:
            return
        file, root = Path(text.partition(":")[2].strip()).resolve(), workspace.resolve()
        if not file.is_relative_to(root) or self._is_private(file):
            raise NotAllowed(
                f"agent {name!r}: a script must be a file in the workspace of the run; an admin "
                f"approves another one with `{suggest_command(text)}`",
                code="agent-not-listed",
            )

    def _check_workspace(self, workspace: Path, role: Role, *, is_recorded: bool = False) -> Path:
        """The workspace without links, if it may be one. No run works in the data directory, except
        in the worktrees that are kept there for runs. Others than admins choose approved folders.
        """
        folder = workspace.resolve()
        if is_recorded and folder != workspace:
            raise NotAllowed(
                f"the workspace {workspace} was replaced by a link",
                code="workspace-not-approved",
                hint="put the folder back, or start a new run",
            )
        if self._is_private(folder):
            raise NotAllowed(
                "the workspace is in the data directory of the server, which no agent may see",
                code="private-workspace",
                hint="name another folder as `workspace`",
            )
        if role != ADMIN and not self._roots.contains(folder):
            raise NotAllowed(
                f"the workspace {folder} is not in a folder that editors may use on this server; "
                f"an admin approves one with `loopwright workspace add DIR`",
                code="workspace-not-approved",
                hint="`loopwright workspace ls` (GET /api/v1/workspaces) shows the folders",
            )
        return folder

    def _is_private(self, place: Path) -> bool:
        home = self._home.resolve()
        return place.is_relative_to(home) and not place.is_relative_to(home / "worktrees")

    @contextlib.contextmanager
    def _recorded(self, by: str, subject: str) -> Iterator[None]:
        """Write a refusal to the audit log; the refusal does not depend on it."""
        try:
            yield
        except NotAllowed as refusal:
            detail = f"{refusal.code}: {refusal.message}"[:SHOWN_CHARS]
            row = self._access.row(by, "denied", subject[:SHOWN_CHARS], detail)
            with contextlib.suppress(StorageError):
                self._access.records.change(audit=[row])
            raise


def rehearsal_of(start: RunStart, choices: Sequence[str], names: Mapping[str, str]) -> RunStart:
    """The start of a rehearsal with the specs that its agents would have. An agent that no spec is
    known for has none: what it may be is decided when a run starts.
    """
    default, named = agent_choices(with_entry_names(choices, names))
    agents = {}
    for name, agent in start.plan.agents.items():
        spec = named.get(name) or default or agent.spec or ""
        is_known = spec.startswith(PREFIX) or isinstance(parse_spec(spec), Spec)
        agents[name] = msgspec.structs.replace(agent, spec=spec if is_known else None)
    return replace(start, plan=msgspec.structs.replace(start.plan, agents=agents))


def _origin(workspace: Path, worktree: Worktree | None) -> Path:
    """The folder of the person's checkout that corresponds to a workspace in a worktree."""
    if worktree is None:
        return workspace
    try:
        return Path(worktree.repository, workspace.relative_to(worktree.folder))
    except ValueError:
        return workspace


def _parsed(agent: Agent) -> tuple[str, Spec | None]:
    """The spec of an agent; for a plugin, the spec of its program."""
    text = agent.spec or ""
    if text.startswith(PREFIX):
        with contextlib.suppress(LoopwrightError):
            text = plugin_spec(text)
    spec = parse_spec(text)
    return text, spec if isinstance(spec, Spec) else None


def _check_servers(name: str, agent: Agent) -> None:
    """An MCP server that a text describes is a program, or an address that the server itself
    would connect to. Those of the settings are named without a description.
    """
    listed = agent.options.get("mcp")
    described = listed if isinstance(listed, dict) else {}
    named = [{"server": name, **one} for name, one in described.items() if isinstance(one, dict)]
    for one in listed if isinstance(listed, list) else named:
        if isinstance(one, dict) and (one.get("command") or one.get("url")):
            server = str(one.get("server", ""))[:60]
            raise NotAllowed(
                f"agent {name!r}: only an admin may describe an MCP server ({server!r}); an admin "
                f"adds it to the settings of the server as [mcp.{server or 'NAME'}]",
                code="agent-not-listed",
            )


def _check_variables(
    name: str, agent: Agent, spec: Spec | None, entry: AgentEntry | None, listed: Collection[str]
) -> None:
    allowed = {*(entry.pass_env if entry is not None else ())}
    allowed |= {*own_variables_of(spec)} if spec is not None else set()
    for variable in agent.env:
        if not is_listed(variable, listed):
            raise NotAllowed(
                f"agent {name!r} sets the variable {variable}, which editors may not set on this "
                "server: variables decide what a program loads and where it sends requests; an "
                "admin adds the name to `editor_variables` in the settings of the server",
                code="variable-not-listed",
                hint=f"leave it out, use a name that begins with {INPUTS_PREFIX}, or let an admin "
                "store the definition and start it",
            )
    for variable in agent.pass_env:
        if variable not in allowed:
            raise _variable_refused(f"agent {name!r}", variable, entry)


def _variable_refused(who: str, variable: str, entry: AgentEntry | None = None) -> NotAllowed:
    name = entry.name if entry is not None else "NAME"
    return NotAllowed(
        f"{who} asks for the variable {variable} of the server; an admin allows it for an agent "
        f"with `loopwright agent change {name} --env {variable}`",
        code="variable-not-listed",
    )


def _not_listed(name: str, spec: str) -> NotAllowed:
    shown = spec if len(spec) <= SHOWN_CHARS else f"{spec[:SHOWN_CHARS]}…"
    return NotAllowed(
        f"agent {name!r}: {shown!r} is not on the list of agents that may run on this server; an "
        f"admin approves it with `{suggest_command(shown)}`",
        code="agent-not-listed",
        hint="`loopwright agent ls` (GET /api/v1/agents) shows the list",
    )
