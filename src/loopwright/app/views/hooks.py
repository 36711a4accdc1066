"""Hooks as lists show them, never with their secrets."""

from loopwright.app.incoming import Hooks, Incoming
from loopwright.app.moments import timestamp
from loopwright.model.record import JsonValue


def hook_item(hooks: Hooks, hook: Incoming) -> dict[str, JsonValue]:
    """A hook as a line of a list, with how many messages of it wait."""
    return {
        "name": hook.name,
        "stored": hook.definition,
        "message": hook.message,
        "at_once": hook.at_once,
        "allow_unknown_cost": hook.allow_unknown_cost,
        "waiting": len(hooks.at("waiting", hook.name)),
        "problem": hook.problem or None,
        "created_at": timestamp(hook.created_at),
    }


def hook_items(hooks: Hooks) -> list[dict[str, JsonValue]]:
    """All of them."""
    return [hook_item(hooks, hook) for hook in hooks.all()]
