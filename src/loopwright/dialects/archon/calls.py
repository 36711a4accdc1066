"""Nodes that run another workflow: where they may stand, and what they hand over."""

import json
from collections.abc import Iterator

from loopwright.dialects.archon.graph import meant
from loopwright.dialects.archon.outline import (
    CALLS,
    DEFAULT_ITEM,
    Mapping,
    NodeAt,
    given_inputs,
    item_name,
)
from loopwright.dialects.archon.surface import MAX_ITEMS
from loopwright.dialects.archon.units import Unit
from loopwright.dialects.archon.variables import RESERVED_IDS, marks
from loopwright.model.record import JsonValue
from loopwright.model.template import Ref
from loopwright.syntax.diagnostic import Diagnostic
from loopwright.syntax.document import Document

_LISTS = ("output", "result", "input", "item", "message")


def calls(unit: Unit) -> Iterator[Diagnostic]:
    """All that is wrong with the nodes of a workflow that run others."""
    document = unit.document
    for node in unit.made.nodes:
        if node.kind not in CALLS:
            continue
        if node.kind == "workflow" and node.graph.owner is not None:
            message = "workflow is not possible inside a loop_group"
            hint = f"write include: {node.value['workflow']}"
            at = (*node.path, "workflow")
            yield document.error("unsupported-here", message, at=at, on_key=True, hint=hint)
        if "arguments" in node.value and "input" in node.value:
            message, at = "arguments and input exclude each other", (*node.path, "input")
            yield document.error("mutually-exclusive", message, at=at, on_key=True)
        if "inputs" in node.value and "with" in node.value:
            message, at = "inputs and with are the same: write with", (*node.path, "inputs")
            yield document.error("mutually-exclusive", message, at=at, on_key=True)
        yield from _items(document, node, unit.made.item)
        yield from _hidden(document, node, unit.made.item)
    for node in unit.calls():
        below = unit.below[node.path]
        yield from _inputs(document, node, below)
        if "fan_out" in node.value:
            yield from _name(document, node, below)
            yield from _pauses(document, node, below)
            yield from _budget(document, node, below)


def _budget(document: Document, node: NodeAt, below: Unit) -> Iterator[Diagnostic]:
    """A budget of each item is one of all of them here."""
    if node.kind == "workflow" and below.flow is not None and below.flow.budget is not None:
        message = f"the budget of {below.flow.name[:60]} holds for all items together"
        hint = "raise it, or give this workflow a budget"
        at = (*node.path, "workflow")
        yield document.warning("shared-budget", message, at=at, hint=hint)


# -- for each item of a list -----------------------------------------------------------------------


def list_ref(text: str, item: str | None) -> Ref | None:
    """What leads to a list, if a text is that and nothing else."""
    found = marks(text.strip(), item)
    if len(found) != 1 or found[0].escaped or found[0].written != text.strip():
        return None
    ref = found[0].ref
    if ref.of == "output":  # the list itself, not its text
        return Ref(of="result", name=ref.name)
    return ref if ref.of in _LISTS else None


def literal_list(text: str) -> list[JsonValue] | None:
    """The list that a text writes out as JSON."""
    try:
        found: JsonValue = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, list) and len(found) <= MAX_ITEMS else None


def _items(document: Document, node: NodeAt, item: str | None) -> Iterator[Diagnostic]:
    items = node.part("fan_out").get("items")
    if not isinstance(items, str) or literal_list(items) is not None:
        return
    if list_ref(items, item) is None:
        message = f'"{items[:60]}" is not a list'
        hint = "write a list, or $ID.output or $ID.output.FIELD of a node that gives one"
        yield document.error("not-a-list", message, at=(*node.path, "fan_out", "items"), hint=hint)


def _hidden(document: Document, node: NodeAt, item: str | None) -> Iterator[Diagnostic]:
    """Of two items only the inner one can be read where both would be."""
    own = item_name(node)
    if item is None or own is None or own == item:
        return
    told: Mapping = {key: node.value[key] for key in ("arguments", "input") if key in node.value}
    key = "with" if "with" in node.value else "inputs"
    for name, text in (told | node.part(key)).items():
        at = (*node.path, name) if name in told else (*node.path, key, name)
        found = marks(text, item) if isinstance(text, str) else []
        if any(mark.ref.of == "item" and not mark.escaped for mark in found):
            message = f"${item} cannot be read beside ${own}"
            hint = f"hand {item} as an input to a workflow in between, which has the fan_out"
            yield document.error("unknown-reference", message, at=at, hint=hint)


def _name(document: Document, node: NodeAt, below: Unit) -> Iterator[Diagnostic]:
    """The item must not hide a node of the workflow that reads it."""
    name = item_name(node)
    written = "as" in node.part("fan_out")
    at = (*node.path, "fan_out", "as") if written else (*node.path, "fan_out")
    if name in RESERVED_IDS:
        message = f"{name} is the name of a variable"
        yield document.error("bad-name", message, at=at, hint=f"as: {DEFAULT_ITEM}")
    elif any(one.id == name for one in below.made.nodes):
        message = f"{below.document.file} has a node that is called {name} too"
        yield document.error("bad-name", message, at=at, hint="as: another name")


def _pauses(document: Document, node: NodeAt, below: Unit) -> Iterator[Diagnostic]:
    """Nobody can be asked by many at once, and none may end the others."""
    for unit in (below, *below.all_below()):
        for one in unit.made.nodes:
            place = f"{unit.document.file}:{unit.document.at(one.path).line}"
            at = (*node.path, node.kind or "workflow")
            if _asks(one):
                message = f"{one.id} asks a person ({place}), which a fan_out cannot wait for"
                hint = "ask before or after it, in this workflow"
                yield document.error("pauses-in-fan-out", message, at=at, hint=hint)
            elif one.kind == "cancel":
                message = f"{one.id} ends the run ({place}), and so would end its siblings"
                hint = "let a script fail instead: bash: exit 1"
                yield document.error("pauses-in-fan-out", message, at=at, hint=hint)


def _asks(node: NodeAt) -> bool:
    loops = (node.part("loop"), node.part("loop_group"))
    asks = node.kind == "approval" or (node.kind == "wait" and not waits_for_time(node))
    return asks or any(one.get("interactive") is True for one in loops)


def waits_for_time(node: NodeAt) -> bool:
    """Whether a wait ends by itself."""
    return not {"event", "attention"} & set(node.part("wait"))


# -- inputs ----------------------------------------------------------------------------------------


def _inputs(document: Document, node: NodeAt, below: Unit) -> Iterator[Diagnostic]:
    """A workflow that declares no inputs takes any."""
    key = "with" if "with" in node.value else "inputs"
    given, declared = node.part(key), below.made.inputs
    for name in given if declared else ():
        if name not in declared:
            message = f"{below.document.file} has no input {name}"
            hint = meant(name, declared)
            at = (*node.path, key, name)
            yield document.error("unknown-input", message, at=at, on_key=True, hint=hint)
    has = given_inputs(node)
    missing = [name for name, one in declared.items() if name not in has and _is_needed(one)]
    if missing:
        message = f"{below.document.file} needs the input {missing[0]}"
        at = (*node.path, node.kind or "workflow")
        hint = f"with: {{{missing[0]}: VALUE}}"
        yield document.error("missing-input", message, at=at, hint=hint)


def _is_needed(entry: object) -> bool:
    if not isinstance(entry, dict):
        return False
    required = entry.get("required")
    return entry.get("default") is None if required is None else required is True
