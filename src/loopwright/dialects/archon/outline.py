"""The outline of a workflow as it was written, even if it is invalid: nodes, graphs, texts.

Rules between keys use this outline, so that one wrong value does not hide all other problems.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from loopwright.dialects.archon import files
from loopwright.dialects.archon.surface import is_file_name
from loopwright.dialects.archon.variables import FIELD_PATTERN
from loopwright.syntax.step_references import needs_of

Path: TypeAlias = tuple[str | int, ...]
Mapping: TypeAlias = dict[str, object]

KINDS = (
    "prompt",
    "command",
    "bash",
    "script",
    "approval",
    "cancel",
    "loop",
    "loop_group",
    "workflow",
    "include",
    "wait",
)
CALLS = ("workflow", "include")
"""Kinds of node that name another workflow."""
DEFAULT_ITEM = "item"
_LOOPS = ("loop", "loop_group")
_NAME = re.compile(FIELD_PATTERN)


@dataclass(slots=True)
class NodeAt:
    """A node and its position."""

    path: Path
    value: Mapping
    graph: "NodeGraph"
    body: "NodeGraph | None" = None  # of a loop_group
    id: str = field(init=False)  # empty if there is none
    kind: str | None = field(init=False)  # its kind, if that is clear
    needs: list[str] = field(init=False)  # the nodes before it
    before: set[str] | None = None  # all of them, computed on first use

    def __post_init__(self) -> None:
        name = self.value.get("id")
        kinds = [key for key in KINDS if key in self.value]
        self.id = name if isinstance(name, str) else ""
        self.kind = kinds[0] if len(kinds) == 1 else None
        self.needs = needs_of(self.value, "depends_on")

    def part(self, key: str) -> Mapping:
        """A mapping below it; empty if there is none."""
        found = self.value.get(key)
        return found if isinstance(found, dict) else {}


@dataclass(slots=True)
class NodeGraph:
    """Nodes that may depend on one another: those of the workflow, or of a group."""

    owner: NodeAt | None = None
    depth: int = 0
    nodes: list[NodeAt] = field(default_factory=list)
    by_id: dict[str, NodeAt] = field(default_factory=dict)  # of two with the same, the first

    def add(self, node: NodeAt) -> None:
        """One more node."""
        self.nodes.append(node)
        if node.id:
            self.by_id.setdefault(node.id, node)


class Site(NamedTuple):
    """A text that may contain variables."""

    path: Path
    text: str
    node: NodeAt
    kind: Literal["prose", "shell", "script", "when"]
    in_iteration: bool = False  # it is filled again in each iteration of the node's own loop
    rejects: bool = False  # it is for the work after a rejection
    file: str | None = None
    item: str | None = None  # the name of the item of a list in it


@dataclass(slots=True)
class ArchonOutline:
    """All of it."""

    top: Mapping
    item: str | None = None  # the name of the item for which the workflow runs
    beside: str = files.BESIDE  # the folder of its file
    given: frozenset[str] | None = None  # the inputs that the node which runs it gives a value
    graphs: list[NodeGraph] = field(default_factory=list)

    @property
    def nodes(self) -> list[NodeAt]:
        """Every node in the order of the file."""
        return [node for graph in self.graphs for node in graph.nodes]

    @property
    def is_root(self) -> bool:
        """Whether a person runs it, and not a node of another workflow."""
        return self.given is None

    @property
    def inputs(self) -> Mapping:
        """The inputs by name."""
        found = self.top.get("inputs")
        return found if isinstance(found, dict) else {}


def outline(
    value: object,
    item: str | None = None,
    beside: str = files.BESIDE,
    given: frozenset[str] | None = None,
) -> ArchonOutline:
    """The outline of a document."""
    made = ArchonOutline(value if isinstance(value, dict) else {}, item, beside, given)
    todo: list[tuple[NodeGraph, Path, object]] = [(NodeGraph(), ("nodes",), made.top.get("nodes"))]
    for graph, path, nodes in todo:  # grows while it is walked
        made.graphs.append(graph)
        for number, one in enumerate(nodes if isinstance(nodes, list) else ()):
            if not isinstance(one, dict):
                continue
            node = NodeAt((*path, number), one, graph)
            graph.add(node)
            group = node.part("loop_group")
            if "loop_group" in one:
                node.body = NodeGraph(node, graph.depth + 1)
                below = (*node.path, "loop_group", "nodes")
                todo.append((node.body, below, group.get("nodes")))
    return made


def sites(made: ArchonOutline, given: files.Files) -> Iterator[Site]:
    """Every text of a workflow, also those in files of their own."""
    for node in made.nodes:
        for path, kind in _PLACES:
            holder = node.part(path[0]) if len(path) > 1 else node.value
            holder = _below(holder, path[1:-1])
            text = holder.get(path[-1])
            if isinstance(text, str):
                in_iteration = path[0] in _LOOPS and len(path) > 1
                rejects = "on_reject" in path
                where = (*node.path, *path)
                yield Site(where, text, node, kind, in_iteration, rejects, item=made.item)
        yield from _source_sites(node, made)
        yield from _file_sites(node, given, made)


def _source_sites(node: NodeAt, made: ArchonOutline) -> Iterator[Site]:
    """The message to another workflow; if it runs for each item, it contains the item."""
    item = item_name(node) or made.item
    sources: list[tuple[tuple[str, ...], object]] = [
        ((key,), node.value.get(key)) for key in ("arguments", "input")
    ]
    for key in ("inputs", "with"):
        sources += [((key, name), one) for name, one in node.part(key).items()]
    sources = [
        ((*path, "from"), one["from"]) if isinstance(one, dict) and "from" in one else (path, one)
        for path, one in sources
    ]
    for path, text in sources:
        if isinstance(text, str):
            yield Site((*node.path, *path), text, node, "prose", item=item)


def own_ids(node: NodeAt) -> set[str]:
    """The ids that mean a node itself and the groups around it in its texts."""
    found: set[str] = set()
    seen: set[str] = set(node.body.by_id) if node.body is not None else set()
    one: NodeAt | None = node
    while one is not None:
        if one.id not in seen:
            found.add(one.id)
        seen |= set(one.graph.by_id)
        one = one.graph.owner
    return found


def item_name(node: NodeAt) -> str | None:
    """The name of the item if a node runs a workflow for each item of a list."""
    if "fan_out" not in node.value:
        return None
    name = node.part("fan_out").get("as", DEFAULT_ITEM)
    return name if isinstance(name, str) and _NAME.fullmatch(name) else DEFAULT_ITEM


def _below(holder: Mapping, path: tuple[str, ...]) -> Mapping:
    for key in path:
        found = holder.get(key)
        holder = found if isinstance(found, dict) else {}
    return holder


_PLACES: tuple[tuple[tuple[str, ...], Literal["prose", "shell", "script", "when"]], ...] = (
    (("when",), "when"),
    (("prompt",), "prose"),
    (("bash",), "shell"),
    (("script",), "script"),
    (("cancel",), "prose"),
    (("approval", "message"), "prose"),
    (("approval", "on_reject", "prompt"), "prose"),
    (("loop", "prompt"), "prose"),
    (("loop", "gate_message"), "prose"),
    (("loop", "until_bash"), "shell"),
    (("loop_group", "gate_message"), "prose"),
    (("loop_group", "until_bash"), "shell"),
    (("fan_out", "items"), "prose"),
    (("wait", "until"), "prose"),
    (("wait", "attention"), "prose"),
)


def named_files(node: NodeAt, made: ArchonOutline) -> Iterator[tuple[Path, files.NamedFile]]:
    """The files that a node names, each with the place of its name."""
    for path in (("command",), ("loop", "command")):
        holder = node.part("loop") if len(path) > 1 else node.value
        name = holder.get("command")
        if isinstance(name, str) and is_file_name(name):
            yield (*node.path, *path), files.command(name, made.beside)
    text, runtime = node.value.get("script"), node.value.get("runtime")
    if isinstance(text, str) and is_file_name(text) and runtime in ("uv", "bun"):
        yield (*node.path, "script"), files.script(text, str(runtime), made.beside)
    for key in CALLS:
        name = node.value.get(key)
        if isinstance(name, str) and is_file_name(name):
            yield (*node.path, key), files.workflow(name, made.beside)


def given_inputs(node: NodeAt) -> frozenset[str]:
    """The inputs that a node gives to what it runs."""
    names = {*node.part("inputs"), *node.part("with")}
    as_ = node.part("fan_out").get("as")
    return frozenset(names | {as_} if isinstance(as_, str) else names)


def _file_sites(node: NodeAt, given: files.Files, made: ArchonOutline) -> Iterator[Site]:
    for path, named in named_files(node, made):
        found = files.find(named, given)
        if isinstance(found, files.FoundText) and named.what != "workflow":
            kind: Literal["prose", "script"] = "prose" if named.what == "command" else "script"
            in_iteration = "loop" in path
            shown = files.shown_path(found.path)
            yield Site(path, found.text, node, kind, in_iteration, file=shown, item=made.item)
