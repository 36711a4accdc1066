"""The composer of document trees, with the limits that YAML and JSON share, and the scalars of
YAML 1.2.

It is iterative: the depth of the input must never be the depth of the Python stack.
"""

import math
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from loopwright.syntax.document import (
    MAX_PROBLEMS,
    Diagnostic,
    DocumentNode,
    Field,
    SourceText,
    Value,
    clip,
    name_character,
    show,
    unstorable,
)

MAX_DEPTH = 32
MAX_NODES = 10_000


@dataclass(slots=True)
class _Frame:
    """A mapping or list that is still open."""

    node: DocumentNode
    count_before: int
    wants_value: bool = False
    key: str | None = None  # None: the key was rejected, and its value is dropped
    key_offset: int = 0
    is_merge: bool = False  # the value that comes next is merged
    merged: list[DocumentNode] = field(default_factory=list)  # mappings, the first one wins


class Composer:
    """Takes nodes in the order of the text; `root` is the finished tree."""

    def __init__(self, source: SourceText) -> None:
        self.root: DocumentNode | None = None
        self.problems: list[Diagnostic] = []
        self._source = source
        self._stack: list[_Frame] = []
        self._count = 0

    @property
    def wants_key(self) -> bool:
        """Whether the next node is the key of a mapping."""
        top = self._stack[-1] if self._stack else None
        return top is not None and isinstance(top.node.value, dict) and not top.wants_value

    def inside(self, node: DocumentNode) -> bool:
        """Whether `node` is one of the mappings and lists that have not ended yet."""
        return any(frame.node is node for frame in self._stack)

    def note(self, offset: int, code: str, message: str, *, hint: str | None = None) -> None:
        """Record a problem and continue reading, to find the others."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(self._source.problem(offset, code, message, hint=hint))

    def open(self, value: dict[str, Value] | list[Value], offset: int) -> DocumentNode:
        """Start an (empty) mapping or list."""
        self._weigh(offset, depth=1, size=1)
        node = DocumentNode(value, offset, height=1)
        self._stack.append(_Frame(node, self._count - 1))
        return node

    def close(self) -> None:
        """End the mapping or list that was opened last."""
        frame = self._stack.pop()
        for mapping in frame.merged:
            _add_missing(frame.node, mapping)
        frame.node.size = self._count - frame.count_before
        self._attach(frame.node)

    def scalar(self, value: Value, offset: int) -> DocumentNode:
        """Add a value without parts."""
        self._weigh(offset, depth=0, size=1)
        if isinstance(value, str):
            bad = unstorable(value)
            if bad is not None:
                message = f"{name_character(bad)} cannot be part of a text"
                self.note(offset, "bad-character", message)
        node = DocumentNode(value, offset)
        self._attach(node)
        return node

    def merge_key(self, offset: int) -> DocumentNode:
        """Take the key `<<` of a mapping: its value is a mapping, or a list of mappings, whose
        fields the mapping gets where it does not set them itself.
        """
        self._weigh(offset, depth=0, size=1)
        frame = self._stack[-1]
        frame.wants_value, frame.key, frame.is_merge = True, None, True
        return DocumentNode("<<", offset)

    def repeat(self, node: DocumentNode, offset: int) -> DocumentNode:
        """Add a copy of a finished node: it counts as if it were written out."""
        self._weigh(offset, depth=node.height, size=node.size)
        again = DocumentNode(
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

    def _attach(self, node: DocumentNode) -> None:
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
            if frame.is_merge:
                frame.is_merge = False
                frame.merged += self._mappings(node)
            elif frame.key is not None and isinstance(parent.value, dict):
                parent.value[frame.key] = node.value
                parent.fields[frame.key] = Field(frame.key_offset, node)

    def _mappings(self, node: DocumentNode) -> list[DocumentNode]:
        """The mappings that a merge key names."""
        found = node.items if isinstance(node.value, list) else [node]
        if all(isinstance(one.value, dict) for one in found):
            return found
        message = "<< takes a mapping, or a list of mappings"
        self.note(node.offset, "wrong-type", message, hint="write <<: *NAME for an anchor &NAME")
        return []

    def _key(self, parent: DocumentNode, node: DocumentNode) -> str | None:
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


def _add_missing(node: DocumentNode, mapping: DocumentNode) -> None:
    """Add the fields of `mapping` that `node` does not have."""
    if not isinstance(node.value, dict) or not isinstance(mapping.value, dict):
        return
    for key, found in mapping.fields.items():
        if key not in node.fields:
            node.value[key] = _copy(mapping.value[key])
            node.fields[key] = found


def _copy(value: Value) -> Value:
    # Recursive, but never deeper than MAX_DEPTH: it copies what has been measured.
    if isinstance(value, dict):
        return {key: _copy(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_copy(one) for one in value]
    return value


_FIRST = frozenset("-+.0123456789~nNtTfF")
_YAML_WORDS: dict[str, bool | None] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_DECIMAL = re.compile(r"[-+]?[0-9]+")
_PREFIXED = re.compile(r"0o(?P<oct>[0-7]+)|0x(?P<hex>[0-9a-fA-F]+)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_YAML_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")

MIN_INT = -(2**63)
MAX_INT = 2**63 - 1
# No 64-bit number has more digits in any base used here (octal: 21 and the one that fails).
_MOST_DIGITS = 22


class BadScalar(NamedTuple):
    """A number that is not allowed in a definition."""

    code: str
    message: str


def resolve(text: str) -> str | int | float | bool | BadScalar | None:
    """The value of a plain YAML scalar."""
    if text and text[0] not in _FIRST:
        return text
    if text in _YAML_WORDS:
        return _YAML_WORDS[text]
    if _DECIMAL.fullmatch(text):
        return whole(text)
    if _FLOAT.fullmatch(text):
        return fraction(text)
    prefixed = _PREFIXED.fullmatch(text)
    if prefixed:
        digits, base = (prefixed["oct"], 8) if prefixed["oct"] else (prefixed["hex"], 16)
        return whole(digits, base=base)
    return not_finite(text) if _YAML_NOT_FINITE.fullmatch(text) else text


def whole(text: str, *, base: int = 10) -> int | BadScalar:
    """A whole number that fits 64 bits, or the reason why not."""
    # Counting first: converting very long numbers is slow and limited by the interpreter.
    digits = text.lstrip("+-").lstrip("0") or "0"
    if len(digits) <= _MOST_DIGITS:
        value = int(digits, base) * (-1 if text.startswith("-") else 1)
        if MIN_INT <= value <= MAX_INT:
            return value
    how = "small" if text.startswith("-") else "large"
    return BadScalar("out-of-range", f"{clip(text)} is too {how} for a number of a definition")


def fraction(text: str) -> float | BadScalar:
    """A floating-point number, unless it is too large."""
    value = float(text)
    return value if math.isfinite(value) else not_finite(text)


def not_finite(text: str) -> BadScalar:
    """The refusal of infinity and not-a-number."""
    return BadScalar("not-finite", f"{clip(text)} is not a finite number")
