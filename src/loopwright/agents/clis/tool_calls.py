"""What a tool call did, from its name and its arguments: the kind of action and its target.

Programs name their tools differently (`Bash`, `run_shell_command`, `command_execution`); people ask
the same questions of all of them: which command, which file, which host.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from loopwright.agents.clis.loose import at, items, text
from loopwright.model.record import JsonValue

CallKind: TypeAlias = Literal["tool", "command", "edit", "read", "fetch", "status", "denied"]

LINE_CHARS = 300

_NAMES: Mapping[CallKind, str] = {
    "command": """
        bash shell command commandexecution execcommand runshellcommand runcommand localshell
        execute terminal powershell
    """,
    "edit": """
        write edit multiedit notebookedit writefile editfile replace applypatch patch filechange
        createfile deletefile movefile delete move strreplace
    """,
    "read": """
        read grep glob ls list search readfile readmanyfiles listdirectory grepsearch
        searchfilecontent view viewimage notebookread findfiles
    """,
    "fetch": "webfetch websearch fetch googlewebsearch codesearch",
}
_KINDS: Mapping[str, CallKind] = {
    name: kind for kind, names in _NAMES.items() for name in names.split()
}
_PATHS = ("file_path", "filePath", "path", "absolute_path", "notebook_path", "dir_path", "filepath")
_COMMANDS = ("command", "cmd", "script")
_OTHERS = ("pattern", "query", "prompt", "description", "name")
_NO_LETTER = re.compile(r"[^a-z]")
_HOST = re.compile(r"https?://(?:[^/@\s]*@)?(\[[^\]\s]+\]|[^/:?#\s]+)", re.I)
_SHELLS = ("sh", "bash", "zsh", "dash")
_SHELL_FLAGS = ("-c", "-lc")
_PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.+)$", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One thing that an agent did, as far as its stream reports it."""

    kind: CallKind
    tool: str = ""
    target: str = ""
    ok: bool | None = None
    code: int | None = None
    ms: int | None = None
    text: str = ""
    arguments: str = ""
    result: str = ""


def call_kind(tool: str) -> CallKind:
    """The kind of action behind the name of a tool."""
    return _KINDS.get(_NO_LETTER.sub("", tool.lower()), "tool")


def call_target(kind: CallKind, arguments: JsonValue) -> str:
    """The command line, path or host that a call is about; an empty text if none is named."""
    command = next((c for name in _COMMANDS if (c := _command(at(arguments, name)))), "")
    url = text(arguments, "url") or text(arguments, "prompt")
    found: str = ""
    match kind:
        case "command":
            found = command
        case "edit":
            found = _first(arguments, _PATHS) or _patched_paths(arguments)
        case "fetch" if (host := _HOST.search(url)) is not None:
            found = host.group(1)
        case "read":
            found = _first(arguments, (*_PATHS, "pattern"))
    return one_line(found or _first(arguments, (*_PATHS, *_OTHERS)) or command)


def one_line(words: str, chars: int = LINE_CHARS) -> str:
    """A text in one line of bounded length."""
    line = " ".join(words[: 4 * chars].split())
    return line if len(line) <= chars else line[: chars - 1] + "…"


def as_text(value: JsonValue) -> str:
    """Arguments or a result as one text: a text as it is, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def without_shell(line: str) -> str:
    """The command that a shell is given to run; any other command line is returned unchanged."""
    try:
        argv = shlex.split(line)
    except ValueError:
        return line
    return _inside_shell(argv) or line


def _inside_shell(argv: list[str]) -> str:
    if len(argv) == 3 and argv[0].rpartition("/")[2] in _SHELLS and argv[1] in _SHELL_FLAGS:
        return argv[2]
    return ""


def _command(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
        argv = [str(word) for word in value]
        return _inside_shell(argv) or shlex.join(argv)
    return ""


def _first(arguments: JsonValue, names: tuple[str, ...]) -> str:
    return next((found for name in names if (found := text(arguments, name))), "")


def _patched_paths(arguments: JsonValue) -> str:
    """The files of a patch, or of a list of changes."""
    patch = _first(arguments, ("patchText", "patch", "input"))
    paths = _PATCHED.findall(patch) or [text(one, "path") for one in items(arguments, "changes")]
    return ", ".join(path for path in paths if path)
