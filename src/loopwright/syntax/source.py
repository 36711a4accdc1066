"""The text of one file, from bytes to characters, and the way from an offset to a position."""

import re
from bisect import bisect_right
from dataclasses import dataclass, field

from loopwright.syntax.characters import name_character
from loopwright.syntax.diagnostic import Diagnostic, Position, Refusal

_UTF8_MARK = b"\xef\xbb\xbf"
_OTHER_MARKS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),  # before UTF-16, whose mark is its beginning
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_SAVE_AS_UTF8 = "save the file as UTF-8"

# Neither YAML nor JSON has a use for these outside of an escape.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Source:
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
        """A diagnostic about what stands at `offset`."""
        line, column = self.position(offset)
        return Diagnostic(self.file, line, column, code, message, hint)

    def refusal(self, offset: int, code: str, message: str, *, hint: str | None = None) -> Refusal:
        """The same, for a problem after which reading makes no sense."""
        return Refusal(self.problem(offset, code, message, hint=hint))


def decode(data: bytes, *, file: str) -> Source:
    """UTF-8 with or without its mark, any line ends; everything else is refused by offset."""
    for mark, name in _OTHER_MARKS:
        if data.startswith(mark):
            message = f"the file is {name}, not UTF-8, from byte offset 0 on"
            raise Refusal(Diagnostic(file, 1, 1, "encoding", message, _SAVE_AS_UTF8))
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
    return Source(file, _plain_line_ends(text))


def _at_end_of(before: str, file: str, message: str, *, hint: str) -> Refusal:
    source = Source(file, _plain_line_ends(before))
    return source.refusal(len(source.text), "encoding", message, hint=hint)


def _plain_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _name(char: str) -> str:
    return "NUL" if char == "\x00" else f"control character {name_character(char)}"
