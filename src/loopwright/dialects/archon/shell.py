"""Shell texts: every reference becomes a variable of the shell, quoted as its place demands.

No value is ever pasted into a script. A text is read until it is known which variables, functions
and files hold values (`shell_taint.py`). Where the shell or another program would take a value for
code, the reference is refused; so is a text that uses a value and whose quotes or brackets do not
fit together, since then its meaning is not known.
"""

import re
from dataclasses import dataclass, field

from loopwright.dialects.archon.environment import Environment
from loopwright.dialects.archon.shell_parts import Fault, Refused, Unreadable
from loopwright.dialects.archon.shell_reader import ShellReader, is_value_name
from loopwright.dialects.archon.shell_taint import Taint
from loopwright.dialects.archon.variables import Mark, marks

_WORD = re.compile(r"[A-Za-z_]\w*")
_MOST_READINGS = 25


@dataclass(slots=True)
class Rewritten:
    """A text in which no value is pasted, or why there is none."""

    text: str
    refused: list[Refused] = field(default_factory=list)
    warned: list[Refused] = field(default_factory=list)


def rewrite(text: str, env: Environment) -> Rewritten:
    """The text for the shell; the values it needs are added to its environment."""
    found = marks(text, env.item)
    if not found and not _names_a_value(text):
        return Rewritten(text)
    try:
        reader = _read_until_known(text, found, env)
    except Unreadable as problem:
        fault = Fault("bad-shell", problem.message, "close it, or escape it with \\")
        return Rewritten(text, [Refused(problem.at, "", fault)])
    refused = sorted(reader.refused.values(), key=lambda one: one.at)
    warned = sorted(reader.warned.values(), key=lambda one: one.at)
    return Rewritten(text, refused) if refused else Rewritten(reader.result(), warned=warned)


def _read_until_known(text: str, found: list[Mark], env: Environment) -> ShellReader:
    """Read a text until it is known where the values can be."""
    taint = Taint()
    for _ in range(_MOST_READINGS):
        before = taint.size
        reader = ShellReader(text, found, env, taint)
        reader.read()
        if taint.size == before:
            return reader
    raise Unreadable(0, "values take too many ways through this script to be followed")


def _names_a_value(text: str) -> bool:
    return any(is_value_name(word) for word in _WORD.findall(text))
