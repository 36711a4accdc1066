"""What a run is started with: the request of an interface, and the start that is prepared from it.

`StartRun` is what an interface has. `run_start` turns it into a `RunStart`, which can be started.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Protocol, TypeAlias

import msgspec

from loopwright.errors import LoopwrightError
from loopwright.kernel.event_parts import Worktree
from loopwright.model.actions import MAX_ITERATIONS
from loopwright.model.plan import Agent, LoopRight, Plan
from loopwright.model.record import JsonValue
from loopwright.model.sandbox import SandboxLevel
from loopwright.operations.accounts.access import Role
from loopwright.operations.api_types import Request
from loopwright.operations.dialects import MOST_FILES
from loopwright.operations.run_groups import Beside, OnDisconnect, alone
from loopwright.operations.workspace_rules import NO_CHOICE, SnapshotChoice
from loopwright.ports import Owner

MOST_VARIABLES = 100
RunEnv: TypeAlias = Annotated[dict[str, str], msgspec.Meta(max_length=MOST_VARIABLES)]
"""Variables of a request, with their values."""


# -- the request of an interface -------------------------------------------------------------------


class DefinitionChoice(Request):
    """The definition of a run, and what is put into it."""

    free = ("definition", "files")

    definition: str | None = None
    files: Annotated[dict[str, str], msgspec.Meta(max_length=MOST_FILES)] | None = None
    stored: str | None = None
    dialect: str | None = None
    message: str | None = None
    inputs: dict[str, JsonValue] = {}


class AgentsAndLimits(DefinitionChoice):
    """The agents of a run, the folder that they work in, and the limits of the run."""

    agent: str | None = None
    agents: dict[str, str] = {}
    workspace: str | None = None
    budget: str | None = None
    parallel: Annotated[int, msgspec.Meta(ge=1, le=1_000)] | None = None
    name: str | None = None
    max: Annotated[int, msgspec.Meta(ge=1, le=MAX_ITERATIONS)] | None = None
    base_branch: str | None = None
    worktree: bool = False  # in a Git worktree on the branch loopwright/RUN
    promoted: bool = False  # only if it was promoted as it is now


class StartRun(AgentsAndLimits):
    """What a run is started with: the text of a definition, or the name of a stored one. The files
    that it names come with it (`files`, each by its path); without them they are those of the
    workspace.
    """

    deny: tuple[str, ...] = ()  # tools that chat models may not use
    ask: tuple[str, ...] = ()  # tools of which every call waits for a person
    file_tools_only: bool = False  # of the workspace, for chat models; no program is started
    sandbox: SandboxLevel | None = None  # only stricter than what the server has set
    labels: Annotated[tuple[str, ...], msgspec.Meta(max_length=50)] = ()
    allow_unknown_cost: bool = False  # limits in USD need not cover agents of unknown cost
    permission: Literal["ask", "edit", "all"] | None = None  # more than the definition is refused
    tools: tuple[str, ...] = ()  # the only ones of the agents
    protect: tuple[str, ...] = ()  # patterns of files that agents may not change
    snapshots: bool = True  # of the workspace; false: none are taken
    allow: tuple[str, ...] = ()  # refused: remote callers cannot allow calls in advance
    on_disconnect: OnDisconnect | None = None  # when the last socket of its starter is gone


class LocalStart(StartRun):
    """What a person of this machine can choose besides. A server does not know these fields, so
    that it refuses them; they are never sent to one.
    """

    env: RunEnv = {}  # for every agent and command; the values are never in the log
    loop_tools: tuple[LoopRight, ...] = ()  # rights of the agents, besides those of the definition
    in_workspace: bool = False  # in no worktree, whatever the definition says


# -- the prepared start ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """Who starts a run, and who has chosen its parts."""

    by: str = ""
    author: Role | None = None  # who wrote the definition; None: the person who starts the run
    workspace_by: Role | None = None  # who chose it; None: the person who starts the run
    from_text: frozenset[str] = frozenset()  # agents whose spec is in the definition
    allow_off: bool = False  # an admin lets all of its agents run without a sandbox
    file: str = ""  # the definition, as messages name it


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord(RunOrigin):
    """How a run is recorded, and what it belongs to."""

    run: str = ""  # its id, if the caller chose one; it must be new
    key: str | None = None
    session: str = ""  # runs of a session share artifacts, todos and sprints
    project: str = ""
    labels: tuple[str, ...] = ()
    owner: Owner | None = None  # who has it until another process drives it
    drive: bool = True
    beside: Beside = alone  # what is kept beside it, written with its first event


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart(RunRecord):
    """A run that can be started."""

    plan: Plan
    workspace: Path
    message: str = ""
    inputs: Mapping[str, JsonValue] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)  # never in the log
    allow_unknown_cost: bool = False  # limits in USD need not cover agents of unknown cost
    snapshots: SnapshotChoice = NO_CHOICE
    sandbox: SandboxLevel | None = None  # for this run, instead of the setting

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
        """Refuse to store a definition that the caller could not start."""

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
