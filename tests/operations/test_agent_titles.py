"""What agents are called in messages and lists."""

import pytest

from loopwright.model.plan import Agent, Plan
from loopwright.views.formats import agent_title, quoted_agent, titles_among_runs

LONG = f"command:{'./a' * 40}"


@pytest.mark.parametrize(
    ("name", "spec", "title", "quoted"),
    [
        ("coder", "command:./a.sh -x", "coder", "agent 'coder' (command:./a.sh -x)"),
        ("command", "command:./a.sh -x", "command:./a.sh -x", "agent `command:./a.sh -x`"),
        ("jsonl", "jsonl: ./a.sh", "jsonl: ./a.sh", "agent `jsonl: ./a.sh`"),
        ("model", "model:local/tiny", "model:local/tiny", "agent `model:local/tiny`"),
        ("command", "command:./a --token abc123", "command:./a --token ***", None),
        ("coder", "command:./a --token abc123", "coder", "agent 'coder' (command:./a --token ***)"),
        ("command-2", "command:./b.sh", "command:./b.sh", "agent `command:./b.sh`"),
        ("command-2", "jsonl:./b.sh", "command-2", "agent 'command-2' (jsonl:./b.sh)"),
        ("coder-2", "coder:./b.sh", "coder-2", "agent 'coder-2' (coder:./b.sh)"),
        ("claude", "claude", "claude", "agent 'claude' (claude)"),
        ("command", "jsonl:./a", "command", "agent 'command' (jsonl:./a)"),
        ("command", LONG, f"{LONG[:59]}…", None),
        ("command", None, "command", "agent 'command'"),
    ],
)
def test_an_agent_is_called_by_its_name_or_its_spec(
    name: str, spec: str | None, title: str, quoted: str | None
) -> None:
    """One that has no name of its own is called by its spec, which shows no secret."""
    agents = {name: Agent(spec=spec)}
    assert agent_title(name, agents) == title
    assert quoted_agent(name, agents, with_spec=True) == (quoted or f"agent `{title}`")


def test_an_agent_that_a_plan_has_not_is_called_by_its_name() -> None:
    """It may be named before it is bound."""
    assert quoted_agent("coder", {}) == "agent 'coder'"


@pytest.mark.parametrize(
    ("agents", "dialect", "title"),
    [
        ({"worker": "claude"}, "native", "claude"),
        ({"worker": "claude", "judge": "codex"}, "native", "claude"),
        ({"worker": "jsonl:./a --token abc123"}, "native", "jsonl:./a --token ***"),
        ({"worker": LONG}, "native", LONG),
        ({"worker": None}, "native", "worker"),
        ({"worker": "claude", "reviewer": "codex"}, "native", "worker"),
        ({"worker": "claude"}, "zenflow", "worker"),
    ],
)
def test_agents_of_loops_are_called_by_their_spec_among_runs(
    agents: dict[str, str | None], dialect: str, title: str
) -> None:
    """`loop` calls every agent `worker`, so that name would add up different programs."""
    found = {name: Agent(spec=spec) for name, spec in agents.items()}
    plan = Plan(name="x", steps=(), agents=found, dialect=dialect)
    assert titles_among_runs(plan).get("worker", "worker") == title
