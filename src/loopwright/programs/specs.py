"""Agent specs: the short text that says what stands behind an agent.

`command:CMD ARG…` any program, `jsonl:CMD ARG…` a program that answers in JSON lines,
`script:FILE` answers from a file. The command line is split as a POSIX shell splits words, and no
shell ever sees it.
"""

import shlex
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["command", "jsonl", "script"]

KINDS: tuple[Kind, ...] = ("command", "jsonl", "script")
LATER = ("claude", "codex", "opencode", "gemini", "acp", "model")


@dataclass(frozen=True, slots=True)
class Spec:
    """A spec, taken apart."""

    kind: Kind
    argv: tuple[str, ...] = ()
    file: str = ""


@dataclass(frozen=True, slots=True)
class BadSpec:
    """Why a spec cannot be used, and what to write instead."""

    message: str
    hint: str


def parse_spec(text: str) -> Spec | BadSpec:
    """Take a spec apart."""
    kind, colon, rest = text.partition(":")
    kind, rest = kind.strip(), rest.strip()
    if kind in LATER:
        return BadSpec(
            f"agent {text!r} is not available in this version",
            "use command:PROGRAM, jsonl:PROGRAM or script:FILE",
        )
    if kind not in KINDS or not colon:
        return BadSpec(f"unknown agent {text!r}", _nearest(kind))
    if not rest:
        return BadSpec(f"agent {text!r} names nothing to run", f"write {kind}:PROGRAM ARG…")
    if kind == "script":
        return Spec(kind="script", file=rest)
    try:
        argv = tuple(shlex.split(rest))
    except ValueError as error:
        return BadSpec(f"agent {text!r} cannot be split into words: {error}", "close the quote")
    return Spec(kind="jsonl" if kind == "jsonl" else "command", argv=argv)


def _nearest(kind: str) -> str:
    close = get_close_matches(kind, [*KINDS, *LATER], n=1)
    known = "command:PROGRAM, jsonl:PROGRAM or script:FILE"
    return f"did you mean {close[0]}? known are {known}" if close else f"known are {known}"
