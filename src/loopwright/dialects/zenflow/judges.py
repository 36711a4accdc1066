"""Agents that must exist, and what an agent needs to be a judge."""

from collections.abc import Iterator

from loopwright.dialects.zenflow.files import Path
from loopwright.dialects.zenflow.tree import LoopAt, Tree, mapping
from loopwright.model.toolnames import FAMILIES, family_of
from loopwright.syntax.diagnostic import Diagnostic
from loopwright.syntax.document import Document
from loopwright.syntax.words import did_you_mean

EMPTY = '""'
_SCHEMA_HINT = "resultSchema: {type: object, required: [done], properties: {done: {type: boolean}}}"


def agents(document: Document, tree: Tree) -> Iterator[Diagnostic]:
    """Agents that nobody has defined, judges that cannot judge."""
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


def _known(name: str, tree: Tree) -> str:
    known = ", ".join(list(tree.agents)[:12])
    return did_you_mean(name, tree.agents) or (
        f"known: {known}" if known else "define it under agents"
    )


def _judge(document: Document, tree: Tree, loop: LoopAt, judge: str) -> Iterator[Diagnostic]:
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
    """Where in an agent something is missing that a judge needs, and what."""
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
