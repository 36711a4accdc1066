"""Whether a run may start on a server: one check for every interface.

Whoever starts a run with a role below admin may use the agents on the list (`agent_registry`), and
no others. A definition counts as written by whoever stored it: an admin who starts the definition
of an editor does not approve the programs in it. What the text of somebody below admin may not do:
name another agent, describe an MCP server, or ask for variables of the server.

The role is that of the request (`acting_as`). Where nobody has said which, it is editor.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import msgspec

from loopwright.app.access import Access, Role, least
from loopwright.app.agent_registry import (
    ANY_SCRIPT,
    AgentEntry,
    AgentRegistry,
    own_variables_of,
    suggest_command,
)
from loopwright.app.plugins import PREFIX, plugin_spec
from loopwright.app.service import Start
from loopwright.errors import LoopwrightError, NotAllowed, StorageError
from loopwright.model.plan import Agent, Plan
from loopwright.model.sandbox import COMMAND_SANDBOX, SandboxLevel, command_level, strictest
from loopwright.programs.specs import UNHELD_KINDS, Spec, parse_spec

ADMIN: Role = "admin"
EDITOR: Role = "editor"
SHOWN_CHARS = 200
_ACTING: ContextVar[Role | None] = ContextVar("acting_role", default=None)

Agents: TypeAlias = Mapping[str, Agent]


@contextlib.contextmanager
def acting_as(role: Role) -> Iterator[None]:
    """Runs that are started in here are started by somebody with this role."""
    token = _ACTING.set(role)
    try:
        yield
    finally:
        _ACTING.reset(token)


def acting_role() -> Role:
    """The role of whoever asks; editor where nobody has said it."""
    return _ACTING.get() or EDITOR


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
        allow_unsandboxed: bool = False,
    ) -> None:
        self.registry = registry
        self._access = access
        self._home = home
        self._allow_unsandboxed = allow_unsandboxed  # the setting of the server, for all agents

    def names(self) -> Mapping[str, str]:
        """The specs of the agents on the list by name."""
        return self.registry.names()

    def admit(self, start: Start) -> Start:
        """The start, if it is allowed; NotAllowed with the reason and the remedy otherwise."""
        actor = acting_role()
        author = least(actor, start.author or actor)
        authority = _Authority(chooser=actor, author=author, from_text=start.from_text)
        with self._recorded(start.by, f"start {start.plan.name}"):
            self._check_workspace(start.workspace)
            self._check_plan(start.plan, authority)
            agents = {
                name: self._admitted(name, agent, authority, start.workspace)
                for name, agent in start.plan.agents.items()
            }
            if start.sandbox == "off":
                self._check_off(agents)
        plan = msgspec.structs.replace(start.plan, agents=agents)
        is_off = start.sandbox == "off" and not self._allow_unsandboxed
        if author != ADMIN or is_off:
            plan = self._with_command_level(plan, author)
        return replace(start, plan=plan, allow_off=start.sandbox == "off")

    def admit_agents(self, agents: Agents, *, run: str, by: str, workspace: Path) -> Agents:
        """Agents that take the place of others in a run, if they are allowed."""
        actor = acting_role()
        authority = _Authority(chooser=actor, author=actor, from_text=())
        with self._recorded(by, run):
            return {
                name: self._admitted(name, agent, authority, workspace)
                for name, agent in agents.items()
            }

    def admit_fork(self, plan: Plan, *, run: str, by: str, workspace: Path) -> None:
        """Refuse a fork whose agents its maker could not start: it is a run of its own."""
        actor = acting_role()
        with self._recorded(by, run):
            self._check_workspace(workspace)
            self._check_plan(plan, _Authority(chooser=actor, author=actor, from_text=()))
            if plan.sandbox == "off":
                self._check_off(plan.agents)
        self.admit_agents(plan.agents, run=run, by=by, workspace=workspace)

    def check_resume(self, plan: Plan, *, run: str, by: str) -> None:
        """Refuse to resume a run at `off`, which an admin has started, for others than admins."""
        if plan.sandbox == "off" and acting_role() != ADMIN:
            with self._recorded(by, run):
                self._check_off(plan.agents)

    def check_text(self, plan: Plan, *, by: str, what: str) -> None:
        """Refuse a definition that somebody wants to store and could not start."""
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
        if entry is None and authority.role_for(name) != ADMIN:
            raise _not_listed(name, text)
        if entry is not None and entry.spec == ANY_SCRIPT and authority.role_for(name) != ADMIN:
            self._check_script(name, text, workspace)
        least = entry.sandbox if entry is not None else None
        if authority.author != ADMIN:
            _check_servers(name, agent)
            _check_variables(name, agent, spec, entry)
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
        a run starts, nobody knows which workspace that is.
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

    def _check_workspace(self, workspace: Path) -> None:
        """No run works in the data directory, except in the worktrees that are kept there."""
        if self._is_private(workspace.resolve()):
            raise NotAllowed(
                "the workspace is in the data directory of the server, which no agent may see",
                code="private-workspace",
                hint="name another folder as `workspace`",
            )

    def _is_private(self, place: Path) -> bool:
        home = self._home.resolve()
        return place.is_relative_to(home) and not place.is_relative_to(home / "worktrees")

    @contextlib.contextmanager
    def _recorded(self, by: str, subject: str) -> Iterator[None]:
        """Write a refusal to the audit log; the answer is no with or without it."""
        try:
            yield
        except NotAllowed as refusal:
            detail = f"{refusal.code}: {refusal.message}"[:SHOWN_CHARS]
            row = self._access.row(by, "denied", subject[:SHOWN_CHARS], detail)
            with contextlib.suppress(StorageError):
                self._access.cards.change(audit=[row])
            raise


def _parsed(agent: Agent) -> tuple[str, Spec | None]:
    """The spec of an agent, of a plugin the one that it stands for."""
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
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and (one.get("command") or one.get("url")):
            server = str(one.get("server", ""))[:60]
            raise NotAllowed(
                f"agent {name!r}: only an admin may describe an MCP server ({server!r}); an admin "
                f"adds it to the settings of the server as [mcp.{server or 'NAME'}]",
                code="agent-not-listed",
            )


def _check_variables(name: str, agent: Agent, spec: Spec | None, entry: AgentEntry | None) -> None:
    allowed = {*(entry.pass_env if entry is not None else ())}
    allowed |= {*own_variables_of(spec)} if spec is not None else set()
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
