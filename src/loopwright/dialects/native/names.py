"""Names that must exist: steps that are needed, agents that are called."""

from collections.abc import Iterator

from loopwright.dialects.native.outline import GraphAt, Outline, Path, StepAt
from loopwright.dialects.native.specs import (
    GOVERNING_KEYS,
    PROGRAMS,
    governs,
    is_spec,
    spec_fault,
)
from loopwright.syntax import Diagnostic, Document, did_you_mean

# -- steps -----------------------------------------------------------------------------------------


def graphs(document: Document, made: Outline) -> Iterator[Diagnostic]:
    """Ids that are used twice, needs that are unknown, steps that wait for one another."""
    for graph in made.graphs:
        yield from _doubles(document, graph)
        yield from _unknown_needs(document, graph)
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
    for step in graph.steps:
        for number, need in enumerate(step.needs):
            place = (*step.path, "needs", number)
            if need == step.id:
                yield document.error("cycle", f"{need} needs itself: {need} → {need}", at=place)
            elif need not in graph.by_id:
                others = [one for one in graph.by_id if one != step.id]
                hint = did_you_mean(need, others) or known_names(others)
                message = f"no step here is called {need[:60]}"
                yield document.error("unknown-step", message, at=place, hint=hint)


def _cycle(document: Document, graph: GraphAt) -> Iterator[Diagnostic]:
    """One cycle is told, with its path; the others show when it is gone."""
    waiting = _waiting(graph)
    if not waiting:
        return
    trail = [next(iter(waiting))]
    while trail[-1] not in trail[:-1]:
        trail.append(waiting[trail[-1]][0])
    around = trail[trail.index(trail[-1]) :]
    step = graph.by_id[around[0]]
    place = (*step.path, "needs", step.needs.index(around[1]))
    message = f"steps wait for one another: {' → '.join(around)}"
    yield document.error("cycle", message, at=place, hint="remove one of these needs")


def _waiting(graph: GraphAt) -> dict[str, list[str]]:
    """Steps that can never start because each waits for another of them."""
    waiting = {
        name: [need for need in dict.fromkeys(step.needs) if need in graph.by_id and need != name]
        for name, step in graph.by_id.items()
    }
    waiters: dict[str, list[str]] = {}
    for name, needs in waiting.items():
        for need in needs:
            waiters.setdefault(need, []).append(name)
    missing = {name: len(needs) for name, needs in waiting.items()}
    free = [name for name, count in missing.items() if not count]
    for ended in free:  # grows while it is walked
        for name in waiters.get(ended, ()):
            missing[name] -= 1
            if not missing[name]:
                free.append(name)
    stuck = waiting.keys() - set(free)
    return {
        name: [need for need in needs if need in stuck]
        for name, needs in waiting.items()
        if name in stuck
    }


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
    hint = hint or known_names(defined) or f"known: {', '.join(PROGRAMS)}, command:CMD, jsonl:CMD"
    message = f"no agent is called {name[:60]}"
    yield document.error("unknown-agent", message, at=path, hint=hint)


def _defined(document: Document, entry: dict[str, object], path: Path) -> Iterator[Diagnostic]:
    spec = entry.get("use")
    if not isinstance(spec, str) or not spec:
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


def known_names(names: list[str]) -> str | None:
    """The hint that lists what there is, if there is anything."""
    return f"known: {', '.join(dict.fromkeys(names[:12]))}" if names else None
