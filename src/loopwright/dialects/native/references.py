"""Places that are read: whether a reference or an expression has a value where it stands."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from loopwright.dialects.native.outline import Outline, Path, Scope
from loopwright.dialects.native.secrets import secret_named
from loopwright.dialects.native.templates import explain, parse, parse_ref, write_ref
from loopwright.model.template import Ref
from loopwright.syntax.diagnostic import Diagnostic, Position
from loopwright.syntax.document import Document
from loopwright.syntax.expressions import Expression, expression_problems
from loopwright.syntax.graphs import ended_before, near_or_known

_DOUBT = "unordered-reference"
_EMPTY = "empty-reference"
_WARNINGS = (_DOUBT, _EMPTY)


class _Found(NamedTuple):
    """What is wrong with a reference."""

    code: str
    message: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class _Given:
    """Names that a definition gives to values, and whether it was converted: another system may
    take what has no value as empty.
    """

    inputs: list[str]
    settings: list[str]
    converted: bool


def references(document: Document, made: Outline) -> Iterator[Diagnostic]:
    """References that lead nowhere, or perhaps too early."""
    top = made.top
    given = _Given(_keys(top.get("inputs")), _keys(top.get("settings")), "converted_from" in top)
    for path, text, scope in made.texts:
        doubted: set[str] = set()
        for mark in parse(text)[1]:
            found = _unread(mark.written) if mark.ref is None else _read(mark.ref, scope, given)
            if found is None or mark.written in doubted:
                continue
            if found.code in _WARNINGS:
                doubted.add(mark.written)
            nth = text.count(mark.written, 0, mark.at)
            yield _diagnostic(document, found, _within(document, path, mark.written, nth=nth))
    for path, text, scope in made.values:
        found = _value(text, scope, given)
        if found:
            yield _diagnostic(document, found, document.at(path))
    for loop in made.loops:
        each = loop.value.get("for_each")
        source = each.get("from") if isinstance(each, dict) else None
        found = _list(source, loop.outside, given) if isinstance(source, str) else None
        if found:
            place = document.at((*loop.path, "for_each", "from"))
            yield _diagnostic(document, found, place)


def expressions(document: Document, made: Outline) -> Iterator[Diagnostic]:
    """Expressions that cannot be understood, or that name what is not there."""
    for path, text, wants, scope in made.expressions:
        if text.strip():
            seen, there = _seen_from(scope)
            one = Expression(path=path, text=text, wants=wants, ids=seen, late=there)
            yield from expression_problems(document, one)


def _seen_from(scope: Scope) -> tuple[frozenset[str], frozenset[str]]:
    """The steps that have ended where an expression is looked at, and all that are there."""
    seen: frozenset[str] = frozenset()
    there: frozenset[str] = frozenset()
    for graph, step in scope.graphs:
        if step is None:
            seen = seen.union(graph.by_id)
            continue
        seen |= ended_before(step, graph.by_id)
        there = there.union(name for name in graph.by_id if name != step.id)
    return seen, there


def _keys(value: object) -> list[str]:
    return list(value) if isinstance(value, dict) else []


def _value(text: str, scope: Scope, given: _Given) -> _Found | None:
    ref = parse_ref(text)
    if ref is not None:
        return _read(ref, scope, given)
    problem, hint = explain("{{" + text + "}}")
    return _Found("unknown-reference", problem, hint.partition("; for literal")[0])


def _list(source: str, scope: Scope, given: _Given) -> _Found | None:
    ref = parse_ref(source)
    if ref is not None and ref.of in ("result", "input", "item", "message", "previous_result"):
        return _read(ref, scope, given)
    hint = "write steps.ID.result.FIELD or input.NAME, or use expr"
    code = "unknown-reference" if ref is None else "not-a-list"
    return _Found(code, f"{source[:60]} is no list", hint)


def _unread(written: str) -> _Found:
    secret = secret_named(written)
    if secret is not None:
        message = f"{secret} would be sent to a model and kept in the log"
        hint = f"hand it to the agent's program by its name: pass_env: [{secret}]"
        return _Found("secret-in-prompt", message, hint)
    problem, hint = explain(written)
    code = "bad-template" if written == "{{" else "unknown-reference"
    return _Found(code, problem, hint)


def _read(ref: Ref, scope: Scope, given: _Given) -> _Found | None:
    match ref.of:
        case "output" | "result":
            return _of_step(ref, scope)
        case "previous_output" | "previous_result":
            found = _of_step_before(ref, scope)
        case "input":
            return _known(ref, [*given.inputs, *scope.inputs], "define it under inputs:")
        case "setting":
            return _known(ref, given.settings, "define it under settings:")
        case "rejection" if not scope.is_rejected:
            hint = "it has a value in a gate with on_reject"
            return _Found(_EMPTY, "rejection is empty here", hint)
        case _:
            found = _of_pass(ref, scope)
    return found._replace(code=_EMPTY) if found and given.converted else found


def _known(ref: Ref, names: list[str], otherwise: str) -> _Found | None:
    if ref.name in names:
        return None
    hint = near_or_known(ref.name or "", names) or otherwise
    return _Found("unknown-reference", f"no {ref.of} is called {ref.name}", hint)


def _of_pass(ref: Ref, scope: Scope) -> _Found | None:
    hint = _without_value(ref, scope)
    name = "outer." * ref.up + ref.of
    return _Found("unknown-reference", f"{name} has no value here", hint) if hint else None


def _without_value(ref: Ref, scope: Scope) -> str | None:
    """Why a reference to the run or its pass has no value, or None."""
    inner = scope.loops[-1 - ref.up] if ref.up < len(scope.loops) else None
    match ref.of:
        case "message":
            return "the goal is the message" if scope.is_goal else None
        case "run" | "workspace" | "rejection":
            return None
        case "item":
            listed = scope.has_item or "each" in scope.loops
            return None if listed else "no loop around it is a for_each"
        case "index" | "iteration":
            around = f"there is no {'outer ' * bool(ref.up)}loop around it"
            return None if inner or scope.has_item else around
        case _:
            return (
                None
                if inner == "count"
                else "there is no loop whose iterations run one after another"
            )


def _of_step_before(ref: Ref, scope: Scope) -> _Found | None:
    """A step in the pass before is a step of the innermost loop."""
    hint = _without_value(Ref(of="previous"), scope)
    if hint:
        return _Found("unknown-reference", f"{write_ref(ref)} has no value here", hint)
    names = list(scope.passed.by_id) if scope.passed else []
    if ref.name in names:
        return None
    hint = near_or_known(ref.name or "", names) or "write previous"
    return _Found("unknown-reference", f"no step of this loop is called {ref.name}", hint)


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
        "warning" if found.code in _WARNINGS else "error",
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
