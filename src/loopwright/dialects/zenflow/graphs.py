"""Steps that must exist: ids used twice, dependencies that are unknown or go in circles."""

from collections.abc import Iterator

from loopwright.dialects.zenflow.tree import GraphAt, StepAt, Tree
from loopwright.syntax import Diagnostic, Document, did_you_mean


def graphs(document: Document, tree: Tree) -> Iterator[Diagnostic]:
    """All that is wrong with who waits for whom."""
    inner = {name: graph for graph in tree.graphs[1:] for name in graph.by_id}
    for graph in tree.graphs:
        yield from _doubles(document, graph)
        yield from _missing(document, graph, inner)
        yield from _cycle(document, graph)


def _doubles(document: Document, graph: GraphAt) -> Iterator[Diagnostic]:
    for step in graph.steps:
        known = graph.by_id.get(step.id, step)
        if known is not step:
            line = document.at((*known.path, "id")).line
            message = f"{step.id} is already the id of the step on line {line}"
            hint = "give each step its own id"
            yield document.error("duplicate-step", message, at=(*step.path, "id"), hint=hint)


def _missing(document: Document, graph: GraphAt, inner: dict[str, GraphAt]) -> Iterator[Diagnostic]:
    for step in graph.steps:
        for number, need in step.needs:
            place = (*step.path, "dependsOn", number)
            if need == step.id:
                message = f"{need} depends on itself: {need} → {need}"
                yield document.error("cycle", message, at=place)
            elif need not in graph.by_id:
                message = f"no step here is called {need[:60]}"
                hint = _advice(graph, step, need, inner)
                yield document.error("missing-dep", message, at=place, hint=hint)


def _advice(graph: GraphAt, step: StepAt, need: str, inner: dict[str, GraphAt]) -> str | None:
    if graph.around is not None and _is_outside(graph.around, need):
        return f"inside a loop, name steps of that loop; let {graph.around.id} depend on {need}"
    holder = inner[need].around if need in inner else None
    if holder is not None and holder is not step:
        return f"it is inside the loop {holder.id}: depend on {holder.id}"
    others = [one for one in graph.by_id if one != step.id]
    known = f"known: {', '.join(others[:12])}" if others else None
    return did_you_mean(need, others) or known


def _is_outside(around: StepAt | None, need: str) -> bool:
    while around is not None:
        if need in around.graph.by_id:
            return True
        around = around.graph.around
    return False


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
    number = next(number for number, need in step.needs if need == around[1])
    message = f"steps wait for one another: {' → '.join(around)}"
    place = (*step.path, "dependsOn", number)
    yield document.error("cycle", message, at=place, hint="remove one of these dependencies")


def _needs(graph: GraphAt) -> dict[str, list[str]]:
    """What each step waits for, as far as it is there."""
    return {
        name: list(dict.fromkeys(n for _, n in step.needs if n in graph.by_id and n != name))
        for name, step in graph.by_id.items()
    }


def _order(needs: dict[str, list[str]]) -> list[str]:
    """Steps in an order in which they could run; those of a circle are left out."""
    waiters: dict[str, list[str]] = {}
    for name, wanted in needs.items():
        for need in wanted:
            waiters.setdefault(need, []).append(name)
    missing = {name: len(wanted) for name, wanted in needs.items()}
    free = [name for name, count in missing.items() if not count]
    for ended in free:  # grows while it is walked
        for name in waiters.get(ended, ()):
            missing[name] -= 1
            if not missing[name]:
                free.append(name)
    return free


def _waiting(graph: GraphAt) -> dict[str, list[str]]:
    """Steps that can never start because each waits for another of them."""
    needs = _needs(graph)
    stuck = needs.keys() - set(_order(needs))
    return {
        name: [need for need in wanted if need in stuck]
        for name, wanted in needs.items()
        if name in stuck
    }


def ended_before(graph: GraphAt) -> dict[str, frozenset[str]]:
    """For each step all steps of its graph that have ended when it starts."""
    needs = _needs(graph)
    found: dict[str, frozenset[str]] = {}
    for name in _order(needs):
        found[name] = frozenset(needs[name]).union(*(found[need] for need in needs[name]))
    return found
