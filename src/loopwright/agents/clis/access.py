"""Access levels in the words of each coding CLI: which permission, which tools, which commands.

The words are one wall and the sandbox is the other. A level that a CLI can be held to by neither is
refused (`unheld`), never left out.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from loopwright.agents.clis.table import DEFAULT_PERMISSION
from loopwright.model.access import PLAIN_READ_COMMANDS, denied_toolkits, reach_of
from loopwright.model.plan import Access, Agent

SERVER = "loopwright"
"""The name of the server that has the trackers of a run, as a CLI is told it."""

_BELOW: tuple[Access, ...] = ("readonly-shell", "readonly", "minimal")

# Levels that the words of a program alone hold it to. The others need the sandbox.
HELD_BY_WORDS: Mapping[str, tuple[Access, ...]] = MappingProxyType(
    {
        "claude": _BELOW,
        "opencode": _BELOW,
        "gemini": ("readonly-shell", "readonly"),
        "codex": (),
    }
)


def unheld(name: str, agent: Agent, *, sandbox: str | None) -> str | None:
    """Why an agent cannot be held to its level, in words. `sandbox` says why there is none."""
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
    """Without a person to ask, `default` has no tool that writes or runs but those allowed."""
    reach = reach_of(agent)
    if agent.access == "full" and reach.commands == "all":
        return replace(agent, permission=agent.permission or "bypassPermissions")
    if agent.access == "full":
        return replace(agent, permission=DEFAULT_PERMISSION)
    tools: tuple[str, ...] = ()
    if reach.commands == "reading":
        tools = tuple(f"run_shell_command({command})" for command in PLAIN_READ_COMMANDS)
    return replace(agent, permission="default", tools=tools)


def unasked(agent: Agent) -> tuple[str, ...]:
    """Tools of Claude Code that need no question, where all of them are there."""
    if agent.access != "full" or agent.tools is not None:
        return ()
    commands = () if reach_of(agent).commands == "none" else ("Bash",)
    return (*commands, "WebFetch", "WebSearch", f"mcp__{SERVER}")


def own_places(name: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """Folders and files that a program keeps its sessions and settings in."""
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
