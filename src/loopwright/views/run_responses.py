"""The shapes of runs in responses: one definition of each for every interface.

A run in a page of runs, a run as one object, and a run with everything that a page shows. They are
written to JSON as they are, flat, in the order of their fields.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from loopwright.kernel.event_parts import DiffStat, Snapshot
from loopwright.model.record import JsonValue, Text
from loopwright.model.sandbox import SandboxLevel
from loopwright.ports import AskedCall, ListedFigures, RunStatus
from loopwright.views.formats import Exposure, UsageAmounts, exposure

if TYPE_CHECKING:
    pass


class ChangeCounts(msgspec.Struct):
    """How many files and lines differ between two snapshots."""

    files: int
    insertions: int
    deletions: int


class ChangedTree(msgspec.Struct):
    """What a whole run changed, and its newest tree."""

    tree: str
    files: int
    insertions: int
    deletions: int


class WorkspaceChanges(msgspec.Struct):
    """What a gate shows of the workspace. `changed` is since the previous snapshot, `total` since
    the first one; `paths` are the changed files, `protected` the protected files among them.
    """

    tree: str
    changed: ChangeCounts
    total: ChangeCounts
    paths: list[str]
    protected: list[str]


class GateCall(msgspec.Struct):
    """The tool call that a gate is about. `held` says why it needs a decision; `reason` is the
    model's own text about it.
    """

    id: str
    tool: str
    arguments: JsonValue
    held: str
    reason: str | None


class GateItem(msgspec.Struct, omit_defaults=True):
    """A question to a person, in its run. One that could hide something says how in `marks`, and
    has every line of it in `shown`, escaped and whole.
    """

    id: str
    path: str
    message: str
    digest: str
    snapshot: WorkspaceChanges | None = None  # what was changed in the workspace
    call: GateCall | None = None
    marks: list[str] | None = None
    shown: list[str] | None = None


class InboxGate(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A question to a person, in the inbox."""

    id: str
    run: str = ""
    name: str = ""
    path: str
    message: str
    digest: str
    opened_at: str = ""
    call: GateCall | None = None
    marks: list[str] | None = None
    shown: list[str] | None = None
    snapshot: WorkspaceChanges | None = None  # what was changed in the workspace


class WorktreeView(msgspec.Struct):
    """The Git worktree that a run works in; `exists` is false after it was discarded, `applied`
    is true after its result was merged into the checkout.
    """

    branch: str
    folder: str
    repository: str
    exists: bool
    applied: bool


class RunItem(msgspec.Struct):
    """A run as a line of a list."""

    run: str
    name: str
    status: RunStatus
    reason: str
    iterations: int
    max: int | None
    usage: UsageAmounts
    gates: int
    damaged: str | None
    driver: int | None
    left_behind: bool
    waits_for: str | None  # of the machine or of a provider, in words
    dialect: str
    workspace: str
    worktree: WorktreeView | None
    changed: ChangedTree | None  # by the whole run, as its snapshots tell
    started_at: str
    updated_at: str
    finished_at: str | None


class RunTotal(msgspec.Struct):
    """How many runs there are, how many of them are running, what they used, and which runs were
    recorded and are missing.
    """

    runs: int
    running: int
    usage: UsageAmounts
    missing: list[str]


class ErrorItem(msgspec.Struct):
    """Why a step or a run failed."""

    type: str
    detail: str


class StepSummary(msgspec.Struct):
    """The state of a step."""

    status: str
    reason: str
    output: str
    result: JsonValue
    iterations: int
    error: ErrorItem | None


class CheckView(msgspec.Struct, omit_defaults=True):
    """A check and what it found."""

    check: str
    verdict: str
    evidence: str
    by: str = ""  # the person who decided


class RunSummary(msgspec.Struct, kw_only=True):
    """A run as one object, the same as `run --json` prints."""

    run: str
    status: RunStatus
    summary: str  # the final line: outcome, iterations, time, cost, changed files, checks
    reason: str
    output: str
    result: JsonValue
    iterations: int
    steps: dict[str, StepSummary]
    usage: UsageAmounts
    uncovered: list[str]  # agents that limits in USD do not cover
    labels: list[str]
    gates: list[GateItem]
    checks: list[CheckView]  # of the newest iteration
    error: ErrorItem | None


class ResumedSummary(RunSummary, kw_only=True):
    """A run that was resumed; `message` says where: `run_01 resumed at iteration 3 of 5`. The
    warnings are about the folder it works in.
    """

    message: str
    warnings: list[str] = []


class StoppedRun(RunSummary, kw_only=True):
    """A run that is being stopped. It is `stopped` when none of its processes is left; until then
    it is `stopping`, and `processes` are those that still live.
    """

    stop: Literal["stopped", "stopping"]
    processes: list[int]


class StartedRun(RunSummary, kw_only=True):
    """A run that was just started, and what people should know about the folder it works in."""

    warnings: list[str]


class Forked(RunSummary, kw_only=True):
    """A new run; its events up to `seq` are those of the run that it continues. The notes are about
    its folder and its variables.
    """

    seq: int
    notes: list[str] = []


class RunPlan(msgspec.Struct):
    """The plan of a run, in the form in which it is stored."""

    run: str
    plan: dict[str, JsonValue]


class ForkOrigin(msgspec.Struct):
    """The run that a fork continues, and the place in it after which it continues."""

    run: str
    at: str


class ResumedItem(msgspec.Struct):
    """When and by whom a run was resumed, and where it continued."""

    at: str
    by: str
    restarted: bool
    point: str


class SandboxLevels(msgspec.Struct):
    """The sandbox levels that programs of a run are started at: of the run, of each agent that is
    a program, and of commands if there are any.
    """

    run: SandboxLevel | None = None
    agents: dict[str, SandboxLevel] = {}
    commands: SandboxLevel | msgspec.UnsetType | None = msgspec.UNSET


class RunLimits(msgspec.Struct):
    """The limits of a whole run; null means unlimited."""

    usd: float | None = None
    tokens: int | None = None
    time_ms: int | None = None
    idle_ms: int | None = None


class ActivitySummary(msgspec.Struct, kw_only=True):
    """What agents did, summed up: of one iteration or of a run."""

    tool_calls: int
    files_edited: int
    files: list[str]  # the first of them
    commands: int
    failed_commands: int
    failed: list[str]  # the first of them, with their exit codes
    denied: int
    denials: list[str]
    stderr: list[str]  # the last line of each call that has any
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
    dropped: int


class IterationItem(msgspec.Struct):
    """An iteration of a loop. `tree` is the snapshot after it, `changed` what it changed."""

    path: str
    iteration: int
    status: str
    done: bool
    learning: str
    error: str | None
    activity: ActivitySummary
    tree: str | None
    changed: ChangeCounts | None
    usage: UsageAmounts
    checks: list[CheckView]


class Decided(msgspec.Struct):
    """What a person has answered at a gate."""

    gate: str
    path: str
    decision: str
    text: str
    by: str
    at: str


class RunMessageItem(msgspec.Struct):
    """A message of a person to the agents of a run; `state` says what became of it."""

    message: str
    by: str
    to: str
    text: str
    state: str
    at: str


class GraphNode(msgspec.Struct, kw_only=True):
    """A step as it is drawn. `status` is null before anything is known of it; `passes` counts the
    iterations of a loop in words.
    """

    id: str
    kind: str
    needs: list[str] = []
    status: str | None = None
    passes: str | None = None
    steps: list["GraphNode"] = []


class ChangedDependency(msgspec.Struct):
    """A file that a check depends on and that changed in an iteration."""

    path: str
    iteration: int | None


class RunSetup(RunSummary, kw_only=True):
    """A run, where it comes from, and what it was started with."""

    forked: ForkOrigin | None
    resumed: list[ResumedItem] = []  # the newest
    sandbox: SandboxLevels = msgspec.field(default_factory=SandboxLevels)
    agents: dict[str, str] = {}  # the backend of each
    limits: RunLimits = msgspec.field(default_factory=RunLimits)
    protect: list[str] = []  # patterns of protected files
    env: list[str] = []  # names of variables that agents and commands get


class RunHistory(RunSetup, kw_only=True):
    """A run, and what happened in it."""

    name: str
    headline: str
    goal: str
    max: int | None
    passes: list[IterationItem]  # the newest
    iterations_before: int = msgspec.field(name="passes_before")  # those before the newest
    activity: ActivitySummary
    decisions: list[Decided]  # the newest
    messages: list[RunMessageItem]  # the newest
    graph: list[GraphNode]


class RunPlace(RunHistory, kw_only=True):
    """A run, the process that drives it, its workspace, and what to do next."""

    driver: int | None
    left_behind: bool
    waits_for: str | None  # of the machine or of a provider, in words
    dialect: str
    workspace: str
    worktree: WorktreeView | None
    started_at: str
    updated_at: str
    finished_at: str | None
    changed: ChangedTree | None = None  # by the whole run, as its snapshots tell
    changed_dependencies: list[ChangedDependency] = []
    next: list[str]


class RunSnapshot(RunPlace):
    """A run with everything that a page shows; events with numbers above `seq` follow on it."""

    seq: int  # the first in JSON: the fields of the classes above are for keywords only


class ChangedFile(msgspec.Struct):
    """A file that differs between two snapshots."""

    path: str
    status: str
    insertions: int
    deletions: int
    binary: bool
    old_path: str | None


class RunDiff(msgspec.Struct):
    """What differs between two snapshots of a run; `from` and `to` are their trees. `unrecorded`:
    the run may have changed more after its last snapshot, as `unrecorded_note` says.
    `omitted` names files that snapshots left out because of their size or kind, the first 100 of
    `omitted_count`.
    """

    run: str
    old: str = msgspec.field(name="from")
    new: str = msgspec.field(name="to")
    unrecorded: bool
    unrecorded_note: str | None
    omitted: list[str]
    omitted_count: int
    files: int
    insertions: int
    deletions: int
    changes: list[ChangedFile]
    diff: str | None


class AppliedResult(msgspec.Struct):
    """The files that were changed in the checkout; none where it had the result already. `outside`
    are files that the run changed outside of its workspace, which are not applied.
    """

    run: str
    repository: str
    files: list[str]
    outside: list[str]


class DiscardedResult(msgspec.Struct):
    """What was removed."""

    run: str
    branch: str
    folder: str


class BisectionView(msgspec.Struct):
    """Which iteration broke the checks of a run, and what it changed."""

    run: str
    checks: list[str]
    tested: dict[str, bool]
    verdict: str
    broken_by: int | None
    iteration: str | None
    path: str | None
    changed: ChangeCounts
    paths: list[str]


def change_counts(stat: DiffStat) -> ChangeCounts:
    """A difference with every number, also those that are 0."""
    return ChangeCounts(stat.files, stat.insertions, stat.deletions)


def workspace_changes(snapshot: Snapshot) -> WorkspaceChanges:
    """What a gate shows of the workspace."""
    return WorkspaceChanges(
        tree=snapshot.tree,
        changed=change_counts(snapshot.changed),
        total=change_counts(snapshot.total),
        paths=list(snapshot.paths),
        protected=list(snapshot.protected),
    )


def changed_tree(figures: ListedFigures) -> ChangedTree | None:
    """What the whole run changed, as far as its snapshots tell."""
    return None if figures.changed is None else ChangedTree(*figures.changed)


def gate_call(asked: AskedCall, read: Callable[[Text | None], str]) -> GateCall:
    """The tool call that a gate asks about."""
    arguments: JsonValue = msgspec.json.decode(read(asked.arguments))
    reason = arguments.get("reason") if isinstance(arguments, dict) else None
    return GateCall(
        id=asked.id,
        tool=asked.tool,
        arguments=arguments,
        held=asked.held,
        reason=reason if isinstance(reason, str) else None,
    )


def gate_exposure(message: str, call: GateCall | None) -> Exposure:
    """What the question of a gate could hide."""
    return exposure(message, None if call is None else (call.tool, call.arguments))
