"""The JSON Schema of an agent, for editors; generated from the surface."""

from typing import TypeAlias, cast

from loopwright.dialects.aldo.surface import AgentSpec
from loopwright.model.record import JsonValue

Node: TypeAlias = dict[str, JsonValue]

_DRAFT = "http://json-schema.org/draft-07/schema#"
_EXAMPLE: Node = {
    "apiVersion": "aldo-ai/agent.v1",
    "kind": "Agent",
    "identity": {
        "name": "local-coder",
        "version": "0.1.0",
        "description": "Repairs what the compiler complains about.",
        "owner": "platform",
    },
    "role": {"team": "delivery", "pattern": "worker"},
    "model_policy": {
        "privacy_tier": "internal",
        "primary": {"capability_class": "local-reasoning"},
        "budget": {"usd_per_run": 0.5},
    },
    "prompt": {"system_file": "prompts/local-coder.md"},
    "tools": {"native": [{"ref": "fs.read"}, {"ref": "shell.exec"}]},
    "iteration": {
        "max_cycles": 30,
        "context_window": 128_000,
        "summary_strategy": "rolling-window",
        "termination_conditions": [{"kind": "text-includes", "text": "<task-complete>"}],
    },
}


def json_schema() -> Node:
    """Draft 7, which every editor knows."""
    made = cast("Node", AgentSpec.model_json_schema(ref_template="#/definitions/{model}"))
    definitions = made.pop("$defs", {})
    tidy = cast("Node", _tidied(made))
    both: Node = {"not": {"required": ["iteration", "composite"]}}
    head: Node = {"$schema": _DRAFT, "title": "Aldo agent"}
    return {**tidy, **both, **head, "examples": [_EXAMPLE], "definitions": _tidied(definitions)}


def _tidied(value: JsonValue) -> JsonValue:
    """Draft 7 reads nothing that stands beside a $ref, and no hint of a discriminator."""
    if isinstance(value, list):
        return [_tidied(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {key: one for key, one in value.items() if key != "discriminator"}
    if "$ref" in kept and len(kept) > 1:
        kept["allOf"] = [{"$ref": kept.pop("$ref")}]
    return {key: _tidied(one) for key, one in kept.items()}
