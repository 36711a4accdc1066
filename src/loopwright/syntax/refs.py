"""Names of branches: which are safe to hand to git, to a shell's variable and to a person."""

MOST_CHARS = 200
_FORBIDDEN = frozenset(" ~^:?*[\\;&|<>$`'\"(){}!#%")


def ref_problem(name: str) -> str | None:
    """Why a text is no name of a branch, or None. Stricter than git: nothing that a shell reads."""
    if not name:
        return "it is empty"
    if len(name) > MOST_CHARS:
        return f"it has more than {MOST_CHARS} characters"
    if name.startswith("-"):
        return "it begins with - and would be taken for an option"
    for char in name:
        if not char.isprintable() or char in _FORBIDDEN:
            return f"it has the character U+{ord(char):04X}"
    if ".." in name or "@{" in name or "//" in name or name == "@":
        return "it has .., // or @{"
    parts = name.split("/")
    if any(not part or part.startswith(".") or part.endswith((".", ".lock")) for part in parts):
        return "a part of it is empty, begins or ends with a dot, or ends with .lock"
    return None
