"""Texts for a terminal: nothing that an agent or an author wrote may drive it.

Escape sequences are removed, other characters that cannot be seen are shown by their code. Widths
are counted in cells, so that a table keeps its columns whatever stands in it.
"""

import re
import unicodedata
from collections.abc import Sequence

# CSI …, OSC/DCS/SOS/PM/APC … up to their end (or the end of the text), and two-character ones.
_SEQUENCE = re.compile(
    r"""
      (?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?
    | (?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|\Z)?
    | \x1b[ -/]*[0-~]?
    """,
    re.VERBOSE,
)
_PLAIN = re.compile(r"[\x20-\x7e\n\t]*")
_LINE_ENDS = re.compile(r"\r\n?|[\v\f\x85\u2028\u2029]")

# Change the order in which text is drawn, so that a person decides about what is not there.
_DIRECTION = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_TOOL = re.compile(r"(?:\([^)]*\)?|[^,(])+")
_SELECTORS = frozenset(map(chr, range(0xFE00, 0xFE10)))


def cleaned(text: str) -> str:
    """Many lines as a terminal may have them; line ends and tabs stay."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(map(_shown, _LINE_ENDS.sub("\n", _SEQUENCE.sub("", text))))


def names_in(texts: Sequence[str]) -> tuple[str, ...]:
    """Names that were given one by one or with commas."""
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


def tools_in(texts: Sequence[str]) -> tuple[str, ...]:
    """Tools that were given one by one or with commas; a comma in parentheses separates nothing."""
    found = (_TOOL.findall(text) for text in texts)
    return tuple(tool.strip() for tools in found for tool in tools if tool.strip())


def one_line(text: str, cells: int | None = None) -> str:
    """The text on one line with nothing hidden in it, cut to so many cells."""
    flat = " ".join(cleaned(text).split())
    flat = "".join(char for char in flat if char not in _SELECTORS)
    flat = "".join(_coded(c) if unicodedata.category(c) == "Cf" else c for c in flat)
    return flat if cells is None else cut(flat, cells)


def file_name(name: str) -> str:
    """The name of a file on one line: line ends and whatever cannot be seen are shown by codes."""
    return "".join(_coded(char) if char in "\n\t\u2028\u2029" else _seen(char) for char in name)


def exact_lines(text: str) -> list[str]:
    """Every line of something that is decided about: blanks stay, and what cannot be seen is shown
    by its code, escape sequences too.
    """
    lines = _LINE_ENDS.sub("\n", text).expandtabs(4).split("\n")
    return ["".join(map(_seen, line)) for line in lines]


def _seen(char: str) -> str:
    hidden = char in _SELECTORS or unicodedata.category(char) in ("Cf", "Cn", "Co")
    return _coded(char) if hidden else _shown(char)


def _shown(char: str) -> str:
    if char in "\n\t":
        return char
    hidden = unicodedata.category(char) in ("Cc", "Cs") or char in _DIRECTION
    return _coded(char) if hidden else char


def _coded(char: str) -> str:
    number = ord(char)
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def width(text: str) -> int:
    """How many cells a text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, cells: int) -> str:
    """The beginning of a text that fits, with a sign when something is missing."""
    if width(text) <= cells:
        return text
    kept, room = "", cells - 1
    for char in text:
        room -= _cells(char)
        if room < 0:
            break
        kept += char
    return f"{kept}…" if cells > 0 else ""


def padded(text: str, cells: int) -> str:
    """A text in a column of so many cells."""
    text = cut(text, cells)
    return text + " " * (cells - width(text))


def last_lines(text: str, count: int) -> list[str]:
    """The last lines that say something, each clean and on its own."""
    lines = [line.rstrip() for line in cleaned(text).split("\n") if line.strip()]
    return lines[-count:] if count else []
