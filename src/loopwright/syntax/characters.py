"""Characters that a reader cannot see: they make two texts look alike that are not."""

import re
import unicodedata

# Not in the categories below, yet drawn as nothing: fillers, the grapheme joiner, and the
# variation selectors that can carry a whole hidden message.
_INVISIBLE_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_SELECTORS = range(0xE0100, 0xE01F0)
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

# What no text of a definition may hold, however it was written: storage and argument vectors
# end at NUL, and a lone surrogate has no UTF-8 form.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def hidden_characters(text: str) -> list[tuple[int, int]]:
    """Offset and code point of each hidden character; line feed and tab are none."""
    if text.isascii() and text.isprintable():
        return []
    return [(at, ord(char)) for at, char in enumerate(text) if _is_hidden(char)]


def check_text(text: str) -> str | None:
    """Why `text` may not serve as an id, command or tool name; None where it may."""
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
    """The text with every hidden character shown, so that it cannot drive a terminal."""
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
