"""Commands as people write them: a list of words, or a line that is split without a shell."""

import re
import shlex
from typing import NamedTuple

USE_A_SCRIPT = (
    "put it into a script file and name that file here; a definition may have `script:` instead"
)

# One group per way of quoting: outside of all quotes, inside double quotes, and what is safe.
_PIECE = re.compile(
    r"""
      \\.                                    # an escaped character
    | '[^']*'                                # quoted: nothing has a meaning
    | "(?:\\[^$`]|[^"\\$`])*               # quoted: a shell would fill in $ and `
      (?:"|(?P<inside>\\?[$`])|\Z)
    | (?P<bare>&&|\|\||>>|[&|;<>$`*?()\n])
    | (?P<home>(?:^|(?<=\s))~)
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_OPERATOR = re.compile(r"&&|\|\|?|;|&|\d*>>?|\d*<<?<?|\d*>&\d*|&>")
_NESTING = ("-exec", "-ok")
_ASSIGNMENT = re.compile(r"\s*([A-Za-z_]\w*=\S*)\s")
_OURS = re.compile(
    r"\{\{\s*(?:message|input|steps|item|index|iteration|max|previous|feedback|run|workspace)\b"
)


class CommandFault(NamedTuple):
    """Why a command is refused."""

    code: str
    message: str
    hint: str | None = None


def split_command(line: str) -> list[str] | CommandFault:
    """The words of a command line, or why it cannot be run without a shell."""
    found = shell_syntax(line)
    if found:
        message = f"{found} means something to a shell only, and no shell is used"
        return CommandFault("shell-syntax", message, USE_A_SCRIPT)
    assigned = _ASSIGNMENT.match(line)
    if assigned:
        message = f"{assigned[1]} sets a variable in a shell only, and no shell is used"
        return CommandFault("shell-syntax", message, f"write `env {line.strip()}`")
    try:
        words = shlex.split(line)
    except ValueError:
        return CommandFault("bad-command", "a quotation mark or backslash is left open")
    return words or CommandFault("bad-command", "the command is empty")


def split_commands(line: str) -> list[str]:
    """The commands of a line that are joined by `&&`: each runs when the one before succeeded."""
    starts = [0]
    ends = []
    for piece in _PIECE.finditer(line):
        if piece["bare"] == "&&":
            ends.append(piece.start())
            starts.append(piece.end())
    return [line[start:end] for start, end in zip(starts, [*ends, len(line)], strict=True)]


def shell_syntax(line: str) -> str | None:
    """The first sign of a line that only a shell would understand."""
    for piece in _PIECE.finditer(line):
        sign = piece["inside"] or piece["bare"] or piece["home"]
        if sign:
            return "a line break" if sign == "\n" else sign
    return None


def operator(words: list[object]) -> tuple[int, str] | None:
    """The first word of a list that a shell would act on, and where it stands; the program gets
    it as text. A semicolon is fine where it ends the command of another command (`find -exec`).
    """
    nested = any(isinstance(word, str) and word.startswith(_NESTING) for word in words)
    for number, word in enumerate(words[1:], start=1):
        if isinstance(word, str) and _OPERATOR.fullmatch(word) and not (nested and word == ";"):
            return number, word
    return None


def checked_words(words: list[str]) -> list[str] | CommandFault:
    """The words, or why they are no command. In a list, signs of a shell are plain text."""
    if not words or not words[0].strip():
        return CommandFault("bad-command", "the command is empty")
    for word in words:
        if _OURS.search(word):
            message = "a command takes no references: what an agent said would become a command"
            hint = "let the program read the workspace, or its LOOPWRIGHT_ variables"
            return CommandFault("reference-in-command", message, hint)
    return words
