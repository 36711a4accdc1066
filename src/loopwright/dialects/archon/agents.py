"""The agents of a workflow: one for all of it, and one for each node that wants another."""

from dataclasses import dataclass, field

from loopwright.dialects.archon.surface import AgentKeys, NodeSpec, Workflow
from loopwright.model.plan import Agent
from loopwright.model.record import JsonValue

DEFAULT = "assistant"
_NODE_OPTIONS = {"mcp": "mcp", "skills": "skills", "agents": "agents"}
_SHARED_OPTIONS = {
    "effort": "effort",
    "thinking": "thinking",
    "fallback_model": "fallbackModel",
    "betas": "betas",
}
_FLOW_OPTIONS = {
    "model_reasoning_effort": "modelReasoningEffort",
    "web_search_mode": "webSearchMode",
    "additional_directories": "additionalDirectories",
}


@dataclass(slots=True)
class Agents:
    """Gathers the agents; nodes that want the same share it."""

    flow: Workflow
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
        return Agents(flow, self.made)

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
            if one is not None and (one.provider or one.model):
                # A model belongs to its provider: another provider leaves it behind.
                model = one.model or (model if one.provider in (None, spec) else None)
                spec = one.provider or spec
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
        options = _given(self.flow, _SHARED_OPTIONS) | _given(self.flow, _FLOW_OPTIONS)
        if node is not None and node.loop is None and node.approval is None:
            options |= _given(node, _SHARED_OPTIONS)
            options |= _given(node, _NODE_OPTIONS)
        return options


def _given(holder: AgentKeys, names: dict[str, str]) -> dict[str, JsonValue]:
    found = {key: getattr(holder, name) for name, key in names.items()}
    return {key: value for key, value in found.items() if value is not None}
