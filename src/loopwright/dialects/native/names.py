"""Names that must exist: steps that are needed, agents that are called, places that are read."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from loopwright.dialects.native.outline import GraphAt, Outline, Path, Scope, StepAt
from loopwright.dialects.native.specs import (
    GOVERNING_KEYS,
    PROGRAMS,
    governs,
    is_spec,
    spec_fault,
)
from loopwright.dialects.native.templates import Mark, parse, parse_ref, write_ref
from loopwright.model.template import Ref
from loopwright.syntax import Diagnostic, Document, Position, did_you_mean

# -- steps -----------------------------------------------------------------------------------------


def graphs(document: Document, made: Outline) -> Iterator[Diagnostic]:
    """Ids that are used twice, needs that are unknown, steps that wait for one another."""
    for graph in made.graphs:
        yield from _doubles(document, graph)
        unknown = list(_unknown_needs(document, graph))
        yield from unknown
        yield from _cycle(document, graph)


def _doubles(document: Document, graph: GraphAt) -> Iterator[Diagnostic]:
    first: dict[str, StepAt] = {}
    for step in graph.steps:
        known = first.setdefault(step.id, step) if step.id else step
        if known is not step:
            lines = [document.at((*one.path, "id")).line for one in (known, step)]
            message = f"{step.id} is the id of the steps on lines {lines[0]} and {lines[1]}"
            hint = "give each step its own id"
            yield document.error("bad-id", message, at=(*step.path, "id"), hint=hint)


def _unknown_needs(document: Document, graph: GraphAt) -> Iterator[Diagnostic]:
    ids = graph.ids()
    for step in graph.steps:
        for number, need in enumerate(step.needs):
            place = (*step.path, "needs", number)
            if need == step.id:
                yield document.error("cycle", f"{need} needs itself: {need} → {need}", at=place)
            elif need not in ids:
                others = [one for one in ids if one != step.id]
                hint = did_you_mean(need, others) or _known(others)
                message = f"no step here is called {need[:60]}"
                yield document.error("unknown-step", message, at=place, hint=hint)


def _cycle(document: Document, graph: GraphAt) -> Iterator[Diagnostic]:
    """One cycle is told, with its path; the others show when it is gone."""
    steps = {step.id: step for step in graph.steps}
    waiting = {
        name: [n for n in step.needs if n in steps and n != name] for name, step in steps.items()
    }
    # Take away what waits for nothing until nothing changes; what is left waits for itself.
    while free := {name for name, needs in waiting.items() if not needs}:
        waiting = {
            name: [n for n in needs if n not in free]
            for name, needs in waiting.items()
            if name not in free
        }
    if not waiting:
        return
    trail = [next(iter(waiting))]
    while trail[-1] not in trail[:-1]:
        trail.append(waiting[trail[-1]][0])
    around = trail[trail.index(trail[-1]) :]
    step = steps[around[0]]
    place = (*step.path, "needs", step.needs.index(around[1]))
    message = f"steps wait for one another: {' → '.join(around)}"
    yield document.error("cycle", message, at=place, hint="remove one of these needs")


def _reached(graph: GraphAt, step: StepAt) -> set[str]:
    """All steps that have ended when this one starts."""
    steps = {one.id: one for one in graph.steps}
    found: set[str] = set()
    todo = list(step.needs)
    while todo:
        need = todo.pop()
        if need in steps and need not in found:
            found.add(need)
            todo += steps[need].needs
    return found


# -- agents ----------------------------------------------------------------------------------------


def agents(document: Document, made: Outline) -> Iterator[Diagnostic]:
    """Agents that nobody has defined, or that cannot be what they should be."""
    written = made.top.get("agents")
    defined = written if isinstance(written, dict) else {}
    for name, entry in defined.items():
        if isinstance(entry, dict):
            yield from _defined(document, entry, ("agents", name))
    default = made.top.get("agent")
    if isinstance(default, str):
        yield from _named(document, default, ("agent",), list(defined))
    for body in made.bodies:
        name, place = body.value.get("agent"), body.keys.get("agent", ())
        if isinstance(name, str) and place != ("agent",):
            yield from _named(document, name, place, list(defined))
        calls = not {"run", "steps"} & set(body.value) and "agent" not in body.value
        if calls and default is None and len(defined) > 1 and _is_call(body.path, made):
            message = f"agent is required here: {' or '.join(defined)}"
            yield document.error("missing-field", message, at=body.path)


def _is_call(path: Path, made: Outline) -> bool:
    """Whether a body without a program or steps is a call, not a gate or the like."""
    steps = {step.path: step.value for graph in made.graphs for step in graph.steps}
    return path not in steps or bool({"prompt", "repeat"} & set(steps[path]))


def _named(document: Document, name: str, path: Path, defined: list[str]) -> Iterator[Diagnostic]:
    if name in defined:
        return
    if is_spec(name):
        yield from _spec(document, name, path)
        return
    hint = did_you_mean(name, [*defined, *PROGRAMS])
    hint = hint or _known(defined) or f"known: {', '.join(PROGRAMS)}, command:CMD, jsonl:CMD"
    message = f"no agent is called {name[:60]}"
    yield document.error("unknown-agent", message, at=path, hint=hint)


def _defined(document: Document, entry: dict[str, object], path: Path) -> Iterator[Diagnostic]:
    spec = entry.get("use")
    if not isinstance(spec, str):
        return
    place = (*path, "use")
    if not is_spec(spec):
        hint = did_you_mean(spec, PROGRAMS)
        hint = hint or f"known: {', '.join(PROGRAMS)}, acp:, command:, jsonl:, model:, script:"
        message = f"nothing is known that is called {spec[:60]}"
        yield document.error("unknown-agent", message, at=place, hint=hint)
        return
    yield from _spec(document, spec, place)
    if not governs(spec):
        for key in (key for key in GOVERNING_KEYS if key in entry):
            message = f"{key} cannot be enforced on a plain program"
            hint = "remove it, or use an agent that obeys it, such as claude"
            at = (*path, key)
            yield document.error("unsupported-here", message, at=at, on_key=True, hint=hint)


def _spec(document: Document, spec: str, path: Path) -> Iterator[Diagnostic]:
    problem = spec_fault(spec)
    if problem:
        yield document.error(problem.code, problem.message, at=path, hint=problem.hint)


# -- references ------------------------------------------------------------------------------------


def references(document: Document, made: Outline) -> Iterator[Diagnostic]:
    """References in texts that lead nowhere, or perhaps too early."""
    written = made.top.get("inputs")
    inputs = list(written) if isinstance(written, dict) else []
    for path, text, scope in made.texts:
        for mark in parse(text)[1]:
            for found in _reference(mark, scope, inputs):
                yield _placed(document, path, mark, found)
    for loop in made.loops:
        each = loop.value.get("for_each")
        source = each.get("from") if isinstance(each, dict) else None
        if isinstance(source, str):
            path = (*loop.path, "for_each", "from")
            yield from _list_source(document, source, path, loop.outside, inputs)


def _list_source(
    document: Document, source: str, path: Path, scope: Scope, inputs: list[str]
) -> Iterator[Diagnostic]:
    ref = parse_ref(source)
    if ref is None or ref.of not in ("result", "input", "item"):
        hint = "write steps.ID.result.FIELD or input.NAME"
        code = "unknown-reference" if ref is None else "not-a-list"
        yield document.error(code, f"{source[:60]} is no list", at=path, hint=hint)
        return
    for found in _reference(Mark(source, 0, ref), scope, inputs):
        yield _placed(document, path, Mark(source, 0), found)


class _Found(NamedTuple):
    """What is wrong with a reference."""

    code: str
    message: str
    hint: str | None


def _reference(mark: Mark, scope: Scope, inputs: list[str]) -> Iterator[_Found]:
    ref = mark.ref
    if ref is None:
        code = "bad-template" if mark.written == "{{" else "unknown-reference"
        yield _Found(code, mark.problem, mark.hint)
    elif ref.of in ("output", "result"):
        yield from _of_step(ref, scope)
    elif ref.of == "input":
        if ref.name not in inputs:
            hint = did_you_mean(ref.name or "", inputs) or _known(inputs)
            message = f"no input is called {ref.name}"
            hint = hint or "define it under inputs:"
            yield _Found("unknown-reference", message, hint)
    else:
        problem = _of_pass(ref, scope)
        if problem:
            yield _Found("unknown-reference", f"{ref.of} has no value here", problem)


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


def _of_step(ref: Ref, scope: Scope) -> Iterator[_Found]:
    for graph, step in reversed(scope.graphs):
        if ref.name not in graph.ids():
            continue
        if step is None or ref.name in _reached(graph, step):
            return
        if ref.name == step.id:
            message = f"{ref.name} cannot read its own {ref.of}"
            yield _Found("unknown-reference", message, "previous is the pass before")
            return
        message = f"{write_ref(ref)} may be read before {ref.name} has ended"
        yield _Found("unordered-reference", message, f"add needs: [{ref.name}]")
        return
    seen = [name for graph, step in scope.graphs for name in graph.ids() if _other(name, step)]
    hint = did_you_mean(ref.name or "", seen) or _known(seen) or "there are no other steps here"
    yield _Found("unknown-reference", f"no step here is called {ref.name}", hint)


def _other(name: str, step: StepAt | None) -> bool:
    return step is None or step.id != name


def _placed(document: Document, path: Path, mark: Mark, found: _Found) -> Diagnostic:
    code, message, hint = found
    line, column = _within(document, path, mark)
    late = code == "unordered-reference"
    severity: Literal["error", "warning"] = "warning" if late else "error"
    return Diagnostic(document.file, line, column, code, message, hint, severity)


def _within(document: Document, path: Path, mark: Mark) -> Position:
    """Where a reference stands, if its text is written in the file as it is read."""
    node, _ = document._walk(path)
    source, at = document._source, node.offset - 1
    for _ in range(mark.nth + 1):
        at = source.text.find(mark.written, at + 1)
        if at < 0:
            return document.at(path)
    return source.position(at)


def _known(names: list[str]) -> str | None:
    return f"known: {', '.join(dict.fromkeys(names[:12]))}" if names else None
