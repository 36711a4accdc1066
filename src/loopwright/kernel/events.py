"""Events: everything that can happen in a run. The log of a run is a sequence of events.

An event never changes and is never removed. Names on disk are permanent, so they are listed
here and a test freezes them. Times arrive inside events (`at`, milliseconds since the epoch):
the kernel has no clock. `iteration` is the number, from 1, of the iteration that an event
belongs to.
"""

from typing import Literal, TypeAlias, final

import msgspec

from loopwright.kernel.event_parts import (
    ActivityNote,
    AnyCall,
    CallNote,
    DiffStat,
    DropReason,
    Failure,
    Intent,
    Snapshot,
    ToolUse,
    Usage,
    Worktree,
)
from loopwright.kernel.event_parts import BaseEvent as Fact
from loopwright.kernel.event_parts import PlaceEvent as PlaceFact
from loopwright.model.actions import Decision
from loopwright.model.effect_ids import EffectPurpose, read_effect_id
from loopwright.model.plan import Agent
from loopwright.model.policy import Limits
from loopwright.model.record import JsonValue, Text
from loopwright.model.sandbox import SandboxLevel

Outcome: TypeAlias = Literal["completed", "exhausted", "failed", "cancelled"]
StepStatus: TypeAlias = Literal["completed", "exhausted", "failed", "cancelled", "skipped"]
Verdict: TypeAlias = Literal["pass", "fail", "error", "timed_out", "rejected"]


class RunStarted(Fact, frozen=True, kw_only=True, tag="run.started"):
    """The run exists. `plan` is the hash of the plan's text in the blob store."""

    run: str
    plan: str
    name: str
    message: Text = ""
    inputs: dict[str, JsonValue] = {}
    workspace: str = ""
    dialect: str = "native"
    by: str = ""
    parent: str | None = None
    key: str | None = None
    schema: int = 1
    session: str = ""  # of whoever started it; all runs of a session share its trackers
    project: str = ""  # the id of the project that it belongs to
    labels: tuple[str, ...] = ()
    depth: int = 0  # of runs around it, each of which has started the next; `parent` is the nearest
    worktree: Worktree | None = None  # where it does not work in the user's own checkout


class RunPaused(Fact, frozen=True, kw_only=True, tag="run.paused"):
    """Nothing new begins until the run is resumed; what is under way goes on to its end."""

    by: str = ""


class RunResumed(Fact, frozen=True, kw_only=True, tag="run.resumed"):
    """A paused run goes on."""

    by: str = ""


class CancelRequested(Fact, frozen=True, kw_only=True, tag="cancel.requested"):
    """Somebody wants the run to end now."""

    reason: str = "stopped"
    by: str = ""


class RunFinished(Fact, frozen=True, kw_only=True, tag="run.finished"):
    """The run has ended. Nothing comes after it, unless the run is reopened."""

    outcome: Outcome
    reason: str
    output: Text | None = None
    result: Text | None = None
    error: Failure | None = None


class RunReopened(Fact, frozen=True, kw_only=True, tag="run.reopened"):
    """A run that ended without completing runs again.

    `mode` says from where. `continue`: every place that did not complete begins again where it
    stopped, under its name; what completed and what has an answer is kept. `restart`: everything
    begins anew. The empty mode is that of older logs and of `stage`: steps that completed keep
    their results, all others begin anew.

    `limits` replaces the limits of the plan, and `time_ms` also the time limits of loops and steps
    that had reached theirs. `passes` is the most iterations that loops of the plan may make; in the
    empty mode, only of those that ended at their cap. With `stage`, a loop whose iteration stopped
    half-way continues there: the step that did not complete is tried again or left out, and `note`
    is what a person says to it. With `accept_changes`, protected files as they are now are the new
    baseline.
    """

    by: str = ""
    mode: Literal["", "continue", "restart"] = ""
    limits: Limits | None = None
    passes: int | None = None
    stage: Literal["retry", "skip"] | None = None
    note: str = ""
    time_ms: int | None = None
    uncovered: tuple[str, ...] | None = None  # agents that limits in USD do not cover from now on
    allow_unknown_cost: bool = False
    accept_changes: bool = False
    sandbox: SandboxLevel | None = None  # of the run from now on


class RunEdited(Fact, frozen=True, kw_only=True, tag="run.edited"):
    """Somebody changed what a run is for while it was under way; whatever begins from now on sees
    it so. `message` is its goal, `passes` the most that a loop of the plan may make (0: no limit).
    `metadata` is merged into what was said before, where null takes a key away; `labels` replace
    those before. None leaves a thing as it was.
    """

    message: Text | None = None
    passes: int | None = None
    metadata: dict[str, JsonValue] | None = None
    labels: tuple[str, ...] | None = None
    by: str = ""


class RunForked(Fact, frozen=True, kw_only=True, tag="run.forked"):
    """What stands before was copied from another run, up to the end of `place`; from here on this
    run is its own. `text` is what a person says to the next pass of the loop there, and `passes`
    how many that loop may make from now on.
    """

    parent: str
    place: str
    text: str = ""
    by: str = ""
    passes: int | None = None
    uncovered: tuple[str, ...] | None = None  # agents that limits in USD do not cover from now on
    allow_unknown_cost: bool = False


class AgentChanged(Fact, frozen=True, kw_only=True, tag="agent.changed"):
    """Somebody edited an agent while the run was under way; calls from now on see it so."""

    agent: str
    becomes: Agent
    by: str = ""


class StepStarted(PlaceFact, frozen=True, kw_only=True, tag="step.started"):
    """A step's dependencies are met and it begins."""


class StepRetried(PlaceFact, frozen=True, kw_only=True, tag="step.retried"):
    """A step of many parts failed and begins anew; `attempt` counts from 1 with the first."""

    attempt: int
    error: Failure | None = None


class StepFinished(PlaceFact, frozen=True, kw_only=True, tag="step.finished"):
    """A step ended; `result` is JSON text, `usage` the sum of everything inside."""

    status: StepStatus
    reason: str = ""
    output: Text | None = None
    result: Text | None = None
    error: Failure | None = None
    iterations: int = 0
    usage: Usage | None = None


class StepSkipped(PlaceFact, frozen=True, kw_only=True, tag="step.skipped"):
    """A step will not run, and why."""

    reason: str
    status: Literal["skipped", "cancelled", "failed"] = "skipped"
    error: Failure | None = None


class StepKept(PlaceFact, frozen=True, kw_only=True, tag="step.kept"):
    """A step of a pass that goes on after its run was reopened is not run: it completed before, at
    `of`, or a person leaves it out.
    """

    of: str = ""
    output: Text | None = None
    result: Text | None = None
    reason: Literal["kept", "skipped"] = "kept"


class IterationStarted(PlaceFact, frozen=True, kw_only=True, tag="iteration.started"):
    """A pass of a repeat begins. `of` is the most passes there may be; `note` says what a person
    might not expect. `resumed`: it had begun before the run ended, and continues where it stopped.
    """

    of: int | None = None
    note: str = ""
    resumed: bool = False


class IterationFinished(PlaceFact, frozen=True, kw_only=True, tag="iteration.finished"):
    """A pass ended. `done` says that its check passed, `reason` which one; `ms` is its time."""

    status: StepStatus = "completed"
    done: bool = False
    reason: str = ""
    output: Text | None = None
    result: Text | None = None
    error: Failure | None = None
    ms: int = 0
    tree: str = ""  # the snapshot after its body
    changed: DiffStat | None = None  # by its body


class CheckVerdict(PlaceFact, frozen=True, kw_only=True, tag="check.verdict"):
    """What one check said about a pass. `index` is its place among the checks of the loop; `by`
    names a judge. The check `protect` has the number after the last one.
    """

    index: int
    check: str
    verdict: Verdict
    evidence: Text = ""
    by: str = ""
    tree: str = ""  # the snapshot that it is about


class EffectFact(PlaceFact, frozen=True, kw_only=True):
    """Base of the events of one effect."""

    effect: str

    @property
    def purpose(self) -> EffectPurpose:
        """What the effect is for; its id says so, in the logs of every release."""
        return read_effect_id(self.effect).purpose


class EffectRequested(EffectFact, frozen=True, kw_only=True, tag="effect.requested"):
    """The intent, recorded before anything is done."""

    call: AnyCall


@final
class EffectDone(EffectFact, frozen=True, kw_only=True, tag="effect.done"):
    """The answer to an effect. `result` is JSON text; `mark` is the agent's own bookmark."""

    output: Text = ""
    result: Text | None = None
    usage: Usage | None = None
    session: str | None = None
    code: int | None = None
    mark: int | None = None
    note: str = ""
    tools: tuple[ToolUse, ...] = ()
    snapshot: Snapshot | None = None  # the answer to a snapshot effect
    stream: Text | None = None  # the output of the agent's program, in the gzip format


@final
class EffectFailed(EffectFact, frozen=True, kw_only=True, tag="effect.failed"):
    """The other answer to an effect."""

    error: Failure
    output: Text = ""
    usage: Usage | None = None
    session: str | None = None
    code: int | None = None
    mark: int | None = None
    tools: tuple[ToolUse, ...] = ()
    stream: Text | None = None  # the output of the agent's program, in the gzip format


class EffectActivity(EffectFact, frozen=True, kw_only=True, tag="effect.activity"):
    """What an agent did during a call, recorded in batches while the call runs. `dropped` counts
    entries beyond the limit of one call, `dropped_by_kind` the same by their kinds, and
    `dropped_failures` the failed commands among them. `usage` is what the call has used so far,
    with attempts that were lost; the answer of the call replaces it.
    """

    agent: str = ""
    entries: tuple[ActivityNote, ...] = ()
    dropped: int = 0
    dropped_by_kind: dict[str, int] = {}
    dropped_failures: int = 0
    usage: Usage | None = None


class EffectRepeated(EffectFact, frozen=True, kw_only=True, tag="effect.repeated"):
    """A call is made again: the process that had begun it is gone, and nobody saw its end."""


class TurnTaken(PlaceFact, frozen=True, kw_only=True, tag="turn.taken"):
    """What the engine makes of a model's turn: which calls are run, held or turned away."""

    effect: str
    calls: tuple[CallNote, ...] = ()
    finish: str = "stop"
    model: str = ""


class GateOpened(PlaceFact, frozen=True, kw_only=True, tag="gate.opened"):
    """A person is asked. `digest` names exactly what is decided about."""

    gate: str
    digest: str
    message: str
    answers: tuple[Decision, ...]
    about: Literal["pass", "step", "cap", "tool", "blocked"] = "pass"
    output: Text | None = None
    effect: str = ""  # whose answer waits for the decision, where one is under way
    call: int | None = None  # which of a turn's calls is asked about, from 1
    snapshot: Snapshot | None = None  # of the workspace as it is decided about


class GateAnswered(PlaceFact, frozen=True, kw_only=True, tag="gate.answered"):
    """A person decided; the first answer counts. About a tool call, `arguments` replace those of
    the model, and with `remember` the tool is not asked about again in this run.
    """

    gate: str
    decision: Decision
    text: str = ""
    by: str = ""
    arguments: Text | None = None
    remember: bool = False


class GateClosed(PlaceFact, frozen=True, kw_only=True, tag="gate.closed"):
    """The question is no longer asked."""

    gate: str
    reason: str


class MessageSent(PlaceFact, frozen=True, kw_only=True, tag="message.sent"):
    """Somebody wrote to a step, to the coordinator, or in answer. `to` is the address as it was
    written, `effect` the call that wrote it, `reply_to` the message that it answers.
    """

    to: str
    text: Text
    sender: str = ""
    message: str = ""
    intent: Intent = "info"
    effect: str = ""
    reply_to: str = ""


class MessageDelivered(PlaceFact, frozen=True, kw_only=True, tag="message.delivered"):
    """An inbox was read: these messages were handed to this call."""

    to: str
    messages: tuple[str, ...] = ()
    effect: str = ""


class MessageDropped(PlaceFact, frozen=True, kw_only=True, tag="message.dropped"):
    """A message that nobody will read, why, and its text, so that nothing is lost. `known` are ids
    that would have been understood.
    """

    message: str
    to: str
    reason: DropReason
    detail: str = ""
    text: Text = ""
    sender: str = ""
    known: tuple[str, ...] = ()


class CoordinatorNarrated(PlaceFact, frozen=True, kw_only=True, tag="coordinator.narrated"):
    """The coordinator tells people what happens."""

    text: Text
    effect: str = ""


class CoordinatorFinalized(PlaceFact, frozen=True, kw_only=True, tag="coordinator.finalized"):
    """The coordinator has said its last word; a summary is the output of the run."""

    summary: Text = ""
    effect: str = ""


class HistoryCompressed(PlaceFact, frozen=True, kw_only=True, tag="history.compressed"):
    """Part of a conversation was replaced by less: `trimmed` results were cut to their heads,
    `dropped` entries left out, `kept` ones stay. All of it is still in the log.
    """

    dropped: int
    kept: int
    strategy: Literal["trim", "rolling-window", "periodic-summary"]
    summary: Text | None = None
    trimmed: tuple[int, ...] = ()  # entries of what is left whose results were cut
    note: str = ""


class BudgetReserved(PlaceFact, frozen=True, kw_only=True, tag="budget.reserved"):
    """Money and tokens set aside before a call."""

    effect: str
    usd: float = 0.0
    tokens: int = 0


class BudgetSettled(PlaceFact, frozen=True, kw_only=True, tag="budget.settled"):
    """What a call really cost, against what was set aside."""

    effect: str
    usd: float = 0.0
    tokens: int = 0


AnyEvent: TypeAlias = (
    RunStarted
    | RunPaused
    | RunResumed
    | CancelRequested
    | AgentChanged
    | RunFinished
    | RunReopened
    | RunForked
    | RunEdited
    | StepStarted
    | StepRetried
    | StepFinished
    | StepSkipped
    | StepKept
    | IterationStarted
    | IterationFinished
    | CheckVerdict
    | EffectRequested
    | EffectDone
    | EffectFailed
    | EffectActivity
    | EffectRepeated
    | TurnTaken
    | GateOpened
    | GateAnswered
    | GateClosed
    | MessageSent
    | MessageDelivered
    | MessageDropped
    | CoordinatorNarrated
    | CoordinatorFinalized
    | HistoryCompressed
    | BudgetReserved
    | BudgetSettled
)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(list[AnyEvent])


def encode_facts(facts: list[AnyEvent]) -> bytes:
    """Facts of one append as they stand on disk."""
    return _ENCODER.encode(facts)


def decode_facts(data: bytes) -> list[AnyEvent]:
    return _DECODER.decode(data)
