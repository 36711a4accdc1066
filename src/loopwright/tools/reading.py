"""Commands that only read, held to reading: a few of their options write, follow links out of the
workspace, or start other programs.
"""

from collections.abc import Sequence
from pathlib import PurePath

from loopwright.model.access import READ_COMMANDS
from loopwright.tools.outcome import Refusal

# By program: letters and long options that are refused, and why.
_REFUSED: dict[str, tuple[str, tuple[str, ...], str]] = {
    "grep": ("R", ("--dereference-recursive", "--devices"), "it would follow links; use -r"),
    "diff": ("l", ("--paginate",), "it would start another program"),
    "ls": ("L", ("--dereference",), "it would follow links"),
    "stat": ("L", ("--dereference",), "it would follow links"),
    "wc": ("", ("--files0-from",), "it would read files that are not named here"),
    "sort": (
        "oT",
        ("--output", "--compress-program", "--temporary-directory", "--files0-from"),
        "it would write a file, start another program or read files that are not named here",
    ),
}
_FIND_ACTIONS = (
    *("-exec", "-execdir", "-ok", "-okdir", "-delete"),
    *("-fprint", "-fprint0", "-fprintf", "-fls"),
)
_FIND_LINKS = ("-L", "-H", "-follow", "-files0-from")


def check_reading(argv: Sequence[str]) -> None:
    """Refusal when a command is not one of those that read, or would do more than that."""
    program, words = PurePath(argv[0]).name, argv[1:]
    if program not in READ_COMMANDS:
        may = ", ".join(READ_COMMANDS)
        raise Refusal("not-allowed", f"{program!r} is not allowed here; allowed: {may}")
    letters, names, why = _REFUSED.get(program, ("", (), ""))
    for word in words:
        if _has_letter(word, letters) or any(_is_long(word, name) for name in names):
            raise Refusal("denied", f"{program} {word} is refused: {why}")
    if program == "find":
        _check_find(words)
    if program == "diff" and _is_recursive(words) and "--no-dereference" not in words:
        raise Refusal("denied", "diff -r would follow links; add --no-dereference")
    if program == "uniq" and _operands(words) > 1:
        raise Refusal("denied", "uniq writes to a second file; name one file alone")


def _check_find(words: Sequence[str]) -> None:
    """Refusal for `find` with an action that starts programs, deletes or writes files. Its options
    are whole words, so there are no others that mean the same.
    """
    for word in words:
        if word in _FIND_ACTIONS:
            raise Refusal("denied", f"find {word} is refused: find may search and print only")
        if word in _FIND_LINKS:
            raise Refusal("denied", f"find {word} is refused: it would leave the workspace")


def _has_letter(word: str, letters: str) -> bool:
    is_cluster = word.startswith("-") and not word.startswith("--")
    return is_cluster and any(letter in word[1:] for letter in letters)


def _is_long(word: str, name: str) -> bool:
    """Long options may be shortened."""
    said = word.partition("=")[0]
    return len(said) > 2 and said.startswith("--") and name.startswith(said)


def _is_recursive(words: Sequence[str]) -> bool:
    return any(_has_letter(word, "r") or _is_long(word, "--recursive") for word in words)


def _operands(words: Sequence[str]) -> int:
    """How many words may be files; a value that cannot be told from one counts as one."""
    plain = list(words)
    if "--" in plain:
        at = plain.index("--")
        return len(plain) - at - 1 + _operands(plain[:at])
    return sum(not word.startswith("-") or word == "-" for word in plain)
