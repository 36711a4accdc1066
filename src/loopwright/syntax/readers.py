"""Readers of YAML 1.2 and JSON: from bytes to a document with positions.

YAML: only the event stream of the library is used. It neither constructs objects nor follows
aliases, so tags, anchors, keys and limits are decided here. Plain words follow the core schema
of YAML 1.2, which contains JSON's numbers: unlike YAML 1.1 there are no yes/no/on/off, no
sexagesimal numbers and no octal `010`.

JSON: strings are scanned by the standard library, in C; the structure is read here, because the
standard library has no positions, duplicate keys or depth limit.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Optional

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    ScalarEvent,
)

from loopwright.syntax.composer import BadScalar, Composer, fraction, not_finite, resolve, whole
from loopwright.syntax.document import (
    Diagnostic,
    Document,
    DocumentNode,
    ReadingStopped,
    SourceText,
    Value,
    clip,
    decode,
    in_order,
    name_character,
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
    """The tree of a JSON text; where it cannot be read to its end, without a root."""
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


Loader = type[yaml.SafeLoader] | type["yaml.CSafeLoader"]

# The parser on libyaml is some twenty times faster; both give the same events.
FASTEST: Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_CORE = "tag:yaml.org,2002:"
_SCALAR_TAGS = frozenset({"str", "int", "float", "bool", "null"})
_USE_SPACES = "use spaces"
_HINTS = {
    "mapping values are not allowed": "put quotes around text that contains ': '",
    "cannot start any token": "put quotes around text that starts with this character",
}


def compose_yaml(source: SourceText, *, loader: Loader = FASTEST) -> Composer:
    """The tree of a YAML text; where it cannot be read to its end, without a root."""
    reader = _Reader(source)
    try:
        _refuse_old_line_ends(source)
        for event in _events(source, loader):
            reader.take(event)
    except ReadingStopped as refusal:
        reader.composer.root = None
        reader.composer.problems.append(refusal.diagnostic)
    return reader.composer


class _Reader:
    """Turns events into nodes, one at a time."""

    def __init__(self, source: SourceText) -> None:
        self.composer = Composer(source)
        self._source = source
        self._anchors: dict[str, DocumentNode] = {}
        self._documents = 0

    def take(self, event: Event) -> None:
        at = event.start_mark.index if event.start_mark else 0
        match event:
            case ScalarEvent():
                self._remember(event.anchor, self._scalar(event, at))
            case CollectionStartEvent():
                self._check_collection_tag(event, at)
                node = self.composer.open({} if isinstance(event, MappingStartEvent) else [], at)
                self._remember(event.anchor, node)
            case CollectionEndEvent():
                self.composer.close()
            case AliasEvent():
                self._alias(event.anchor or "", at)
            case DocumentStartEvent():
                self._count_document(at)

    def _count_document(self, at: int) -> None:
        self._documents += 1
        if self._documents > 1:
            message = "a second document begins here; a definition is one document"
            hint = "remove the line ---, or put the second one into a file of its own"
            raise self._source.refusal(at, "multiple-documents", message, hint=hint)

    def _remember(self, anchor: str | None, node: DocumentNode) -> None:
        if anchor is not None:
            self._anchors[anchor] = node

    def _alias(self, name: str, at: int) -> None:
        node = self._anchors.get(name)
        if node is None:
            message = f"alias *{clip(name)} has no anchor &{clip(name)} before it"
            raise self._source.refusal(at, "yaml-syntax", message)
        if self.composer.inside(node):
            message = f"alias *{clip(name)} is inside its own anchor"
            raise self._source.refusal(at, "yaml-cycle", message)
        self.composer.repeat(node, at)

    def _check_collection_tag(self, event: CollectionStartEvent, at: int) -> None:
        fitting = _CORE + ("map" if isinstance(event, MappingStartEvent) else "seq")
        if event.tag not in (None, fitting):
            self._refuse_tag(event.tag, at)

    def _refuse_tag(self, tag: str, at: int) -> None:
        known = tag.startswith(_CORE)
        shown = "!!" + tag.removeprefix(_CORE) if known else tag
        hint = (
            "remove the tag; only plain text, numbers, true, false, null, maps and lists are read"
        )
        self.composer.note(at, "yaml-tag", f"{clip(shown)} is not allowed here", hint=hint)

    def _scalar(self, event: ScalarEvent, at: int) -> DocumentNode:
        plain = event.implicit[0] and not event.style
        if plain and event.value == "<<" and self.composer.wants_key:
            message = "merge keys (<<) are off"
            raise self._source.refusal(at, "too-complex", message, hint="write the fields out")
        if event.tag is None:
            value = resolve(event.value) if plain else event.value
        else:
            value = self._tagged(event.tag, event.value, at)
        if isinstance(value, BadScalar):
            self.composer.note(at, value.code, value.message)
            value = None
        return self.composer.scalar(value, at)

    def _tagged(self, tag: str, text: str, at: int) -> str | int | float | bool | BadScalar | None:
        name = tag.removeprefix(_CORE)
        if not tag.startswith(_CORE) or name not in _SCALAR_TAGS:
            self._refuse_tag(tag, at)
            return None
        if name == "str":
            return text
        value = resolve(text)
        if name == "float" and type(value) is int:
            return fraction(text)
        fits = {"int": int, "float": float, "bool": bool, "null": type(None)}[name]
        if type(value) is not fits and not isinstance(value, BadScalar):
            return BadScalar("yaml-tag", f"{show(text)} is not what its tag !!{name} says")
        return value


def _refuse_old_line_ends(source: SourceText) -> None:
    # The parsers end a line at these two, YAML 1.2 and every editor do not.
    found = re.search("[\u2028\u2029]", source.text)
    if found:
        message = f"{name_character(found[0])} cannot be read in YAML"
        raise source.refusal(
            found.start(), "bad-character", message, hint="use an ordinary line end"
        )


def _events(source: SourceText, loader: Loader) -> Iterator[Event]:
    try:
        yield from yaml.parse(source.text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        raise _syntax_refusal(source, error) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # What the two parsers throw beside their own errors, e.g. for an escape past Unicode.
        raise source.refusal(0, "yaml-syntax", clip(str(error))) from None


def _syntax_refusal(source: SourceText, error: yaml.MarkedYAMLError) -> ReadingStopped:
    problem = error.problem or error.context or "cannot be read"
    mark = error.problem_mark or error.context_mark
    at = min(mark.index, len(source.text)) if mark else 0
    in_flow = "flow" in (error.context or "")  # where tabs are as good as spaces
    tab = None if in_flow else _tab_before(source.text, at)
    if tab is not None:
        return source.refusal(tab, "yaml-syntax", "a tab cannot indent", hint=_USE_SPACES)
    if "Unicode character escape" in problem:
        hint = "write the character itself, or its full code as \\U0001F600"
        return source.refusal(at, "bad-character", problem, hint=hint)
    if "tag handle" in problem:
        return source.refusal(at, "yaml-tag", problem, hint="remove the tag")
    known = next((hint for part, hint in _HINTS.items() if part in problem), None)
    return source.refusal(at, "yaml-syntax", _with_context(error, problem), hint=known)


def _with_context(error: yaml.MarkedYAMLError, problem: str) -> str:
    where = error.context_mark
    if not error.context or where is None or error.context == problem:
        return problem
    return f"{problem} {error.context} that begins on line {where.line + 1}"


def _tab_before(text: str, at: int) -> int | None:
    """The tab that indents the line of `at`, or that stands there in place of spaces."""
    start = text.rfind("\n", 0, at) + 1
    line = text[start : at + 1]
    if text[at : at + 1] == "\t":
        return at
    blank = len(line) - len(line.lstrip(" \t"))
    tab = line.find("\t", 0, blank)
    return start + tab if tab >= 0 else None


DEFAULT_LIMIT = 262_144


def read(
    data: bytes, *, file: str, limit: int = DEFAULT_LIMIT
) -> tuple[Document | None, list[Diagnostic]]:
    """The document, or what is wrong with the text; `file` is the name used in messages."""
    if len(data) > limit:
        message = f"the file has {len(data):,} bytes; at most {limit:,} are read"
        return None, [Diagnostic(file, 1, 1, "too-large", message)]
    try:
        source = decode(data, file=file)
    except ReadingStopped as refusal:
        return None, [refusal.diagnostic]
    composer = _compose(source)
    root = composer.root
    if composer.problems:
        return None, in_order(composer.problems)
    if root is None or root.value is None:
        message = "the file is empty, or has nothing but comments"
        return None, [source.problem(0, "empty-definition", message)]
    return Document(root.value, file, source, root), []


def _compose(source: SourceText) -> Composer:
    """A JSON file is read as JSON; other files too if they are, else as YAML."""
    if source.text.lstrip()[:1] not in ("{", "["):
        return compose_yaml(source)
    composer = compose_json(source)
    if source.file.lower().endswith(".json") or not composer.problems:
        return composer
    return compose_yaml(source)
