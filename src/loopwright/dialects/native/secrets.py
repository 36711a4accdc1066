"""Secrets that a text asks for: no template has them, since every text ends up in a prompt."""

import re

_SECRET = re.compile(r"\{\{\s*(?:env|environment|secret|secrets)\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")


def secret_named(written: str) -> str | None:
    """The name of the variable or secret that a reference asks for, if it asks for one."""
    found = _SECRET.fullmatch(written)
    return found[1] if found else None
