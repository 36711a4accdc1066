"""Variables that nothing sets: found when a workflow is read, before a script fails on them."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import NamedTuple

from loopwright.dialects.archon.variables import VARIABLES, longest_variable, marks

_USE = re.compile(r"\$(?:\{(?P<braced>[A-Z][A-Z0-9_]{2,})\}|(?P<bare>[A-Z][A-Z0-9_]{2,}))")
_SETS = re.compile(
    r"\b(?P<assigned>[A-Z][A-Z0-9_]{2,})(?:\[[^\]\n]*\])?\+?="
    r"|\b(?:for|select)\s+(?P<listed>[A-Z][A-Z0-9_]{2,})\b"
    r"|\b(?:read|mapfile|readarray|local|declare|typeset|export|readonly|getopts|printf\s+-v)\b"
    r"(?P<named>[^\n;|&]*)"
)
_WORD = re.compile(r"[A-Z][A-Z0-9_]{2,}")
_SOURCES = re.compile(r"(?:^|[\n;&|({]|\b(?:then|do|else)\s)[ \t]*(?:source|\.)[ \t]+[^\s;&|)]")
_NOUNSET = re.compile(r"^\s*set\s+(?:-[a-zA-Z]*u|[^\n#;]*-o\s+nounset)", re.MULTILINE)
_OF_SHELLS = re.compile(
    r"BASH\w*|RANDOM|SRANDOM|SECONDS|EPOCH\w+|LINENO|FUNCNAME|IFS|PIPESTATUS|REPLY|OPT(?:ARG|IND)"
    r"|UID|EUID|PPID|SHLVL|HOSTTYPE|HOSTNAME|OSTYPE|MACHTYPE|DIRSTACK|COLUMNS|LINES|MAPFILE|COPROC"
    r"|GROUPS|PWD|OLDPWD|PATH|HOME|LANG|LC_\w+|TERM|TMPDIR|USER|LOGNAME|SHELL|LOOPWRIGHT_\w+|LW_\w+"
    r"|INPUTS_\w+|TZ"
)
_PROSE = re.compile(r"\$([A-Z][A-Z0-9_]{4,})\b")
_NEAR = 0.8
# Names that people expect beside the variables that there are.
_EXPECTED = {
    "LOOP_INDEX": "LOOP_PREV_OUTPUT",
    "LOOP_ITERATION": "LOOP_PREV_OUTPUT",
    "ITERATION": "LOOP_PREV_OUTPUT",
    "LOOP_COUNT": "LOOP_PREV_OUTPUT",
}


class Unset(NamedTuple):
    """A variable that nothing sets, where it is used first."""

    at: int
    name: str


def find_unset(script: str) -> list[Unset]:
    """The variables that a shell script uses and that neither it nor its environment sets."""
    seen = _visible(script)
    known: set[str] = set()
    for found in _SETS.finditer(seen):
        known.update(one for one in (found["assigned"], found["listed"]) if one)
        known.update(_WORD.findall(found["named"] or ""))
    first: dict[str, Unset] = {}
    references = {mark.at for mark in marks(script)}
    for found in _USE.finditer(seen):
        name = found["braced"] or found["bare"]
        is_known = name in known or name in VARIABLES or _OF_SHELLS.fullmatch(name)
        if not is_known and found.start() not in references:
            first.setdefault(name, Unset(found.start(), name))
    return list(first.values())


def sources_files(script: str) -> bool:
    """Whether a script takes in other files, which may set any variable."""
    return _SOURCES.search(_visible(script)) is not None


def set_defaults(script: str, unset: list[Unset]) -> str:
    """What keeps a script with `set -u` from failing on a variable that is not set."""
    if not _NOUNSET.search(script):
        return ""
    return "".join(f': "${{{one.name}=}}"; ' for one in unset)


def find_misspelt(text: str) -> Iterator[tuple[Unset, str]]:
    """Variables of a prompt that look like one of the workflow's, with the one that is meant."""
    for found in _PROSE.finditer(text):
        name = found[1]
        if longest_variable(name):
            continue
        near = get_close_matches(name, VARIABLES, n=1, cutoff=_NEAR)
        meant = near[0] if near else _EXPECTED.get(name)
        if meant:
            yield Unset(found.start(), name), meant


def _visible(script: str) -> str:
    """The script with blanks in the place of comments and of texts in single quotes, which the
    shell takes as they are.
    """
    made, quote, at = list(script), "", 0
    while at < len(script):
        sign = script[at]
        if quote == "'":
            made[at] = "\n" if sign == "\n" else " "
            quote = "" if sign == "'" else quote
        elif sign == "\\":
            made[at : at + 2] = [" "] * len(script[at : at + 2])
            at += 1
        elif sign == '"':
            quote = "" if quote == '"' else '"'
        elif sign == "'" and not quote:
            quote = "'"
        elif sign == "#" and not quote and (at == 0 or script[at - 1] in " \t\n;"):
            end = script.find("\n", at)
            end = len(script) if end < 0 else end
            made[at:end] = [" "] * (end - at)
            at = end - 1
        at += 1
    return "".join(made)
