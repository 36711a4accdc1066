"""The agents of a workflow: one for all nodes, and one for each node with other settings.

A model may be a tier (`small`) or an alias (`@fast`) that `.archon/config.yaml` of the project
or of the user defines. A name that neither defines is kept: the settings map it when a run
starts.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from loopwright.dialects.archon.files import (
    CONFIG_FILES,
    ArchonFileRequest,
    Files,
    is_below,
    read_config,
)
from loopwright.dialects.archon.outline import ArchonOutline
from loopwright.dialects.archon.rules import PROVIDERS, TIERS
from loopwright.dialects.archon.surface import AgentKeys, ArchonWorkflow, NodeSpec
from loopwright.model.plan import Agent
from loopwright.model.record import JsonValue
from loopwright.syntax.document import Diagnostic, Document

DEFAULT = "assistant"
_MOST_CONFIG_BYTES = 65_536
_AI_NODES = ("prompt", "command", "loop")
_NODE_OPTIONS = {"skills": "skills", "agents": "agents", "hooks": "hooks"}
_SHARED_OPTIONS = {
    "effort": "effort",
    "thinking": "thinking",
    "fallback_model": "fallbackModel",
    "betas": "betas",
    "sandbox": "sandbox",
    "model_reasoning_effort": "modelReasoningEffort",
    "web_search_mode": "webSearchMode",
    "additional_directories": "additionalDirectories",
}


class Preset(NamedTuple):
    """The meaning of a tier or an alias."""

    provider: str | None
    model: str | None


class Config(NamedTuple):
    """What the settings say about agents."""

    presets: dict[str, Preset]  # tiers and aliases
    provider: str | None = None  # of workflows that name none
    models: dict[str, str] = {}  # of each provider, if none is named


def wanted_config(
    document: Document, made: ArchonOutline, files: Files
) -> Iterator[ArchonFileRequest]:
    """The settings, and the files that define the MCP servers of a workflow."""
    project, person = CONFIG_FILES
    # Settings of the person may contain keys, and are sent to a remote server: only where needed.
    for one in (project, person) if _asks_person(made) else (project,):
        if one not in files:
            yield ArchonFileRequest(
                one, document.at(()), "text", _MOST_CONFIG_BYTES, is_optional=True
            )
    for node in made.nodes:
        mcp = node.value.get("mcp")
        if isinstance(mcp, str) and is_below(mcp) and mcp not in files:
            yield ArchonFileRequest(mcp, document.at(node.path), "text", _MOST_CONFIG_BYTES)


def _asks_person(made: ArchonOutline) -> bool:
    """Whether a workflow names a tier or an alias, or no provider at all."""
    models = [one.get("model") for one in (made.top, *(node.value for node in made.nodes))]
    named = [one for one in models if isinstance(one, str)]
    is_open = not made.top.get("provider") and any(one.kind in _AI_NODES for one in made.nodes)
    return is_open or any(one in TIERS or one.startswith("@") for one in named)


def read_agents(files: Files) -> Config:
    """What the settings of the person, and then those of the project, say about agents."""
    presets: dict[str, Preset] = {}
    models: dict[str, str] = {}
    provider = None
    for path in reversed(CONFIG_FILES):
        config = read_config(path, files)
        for key in ("tiers", "aliases"):
            for name, one in _table(config, key).items():
                preset = _preset(one)
                if preset is not None:
                    word = name if key == "tiers" or name.startswith("@") else f"@{name}"
                    presets[word] = preset
        for name, one in _table(config, "assistants").items():
            model = _preset(one)
            if model is not None and model.model not in (None, "inherit"):
                models[name] = str(model.model)
        named = config.get("assistant", config.get("defaultAssistant"))
        provider = named if isinstance(named, str) and named else provider
    return Config(presets, provider, models)


def _table(config: dict[str, JsonValue], key: str) -> dict[str, JsonValue]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _preset(value: JsonValue) -> Preset | None:
    if isinstance(value, str):
        return Preset(None, value)
    if not isinstance(value, dict):
        return None
    provider, model = value.get("provider"), value.get("model")
    return Preset(
        provider if isinstance(provider, str) else None, model if isinstance(model, str) else None
    )


def read_servers(path: str, files: Files) -> dict[str, JsonValue] | None:
    """The MCP servers of a file, by their names; None if it cannot be read."""
    data = files.get(path)
    try:
        value: JsonValue = json.loads(data) if isinstance(data, bytes) else None
    except ValueError:
        return None
    inner = value.get("mcpServers", value) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else None


def servers(document: Document, made: ArchonOutline, files: Files) -> Iterator[Diagnostic]:
    """Nodes whose file of MCP servers cannot be read."""
    for node in made.nodes:
        mcp = node.value.get("mcp")
        if not isinstance(mcp, str) or node.kind not in ("prompt", "command"):
            continue
        if not is_below(mcp) or read_servers(mcp, files) is None:
            message = f"{mcp[:60]} has no MCP servers that can be read: the agent has none"
            hint = "name a JSON file below the project, from its folder"
            at = (*node.path, "mcp")
            yield document.warning("no-servers", message, at=at, hint=hint)


def configured(document: Document, made: ArchonOutline, files: Files) -> Iterator[Diagnostic]:
    """Aliases that .archon/config.yaml does not define, and a provider that only it names and for
    which there is no agent.
    """
    config = read_agents(files)
    yield from _aliases(document, made, config)
    provider = config.provider
    if provider in (None, *PROVIDERS) or made.top.get("provider"):
        return
    at = next((node.path for node in made.nodes if node.kind in _AI_NODES), None)
    if at is not None:
        message = f"Loopwright has no agent for the provider {str(provider)[:60]} of the settings"
        hint = f'give a run --agent SPEC, or add "{str(provider)[:60]}" = "SPEC" to [models]'
        yield document.warning("unknown-agent", message, at=at, hint=hint)


def _aliases(document: Document, made: ArchonOutline, config: Config) -> Iterator[Diagnostic]:
    """Each alias that is not defined, once."""
    configured = set(config.presets)
    # The model of a loop has no effect, so there is nothing to say about it.
    nodes = [(node.path, node.value) for node in made.nodes if node.kind != "loop"]
    for path, holder in [((), made.top), *nodes]:
        model = holder.get("model")
        if not isinstance(model, str) or not model.startswith("@") or model in configured:
            continue
        if holder.get("provider") not in (None, *PROVIDERS):
            continue  # The warning about the provider says what to do.
        configured.add(model)
        message = f"the alias {model[:60]} must be in the settings or in .archon/config.yaml"
        hint = f'[models] "{model[:60]}" = "model:PROVIDER/NAME", or give a run --agent SPEC'
        yield document.warning("unknown-model", message, at=(*path, "model"), hint=hint)


@dataclass(slots=True)
class ArchonAgents:
    """Collects the agents; nodes with the same settings share one."""

    flow: ArchonWorkflow
    files: Files
    made: dict[str, Agent] = field(default_factory=dict)

    def of(self, node: NodeSpec, group: NodeSpec | None) -> str:
        """The agent that works on a node."""
        agent = self._agent(group, node)
        plain = agent == self._agent(None, None)
        return self._named(DEFAULT if plain else node.id, agent)

    def below(self, flow: ArchonWorkflow) -> "ArchonAgents":
        """The agents of another workflow that is run here; if it names none, the same."""
        if not (flow.provider or flow.model):
            shared = {"provider": self.flow.provider, "model": self.flow.model}
            flow = flow.model_copy(update=shared)
        return ArchonAgents(flow, self.files, self.made)

    def _named(self, name: str, agent: Agent) -> str:
        for known, other in self.made.items():
            if other == agent:
                return known
        number = 1
        free = name
        while free in self.made or (free == DEFAULT and agent != self._agent(None, None)):
            number += 1
            free = f"{name}-{number}"
        self.made[free] = agent
        return free

    def _agent(self, group: NodeSpec | None, node: NodeSpec | None) -> Agent:
        config = read_agents(self.files)
        spec, model = self.flow.provider or config.provider, self.flow.model
        for one in (group, node):
            # A loop always has the provider and the model of the workflow.
            if one is not None and one.loop is None and (one.provider or one.model):
                # A model belongs to its provider: another provider does not use it.
                model = one.model or (model if one.provider in (None, spec) else None)
                spec = one.provider or spec
        preset = config.presets.get(model) if model is not None else None
        if preset is not None:
            spec, model = preset.provider or spec, preset.model
        elif model is None and spec is not None:
            model = config.models.get(spec)
        agent = Agent(spec=spec, model=model, options=self._options(node))
        if node is None or node.loop is not None or node.approval is not None:
            return agent
        tools = node.allowed_tools
        return Agent(
            spec=spec,
            model=model,
            system=node.system_prompt or "",
            tools=None if tools is None else tuple(tools),
            deny_tools=tuple(node.denied_tools or ()),
            max_usd=node.max_budget_usd,
            options=agent.options,
        )

    def _options(self, node: NodeSpec | None) -> dict[str, JsonValue]:
        options = _given(self.flow, _SHARED_OPTIONS)
        if node is not None and node.loop is None and node.approval is None:
            options |= _given(node, _SHARED_OPTIONS)
            options |= _given(node, _NODE_OPTIONS)
            found = read_servers(node.mcp, self.files) if node.mcp else None
            if found:
                options["mcp"] = found
        return options


def _given(holder: AgentKeys, names: dict[str, str]) -> dict[str, JsonValue]:
    found = {key: getattr(holder, name) for name, key in names.items()}
    return {key: value for key, value in found.items() if value is not None}
