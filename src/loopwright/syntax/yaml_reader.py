"""The reader of YAML 1.2: from text to a tree of nodes with positions.

Only the event stream of the library is used. It neither constructs objects nor follows aliases, so
tags, anchors, keys and limits are handled here. Plain scalars follow the core schema of YAML 1.2,
which contains JSON's numbers: unlike YAML 1.1 there are no yes/no/on/off, no sexagesimal numbers
and no octal `010`.
"""

import re
from collections.abc import Iterator

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

from loopwright.syntax.composer import BadScalar, Composer, fraction, resolve
from loopwright.syntax.document import (
    DocumentNode,
    ReadingStopped,
    SourceText,
    clip,
    name_character,
    show,
)

Loader = type[yaml.SafeLoader] | type["yaml.CSafeLoader"]

# The parser on libyaml is some twenty times faster; both produce the same events.
FASTEST: Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_CORE = "tag:yaml.org,2002:"
_SCALAR_TAGS = frozenset({"str", "int", "float", "bool", "null"})
_USE_SPACES = "use spaces"
_HINTS = {
    "mapping values are not allowed": "put quotes around text that contains ': '",
    "cannot start any token": "put quotes around text that starts with this character",
    "could not find expected ':'": "write NAME: VALUE, or indent the line if it continues a text",
    "did not find expected '-'": "indent the line like the others of its list item",
    "did not find expected key": "indent the line like the others of its mapping",
}
_UNCLOSED = "write the closing quote, or escape a quote inside of the text"


def compose_yaml(
    source: SourceText, *, loader: Loader = FASTEST, merge_keys: bool = False
) -> Composer:
    """The tree of a YAML text; without a root if it cannot be read to its end."""
    reader = _Reader(source, merge_keys=merge_keys)
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

    def __init__(self, source: SourceText, *, merge_keys: bool) -> None:
        self.composer = Composer(source)
        self._source = source
        self._merge_keys = merge_keys
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
            if self._merge_keys:
                return self.composer.merge_key(at)
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
    # The parsers end a line at these two characters, YAML 1.2 and every editor do not.
    found = re.search("[\u2028\u2029]", source.text)
    if found:
        message = f"{name_character(found[0])} cannot be read in YAML"
        raise source.refusal(
            found.start(), "bad-character", message, hint="use an ordinary line end"
        )


def _events(source: SourceText, loader: Loader) -> Iterator[Event]:
    last: Event | None = None
    try:
        for event in yaml.parse(source.text, Loader=loader):
            last = event
            yield event
    except yaml.MarkedYAMLError as error:
        raise _late_quote(source, error, last) or _syntax_refusal(source, error) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # Other exceptions of the two parsers, e.g. for an escape past Unicode.
        raise source.refusal(0, "yaml-syntax", clip(str(error))) from None


def _late_quote(
    source: SourceText, error: yaml.MarkedYAMLError, last: Event | None
) -> ReadingStopped | None:
    """The problem of a text whose closing quote is missing, so that the next quote of the file, on
    a later line, ends it.
    """
    if not isinstance(last, ScalarEvent) or last.style not in ('"', "'"):
        return None
    begin, end, found = last.start_mark, last.end_mark, error.problem_mark
    if begin is None or end is None or begin.line == end.line:
        return None
    if found is None or found.line != end.line:
        return None
    message = f"the text that begins here ends at the quote on line {end.line + 1}"
    return source.refusal(begin.index, "yaml-syntax", message, hint=_UNCLOSED)


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
    if "quoted scalar" in (error.context or "") and "end of" in problem:
        known = _UNCLOSED
    return source.refusal(at, "yaml-syntax", _with_context(error, problem), hint=known)


def _with_context(error: yaml.MarkedYAMLError, problem: str) -> str:
    where = error.context_mark
    if not error.context or where is None or error.context == problem:
        return problem
    return f"{problem} {error.context} that begins on line {where.line + 1}"


def _tab_before(text: str, at: int) -> int | None:
    """The tab that indents the line of `at`, or that is used there instead of spaces."""
    start = text.rfind("\n", 0, at) + 1
    line = text[start : at + 1]
    if text[at : at + 1] == "\t":
        return at
    blank = len(line) - len(line.lstrip(" \t"))
    tab = line.find("\t", 0, blank)
    return start + tab if tab >= 0 else None
