"""Documents with positions: source text, values, diagnostics and suggestions.

A `Document` is a value as it was read, with the position of each part. A `Diagnostic` is one
problem at one position. Invisible characters are refused because they make two different texts
look the same.
"""

import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import blake2b
from typing import Literal, NamedTuple, TypeAlias

# Not in the categories below, but invisible: fillers, the grapheme joiner, and the variation
# selectors that can carry a whole hidden message.
_INVISIBLE_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_SELECTORS = range(0xE0100, 0xE01F0)
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

# Characters that no text of a definition may contain, however they were written: storage and
# argument vectors end at NUL, and an unpaired surrogate has no UTF-8 form.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def hidden_characters(text: str) -> list[tuple[int, int]]:
    """Offset and code point of each hidden character; line feed and tab are none."""
    if text.isascii() and text.isprintable():
        return []
    return [(at, ord(char)) for at, char in enumerate(text) if _is_hidden(char)]


def check_text(text: str) -> str | None:
    """Why `text` cannot be an id, command or tool name; None if it can."""
    found = hidden_characters(text)
    if not found:
        return None
    at, code = found[0]
    return f"hidden character {name_character(chr(code))} at character {at + 1}"


def name_character(char: str) -> str:
    """`U+202E RIGHT-TO-LEFT OVERRIDE`; controls have no name in Unicode."""
    return f"U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip()


def unstorable(text: str) -> str | None:
    """The first character that cannot be stored, or None."""
    found = _UNSTORABLE.search(text)
    return found[0] if found else None


def escaped(text: str) -> str:
    """The text with every hidden character escaped, so that it cannot control a terminal."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(char) if _is_hidden(char) or char in "\n\t" else char for char in text)


def _is_hidden(char: str) -> bool:
    if char in "\n\t":
        return False
    return (
        unicodedata.category(char) in _HIDDEN_CATEGORIES
        or char in _INVISIBLE_LETTERS
        or ord(char) in _SELECTORS
    )


def _shown(char: str) -> str:
    short = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char)
    return short or (f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08x}")


# More than this is too much to read: the first problems have to be fixed first.
MAX_PROBLEMS = 50


class Position(NamedTuple):
    """A position; both count from 1, columns in characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A problem (or a warning) about a definition; `code` is a slug that scripts may rely on."""

    file: str
    line: int
    column: int
    code: str
    message: str
    hint: str | None = None
    severity: Literal["error", "warning"] = "error"

    def render(self) -> str:
        """`file.yaml:12:5: unknown-field: max_iteration (did you mean max_iterations?)`."""
        label = "warning: " if self.severity == "warning" else ""
        hint = f" ({self.hint})" if self.hint else ""
        place = f"{self.file}:{self.line}:{self.column}"
        if self.file.startswith("--"):  # an option of the command line has no lines to count
            place = self.file if label else f"error: {self.file}"
        return escaped(f"{place}: {label}{self.code}: {self.message}{hint}")

    def as_dict(self) -> dict[str, str | int | None]:
        """The entry of an `errors` list in a problem report. A warning is marked as one."""
        marked = {"severity": self.severity} if self.severity == "warning" else {}
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            **marked,
        }


class ReadingStopped(Exception):
    """Inside this package only: reading cannot continue, for the given reason."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.code)
        self.diagnostic = diagnostic


def first_problems(found: Iterator[Diagnostic]) -> Iterator[Diagnostic]:
    """As many as a person will read; finding similar words for thousands would take too long."""
    errors = 0
    for one in found:
        yield one
        errors += one.severity == "error"
        if errors == MAX_PROBLEMS:
            return


def in_order(problems: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Each problem once, by position, and not more than a person will read."""
    ordered = sorted(set(problems), key=lambda d: (d.line, d.column, d.code, d.message))
    return ordered[:MAX_PROBLEMS]


_UTF8_MARK = b"\xef\xbb\xbf"
_OTHER_MARKS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),  # before UTF-16, whose mark is its beginning
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_SAVE_AS_UTF8 = "save the file as UTF-8"

# Neither YAML nor JSON needs these outside of an escape.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class SourceText:
    """Decoded text whose only line end is a line feed."""

    file: str
    text: str
    _starts: list[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        starts = [0, *(end.end() for end in re.finditer("\n", self.text))]
        object.__setattr__(self, "_starts", starts)

    def position(self, offset: int) -> Position:
        """Line and column of a character."""
        line = bisect_right(self._starts, max(offset, 0))
        return Position(line, offset - self._starts[line - 1] + 1)

    def problem(
        self, offset: int, code: str, message: str, *, hint: str | None = None
    ) -> Diagnostic:
        """A diagnostic about the text at `offset`."""
        line, column = self.position(offset)
        return Diagnostic(self.file, line, column, code, message, hint)

    def refusal(
        self, offset: int, code: str, message: str, *, hint: str | None = None
    ) -> ReadingStopped:
        """The same, for a problem after which reading is pointless."""
        return ReadingStopped(self.problem(offset, code, message, hint=hint))


def decode(data: bytes, *, file: str) -> SourceText:
    """UTF-8 with or without a BOM, any line ends; other text is rejected, with its offset."""
    for mark, name in _OTHER_MARKS:
        if data.startswith(mark):
            message = f"the file is {name}, not UTF-8, from byte offset 0 on"
            raise ReadingStopped(Diagnostic(file, 1, 1, "encoding", message, _SAVE_AS_UTF8))
    skipped = len(_UTF8_MARK) if data.startswith(_UTF8_MARK) else 0
    try:
        text = data[skipped:].decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[skipped : skipped + error.start].decode("utf-8")
        at = skipped + error.start
        message = f"byte 0x{data[at]:02x} at byte offset {at} is not UTF-8"
        raise _at_end_of(before, file, message, hint=_SAVE_AS_UTF8) from None
    found = _CONTROL.search(text)
    if found:
        before = text[: found.start()]
        at = skipped + len(before.encode())
        message = f"{_name(found[0])} at byte offset {at}"
        hint = _SAVE_AS_UTF8 if found[0] == "\x00" else "remove it"
        raise _at_end_of(before, file, message, hint=hint)
    return SourceText(file, _plain_line_ends(text))


def _at_end_of(before: str, file: str, message: str, *, hint: str) -> ReadingStopped:
    source = SourceText(file, _plain_line_ends(before))
    return source.refusal(len(source.text), "encoding", message, hint=hint)


def _plain_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _name(char: str) -> str:
    return "NUL" if char == "\x00" else f"control character {name_character(char)}"


Value: TypeAlias = "dict[str, Value] | list[Value] | str | int | float | bool | None"
Path: TypeAlias = Sequence[str | int]


def has(value: object, part: str | int) -> bool:
    """Whether one more step of a path can be taken from `value`."""
    if isinstance(value, dict):
        return isinstance(part, str) and part in value
    return isinstance(value, list) and isinstance(part, int) and 0 <= part < len(value)


@dataclass(slots=True)
class DocumentNode:
    """One value in the text; `offset` is its start, `size` counts it and everything inside it."""

    value: Value
    offset: int
    size: int = 1
    height: int = 0
    fields: dict[str, "Field"] = field(default_factory=dict)
    items: list["DocumentNode"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Field:
    """A key of a mapping, and its value."""

    offset: int
    node: DocumentNode


@dataclass(frozen=True, slots=True)
class Document:
    """A definition without syntax problems. Two with the same content have the same digest."""

    value: Value
    file: str
    _source: SourceText = field(repr=False, compare=False)
    _root: DocumentNode = field(repr=False, compare=False)

    @classmethod
    def plain(cls, value: Value, *, file: str) -> "Document":
        """For a value without a source text, such as command-line flags: everything is at 1:1."""
        return cls(value, file, SourceText(file, ""), DocumentNode(value, 0))

    @property
    def text(self) -> str:
        """The text that the document was read from."""
        return self._source.text

    @property
    def digest(self) -> str:
        """Hash of the value alone: layout, comments, line ends and key order do not matter."""
        text = json.dumps(self.value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return blake2b(text.encode("utf-8"), digest_size=32).hexdigest()

    def at(self, path: Path) -> Position:
        """The start of the value at `path`, or of the nearest part around it that exists."""
        node, _ = self._walk(path)
        return self._source.position(node.offset)

    def key_at(self, path: Path) -> Position:
        """The position of the key that ends `path`; a list item has no key, so its value."""
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
        """A warning about the value at a path."""
        line, column = self.at(at)
        return Diagnostic(self.file, line, column, code, message, hint, "warning")

    def _walk(self, path: Path) -> tuple[DocumentNode, Field | None]:
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


# Comparing is quadratic in the length of the word, and words this long are not misspelled.
_LONGEST_WORD = 64
_LONGEST_SHOWN = 60
_CUTOFF = 0.65
_SEPARATORS = re.compile(r"[-_\s.]+")
_FIRST_PART = re.compile(r"[A-Za-z][a-z0-9]*")


def suggest(word: str, known: Iterable[str], *, by_part: bool = True) -> str | None:
    """The known word that was probably meant by `word`. Without `by_part`, the whole words must be
    similar.
    """
    if not 0 < len(word) <= _LONGEST_WORD:
        return None
    spelled = {name: _bare(name) for name in known if len(name) <= _LONGEST_WORD}
    bare = _bare(word)
    for name, spelling in spelled.items():
        if spelling == bare and name != word:
            return name
    close = get_close_matches(bare, list(spelled.values()), n=1, cutoff=_CUTOFF)
    # A word with too much detail begins with the right one: max_passes is max, and so is maximum.
    if by_part and not close:
        begins = [one for one in spelled.values() if len(one) > 2 and bare.startswith(one)]
        close = sorted(begins, key=len)[-1:]
    if by_part and not close:
        close = [part[0].lower() for part in [_FIRST_PART.match(word)] if part]
    return next((n for n, s in spelled.items() if s in close and n != word), None)


def did_you_mean(word: str, known: Iterable[str], *, by_part: bool = True) -> str | None:
    """The hint that goes with `suggest`."""
    found = suggest(word, known, by_part=by_part)
    return f"did you mean {found}?" if found else None


def misspelt(keys: Iterable[str], known: Collection[str], *wanted: str) -> bool:
    """Whether one of the keys is probably a misspelling of one of `wanted`: then reporting those as
    missing would add nothing.
    """
    return any(suggest(key, known) in wanted for key in keys if key not in known)


def show(value: object) -> str:
    """A value in a form that its author recognises, short."""
    match value:
        case dict():
            return "a mapping" if value else "an empty mapping"
        case list():
            return "a list" if value else "an empty list"
        case str() if len(value) > _LONGEST_SHOWN:
            return json.dumps(clip(value), ensure_ascii=False)
        case str() | None | bool() | int() | float():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return clip(repr(value))


def clip(text: str) -> str:
    """The text, or its beginning."""
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def one_of(words: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _bare(word: str) -> str:
    return _SEPARATORS.sub("", word).lower()


def mapping(value: object) -> dict[str, object]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[object]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []
