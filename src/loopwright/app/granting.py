"""Grants: from what a definition says about an agent's tools to what the agent may really use.

Nothing is granted that is not named, but for the file tools of an agent that names none at all:
they reach no further than the workspace. A name that means no tool is an error before the run.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

import msgspec

from loopwright.agents.clis.table import CLIS
from loopwright.errors import LoopwrightError
from loopwright.model.access import (
    READ_COMMANDS,
    Reach,
    has_tracker,
    is_offline,
    is_tracker,
    reach_of,
)
from loopwright.model.plan import Agent, ApprovalRule
from loopwright.model.record import JsonValue
from loopwright.model.sandbox import strictest
from loopwright.model.toolnames import family_of, names_for, speaks_of
from loopwright.programs.sandbox import works
from loopwright.tools.gate import Limit
from loopwright.tools.native import ANY_PROGRAM, ShellRules
from loopwright.tools.processes import Wall
from loopwright.tools.servers import HttpServer, StdioServer
from loopwright.tools.toolbox import NATIVE, Grant, ServerGrant, grant_problem

FILE_TOOLS = ("fs.read", "fs.list", "fs.search", "fs.write", "fs.edit")
_READING = ("fs.read", "fs.list", "fs.search")
_WRITING = ("fs.write", "fs.edit", "fs.mkdir")
READ_ONLY = "read-only"
SHELL = "shell.exec"
WEB = "web.fetch"
ALL_TOOLS = "*"
"""All tools of a server."""
_FILES = "fs."
MISSING_TOOLS = "missing_tools"
"""Where an agent's options name the tools of its definition that chat models do not have."""
SKIP = "skip_missing_tools"
"""Where an agent's options say that tools that are not there are left out, not refused."""
OURS = frozenset(name.partition(".")[0] for name in NATIVE)
Server = StdioServer | HttpServer


def grant_of(agent: Agent, servers: Mapping[str, Server]) -> Grant:
    """What an agent may use; LoopwrightError when it names something that is not there."""
    native, foreign = _named(agent)
    denied = agent.deny_tools
    options = agent.options
    if _discovers(agent):
        foreign = {name: [ALL_TOOLS] for name in servers}
    granted = tuple(_servers(options, foreign, denied, servers))
    if granted and is_offline(agent):
        raise LoopwrightError(
            f"an agent without a network has no MCP servers, and it names {granted[0].name!r}",
            code="bad-tool",
            hint="take the server away, or `network: none`",
        )
    protected = _words(options.get("protected_paths"))
    grant = Grant(
        native=tuple(name for name in native if _is_reached(name, agent)),
        servers=granted if agent.permission != READ_ONLY and reach_of(agent).servers else (),
        commands=_commands(agent),
        limits=dict(_limits(options)),
        aliases=dict(_aliases(agent)),
        **({"protected": protected} if protected else {}),
    )
    problem = grant_problem(grant)
    if problem is not None:
        raise LoopwrightError(problem, code="bad-tool", hint="see docs/reference/tools.md")
    return grant


def _discovers(agent: Agent) -> bool:
    """Whether an agent has the tools of all servers of the settings: a role with full access that
    names no tools, has a network, and is not asked about each change.
    """
    is_free = agent.permission is None and not agent.approvals and not is_offline(agent)
    return agent.access == "full" and agent.role is not None and agent.tools is None and is_free


def in_own_tool_names(kind: str, agent: Agent) -> Agent:
    """The agent with its tools under the names that an agent of this kind knows. A tool that chat
    models do not have is left out; the start says so.
    """
    if kind not in ("model", *CLIS):
        return agent
    tools = None if agent.tools is None else names_for(kind, agent.tools)
    denied = names_for(kind, agent.deny_tools, denies=True)
    missing: tuple[str, ...] = ()
    if kind == "model" and tools is not None:
        missing = tuple(name for name in tools if _is_missing(name))
        tools = tuple(name for name in tools if name not in missing)
    options = {**agent.options, MISSING_TOOLS: list(missing)} if missing else agent.options
    return msgspec.structs.replace(agent, tools=tools, deny_tools=denied, options=options)


def _is_missing(name: str) -> bool:
    """Whether this is a tool of other agents that chat models do not have."""
    family = family_of(name)
    return family is not None and not family.ours


def _commands(agent: Agent) -> ShellRules:
    """Which programs may be started. At `full` that is any of them, where only the workspace can
    be written; otherwise those that the author has listed. Programs that are `confined` are started
    only where a sandbox holds them to the workspace.
    """
    said = _mapping(agent.options.get("commands"))
    allow, deny = _words(said.get("allow")), _words(said.get("deny"))
    wall: Wall = "none"
    sandbox, offline = agent.sandbox, is_offline(agent)
    if "confined" in said and works() is None:
        allow = (*allow, *_words(said.get("confined")))
        level = said.get("sandbox")
        sandbox = strictest(sandbox or "guard", "readonly" if level == "readonly" else "workspace")
        offline = offline or said.get("offline") is True
    if agent.access == "full" and works() is None:
        allow, wall = allow or (ANY_PROGRAM,), "writing"
    elif ANY_PROGRAM in allow:  # any program at all only where it can write nothing else
        allow, wall = (allow, "writing") if works() is None else ((), "none")
    if reach_of(agent).commands == "reading":
        kept = tuple(one for one in READ_COMMANDS if not allow or one in allow)
        allow, wall = kept, "reading"
    return ShellRules(
        allow=allow,
        deny=deny,
        pass_env=agent.pass_env,
        wall=wall,
        offline=offline,
        sandbox=sandbox,
    )


def granted_names(agent: Agent) -> list[str]:
    """Every tool that an agent is given, by its own name."""
    native, foreign = _named(agent)
    return [*native, *(f"{server}.{tool}" for server, tools in foreign.items() for tool in tools)]


def check_tools(name: str, agent: Agent) -> None:
    """Every built-in tool that an agent names is there. Servers are known when the run begins."""
    unknown = [one for one in _named(agent)[0] if one not in NATIVE]
    unknown = [] if agent.options.get(SKIP) is True else unknown
    if unknown:
        near = get_close_matches(unknown[0], NATIVE, n=1)
        there = ", ".join(sorted(one for one in NATIVE if not is_tracker(one)))
        hint = f"did you mean {near[0]}?" if near else f"there are {there}"
        raise LoopwrightError(
            f"agent {name!r} names a tool that is not there: {unknown[0]!r}",
            code="bad-tool",
            hint=hint,
        )


def _named(agent: Agent) -> tuple[list[str], dict[str, list[str]]]:
    """The built-in tools that are named, and by server those of others. A built-in one may be
    named as if a server had it (`files.fs.read`): what runs is the tool of that name.
    """
    if agent.tools is None:
        any_program = ANY_PROGRAM in _words(_mapping(agent.options.get("commands")).get("allow"))
        shell = [SHELL] if any_program or agent.access in ("full", "readonly-shell") else []
        web = [WEB] if agent.access == "full" else []
        return [*FILE_TOOLS, *shell, *web, *tracker_names(agent)], {}
    native: list[str] = [*tracker_names(agent)]
    foreign: dict[str, list[str]] = {}
    for name in agent.tools:
        own = next((one for one in NATIVE if name == one or name.endswith(f".{one}")), None)
        server, dot, tool = name.partition(".")
        if own is not None:
            native += [own] if own not in native else []
        elif dot and server and tool and server not in OURS:
            foreign.setdefault(server, []).append(tool)
        elif agent.options.get(SKIP) is not True:
            native.append(name)  # there is no such tool; told by name below
    return native, foreign


def _aliases(agent: Agent) -> Iterator[tuple[str, str]]:
    """The built-in tools that an author names as if a server had them, by that name."""
    for name in agent.tools or ():
        own = next((one for one in NATIVE if name.endswith(f".{one}")), None)
        if own is not None:
            yield name, own


def tracker_names(agent: Agent) -> list[str]:
    """The tools of the trackers that an agent has: those of its level."""
    if agent.access is None:
        return []
    return [name for name in NATIVE if is_tracker(name) and has_tracker(agent, name)]


def asking(agent: Agent) -> Agent:
    """The agent with a person asked about every change, where that is its permission."""
    if agent.permission != "default":
        return agent
    names = granted_names(agent)
    changing = [name for name in names if name not in _READING and not is_tracker(name)]
    rules: dict[str, ApprovalRule] = dict.fromkeys(changing, "always")
    return msgspec.structs.replace(agent, approvals={**agent.approvals, **rules})


def _is_reached(name: str, agent: Agent) -> bool:
    """Whether neither a deny list nor the rights of the agent keep it from a built-in tool."""
    if any(speaks_of(one, name) for one in agent.deny_tools):
        return False
    if is_tracker(name):
        return agent.access is None or has_tracker(agent, name)
    if agent.permission == READ_ONLY and name not in _READING:
        return False
    if not _is_within(name, reach_of(agent)):
        return False
    files = _mapping(agent.options.get("permissions")).get("filesystem")
    if files == "none" and name.startswith(_FILES):
        return False
    return not (files == "repo-readonly" and name in _WRITING)


def _is_within(name: str, reach: Reach) -> bool:
    """Whether a built-in tool is one of those that a level has."""
    if name == SHELL:
        return reach.commands != "none"
    if name == WEB:
        return reach.web
    return reach.writes if name in _WRITING else reach.reads


def _servers(
    options: Mapping[str, JsonValue],
    foreign: Mapping[str, list[str]],
    denied: tuple[str, ...],
    known: Mapping[str, Server],
) -> Iterator[ServerGrant]:
    own = {
        str(one.get("server")): spec
        for one in map(_mapping, _list(options.get("mcp")))
        if (spec := server_of(one)) is not None
    }
    for name, tools in foreign.items():
        spec = own.get(name) or known.get(name)
        if spec is None and options.get(SKIP) is True:
            continue
        if spec is None:
            there = ", ".join(sorted({*own, *known})) or "none"
            raise LoopwrightError(
                f"there is no MCP server {name!r} (there are: {there})",
                code="unknown-server",
                hint=f"describe it in loopwright.toml under [mcp.{name}] with command or url",
            )
        allow = tuple(t for t in tools if not any(speaks_of(d, f"{name}.{t}") for d in denied))
        yield ServerGrant(name=name, spec=spec, allow=allow, deny=denied)


def servers_of(written: Mapping[str, Mapping[str, JsonValue]]) -> dict[str, Server]:
    """The servers of the settings."""
    found = {name: server_of(one) for name, one in written.items()}
    return {name: spec for name, spec in found.items() if spec is not None}


def server_of(value: Mapping[str, JsonValue]) -> Server | None:
    """A server as somebody wrote it down: a command, or an address."""
    command, url = value.get("command"), value.get("url")
    words = (command,) if isinstance(command, str) else _words(command)
    argv = (*words, *_words(value.get("args")))
    if argv:
        return StdioServer(argv=argv, pass_env=_words(value.get("pass_env")))
    if not isinstance(url, str) or not url:
        return None
    bearer = value.get("bearer_env")
    headers = _mapping(value.get("header_env"))
    return HttpServer(
        url=url,
        bearer_env=bearer if isinstance(bearer, str) else None,
        header_env=tuple((header, str(variable)) for header, variable in headers.items()),
    )


def _limits(options: Mapping[str, JsonValue]) -> Iterator[tuple[str, Limit]]:
    for tool, value in _mapping(options.get("tool_limits")).items():
        said = _mapping(value)
        seconds, at_once = said.get("seconds"), said.get("at_once")
        yield (
            tool,
            Limit(
                seconds=float(seconds) if isinstance(seconds, int | float) else Limit().seconds,
                at_once=at_once if isinstance(at_once, int) else None,
                exclusive=said.get("exclusive") is True,
            ),
        )


def _mapping(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _words(value: JsonValue) -> tuple[str, ...]:
    return tuple(one for one in _list(value) if isinstance(one, str))
