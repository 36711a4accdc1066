"""Workflows in which a text reads a value: of a node, of an item, of what it was told."""

from collections.abc import Callable
from typing import TypeAlias

from loopwright.model.plan import Plan
from loopwright.syntax.document import Diagnostic
from tests.dialects.archon.reading import flow, lowered, lowered_with

Result: TypeAlias = tuple[Plan | None, list[Diagnostic]]
Reader: TypeAlias = Callable[[str], Result]


def source(node: str) -> str:
    return flow("{id: src, bash: ls}", node)


def of_node(node: str) -> Result:
    """A workflow in which a node reads what another said."""
    return lowered(source(node))


def of_item(node: str) -> Result:
    """The same with a field of an item, in a workflow that is run for each item of a list."""
    fan = "{id: fan, workflow: other, fan_out: {items: $ARGUMENTS, as: it}}"
    return lowered_with(flow(fan), {"other": source(node.replace("$src.output", "$it.value"))})


def of_whole_item(node: str) -> Result:
    """The same with the item itself."""
    fan = "{id: fan, workflow: other, fan_out: {items: $ARGUMENTS, as: it}}"
    return lowered_with(flow(fan), {"other": source(node.replace("$src.output", "$it"))})


def of_arguments(node: str) -> Result:
    """The same with what a workflow was told by another one."""
    call = "{id: call, workflow: other, arguments: $ARGUMENTS}"
    return lowered_with(flow(call), {"other": source(node.replace("$src.output", "$ARGUMENTS"))})


READERS: list[Reader] = [of_node, of_item, of_whole_item, of_arguments]


def named(reader: Reader) -> str:
    return reader.__name__
