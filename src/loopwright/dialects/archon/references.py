"""Variables that are read: whether each has a value where it stands, and may stand there."""

from collections.abc import Iterator
from typing import NamedTuple

from loopwright.dialects.archon.environment import Environment, EnvNames
from loopwright.dialects.archon.files import Files
from loopwright.dialects.archon.graph import meant
from loopwright.dialects.archon.outline import GraphAt, NodeAt, Outline, Site, sites
from loopwright.dialects.archon.script_values import rewrite_code
from loopwright.dialects.archon.shell import rewrite
from loopwright.dialects.archon.unset_variables import find_misspelt, find_unset, sources_files
from loopwright.dialects.archon.variables import Mark, is_in_code, longest_variable, marks
from loopwright.dialects.archon.when import clauses
from loopwright.model.template import Ref
from loopwright.syntax.diagnostic import Diagnostic, Position
from loopwright.syntax.document import Document
from loopwright.syntax.graphs import ended_before
from loopwright.syntax.words import suggest

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
_SCHEMA_KINDS = ("prompt", "command", "loop")


class _Found(NamedTuple):
    """What is wrong at a place of a text."""

    code: str
    message: str
    hint: str | None = None


def env_names(made: Outline) -> EnvNames:
    """The names under which scripts of a workflow find their values."""
    inputs = dict.fromkeys([*made.inputs, *sorted(made.given or ()), *undeclared_inputs(made)])
    return EnvNames([node.id for node in made.nodes if node.id], inputs, made.item)


def undeclared_inputs(made: Outline) -> list[str]:
    """The inputs that a workflow reads which declares none; a run may give them."""
    if made.inputs or not made.is_root:
        return []
    texts = [site.text for site in sites(made, {}) if site.kind != "script"]
    found = [mark for text in texts for mark in marks(text) if not mark.escaped]
    bound = {name for node in made.nodes for name in node.part("with")}
    names = [one.ref.name or "" for one in found if one.ref.of == "input" and not one.variable]
    return [name for name in dict.fromkeys(names) if name not in bound]


def references(document: Document, made: Outline, files: Files) -> Iterator[Diagnostic]:
    """All that is wrong with the variables of a workflow."""
    names = env_names(made)
    for site in sites(made, files):
        told: set[str] = set()
        for at, written, found in _of_site(site, made, names):
            once = f"{found.code} {written}"
            if found.code in _WARNINGS and once in told:
                continue
            told.add(once)
            yield _diagnostic(document, site, found, _place(document, site, at, written))


def _of_site(site: Site, made: Outline, names: EnvNames) -> Iterator[tuple[int, str, _Found]]:
    if site.kind == "when":
        yield from _of_condition(site, made)
        return
    if site.kind == "script" and site.file is not None:
        return  # a file of its own is run as it is, and reads values from its environment
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
    """In JavaScript `$name.output` may well be a variable of its own."""
    is_bun = site.kind == "script" and site.node.value.get("runtime") == "bun"
    return is_bun and found.code == "unknown-reference"


def _of_condition(site: Site, made: Outline) -> Iterator[tuple[int, str, _Found]]:
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


def _item_of_another(mark: Mark, made: Outline) -> _Found | None:
    """A workflow may be meant for the items of a list: read alone, it does not say how such an item
    is called, so what looks like no node's name may be that.
    """
    name, names = mark.ref.name or "", [node.id for node in made.nodes]
    if mark.ref.of != "result" or f"${name}.output" in mark.written or name in names:
        return None
    if made.item is not None or suggest(name, names):
        return None
    hint = f"the node will be left out, unless a fan_out runs this workflow with as: {name}"
    return _Found("bad-condition", f"no node here is called {name}", hint)


# -- whether there is a value ----------------------------------------------------------------------


def _read(mark: Mark, site: Site, made: Outline) -> _Found | None:
    ref = mark.ref
    match ref.of:
        case "output" | "result":
            return _of_node(ref, site)
        case "previous_output" | "previous_result":
            return _of_pass_before(ref, site)
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


def _chain(site: Site) -> Iterator[tuple[GraphAt, NodeAt | None]]:
    """The graphs around a text from the inside out, each with the node that the text belongs to."""
    node: NodeAt | None = site.node
    if site.node.body is not None and site.in_pass:
        yield site.node.body, None
    while node is not None:
        yield node.graph, node
        node = node.graph.owner


def _in_loop(site: Site) -> bool:
    return site.in_pass or site.node.graph.owner is not None


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
    hint = meant(name, seen)
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
    if not ref.field or not isinstance(properties, dict) or target.kind not in _SCHEMA_KINDS:
        return None
    if ref.field in properties:
        return None
    hint = meant(ref.field, properties)
    message = f"{ref.name} has no field {ref.field}"
    return _Found("unknown-reference", message, hint)


def _of_pass_before(ref: Ref, site: Site) -> _Found | None:
    groups = [graph for graph, _ in _chain(site) if graph.owner is not None]
    if not groups:
        message = "LOOP_PREV has a value inside of a loop_group only"
        return _Found("unknown-reference", message, "in a loop there is $LOOP_PREV_OUTPUT")
    if any(ref.name in graph.by_id for graph in groups):
        return None
    seen = [one for graph in groups for one in graph.by_id]
    hint = meant(ref.name or "", seen)
    return _Found("unknown-reference", f"no node of the group is called {ref.name}", hint)


def _of_input(ref: Ref, site: Site, made: Outline) -> _Found | None:
    name = ref.name or ""
    if name in (*made.inputs, *(made.given or ())) or name in site.node.part("with"):
        return None
    if not made.inputs and made.is_root:
        hint = f"inputs: {{{name}: {{required: true}}}}"
        return _Found("undeclared-input", f"{name} is not declared; give --input {name}=…", hint)
    hint = meant(name, made.inputs)
    return _Found("unknown-reference", f"no input is called {name}", f"{hint}; see inputs:")


# -- where it stands -------------------------------------------------------------------------------


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
    """Where a variable stands, if its text is in the file the way it is read."""
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
