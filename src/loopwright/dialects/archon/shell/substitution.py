"""References in scripts: each becomes a variable of the environment, never a part of the code.

No value is ever inserted into a script. In a shell text each reference becomes a shell variable
with the quotes that its place requires. The text is read until it is known which variables,
functions and files hold values (`state.py`). Where the shell or another program would execute a
value as code, the value gets a safe form (`repair.py`); where none exists, the reference is
refused. A text that uses a value and has unbalanced quotes or brackets is refused too, because
its meaning is unknown.

In Python and JavaScript each reference becomes an expression that reads a variable of the
environment. In a string the value is the text between the quotes. In plain code, where Archon
would insert the value, it is the JSON that the value is, or else its text. A comment is not
changed.
"""

import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from loopwright.dialects.archon.shell.commands import RESERVED_NAMES
from loopwright.dialects.archon.shell.reader import ShellReader
from loopwright.dialects.archon.shell.repair import (
    PREFIX,
    ReaderResult,
    find_in_original,
    repair,
    with_functions,
)
from loopwright.dialects.archon.shell.state import Misuse, ShellFault, Taint, Unreadable
from loopwright.dialects.archon.variables import Environment, Mark, find_value_names, marks

# Variables decide what programs load and run. The shell reads some of them itself (`PATH`, `IFS`,
# `PS4`, …). The others act only in programs that the script starts: `EDITOR` and `PAGER` in Git,
# `SHELL` in editors, `PYTHONPATH` in Python. A script that assigns such a name and never exports it
# has a local variable: it may hold a value, once the shell no longer passes on a variable of that
# name from its environment.

# Variables that the shell itself uses, even without exporting, and that are not assigned by
# accident.
_READ_BY_SHELLS = re.compile(
    r"PATH|IFS|HOME|CDPATH|GLOBIGNORE|PS4|PROMPT_COMMAND|SHELLOPTS|BASHOPTS|BASH"
    r"|(?:BASH|LD|DYLD|LOOPWRIGHT|_JAVA)_\w+"
)
# Only a shell with a prompt loads the file that ENV names, and some Korn shells do always.
_OF_PROMPTS = frozenset({"ENV"})
_WITH_PROMPT = re.compile(
    r"\b(?:(?:ba|da|a|z)?sh|busybox)\b[^\n;|&]*\s-\w*i|\b\w*ksh\b|\s-\w*i\w*t|\s-\w*t\w*i|--interactive"
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_EXPORTS = re.compile(
    r"\b(?:export|(?:declare|typeset|local|readonly)\s+(?:-\w+\s+)*-\w*x\w*)(?=\s)([^\n;|&]*)"
)
_NAMED_BY_VALUE = re.compile(r"(?:^|\s)[\"']?[$`]")
# What may export every variable: options of the shell, and code in other files.
_EXPORTS_ALL = re.compile(
    r"\bset\s+(?:[-+]\w+\s+)*-\w*a|\ballexport\b|\bsh\s+-\w*a|(?:^|[\s;&|(])(?:\.|source|eval)\s",
    re.MULTILINE,
)


def find_free_names(text: str) -> frozenset[str]:
    """The reserved names that are harmless wherever this script uses them."""
    return frozenset() if _WITH_PROMPT.search(text) else _OF_PROMPTS


def find_kept_names(text: str) -> frozenset[str]:
    """The reserved names that this script may assign, since it never exports them."""
    names = {one for one in _WORD.findall(text) if RESERVED_NAMES.fullmatch(one)}
    if not names or _EXPORTS_ALL.search(text):
        return frozenset()
    passed_on: set[str] = set()
    for found in _EXPORTS.finditer(text):
        if _NAMED_BY_VALUE.search(found[1]):
            return frozenset()
        passed_on |= set(_WORD.findall(found[1]))
    return (
        frozenset(one for one in names - passed_on if not _READ_BY_SHELLS.fullmatch(one))
        - _OF_PROMPTS
    )


def keep_names(names: Iterable[str]) -> str:
    """The prefix of a script that makes variables of these names local to it."""
    listed = " ".join(sorted(names))
    return f"export -n {listed}; " if listed else ""


PYTHON_HELPERS = """\
def lw_text(name):
    import os
    file = os.environ.get(name + "_FILE")
    return open(file, encoding="utf-8").read() if file else os.environ.get(name, "")
def lw_value(name):
    import json
    try:
        return json.loads(lw_text(name))
    except ValueError:
        return lw_text(name)
"""
# A function of JavaScript is known above its definition, so lines keep their numbers.
SCRIPT_HELPERS = """
function lw_text(name) {
  const file = process.env[name + "_FILE"];
  return file ? require("node:fs").readFileSync(file, "utf8") : (process.env[name] ?? "");
}
function lw_value(name) {
  try { return JSON.parse(lw_text(name)); } catch { return lw_text(name); }
}
"""
IN_PATTERN = ShellFault(
    "reference-in-code",
    "a value in a regular expression or a template of code has no safe form",
    "put the value into a variable first: const x = $ID.output",
)
_FUTURE = re.compile(r"\A(?:.*\n)*?from __future__ import [^\n]*\n")
_PYTHON = re.compile(
    r"""(?P<comment>\#[^\n]*)
      | (?P<prefix>(?<!\w)[rRbBuUfF]{1,2})?(?P<quote>\"\"\"|'''|"|')""",
    re.VERBOSE,
)
_SCRIPT = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/) | (?P<quote>["'`]) | (?P<slash>/) | (?P<brace>[{}])""",
    re.VERBOSE | re.DOTALL,
)
_BEFORE_PATTERN = re.compile(
    r"(?:^|[(,=:\[!&|?{};+\-*%<>~^\n]|\b(?:return|typeof|case|in|of|delete|void|throw|new))\s*\Z"
)
_PATTERN = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/[a-z]*")


class RewrittenCode(NamedTuple):
    """A text in which no value is pasted, or why there is none."""

    text: str
    refused: list[Misuse]


class _Forms(NamedTuple):
    """How code reads the variable NAME: as a text, and as JSON."""

    text: str
    value: str


# Modules of Node have no `require`.
_FS = '(process.getBuiltinModule?.("fs") ?? require("fs"))'
# Functions of the prelude for whole scripts; one expression each for code in a shell command.
_OWN_FUNCTIONS = _Forms('lw_text("NAME")', 'lw_value("NAME")')
_IN_COMMANDS = {
    "python": _Forms(
        'open(__import__("os").environ["NAME_FILE"], encoding="utf-8").read()',
        '__import__("json").load(open(__import__("os").environ["NAME_FILE"], encoding="utf-8"))',
    ),
    "javascript": _Forms(
        f'{_FS}.readFileSync(process.env.NAME_FILE, "utf8")',
        f'JSON.parse({_FS}.readFileSync(process.env.NAME_FILE, "utf8"))',
    ),
}
_PROGRAM = r"(?P<program>python[\d.]*|node(?:js)?|bun)(?:[ \t]+(?:run|-[A-Za-z-]*(?:=\w+)?))*?"
_COMMAND = re.compile(rf"\b{_PROGRAM}[ \t]+(?:-c|-e|-p|--eval|--print)[ \t]+(?P<quote>[\"'])")
_HEREDOC = re.compile(
    rf"\b{_PROGRAM}(?:[ \t]+-(?:[ \t]+[^\s<>|&;()]+)+)?[ \t]*<<-?[ \t]*"
    r"(?P<quote>['\"]?)(?P<tag>\w+)(?P=quote)[^\n]*\n"
)
# A program that another one starts may have another environment.
_STARTS_COMMAND = re.compile(
    r"(?:^|[;|&({`!]|\b(?:then|do|else|elif|if|while|until|time|exec|uv[ \t]+run)\b|\w+=\S*)"
    r"[ \t]*\Z",
    re.MULTILINE,
)
# What a backslash escapes in double quotes, and in a here-document that the shell expands.
_ESCAPED = {'"': re.compile(r"\\([\"\\$`\n])"), "<<": re.compile(r"\\([\\$`\n])")}
_HIDDEN = "\ue000"  # instead of a $ that the shell does not see


class _Piece(NamedTuple):
    """A part of a text: its position, and its surroundings."""

    start: int
    end: int
    kind: str  # string, template, comment, pattern
    quote: str = ""
    prefix: str = ""


def rewrite_code(text: str, runtime: str, env: Environment) -> RewrittenCode:
    """The text of an inline script, with the functions that it needs."""
    language = "python" if runtime == "uv" else "javascript"
    edits, refused = _find_edits(text, language, _OWN_FUNCTIONS, env)
    if not edits:
        return RewrittenCode(text, refused)
    made = _edited(text, edits)
    if language == "javascript":
        return RewrittenCode(f"{made.rstrip()}\n{SCRIPT_HELPERS}", refused)
    first = _FUTURE.match(made)
    at = first.end() if first else 0
    return RewrittenCode(f"{made[:at]}{PYTHON_HELPERS}{made[at:]}", refused)


def rewrite_embedded(text: str, env: Environment) -> str:
    """A shell script whose commands read values in the code that they pass to Python or JavaScript.
    The reader of the shell handles the remaining references.
    """
    edits: list[tuple[int, int, str]] = []
    for start, end, program, quote in _find_regions(text):
        language = "python" if program.startswith("python") else "javascript"
        region = text[start:end]
        plain, places = _unescaped(region, quote) if quote in _ESCAPED else (region, None)
        found, refused = _find_edits(plain, language, _IN_COMMANDS[language], env)
        for first, last, new in [] if refused else found:
            begin = first if places is None else places[first]
            stop = last if places is None else places[last]
            shown = new if places is None else new.replace("$", "\\$")
            shown = shown.replace('"', '\\"') if quote == '"' else shown
            edits.append((start + begin, start + stop, shown))
    return _edited(text, edits)


def _find_regions(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Code that commands pass to interpreters: its position, its language, its quotes."""
    for found in _COMMAND.finditer(text):
        if not _STARTS_COMMAND.search(text, 0, found.start()):
            continue
        start, quote = found.end(), found["quote"]
        end = text.find("'", start) if quote == "'" else _closing_double(text, start)
        if end > start:
            yield start, end, found["program"], quote
    for found in _HEREDOC.finditer(text):
        ended = re.compile(rf"^\t*{found['tag']}$", re.MULTILINE).search(text, found.end())
        if ended:
            yield found.end(), ended.start(), found["program"], "'" if found["quote"] else "<<"


def _unescaped(text: str, quote: str) -> tuple[str, list[int]]:
    """The text that a program receives after expansion by the shell, and the position of each
    character.
    """
    made, places, at = "", [], 0
    while at < len(text):
        escape = _ESCAPED[quote].match(text, at)
        made += (_HIDDEN if escape[1] == "$" else escape[1]) if escape else text[at]
        places.append(at)
        at = escape.end() if escape else at + 1
    return made, [*places, at]


def _find_edits(
    text: str, language: str, forms: _Forms, env: Environment
) -> tuple[list[tuple[int, int, str]], list[Misuse]]:
    """The replacement of each reference."""
    found = [one for one in marks(text, env.item) if _is_meant(one, env)]
    if not found:
        return [], []
    pieces = list(_pieces_of_python(text) if language == "python" else _pieces_of_script(text))
    edits: list[tuple[int, int, str]] = []
    refused: list[Misuse] = []
    wrapped: set[_Piece] = set()
    for mark in found:
        piece = next((one for one in pieces if one.start <= mark.at < one.end), None)
        if piece is not None and piece.kind == "comment":
            continue
        if mark.escaped:
            edits.append((mark.at, mark.end, mark.written[1:]))
            continue
        if piece is not None and (piece.kind == "pattern" or "b" in piece.prefix.lower()):
            refused.append(Misuse(mark.at, mark.written, IN_PATTERN))
            continue
        name = env.add(mark.ref, mark.variable)
        edits.append((mark.at, mark.end, _expression(piece, forms, name)))
        if piece is not None and piece.kind == "string" and piece not in wrapped:
            wrapped.add(piece)
            edits += [(piece.start, piece.start, "("), (piece.end, piece.end, ")")]
    return edits, refused


def _is_meant(mark: Mark, env: Environment) -> bool:
    """Whether a reference is one: `$name.output` may be a variable of JavaScript too."""
    return mark.ref.of not in ("output", "result") or env.knows(mark.ref.name or "")


def _expression(piece: _Piece | None, forms: _Forms, name: str) -> str:
    if piece is None:
        return forms.value.replace("NAME", name)
    text = forms.text.replace("NAME", name)
    if piece.kind == "template":
        return f"${{{text}}}"
    return f"{piece.quote} + {text} + {piece.prefix}{piece.quote}"


def _edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    parts, at = [], 0
    for start, end, new in sorted(edits, key=lambda one: (one[0], one[1])):
        parts += [text[at:start], new]
        at = end
    return "".join([*parts, text[at:]])


def _pieces_of_python(text: str) -> Iterator[_Piece]:
    at = 0
    while found := _PYTHON.search(text, at):
        at = found.end()
        if found["comment"]:
            yield _Piece(found.start(), at, "comment")
            continue
        quote = found["quote"]
        at = _closing(text, at, quote)
        yield _Piece(found.start(), at, "string", quote, found["prefix"] or "")


def _closing(text: str, at: int, quote: str) -> int:
    """The position after the closing quote; without one, the end of the line or of the text."""
    while at < len(text):
        if text[at] == "\\":
            at += 2
        elif text.startswith(quote, at):
            return at + len(quote)
        elif text[at] == "\n" and len(quote) == 1 and quote != "`":
            return at
        else:
            at += 1
    return len(text)


def _closing_double(text: str, at: int) -> int:
    """The closing quote of a word of the shell; -1 if there is none."""
    while at < len(text) and text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    return at if at < len(text) else -1


def _pieces_of_script(text: str) -> Iterator[_Piece]:
    at, depths = 0, [0]  # open braces inside each template that is open
    while found := _SCRIPT.search(text, at):
        start, at = found.start(), found.end()
        if found["comment"]:
            yield _Piece(start, at, "comment")
        elif found["slash"]:
            pattern = _PATTERN.match(text, start)
            if pattern and _BEFORE_PATTERN.search(text, max(0, start - 40), start):
                at = pattern.end()
                yield _Piece(start, at, "pattern")
        elif found["brace"] == "{":
            depths[-1] += 1
        elif found["brace"] == "}" and depths[-1] == 0 and len(depths) > 1:
            depths.pop()
            at = yield from _template(text, at, depths)
        elif found["brace"] == "}":
            depths[-1] -= 1
        elif found["quote"] == "`":
            at = yield from _template(text, at, depths)
        else:
            at = _closing(text, at, found["quote"])
            yield _Piece(start, at, "string", found["quote"])


def _template(text: str, start: int, depths: list[int]) -> Generator[_Piece, None, int]:
    """The text of a template up to its end or to the next `${`; returns the position after it."""
    at = start
    while at < len(text):
        if text[at] == "\\":
            at += 2
        elif text[at] == "`":
            break
        elif text.startswith("${", at):
            yield _Piece(start, at, "template")
            depths.append(0)
            return at + 2
        else:
            at += 1
    yield _Piece(start, at, "template")
    return at + 1


_MOST_READINGS = 25


@dataclass(slots=True)
class RewrittenShell:
    """A text in which no value is pasted, or why there is none."""

    text: str
    refused: list[Misuse] = field(default_factory=list)
    warned: list[Misuse] = field(default_factory=list)


def rewrite(text: str, env: Environment) -> RewrittenShell:
    """The text for the shell; the values it needs are added to its environment."""
    embedded = rewrite_embedded(text, env)
    if not marks(embedded, env.item) and not find_value_names(embedded):
        return RewrittenShell(_with_checks(embedded, env))
    try:
        repaired = repair(embedded, lambda one: _reading(one, env))
        reader = _read_until_known(repaired.text, env)
    except Unreadable as problem:
        fault = ShellFault("bad-shell", problem.message, "close it, or escape it with \\")
        return RewrittenShell(text, [Misuse(problem.at, "", fault)])
    refused = [_placed(text, repaired.text, one) for one in reader.refused.values()]
    if refused:
        return RewrittenShell(text, sorted(refused, key=lambda one: one.at))
    warned = [_placed(text, repaired.text, one) for one in reader.warned.values()]
    warned = sorted([*warned, *repaired.notes], key=lambda one: one.at)
    kept = keep_names(reader.taint.kept_names & reader.taint.names.keys())
    return RewrittenShell(kept + with_functions(reader.result()), warned=warned)


def _with_checks(text: str, env: Environment) -> str:
    """A text without values, with checks of what it evaluates: a file or a program may pass a value
    on. An unreadable text is unchanged.
    """
    if PREFIX in text:
        return text
    try:
        return _read_until_known(text, env).result()
    except Unreadable:
        return text


def _placed(original: str, text: str, one: Misuse) -> Misuse:
    return one if original == text else one._replace(at=find_in_original(original, text, one))


def _reading(text: str, env: Environment) -> ReaderResult | None:
    """The rejected parts of a text; None if it cannot be read."""
    try:
        reader = _read_until_known(text, env)
    except Unreadable:
        return None
    refused = sorted(reader.refused.values(), key=lambda one: one.at)
    return ReaderResult(refused, reader.faults)


def _read_until_known(text: str, env: Environment) -> ShellReader:
    """Read a text until it is known where the values can be."""
    free, kept = find_free_names(text), find_kept_names(text)
    taint, found = Taint(free_names=free, kept_names=kept), marks(text, env.item)
    for _ in range(_MOST_READINGS):
        before = taint.size
        reader = ShellReader(text, found, env, taint)
        reader.read()
        if taint.size == before:
            return reader
    raise Unreadable(0, "values take too many ways through this script to be followed")
