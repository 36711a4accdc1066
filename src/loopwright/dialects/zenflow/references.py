"""References of a workflow: steps and agents that must exist, and expressions that read steps.

Duplicate ids, unknown dependencies and circles; unknown agents and agents that cannot be
judges. Each expression is compiled when the workflow is read, with the steps that it may read.
"""

from collections.abc import Iterator

from loopwright.dialects.zenflow.outline import (
    GraphEntry,
    LoopEntry,
    Path,
    StepEntry,
    ZenflowOutline,
    mapping,
)
from loopwright.model.access import FAMILIES, family_of
from loopwright.syntax.document import Diagnostic, Document, did_you_mean
from loopwright.syntax.step_references import (
    Expression,
    GraphWording,
    Wants,
    ended_before,
    expression_problems,
    graph_problems,
    near_or_known,
)

_WORDS = GraphWording(
    "dependsOn", needs="depends on", twice="duplicate-step", unknown="missing-dep"
)


def graphs(document: Document, tree: ZenflowOutline) -> Iterator[Diagnostic]:
    """All that is wrong with who waits for whom."""
    inner = {name: graph for graph in tree.graphs[1:] for name in graph.by_id}

    def advice(step: StepEntry, need: str, others: list[str]) -> str | None:
        return _elsewhere(step, need, inner) or near_or_known(need, others)

    for graph in tree.graphs:
        yield from graph_problems(document, graph.steps, _WORDS, advice=advice)


def _elsewhere(step: StepEntry, need: str, inner: dict[str, GraphEntry]) -> str | None:
    """A hint for a step that exists, but on the other side of a loop."""
    around = step.graph.around
    if around is not None and _is_outside(around, need):
        return f"inside a loop, name steps of that loop; let {around.id} depend on {need}"
    holder = inner[need].around if need in inner else None
    if holder is not None and holder is not step:
        return f"it is inside the loop {holder.id}: depend on {holder.id}"
    return None


def _is_outside(around: StepEntry | None, need: str) -> bool:
    while around is not None:
        if need in around.graph.by_id:
            return True
        around = around.graph.around
    return False


EMPTY = '""'
_SCHEMA_HINT = "resultSchema: {type: object, required: [done], properties: {done: {type: boolean}}}"


def agents(document: Document, tree: ZenflowOutline) -> Iterator[Diagnostic]:
    """Agents without a definition, judges that cannot judge."""
    for name, entry in tree.agents.items():
        for key in ("tools", "disallowedTools"):
            named = mapping(entry).get(key)
            for number, tool in enumerate(named if isinstance(named, list) else ()):
                yield from _tool(document, ("agents", name, key, number), tool)
    for step in tree.steps:
        agent = step.value.get("agent")
        if isinstance(agent, str) and agent not in tree.agents:
            hint = _known(agent, tree)
            message = f"no agent is called {agent[:60] or EMPTY}"
            yield document.error("missing-agent", message, at=(*step.path, "agent"), hint=hint)
    for loop in tree.loops:
        judge = loop.value.get("untilAgent")
        if isinstance(judge, str):
            yield from _judge(document, tree, loop, judge)


def _tool(document: Document, place: Path, tool: object) -> Iterator[Diagnostic]:
    """A name that means no tool: nothing is allowed or taken away by it."""
    if tool == "*":
        message = "* is not a wildcard: it is the name of a tool that does not exist"
        hint = "leave tools out to allow all of them"
        yield document.warning("wildcard-tool", message, at=place, hint=hint)
    elif isinstance(tool, str) and tool and "." not in tool and family_of(tool) is None:
        message = f"no tool is called {tool[:60]!r} here"
        known = [family.name for family in FAMILIES]
        listed = f"known: {', '.join(known)}, and SERVER.TOOL of an MCP server"
        hint = did_you_mean(tool, known) or listed
        yield document.warning("unknown-tool", message, at=place, hint=hint)


def _known(name: str, tree: ZenflowOutline) -> str:
    known = ", ".join(list(tree.agents)[:12])
    return did_you_mean(name, tree.agents) or (
        f"known: {known}" if known else "define it under agents"
    )


def _judge(
    document: Document, tree: ZenflowOutline, loop: LoopEntry, judge: str
) -> Iterator[Diagnostic]:
    place = (*loop.path, "untilAgent")
    if judge not in tree.agents:
        message = f"no agent is called {judge[:60] or EMPTY}"
        yield document.error("untilagent-bad-ref", message, at=place, hint=_known(judge, tree))
        return
    entry = tree.agents[judge]
    if isinstance(entry, dict):
        below, lack = _lack(entry.get("resultSchema"))
        if lack:
            message = f"{judge} cannot judge: {lack}"
            at = ("agents", judge, *below)
            yield document.error("judge-schema", message, at=at, hint=_SCHEMA_HINT)
    bodies = [one.value for one in loop.graph.steps] if loop.graph else [loop.step.value]
    if any(body.get("agent") == judge for body in bodies):
        message = f"{judge} judges its own work"
        hint = "let another agent judge"
        yield document.warning("self-judging", message, at=place, hint=hint)


def _lack(schema: object) -> tuple[Path, str | None]:
    """The place in an agent that lacks something a judge needs, and what."""
    if not isinstance(schema, dict):
        return (), "it has no resultSchema"
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return ("resultSchema",), "properties of its resultSchema must be a mapping"
    done = properties.get("done")
    if not isinstance(done, dict):
        return ("resultSchema", "properties"), "its result has no property done"
    if done.get("type") != "boolean":
        return ("resultSchema", "properties", "done"), "done must be of type boolean"
    required = schema.get("required")
    if not isinstance(required, list) or "done" not in required:
        return ("resultSchema",), "done must be required"
    return (), None


def expressions(document: Document, tree: ZenflowOutline) -> Iterator[Diagnostic]:
    """All that is wrong with the expressions of a workflow."""
    for step in tree.steps:
        for one in _of_step(step):
            yield from expression_problems(document, one)


def _of_step(step: StepEntry) -> Iterator[Expression]:
    """The expressions of a step that say something."""
    written: list[tuple[Path, object, Wants, GraphEntry | None]] = [
        ((*step.path, "condition"), step.value.get("condition"), "bool", None)
    ]
    if step.loop is not None:
        path, value = step.loop.path, step.loop.value
        written.append(((*path, "forEach"), value.get("forEach"), "list", None))
        written.append(((*path, "until"), value.get("until"), "bool", step.loop.graph))
    for path, text, wants, inner in written:
        if isinstance(text, str) and text.strip():
            ids = _seen_from(step).union(inner.by_id if inner else ())
            yield Expression(
                path=path,
                text=text,
                wants=wants,
                ids=ids,
                late=_late(step),
                waiting="dependsOn",
            )


def _seen_from(step: StepEntry) -> frozenset[str]:
    """What a step can look at: all that ended before it, or before a loop around it."""
    seen: frozenset[str] = frozenset()
    place: StepEntry | None = step
    while place is not None:
        seen |= ended_before(place, place.graph.by_id)
        place = place.graph.around
    return seen


def _late(step: StepEntry) -> set[str]:
    """The steps that are there, whether they may have ended or not."""
    found: set[str] = set()
    place: StepEntry | None = step
    while place is not None:
        found |= place.graph.by_id.keys()
        place = place.graph.around
    return found - {step.id}
