"""What agents are called in messages and lists: their name, or their spec where they have none."""

import re
from collections.abc import Mapping

from loopwright.kernel.masking import mask_text
from loopwright.model.plan import Agent, Plan

LOOP_AGENTS = ("worker", "judge")
"""The names that `loop` gives to its agents, whatever they are."""
SPEC_KINDS = ("acp", "command", "jsonl", "model", "plugin", "script")
"""The names of agents that are given by their spec alone."""
_MOST_CHARS = 60
_NUMBER = re.compile(r"-[0-9]+\Z")


def agent_title(name: str, agents: Mapping[str, Agent]) -> str:
    """The name of an agent; the spec of one that a definition has by its spec alone, as it was
    written but without what looks like a secret. Such an agent is named after its kind.
    """
    spec = _spec(name, agents)
    if not _is_named_after(name, spec):
        return name
    shown = mask_text(spec)
    return shown if len(shown) <= _MOST_CHARS else f"{shown[: _MOST_CHARS - 1]}…"


def title_among_runs(name: str, plan: Plan) -> str:
    """The same in a list of several runs, where the names that `loop` gives say nothing. Specs are
    complete, so that those with the same beginning are not taken for one.
    """
    spec = _spec(name, plan.agents)
    is_loop = plan.dialect == "native" and {"worker"} <= {*plan.agents} <= {*LOOP_AGENTS}
    return mask_text(spec) if spec and (is_loop or _is_named_after(name, spec)) else name


def _spec(name: str, agents: Mapping[str, Agent]) -> str:
    agent = agents.get(name)
    return " ".join((agent.spec or "").split()) if agent is not None else ""


def _is_named_after(name: str, spec: str) -> bool:
    return is_kind(name) and spec.startswith(f"{_NUMBER.sub('', name)}:")


def is_kind(name: str) -> bool:
    """Whether a name only says what kind of agent it is: the second of a kind is `command-2`."""
    return _NUMBER.sub("", name) in SPEC_KINDS


def quoted_agent(name: str, agents: Mapping[str, Agent], *, with_spec: bool = False) -> str:
    """An agent in a message: by its name, which its spec may follow, or by its spec."""
    title = agent_title(name, agents)
    if title != name:
        return f"agent `{title}`"
    agent = agents.get(name)
    spec = mask_text(agent.spec or "") if agent is not None and with_spec else ""
    return f"agent {name!r} ({spec})" if spec else f"agent {name!r}"
