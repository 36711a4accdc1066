"""Agents of the list as programs read them."""

from loopwright.app.agent_registry import AgentEntry
from loopwright.app.moments import timestamp
from loopwright.model.record import JsonValue


def entry_item(entry: AgentEntry, problem: str | None = None) -> dict[str, JsonValue]:
    """An entry as one object, in the words of `GET /api/v1/agents`."""
    return {
        "name": entry.name,
        "spec": entry.spec,
        "listed": entry.enabled,
        "source": entry.source,
        "sandbox": entry.sandbox,
        "allow_off": entry.allow_off,
        "pass_env": [*entry.pass_env],
        "by": entry.by or None,
        "approved_at": timestamp(entry.approved_at) if entry.approved_at else None,
        "problem": problem,
    }
