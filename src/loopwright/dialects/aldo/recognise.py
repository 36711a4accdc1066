"""How sure this dialect is that a definition is its own."""

API = ("aldo-ai/", "meridian/agent")
_BLOCKS = frozenset({"identity", "model_policy", "iteration", "composite", "eval_gate"})


def recognise(value: object) -> int:
    """From 0 (not mine) to 100. The blocks alone say it too, so that a missing head is told."""
    if not isinstance(value, dict):
        return 0
    if str(value.get("apiVersion", "")).startswith(API):
        return 100
    return 80 if len(_BLOCKS & value.keys()) > 1 else 0
