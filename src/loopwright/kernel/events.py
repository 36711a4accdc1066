"""Events: everything that can happen in a run. The log of a run is a sequence of events.

An event never changes and is never removed. Names on disk are permanent, so they are listed
here and a test freezes them. Times arrive inside events (`at`, milliseconds since the epoch):
the kernel has no clock. `iteration` is the number, from 1, of the iteration that an event
belongs to.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias, final

import msgspec

from loopwright.kernel.event_parts import (
    ActivityNote,
    AnyCall,
    BaseEvent,
    CallNote,
    DiffStat,
    DropReason,
    Failure,
    Intent,
    PlaceEvent,
    Snapshot,
    ToolUse,
    Worktree,
)
from loopwright.model.actions import Decision
from loopwright.model.ids import EffectPurpose, read_effect_id
from loopwright.model.plan import Agent
from loopwright.model.policy import Limits
from loopwright.model.record import JsonValue, Text
from loopwright.model.sandbox import SandboxLevel


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a call used, as far as it is known."""

    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    unpriced: int = 0  # calls without a known price: the actual cost is higher than `usd`
    cache_read_tokens: int = 0  # part of the input tokens
    cache_write_tokens: int = 0  # part of the input tokens

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            usd=round(self.usd + other.usd, 9),
            unpriced=self.unpriced + other.unpriced,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )

    def __sub__(self, other: "Usage") -> "Usage":
        """The difference, to replace one amount by another: parts may be negative."""
        return Usage(
            input_tokens=self.input_tokens - other.input_tokens,
            output_tokens=self.output_tokens - other.output_tokens,
            usd=round(self.usd - other.usd, 9),
            unpriced=self.unpriced - other.unpriced,
            cache_read_tokens=self.cache_read_tokens - other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens - other.cache_write_tokens,
        )


NO_USAGE = Usage()


Outcome: TypeAlias = Literal["completed", "exhausted", "failed", "cancelled"]
StepStatus: TypeAlias = Literal["completed", "exhausted", "failed", "cancelled", "skipped"]
Verdict: TypeAlias = Literal["pass", "fail", "error", "timed_out", "rejected"]


class RunStarted(BaseEvent, frozen=True, kw_only=True, tag="run.started"):
    """The run was created. `plan` is the hash of the plan's text in the blob store."""

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
    session: str = ""  # of the client that started it; all runs of a session share its trackers
    project: str = ""  # the id of its project
    labels: tuple[str, ...] = ()
    # number of runs around it, each of which started the next; `parent` is the nearest
    depth: int = 0
    worktree: Worktree | None = None  # set if the run does not work in the user's own checkout


class RunPaused(BaseEvent, frozen=True, kw_only=True, tag="run.paused"):
    """No new work starts until the run is resumed; running calls continue to their end."""

    by: str = ""


class RunResumed(BaseEvent, frozen=True, kw_only=True, tag="run.resumed"):
    """A paused run continues."""

    by: str = ""


class CancelRequested(BaseEvent, frozen=True, kw_only=True, tag="cancel.requested"):
    """A person or program requested that the run end now."""

    reason: str = "stopped"
    by: str = ""


class RunFinished(BaseEvent, frozen=True, kw_only=True, tag="run.finished"):
    """The run has ended. No event follows, unless the run is reopened."""

    outcome: Outcome
    reason: str
    output: Text | None = None
    result: Text | None = None
    error: Failure | None = None


class RunReopened(BaseEvent, frozen=True, kw_only=True, tag="run.reopened"):
    """A run that ended without completing runs again.

    `mode` says where it continues. `continue`: every place that did not complete starts again where
    it stopped, under its own name; completed results and answers are kept. `restart`: everything
    starts from the beginning. The empty mode is used by older logs and with `stage`: steps that
    completed keep their results, all others start from the beginning.

    `limits` replaces the limits of the plan, and `time_ms` also the time limits of loops and steps
    that had reached theirs. `passes` is the maximum number of iterations of the loops of the plan;
    in the empty mode, only of those that ended at their cap. With `stage`, a loop that stopped in
    the middle of an iteration continues there: the step that did not complete is retried or
    skipped, and `note` is a person's message to it. With `accept_changes`, the current state of
    protected files is the new baseline.
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


class RunEdited(BaseEvent, frozen=True, kw_only=True, tag="run.edited"):
    """A person changed the run while it was running; everything that starts later uses the new
    values. `message` is its goal, `passes` the maximum number of iterations of a loop of the plan
    (0: unlimited). `metadata` is merged into the existing metadata, where null removes a key;
    `labels` replaces the existing labels. None leaves a value unchanged.
    """

    message: Text | None = None
    passes: int | None = None
    metadata: dict[str, JsonValue] | None = None
    labels: tuple[str, ...] | None = None
    by: str = ""


class RunForked(BaseEvent, frozen=True, kw_only=True, tag="run.forked"):
    """The events before this one were copied from another run, up to the end of `place`; later
    events belong to this run only. `text` is a person's message to the next iteration of that loop,
    and `passes` is its new maximum number of iterations.
    """

    parent: str
    place: str
    text: str = ""
    by: str = ""
    passes: int | None = None
    uncovered: tuple[str, ...] | None = None  # agents that limits in USD do not cover from now on
    allow_unknown_cost: bool = False


class AgentChanged(BaseEvent, frozen=True, kw_only=True, tag="agent.changed"):
    """A person edited an agent while the run was running; later calls use the new agent."""

    agent: str
    becomes: Agent
    by: str = ""


class StepStarted(PlaceEvent, frozen=True, kw_only=True, tag="step.started"):
    """The dependencies of a step are met, and it starts."""


class StepRetried(PlaceEvent, frozen=True, kw_only=True, tag="step.retried"):
    """A step with several parts failed and starts again; `attempt` counts from 1, the first
    attempt.
    """

    attempt: int
    error: Failure | None = None


class StepFinished(PlaceEvent, frozen=True, kw_only=True, tag="step.finished"):
    """A step ended; `result` is JSON text, `usage` the sum of everything inside the step."""

    status: StepStatus
    reason: str = ""
    output: Text | None = None
    result: Text | None = None
    error: Failure | None = None
    iterations: int = 0
    usage: Usage | None = None


class StepSkipped(PlaceEvent, frozen=True, kw_only=True, tag="step.skipped"):
    """A step will not run, for this reason."""

    reason: str
    status: Literal["skipped", "cancelled", "failed"] = "skipped"
    error: Failure | None = None


class StepKept(PlaceEvent, frozen=True, kw_only=True, tag="step.kept"):
    """A step of an iteration that continues after its run was reopened is not run again: it
    completed before, at `of`, or a person skipped it.
    """

    of: str = ""
    output: Text | None = None
    result: Text | None = None
    reason: Literal["kept", "skipped"] = "kept"


class IterationStarted(PlaceEvent, frozen=True, kw_only=True, tag="iteration.started"):
    """An iteration of a loop starts. `of` is the maximum number of iterations; `note` explains what
    a person might not expect. `resumed`: it had started before the run ended, and continues where
    it stopped.
    """

    of: int | None = None
    note: str = ""
    resumed: bool = False


class IterationFinished(PlaceEvent, frozen=True, kw_only=True, tag="iteration.finished"):
    """An iteration ended. `done` is true if its check passed, `reason` names the check; `ms` is its
    duration.
    """

    status: StepStatus = "completed"
    done: bool = False
    reason: str = ""
    output: Text | None = None
    result: Text | None = None
    error: Failure | None = None
    ms: int = 0
    tree: str = ""  # the snapshot after its body
    changed: DiffStat | None = None  # by its body


class CheckVerdict(PlaceEvent, frozen=True, kw_only=True, tag="check.verdict"):
    """The verdict of one check about an iteration. `index` is the position of the check in the
    loop; `by` names a judge. The check `protect` has the number after the last check.
    """

    index: int
    check: str
    verdict: Verdict
    evidence: Text = ""
    by: str = ""
    tree: str = ""  # the snapshot that was checked


class EffectEvent(PlaceEvent, frozen=True, kw_only=True):
    """Base of the events of one effect."""

    effect: str

    @property
    def purpose(self) -> EffectPurpose:
        """The purpose of the effect, read from its id, which contains it in every release."""
        return read_effect_id(self.effect).purpose


class EffectRequested(EffectEvent, frozen=True, kw_only=True, tag="effect.requested"):
    """The request for an effect, recorded before the effect starts."""

    call: AnyCall


@final
class EffectDone(EffectEvent, frozen=True, kw_only=True, tag="effect.done"):
    """An effect succeeded. `result` is JSON text; `mark` is a bookmark defined by the agent."""

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
class EffectFailed(EffectEvent, frozen=True, kw_only=True, tag="effect.failed"):
    """An effect failed."""

    error: Failure
    output: Text = ""
    usage: Usage | None = None
    session: str | None = None
    code: int | None = None
    mark: int | None = None
    tools: tuple[ToolUse, ...] = ()
    stream: Text | None = None  # the output of the agent's program, in the gzip format


class EffectActivity(EffectEvent, frozen=True, kw_only=True, tag="effect.activity"):
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


class EffectRepeated(EffectEvent, frozen=True, kw_only=True, tag="effect.repeated"):
    """A call is repeated: the process that had started it has ended, and its result is unknown."""


class TurnTaken(PlaceEvent, frozen=True, kw_only=True, tag="turn.taken"):
    """The decision of the engine about the calls of a model's turn: run, hold or refuse."""

    effect: str
    calls: tuple[CallNote, ...] = ()
    finish: str = "stop"
    model: str = ""


class GateOpened(PlaceEvent, frozen=True, kw_only=True, tag="gate.opened"):
    """A person must decide. `digest` identifies exactly what the decision is about."""

    gate: str
    digest: str
    message: str
    answers: tuple[Decision, ...]
    about: Literal["pass", "step", "cap", "tool", "blocked"] = "pass"
    output: Text | None = None
    effect: str = ""  # the effect whose answer waits for the decision, if one is running
    call: int | None = None  # the number, from 1, of the tool call of a turn that needs a decision
    snapshot: Snapshot | None = None  # of the workspace that the decision is about


class GateAnswered(PlaceEvent, frozen=True, kw_only=True, tag="gate.answered"):
    """A person decided; the first decision counts. For a tool call, `arguments` replaces the
    model's arguments, and with `remember` later calls of the tool in this run need no decision.
    """

    gate: str
    decision: Decision
    text: str = ""
    by: str = ""
    arguments: Text | None = None
    remember: bool = False


class GateClosed(PlaceEvent, frozen=True, kw_only=True, tag="gate.closed"):
    """The gate was closed without a decision."""

    gate: str
    reason: str


class MessageSent(PlaceEvent, frozen=True, kw_only=True, tag="message.sent"):
    """A message to a step or to the coordinator, or a reply. `to` is the address as written,
    `effect` the call that wrote it, `reply_to` the message that it answers.
    """

    to: str
    text: Text
    sender: str = ""
    message: str = ""
    intent: Intent = "info"
    effect: str = ""
    reply_to: str = ""


class MessageDelivered(PlaceEvent, frozen=True, kw_only=True, tag="message.delivered"):
    """An inbox was read: these messages were delivered to this call."""

    to: str
    messages: tuple[str, ...] = ()
    effect: str = ""


class MessageDropped(PlaceEvent, frozen=True, kw_only=True, tag="message.dropped"):
    """A message that was not delivered, with the reason and its text. `known` lists ids that would
    have been valid.
    """

    message: str
    to: str
    reason: DropReason
    detail: str = ""
    text: Text = ""
    sender: str = ""
    known: tuple[str, ...] = ()


class CoordinatorNarrated(PlaceEvent, frozen=True, kw_only=True, tag="coordinator.narrated"):
    """The coordinator reports progress to people."""

    text: Text
    effect: str = ""


class CoordinatorFinalized(PlaceEvent, frozen=True, kw_only=True, tag="coordinator.finalized"):
    """The coordinator has finished; its summary is the output of the run."""

    summary: Text = ""
    effect: str = ""


class HistoryCompressed(PlaceEvent, frozen=True, kw_only=True, tag="history.compressed"):
    """Part of a conversation was shortened: `trimmed` lists results that were cut, `dropped` counts
    removed entries, `kept` the remaining ones. The full conversation is still in the log.
    """

    dropped: int
    kept: int
    strategy: Literal["trim", "rolling-window", "periodic-summary"]
    summary: Text | None = None
    trimmed: tuple[int, ...] = ()  # remaining entries whose results were cut
    note: str = ""


class BudgetReserved(PlaceEvent, frozen=True, kw_only=True, tag="budget.reserved"):
    """Money and tokens reserved before a call."""

    effect: str
    usd: float = 0.0
    tokens: int = 0


class BudgetSettled(PlaceEvent, frozen=True, kw_only=True, tag="budget.settled"):
    """The actual cost of a call, compared with the reservation."""

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


def encode_events(events: Sequence[AnyEvent]) -> bytes:
    """The events of one append, as stored on disk."""
    return _ENCODER.encode(events)


def decode_events(data: bytes) -> list[AnyEvent]:
    return _DECODER.decode(data)
