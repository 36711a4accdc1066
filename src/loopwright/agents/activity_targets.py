"""What a tool call of an agent was: its kind, and the path, command line or host it was about.

Agents name their tools as they like. The table lists the names that are in use; a name that is not
listed is looked up without its server (`mcp__files__read_file`) and without case and separators.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from loopwright.model.record import JsonValue

Kind: TypeAlias = Literal["tool", "command", "edit", "read", "fetch"]


class ToolTarget(NamedTuple):
    """The kind of a tool call and what it was about; the latter is empty when nothing says so."""

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
_ANY = (  # where the fields of the kind say nothing
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
    """What a tool call was, by the tool's name and its arguments."""
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
    """The kind of a tool by its name; a tool that the table does not know is just a tool."""
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
    """One path, or the first of several: as a list, as objects with a path, or in a patch."""
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
