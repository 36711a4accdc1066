"""Nodes that depend on one another: ids used twice, unknown names, circles."""

from collections.abc import Iterator

from loopwright.dialects.archon.outline import GraphAt, NodeAt, Outline
from loopwright.syntax import Diagnostic, Document, did_you_mean

_MOST_SHOWN = 12


def graphs(document: Document, made: Outline) -> Iterator[Diagnostic]:
    """All that is wrong with the edges of the graphs."""
    for graph in made.graphs:
        yield from _doubles(document, graph)
        yield from _unknown(document, graph)
        yield from _cycle(document, graph)


def _doubles(document: Document, graph: GraphAt) -> Iterator[Diagnostic]:
    first = graph.by_id
    for node in graph.nodes:
        known = first.get(node.id, node)
        if known is not node:
            lines = [document.at((*one.path, "id")).line for one in (known, node)]
            message = f"{node.id} is the id of the nodes on lines {lines[0]} and {lines[1]}"
            hint = "give each node its own id"
            yield document.error("bad-id", message, at=(*node.path, "id"), hint=hint)


def _unknown(document: Document, graph: GraphAt) -> Iterator[Diagnostic]:
    known = graph.by_id
    for node in graph.nodes:
        written = node.value.get("depends_on")
        for number, need in enumerate(written if isinstance(written, list) else ()):
            place = (*node.path, "depends_on", number)
            if need == node.id:
                yield document.error("cycle", f"{need} needs itself: {need} → {need}", at=place)
            elif isinstance(need, str) and need not in known:
                others = [one for one in known if one != node.id]
                hint = did_you_mean(need, others) or known_names(others)
                if graph.owner is not None:
                    hint = f"{hint}; nodes of a group depend on nodes of the same group only"
                message = f"no node here is called {need[:60]}"
                yield document.error("unknown-step", message, at=place, hint=hint)


def known_names(names: list[str]) -> str:
    """The names there are, for a hint."""
    if not names:
        return "there are no others"
    more = ", …" if len(names) > _MOST_SHOWN else ""
    return f"known: {', '.join(names[:_MOST_SHOWN])}{more}"


def _cycle(document: Document, graph: GraphAt) -> Iterator[Diagnostic]:
    """One circle is told, with its path; the others show when it is gone."""
    waiting = _waiting(graph)
    if not waiting:
        return
    trail = [next(iter(waiting))]
    while trail[-1] not in trail[:-1]:
        trail.append(waiting[trail[-1]][0])
    around = trail[trail.index(trail[-1]) :]
    node = graph.by_id[around[0]]
    place = (*node.path, "depends_on", node.needs.index(around[1]))
    message = f"nodes wait for one another: {' → '.join(around)}"
    yield document.error("cycle", message, at=place, hint="remove one of these dependencies")


def _waiting(graph: GraphAt) -> dict[str, list[str]]:
    """Nodes that can never start because each waits for another of them."""
    known = graph.by_id
    waiting = {
        name: [need for need in dict.fromkeys(node.needs) if need in known and need != name]
        for name, node in known.items()
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


def before(node: NodeAt) -> set[str]:
    """All nodes of its graph that have ended when this one starts."""
    if node.before is not None:
        return node.before
    known = node.graph.by_id
    found: set[str] = set()
    todo = list(node.needs)
    while todo:
        need = todo.pop()
        if need not in known or need in found:
            continue
        found.add(need)
        further = known[need].before
        if further is None:
            todo += known[need].needs
        else:
            found |= further
    node.before = found
    return found
