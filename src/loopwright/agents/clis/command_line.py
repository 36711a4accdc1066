"""The argument vector of a call, its standard input and its additional environment.

Every instruction or permission of an agent is a separate argument or variable; no text is ever part
of a command line that is parsed again. A permission or a cost limit that a program cannot enforce
is refused, never omitted.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

import msgspec

from loopwright.agents.clis.catalogue import (
    CLIS,
    DEFAULT_PERMISSION,
    SERVER,
    Cli,
    added_tools,
    check_lines,
    only_tools,
    tools_without_permission,
    worded,
)
from loopwright.agents.clis.claude import input_line
from loopwright.model.access import FAMILIES, family_of
from loopwright.model.plan import Agent
from loopwright.model.record import JsonValue

ARGUMENT_BYTES = 96 * 1024
"""The longest text that is passed as an argument; a system allows at most 128 KiB in one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageServer:
    """An MCP server for one call: how it is started, also as a settings file."""

    name: str
    argv: tuple[str, ...]
    config: str
    shows: tuple[str, ...] = ()  # what a sandbox must let it see


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLineRequest:
    """One call, as far as it concerns the command line."""

    prompt: str
    agent: Agent
    extra: tuple[str, ...] = ()  # arguments that the author adds
    session: str | None = None
    schema: dict[str, JsonValue] | None = None
    system_file: str | None = None  # the instructions, where they are too long for an argument
    session_usd: float = 0.0  # what the session has cost before this call
    server: StageServer | None = None
    checks: tuple[tuple[str, ...], ...] = ()  # commands that decide when the loop is done
    as_root: bool = False
    own_sandbox: bool = True  # the program confines its commands itself
    policy_file: str | None = None  # rules for commands, of programs that read them from a file
    takes_messages: bool = False  # further messages follow on standard input


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """How a program is started."""

    argv: tuple[str, ...]
    stdin: str = ""
    env: Mapping[str, str]
    notes: tuple[str, ...] = ()


def unfit(name: str, agent: Agent) -> str | None:
    """Settings of an agent that this program cannot enforce, as a message."""
    cli = CLIS[name]
    permission = agent.permission or DEFAULT_PERMISSION
    if permission not in cli.permissions:
        known = ", ".join(cli.permissions)
        return f"{cli.name} knows no permission {permission!r}; it has {known}"
    if added_tools(agent) and not cli.can_add_tools:
        return f"{cli.name} cannot be allowed tools by name; use `--permission all` instead"
    return _codex_problem(agent) if name == "codex" else None


def named_model(extra: Sequence[str]) -> str:
    """The model that the author's own arguments name, or an empty text."""
    named = ""
    for word, following in pairwise((*extra, "")):
        if word in ("-m", "--model"):
            named = following
        elif word.startswith("--model="):
            named = word.removeprefix("--model=")
        elif word in ("-c", "--config") and following.startswith("model="):
            named = following.removeprefix("model=").strip("\"'")
    return named


def needs_system_file(agent: Agent) -> bool:
    """Whether the instructions of an agent are too long for an argument."""
    return len(agent.system.encode(errors="replace")) > ARGUMENT_BYTES // 3


def command_line(name: str, wanted: CommandLineRequest) -> CommandLine:
    """How a call of a CLI is started; the agent must fit it."""
    cli = CLIS[name]
    wanted = replace(wanted, agent=worded(name, wanted.agent))
    made = _MAKERS[name](cli, wanted)
    notes = list(made.notes)
    if wanted.agent.max_turns is not None and not cli.has_turns:
        notes.append(f"{cli.name} has no limit of turns: max_turns was not applied")
    return CommandLine(
        argv=made.argv, stdin=made.stdin, env={**cli.fixed, **made.env}, notes=tuple(notes)
    )


def _permission(cli: Cli, agent: Agent) -> str:
    return cli.permissions[agent.permission or DEFAULT_PERMISSION]


def _as_argument(prompt: str) -> bool:
    return len(prompt.encode(errors="replace")) <= ARGUMENT_BYTES and "\0" not in prompt


def _with_system(wanted: CommandLineRequest) -> str:
    """Instructions and prompt in one text, for programs without a separate option for
    instructions.
    """
    return "\n\n".join(part for part in (wanted.agent.system, wanted.prompt) if part)


def _option(flag: str, value: str | float | None) -> list[str]:
    return [] if value is None else [flag, f"{value:g}" if isinstance(value, float) else value]


# -- one function for each program -----------------------------------------------------------------


def _claude(cli: Cli, wanted: CommandLineRequest) -> CommandLine:
    agent = wanted.agent
    argv = ["claude", "-p", "--output-format", "stream-json", "--verbose"]
    argv += ["--include-partial-messages", "--permission-mode", _claude_mode(cli, wanted)]
    argv += _option("--model", agent.model)
    argv += _claude_system(wanted)
    argv += _claude_tools(agent, (*tools_without_permission(agent), *_claude_allowed(wanted)))
    servers = [wanted.server.config] if wanted.server is not None else []
    strict = agent.access not in (None, "full")
    if isinstance(agent.options.get("mcp"), dict) and not strict:
        servers.append(msgspec.json.encode({"mcpServers": agent.options["mcp"]}).decode())
    argv += ["--mcp-config", *servers] if servers else []
    argv += ["--strict-mcp-config"] if strict and servers else []
    argv += _claude_options(agent)
    argv += _option("--max-turns", None if agent.max_turns is None else str(agent.max_turns))
    # The program compares with the cost of the whole session.
    budget = None if agent.max_usd is None else round(agent.max_usd + wanted.session_usd, 6)
    argv += _option("--max-budget-usd", budget)
    if wanted.schema is not None:
        schema = msgspec.json.encode(wanted.schema).decode()
        argv += ["--json-schema", schema] if _as_argument(schema) else []
    argv += _option("--resume", wanted.session)
    if not wanted.own_sandbox and "--settings" not in wanted.extra:
        argv += ["--settings", '{"sandbox":{"enabled":false}}']
    argv += wanted.extra
    if wanted.takes_messages:
        argv += ["--input-format", "stream-json", "--replay-user-messages"]
        return CommandLine(argv=tuple(argv), stdin=f"{input_line(wanted.prompt)}\n", env={})
    if _as_argument(wanted.prompt):
        return CommandLine(argv=(*argv, "--", wanted.prompt), env={})
    return CommandLine(argv=tuple(argv), stdin=wanted.prompt, env={})


USED_OPTIONS: dict[str, tuple[str, ...]] = {
    "claude": ("mcp", "hooks", "agents", "fallbackModel", "betas", "sandbox")
}
"""Options of agents that a program receives as arguments."""


def _claude_options(agent: Agent) -> list[str]:
    """Settings in a definition for this program alone."""
    options = agent.options
    settings: dict[str, JsonValue] = {}
    hooks = _claude_hooks(options.get("hooks"))
    if hooks:
        settings["hooks"] = hooks
    if isinstance(options.get("sandbox"), dict):
        settings["sandbox"] = options["sandbox"]
    argv = ["--settings", msgspec.json.encode(settings).decode()] if settings else []
    if isinstance(options.get("agents"), dict):
        argv += ["--agents", msgspec.json.encode(options["agents"]).decode()]
    fallback, betas = options.get("fallbackModel"), options.get("betas")
    argv += _option("--fallback-model", fallback if isinstance(fallback, str) else None)
    argv += ["--betas", *map(str, betas)] if isinstance(betas, list) and betas else []
    return argv


def _claude_hooks(hooks: JsonValue) -> dict[str, JsonValue]:
    """Hooks with fixed answers, as commands that print them."""
    made: dict[str, JsonValue] = {}
    for event, entries in hooks.items() if isinstance(hooks, dict) else ():
        for entry in entries if isinstance(entries, list) else ():
            if not isinstance(entry, dict) or not isinstance(entry.get("response"), dict):
                continue
            answer = shlex.quote(msgspec.json.encode(entry["response"]).decode())
            hook: dict[str, JsonValue] = {
                "hooks": [{"type": "command", "command": f"printf %s {answer}"}]
            }
            if isinstance(entry.get("matcher"), str):
                hook["matcher"] = entry["matcher"]
            made[event] = [*cast("list[JsonValue]", made.get(event, [])), hook]
    return made


ROOT_TOOLS = ("Bash", "Edit", "Write", "NotebookEdit", "WebFetch", "WebSearch")


def _claude_mode(cli: Cli, wanted: CommandLineRequest) -> str:
    """As root the program refuses to run without permissions, so its tools are allowed by name."""
    if wanted.agent.permission == "all" and wanted.as_root:
        return cli.permissions["edit"]
    return _permission(cli, wanted.agent)


def _claude_allowed(wanted: CommandLineRequest) -> tuple[str, ...]:
    """What needs no question beside what the permission mode allows."""
    agent = wanted.agent
    all_tools = ROOT_TOOLS if agent.permission == "all" and wanted.as_root else ()
    checks = (f"Bash({line})" for line in check_lines(wanted.checks, agent))
    loops = (f"mcp__{SERVER}",) if agent.loops and wanted.server is not None else ()
    return (*all_tools, *checks, *loops, *added_tools(agent))


def _claude_system(wanted: CommandLineRequest) -> list[str]:
    if wanted.system_file is not None:
        return ["--append-system-prompt-file", wanted.system_file]
    return _option("--append-system-prompt", wanted.agent.system or None)


def _claude_tools(agent: Agent, allowed: tuple[str, ...]) -> list[str]:
    """`--tools` lists the existing tools, `--allowedTools` those without a permission request: both
    are set.
    """
    only = only_tools(agent)
    allowed = (*allowed, *(only or ()))
    argv: list[str] = []
    if only is not None:
        names = [tool.partition("(")[0] for tool in (*only, *added_tools(agent))]
        built_in = [name for name in names if not name.startswith("mcp__")]
        argv += ["--tools", ",".join(dict.fromkeys(built_in))]
    if allowed:
        argv += ["--allowedTools", ",".join(allowed)]
    if agent.deny_tools:
        argv += ["--disallowedTools", ",".join(agent.deny_tools)]
    return argv


OWN_SANDBOX = ("codex",)
"""Programs that always run their commands in a sandbox of their own."""
CLAUDE_SETTINGS = (".claude/settings.json", ".claude/settings.local.json")
"""Where the sandbox of Claude Code is enabled: below the home directory or the workspace."""
NO_SANDBOX = "danger-full-access"


_WEB = ("webfetch", "websearch")


def _codex_problem(agent: Agent) -> str | None:
    """Why the tools of Codex cannot be restricted. It edits files by running commands, so writing
    and the web can be disabled, but not commands.
    """
    only = only_tools(agent)
    unnamed = [name for name in agent.deny_tools if family_of(name) is None]
    if unnamed:
        return f"codex cannot be kept from {unnamed[0]!r}: it has no such tool to deny"
    denied = _families(agent.deny_tools)
    kept = denied - {"write", "edit", *_WEB, "task", "todowrite"}
    if kept or (only is not None and "bash" not in _families(only)):
        what = f"without {sorted(kept)[0]!r}" if kept else "without 'bash' among its tools"
        return (
            f"codex works on files by running commands, so it cannot be used {what}; choose "
            "claude, opencode, gemini or a chat model for this agent"
        )
    return None


def _families(names: Iterable[str]) -> set[str]:
    return {family.name for name in names if (family := family_of(name)) is not None}


def _codex_limits(cli: Cli, agent: Agent) -> tuple[str, list[str]]:
    """The sandbox mode of Codex, and the settings that disable the web."""
    denied, only = _families(agent.deny_tools), only_tools(agent)
    mode = "read-only" if denied & {"write", "edit"} else _permission(cli, agent)
    offline = denied & {*_WEB} or (only is not None and not _families(only) & {*_WEB})
    return mode, ["-c", 'web_search="disabled"'] if offline else []


def is_read_only(name: str, agent: Agent) -> bool:
    """Whether the sandbox of a program prevents all changes."""
    return _codex_limits(CLIS[name], worded(name, agent))[0] == "read-only"


def _codex(cli: Cli, wanted: CommandLineRequest) -> CommandLine:
    mode, limits = _codex_limits(cli, wanted.agent)
    argv = ["codex", "exec", "-s", mode if wanted.own_sandbox else NO_SANDBOX, *limits]
    if wanted.server is not None:
        name, (program, *rest) = wanted.server.name, wanted.server.argv
        settings: tuple[tuple[str, JsonValue], ...] = (
            ("command", program),
            ("args", [*rest]),
            ("required", True),  # the first turn waits for it
            ("default_tools_approval_mode", "approve"),  # no person can decide
        )
        for key, value in settings:
            argv += ["-c", f"mcp_servers.{name}.{key}={msgspec.json.encode(value).decode()}"]
    argv += wanted.extra
    if wanted.session is not None:
        argv += ["resume"]
    argv += ["--json", "--skip-git-repo-check", *_option("-m", wanted.agent.model), "--"]
    argv += [wanted.session] if wanted.session is not None else []
    prompt = _with_system(wanted)
    if _as_argument(prompt):
        return CommandLine(argv=(*argv, prompt), env={})
    return CommandLine(argv=(*argv, "-"), stdin=prompt, env={})


def _opencode(cli: Cli, wanted: CommandLineRequest) -> CommandLine:
    permission = _permission(cli, wanted.agent)
    # Its events do not mention retries; its log does, on stderr.
    argv = ["opencode", "run", "--format", "json", "--print-logs", "--log-level", "ERROR"]
    argv += _option("-m", wanted.agent.model)
    argv += _option("-s", wanted.session)
    argv += ["--auto"] if permission == "bypassPermissions" else []
    argv += wanted.extra
    rights = _opencode_rights(permission, wanted)
    env = {"OPENCODE_PERMISSION": msgspec.json.encode(rights).decode()} if rights else {}
    if wanted.server is not None:
        command = {"type": "local", "command": list(wanted.server.argv), "enabled": True}
        config = {"mcp": {wanted.server.name: command}}
        env["OPENCODE_CONFIG_CONTENT"] = msgspec.json.encode(config).decode()
    # An argument with blanks reaches the model in quotes; what is on stdin arrives as it is.
    return CommandLine(argv=tuple(argv), stdin=_with_system(wanted), env=env)


_OPENCODE_RIGHTS: dict[str, dict[str, str]] = {
    "ask": {"edit": "ask", "bash": "ask", "webfetch": "ask", "external_directory": "ask"},
    "plan": {"edit": "deny", "bash": "deny"},
    "acceptEdits": {"edit": "allow"},
}


def _opencode_rights(permission: str, wanted: CommandLineRequest) -> dict[str, JsonValue]:
    agent, only = wanted.agent, only_tools(wanted.agent)
    rights: dict[str, JsonValue] = {**_OPENCODE_RIGHTS.get(permission, {})}
    if only is not None:
        rights = {"*": "deny", **_opencode_tools(only)}
    added = [f"bash({line})" for line in check_lines(wanted.checks, agent)]
    if agent.loops and wanted.server is not None:
        added.append(f"{SERVER}_*")
    rights |= _opencode_additions((*added, *added_tools(agent)))
    return {**rights, **dict.fromkeys(agent.deny_tools, "deny")}


def _opencode_additions(tools: tuple[str, ...]) -> dict[str, JsonValue]:
    """Permissions in addition to the user's own settings. Patterns for a tool would replace those
    of the user, so they are written for a name with a wildcard that means the same tool.
    """
    rights: dict[str, JsonValue] = {}
    for named in tools:
        tool, _, pattern = named.removesuffix(")").partition("(")
        if not pattern:
            rights[tool] = "allow"
            continue
        before = rights.get(f"{tool[:-1]}?")
        patterns = before if isinstance(before, dict) else {}
        rights[f"{tool[:-1]}?"] = {**patterns, pattern: "allow"}
    return rights


def _opencode_tools(tools: tuple[str, ...]) -> dict[str, JsonValue]:
    """A permission: a tool, or with `TOOL(PATTERN)` only matching calls of it."""
    rights: dict[str, JsonValue] = {}
    for named in tools:
        tool, _, pattern = named.removesuffix(")").partition("(")
        before = rights.get(tool)
        patterns = before if isinstance(before, dict) else {"*": "deny"}
        rights[tool] = {**patterns, pattern: "allow"} if pattern else "allow"
    return rights


def command_policy(name: str, wanted: CommandLineRequest) -> str:
    """The rules for commands as a file, for programs that read them from one; empty if none."""
    if name != "gemini":
        return ""
    rules = _gemini_tool_rules(wanted.agent)
    for line in check_lines(wanted.checks, wanted.agent):
        # The pattern is searched for in the arguments as JSON: with both quotes it is the whole.
        pattern = f'"command":{msgspec.json.encode(line).decode()}'
        quoted = msgspec.json.encode(re.escape(pattern).replace("\\ ", " ")).decode()
        rules.append(
            '[[rule]]\ntoolName = "run_shell_command"\n'
            f'argsPattern = {quoted}\ndecision = "allow"\npriority = 900\n'
        )
    return "\n".join(rules)


def _gemini_tool_rules(agent: Agent) -> list[str]:
    """Rules that leave an agent its only tools, and none that it is denied."""
    only = only_tools(agent)
    rules = [_gemini_rule(name, "deny", 990) for name in agent.deny_tools]
    if only is not None:
        allowed = [name.partition("(")[0] for name in (*only, *added_tools(agent))]
        rules += [_gemini_rule(name, "allow", 500) for name in dict.fromkeys(allowed)]
        own = [name for family in FAMILIES for name in family.gemini if name not in allowed]
        rules += [_gemini_rule(name, "deny", 400) for name in dict.fromkeys((*own, "*"))]
    return rules


def _gemini_rule(tool: str, decision: str, priority: int) -> str:
    name = msgspec.json.encode(tool.partition("(")[0]).decode()
    return f'[[rule]]\ntoolName = {name}\ndecision = "{decision}"\npriority = {priority}\n'


def _gemini(cli: Cli, wanted: CommandLineRequest) -> CommandLine:
    argv = ["gemini", "-o", "stream-json", "--skip-trust"]
    argv += ["--approval-mode", _permission(cli, wanted.agent)]
    argv += _option("-m", wanted.agent.model)
    allowed = (*(only_tools(wanted.agent) or ()), *added_tools(wanted.agent))
    if allowed:
        argv += ["--allowed-tools", ",".join(allowed)]
    argv += _option("--policy", wanted.policy_file)
    argv += _option("--resume", wanted.session)
    argv += wanted.extra
    server = wanted.server
    env = {} if server is None else {"GEMINI_CLI_SYSTEM_SETTINGS_PATH": server.config}
    return CommandLine(argv=tuple(argv), stdin=_with_system(wanted), env=env)


_MAKERS: dict[str, Callable[[Cli, CommandLineRequest], CommandLine]] = {
    "claude": _claude,
    "codex": _codex,
    "gemini": _gemini,
    "opencode": _opencode,
}


# -- the environment -------------------------------------------------------------------------------


def own_variables(name: str, base: Mapping[str, str]) -> dict[str, str]:
    """The variables of our own environment that a CLI receives beside the allow-list: where it
    finds its settings and its server, and one credential, the first of those it knows.
    """
    cli = CLIS[name]
    found = {variable: base[variable] for variable in cli.variables if base.get(variable)}
    for variable in cli.credentials:
        if base.get(variable):
            return {**found, variable: base[variable]}
    return found
