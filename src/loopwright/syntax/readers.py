"""Readers of YAML 1.2 and JSON: from bytes to a document with positions.

YAML is read by `yaml_reader`, which is loaded when the first file needs it.

JSON: strings are scanned by the standard library, in C; the structure is read here, because the
standard library has no positions, duplicate keys or depth limit.
"""

import json
import re
from collections.abc import Callable
from typing import Optional

from loopwright.syntax.composer import BadScalar, Composer, fraction, not_finite, whole
from loopwright.syntax.document import (
    Diagnostic,
    Document,
    ReadingStopped,
    SourceText,
    Value,
    decode,
    in_order,
    show,
)

_BLANK = re.compile(r"[ \t\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORD = re.compile(r"-?\w+")
_JSON_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}
_JSON_NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})
_STRING_ERRORS = (
    ("Unterminated", "text without its closing quote"),
    ("control character", "a line end or control character in text must be escaped"),
    ("escape", "unknown escape in text"),
)
_DECODER = json.JSONDecoder()

_Step = Callable[[], Optional["_Step"]]


def compose_json(source: SourceText) -> Composer:
    """The tree of a JSON text; without a root if it cannot be read to its end."""
    scanner = _Scanner(source)
    try:
        scanner.run()
    except ReadingStopped as refusal:
        scanner.composer.root = None
        scanner.composer.problems.append(refusal.diagnostic)
    return scanner.composer


class _Scanner:
    """Each step reads one token and returns the step that must follow."""

    def __init__(self, source: SourceText) -> None:
        self.composer = Composer(source)
        self._source = source
        self._text = source.text
        self._at = 0
        self._ends: list[str] = []

    def run(self) -> None:
        step: _Step | None = self._value
        while step is not None:
            self._skip_blank()
            step = step()
        self._skip_blank()
        if self._at < len(self._text):
            raise self._expected("the end of the file after the first value")

    def _skip_blank(self) -> None:
        blank = _BLANK.match(self._text, self._at)
        self._at = blank.end() if blank else self._at

    def _value(self) -> _Step | None:
        match self._text[self._at : self._at + 1]:
            case "{":
                return self._open({}, end="}", first=self._first_key)
            case "[":
                return self._open([], end="]", first=self._first_item)
            case '"':
                self._string()
            case _:
                self._word()
        return self._after_value()

    def _open(
        self, value: dict[str, Value] | list[Value], *, end: str, first: _Step
    ) -> _Step | None:
        self.composer.open(value, self._at)
        self._ends.append(end)
        self._at += 1
        return first

    def _close(self) -> _Step | None:
        self.composer.close()
        self._ends.pop()
        self._at += 1
        return self._after_value()

    def _after_value(self) -> _Step | None:
        return self._comma if self._ends else None

    def _first_item(self) -> _Step | None:
        return self._close() if self._text.startswith("]", self._at) else self._value()

    def _first_key(self) -> _Step | None:
        return self._close() if self._text.startswith("}", self._at) else self._key()

    def _key(self) -> _Step | None:
        if not self._text.startswith('"', self._at):
            raise self._expected("a key in double quotes")
        self._string()
        return self._colon

    def _colon(self) -> _Step | None:
        if not self._text.startswith(":", self._at):
            raise self._expected("':' after the key")
        self._at += 1
        return self._value

    def _comma(self) -> _Step | None:
        end = self._ends[-1]
        if self._text.startswith(end, self._at):
            return self._close()
        if not self._text.startswith(",", self._at):
            raise self._expected(f"',' or '{end}'")
        self._at += 1
        return self._key if end == "}" else self._value

    def _string(self) -> None:
        start = self._at
        try:
            value, self._at = _DECODER.raw_decode(self._text, start)
        except json.JSONDecodeError as error:
            message = next((text for part, text in _STRING_ERRORS if part in error.msg), error.msg)
            raise self._source.refusal(error.pos, "json-syntax", message) from None
        self.composer.scalar(value, start)

    def _word(self) -> None:
        start = self._at
        number = _NUMBER.match(self._text, start)
        word = _WORD.match(self._text, start)
        if number and not (word and word.end() > number.end()):
            parts = number[1] or number[2]
            value = fraction(number[0]) if parts else whole(number[0])
            self._at = number.end()
        elif word and word[0] in _JSON_NOT_FINITE:
            value, self._at = not_finite(word[0]), word.end()
        elif word and word[0] in _JSON_WORDS:
            self._at = word.end()
            self.composer.scalar(_JSON_WORDS[word[0]], start)
            return
        else:
            raise self._expected("a value")
        if isinstance(value, BadScalar):
            self.composer.note(start, value.code, value.message)
        self.composer.scalar(None if isinstance(value, BadScalar) else value, start)

    def _expected(self, what: str) -> ReadingStopped:
        char = self._text[self._at : self._at + 1]
        word = _WORD.match(self._text, self._at)
        found = f"not {show(word[0] if word else char)}" if char else "but the file ends here"
        hint = {
            "'": "JSON text needs double quotes",
            "/": "JSON has no comments",
            "#": "JSON has no comments",
            "}": "no comma before it" if self._text[: self._at].rstrip().endswith(",") else None,
            "]": "no comma before it" if self._text[: self._at].rstrip().endswith(",") else None,
        }.get(char)
        message = f"expected {what}, {found}"
        return self._source.refusal(self._at, "json-syntax", message, hint=hint)


DEFAULT_LIMIT = 262_144


_JSON_OBJECT = re.compile(r"\s*(?:\[\s*)?\{\s*\"")


def read(
    data: bytes, *, file: str, limit: int = DEFAULT_LIMIT, merge_keys: bool = False
) -> tuple[Document | None, list[Diagnostic]]:
    """The document, or the problems of the text; `file` is the name used in messages.

    With `merge_keys`, `<<: *anchor` in a YAML mapping adds the fields that it does not set itself.
    """
    if len(data) > limit:
        message = f"the file has {len(data):,} bytes; at most {limit:,} are read"
        return None, [Diagnostic(file, 1, 1, "too-large", message)]
    try:
        source = decode(data, file=file)
    except ReadingStopped as refusal:
        return None, [refusal.diagnostic]
    composer = _compose(source, merge_keys=merge_keys)
    root = composer.root
    if composer.problems:
        return None, in_order(composer.problems)
    if root is None or root.value is None:
        message = "the file is empty, or contains only comments"
        return None, [source.problem(0, "empty-definition", message)]
    return Document(root.value, file, source, root), []


def _compose(source: SourceText, *, merge_keys: bool) -> Composer:
    """A JSON file is read as JSON; other files too if they are valid JSON, else as YAML. If a text
    is neither, but looks like JSON, its problems are those of JSON.
    """
    as_json = compose_json(source) if source.text.lstrip()[:1] in ("{", "[") else None
    if as_json and (source.file.lower().endswith(".json") or not as_json.problems):
        return as_json
    from loopwright.syntax.yaml_reader import compose_yaml  # noqa: PLC0415 - takes time to load

    as_yaml = compose_yaml(source, merge_keys=merge_keys)
    is_neither = as_json and as_yaml.root is None and _JSON_OBJECT.match(source.text)
    return as_json if as_json and is_neither else as_yaml
