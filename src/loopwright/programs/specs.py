"""Agent specs: the short text that says what stands behind an agent.

`claude`, `codex`, `opencode` and `gemini` are coding CLIs (`claude:ARG…` gives one more arguments),
`acp:CMD ARG…` any agent that speaks the Agent Client Protocol, `command:CMD ARG…` any program,
`jsonl:CMD ARG…` a program that answers in JSON lines, `script:FILE` answers from a file. A
command line is split as a POSIX shell splits words, and no shell ever sees it.
"""

import shlex
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, TypeAlias, get_args

from loopwright.agents import acp
from loopwright.agents.clis import arguments
from loopwright.agents.clis.table import CLIS
from loopwright.model.plan import Agent

Kind: TypeAlias = Literal[
    "claude", "codex", "opencode", "gemini", "acp", "command", "jsonl", "script"
]

KINDS: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
LATER = ("model",)
KNOWN = f"command:PROGRAM, jsonl:PROGRAM, script:FILE, acp:PROGRAM, {', '.join(CLIS)}"


@dataclass(frozen=True, slots=True)
class Spec:
    """A spec, taken apart. Of a coding CLI, `argv` are the arguments that its author adds."""

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
            f"use {KNOWN}",
        )
    if kind not in KINDS or not (colon or kind in CLIS):
        return BadSpec(f"unknown agent {text!r}", _nearest(kind))
    if not rest and kind not in CLIS:
        return BadSpec(f"agent {text!r} names nothing to run", f"write {kind}:PROGRAM ARG…")
    if kind == "script":
        return Spec(kind="script", file=rest)
    try:
        argv = tuple(shlex.split(rest))
    except ValueError as error:
        return BadSpec(f"agent {text!r} cannot be split into words: {error}", "close the quote")
    return Spec(kind=KINDS[kind], argv=argv)


def _nearest(kind: str) -> str:
    close = get_close_matches(kind, [*KINDS, *LATER], n=1)
    return f"did you mean {close[0]}? known are {KNOWN}" if close else f"known are {KNOWN}"


def unfit_agent(spec: Spec, agent: Agent) -> str | None:
    """What an agent is given that the program behind it cannot be held to, in words."""
    if spec.kind in CLIS:
        return arguments.unfit(spec.kind, agent)
    return acp.unfit(agent) if spec.kind == "acp" else None
