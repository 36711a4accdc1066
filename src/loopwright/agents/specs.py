"""Agent specs: the short text that names the backend of an agent.

`claude`, `codex`, `opencode` and `gemini` are coding CLIs (`claude:ARG…` adds arguments), `acp:CMD
ARG…` is any agent that uses the Agent Client Protocol, `command:CMD ARG…` any program, `jsonl:CMD
ARG…` a program that answers in JSON lines, `script:FILE` answers from a file, `model:PROVIDER/NAME`
is a chat model with tools (more of them after a comma: tried in order). A command line is split as
a POSIX shell splits words; it is never run by a shell.
"""

import shlex
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

from loopwright.agents.clis import acp, command_line
from loopwright.agents.clis.catalogue import CLIS, added_tools, unheld
from loopwright.agents.sandbox import bubblewrap
from loopwright.model.access import is_offline, network_problem
from loopwright.model.plan import Agent

Kind: TypeAlias = Literal[
    "claude", "codex", "opencode", "gemini", "acp", "command", "jsonl", "script", "model"
]

KINDS: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
KNOWN = (
    f"model:PROVIDER/NAME, command:PROGRAM, jsonl:PROGRAM, script:FILE, acp:PROGRAM, plugin:NAME, "
    f"{', '.join(CLIS)}"
)


PERMISSIONS = ("read-only", "default", "acceptEdits", "bypassPermissions")
"""Permission modes of a chat model: read, request changes, make changes."""

CHAT_WORDS = {"ask": "default", "edit": "acceptEdits", "all": "bypassPermissions"}
"""The permissions of a start in the terms of chat models."""


UNHELD_KINDS = ("model", "script")
"""Enforced by us: we execute their actions. A script of answers has no actions."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed spec. For a coding CLI, `argv` are the arguments that its author adds."""

    kind: Kind
    argv: tuple[str, ...] = ()
    file: str = ""


@dataclass(frozen=True, slots=True)
class BadSpec:
    """Why a spec cannot be used, and what to write instead."""

    message: str
    hint: str


@lru_cache(maxsize=256)
def parse_spec(text: str) -> Spec | BadSpec:
    """Parse a spec."""
    kind, colon, rest = text.partition(":")
    kind, rest = kind.strip(), rest.strip()
    if kind not in KINDS or not (colon or kind in CLIS):
        hint = f"for a program write command:{text}" if "/" in kind else _nearest(kind)
        return BadSpec(f"unknown agent {text!r}", hint)
    if not rest and kind not in CLIS:
        return BadSpec(f"agent {text!r} names nothing to run", f"write {kind}:PROGRAM ARG…")
    if kind == "script":
        return Spec(kind="script", file=rest)
    if kind == "model":
        return _model(text, rest)
    try:
        argv = tuple(shlex.split(rest))
    except ValueError as error:
        return BadSpec(f"agent {text!r} cannot be split into words: {error}", "close the quote")
    return Spec(kind=KINDS[kind], argv=argv)


def _model(text: str, rest: str) -> Spec | BadSpec:
    models = tuple(name.strip() for name in rest.split(","))
    bad = [name for name in models if not all(name.partition("/"))]
    if bad:
        return BadSpec(
            f"agent {text!r} names no model: {bad[0]!r}",
            "write model:PROVIDER/NAME, for example model:anthropic/claude-sonnet-4-5; further "
            "ones after a comma are asked when it fails",
        )
    return Spec(kind="model", argv=models)


def _nearest(kind: str) -> str:
    close = get_close_matches(kind, [*KINDS], n=1)
    return f"did you mean {close[0]}? known are {KNOWN}" if close else f"known are {KNOWN}"


def unfit_agent(spec: Spec, agent: Agent) -> str | None:
    """Settings of an agent that its program cannot enforce, as a message."""
    if agent.access is not None and spec.kind not in UNHELD_KINDS:
        missing = None if agent.access == "full" else bubblewrap.works()
        problem = unheld(spec.kind, agent, sandbox=missing)
        if problem is not None:
            return problem
    problem = network_problem(agent)
    if problem is not None:
        return problem
    if is_offline(agent):
        if spec.kind in CLIS:
            return f"{spec.kind} needs a network to reach its model: take `network: none` away"
        missing = bubblewrap.works() if spec.kind not in UNHELD_KINDS else None
        if missing is not None:
            return f"nothing here could keep it from the network: {missing}"
    problem = _unfit_tools(spec, agent)
    if problem is not None:
        return problem
    if spec.kind in CLIS:
        return command_line.unfit(spec.kind, agent)
    if spec.kind == "model":
        return _unfit_chat(agent)
    return acp.unfit(agent) if spec.kind == "acp" else None


def takes_loop_tools(spec: Spec) -> bool:
    """Whether the agent of a spec can receive loop tools."""
    return spec.kind in (*CLIS, "acp", "model")


def _unfit_tools(spec: Spec, agent: Agent) -> str | None:
    if agent.loops and not takes_loop_tools(spec):
        return "a plain program cannot use loop tools (`loops`): give them to another agent"
    approved_tools = sorted(tool for tool, rule in agent.approvals.items() if rule != "never")
    if approved_tools and spec.kind != "model":
        return (
            f"no person would be asked before {approved_tools[0]}: only a chat model has approvals"
        )
    return None


def _unfit_chat(agent: Agent) -> str | None:
    if added_tools(agent):
        return "a chat model has the tools that it is named; leave the plus sign out"
    if agent.permission not in (None, *PERMISSIONS):
        known = ", ".join(PERMISSIONS)
        return f"a chat model knows no permission {agent.permission!r}; it has {known}"
    return None
