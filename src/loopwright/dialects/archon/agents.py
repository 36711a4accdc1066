"""The agents of a workflow: one for all of it, and one for each node that wants another.

A model may be a tier (`small`) or an alias (`@fast`) that `.archon/config.yaml` of the project or
of the person defines. What neither defines stays as it is: the settings map it when a run starts.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from loopwright.dialects.archon.files import Files, Wanted
from loopwright.dialects.archon.keys import TIERS
from loopwright.dialects.archon.outline import Outline
from loopwright.dialects.archon.surface import AgentKeys, NodeSpec, Workflow
from loopwright.model.plan import Agent
from loopwright.model.record import JsonValue
from loopwright.syntax.diagnostic import Diagnostic
from loopwright.syntax.document import Document
from loopwright.syntax.reading import read

DEFAULT = "assistant"
CONFIG_FILES = (".archon/config.yaml", "~/.archon/config.yaml")
_MOST_CONFIG_BYTES = 65_536
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
    """What a tier or an alias stands for."""

    provider: str | None
    model: str | None


def wanted_config(document: Document, made: Outline, files: Files) -> Iterator[Wanted]:
    """The files that say what the models and MCP servers of a workflow are."""
    holders = [((), made.top), *((node.path, node.value) for node in made.nodes)]
    for path, holder in holders:
        model, mcp = holder.get("model"), holder.get("mcp")
        paths = CONFIG_FILES if isinstance(model, str) and is_portable(model) else ()
        for one in (*paths, *([mcp] if isinstance(mcp, str) and is_below(mcp) else [])):
            if one not in files:
                yield Wanted(one, document.at(path), "text", _MOST_CONFIG_BYTES)


def is_portable(model: str) -> bool:
    """Whether a model is a tier or an alias."""
    return model in TIERS or model.startswith("@")


def is_below(path: str) -> bool:
    """Whether a path names a file below the project."""
    return bool(path) and not path.startswith(("/", "~", "@")) and ".." not in path.split("/")


def read_presets(files: Files) -> dict[str, Preset]:
    """The tiers and aliases of the project, and then of the person."""
    made: dict[str, Preset] = {}
    for path in reversed(CONFIG_FILES):
        data = files.get(path)
        document = read(data, file=path)[0] if isinstance(data, bytes) else None
        value = document.value if document is not None else None
        config = value if isinstance(value, dict) else {}
        for key in ("tiers", "aliases"):
            table = config.get(key)
            for name, one in table.items() if isinstance(table, dict) else ():
                word = name if key == "tiers" or name.startswith("@") else f"@{name}"
                preset = _preset(one)
                if preset is not None:
                    made[word] = preset
    return made


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
    """The MCP servers of a file, by their names; None where it has none that can be read."""
    data = files.get(path)
    try:
        value: JsonValue = json.loads(data) if isinstance(data, bytes) else None
    except ValueError:
        return None
    inner = value.get("mcpServers", value) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else None


def servers(document: Document, made: Outline, files: Files) -> Iterator[Diagnostic]:
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


@dataclass(slots=True)
class Agents:
    """Gathers the agents; nodes that want the same share it."""

    flow: Workflow
    files: Files
    made: dict[str, Agent] = field(default_factory=dict)

    def of(self, node: NodeSpec, group: NodeSpec | None) -> str:
        """The agent that works on a node."""
        agent = self._agent(group, node)
        plain = agent == self._agent(None, None)
        return self._named(DEFAULT if plain else node.id, agent)

    def below(self, flow: Workflow) -> "Agents":
        """The agents of another workflow that is run here; where it names none, the same."""
        if not (flow.provider or flow.model):
            shared = {"provider": self.flow.provider, "model": self.flow.model}
            flow = flow.model_copy(update=shared)
        return Agents(flow, self.files, self.made)

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
        spec, model = self.flow.provider, self.flow.model
        for one in (group, node):
            # A loop always has the provider and the model of the workflow.
            if one is not None and one.loop is None and (one.provider or one.model):
                # A model belongs to its provider: another provider leaves it behind.
                model = one.model or (model if one.provider in (None, spec) else None)
                spec = one.provider or spec
        preset = read_presets(self.files).get(model) if model is not None else None
        if preset is not None:
            spec, model = preset.provider or spec, preset.model
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
