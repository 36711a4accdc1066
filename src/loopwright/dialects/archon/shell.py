"""Shell texts: every reference becomes a variable of the shell, quoted as its place demands.

No value is ever pasted into a script. A text is read until it is known which variables, functions
and files hold values (`shell_taint.py`). Where the shell or another program would take a value for
code, the value gets a safe form (`shell_repair.py`, `script_values.py`); where there is none, the
reference is refused. So is a text that uses a value and whose quotes or brackets do not fit
together, since then its meaning is not known.
"""

from dataclasses import dataclass, field

from loopwright.dialects.archon.environment import Environment, find_value_names
from loopwright.dialects.archon.script_values import rewrite_embedded
from loopwright.dialects.archon.shell_exports import (
    find_free_names,
    find_kept_names,
    keep_names,
)
from loopwright.dialects.archon.shell_parts import Fault, Refused, Unreadable
from loopwright.dialects.archon.shell_reader import ShellReader
from loopwright.dialects.archon.shell_repair import (
    PREFIX,
    Reading,
    find_in_original,
    repair,
    with_functions,
)
from loopwright.dialects.archon.shell_taint import Taint
from loopwright.dialects.archon.variables import marks

_MOST_READINGS = 25


@dataclass(slots=True)
class Rewritten:
    """A text in which no value is pasted, or why there is none."""

    text: str
    refused: list[Refused] = field(default_factory=list)
    warned: list[Refused] = field(default_factory=list)


def rewrite(text: str, env: Environment) -> Rewritten:
    """The text for the shell; the values it needs are added to its environment."""
    embedded = rewrite_embedded(text, env)
    if not marks(embedded, env.item) and not find_value_names(embedded):
        return Rewritten(_with_checks(embedded, env))
    try:
        repaired = repair(embedded, lambda one: _reading(one, env))
        reader = _read_until_known(repaired.text, env)
    except Unreadable as problem:
        fault = Fault("bad-shell", problem.message, "close it, or escape it with \\")
        return Rewritten(text, [Refused(problem.at, "", fault)])
    refused = [_placed(text, repaired.text, one) for one in reader.refused.values()]
    if refused:
        return Rewritten(text, sorted(refused, key=lambda one: one.at))
    warned = [_placed(text, repaired.text, one) for one in reader.warned.values()]
    warned = sorted([*warned, *repaired.notes], key=lambda one: one.at)
    kept = keep_names(reader.taint.kept_names & reader.taint.names.keys())
    return Rewritten(kept + with_functions(reader.result()), warned=warned)


def _with_checks(text: str, env: Environment) -> str:
    """A text that uses no value itself, with checks of what it evaluates: a file or a program may
    hand a value over. What cannot be read stays as it is.
    """
    if PREFIX in text:
        return text
    try:
        return _read_until_known(text, env).result()
    except Unreadable:
        return text


def _placed(original: str, text: str, one: Refused) -> Refused:
    return one if original == text else one._replace(at=find_in_original(original, text, one))


def _reading(text: str, env: Environment) -> Reading | None:
    """What is refused in a text; None where it cannot be read."""
    try:
        reader = _read_until_known(text, env)
    except Unreadable:
        return None
    refused = sorted(reader.refused.values(), key=lambda one: one.at)
    return Reading(refused, reader.faults)


def _read_until_known(text: str, env: Environment) -> ShellReader:
    """Read a text until it is known where the values can be."""
    free, kept = find_free_names(text), find_kept_names(text)
    taint, found = Taint(free_names=free, kept_names=kept), marks(text, env.item)
    for _ in range(_MOST_READINGS):
        before = taint.size
        reader = ShellReader(text, found, env, taint)
        reader.read()
        if taint.size == before:
            return reader
    raise Unreadable(0, "values take too many ways through this script to be followed")
