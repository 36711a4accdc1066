"""What a run is started with, and who decides whether it may start."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from loopwright.app.access import Role
from loopwright.app.keeping import Beside, alone
from loopwright.app.snapshot_policy import NO_CHOICE, SnapshotChoice
from loopwright.kernel.facts import Worktree
from loopwright.model.plan import Agent, Plan
from loopwright.model.record import JsonValue
from loopwright.model.sandbox import SandboxLevel
from loopwright.ports import Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
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

    def admit(self, start: Start) -> Start:
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
