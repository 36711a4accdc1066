"""How sure this dialect is that a definition is its own."""

NAME = "archon"

_OLD_STEPS = ("command", "parallel", "loop")


def recognise(value: object) -> int:
    """From 0 (not mine) to 100. Workflows of the old form are known too, to be told what to do."""
    if not isinstance(value, dict):
        return 0
    if isinstance(value.get("nodes"), list):
        return 100
    steps = value.get("steps")
    if not isinstance(steps, list) or not steps:
        return 0
    old = all(isinstance(one, dict) and "id" not in one and _is_old(one) for one in steps)
    return 40 if old else 0


def _is_old(step: dict[str, object]) -> bool:
    return any(key in step for key in _OLD_STEPS)
