"""Files that an agent requests: its prompt, the schema of its answer, its subagents.

They are only named here. The caller reads them and passes them in.

References to outputs and inputs: the condition that ends the rounds of a team is `true`, `false`,
or a path into the output of the iteration: `$` is the output itself, followed by `.name`,
`['name']` or `[0]`. An input of a subagent is `input`, `input.FIELD`, `outputs.ALIAS` or
`outputs.ALIAS.FIELD`, with or without `$.` in front. `previous.ALIAS.output` is another way to
write `outputs.ALIAS`, and `previous.ALIAS.output.FIELD` another way to write
`outputs.ALIAS.FIELD`.
"""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol, TypeAlias

from loopwright.syntax.document import Position, check_text

MAX_FILE_BYTES = 1_048_576
MAX_FOLDERS = 50

Path: TypeAlias = tuple[str | int, ...]


LOOKS_AROUND = True
"""Agents are named by name, and teams keep theirs in folders side by side."""

HERE = "@here"
AROUND = "@around"
"""The folder of the first file, and the one above it: beginnings of paths, and names of both."""

Kind: TypeAlias = Literal["text", "schema", "agent", "names"]


class AldoFileRequest(NamedTuple):
    """A file to read, or a folder to list: `path` counts from the folder of the first file and
    stays inside it, except for agents in the folders beside it.
    """

    path: str
    where: Position
    kind: Kind
    limit: int = MAX_FILE_BYTES


class AldoFileProblem(Protocol):
    """Why a file could not be read."""

    @property
    def code(self) -> str: ...

    @property
    def message(self) -> str: ...


Files: TypeAlias = Mapping[str, bytes | AldoFileProblem]


def folder_of(path: str) -> str:
    """The folder of a file, with a slash at its end; nothing for that of the first file."""
    return path.rpartition("/")[0] + "/" if "/" in path else ""


def folders_in(names: str) -> list[str]:
    """The names of a folder that may be folders with agents in them."""
    plain = (name for name in names.splitlines() if "." not in name and name != "node_modules")
    return [name for name in plain if not check_text(name)][:MAX_FOLDERS]


Target: TypeAlias = bool | tuple[str | int, ...]

_STEP = re.compile(
    r"""
      \.(?P<name>[A-Za-z_][A-Za-z0-9_-]*)
    | \[(?P<index>\d{1,6})\]
    | \['(?P<single>[^'\n]*)'\]
    | \["(?P<double>[^"\n]*)"\]
    """,
    re.VERBOSE,
)


def parse_path(text: str) -> Target | None:
    """A constant, the parts of a path, or None when it is neither."""
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    if not text.startswith("$"):
        return None
    parts: list[str | int] = []
    at = 1
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            return None
        if step["index"] is not None:
            parts.append(int(step["index"]))
        else:
            parts.append(
                next(one for one in step.group("name", "single", "double") if one is not None)
            )
        at = step.end()
    return tuple(parts)


class InputSource(NamedTuple):
    """The origin of a value of a subagent's input; `field` is a dotted path, or empty."""

    kind: Literal["input", "outputs"]
    alias: str
    field: str


_SOURCE = re.compile(
    r"(?:\$\.)?(?:(?P<input>input)|outputs\.(?P<alias>[a-z0-9][a-z0-9-]*)"
    r"|previous\.(?P<earlier>[a-z0-9][a-z0-9-]*)\.output)"
    r"(?:\.(?P<field>[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*))?"
)


def parse_source(text: str) -> InputSource | None:
    """The place of a value, or None if it is a literal text."""
    found = _SOURCE.fullmatch(text.strip())
    if found is None:
        return None
    kind: Literal["input", "outputs"] = "input" if found["input"] else "outputs"
    return InputSource(kind, found["alias"] or found["earlier"] or "", found["field"] or "")
