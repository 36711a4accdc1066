"""Let an agent run the check commands of the loop that it works in, and no other command.

Each program has its own patterns for commands. A check is put into one only if none of its
characters means anything there or to a shell; otherwise the agent is not allowed to run it.
"""

import re
import shlex
from collections.abc import Iterable

from loopwright.agents.clis.table import DEFAULT_PERMISSION
from loopwright.model.plan import Agent
from loopwright.model.toolnames import family_of

EDIT_WORDS = ("edit", "acceptEdits", "auto_edit", "workspace-write")
ADDS = "+"
"""The first character of a tool that is allowed in addition to what the permission allows."""

# Letters, digits and punctuation without a meaning in patterns; blanks only inside of quotes.
_PLAIN = re.compile(r"[\w@%+=:./ '-]+", re.ASCII)


def check_lines(checks: Iterable[tuple[str, ...]], agent: Agent) -> tuple[str, ...]:
    """The command lines of checks that an agent may run, as it writes them: those of an agent that
    may edit, unless the definition names its only tools or denies it commands.
    """
    permission = agent.permission or DEFAULT_PERMISSION
    if any(
        family is not None and family.name == "bash" for family in map(family_of, agent.deny_tools)
    ):
        return ()
    if permission not in EDIT_WORDS or agent.access is not None or only_tools(agent) is not None:
        return ()
    lines = (shlex.join(argv) for argv in checks if argv)
    return tuple(dict.fromkeys(line for line in lines if _is_plain(line)))


def _is_plain(line: str) -> bool:
    # A colon before a star is a wildcard, and a star is not plain; alone it is a character.
    return _PLAIN.fullmatch(line) is not None


def only_tools(agent: Agent) -> tuple[str, ...] | None:
    """The only tools of an agent; None if it has all that its permission allows."""
    if agent.tools is None:
        return None
    only = tuple(tool for tool in agent.tools if not tool.startswith(ADDS))
    return only if only or not agent.tools else None


def added_tools(agent: Agent) -> tuple[str, ...]:
    """Tools that an agent is allowed in addition."""
    return tuple(tool.removeprefix(ADDS) for tool in agent.tools or () if tool.startswith(ADDS))
