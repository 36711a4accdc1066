"""The tools for files: `fs.read`, `fs.list`, `fs.write`, `fs.edit`, `fs.mkdir`, `fs.search`,
`result.more`.

`fs.search` finds lines that match a pattern, in time linear in the text.
"""

import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase

import re2

from loopwright.model.chat import ChatTool
from loopwright.model.record import JsonValue
from loopwright.tools.builtin import (
    Bench,
    BuiltinCall,
    BuiltinTool,
    ToolLimit,
    Work,
    place,
    schema,
    text,
    whole,
    yes_no,
)
from loopwright.tools.results import ToolCallResult, ToolRefusal, json_outcome
from loopwright.tools.workspace_tree import Parts, WorkspaceTree, refusal, shown

READ_BYTES = 4 * 1024 * 1024
WRITE_BYTES = 4 * 1024 * 1024
PAGE_BYTES = 24 * 1024
LIST_ENTRIES = 5_000
LEFT_OUT = frozenset({".git", "node_modules"})
"""Folders that are not entered unless they are named explicitly."""

_PATH = text("Path in the workspace, for example src/main.py")


# -- reading


def _read(bench: Bench, call: BuiltinCall) -> ToolCallResult:
    parts = place(bench, call)
    data = bench.tree.read(parts, READ_BYTES)
    return ToolCallResult(text=page(as_text(data, shown(parts)), call))


def _read_result(bench: Bench, call: BuiltinCall) -> ToolCallResult:
    data = bench.shelf.get(call.text("handle"))
    start = call.number("offset", 0)
    part = data[start : start + PAGE_BYTES]
    end = start + len(part)
    note = f"\n[bytes {start} to {end} of {len(data)}; continue with offset {end}]"
    return ToolCallResult(text=part.decode(errors="replace") + (note if end < len(data) else ""))


def as_text(data: bytes, name: str) -> str:
    """The text of a file; Refusal if there is none."""
    try:
        if b"\0" in data[:8_192]:
            raise ToolRefusal("binary-file", f"{name} is not text ({len(data)} bytes)")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ToolRefusal("binary-file", f"{name} is not UTF-8 text ({len(data)} bytes)") from None


def page(content: str, call: BuiltinCall) -> str:
    """The requested lines, as many as fit, and how to read the next ones."""
    lines = content.splitlines(keepends=True)
    first = call.number("offset", 1)
    last = min(len(lines), first - 1 + call.number("limit", len(lines) or 1))
    kept: list[str] = []
    room = PAGE_BYTES
    for line in lines[first - 1 : last]:
        size = len(line.encode(errors="replace"))
        if size > room:
            break
        kept.append(line)
        room -= size
    end = first - 1 + len(kept)
    if end >= len(lines):
        return "".join(kept)
    if not kept and first <= last:
        head = lines[first - 1].encode(errors="replace")[:PAGE_BYTES].decode(errors="ignore")
        note = f"line {first} of {len(lines)} is cut; continue with offset {first + 1}"
        return f"{head}\n[{note}]"
    note = f"lines {first} to {end} of {len(lines)}; continue with offset {end + 1}"
    return f"{''.join(kept)}\n[{note}]"


# -- listing


def _list(bench: Bench, call: BuiltinCall) -> ToolCallResult:
    top = place(bench, call)
    entries: list[JsonValue] = []
    todo = [top]
    while todo and len(entries) <= LIST_ENTRIES:
        call.checkpoint()
        parts = todo.pop()
        found = entries_of(bench.tree, parts)
        for name, info in found:
            where = (*parts, name)
            entry: dict[str, JsonValue] = {"path": shown(where), "kind": kind_of(info)}
            if stat.S_ISREG(info.st_mode):
                entry["bytes"] = info.st_size
            entries.append(entry)
        if call.flag("recursive"):
            inner = [(*parts, name) for name, info in found if is_entered(name, info)]
            todo += reversed(inner)
    cut = len(entries) > LIST_ENTRIES
    return json_outcome({"path": shown(top), "entries": entries[:LIST_ENTRIES], "truncated": cut})


def is_entered(name: str, info: os.stat_result) -> bool:
    return stat.S_ISDIR(info.st_mode) and name not in LEFT_OUT


def entries_of(tree: WorkspaceTree, parts: Parts) -> list[tuple[str, os.stat_result]]:
    """The contents of a folder, by name. Links are listed as links and not followed."""
    found: list[tuple[str, os.stat_result]] = []
    with tree.folder(parts) as folder:
        try:
            names = sorted(os.listdir(folder))
        except OSError as error:
            raise refusal(error, parts) from None
        for name in names[: LIST_ENTRIES + 1]:
            try:
                found.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
            except OSError:
                continue  # deleted in the meantime
    return found


def kind_of(info: os.stat_result) -> str:
    if stat.S_ISDIR(info.st_mode):
        return "folder"
    if stat.S_ISLNK(info.st_mode):
        return "link"
    return "file" if stat.S_ISREG(info.st_mode) else "other"


# -- writing


def _write(bench: Bench, call: BuiltinCall) -> ToolCallResult:
    parts = place(bench, call, writes=True)
    return _put(bench, call, parts, call.text("content"))


def _edit(bench: Bench, call: BuiltinCall) -> ToolCallResult:
    parts = place(bench, call, writes=True)
    content = bench.tree.read(parts, READ_BYTES)
    as_text(content, shown(parts))
    whole_text = content.decode()
    old, new = call.text("old"), call.text("new")
    times = whole_text.count(old)
    if times == 0:
        raise ToolRefusal("no-match", f"the old text is not in {shown(parts)}; read it again")
    if times > 1 and not call.flag("all"):
        raise ToolRefusal(
            "many-matches",
            f"the old text is {times} times in {shown(parts)}; give more of what is around it, or "
            f"set all",
        )
    outcome = _put(bench, call, parts, whole_text.replace(old, new))
    return json_outcome({"path": shown(parts), "replaced": times}) if not outcome.error else outcome


def _make(bench: Bench, call: BuiltinCall) -> ToolCallResult:
    parts = place(bench, call, writes=True)
    with bench.recorded():
        created = bench.tree.make(parts)
    return json_outcome({"path": shown(parts), "created": created})


def _put(bench: Bench, call: BuiltinCall, parts: Parts, content: str) -> ToolCallResult:
    try:
        data = content.encode()
    except UnicodeEncodeError:
        raise ToolRefusal("bad-text", "the text has characters without a form in UTF-8") from None
    if len(data) > WRITE_BYTES:
        raise ToolRefusal("file-too-large", f"{len(data)} bytes, at most {WRITE_BYTES} are written")
    call.checkpoint()
    with bench.recorded():
        created = bench.tree.write(parts, data)
    return json_outcome({"path": shown(parts), "bytes": len(data), "created": created})


# -- their faces

_OFFSET = whole("First line to show, counted from 1")
_LIMIT = whole("How many lines to show at most")


def _file_tool(spec: ChatTool, work: Work, *, reads: bool) -> BuiltinTool:
    limit = ToolLimit(seconds=30, at_once=8 if reads else 1)
    return BuiltinTool(spec=spec, limit=limit, repeatable=reads, path="path", work=work)


FILE_TOOLS: tuple[BuiltinTool, ...] = (
    _file_tool(
        ChatTool(
            name="fs.read",
            description="Read a text file of the workspace. Long files come in pages.",
            schema=schema(("path",), path=_PATH, offset=_OFFSET, limit=_LIMIT),
        ),
        _read,
        reads=True,
    ),
    _file_tool(
        ChatTool(
            name="fs.list",
            description="List a folder of the workspace.",
            schema=schema((), path=_PATH, recursive=yes_no("Also what is in its folders")),
        ),
        _list,
        reads=True,
    ),
    _file_tool(
        ChatTool(
            name="fs.write",
            description="Write a whole text file; folders on the way are made.",
            schema=schema(("path", "content"), path=_PATH, content=text("The whole content")),
        ),
        _write,
        reads=False,
    ),
    _file_tool(
        ChatTool(
            name="fs.edit",
            description="Replace a piece of a text file. It must occur exactly once unless all.",
            schema=schema(
                ("path", "old", "new"),
                path=_PATH,
                old={"type": "string", "minLength": 1, "description": "The text to replace"},
                new=text("The text to write there"),
                all=yes_no("Replace every occurrence"),
            ),
        ),
        _edit,
        reads=False,
    ),
    _file_tool(
        ChatTool(
            name="fs.mkdir",
            description="Make a folder; folders on the way are made.",
            schema=schema(("path",), path=_PATH),
        ),
        _make,
        reads=False,
    ),
)

RESULT_READ = BuiltinTool(
    spec=ChatTool(
        name="result.more",
        description="Read on in a result of which only the head was shown.",
        schema=schema(("handle",), handle=text("result:…"), offset=whole("First byte to show", 0)),
    ),
    limit=ToolLimit(seconds=30, at_once=8),
    repeatable=True,
    work=_read_result,
)


HITS = 200
FILES = 10_000
FILE_BYTES = 1024 * 1024
ALL_BYTES = 64 * 1024 * 1024
LINE_CHARS = 300
PATTERN_CHARS = 1_000


def _search(bench: Bench, call: BuiltinCall) -> ToolCallResult:
    top = place(bench, call)
    pattern = _compiled(call.text("pattern"), ignore_case=call.flag("ignore_case"))
    hits: list[JsonValue] = []
    files = size = 0
    cut = ""
    for parts in _files(bench, call, top):
        if not fnmatchcase(parts[-1], call.text("glob", "*")):
            continue
        if files >= FILES or size >= ALL_BYTES:
            cut = f"only {files} files were searched"
            break
        files += 1
        data = _content(bench, parts)
        size += len(data)
        hits += _lines(pattern, data, parts)
        if len(hits) > HITS:
            cut = f"only the first {HITS} hits are shown"
            break
    found: dict[str, JsonValue] = {"hits": hits[:HITS], "files": files, "truncated": bool(cut)}
    return json_outcome({**found, "note": cut} if cut else found)


def _compiled(pattern: str, *, ignore_case: bool) -> "re2.Pattern":
    options = re2.Options()
    options.never_nl = False
    options.log_errors = False
    options.case_sensitive = not ignore_case
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        said_by = error.args[0] if error.args else error
        why = said_by.decode(errors="replace") if isinstance(said_by, bytes) else str(said_by)
        raise ToolRefusal(
            "bad-pattern", f"the pattern cannot be used: {why[:200]} (RE2 syntax, no look-around)"
        ) from None


def _files(bench: Bench, call: BuiltinCall, top: Parts) -> Iterator[Parts]:
    todo = [top]
    while todo:
        call.checkpoint()
        parts = todo.pop()
        try:
            found = entries_of(bench.tree, parts)
        except ToolRefusal as refusal:
            if parts == top and refusal.problem == "not-a-folder":
                yield top
            elif parts == top:
                raise
            continue
        yield from ((*parts, name) for name, info in found if stat.S_ISREG(info.st_mode))
        todo += reversed([(*parts, name) for name, info in found if is_entered(name, info)])


def _content(bench: Bench, parts: Parts) -> bytes:
    try:
        data = bench.tree.read(parts, FILE_BYTES)
    except ToolRefusal:
        return b""  # too large, deleted in the meantime, or not readable
    return b"" if b"\0" in data[:8_192] else data


def _lines(pattern: "re2.Pattern", data: bytes, parts: Parts) -> Iterator[JsonValue]:
    found = 0
    for number, line in enumerate(data.decode(errors="replace").splitlines(), start=1):
        if pattern.search(line):
            found += 1
            yield {"path": shown(parts), "line": number, "text": line[:LINE_CHARS]}
            if found > HITS:
                return


SEARCH_TOOL = BuiltinTool(
    spec=ChatTool(
        name="fs.search",
        description="Find lines in the text files of the workspace by a regular expression (RE2).",
        schema=schema(
            ("pattern",),
            pattern=text("Regular expression", most=PATTERN_CHARS),
            path=text("Folder or file to look in; the whole workspace without it"),
            glob=text("Only files with such names, for example *.py"),
            ignore_case=yes_no("Capital or small letters make no difference"),
        ),
    ),
    limit=ToolLimit(seconds=60, at_once=4),
    repeatable=True,
    path="path",
    work=_search,
)
