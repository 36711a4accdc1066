"""How sure this dialect is that a definition is its own."""


def recognise(value: object) -> int:
    """From 0 (not mine) to 100."""
    if not isinstance(value, dict):
        return 0
    if "termination_condition" in value:
        return 100
    return 60 if isinstance(value.get("roles"), list) else 0
