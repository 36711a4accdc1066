"""The YAML between two lines of dashes at the start of a text file."""

FENCE = "---"


def front_matter(data: bytes) -> tuple[bytes, str] | None:
    """The front matter, with as many lines before it as it really has, and the text."""
    lines = data.decode(errors="replace").removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != FENCE:
        return None
    end = next((n for n, line in enumerate(lines) if n and line.rstrip() == FENCE), None)
    if end is None:
        return None
    return "\n".join(["", *lines[1:end]]).encode(), "\n".join(lines[end + 1 :]).strip()
