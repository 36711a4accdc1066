"""The plan of a loop from the command line whose options are of forms that are never refused.

Every loop could be read as a native definition, but loading the validators of that language takes
longer than everything else that starts a run. What is not of a plain form is read as a definition,
which says what is wrong with it. Both ways lead to the same plan.
"""

import re
from collections.abc import Mapping, Sequence

from loopwright.model.actions import MAX_PASSES, CallAgent, Repeat, Step
from loopwright.model.checks import AllOf, Cap, Check, Command, Signal
from loopwright.model.ids import MAIN
from loopwright.model.memory import (
    Memory,
    NoMemory,
    PreviousOutput,
    ProgressLog,
    SameSession,
)
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import Limits, Retry
from loopwright.model.record import JsonValue
from loopwright.syntax.amounts import is_duration, is_token_count, parse_duration, parse_tokens
from loopwright.syntax.characters import check_text
from loopwright.syntax.commands import CommandFault, checked_words, split_command

WORKER = "worker"
COMMAND_MS = 600_000
MOST_USD = 1_000_000
LONGEST_NAME = 500
_MEMORIES: Mapping[str, Memory] = {
    "progress-log": ProgressLog(chars=300, total=8_000),
    "previous-output": PreviousOutput(),
    "session": SameSession(),
    "none": NoMemory(),
}
# Nothing in these has a meaning for a shell, a template or a reader of hidden characters.
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_-]{1,80}")
_PLAIN_COMMAND = re.compile(r"[A-Za-z0-9_./:=@%+, -]{1,2000}")


def plain_checks(signals: Sequence[str], commands: Sequence[str]) -> list[Check] | None:
    """The checks of a loop, or None when one of them has to be read as a definition."""
    if not all(_PLAIN_WORD.fullmatch(word) for word in signals):
        return None
    found: list[Check] = [Signal(word=word) for word in signals]
    for line in commands:
        words = split_command(line) if _PLAIN_COMMAND.fullmatch(line) else None
        if words is None or isinstance(words, CommandFault):
            return None
        if isinstance(checked_words(words), CommandFault):
            return None
        found.append(Command(argv=tuple(words), timeout_ms=COMMAND_MS, done_codes=(0,)))
    return found


def plain_limits(given: Mapping[str, JsonValue]) -> Limits | None:
    """A budget (usd, tokens, time, idle) as limits; None when it must be read as a definition."""
    usd, tokens = given.get("usd"), given.get("tokens")
    if usd is not None and not (isinstance(usd, int | float) and 0 < usd <= MOST_USD):
        return None
    count = parse_tokens(tokens)
    if tokens is not None and (count is None or not is_token_count(count)):
        return None
    lengths = {name: _length(given[name]) for name in ("time", "idle") if name in given}
    if None in lengths.values():
        return None
    return Limits(
        usd=None if usd is None else float(usd),
        tokens=count,
        wall_ms=lengths.get("time"),
        idle_ms=lengths.get("idle"),
    )


def _length(value: JsonValue) -> int | None:
    found = parse_duration(value) if isinstance(value, str) else None
    return found if found is not None and is_duration(found) else None


def plain_repeat(most: int, memory: str, checks: Sequence[Check], *, criteria: bool) -> Step | None:
    """One agent that is repeated until all checks hold, or None as above."""
    kind = _MEMORIES.get(memory)
    if kind is None or not 1 <= most <= MAX_PASSES:
        return None
    until = Cap() if not checks else checks[0] if len(checks) == 1 else AllOf(parts=tuple(checks))
    action = Repeat(
        body=CallAgent(agent=WORKER, prompt=()),
        max=most,
        until=until,
        memory=kind,
        at_cap="exhaust" if checks else "complete",
        criteria=criteria and bool(checks),
    )
    return Step(id=MAIN, action=action, retry=Retry(attempts=3))


def plain_plan(name: str, step: Step, limits: Limits) -> Plan | None:
    """The plan of such a loop, or None when its name has to be read as a definition."""
    if not name.isprintable() or name != name.strip() or check_text(name):
        return None
    if not 1 <= len(name) <= LONGEST_NAME:
        return None
    return Plan(name=name, steps=(step,), agents={WORKER: Agent()}, limits=limits)
