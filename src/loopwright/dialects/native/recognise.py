"""How sure this dialect is that a definition is its own."""

NAME = "native"

_SIGNS = ("agent", "agents", "budget", "goal", "repeat")


def recognise(value: object) -> int:
    """From 0 (not mine) to 100; native takes what no other dialect claims."""
    if not isinstance(value, dict):
        return 0
    if "converted_from" in value:
        return 100
    return 50 if any(sign in value for sign in _SIGNS) else 10
