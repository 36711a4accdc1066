"""Builds the node tree, for YAML and JSON alike, and holds the limits that both share.

Iterative on purpose: the depth of the input is never the depth of the Python stack.
"""

from dataclasses import dataclass

from loopwright.syntax.characters import name_character, unstorable
from loopwright.syntax.diagnostic import MAX_PROBLEMS, Diagnostic
from loopwright.syntax.document import Field, Node, Value
from loopwright.syntax.source import Source
from loopwright.syntax.words import clip, show

MAX_DEPTH = 32
MAX_NODES = 10_000


@dataclass(slots=True)
class _Frame:
    """A mapping or list that is still open."""

    node: Node
    count_before: int
    wants_value: bool = False
    key: str | None = None  # None: the key was refused, its value goes nowhere
    key_offset: int = 0


class Composer:
    """Takes nodes in the order of the text; `root` is the finished tree."""

    def __init__(self, source: Source) -> None:
        self.root: Node | None = None
        self.problems: list[Diagnostic] = []
        self._source = source
        self._stack: list[_Frame] = []
        self._count = 0

    @property
    def wants_key(self) -> bool:
        """Whether the next node is the key of a mapping."""
        top = self._stack[-1] if self._stack else None
        return top is not None and isinstance(top.node.value, dict) and not top.wants_value

    def inside(self, node: Node) -> bool:
        """Whether `node` is one of the mappings and lists that have not ended yet."""
        return any(frame.node is node for frame in self._stack)

    def note(self, offset: int, code: str, message: str, *, hint: str | None = None) -> None:
        """Record a problem and go on reading, to find the others."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(self._source.problem(offset, code, message, hint=hint))

    def open(self, value: dict[str, Value] | list[Value], offset: int) -> Node:
        """Begin an (empty) mapping or list."""
        self._weigh(offset, depth=1, size=1)
        node = Node(value, offset, height=1)
        self._stack.append(_Frame(node, self._count - 1))
        return node

    def close(self) -> None:
        """End what was opened last."""
        frame = self._stack.pop()
        frame.node.size = self._count - frame.count_before
        self._attach(frame.node)

    def scalar(self, value: Value, offset: int) -> Node:
        """Add a value that has no parts."""
        self._weigh(offset, depth=0, size=1)
        if isinstance(value, str):
            bad = unstorable(value)
            if bad is not None:
                message = f"{name_character(bad)} cannot be part of a text"
                self.note(offset, "bad-character", message)
        node = Node(value, offset)
        self._attach(node)
        return node

    def repeat(self, node: Node, offset: int) -> Node:
        """Add a copy of a finished node: it counts as if it were written out."""
        self._weigh(offset, depth=node.height, size=node.size)
        again = Node(
            _copy(node.value), offset, node.size, node.height, fields=node.fields, items=node.items
        )
        self._attach(again)
        return again

    def _weigh(self, offset: int, *, depth: int, size: int) -> None:
        if len(self._stack) + depth > MAX_DEPTH:
            message = f"mappings and lists are nested more than {MAX_DEPTH} deep"
            raise self._source.refusal(offset, "too-deep", message)
        self._count += size
        if self._count > MAX_NODES:
            message = f"more than {MAX_NODES:,} keys and values, counting what aliases repeat"
            raise self._source.refusal(offset, "too-complex", message)

    def _attach(self, node: Node) -> None:
        if not self._stack:
            self.root = node
            return
        frame = self._stack[-1]
        parent = frame.node
        parent.height = max(parent.height, node.height + 1)
        if isinstance(parent.value, list):
            parent.value.append(node.value)
            parent.items.append(node)
        elif not frame.wants_value:
            frame.wants_value, frame.key = True, self._key(parent, node)
            frame.key_offset = node.offset
        else:
            frame.wants_value = False
            if frame.key is not None and isinstance(parent.value, dict):
                parent.value[frame.key] = node.value
                parent.fields[frame.key] = Field(frame.key_offset, node)

    def _key(self, parent: Node, node: Node) -> str | None:
        key = node.value
        if not isinstance(key, str):
            hint = None if isinstance(key, dict | list) else f'write "{show(key)}" in quotes'
            self.note(node.offset, "wrong-type", f"a key must be text, not {show(key)}", hint=hint)
            return None
        first = parent.fields.get(key)
        if first is None:
            return key
        lines = [self._source.position(at).line for at in (first.offset, node.offset)]
        where = f"on line {lines[0]} and again on line {lines[1]}"
        if lines[0] == lines[1]:
            where = f"twice on line {lines[0]}"
        message = f"{clip(key)} is set {where}"
        self.note(node.offset, "duplicate-key", message, hint="keep one of the two")
        return None


def _copy(value: Value) -> Value:
    # Recursive, but never deeper than MAX_DEPTH: it copies what has been weighed.
    if isinstance(value, dict):
        return {key: _copy(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_copy(one) for one in value]
    return value
