"""Keys that a kind of node has no use for: ignored with a warning, or refused.

A key that restricts what an agent may do is never just ignored: where nobody would enforce it, its
author would believe in a restriction that is not there.
"""

from collections.abc import Iterator
from typing import NamedTuple

from loopwright.dialects.archon.outline import NodeAt, Outline, Path
from loopwright.syntax import Diagnostic, Document

SECURITY = ("allowed_tools", "denied_tools", "hooks", "sandbox")
_AGENT_KEYS = (
    "provider",
    "model",
    "context",
    "output_format",
    "mcp",
    "skills",
    "agents",
    "effort",
    "thinking",
    "maxBudgetUsd",
    "systemPrompt",
    "fallbackModel",
    "betas",
)
_NO_EFFECT = ("pi", "always_run", "persist_session", "output_type")
_AI = ("prompt", "command")
_LOOPS = ("loop", "loop_group")
_SCRIPTS = ("bash", "script")
# What each kind honours beside the keys of every node.
_HONOURED: dict[str, tuple[str, ...]] = {
    "prompt": (*_AGENT_KEYS, "allowed_tools", "denied_tools", "retry", "idle_timeout"),
    "command": (*_AGENT_KEYS, "allowed_tools", "denied_tools", "retry", "idle_timeout"),
    "bash": ("retry", "idle_timeout", "timeout"),
    "script": ("retry", "idle_timeout", "timeout", "runtime", "deps"),
    "approval": ("provider", "model"),
    "cancel": (),
    "loop": ("provider", "model", "maxBudgetUsd", "idle_timeout"),
    "loop_group": ("provider", "model", "maxBudgetUsd", "idle_timeout"),
    "workflow": ("maxBudgetUsd", "arguments", "input", "inputs", "fan_out"),
}
# These belong to some kinds, and elsewhere they are a mistake.
_BELONGS = {
    "timeout": "bash and script",
    "runtime": "script",
    "deps": "script",
    **dict.fromkeys(("arguments", "input", "inputs", "fan_out"), "workflow"),
}


class _Finding(NamedTuple):
    code: str
    message: str
    hint: str | None


def unused(document: Document, made: Outline) -> Iterator[Diagnostic]:
    """Every key without a use."""
    if "sandbox" in made.top:
        yield _refused(document, ("sandbox",), _cannot_enforce("sandbox", None))
    for node in made.nodes:
        if node.kind is not None:
            yield from _of_node(document, node, node.kind)


def _of_node(document: Document, node: NodeAt, kind: str) -> Iterator[Diagnostic]:
    for key in node.value:
        path = (*node.path, key)
        if key in _HONOURED[kind]:
            found = _honoured(node, kind, key)
            if found:
                yield _warned(document, path, found)
        elif key in SECURITY:
            yield _refused(document, path, _cannot_enforce(key, kind))
        elif key in _BELONGS:
            message = f"{key} has no use here"
            hint = f"it goes with {_BELONGS[key]}"
            hint += "; silence is limited by idle_timeout" if key == "timeout" else ""
            yield _refused(document, path, _Finding("unsupported-here", message, hint))
        elif key == "retry" and kind in _LOOPS:
            message = "retry is not possible on a loop: it has iterations of its own"
            hint = "raise max_iterations, or let a node of a loop_group have it"
            yield _refused(document, path, _Finding("unsupported-here", message, hint))
        elif key == "retry" and kind == "workflow":
            message = "retry is not possible on a workflow: its nodes have tries of their own"
            yield _refused(document, path, _Finding("unsupported-here", message, None))
        elif key in (*_AGENT_KEYS, *_NO_EFFECT, "retry", "idle_timeout"):
            found = _ignored(node, kind, key)
            if found:
                yield _warned(document, path, found)


def _honoured(node: NodeAt, kind: str, key: str) -> _Finding | None:
    """Keys that are honoured, but for one value."""
    if key == "context" and node.value[key] == "shared":
        message = "context: shared has no effect: every node has a session of its own"
        return _Finding("ignored-here", message, "pass on what matters with $ID.output")
    if kind == "approval" and "on_reject" not in node.part("approval"):
        return _Finding("ignored-here", f"{key} has no effect: no agent works here", None)
    return None


def _ignored(node: NodeAt, kind: str, key: str) -> _Finding | None:
    if key == "output_format" and kind == "loop" and "until_field" in node.part("loop"):
        return None
    hints = {
        "context": "a loop has fresh_context for this",
        "output_format": "with until_field: NAME it is used and can end the loop",
    }
    hint = hints.get(key) if kind == "loop" else None
    if hint is None and kind in _LOOPS and key in _AGENT_KEYS:
        hint = "set it on a prompt node inside of a loop_group"
    if kind == "workflow" and (key in _AGENT_KEYS or key == "idle_timeout"):
        hint = "set it in that workflow"
    what = "a loop" if kind in _LOOPS else f"{kind} nodes"
    return _Finding("ignored-here", f"{key} has no effect on {what}", hint)


def _cannot_enforce(key: str, kind: str | None) -> _Finding:
    if kind in _LOOPS and key in ("allowed_tools", "denied_tools"):
        hint = f"use a loop_group whose prompt node has {key}"
    elif kind == "workflow" and key in ("allowed_tools", "denied_tools"):
        hint = "set it on the nodes of that workflow"
    elif key in ("hooks", "sandbox"):
        hint = "leave it out and use an agent that is confined by itself"
    else:
        hint = f"no agent works in a {kind} node; leave it out"
    return _Finding("unsupported-here", f"{key} cannot be enforced here", hint)


def _refused(document: Document, path: Path, found: _Finding) -> Diagnostic:
    return document.error(found.code, found.message, at=path, on_key=True, hint=found.hint)


def _warned(document: Document, path: Path, found: _Finding) -> Diagnostic:
    line, column = document.key_at(path)
    return Diagnostic(document.file, line, column, found.code, found.message, found.hint, "warning")
