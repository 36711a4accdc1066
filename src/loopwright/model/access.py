"""Access levels of agents, and the names of tools in approval and denial rules.

An access level says which files, commands and trackers an agent may use. Every system has its
own names for the same few tools. A definition that was written for one system must work with
every agent, so `FAMILIES` lists the names that mean the same tool.

Also what a tool call of an agent was about: its kind, and the path, command line or host.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from loopwright.model.plan import Access, Agent
from loopwright.model.record import JsonValue, Record

LEVELS: tuple[Access, ...] = ("minimal", "readonly", "readonly-shell", "full")
"""From the narrowest to the widest."""

PLAIN_READ_COMMANDS = (
    *("grep", "cat", "head", "tail", "wc", "ls", "uniq", "diff"),
    *("cut", "nl", "stat"),
)
"""Programs of `readonly-shell` that are not meant to write or to start other programs."""

READ_COMMANDS = (*PLAIN_READ_COMMANDS, "find", "sort")
"""All programs of `readonly-shell`. Some options of the last two write or start programs, so they
are available only where arguments are checked one by one.
"""

TOOLKITS = (
    *("files", "shell", "web", "servers", "memory"),
    *("artifacts", "todos", "sprints", "projects", "skills"),
)
"""The tools that the filter of a role names."""

DENIED_TOOLKITS = "denied_toolkits"
"""The agent option that lists the toolkits that its role removes."""

NETWORK = "network"
"""The agent option that says whether the processes it starts have a network: `none` or `full`."""

_TRACKERS = {
    "artifact": "artifacts",
    "todo": "todos",
    "sprint": "sprints",
    "project": "projects",
    "skill": "skills",
    "memory": "memory",
}
_FULL_ONLY = ("artifact.delete", "todo.complete", "todo.delete")
"""Tools that delete or complete items for everybody."""

Commands: TypeAlias = Literal["none", "reading", "all"]


class Reach(Record, frozen=True, kw_only=True):
    """What an agent may do in its workspace."""

    reads: bool = True
    writes: bool = True
    commands: Commands = "all"
    servers: bool = True
    web: bool = True


_REACHES: dict[Access, Reach] = {
    "full": Reach(),
    "readonly-shell": Reach(writes=False, commands="reading", servers=False, web=False),
    "readonly": Reach(writes=False, commands="none", servers=False, web=False),
    "minimal": Reach(reads=False, writes=False, commands="none", servers=False, web=False),
}


def reach_of(agent: Agent) -> Reach:
    """The access level of an agent; an agent without a level is not restricted by one."""
    level = _REACHES[agent.access or "full"]
    taken = denied_toolkits(agent)
    files = "files" not in taken and agent.sandbox != "none"
    shell = "shell" not in taken and agent.sandbox != "none"
    return Reach(
        reads=level.reads and files,
        writes=level.writes and files and agent.sandbox != "readonly",
        commands=level.commands if shell else "none",
        servers=level.servers and "servers" not in taken,
        web=level.web and "web" not in taken and not is_offline(agent),
    )


def denied_toolkits(agent: Agent) -> frozenset[str]:
    """The toolkits that a role removes."""
    named = agent.options.get(DENIED_TOOLKITS)
    return (
        frozenset(one for one in named if isinstance(one, str))
        if isinstance(named, list)
        else (frozenset())
    )


def is_offline(agent: Agent) -> bool:
    """Whether the processes that an agent starts have no network at all."""
    return agent.options.get(NETWORK) == "none"


def network_problem(agent: Agent) -> str | None:
    """Why an agent's network option is invalid."""
    said = agent.options.get(NETWORK, "full")
    if said in ("none", "full"):
        return None
    return f"network is {said!r}; it may be none or full, and no list of hosts is kept to"


def is_tracker(tool: str) -> bool:
    """Whether a tool belongs to the trackers, which every level has."""
    return tool.partition(".")[0] in _TRACKERS


def has_tracker(agent: Agent, tool: str) -> bool:
    """Whether an agent has a tool of the trackers at its level."""
    toolkit = _TRACKERS[tool.partition(".")[0]]
    if toolkit in denied_toolkits(agent) or (tool in _FULL_ONLY and agent.access != "full"):
        return False
    if toolkit == "memory":
        return agent.access == "full"
    return toolkit != "skills" or agent.access != "minimal"


def narrower(one: Access | None, other: Access | None) -> Access | None:
    """The more restrictive of two levels; None means no level."""
    if one is None or other is None:
        return one or other
    return min(one, other, key=LEVELS.index)


ANY = "*"

NATIVE_TOOLS = (
    "fs.read",
    "fs.list",
    "fs.search",
    "fs.write",
    "fs.edit",
    "fs.mkdir",
    "shell.exec",
)
"""The built-in tools for files and programs, for dialects that only check names."""


def is_rule_for(name: str, tool: str) -> bool:
    """Whether a rule under this name applies to a tool. A name is a tool's own, or its last parts,
    or a longer one that ends with it; `SERVER.*` is every tool of a server, `*` every tool.
    """
    if is_open(name):
        return tool.startswith(name.removesuffix(ANY))
    return name == tool or tool.endswith(f".{name}") or name.endswith(f".{tool}")


def is_open(name: str) -> bool:
    """Whether a name may match tools that are not listed."""
    return name == ANY or name.endswith(f".{ANY}")


class ToolFamily(NamedTuple):
    """Equivalent tools: ours, those of each coding CLI, and the kinds in permission requests of the
    Agent Client Protocol.
    """

    name: str
    ours: tuple[str, ...] = ()
    claude: tuple[str, ...] = ()
    opencode: tuple[str, ...] = ()
    gemini: tuple[str, ...] = ()
    acp: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    def names(self, kind: str) -> tuple[str, ...]:
        """The names of this tool for an agent of this kind; empty if it has no such tool."""
        return self.ours if kind == "model" else getattr(self, kind, ())


FAMILIES = (
    ToolFamily(
        "bash",
        ours=("shell.exec",),
        claude=("Bash",),
        opencode=("bash",),
        gemini=("run_shell_command",),
        acp=("execute",),
        also=("shell", "exec", "terminal", "execute_command", "run_command", "run_terminal_cmd"),
    ),
    ToolFamily(
        "read",
        ours=("fs.read",),
        claude=("Read",),
        opencode=("read",),
        gemini=("read_file", "read_many_files"),
        acp=("read",),
    ),
    ToolFamily(
        "edit",
        ours=("fs.edit",),
        claude=("Edit", "NotebookEdit"),
        opencode=("edit",),
        gemini=("replace",),
        acp=("edit",),
        also=("multiedit", "edit_file", "str_replace", "patch", "apply_patch"),
    ),
    ToolFamily(
        "write",  # an agent that may not write files may not edit them either
        ours=("fs.write", "fs.edit", "fs.mkdir"),
        claude=("Write", "Edit", "NotebookEdit"),
        opencode=("edit",),
        gemini=("write_file", "replace"),
        acp=("edit", "delete", "move"),
    ),
    ToolFamily(
        "glob",
        ours=("fs.list",),
        claude=("Glob",),
        opencode=("glob",),
        gemini=("glob",),
        acp=("search",),
        also=("find_files", "glob_search"),
    ),
    ToolFamily(
        "grep",
        ours=("fs.search",),
        claude=("Grep",),
        opencode=("grep",),
        gemini=("search_file_content", "grep_search"),
        acp=("search",),
        also=("search", "search_files"),
    ),
    ToolFamily(
        "list",
        ours=("fs.list",),
        claude=("LS", "Glob"),
        opencode=("list",),
        gemini=("list_directory",),
        acp=("read",),
        also=("ls", "list_files", "list_dir"),
    ),
    ToolFamily(
        "webfetch",
        ours=("web.fetch",),
        claude=("WebFetch",),
        opencode=("webfetch",),
        gemini=("web_fetch",),
        acp=("fetch",),
        also=("fetch", "http_get"),
    ),
    ToolFamily(
        "websearch",
        claude=("WebSearch",),
        opencode=("websearch",),
        gemini=("google_web_search",),
        acp=("fetch",),
        also=("web_search",),
    ),
    ToolFamily("task", claude=("Task", "Agent"), opencode=("task",)),
    ToolFamily(
        "todowrite", claude=("TodoWrite",), opencode=("todowrite",), gemini=("write_todos",)
    ),
)


def _names_of(family: ToolFamily) -> Iterable[str]:
    yield family.name
    for names in (family.ours, family.claude, family.opencode, family.gemini, family.also):
        yield from names


# A name in two families belongs to the first of them.
_FAMILY_OF: Mapping[str, ToolFamily] = {
    name.lower(): family for family in reversed(FAMILIES) for name in _names_of(family)
} | {family.name: family for family in FAMILIES}


def family_of(name: str) -> ToolFamily | None:
    """The family of a tool of any of the systems; None for a tool that only one of them has. A name
    may be followed by a pattern (`Bash(npm test)`).
    """
    return _FAMILY_OF.get(name.partition("(")[0].lower())


def names_for(kind: str, names: Iterable[str], *, denies: bool = False) -> tuple[str, ...]:
    """Tool names translated for an agent of this kind. A name of its own, or one without a
    counterpart, is unchanged. If a tool is denied with a pattern, the rest of the tool would stay
    allowed, so a pattern that was written for another system denies all of it.
    """
    found: dict[str, None] = {}
    for name in names:
        sign, bare = ("+", name[1:]) if name.startswith("+") else ("", name)
        word, _, pattern = bare.partition("(")
        family = family_of(bare)
        own = family.names(kind) if family is not None else ()
        if not own or word in own:
            mine: tuple[str, ...] = (bare,)
        elif pattern and not denies:
            mine = tuple(f"{one}({pattern}" for one in own)
        else:
            mine = own
        found.update(dict.fromkeys(f"{sign}{one}" for one in mine))
    return tuple(found)


Kind: TypeAlias = Literal["tool", "command", "edit", "read", "fetch"]


class ToolTarget(NamedTuple):
    """The kind of a tool call and its subject, which is empty if the call does not name one."""

    kind: Kind
    target: str


_NAMES: Mapping[Kind, str] = {
    "command": """
        bash shell exec execute run terminal command sh zsh powershell console
        shellexec shellcommand runcommand runshellcommand executecommand execcommand localshell
        commandexecution runterminalcommand runinterminal bashoutput process
    """,
    "edit": """
        edit write multiedit notebookedit applypatch patch create delete move rename
        fswrite fsedit fsdelete fsmove writefile editfile createfile deletefile movefile renamefile
        appendfile insert replace strreplace strreplaceeditor strreplacebasededittool
        filechange updatefile writetextfile searchreplace
    """,
    "read": """
        read glob grep ls list search find view cat tree notebookread
        fsread fslist fssearch readfile readfiles readmanyfiles viewfile openfile
        listdir listdirectory listfiles readfolder searchfiles searchfilecontent findfiles
        grepsearch filesearch codebasesearch readtextfile viewimage
    """,
    "fetch": """
        webfetch websearch fetch browse http httprequest get post curl download
        googlewebsearch googlesearch searchweb browser openurl request webget webrequest codesearch
    """,
}
_KIND_OF: Mapping[str, Kind] = {
    name: kind for kind, text in _NAMES.items() for name in text.split()
}
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "command": ("command", "cmd", "argv", "script", "commandline", "code", "input"),
    "edit": (
        *("filepath", "path", "file", "filename", "notebookpath", "targetfile", "absolutepath"),
        *("destination", "newpath", "target", "uri", "changes", "files", "edits"),
        *("patchtext", "patch", "input"),
    ),
    "read": (
        *("filepath", "path", "file", "filename", "notebookpath", "targetfile", "absolutepath"),
        *("pattern", "query", "glob", "directory", "dir", "dirpath", "folder", "uri", "files"),
        *("paths", "include"),
    ),
    "fetch": ("url", "uri", "urls", "href", "host", "query", "prompt", "input"),
    "tool": (),
}
_ANY = (  # if the fields of the kind have no value
    *("filepath", "path", "absolutepath", "notebookpath", "dirpath"),
    *("pattern", "query", "prompt", "description", "name", "command", "cmd", "script"),
)
_SEPARATORS = re.compile(r"[^a-z0-9]+")
_PATCHED = re.compile(r"^(?:\*\*\* (?:Add|Update|Delete) File: |\+\+\+ (?:b/)?)(.+)$", re.MULTILINE)
_URL = re.compile(r"https?://[^\s\"'<>)]+", re.IGNORECASE)
_HOST = re.compile(r"[a-z][a-z0-9+.-]*://(?:[^/?#]*@)?(\[[^\]/?#]+\]|[^/?#:@]+)", re.IGNORECASE)
_SHELLS = ("sh", "bash", "zsh", "dash")
_SHELL_FLAGS = ("-c", "-lc")
MOST_PATHS = 5
MOST_PATCH_CHARS = 200_000


def tool_target(name: str, arguments: JsonValue) -> ToolTarget:
    """The kind and subject of a tool call, from the tool's name and arguments."""
    kind = tool_kind(name)
    return ToolTarget(kind, target_of(kind, arguments))


def target_of(kind: str, arguments: JsonValue) -> str:
    """The command line, path or host of a call of this kind; an empty text if none is named."""
    if isinstance(arguments, str | list):
        return _shown(kind, arguments)
    if not isinstance(arguments, dict):
        return ""
    given = {_SEPARATORS.sub("", key.lower()): value for key, value in arguments.items()}
    found = [_shown(kind, given[field]) for field in _FIELDS.get(kind, ()) if given.get(field)]
    others = (_command(given[field]) for field in _ANY if given.get(field))
    return next(filter(None, found), "") or next(filter(None, others), "")


def tool_kind(name: str) -> Kind:
    """The kind of a tool by its name; a tool that the table does not contain is just a tool."""
    words = [word for word in re.split(r"__+|[.:/]", name) if word]
    for candidate in (name, words[-1] if words else ""):
        kind = _KIND_OF.get(_SEPARATORS.sub("", candidate.lower()))
        if kind is not None:
            return kind
    return "tool"


def host_of(url: str) -> str:
    """The host of an address, without a user name or password; empty when it has none."""
    found = _HOST.match(url)
    return found.group(1).lower() if found else ""


def _shown(kind: str, value: JsonValue) -> str:
    if kind == "command":
        return _command(value)
    if kind == "fetch":
        return _fetched(value)
    return _paths(value) if kind in ("edit", "read") else ""


def _command(value: JsonValue) -> str:
    if isinstance(value, list):
        words = [word for word in value if isinstance(word, str)]
        return inside_shell(words) or shlex.join(words)
    return value if isinstance(value, str) else ""


def inside_shell(argv: list[str]) -> str:
    """The command that a shell is given to run; an empty text for any other command line."""
    if len(argv) == 3 and argv[0].rpartition("/")[2] in _SHELLS and argv[1] in _SHELL_FLAGS:
        return argv[2]
    return ""


def _fetched(value: JsonValue) -> str:
    if isinstance(value, list):
        return ", ".join(filter(None, (_fetched(one) for one in value[:MOST_PATHS])))
    if not isinstance(value, str):
        return ""
    url = _URL.search(value)
    return (host_of(url.group(0)) if url else "") or value


def _paths(value: JsonValue) -> str:
    """One path, or the first of several: in a list, in objects with a path, or in a patch."""
    if isinstance(value, str):
        patched = list(dict.fromkeys(_PATCHED.findall(value[:MOST_PATCH_CHARS])))
        named = [path.strip() for path in patched if path.strip() != "/dev/null"]
        return _listed(named) if named else value.partition("\n")[0]
    if isinstance(value, dict):
        own = next((value[key] for key in ("path", "file", "file_path") if key in value), None)
        return own if isinstance(own, str) else _listed(list(value))
    if isinstance(value, list):
        found = [_paths(one) for one in value if isinstance(one, str | dict)]
        return _listed(list(dict.fromkeys(filter(None, found))))
    return ""


def _listed(paths: list[str]) -> str:
    more = len(paths) - MOST_PATHS
    return ", ".join(paths[:MOST_PATHS]) + (f" and {more} more" if more > 0 else "")
