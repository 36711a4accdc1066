"""The tool `fs.search`: lines that match a pattern, in time linear in the text."""

import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase

import re2

from loopwright.model.messages import ToolSpec
from loopwright.model.record import JsonValue
from loopwright.tools.files import entries_of, is_entered
from loopwright.tools.gate import Limit
from loopwright.tools.native import Bench, Call, Native, place, schema, text, yes_no
from loopwright.tools.outcome import Refusal, ToolOutcome, said
from loopwright.tools.tree import Parts, shown

HITS = 200
FILES = 10_000
FILE_BYTES = 1024 * 1024
ALL_BYTES = 64 * 1024 * 1024
LINE_CHARS = 300
PATTERN_CHARS = 1_000


def _search(bench: Bench, call: Call) -> ToolOutcome:
    top = place(bench, call)
    pattern = _compiled(call.text("pattern"), ignore_case=call.flag("ignore_case"))
    hits: list[JsonValue] = []
    files = size = 0
    cut = ""
    for parts in _files(bench, call, top):
        if not fnmatchcase(parts[-1], call.text("glob", "*")):
            continue
        if files >= FILES or size >= ALL_BYTES:
            cut = f"only {files} files were looked at"
            break
        files += 1
        data = _content(bench, parts)
        size += len(data)
        hits += _lines(pattern, data, parts)
        if len(hits) > HITS:
            cut = f"only the first {HITS} hits are shown"
            break
    found: dict[str, JsonValue] = {"hits": hits[:HITS], "files": files, "truncated": bool(cut)}
    return said({**found, "note": cut} if cut else found)


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
        raise Refusal(
            "bad-pattern", f"the pattern cannot be used: {why[:200]} (RE2 syntax, no look-around)"
        ) from None


def _files(bench: Bench, call: Call, top: Parts) -> Iterator[Parts]:
    todo = [top]
    while todo:
        call.checkpoint()
        parts = todo.pop()
        try:
            found = entries_of(bench.tree, parts)
        except Refusal as refusal:
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
    except Refusal:
        return b""  # too large, gone since, or not to be read
    return b"" if b"\0" in data[:8_192] else data


def _lines(pattern: "re2.Pattern", data: bytes, parts: Parts) -> Iterator[JsonValue]:
    found = 0
    for number, line in enumerate(data.decode(errors="replace").splitlines(), start=1):
        if pattern.search(line):
            found += 1
            yield {"path": shown(parts), "line": number, "text": line[:LINE_CHARS]}
            if found > HITS:
                return


SEARCH_TOOL = Native(
    spec=ToolSpec(
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
    limit=Limit(seconds=60, at_once=4),
    repeatable=True,
    path="path",
    work=_search,
)
