"""Status messages in what programs print for people: retries, connections, limits, sign-in."""

import re

from loopwright.agents.clis.tool_calls import one_line

_STATUS = re.compile(
    r"retry(?:ing)?\b|reconnect|rate.?limit|quota|overloaded|too many requests|try again"
    r"|log ?in required|not (?:logged|signed) in|waiting for (?:auth|approval|quota)",
    re.I,
)
# A line in the log of OpenCode; a request that fails is made again, or an event ends the call.
_LOGGED = re.compile(r"timestamp=\S+ level=[A-Z]+ ")
_FAILED_REQUEST = re.compile(
    r'message="stream error" .*\bsmall=false\b.* '
    r'error\.error="(?:\w+: )?(?P<words>(?:[^"\\]|\\.)+)"'
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def status_in(line: str) -> str:
    """The status message on a line, or an empty text when the line is something else."""
    plain = _COLOURS.sub("", line)
    if _LOGGED.match(plain):
        failed = _FAILED_REQUEST.search(plain)
        return one_line(f"request failed: {failed['words']}") if failed else ""
    return one_line(plain) if _STATUS.search(plain) else ""


def without_log(text: str) -> str:
    """What a program printed for people, without lines of its log."""
    return "".join(line for line in text.splitlines(keepends=True) if not _LOGGED.match(line))
