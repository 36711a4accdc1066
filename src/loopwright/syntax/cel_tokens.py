"""Expressions in tokens, read so that a step id with hyphens stays in one piece.

The evaluator has a parser of its own; this one exists because `steps.list-services` is a
subtraction there, and because a program should know which steps it looks at.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["name", "step", "text", "number", "sign", "other", "end"]


class Token(NamedTuple):
    """A piece of the expression. `step` is what follows `steps.` and is no call."""

    kind: Kind
    text: str
    start: int

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.start + len(self.text)


END = Token("end", "", -1)

_SKIPPED = re.compile(r"(?:[ \t\n\f\r]|//[^\n]*)*")
# Everything up to the next character that no id has, so that the longest id is what is read.
_STEP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_LITERAL = re.compile(r"(?P<raw>[rR]?)(?P<quote>'{3}|\"{3}|'|\")(?P<body>.*)(?P=quote)", re.DOTALL)
_KINDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        "text",
        re.compile(
            r"(?:[rR][bB]?|[bB][rR])"
            r"(?:'{3}.*?'{3}|\"{3}.*?\"{3}|'[^'\n\r]*'|\"[^\"\n\r]*\")"
            r"|[bB]?"
            r"(?:'{3}(?:[^\\]|\\.)*?'{3}|\"{3}(?:[^\\]|\\.)*?\"{3}"
            r"|'(?:[^'\\\n\r]|\\.)*'|\"(?:[^\"\\\n\r]|\\.)*\")",
            re.DOTALL,
        ),
    ),
    (
        "number",
        re.compile(
            r"0x[0-9a-fA-F]+[uU]?|[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?"
            r"|[0-9]+(?:[eE][+-]?[0-9]+|[uU])?"
        ),
    ),
    ("sign", re.compile(r"&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]{}]|in(?![A-Za-z0-9_])")),
    ("name", re.compile(r"[A-Za-z_][A-Za-z0-9_]*|`[^`\n\r]+`")),
    ("other", re.compile(r".", re.DOTALL)),
)


def tokens(text: str) -> list[Token]:
    """The tokens of the text, without blanks and comments. Nothing is refused here."""
    found: list[Token] = []
    position = _skip(text, 0)
    while position < len(text):
        found.append(_after_steps(text, position, found) or _token(text, position))
        position = _skip(text, found[-1].end)
    return found


def at(found: Sequence[Token], index: int) -> Token:
    """The token of that index, or the end when there is none."""
    return found[index] if 0 <= index < len(found) else END


def is_free(found: Sequence[Token], index: int) -> bool:
    """Whether the name there stands for itself, and is not a field of what precedes it."""
    before = index - 1
    if at(found, before).text == "?" and at(found, before - 1).text == ".":
        before -= 1
    return at(found, before).text != "." or not _ends_value(at(found, before - 1))


def is_name(found: Sequence[Token], index: int, name: str) -> bool:
    """Whether this free name stands there."""
    token = at(found, index)
    return token.kind == "name" and token.text == name and is_free(found, index)


def literal(token: Token) -> str | None:
    """The text that a text token stands for, when it says so without escapes."""
    match = _LITERAL.fullmatch(token.text)
    if match is None or ("\\" in token.text and not match["raw"]):
        return None
    return match["body"]


def _skip(text: str, position: int) -> int:
    match = _SKIPPED.match(text, position)
    return match.end() if match else position


def _after_steps(text: str, position: int, found: list[Token]) -> Token | None:
    """The dot and the id in `steps.id` and `steps.?id`, if this is the place."""
    last = len(found) - 1
    if text[position] == "." and is_name(found, last, "steps"):
        return Token("sign", ".", position)  # not the beginning of a number such as .5
    dot = last - 1 if at(found, last).text == "?" else last
    if at(found, dot).text != "." or not is_name(found, dot - 1, "steps"):
        return None
    match = _STEP.match(text, position)
    if match is None:
        return None
    called = "-" not in match[0] and text.startswith("(", _skip(text, match.end()))
    return None if called else Token("step", match[0], position)


def _token(text: str, position: int) -> Token:
    return next(
        Token(kind, match[0], position)
        for kind, pattern in _KINDS
        if (match := pattern.match(text, position))
    )


def _ends_value(token: Token) -> bool:
    return token.kind in {"name", "step", "text", "number"} or token.text in {")", "]", "}"}
