"""The small language that says when a round is the last: `true`, `false`, or a path of its output.

A path begins with `$`, the output itself, and goes down by `.name`, `['name']` or `[0]`.
"""

import re
from typing import TypeAlias

Target: TypeAlias = bool | tuple[str | int, ...]

_STEP = re.compile(
    r"""
      \.(?P<name>[A-Za-z_][A-Za-z0-9_-]*)
    | \[(?P<index>\d{1,6})\]
    | \['(?P<single>[^'\n]*)'\]
    | \["(?P<double>[^"\n]*)"\]
    """,
    re.VERBOSE,
)


def parse_path(text: str) -> Target | None:
    """A constant, the parts of a path, or None when it is neither."""
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    if not text.startswith("$"):
        return None
    parts: list[str | int] = []
    at = 1
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            return None
        if step["index"] is not None:
            parts.append(int(step["index"]))
        else:
            parts.append(
                next(one for one in step.group("name", "single", "double") if one is not None)
            )
        at = step.end()
    return tuple(parts)
