"""The properties of each coding CLI: its name, its variables, and its terms for permissions.

Access levels are translated into the permission mode, the tools and the commands of each CLI. These
settings are one barrier and the sandbox is the other. A level that neither can enforce for a CLI is
refused (`unheld`), never ignored.

An agent may run the check commands of the loop that it works in, and no other command. Each CLI has
its own patterns for commands. A check becomes such a pattern only if none of its characters has a
special meaning there or in a shell; otherwise the agent is not allowed to run it. For a denied
permission, `denial_words` names the flag that allows it.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from msgspec.structs import replace

from loopwright.model.access import (
    PLAIN_READ_COMMANDS,
    denied_toolkits,
    family_of,
    reach_of,
    tool_kind,
)
from loopwright.model.plan import Access, Agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Cli:
    """One program. `credentials` are in the order in which one is chosen; only that one is passed
    on. `variables` are passed on when they are set, `fixed` ones are set unless they are set
    already.
    """

    name: str
    title: str
    install: str
    sign_in: str
    credentials: tuple[str, ...]
    variables: tuple[str, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)
    permissions: Mapping[str, str]  # our name, or its own, to its own
    can_add_tools: bool = False  # can be allowed further tools by name
    has_turns: bool = False
    has_cost: bool = False


DEFAULT_PERMISSION = "acceptEdits"


def _npm(package: str) -> str:
    return f"install it with: npm install -g {package}"


def _words(common: dict[str, str], *own: str) -> Mapping[str, str]:
    return MappingProxyType({**{word: word for word in own}, **common})


CLAUDE = Cli(
    name="claude",
    title="Claude Code",
    install=_npm("@anthropic-ai/claude-code"),
    sign_in="run `claude auth login`, or set ANTHROPIC_API_KEY",
    credentials=("CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    variables=("ANTHROPIC_BASE_URL", "CLAUDE_CONFIG_DIR", "IS_SANDBOX"),
    # A loop must not update its own tools while it runs, nor wait minutes for a provider that is
    # down.
    fixed=MappingProxyType(
        {
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "3",
            "DISABLE_AUTOUPDATER": "1",
        }
    ),
    permissions=_words(
        {
            "read-only": "plan",
            "ask": "default",
            "edit": "acceptEdits",
            "all": "bypassPermissions",
        },
        *("default", "acceptEdits", "plan", "dontAsk", "auto", "bypassPermissions"),
    ),
    can_add_tools=True,
    has_turns=True,
    has_cost=True,
)
CODEX = Cli(
    name="codex",
    title="Codex",
    install=_npm("@openai/codex"),
    sign_in="run `codex login`, or set CODEX_API_KEY",
    credentials=("CODEX_API_KEY", "OPENAI_API_KEY"),
    variables=("CODEX_HOME",),
    permissions=_words(
        {
            "ask": "read-only",
            "edit": "workspace-write",
            "all": "danger-full-access",
            "plan": "read-only",
            "default": "read-only",
            "acceptEdits": "workspace-write",
            "bypassPermissions": "danger-full-access",
        },
        *("read-only", "workspace-write", "danger-full-access"),
    ),
)
OPENCODE = Cli(
    name="opencode",
    title="OpenCode",
    install=_npm("opencode-ai"),
    sign_in="run `opencode auth login`",
    credentials=("OPENCODE_API_KEY",),
    variables=(
        "OPENCODE_CONFIG",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
        "XDG_CACHE_HOME",
    ),
    fixed=MappingProxyType({"OPENCODE_DISABLE_AUTOUPDATE": "1"}),
    permissions=_words(
        {"read-only": "plan", "edit": "acceptEdits", "all": "bypassPermissions"},
        *("ask", "default", "plan", "acceptEdits", "bypassPermissions"),
    ),
    can_add_tools=True,
    has_cost=True,
)
GEMINI = Cli(
    name="gemini",
    title="Gemini CLI",
    install=_npm("@google/gemini-cli"),
    sign_in="run `gemini` once and sign in, or set GEMINI_API_KEY",
    credentials=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    variables=("GOOGLE_GEMINI_BASE_URL", "GOOGLE_CLOUD_PROJECT"),
    # Relaunched, it is two processes of which one ignores being stopped.
    fixed=MappingProxyType(
        {"GEMINI_CLI_NO_RELAUNCH": "true", "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    ),
    can_add_tools=True,
    permissions=_words(
        {
            "read-only": "plan",
            "ask": "default",
            "edit": "auto_edit",
            "all": "yolo",
            "acceptEdits": "auto_edit",
            "bypassPermissions": "yolo",
        },
        *("default", "auto_edit", "yolo", "plan"),
    ),
)

CLIS: Mapping[str, Cli] = MappingProxyType(
    {cli.name: cli for cli in (CLAUDE, CODEX, OPENCODE, GEMINI)}
)


EDIT_WORDS = ("edit", "acceptEdits", "auto_edit", "workspace-write")
ADDS = "+"
"""The first character of a tool that is allowed in addition to what the permission allows."""

# Letters, digits and punctuation without a meaning in patterns; blanks only inside of quotes.
_PLAIN = re.compile(r"[\w@%+=:./ '-]+", re.ASCII)


def check_lines(checks: Iterable[tuple[str, ...]], agent: Agent) -> tuple[str, ...]:
    """The command lines of checks that an agent may run, as it writes them: those of an agent that
    may edit, unless the definition names its only tools or denies it commands.
    """
    permission = agent.permission or DEFAULT_PERMISSION
    if any(
        family is not None and family.name == "bash" for family in map(family_of, agent.deny_tools)
    ):
        return ()
    if permission not in EDIT_WORDS or agent.access is not None or only_tools(agent) is not None:
        return ()
    lines = (shlex.join(argv) for argv in checks if argv)
    return tuple(dict.fromkeys(line for line in lines if _is_plain(line)))


def _is_plain(line: str) -> bool:
    # A colon before a star is a wildcard, and a star is not plain; alone it is a character.
    return _PLAIN.fullmatch(line) is not None


def only_tools(agent: Agent) -> tuple[str, ...] | None:
    """The only tools of an agent; None if it has all that its permission allows."""
    if agent.tools is None:
        return None
    only = tuple(tool for tool in agent.tools if not tool.startswith(ADDS))
    return only if only or not agent.tools else None


def added_tools(agent: Agent) -> tuple[str, ...]:
    """Tools that an agent is allowed in addition."""
    return tuple(tool.removeprefix(ADDS) for tool in agent.tools or () if tool.startswith(ADDS))


SERVER = "loopwright"
"""The name of the MCP server with the trackers of a run, as a CLI sees it."""

_BELOW: tuple[Access, ...] = ("readonly-shell", "readonly", "minimal")

# Levels that the settings of a program alone enforce. The others need the sandbox.
HELD_BY_WORDS: Mapping[str, tuple[Access, ...]] = MappingProxyType(
    {
        "claude": _BELOW,
        "opencode": _BELOW,
        "gemini": ("readonly-shell", "readonly"),
        "codex": (),
    }
)


def unheld(name: str, agent: Agent, *, sandbox: str | None) -> str | None:
    """Why an agent's access level cannot be enforced, as a message. `sandbox` says why there is no
    sandbox.
    """
    level = agent.access
    if level is None:
        return None
    if "files" in denied_toolkits(agent) and level != "minimal":
        return f"{name} cannot be kept from files by a filter; say `access_level: minimal`"
    if level == "full":
        return None
    if name == "codex" and level == "readonly":
        return (
            "codex reads files by running commands, so it cannot be held to readonly; give it "
            "readonly-shell, or another agent"
        )
    if sandbox is None or level in HELD_BY_WORDS.get(name, ()):
        return None
    return f"{name} can be held to {level} only by a sandbox, and there is none: {sandbox}"


def worded(name: str, agent: Agent) -> Agent:
    """The agent with its level put into the permission and the tools that its program knows."""
    if agent.access is None:
        return agent
    return _WORDS[name](agent)


def _claude(agent: Agent) -> Agent:
    reach = reach_of(agent)
    if agent.access == "full":
        denied = ("Bash",) if reach.commands == "none" else ()
        return replace(
            agent,
            permission=agent.permission or DEFAULT_PERMISSION,
            deny_tools=(*agent.deny_tools, *denied),
        )
    tools: tuple[str, ...] = (f"mcp__{SERVER}",)
    tools += ("Read", "Grep", "Glob") if reach.reads else ()
    if reach.commands == "reading":
        tools += tuple(f"Bash({command}:*)" for command in PLAIN_READ_COMMANDS)
    return replace(agent, permission="dontAsk", tools=_kept(agent, tools))


def _codex(agent: Agent) -> Agent:
    word = agent.permission or DEFAULT_PERMISSION
    return replace(agent, permission=word if agent.access == "full" else "read-only")


def _opencode(agent: Agent) -> Agent:
    reach = reach_of(agent)
    if agent.access == "full":
        denied = ("bash",) if reach.commands == "none" else ()
        return replace(
            agent,
            permission=agent.permission or "bypassPermissions",
            deny_tools=(*agent.deny_tools, *denied),
        )
    tools: tuple[str, ...] = (f"{SERVER}_*",)
    tools += ("read", "grep", "glob", "list") if reach.reads else ()
    if reach.commands == "reading":
        tools += tuple(f"bash({command} *)" for command in PLAIN_READ_COMMANDS)
    return replace(agent, permission="default", tools=_kept(agent, tools))


def _gemini(agent: Agent) -> Agent:
    """Without a person to decide, `default` has no tool that writes or runs except the allowed
    ones.
    """
    reach = reach_of(agent)
    if agent.access == "full" and reach.commands == "all":
        return replace(agent, permission=agent.permission or "bypassPermissions")
    if agent.access == "full":
        return replace(agent, permission=DEFAULT_PERMISSION)
    tools: tuple[str, ...] = ()
    if reach.commands == "reading":
        tools = tuple(f"run_shell_command({command})" for command in PLAIN_READ_COMMANDS)
    return replace(agent, permission="default", tools=tools)


def tools_without_permission(agent: Agent) -> tuple[str, ...]:
    """Tools of Claude Code that need no permission, if all of them are allowed."""
    if agent.access != "full" or agent.tools is not None:
        return ()
    commands = () if reach_of(agent).commands == "none" else ("Bash",)
    return (*commands, "WebFetch", "WebSearch", f"mcp__{SERVER}")


def own_places(name: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """Folders and files in which a program stores its sessions and settings."""
    home = env.get("HOME", "")
    if name == "opencode":
        return tuple(
            f"{env.get(variable) or f'{home}/{usual}'}/opencode"
            for variable, usual in _OPENCODE_FOLDERS
        )
    variable, usual = _FOLDERS.get(name, ("", ""))
    if not usual:
        return ()
    if env.get(variable):
        return (env[variable],)
    beside = (f"{home}/.claude.json",) if name == "claude" else ()
    return (f"{home}/{usual}", *beside)


def configuration_of(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """The configuration of a program that is one of the CLIs by its name, such as `codex-acp` or
    `npx @google/gemini-cli`; none for any other program.
    """
    for word in argv[:3]:
        name = word.rstrip("/").rpartition("/")[2]
        for cli in (*_FOLDERS, "opencode"):
            if name == cli or name.startswith((f"{cli}-", f"{cli}.")):
                return own_places(cli, env)
    return ()


_FOLDERS = {
    "claude": ("CLAUDE_CONFIG_DIR", ".claude"),
    "codex": ("CODEX_HOME", ".codex"),
    "gemini": ("", ".gemini"),
}
_OPENCODE_FOLDERS = (
    ("XDG_CONFIG_HOME", ".config"),
    ("XDG_DATA_HOME", ".local/share"),
    ("XDG_STATE_HOME", ".local/state"),
    ("XDG_CACHE_HOME", ".cache"),
)


def _kept(agent: Agent, tools: tuple[str, ...]) -> tuple[str, ...]:
    """Of the tools of a level those that the author names, where some are named."""
    if agent.tools is None:
        return tools
    bare = {tool.partition("(")[0] for tool in agent.tools}
    return tuple(one for one in tools if one.partition("(")[0] in bare)


_WORDS = {"claude": _claude, "codex": _codex, "opencode": _opencode, "gemini": _gemini}


ALL_WORDS = ("all", "bypassPermissions", "yolo", "danger-full-access")
TARGET_CHARS = 100


def denial_words(program: str, agent: Agent, tool: str, target: str) -> str:
    """What was denied, and what allows it: a flag, or the setting that forbids it. `program` is the
    name of a coding CLI, or `acp`.
    """
    shown = target if len(target) <= TARGET_CHARS else target[: TARGET_CHARS - 1] + "…"
    what = f"{tool or 'a tool'}({shown})" if shown else tool or "a tool"
    if agent.access not in (None, "full"):
        return f"{what} was denied at the access level {agent.access}"
    bare = tool.partition("(")[0]
    if any(bare == named.partition("(")[0] for named in agent.deny_tools):
        return f"{what} was denied by `deny_tools` of the definition"
    permission = agent.permission or (DEFAULT_PERMISSION if program in CLIS else "ask")
    if permission in ALL_WORDS:
        return f"{what} was denied by the agent's own settings"
    edits = tool_kind(tool) == "edit" and permission not in EDIT_WORDS
    flags = ["--permission edit" if edits else "--permission all"]
    if program in CLIS and CLIS[program].can_add_tools and bare:
        flags.append(f"--tools {ADDS}{bare}")
    return f"{what} was denied; allow it with {' or '.join(flags)}"
