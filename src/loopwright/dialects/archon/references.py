"""References of a workflow: nodes that must exist, and variables that texts and scripts read.

Duplicate ids, unknown names and circles. Each variable must have a value at its place and must
be allowed there. Variables that nothing sets are found when a workflow is read, before a script
fails.
"""

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import NamedTuple

from loopwright.dialects.archon.files import Files
from loopwright.dialects.archon.outline import ArchonOutline, NodeAt, NodeGraph, Site, sites
from loopwright.dialects.archon.shell.substitution import rewrite, rewrite_code
from loopwright.dialects.archon.variables import (
    VARIABLES,
    Environment,
    EnvNames,
    Mark,
    clauses,
    is_in_code,
    longest_variable,
    marks,
)
from loopwright.model.record import Ref
from loopwright.syntax.document import Diagnostic, Document, Position, suggest
from loopwright.syntax.step_references import (
    GraphWording,
    ended_before,
    graph_problems,
    near_or_known,
)

_WORDS = GraphWording("depends_on", twice="bad-id", unknown="unknown-step", step="node")


def graphs(document: Document, made: ArchonOutline) -> Iterator[Diagnostic]:
    """All that is wrong with the edges of the graphs."""
    for graph in made.graphs:
        yield from graph_problems(document, graph.nodes, _WORDS, advice=_advice)


def suggest_name(word: str, names: Iterable[str]) -> str:
    """The hint for a name that nothing has."""
    return near_or_known(word, list(names)) or "there are no others"


def _advice(node: NodeAt, need: str, others: list[str]) -> str:
    hint = suggest_name(need, others)
    if node.graph.owner is not None:
        hint = f"{hint}; nodes of a group depend on nodes of the same group only"
    return hint


_USE = re.compile(r"\$(?:\{(?P<braced>[A-Z][A-Z0-9_]{2,})\}|(?P<bare>[A-Z][A-Z0-9_]{2,}))")
_SETS = re.compile(
    r"\b(?P<assigned>[A-Z][A-Z0-9_]{2,})(?:\[[^\]\n]*\])?\+?="
    r"|\b(?:for|select)\s+(?P<listed>[A-Z][A-Z0-9_]{2,})\b"
    r"|\b(?:read|mapfile|readarray|local|declare|typeset|export|readonly|getopts|printf\s+-v)\b"
    r"(?P<named>[^\n;|&]*)"
)
_WORD = re.compile(r"[A-Z][A-Z0-9_]{2,}")
_SOURCES = re.compile(r"(?:^|[\n;&|({]|\b(?:then|do|else)\s)[ \t]*(?:source|\.)[ \t]+[^\s;&|)]")
_NOUNSET = re.compile(r"^\s*set\s+(?:-[a-zA-Z]*u|[^\n#;]*-o\s+nounset)", re.MULTILINE)
_OF_SHELLS = re.compile(
    r"BASH\w*|RANDOM|SRANDOM|SECONDS|EPOCH\w+|LINENO|FUNCNAME|IFS|PIPESTATUS|REPLY|OPT(?:ARG|IND)"
    r"|UID|EUID|PPID|SHLVL|HOSTTYPE|HOSTNAME|OSTYPE|MACHTYPE|DIRSTACK|COLUMNS|LINES|MAPFILE|COPROC"
    r"|GROUPS|PWD|OLDPWD|PATH|HOME|LANG|LC_\w+|TERM|TMPDIR|USER|LOGNAME|SHELL|LOOPWRIGHT_\w+|LW_\w+"
    r"|INPUTS_\w+|TZ"
)
_PROSE = re.compile(r"\$([A-Z][A-Z0-9_]{4,})\b")
_NEAR = 0.8
# Names that people expect in addition to the existing variables.
_EXPECTED = {
    "LOOP_INDEX": "LOOP_PREV_OUTPUT",
    "LOOP_ITERATION": "LOOP_PREV_OUTPUT",
    "ITERATION": "LOOP_PREV_OUTPUT",
    "LOOP_COUNT": "LOOP_PREV_OUTPUT",
}


class UnsetVariable(NamedTuple):
    """A variable that nothing sets, at its first use."""

    at: int
    name: str


def find_unset(script: str) -> list[UnsetVariable]:
    """The variables that a shell script uses and that neither it nor its environment sets."""
    seen = _visible(script)
    known: set[str] = set()
    for found in _SETS.finditer(seen):
        known.update(one for one in (found["assigned"], found["listed"]) if one)
        known.update(_WORD.findall(found["named"] or ""))
    first: dict[str, UnsetVariable] = {}
    references = {mark.at for mark in marks(script)}
    for found in _USE.finditer(seen):
        name = found["braced"] or found["bare"]
        is_known = name in known or name in VARIABLES or _OF_SHELLS.fullmatch(name)
        if not is_known and found.start() not in references:
            first.setdefault(name, UnsetVariable(found.start(), name))
    return list(first.values())


def sources_files(script: str) -> bool:
    """Whether a script takes in other files, which may set any variable."""
    return _SOURCES.search(_visible(script)) is not None


def set_defaults(script: str, unset: list[UnsetVariable]) -> str:
    """The prefix that keeps a script with `set -u` from failing on an unset variable."""
    if not _NOUNSET.search(script):
        return ""
    return "".join(f': "${{{one.name}=}}"; ' for one in unset)


def find_misspelt(text: str) -> Iterator[tuple[UnsetVariable, str]]:
    """Variables of a prompt that look like one of the workflow's, with the one that is meant."""
    for found in _PROSE.finditer(text):
        name = found[1]
        if longest_variable(name):
            continue
        near = get_close_matches(name, VARIABLES, n=1, cutoff=_NEAR)
        meant = near[0] if near else _EXPECTED.get(name)
        if meant:
            yield UnsetVariable(found.start(), name), meant


def _visible(script: str) -> str:
    """The script with blanks instead of comments and of texts in single quotes, which the
    shell takes as they are.
    """
    made, quote, at = list(script), "", 0
    while at < len(script):
        sign = script[at]
        if quote == "'":
            made[at] = "\n" if sign == "\n" else " "
            quote = "" if sign == "'" else quote
        elif sign == "\\":
            made[at : at + 2] = [" "] * len(script[at : at + 2])
            at += 1
        elif sign == '"':
            quote = "" if quote == '"' else '"'
        elif sign == "'" and not quote:
            quote = "'"
        elif sign == "#" and not quote and (at == 0 or script[at - 1] in " \t\n;"):
            end = script.find("\n", at)
            end = len(script) if end < 0 else end
            made[at:end] = [" "] * (end - at)
            at = end - 1
        at += 1
    return "".join(made)


_WARNINGS = (
    "unordered-reference",
    "empty-reference",
    "bad-condition",
    "unquoted-value",
    "value-in-program",
    "option-value",
    "undeclared-input",
    "safe-form",
    "unset-variable",
    "example-reference",
)
_OWN = "cannot read its own output"
_TEXTS = ("prompt", "message", "gate_message", "attention", "cancel", "arguments", "input")
"""Keys of texts that a model or a person reads; other keys hold values."""
SCHEMA_KINDS = ("prompt", "command", "loop")
"""Kinds of nodes whose agents give structured results."""


class _Found(NamedTuple):
    """What is wrong at a place of a text."""

    code: str
    message: str
    hint: str | None = None


def env_names(made: ArchonOutline) -> EnvNames:
    """The names under which scripts of a workflow find their values."""
    inputs = dict.fromkeys([*made.inputs, *sorted(made.given or ()), *undeclared_inputs(made)])
    return EnvNames([node.id for node in made.nodes if node.id], inputs, made.item)


def undeclared_inputs(made: ArchonOutline) -> list[str]:
    """The inputs that a workflow reads which declares none; a run may give them."""
    if made.inputs or not made.is_root:
        return []
    texts = [site.text for site in sites(made, {}) if site.kind != "script"]
    found = [mark for text in texts for mark in marks(text) if not mark.escaped]
    bound = {name for node in made.nodes for name in node.part("with")}
    names = [one.ref.name or "" for one in found if one.ref.of == "input" and not one.variable]
    return [name for name in dict.fromkeys(names) if name not in bound]


def references(document: Document, made: ArchonOutline, files: Files) -> Iterator[Diagnostic]:
    """All that is wrong with the variables of a workflow."""
    names = env_names(made)
    for site in sites(made, files):
        sources: set[str] = set()
        for at, written, found in _of_site(site, made, names):
            once = f"{found.code} {written}"
            if found.code in _WARNINGS and once in sources:
                continue
            sources.add(once)
            yield _diagnostic(document, site, found, _place(document, site, at, written))


def _of_site(site: Site, made: ArchonOutline, names: EnvNames) -> Iterator[tuple[int, str, _Found]]:
    if site.kind == "when":
        yield from _of_condition(site, made)
        return
    if site.kind == "script" and site.file is not None:
        return  # a separate file is run unchanged, and reads values from its environment
    for mark in marks(site.text, site.item, is_prose=site.kind == "prose"):
        found = None if mark.escaped else _read(mark, site, made)
        if found and _is_example(site, mark, found):
            yield mark.at, mark.written, found._replace(code="example-reference")
        elif found and not _is_foreign(site, found):
            yield mark.at, mark.written, found
    if site.kind == "script":
        runtime = str(site.node.value.get("runtime"))
        for one in rewrite_code(site.text, runtime, Environment(names, site.text)).refused:
            yield one.at, one.written, _Found(*one.fault)
    yield from _of_unset(site)
    if site.kind == "shell":
        made_text = rewrite(site.text, Environment(names, site.text))
        for one in [*made_text.refused, *made_text.warned]:
            yield one.at, one.written, _Found(*one.fault)


def _of_unset(site: Site) -> Iterator[tuple[int, str, _Found]]:
    """Variables that nothing sets."""
    is_whole = site.kind == "shell" and not sources_files(site.text)
    for at, name in find_unset(site.text) if is_whole else ():
        message = f"nothing sets {name}: it is empty, unless a run passes it on"
        yield at, f"${name}", _Found("unset-variable", message, _unset_hint(name))
    for (at, name), meant_name in find_misspelt(site.text) if site.kind == "prose" else ():
        message = f"there is no variable ${name}; the text stays as it is"
        yield at, f"${name}", _Found("unset-variable", message, f"did you mean ${meant_name}?")


def _unset_hint(name: str) -> str:
    begin = longest_variable(name)
    if begin is None:
        return f"`loopwright run --env {name}` passes it on"
    return f"did you mean ${{{begin}}}{name.removeprefix(begin)}?"


def _is_example(site: Site, mark: Mark, found: _Found) -> bool:
    """Whether a reference that has no value is text: to the node itself, or to no node, in the code
    of a prompt or in a command's file.
    """
    is_node = found.code == "unknown-reference" and mark.ref.of in ("output", "result")
    if site.kind != "prose" or not is_node:
        return False
    if found.message.endswith(_OWN):
        return site.file is not None or site.path[-1] in _TEXTS
    if not found.message.startswith("no node"):
        return False
    return site.file is not None or is_in_code(site.text, mark.at)


def _is_foreign(site: Site, found: _Found) -> bool:
    """In JavaScript `$name.output` may well be one of the script's own variables."""
    is_bun = site.kind == "script" and site.node.value.get("runtime") == "bun"
    return is_bun and found.code == "unknown-reference"


def _of_condition(site: Site, made: ArchonOutline) -> Iterator[tuple[int, str, _Found]]:
    for clause in [one for every in clauses(site.text, site.item) for one in every]:
        if clause.problem:
            message = f"{clause.problem}: {clause.written[:60] or 'nothing'}"
            hint = "the node will be left out; write $ID.output == 'text'"
            yield clause.at, clause.written, _Found("bad-condition", message, hint)
        if clause.ref:
            mark = Mark(clause.written.split()[0], clause.at, clause.ref)
            found = _item_of_another(mark, made) or _read(mark, site, made)
            if found:
                yield clause.at, clause.written, found


def _item_of_another(mark: Mark, made: ArchonOutline) -> _Found | None:
    """A workflow may be meant for the items of a list: read alone, it does not name the item, so an
    unknown name of a node may be the item.
    """
    name, names = mark.ref.name or "", [node.id for node in made.nodes]
    if mark.ref.of != "result" or f"${name}.output" in mark.written or name in names:
        return None
    if made.item is not None or suggest(name, names):
        return None
    hint = f"the node will be left out, unless a fan_out runs this workflow with as: {name}"
    return _Found("bad-condition", f"no node here is called {name}", hint)


# -- whether there is a value ----------------------------------------------------------------------


def _read(mark: Mark, site: Site, made: ArchonOutline) -> _Found | None:
    ref = mark.ref
    match ref.of:
        case "output" | "result":
            return _of_node(ref, site)
        case "previous_output" | "previous_result":
            return _of_previous_iteration(ref, site)
        case "input":
            return None if mark.variable else _of_input(ref, site, made)
        case "feedback" | "previous":
            problem = "there is no loop around it" if not _in_loop(site) else None
        case "rejection":
            problem = None if site.rejects else "it has a value in on_reject only"
        case _:
            problem = None
    return (
        _Found("empty-reference", f"{mark.written} is always empty here", problem)
        if problem
        else None
    )


def _chain(site: Site) -> Iterator[tuple[NodeGraph, NodeAt | None]]:
    """The graphs around a text from the inside out, each with the node that the text belongs to."""
    node: NodeAt | None = site.node
    if site.node.body is not None and site.in_iteration:
        yield site.node.body, None
    while node is not None:
        yield node.graph, node
        node = node.graph.owner


def _in_loop(site: Site) -> bool:
    return site.in_iteration or site.node.graph.owner is not None


def _of_node(ref: Ref, site: Site) -> _Found | None:
    name = ref.name or ""
    for graph, node in _chain(site):
        target = graph.by_id.get(name)
        if target is None:
            continue
        if node is not None and name == node.id:
            return _Found("unknown-reference", f"{name} {_OWN}", _own_hint(name, site))
        if node is not None and name not in ended_before(node, graph.by_id):
            message = f"${name} may be read before {name} has ended"
            return _Found("unordered-reference", message, f"add depends_on: [{name}]")
        return _undeclared(ref, target)
    seen = [
        one for graph, node in _chain(site) for one in graph.by_id if node is None or node.id != one
    ]
    hint = suggest_name(name, seen)
    if site.kind == "shell":
        hint += f"; a variable of the shell is written ${{{name}}}"
    return _Found("unknown-reference", f"no node here is called {name}", hint)


def _own_hint(name: str, site: Site) -> str:
    if _in_loop(site):
        return "$LOOP_PREV_OUTPUT is the output of the previous iteration"
    if site.kind != "prose":
        return "read the output of another node"
    return f"it stays as text; write $${name}.output if that is meant"


def _undeclared(ref: Ref, target: NodeAt) -> _Found | None:
    if ref.field and "fan_out" in target.value:
        message = f"{ref.name} is a list, it has no field {ref.field}"
        return _Found("unknown-reference", message, f"read ${ref.name}.output as a whole")
    properties = target.part("output_format").get("properties")
    if not ref.field or not isinstance(properties, dict) or target.kind not in SCHEMA_KINDS:
        return None
    if ref.field in properties:
        return None
    hint = suggest_name(ref.field, properties)
    message = f"{ref.name} has no field {ref.field}"
    return _Found("unknown-reference", message, hint)


def _of_previous_iteration(ref: Ref, site: Site) -> _Found | None:
    groups = [graph for graph, _ in _chain(site) if graph.owner is not None]
    if not groups:
        message = "LOOP_PREV has a value inside of a loop_group only"
        return _Found("unknown-reference", message, "in a loop there is $LOOP_PREV_OUTPUT")
    if any(ref.name in graph.by_id for graph in groups):
        return None
    seen = [one for graph in groups for one in graph.by_id]
    hint = suggest_name(ref.name or "", seen)
    return _Found("unknown-reference", f"no node of the group is called {ref.name}", hint)


def _of_input(ref: Ref, site: Site, made: ArchonOutline) -> _Found | None:
    name = ref.name or ""
    known = dict.fromkeys([*made.inputs, *sorted(made.given or ())])
    if name in known or name in site.node.part("with"):
        return None
    if not made.inputs and made.is_root:
        hint = f"inputs: {{{name}: {{required: true}}}}"
        return _Found("undeclared-input", f"{name} is not declared; give --input {name}=…", hint)
    hint = suggest_name(name, known)
    return _Found("unknown-reference", f"no input is called {name}", f"{hint}; see inputs:")


# -- the position of a node-------------------------------------------------------------------------


def _diagnostic(document: Document, site: Site, found: _Found, place: Position) -> Diagnostic:
    return Diagnostic(
        site.file or document.file,
        place.line,
        place.column,
        found.code,
        found.message,
        found.hint,
        "warning" if found.code in _WARNINGS else "error",
    )


def _place(document: Document, site: Site, at: int, written: str) -> Position:
    """The position of a variable, if the file contains its text unchanged."""
    if site.file:
        start = site.text.rfind("\n", 0, at) + 1
        return Position(site.text.count("\n", 0, at) + 1, at - start + 1)
    node, _ = document._walk(site.path)
    source, found = document._source, node.offset - 1
    for _ in range(site.text.count(written, 0, at) + 1 if written else 0):
        found = source.text.find(written, found + 1)
        if found < 0:
            break
    return source.position(found) if written and found >= 0 else document.at(site.path)
