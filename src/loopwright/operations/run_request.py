"""What a run is started with, who decides whether it may start, and the plan of a plain loop.

A loop from the command line whose options are of plain forms gets its plan directly. Any loop
could be read as a native definition, but loading the validators of that language takes longer
than the rest of the start. Other options are read as a definition, which reports their errors.
Both ways lead to the same plan.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from loopwright.errors import LoopwrightError
from loopwright.kernel.event_parts import Worktree
from loopwright.model.actions import MAX_ITERATIONS, CallAgent, Repeat, Step
from loopwright.model.checks import AllOf, Cap, Check, CommandCheck, Signal
from loopwright.model.ids import MAIN
from loopwright.model.plan import Agent, Plan
from loopwright.model.policy import (
    Limits,
    Memory,
    NoMemory,
    PreviousOutput,
    ProgressLog,
    Retry,
    SameSession,
)
from loopwright.model.record import JsonValue
from loopwright.model.sandbox import SandboxLevel
from loopwright.operations.accounts.access import Role
from loopwright.operations.run_groups import Beside, alone
from loopwright.operations.workspace_rules import NO_CHOICE, SnapshotChoice
from loopwright.ports import Owner
from loopwright.syntax.document import check_text
from loopwright.syntax.notations import (
    CommandFault,
    checked_words,
    is_duration,
    is_token_count,
    parse_duration,
    parse_tokens,
    split_command,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """What a run is started with."""

    plan: Plan
    workspace: Path
    message: str = ""
    inputs: Mapping[str, JsonValue] = field(default_factory=dict)
    by: str = ""
    key: str | None = None
    drive: bool = True
    session: str = ""  # runs of a session share artifacts, todos and sprints
    project: str = ""
    run: str = ""  # its id, if the caller chose one; it must be new
    owner: Owner | None = None  # who has it until another process drives it
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)  # never in the log
    allow_unknown_cost: bool = False  # limits in USD need not cover agents of unknown cost
    labels: tuple[str, ...] = ()
    snapshots: SnapshotChoice = NO_CHOICE
    author: Role | None = None  # who wrote the definition; None: the person who starts the run
    workspace_by: Role | None = None  # who chose it; None: the person who starts the run
    from_text: frozenset[str] = frozenset()  # agents whose spec is in the definition
    allow_off: bool = False  # an admin lets all of its agents run without a sandbox
    sandbox: SandboxLevel | None = None  # for this run, in the place of what is set
    file: str = ""  # the definition, as messages name it
    beside: Beside = alone  # what is kept beside it, written with its first fact

    def check_workspace(self) -> None:
        """Refuse a folder that does not exist."""
        if not self.workspace.is_dir():
            raise LoopwrightError(
                f"the workspace {self.workspace} is not a folder",
                code="no-workspace",
                hint="create it first, or name another folder with --workspace DIR",
            )


class StoredVariables(Protocol):
    """The values of variables that runs were given with `--env`."""

    def read(self, run: str) -> dict[str, str]:
        """The values of a run; empty if it has none any more."""

    def write(self, run: str, values: Mapping[str, str]) -> None:
        """Store the values of a run."""


class Admission(Protocol):
    """Whether a run may start here, or be changed; NotAllowed where it may not."""

    def names(self) -> Mapping[str, str]:
        """The specs of listed agents by name."""

    def admit(self, start: RunStart) -> RunStart:
        """The start as it is allowed."""

    def admit_agents(
        self, agents: Mapping[str, Agent], *, run: str, by: str, workspace: Path
    ) -> Mapping[str, Agent]:
        """Agents that take the place of others in a run, as they are allowed."""

    def check_text(self, plan: Plan, *, by: str, what: str) -> None:
        """Refuse a definition that somebody wants to store and could not start."""

    def check_workspace(self, workspace: Path, *, by: str, role: Role | None = None) -> None:
        """Refuse a workspace that the caller, or an author with this role, may not choose."""

    def admit_run(
        self,
        plan: Plan,
        *,
        run: str,
        by: str,
        workspace: Path,
        worktree: Worktree | None = None,
        is_fork: bool = False,
    ) -> None:
        """Refuse to resume or fork a run that the caller could not start as it is."""


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
        found.append(CommandCheck(argv=tuple(words), timeout_ms=COMMAND_MS, done_codes=(0,)))
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
    if kind is None or not 1 <= most <= MAX_ITERATIONS:
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
