"""Places that are read: whether a reference has a value where it stands."""

from collections.abc import Iterator
from typing import NamedTuple

from loopwright.dialects.native.outline import Outline, Path, Scope
from loopwright.dialects.native.templates import explain, parse, parse_ref, write_ref
from loopwright.model.template import Ref
from loopwright.syntax import Diagnostic, Document, Position
from loopwright.syntax.graphs import ended_before, near_or_known

_DOUBT = "unordered-reference"


class _Found(NamedTuple):
    """What is wrong with a reference."""

    code: str
    message: str
    hint: str | None


def references(document: Document, made: Outline) -> Iterator[Diagnostic]:
    """References in texts that lead nowhere, or perhaps too early."""
    written = made.top.get("inputs")
    inputs = list(written) if isinstance(written, dict) else []
    for path, text, scope in made.texts:
        doubted: set[str] = set()
        for mark in parse(text)[1]:
            found = _unread(mark.written) if mark.ref is None else _read(mark.ref, scope, inputs)
            if found is None or mark.written in doubted:
                continue
            if found.code == _DOUBT:
                doubted.add(mark.written)
            nth = text.count(mark.written, 0, mark.at)
            yield _diagnostic(document, found, _within(document, path, mark.written, nth=nth))
    for loop in made.loops:
        each = loop.value.get("for_each")
        source = each.get("from") if isinstance(each, dict) else None
        found = _list(source, loop.outside, inputs) if isinstance(source, str) else None
        if found:
            place = document.at((*loop.path, "for_each", "from"))
            yield _diagnostic(document, found, place)


def _list(source: str, scope: Scope, inputs: list[str]) -> _Found | None:
    ref = parse_ref(source)
    if ref is not None and ref.of in ("result", "input", "item"):
        return _read(ref, scope, inputs)
    hint = "write steps.ID.result.FIELD or input.NAME"
    code = "unknown-reference" if ref is None else "not-a-list"
    return _Found(code, f"{source[:60]} is no list", hint)


def _unread(written: str) -> _Found:
    problem, hint = explain(written)
    code = "bad-template" if written == "{{" else "unknown-reference"
    return _Found(code, problem, hint)


def _read(ref: Ref, scope: Scope, inputs: list[str]) -> _Found | None:
    if ref.of in ("output", "result"):
        return _of_step(ref, scope)
    if ref.of == "input":
        if ref.name in inputs:
            return None
        hint = near_or_known(ref.name or "", inputs)
        message = f"no input is called {ref.name}"
        return _Found("unknown-reference", message, hint or "define it under inputs:")
    problem = _of_pass(ref, scope)
    return _Found("unknown-reference", f"{ref.of} has no value here", problem) if problem else None


def _of_pass(ref: Ref, scope: Scope) -> str | None:
    """Why a reference to the run or its pass has no value, or None."""
    inner = scope.loops[-1] if scope.loops else None
    match ref.of:
        case "message":
            return "the goal is the message" if scope.is_goal else None
        case "run" | "workspace":
            return None
        case "item":
            return None if inner == "each" else "the loop around it is no for_each"
        case "index" | "iteration":
            return None if inner else "there is no loop around it"
        case _:
            return None if inner == "count" else "there is no loop with passes one after another"


def _of_step(ref: Ref, scope: Scope) -> _Found | None:
    for graph, step in reversed(scope.graphs):
        if ref.name not in graph.by_id:
            continue
        if step is None or ref.name in ended_before(step, graph.by_id):
            return None
        if ref.name == step.id:
            message = f"{ref.name} cannot read its own {ref.of}"
            return _Found("unknown-reference", message, "previous is the pass before")
        message = f"{write_ref(ref)} may be read before {ref.name} has ended"
        return _Found(_DOUBT, message, f"add needs: [{ref.name}]")
    seen = [
        name
        for graph, step in scope.graphs
        for name in graph.by_id
        if step is None or step.id != name
    ]
    hint = near_or_known(ref.name or "", seen)
    message = f"no step here is called {ref.name}"
    return _Found("unknown-reference", message, hint or "there are no other steps here")


def _diagnostic(document: Document, found: _Found, place: Position) -> Diagnostic:
    return Diagnostic(
        document.file,
        place.line,
        place.column,
        found.code,
        found.message,
        found.hint,
        "warning" if found.code == _DOUBT else "error",
    )


def _within(document: Document, path: Path, written: str, *, nth: int) -> Position:
    """Where a reference stands, if its text is in the file the way it is read."""
    node, _ = document._walk(path)
    source, at = document._source, node.offset - 1
    for _ in range(nth + 1):
        at = source.text.find(written, at + 1)
        if at < 0:
            return document.at(path)
    return source.position(at)
