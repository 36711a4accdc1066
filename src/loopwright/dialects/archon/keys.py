"""Keys that have no effect where they stand, and keys that nobody knows: each causes a warning.

Two kinds of key are errors. `retry` on a loop is refused, as its document says. A key that looks
like a misspelt restriction or edge is refused too, because the workflow would do what its author
excluded.
"""

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import BaseModel

from loopwright.dialects.archon.outline import KINDS, NodeAt, Outline, Path
from loopwright.dialects.archon.surface import (
    ApprovalSpec,
    BudgetSpec,
    FanOutSpec,
    GroupSpec,
    InputSpec,
    LoopSpec,
    NodeSpec,
    OnReject,
    RetrySpec,
    WaitSpec,
    Workflow,
    WorktreeSpec,
)
from loopwright.syntax.diagnostic import Diagnostic
from loopwright.syntax.document import Document
from loopwright.syntax.fields import keys_of
from loopwright.syntax.words import did_you_mean, suggest

PROVIDERS = ("claude", "codex", "gemini", "opencode")
"""Providers that an agent of Loopwright stands for."""
TIERS = ("small", "medium", "large")
"""Sizes of models that a workflow may name instead of a model."""
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
    "allowed_tools",
    "denied_tools",
    "hooks",
    "sandbox",
    "modelReasoningEffort",
    "webSearchMode",
    "additionalDirectories",
)
# Known to Archon, and without a use in Loopwright.
_NO_EFFECT = (
    "pi",
    "always_run",
    "persist_session",
    "output_type",
    "plugins",
    "settingSources",
    "mutates_checkout",
)
_NO_EFFECT_AT_THE_TOP = (
    "outcome_field",
    "requires",
    "container",
    "evidence_policy",
    "persist_sessions",
)
# Keys of other systems that people write, and what does the same here.
_ADVICE: dict[str, str | None] = {
    "env": "set the variables in the script, or use `loopwright run --env NAME`",
    **dict.fromkeys(("cwd", "workdir", "working_dir"), "let the script change its folder"),
    **dict.fromkeys(("maxTurns", "max_turns"), "maxBudgetUsd and idle_timeout are limits"),
    **dict.fromkeys(("permissionMode", "permission_mode"), "give a run --permission MODE"),
    **dict.fromkeys(
        ("continue_on_error", "on_failure", "on_error"),
        "trigger_rule: all_done on the nodes behind it",
    ),
    **dict.fromkeys(("title", "label", "name", "tags", "notes", "version", "author"), None),
    **dict.fromkeys(("category", "triggers", "temperature", "max_tokens", "outputs"), None),
}
_LOOPS = ("loop", "loop_group")
_CALLS = ("workflow", "include")
# What each kind honours beside the keys of every node.
_HONOURED: dict[str, tuple[str, ...]] = {
    "prompt": (*_AGENT_KEYS, "retry", "idle_timeout"),
    "command": (*_AGENT_KEYS, "retry", "idle_timeout", "with"),
    "bash": ("retry", "idle_timeout", "timeout", "on_timeout", "output_format"),
    "script": (
        *("retry", "idle_timeout", "timeout", "on_timeout"),
        *("runtime", "deps", "with", "output_format"),
    ),
    "approval": ("provider", "model"),
    "cancel": (),
    "wait": (),
    "loop": ("maxBudgetUsd", "idle_timeout"),
    "loop_group": ("provider", "model", "maxBudgetUsd", "idle_timeout"),
    "workflow": ("maxBudgetUsd", "arguments", "input", "inputs", "with", "fan_out", "isolation"),
    "include": ("maxBudgetUsd", "inputs", "with", "fan_out"),
}
# These belong to some kinds only.
_BELONGS = {
    **dict.fromkeys(("timeout", "on_timeout"), "bash and script"),
    "runtime": "script",
    "deps": "script with runtime: uv",
    "isolation": "workflow",
    **dict.fromkeys(("arguments", "input"), "workflow"),
    **dict.fromkeys(("inputs", "fan_out"), "workflow and include"),
    "with": "command, script, workflow and include",
}
# A near miss of one of these is refused: what its author means would silently not happen.
_MEANT = frozenset(
    {
        "id",
        "name",
        "description",
        "nodes",
        "depends_on",
        "when",
        "trigger_rule",
        "allowed_tools",
        "denied_tools",
        "maxBudgetUsd",
        "max_iterations",
        "until",
        "until_bash",
        "until_field",
        "interactive",
        "gate_message",
        "prompt",
        "message",
        "on_reject",
        "items",
        "runtime",
        *KINDS,
    }
)
_BLOCKS: dict[str, type[BaseModel]] = {
    "loop": LoopSpec,
    "loop_group": GroupSpec,
    "approval": ApprovalSpec,
    "retry": RetrySpec,
    "fan_out": FanOutSpec,
    "wait": WaitSpec,
}


class _Finding(NamedTuple):
    code: str
    message: str
    hint: str | None


def unused(document: Document, made: Outline) -> Iterator[Diagnostic]:
    """Every key without an effect."""
    yield from _unknown(document, made)
    for key in _NO_EFFECT_AT_THE_TOP:
        if made.top.get(key) not in (None, False):
            found = _Finding("ignored-here", f"{key} has no effect in Loopwright", None)
            yield _warned(document, (key,), found)
    deprecated = made.top.get("deprecated")
    if deprecated:
        said = deprecated.get("message") if isinstance(deprecated, dict) else None
        message = f"this workflow is deprecated{f': {said}' if isinstance(said, str) else ''}"
        yield _warned(document, ("deprecated",), _Finding("deprecated", message[:200], None))
    for node in made.nodes:
        if node.kind is not None:
            yield from _of_node(document, node, node.kind)


def _of_node(document: Document, node: NodeAt, kind: str) -> Iterator[Diagnostic]:
    for key in node.value:
        path = (*node.path, key)
        found: _Finding | None = None
        if key == "retry" and kind in _LOOPS:
            message = "retry is not possible on a loop: it has iterations of its own"
            hint = "raise max_iterations, or set retry on a node of a loop_group"
            yield document.error("unsupported-here", message, at=path, on_key=True, hint=hint)
        elif key == "retry" and kind in _CALLS:
            message = f"retry is not possible on {kind}: its nodes have retries of their own"
            yield document.error("unsupported-here", message, at=path, on_key=True)
        elif key in _HONOURED[kind]:
            found = _honoured(node, kind, key)
        elif key in _BELONGS:
            hint = f"it goes with {_BELONGS[key]}"
            hint += "; idle_timeout limits silence" if key == "timeout" else ""
            found = _Finding("ignored-here", f"{key} has no effect on {_noun(kind)}", hint)
        elif key in (*_AGENT_KEYS, *_NO_EFFECT, "retry", "idle_timeout"):
            found = _ignored(node, kind, key)
        if found:
            yield _warned(document, path, found)


def _honoured(node: NodeAt, kind: str, key: str) -> _Finding | None:
    """Keys that are honoured, except for some values."""
    value = node.value[key]
    if key == "context" and value != "fresh":
        message = "context has no effect: every node has a session of its own"
        return _Finding("ignored-here", message, "pass on what matters with $ID.output")
    if key == "isolation" and value == "worktree":
        message = "the other workflow works in the workspace of this run"
        hint = "its items run one at a time; use worktree: {enabled: true} at the top"
        return _Finding("ignored-here", message, hint)
    if key == "deps" and node.value.get("runtime") == "bun":
        hint = "bun installs what a script imports"
        return _Finding("ignored-here", "deps has no effect with runtime: bun", hint)
    if kind == "approval" and "on_reject" not in node.part("approval"):
        return _Finding("ignored-here", f"{key} has no effect: no agent works here", None)
    return None


def _ignored(node: NodeAt, kind: str, key: str) -> _Finding | None:
    if key == "output_format" and kind == "loop" and "until_field" in node.part("loop"):
        return None
    if key in _NO_EFFECT:
        return _without_effect(key, node.value[key])
    hint = None
    if kind == "loop" and key in ("provider", "model"):
        hint = "a loop uses those of the workflow: set it beside name"
    elif kind == "loop" and key == "context":
        hint = "a loop has fresh_context for this"
    elif kind == "loop" and key == "output_format":
        hint = "with until_field: NAME it is used and can end the loop"
    elif kind in _LOOPS and key in _AGENT_KEYS:
        hint = "set it on a prompt node inside a loop_group"
    elif kind in _CALLS and (key in _AGENT_KEYS or key == "idle_timeout"):
        hint = "set it in that workflow"
    elif key in _AGENT_KEYS:
        hint = "no agent works here"
    return _Finding("ignored-here", f"{key} has no effect on {_noun(kind)}", hint)


def _without_effect(key: str, value: object) -> _Finding | None:
    if key == "mutates_checkout" and value is False:
        hint = "an agent with denied_tools: [Write, Edit, Bash] changes none"
        return _Finding("ignored-here", "whether this node changes files is not checked", hint)
    if value in (None, False, [], {}):
        return None
    return _Finding("ignored-here", f"{key} has no effect in Loopwright", None)


def _noun(kind: str) -> str:
    return "a loop" if kind in _LOOPS else f"{kind} nodes"


def _warned(document: Document, path: Path, found: _Finding) -> Diagnostic:
    line, column = document.key_at(path)
    return Diagnostic(document.file, line, column, found.code, found.message, found.hint, "warning")


# -- keys that nobody knows ------------------------------------------------------------------------


def _unknown(document: Document, made: Outline) -> Iterator[Diagnostic]:
    yield from _unknown_in(document, (), made.top, Workflow)
    for name, one in made.inputs.items():
        yield from _unknown_in(document, ("inputs", name), one, InputSpec)
    yield from _unknown_in(document, ("worktree",), made.top.get("worktree"), WorktreeSpec)
    budget = made.top.get("budget")
    yield from _unknown_in(document, ("budget",), budget, BudgetSpec)
    if isinstance(budget, dict) and budget.get("max_work_units") is not None:
        message = "max_work_units has no effect: calls and scripts are not counted"
        found = _Finding("ignored-here", message, "max_spend_usd limits what a run costs")
        yield _warned(document, ("budget", "max_work_units"), found)
    for node in made.nodes:
        yield from _unknown_in(document, node.path, node.value, NodeSpec)
        for key, model in _BLOCKS.items():
            yield from _unknown_in(document, (*node.path, key), node.value.get(key), model)
        rework = node.part("approval").get("on_reject")
        yield from _unknown_in(document, (*node.path, "approval", "on_reject"), rework, OnReject)


def _unknown_in(
    document: Document, path: Path, value: object, model: type[BaseModel]
) -> Iterator[Diagnostic]:
    known = keys_of(model)
    for key in value if isinstance(value, dict) else ():
        if key in known:
            continue
        near = suggest(key, known, by_part=False)
        at = (*path, key)
        hint = did_you_mean(key, known, by_part=False)
        if key in _ADVICE:
            found = _Finding("ignored-here", f"{key} has no effect in Loopwright", _ADVICE[key])
            yield _warned(document, at, found)
        elif near in _MEANT and isinstance(value, dict) and near not in value:
            yield document.error("unknown-field", key, at=at, on_key=True, hint=hint)
        else:
            yield _warned(document, at, _Finding("unknown-field", f"{key} is ignored", hint))
