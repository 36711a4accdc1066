"""Variables that decide what programs load and run, and which of them a script does not export.

The shell reads some of them itself (`PATH`, `IFS`, `PS4`, …). The others act only in programs that
the script starts: `EDITOR` and `PAGER` in Git, `SHELL` in editors, `PYTHONPATH` in Python. A script
that assigns such a name and never exports it has a local variable: it may hold a value, once the
shell no longer passes on a variable of that name from its environment.
"""

import re
from collections.abc import Iterable

from loopwright.dialects.archon.shell.commands import RESERVED_NAMES

# Variables that the shell itself uses, even without exporting, and that are not assigned by
# accident.
_READ_BY_SHELLS = re.compile(
    r"PATH|IFS|HOME|CDPATH|GLOBIGNORE|PS4|PROMPT_COMMAND|SHELLOPTS|BASHOPTS|BASH"
    r"|(?:BASH|LD|DYLD|LOOPWRIGHT|_JAVA)_\w+"
)
# Only a shell with a prompt loads the file that ENV names, and some Korn shells do always.
_OF_PROMPTS = frozenset({"ENV"})
_WITH_PROMPT = re.compile(
    r"\b(?:(?:ba|da|a|z)?sh|busybox)\b[^\n;|&]*\s-\w*i|\b\w*ksh\b|\s-\w*i\w*t|\s-\w*t\w*i|--interactive"
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_EXPORTS = re.compile(
    r"\b(?:export|(?:declare|typeset|local|readonly)\s+(?:-\w+\s+)*-\w*x\w*)(?=\s)([^\n;|&]*)"
)
_NAMED_BY_VALUE = re.compile(r"(?:^|\s)[\"']?[$`]")
# What may export every variable: options of the shell, and code in other files.
_EXPORTS_ALL = re.compile(
    r"\bset\s+(?:[-+]\w+\s+)*-\w*a|\ballexport\b|\bsh\s+-\w*a|(?:^|[\s;&|(])(?:\.|source|eval)\s",
    re.MULTILINE,
)


def find_free_names(text: str) -> frozenset[str]:
    """The reserved names that are harmless wherever this script uses them."""
    return frozenset() if _WITH_PROMPT.search(text) else _OF_PROMPTS


def find_kept_names(text: str) -> frozenset[str]:
    """The reserved names that this script may assign, since it never exports them."""
    names = {one for one in _WORD.findall(text) if RESERVED_NAMES.fullmatch(one)}
    if not names or _EXPORTS_ALL.search(text):
        return frozenset()
    passed_on: set[str] = set()
    for found in _EXPORTS.finditer(text):
        if _NAMED_BY_VALUE.search(found[1]):
            return frozenset()
        passed_on |= set(_WORD.findall(found[1]))
    return (
        frozenset(one for one in names - passed_on if not _READ_BY_SHELLS.fullmatch(one))
        - _OF_PROMPTS
    )


def keep_names(names: Iterable[str]) -> str:
    """The prefix of a script that makes variables of these names local to it."""
    listed = " ".join(sorted(names))
    return f"export -n {listed}; " if listed else ""
