"""Names of tools in rules that people write: about approvals, and about what is denied.

Every system has names of its own for the same few tools. A definition that was written for one of
them is understood for every agent: `FAMILIES` has the names that mean the same.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

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
"""The built-in tools for files and programs, for dialects that look at names only."""


def speaks_of(name: str, tool: str) -> bool:
    """Whether a rule under this name is about a tool. A name is a tool's own, or the last parts of
    it, or a longer one that ends with it; `SERVER.*` is every tool of a server, `*` every tool.
    """
    if is_open(name):
        return tool.startswith(name.removesuffix(ANY))
    return name == tool or tool.endswith(f".{name}") or name.endswith(f".{tool}")


def is_open(name: str) -> bool:
    """Whether a name stands for tools that nobody has listed."""
    return name == ANY or name.endswith(f".{ANY}")


class ToolFamily(NamedTuple):
    """Tools that do the same: ours, those of each coding CLI, and the kinds that an agent of the
    Agent Client Protocol asks about.
    """

    name: str
    ours: tuple[str, ...] = ()
    claude: tuple[str, ...] = ()
    opencode: tuple[str, ...] = ()
    gemini: tuple[str, ...] = ()
    acp: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    def names(self, kind: str) -> tuple[str, ...]:
        """The names that an agent of this kind knows; empty where it has no such tool."""
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
        "write",  # whoever may not write a file may not change one either
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


# A name that is in two families belongs to the first of them.
_FAMILY_OF: Mapping[str, ToolFamily] = {
    name.lower(): family for family in reversed(FAMILIES) for name in _names_of(family)
} | {family.name: family for family in FAMILIES}


def family_of(name: str) -> ToolFamily | None:
    """What a tool is in any of the systems; None for a tool that only one of them has. A name may
    have a pattern behind it (`Bash(npm test)`).
    """
    return _FAMILY_OF.get(name.partition("(")[0].lower())


def names_for(kind: str, names: Iterable[str], *, denies: bool = False) -> tuple[str, ...]:
    """Names of tools as an agent of this kind knows them. A name that is its own, or that has no
    counterpart there, stays as it is. Of a tool that is denied a pattern would leave the rest, so
    one that was written for another system denies all of it.
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
