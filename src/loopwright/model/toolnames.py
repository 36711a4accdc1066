"""Names of tools in rules that people write: about approvals, and about what is denied."""

ANY = "*"


def speaks_of(name: str, tool: str) -> bool:
    """Whether a rule under this name is about a tool. A name is a tool's own, or the last parts of
    it, or a longer one that ends with it; `SERVER.*` is every tool of a server, `*` every tool.
    """
    if is_open(name):
        return tool.startswith(name.removesuffix(ANY))
    return name == tool or tool.endswith(f".{name}") or name.endswith(f".{tool}")


def is_open(name: str) -> bool:
    """Whether a name stands for tools that nobody has listed."""
    return name == ANY or name.endswith(f".{ANY}")
