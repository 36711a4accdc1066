"""How sure this dialect is that a definition is its own."""

_SIGNS = ("loopEnabled", "loopCriteria", "maxIterations")


def recognise(value: object) -> int:
    """From 0 (not mine) to 100."""
    return 100 if isinstance(value, dict) and any(sign in value for sign in _SIGNS) else 0
