"""Rules between the keys of one place: conflicts, required keys, and keys without an effect.

A key without an effect and an unknown key cause a warning, with two exceptions that are errors.
`retry` on a loop is refused, as the documentation of Archon says. A key that looks like a
misspelt restriction or edge is refused too, because the workflow would do what its author
excluded.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from pydantic import BaseModel

from loopwright.dialects.archon.outline import KINDS, ArchonOutline, Mapping, NodeAt, Path
from loopwright.dialects.archon.surface import (
    DROPPED,
    ApprovalSpec,
    ArchonWorkflow,
    BudgetSpec,
    EvidenceSpec,
    FanOutSpec,
    GroupSpec,
    InputSpec,
    LoopSpec,
    NodeSpec,
    OnReject,
    RetrySpec,
    TopKeys,
    WaitSpec,
    WorktreeSpec,
    is_file_name,
)
from loopwright.dialects.archon.variables import Mark, marks
from loopwright.syntax.document import Diagnostic, Document, clip, did_you_mean, misspelt, suggest
from loopwright.syntax.notations import point_ms
from loopwright.syntax.validation import keys_of, validate

PROVIDERS = ("claude", "codex", "gemini", "opencode")
"""Providers for which Loopwright has an agent."""
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
)
_NO_EFFECT_AT_THE_TOP = (
    "outcome_field",
    "requires",
    "container",
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
    "prompt": (*_AGENT_KEYS, "retry", "idle_timeout", "mutates_checkout"),
    "command": (*_AGENT_KEYS, "retry", "idle_timeout", "mutates_checkout", "with"),
    "bash": (
        *("retry", "idle_timeout", "timeout", "on_timeout", "output_format"),
        "mutates_checkout",
    ),
    "script": (
        *("retry", "idle_timeout", "timeout", "on_timeout", "mutates_checkout"),
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


_SHORTEST_LIMIT = 1_000  # milliseconds; less was most likely meant as seconds


class _Finding(NamedTuple):
    code: str
    message: str
    hint: str | None


def unused(document: Document, made: ArchonOutline) -> Iterator[Diagnostic]:
    """Every key without an effect."""
    yield from _unknown(document, made)
    yield from _dropped(document)
    for key in _NO_EFFECT_AT_THE_TOP:
        if made.top.get(key) not in (None, False):
            found = _Finding("ignored-here", f"{key} has no effect in Loopwright", None)
            yield _warned(document, (key,), found)
    deprecated = made.top.get("deprecated")
    if deprecated:
        configured = deprecated.get("message") if isinstance(deprecated, dict) else None
        message = (
            f"this workflow is deprecated{f': {configured}' if isinstance(configured, str) else ''}"
        )
        yield _warned(document, ("deprecated",), _Finding("deprecated", message[:200], None))
    for node in made.nodes:
        if node.kind is not None:
            yield from _of_node(document, node, node.kind)


def _dropped(document: Document) -> Iterator[Diagnostic]:
    """Keys at the top with a value that they cannot have."""
    top = document.value if isinstance(document.value, dict) else {}
    places = {document.at((key,)) for key in DROPPED if key in top}
    for one in validate(TopKeys, document)[1]:
        if (one.line, one.column) in places:
            message = f"{one.message}: the key is ignored"
            yield replace(one, code="ignored-here", message=message, severity="warning")


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
        elif key == "mutates_checkout" and node.value[key] is not False:
            continue
        elif key in (*_AGENT_KEYS, *_NO_EFFECT, "retry", "idle_timeout", "mutates_checkout"):
            found = _ignored(node, kind, key)
        if found:
            yield _warned(document, path, found)
        elif key in _HONOURED[kind]:
            yield from _short_limit(document, path, node.value[key])


def _short_limit(document: Document, path: Path, value: object) -> Iterator[Diagnostic]:
    if path[-1] != "timeout" or not isinstance(value, int | float):
        return
    if 0 < value < _SHORTEST_LIMIT:
        message = f"timeout is in milliseconds: {value:g} is {value / 1000:g} s"
        hint = f"for {value:g} seconds write {value * 1000:g}"
        yield _warned(document, path, _Finding("short-limit", message, hint))


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
    if value in (None, False, [], {}):
        return None
    return _Finding("ignored-here", f"{key} has no effect in Loopwright", None)


def _noun(kind: str) -> str:
    return "a loop" if kind in _LOOPS else f"{kind} nodes"


def _warned(document: Document, path: Path, found: _Finding) -> Diagnostic:
    line, column = document.key_at(path)
    return Diagnostic(document.file, line, column, found.code, found.message, found.hint, "warning")


# -- unknown keys
# -----------------------------------------------------------------------------------


def _unknown(document: Document, made: ArchonOutline) -> Iterator[Diagnostic]:
    yield from _unknown_in(document, (), made.top, ArchonWorkflow)
    for name, one in made.inputs.items():
        yield from _unknown_in(document, ("inputs", name), one, InputSpec)
    yield from _unknown_in(document, ("worktree",), made.top.get("worktree"), WorktreeSpec)
    evidence = made.top.get("evidence_policy")
    yield from _unknown_in(document, ("evidence_policy",), evidence, EvidenceSpec)
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
        if path and path[-1] in _LOOPS and key in keys_of(NodeSpec):
            hint = "write it beside id, not inside of the loop"
        if key in _ADVICE:
            found = _Finding("ignored-here", f"{key} has no effect in Loopwright", _ADVICE[key])
            yield _warned(document, at, found)
        elif near in _MEANT and isinstance(value, dict) and near not in value:
            yield document.error("unknown-field", key, at=at, on_key=True, hint=hint)
        else:
            yield _warned(document, at, _Finding("unknown-field", f"{key} is ignored", hint))


MAX_DEPTH = 3
_PATH = re.compile(r"[A-Za-z0-9_./\\~-]+")
_CHANNELS = ("until", "until_bash", "until_field")
_NODE_KEYS = keys_of(NodeSpec)
_LOOP_KEYS = keys_of(LoopSpec)
_GROUP_KEYS = keys_of(GroupSpec)
_CLAUDE = ("sonnet", "opus", "haiku", "claude-", "inherit")
_WAITS = ("duration_ms", "until", "event", "attention")


def structure(document: Document, made: ArchonOutline) -> Iterator[Diagnostic]:
    """All that breaks a rule between keys."""
    yield from _inputs(document, made)
    yield from _returns(document, made)
    # The provider and model of a loop have no effect, so there is nothing to say about them.
    configured: set[str] = set()
    holders = [(node.path, node.value) for node in made.nodes if node.kind != "loop"]
    for path, holder in [((), made.top), *holders]:
        yield from _model(document, path, holder, configured)
    for node in made.nodes:
        yield from _kinds(document, node)
        yield from _wait(document, node)
        yield from _script(document, node)
        yield from _schema(document, node)
        for key in ("loop", "loop_group"):
            if isinstance(node.value.get(key), dict):
                yield from _loop(document, made, node, key)


# -- nodes -----------------------------------------------------------------------------------------


def _kinds(document: Document, node: NodeAt) -> Iterator[Diagnostic]:
    kinds = [key for key in KINDS if key in node.value]
    if len(kinds) > 1:
        message = f"{kinds[0]} and {kinds[1]} exclude each other"
        advice = "make two nodes of them"
        place = (*node.path, kinds[1])
        yield document.error("mutually-exclusive", message, at=place, on_key=True, hint=advice)
    elif not kinds and not misspelt(node.value, _NODE_KEYS, *KINDS):
        message = f"a node needs one of {', '.join(KINDS)}"
        unknown = next((key for key in node.value if key not in _NODE_KEYS), None)
        hint = f"{clip(unknown)} is not a kind of node" if unknown else None
        yield document.error("missing-field", message, at=node.path, hint=hint)


def _script(document: Document, node: NodeAt) -> Iterator[Diagnostic]:
    if "script" not in node.value:
        return
    if "runtime" not in node.value and not misspelt(node.value, _NODE_KEYS, "runtime"):
        message = "runtime is required with script: uv for Python, bun for JavaScript"
        yield document.error("missing-field", message, at=node.path)
    text = node.value["script"]
    if isinstance(text, str) and _PATH.fullmatch(text) and not is_file_name(text):
        message = f'"{text[:60]}" cannot be the name of a script'
        hint = "name a file in .archon/scripts, without folders"
        yield document.error("bad-name", message, at=(*node.path, "script"), hint=hint)


def _schema(document: Document, node: NodeAt) -> Iterator[Diagnostic]:
    """References of a schema stay inside of it: nothing is fetched."""
    todo: list[tuple[Path, object]] = [
        ((*node.path, "output_format"), node.value.get("output_format"))
    ]
    for path, value in todo:  # grows while it is walked
        if isinstance(value, dict):
            target = value.get("$ref")
            if isinstance(target, str) and not target.startswith("#"):
                hint = "copy it into definitions and write #/definitions/NAME"
                message = f"{target[:60]} leads out of the schema"
                yield document.error("remote-ref", message, at=(*path, "$ref"), hint=hint)
            todo += [((*path, key), one) for key, one in value.items()]
        elif isinstance(value, list):
            todo += [((*path, number), one) for number, one in enumerate(value)]


def _model(
    document: Document, path: Path, holder: Mapping, configured: set[str]
) -> Iterator[Diagnostic]:
    """Agents and models that may not be available: a run reports what is missing, or is given
    another agent. Each is reported once.
    """
    provider, model = holder.get("provider"), holder.get("model")
    if isinstance(provider, str) and provider.strip() and provider not in PROVIDERS:
        if provider not in configured:
            configured.add(provider)
            message = f"Loopwright has no agent for the provider {provider[:60]}"
            hint = did_you_mean(provider, PROVIDERS) or (
                f'give a run --agent SPEC, or add "{provider[:60]}" = "SPEC" to [models] in the '
                "settings"
            )
            yield document.warning("unknown-agent", message, at=(*path, "provider"), hint=hint)
        return
    if not isinstance(provider, str) or not isinstance(model, str):
        return
    is_claude = model.startswith(_CLAUDE)
    is_portable = model in TIERS or model.startswith("@")
    mismatch = provider == "claude" and not is_claude and not is_portable
    if mismatch or (provider == "codex" and is_claude):
        message = f"{provider} may not have the model {model[:60]}"
        hint = "name a model of that provider, or another provider"
        yield document.warning("model-mismatch", message, at=(*path, "model"), hint=hint)


def _wait(document: Document, node: NodeAt) -> Iterator[Diagnostic]:
    value, path = node.value.get("wait"), (*node.path, "wait")
    if not isinstance(value, dict):
        return
    found = [key for key in _WAITS if key in value]
    if len(found) != 1:
        message = f"wait needs one of {', '.join(_WAITS)}"
        yield document.error(
            "missing-field" if not found else "mutually-exclusive", message, at=path
        )
    until = value.get("until")
    if isinstance(until, str) and not marks(until) and point_ms(until) is None:
        message = f'"{until[:60]}" is not a moment'
        hint = "write 2026-08-25T22:00:00Z"
        yield document.error("bad-value", message, at=(*path, "until"), hint=hint)
    if "deadline_ms" in value and "event" not in value:
        line, column = document.key_at((*path, "deadline_ms"))
        message = "deadline_ms has no effect without event"
        yield Diagnostic(document.file, line, column, "ignored-here", message, None, "warning")


# -- loops -----------------------------------------------------------------------------------------


def _loop(document: Document, made: ArchonOutline, node: NodeAt, key: str) -> Iterator[Diagnostic]:
    value, path = node.part(key), (*node.path, key)
    if node.graph.depth + 1 > MAX_DEPTH:
        message = f"loops are nested more than {MAX_DEPTH} deep"
        yield document.error("too-nested", message, at=path, on_key=True)
    known = _LOOP_KEYS if key == "loop" else _GROUP_KEYS
    if key == "loop":
        yield from _one_prompt(document, value, path)
        yield from _until_field(document, node, value, path)
    channels = _CHANNELS if key == "loop" else _CHANNELS[:2]
    if not set(channels) & set(value) and not misspelt(value, known, *channels):
        message = "until is required: the word that ends the loop"
        hint = "or until_bash: a script that does, or until_field: a field of output_format"
        yield document.error("missing-field", message, at=path, hint=hint)
    yield from _gate(document, made, value, path)


def _one_prompt(document: Document, value: Mapping, path: Path) -> Iterator[Diagnostic]:
    if "prompt" in value and "command" in value:
        place = (*path, "command")
        message = "prompt and command exclude each other"
        yield document.error("mutually-exclusive", message, at=place, on_key=True)
    elif not {"prompt", "command"} & set(value) and not misspelt(
        value, _LOOP_KEYS, "prompt", "command"
    ):
        message = "prompt is required: what the agent is asked in each iteration"
        hint = "or command: the name of a file in .archon/commands"
        yield document.error("missing-field", message, at=path, hint=hint)


def _until_field(
    document: Document, node: NodeAt, value: Mapping, path: Path
) -> Iterator[Diagnostic]:
    field = value.get("until_field")
    if not isinstance(field, str):
        return
    place = (*path, "until_field")
    schema = node.part("output_format")
    properties = schema.get("properties")
    declared = properties if isinstance(properties, dict) else {}
    entry, needed = declared.get(field), schema.get("required")
    if field not in declared:
        message = f"output_format has no field {field[:60]}"
        hint = did_you_mean(field, declared) or (
            f"output_format: {{type: object, properties: {{{field}: {{type: boolean}}}}, "
            f"required: [{field}]}}"
        )
        yield document.error("unknown-reference", message, at=place, hint=hint)
    elif not isinstance(entry, dict) or entry.get("type") != "boolean":
        message = f"{field} must be a boolean in output_format to end the loop"
        yield document.error("bad-value", message, at=place, hint=f"{field}: {{type: boolean}}")
    elif not isinstance(needed, list) or field not in needed:
        message = f"{field} must be required in output_format to end the loop"
        yield document.error("bad-value", message, at=place, hint=f"required: [{field}]")


def _gate(
    document: Document, made: ArchonOutline, value: Mapping, path: Path
) -> Iterator[Diagnostic]:
    if value.get("interactive") is not True:
        for key in ("gate_message", "signal_completes"):
            if key in value:
                line, column = document.key_at((*path, key))
                message = f"{key} has no effect without interactive: true"
                yield Diagnostic(
                    document.file, line, column, "ignored-here", message, None, "warning"
                )
        return
    if "gate_message" not in value and not misspelt(value, _LOOP_KEYS, "gate_message"):
        message = "gate_message is required with interactive: what the person is asked"
        yield document.error("missing-field", message, at=path)
    if made.top.get("interactive") is not True:
        message = "the loop asks a person, but the workflow is not interactive"
        hint = "write interactive: true beside its name"
        yield document.warning("not-interactive", message, at=(*path, "interactive"), hint=hint)


def _returns(document: Document, made: ArchonOutline) -> Iterator[Diagnostic]:
    name = made.top.get("returns")
    names = made.graphs[0].by_id
    if isinstance(name, str) and name not in names:
        message = f"no node is called {name[:60]}"
        hint = did_you_mean(name, names)
        yield document.error("unknown-reference", message, at=("returns",), hint=hint)


# -- inputs ----------------------------------------------------------------------------------------


def _inputs(document: Document, made: ArchonOutline) -> Iterator[Diagnostic]:
    """A default is taken as it is; one that names an input would have to be filled first."""
    defaults = {
        name: entry.get("default") for name, entry in made.inputs.items() if isinstance(entry, dict)
    }
    found = {name: _plain_marks(text) for name, text in defaults.items() if isinstance(text, str)}
    names = {
        name: [one.ref.name or "" for one in some if one.ref.of == "input"]
        for name, some in found.items()
    }
    for name, some in found.items():
        place = ("inputs", name, "default")
        trail = _cycle(names, name)
        if trail:
            message = f"inputs name one another: {' → '.join(trail)}"
            yield document.error("variable-cycle", message, at=place)
        elif some:
            message = f"{some[0].written} would not be filled: a default is taken as it is"
            hint = "let the node that uses the input name both"
            yield document.error("unsupported-here", message, at=place, hint=hint)


def _plain_marks(text: str) -> list[Mark]:
    return [one for one in marks(text) if not one.escaped]


def _cycle(names: dict[str, list[str]], start: str) -> list[str] | None:
    """The way from a name back to itself."""
    trails = [[start]]
    seen: set[str] = set()
    for trail in trails:  # grows while it is walked
        for name in names.get(trail[-1], ()):
            if name == start:
                return [*trail, start]
            if name not in seen:
                seen.add(name)
                trails.append([*trail, name])
    return None
