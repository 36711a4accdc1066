"""A value as read, with the place of each of its parts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeAlias

from loopwright.syntax.diagnostic import Diagnostic, Position
from loopwright.syntax.source import Source

Value: TypeAlias = "dict[str, Value] | list[Value] | str | int | float | bool | None"
Path: TypeAlias = Sequence[str | int]


def has(value: object, part: str | int) -> bool:
    """Whether one more step of a path can be taken from `value`."""
    if isinstance(value, dict):
        return isinstance(part, str) and part in value
    return isinstance(value, list) and isinstance(part, int) and 0 <= part < len(value)


@dataclass(slots=True)
class Node:
    """One value in the text; `offset` is where it starts, `size` counts it and all inside it."""

    value: Value
    offset: int
    size: int = 1
    height: int = 0
    fields: dict[str, "Field"] = field(default_factory=dict)
    items: list["Node"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Field:
    """A key of a mapping, and what it is set to."""

    offset: int
    node: Node


@dataclass(frozen=True, slots=True)
class Document:
    """A definition without syntax problems. Two that say the same have the same digest."""

    value: Value
    file: str
    _source: Source = field(repr=False, compare=False)
    _root: Node = field(repr=False, compare=False)

    @classmethod
    def plain(cls, value: Value, *, file: str) -> "Document":
        """For a value that was never text, such as command-line flags: all of it is at 1:1."""
        return cls(value, file, Source(file, ""), Node(value, 0))

    @property
    def digest(self) -> str:
        """Hash of the value alone: layout, comments, line ends and key order do not count."""
        text = json.dumps(self.value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return blake2b(text.encode("utf-8"), digest_size=32).hexdigest()

    def at(self, path: Path) -> Position:
        """Where the value at `path` starts, or the nearest part around it that exists."""
        node, _ = self._walk(path)
        return self._source.position(node.offset)

    def key_at(self, path: Path) -> Position:
        """Where the key that ends `path` stands; a list item has no key, so its value."""
        node, entry = self._walk(path)
        return self._source.position(entry.offset if entry else node.offset)

    def error(
        self,
        code: str,
        message: str,
        *,
        at: Path = (),
        on_key: bool = False,
        hint: str | None = None,
    ) -> Diagnostic:
        """A problem with the value at a path (or with its key)."""
        line, column = self.key_at(at) if on_key else self.at(at)
        return Diagnostic(self.file, line, column, code, message, hint)

    def warning(
        self, code: str, message: str, *, at: Path = (), hint: str | None = None
    ) -> Diagnostic:
        """Something doubtful about the value at a path."""
        line, column = self.at(at)
        return Diagnostic(self.file, line, column, code, message, hint, "warning")

    def _walk(self, path: Path) -> tuple[Node, Field | None]:
        """The deepest node on the path, and its key if all of the path exists and ends in one."""
        node, entry = self._root, None
        for part in path:
            entry = node.fields.get(part) if isinstance(part, str) else None
            if entry:
                node = entry.node
            elif isinstance(part, int) and 0 <= part < len(node.items):
                node = node.items[part]
            else:
                return node, None
        return node, entry
