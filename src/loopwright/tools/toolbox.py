"""The toolbox: the tools that one agent may use, and the only way to call them.

A name is resolved to a tool first (`resolve`), by the exact names that were granted and their last
parts. Approvals, records and `run` use only the tool's own name, so there is no second spelling
that a policy could miss. Secrets that a tool received by name are removed from its results and
descriptions.

A `Workshop` has what the toolboxes of all agents of one process share.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from types import TracebackType
from typing import Self, TypeAlias

import msgspec

from loopwright.model.chat import CallPart, ChatTool, RequestedCall
from loopwright.model.record import JsonValue
from loopwright.model.sandbox import SandboxLevel
from loopwright.tools.builtin import (
    WEB_TOOL,
    Arguments,
    Bench,
    BuiltinCall,
    BuiltinTool,
    RecordWork,
    ShellRules,
    ToolLimit,
    ToolPrograms,
    ToolSlots,
    Web,
    capped,
    done_in_thread,
    in_time,
)
from loopwright.tools.file_tools import FILE_TOOLS, RESULT_READ, SEARCH_TOOL
from loopwright.tools.mcp.connections import (
    McpTool,
    WorkspaceServer,
    offered,
    server_name_problem,
)
from loopwright.tools.mcp.server_records import HttpServer, ServerPlace, ServerSpec
from loopwright.tools.results import (
    ResultStore,
    ToolCallResult,
    ToolRefusal,
    as_json,
    failed_outcome,
)
from loopwright.tools.shell import SHELL_TOOL
from loopwright.tools.tracker_scope import TrackerScope
from loopwright.tools.trackers import TRACKER_TOOLS
from loopwright.tools.workspace_tree import (
    PROTECTED,
    Identity,
    PrivateFolders,
    Protection,
    WorkspaceTree,
    shown,
)

LEAST_CHARS = 6  # shorter values occur everywhere by chance


class SecretFilter:
    """Masks the values of the variables that were passed on."""

    def __init__(
        self, programs: ToolPrograms, shell: ShellRules, servers: Iterable[ServerSpec]
    ) -> None:
        names = {*shell.pass_env, *(name for spec in servers for name in _names(spec))}
        values = {name: programs.secret(name) or "" for name in names}
        forms = {
            form: name
            for name, value in values.items()
            if len(value) >= LEAST_CHARS
            for form in (value, as_json(value)[1:-1])
        }
        # Longest first: a secret may contain another one.
        self._forms = sorted(forms.items(), key=lambda one: -len(one[0]))

    def blot(self, text: str) -> str:
        for form, name in self._forms:
            text = text.replace(form, f"[{name}]")
        return text

    def blot_json(self, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """The same for values that are not text; a value without secrets is returned unchanged."""
        text = as_json(value)
        blotted = self.blot(text)
        if blotted == text:
            return value
        found: dict[str, JsonValue] = msgspec.json.decode(blotted)
        return found


def _names(spec: ServerSpec) -> Iterator[str]:
    if isinstance(spec, HttpServer):
        yield from (name for _, name in spec.header_env)
        yield from filter(None, [spec.bearer_env])
    else:
        yield from spec.pass_env


NATIVE: Mapping[str, BuiltinTool] = {
    tool.spec.name: tool
    for tool in (*FILE_TOOLS, SEARCH_TOOL, SHELL_TOOL, WEB_TOOL, *TRACKER_TOOLS)
}
ARGUMENT_BYTES = 1024 * 1024
ARGUMENT_CHARS = 10_000  # of unreadable arguments, in the log
MCP_LIMIT = ToolLimit(seconds=120, at_once=8)

SchemaCheck: TypeAlias = Callable[[dict[str, JsonValue], JsonValue], str | None]
"""Why a value does not fit a JSON Schema, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerGrant:
    """An MCP server and its granted tools; `*` means all of them except the denied ones."""

    name: str
    spec: ServerSpec
    allow: tuple[str, ...]
    deny: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What an agent may use. Nothing else is ever run."""

    native: tuple[str, ...] = ()
    servers: tuple[ServerGrant, ...] = ()
    commands: ShellRules = field(default_factory=ShellRules)
    protected: tuple[str, ...] = PROTECTED
    limits: Mapping[str, ToolLimit] = field(default_factory=dict)  # by the tool's own name
    # the author's name for a built-in tool
    aliases: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The tools offered to a model, and the servers that could not be reached."""

    tools: tuple[ChatTool, ...]
    problems: tuple[str, ...] = ()


def grant_problem(grant: Grant) -> str | None:
    """Why a grant cannot be used, or None."""
    unknown = [name for name in grant.native if name not in NATIVE]
    if unknown:
        near = get_close_matches(unknown[0], NATIVE, n=1) or sorted(NATIVE)
        return f"there is no tool {unknown[0]!r}; use {', '.join(near)}"
    names = [server.name for server in grant.servers]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        return f"the server {twice[0]!r} is granted twice"
    return next(filter(None, map(server_name_problem, names)), None)


class Toolbox:
    """The tools of one agent in one workspace."""

    def __init__(
        self,
        grant: Grant,
        bench: Bench,
        *,
        gate: ToolSlots,
        servers: Mapping[str, WorkspaceServer],
        check: SchemaCheck,
    ) -> None:
        problem = grant_problem(grant)
        if problem is not None:
            raise ValueError(problem)
        self._grant = grant
        self._bench = bench
        self._gate = gate
        self._servers = servers
        self._check = check
        self._blotter = SecretFilter(
            bench.programs, grant.commands, [s.spec for s in grant.servers]
        )
        self._native = {name: NATIVE[name] for name in grant.native}
        if grant.native or grant.servers:  # tools with possibly long results
            self._native[RESULT_READ.spec.name] = RESULT_READ

    # -- what there is

    async def specs(self) -> Offer:
        """All tools for the model. Servers are queried in parallel; one that is down does not
        affect the others.
        """
        tools, problems = await self._mcp_tools()
        native = [tool.spec for tool in self._native.values()]
        foreign = [
            ChatTool(
                name=name,
                description=self._blotter.blot(tool.listed.description),
                schema=self._blotter.blot_json(tool.listed.schema),
            )
            for name, tool in tools.items()
        ]
        return Offer(tools=(*native, *foreign), problems=problems)

    async def _mcp_tools(self) -> tuple[dict[str, McpTool], tuple[str, ...]]:
        offers = [
            offered(one.name, self._servers[one.name], one.allow, one.deny)
            for one in self._grant.servers
        ]
        tools: dict[str, McpTool] = {}
        problems: list[str] = []
        for answer in await asyncio.gather(*offers):
            listed = answer if isinstance(answer, dict) else {}
            tools |= {name: t for name, t in listed.items() if self._blotter.blot(name) == name}
            problems += [answer.message] if isinstance(answer, ToolRefusal) else []
        return tools, tuple(map(self._blotter.blot, problems))

    def repeatable(self, tool: str) -> bool:
        """Whether a call with an unknown result can simply be repeated."""
        native = self._native.get(tool)
        return native is not None and native.repeatable

    # -- what a model wants

    async def resolve(self, call: CallPart) -> RequestedCall:
        """The call with its tool's own name, its arguments, and the paths that it would touch."""
        tools, problems = await self._mcp_tools()
        called = self._grant.aliases.get(call.tool, call.tool)
        name = _own_name(called, [*self._native, *tools])
        if isinstance(name, ToolRefusal):
            text = "; ".join([name.message, *problems])
            written = _written(call.args)
            return RequestedCall(id=call.id, tool=call.tool[:200], arguments=written, problem=text)
        try:
            arguments = self._fitting(name, _parsed(call.args), tools)
        except ToolRefusal as refusal:
            problem = self._blotter.blot(refusal.message)
            written = _written(call.args)
            return RequestedCall(id=call.id, tool=name, arguments=written, problem=problem)
        return self._touching(RequestedCall(id=call.id, tool=name, arguments=arguments), arguments)

    def _fitting(self, name: str, value: JsonValue, tools: Mapping[str, McpTool]) -> Arguments:
        if not isinstance(value, dict):
            raise ToolRefusal("bad-arguments", "the arguments must be a JSON object")
        native = self._native.get(name)
        value = native.adapt(value) if native is not None and native.adapt is not None else value
        schema = self._native[name].spec.schema if name in self._native else tools[name].schema
        problem = self._check(schema, value)
        if problem is not None:
            raise ToolRefusal("bad-arguments", f"the arguments do not fit: {problem}")
        return value

    def _touching(self, wanted: RequestedCall, arguments: Arguments) -> RequestedCall:
        native = self._native.get(wanted.tool)
        if native is RESULT_READ:
            return msgspec.structs.replace(wanted, paths=())
        if native is None or native.path is None:
            return wanted
        try:
            parts = self._bench.tree.locate(BuiltinCall(arguments).text(native.path, "."))
        except ToolRefusal as refusal:
            return msgspec.structs.replace(wanted, problem=refusal.message)
        protected = self._bench.protection.covers(parts)
        return msgspec.structs.replace(wanted, paths=(shown(parts),), protected=protected)

    # -- doing it

    async def run(
        self, tool: str, arguments: JsonValue, *, approved: bool = False, key: str = ""
    ) -> ToolCallResult:
        """Execute a call under the tool's own name. `approved` means that a person has approved
        this very call; only then can a protected path be written. Cancelling ends what it has
        started. With the `key` of the call, a tracker does not store the same change twice.
        """
        try:
            limit = self._limit(tool)
            slack = self._native[tool].slack_s if tool in self._native else 0.0
            async with self._gate.turn(tool, limit), in_time(limit.seconds + slack):
                call_limits = BuiltinCall({}, approved=approved, seconds=limit.seconds, key=key)
                outcome = await self._do(tool, arguments, call_limits)
        except ToolRefusal as refusal:
            outcome = failed_outcome(refusal.problem, refusal.message)
        except Exception as error:  # a tool may fail in any way; the loop continues and reports it
            outcome = failed_outcome("tool-error", f"{type(error).__name__}: {error}")
        return capped(self._blotted(outcome), self._bench.shelf)

    def _limit(self, tool: str) -> ToolLimit:
        if tool in self._native:
            default = self._native[tool].limit
        elif any(tool.startswith(f"{server.name}.") for server in self._grant.servers):
            default = MCP_LIMIT
        else:
            raise ToolRefusal("unknown-tool", f"there is no tool {tool[:200]!r}")
        return self._grant.limits.get(tool, default)

    async def _do(
        self, tool: str, arguments: JsonValue, call_limits: BuiltinCall
    ) -> ToolCallResult:
        native = self._native.get(tool)
        if native is None:
            return await self._do_mcp(tool, arguments)
        call = replace(call_limits, arguments=self._fitting(tool, arguments, {}))
        if native.async_work is not None:
            return await native.async_work(self._bench, call)
        assert native.work is not None, "a tool has one of the two"
        return await done_in_thread(native.work, self._bench, call)

    async def _do_mcp(self, tool: str, arguments: JsonValue) -> ToolCallResult:
        server = tool.partition(".")[0]
        [granted] = [one for one in self._grant.servers if one.name == server]
        tools = await offered(server, self._servers[server], granted.allow, granted.deny)
        if isinstance(tools, ToolRefusal):
            raise tools
        if tool not in tools:
            raise ToolRefusal("unknown-tool", f"there is no tool {tool[:200]!r}")
        fitting = self._fitting(tool, arguments, tools)
        answer = await self._servers[server].call(tools[tool].listed.name, fitting)
        if answer.error:
            return failed_outcome(
                "tool-error", answer.text.strip() or "the tool failed and did not say why"
            )
        return ToolCallResult(text=answer.text)

    def _blotted(self, outcome: ToolCallResult) -> ToolCallResult:
        return msgspec.structs.replace(outcome, text=self._blotter.blot(outcome.text))


def _own_name(name: str, known: list[str]) -> str | ToolRefusal:
    """The one tool that a name matches: its own name, or its last parts."""
    if name in known:
        return name
    found = [one for one in known if one.endswith(f".{name}")] if name else []
    if len(found) == 1:
        return found[0]
    if found:
        may = ", ".join(sorted(found))
        return ToolRefusal("unknown-tool", f"{name!r} may mean {may}; use the whole name")
    near = get_close_matches(name[:200], known, n=3) or sorted(known)[:20]
    hint = f"; there are: {', '.join(near)}" if near else ""
    return ToolRefusal("unknown-tool", f"there is no tool {name[:200]!r}{hint}")


def _written(text: str) -> JsonValue:
    """The arguments of a call that is not run, for the log: as JSON, else as the model
    wrote them.
    """
    try:
        return _parsed(text)
    except ToolRefusal:
        return text[:ARGUMENT_CHARS].encode(errors="replace").decode()


def _parsed(text: str) -> JsonValue:
    if len(text) > ARGUMENT_BYTES:
        raise ToolRefusal("bad-arguments", f"the arguments have more than {ARGUMENT_BYTES} bytes")
    try:
        value: JsonValue = msgspec.json.decode(text.strip() or "{}")
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ToolRefusal("bad-arguments", f"the arguments are not JSON: {error}") from None
    return value


class Workshop:
    """Creates toolboxes. Those of one workspace share its servers and wait for each other if a tool
    must run alone. Belongs to one event loop; `close` ends all servers.
    """

    def __init__(
        self,
        programs: ToolPrograms,
        check: SchemaCheck,
        find_private: Callable[[str], PrivateFolders] = lambda workspace: PrivateFolders(),
        web: Web | None = None,
        record_work: RecordWork = nullcontext,
    ) -> None:
        self._web = web
        self._find_private = find_private  # for a workspace
        self._record_work = record_work
        self._programs = programs
        self._check = check
        self._gates: dict[str, ToolSlots] = {}
        self._servers: dict[tuple[str, str, ServerSpec, SandboxLevel | None], WorkspaceServer] = {}

    def toolbox(
        self,
        workspace: str,
        grant: Grant,
        shelf: ResultStore,
        tracker_scope: TrackerScope | None = None,
        identity: Identity | None = None,
    ) -> Toolbox:
        """The tools of an agent; ValueError if the grant itself is invalid. `identity` is the
        folder that the workspace was when the run started.
        """
        bench = Bench(
            tree=WorkspaceTree(
                workspace, private=partial(self._find_private, workspace), identity=identity
            ),
            protection=Protection(grant.protected),
            programs=self._programs,
            shelf=shelf,
            commands=grant.commands,
            tracker_scope=tracker_scope,
            web=self._web,
            record_work=self._record_work,
        )
        root = bench.tree.root
        gate = self._gates.setdefault(root, ToolSlots())
        level = grant.commands.sandbox
        servers = {one.name: self._server(root, one.name, one.spec, level) for one in grant.servers}
        return Toolbox(grant, bench, gate=gate, servers=servers, check=self._check)

    def _server(
        self, workspace: str, name: str, spec: ServerSpec, level: SandboxLevel | None
    ) -> WorkspaceServer:
        key = (workspace, name, spec, level)
        if key not in self._servers:
            self._servers[key] = WorkspaceServer(
                name, spec, ServerPlace(workspace, self._programs, level)
            )
        return self._servers[key]

    async def close(self) -> None:
        """End every server and wait until they have ended."""
        servers, self._servers = list(self._servers.values()), {}
        await asyncio.gather(*(server.close() for server in servers))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
