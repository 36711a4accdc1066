"""Status messages in what programs print for people: retries, connections, limits, sign-in."""

import re

from loopwright.agents.clis.tool_calls import one_line

_STATUS = re.compile(
    r"retry(?:ing)?\b|reconnect|rate.?limit|quota|overloaded|too many requests|try again"
    r"|log ?in required|not (?:logged|signed) in|waiting for (?:auth|approval|quota)",
    re.I,
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def status_in(line: str) -> str:
    """The status message on a line, or an empty text when the line is something else."""
    plain = _COLOURS.sub("", line)
    return one_line(plain) if _STATUS.search(plain) else ""
