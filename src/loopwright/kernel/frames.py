"""Frames: what is open in a run: the run itself, its steps, iterations and their bodies.

An *owner* has a name of its own: the run, a step, an iteration. It has one *body*: a leaf (a
single call), steps (a graph) or a repeat. A frame exists from the event that starts its owner
to the event that ends it; after that only a `Result` is left. Frames hold what deciding needs
and no history, so memory use follows what is open, not how long the run has been active.

Records that are made for every iteration are msgspec structs, which cost a third of a
dataclass.
"""

from collections import deque
from typing import Literal, TypeAlias

import msgspec

from loopwright.kernel.event_parts import DropReason, Failure, Intent, Snapshot
from loopwright.kernel.events import (
    NO_USAGE,
    EffectDone,
    EffectFailed,
    StepStatus,
    TurnTaken,
    Usage,
    Verdict,
)
from loopwright.model.actions import Action, CallAgent, Decision, ModelCycle, Repeat, Step, Steps
from loopwright.model.policy import NO_LIMITS, Limits, Retry
from loopwright.model.record import JsonValue, Text


class Result(msgspec.Struct, frozen=True, gc=False):
    """How a place ended."""

    status: StepStatus
    reason: str = ""
    output: Text | None = None
    result: Text | None = None
    error: Failure | None = None
    iterations: int = 0


class Spent(msgspec.Struct, gc=False):
    """What a place has used so far."""

    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    unpriced: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def usage(self) -> Usage | None:
        """The sum, or None when nothing was used."""
        if not (self.input_tokens or self.output_tokens or self.usd or self.unpriced):
            return None
        return Usage(self.input_tokens, self.output_tokens, self.usd, self.unpriced)


class AgentSession(msgspec.Struct):
    """A session of an agent that a later iteration may continue, and its usage so far."""

    id: str
    used: Usage = NO_USAGE


class GateState(msgspec.Struct):
    """A question to a person, open until answered or closed."""

    gate: str
    digest: str
    message: str
    answers: tuple[Decision, ...]
    opened_at: int
    path: str
    owner: "Owner"
    answered_at: int = 0
    effect: str = ""
    open: bool = True
    decision: Decision | None = None
    text: str = ""
    by: str = ""
    call: int | None = None
    snapshot: Snapshot | None = None  # of the workspace as it is decided about


class StepsIndex(msgspec.Struct, eq=False):
    """A graph of steps, laid out once for each `Steps` of the plan."""

    action: Steps
    at: dict[str, int]
    dependents: list[list[int]]
    missing: list[int]


class LeafBody(msgspec.Struct, eq=False):
    """One call, its tries, and the answer."""

    owner: "Owner"
    action: Action
    retry: Retry
    limits: Limits = NO_LIMITS
    attempt: int = 0
    parks: int = 0  # attempts that only met a rate limit: they do not count
    pending: str | None = None
    backoff: int = 0
    answer: EffectDone | None = None
    failure: EffectFailed | None = None
    gate: GateState | None = None
    rejections: int = 0
    rejection: str = ""
    earlier: int = 0  # attempts before the run was last resumed: retries count from 0 again

    @property
    def tries(self) -> int:
        """Tries that count."""
        return self.attempt - self.parks - self.earlier


class StepsBody(msgspec.Struct, eq=False):
    """Steps under way: what still misses something, what is ready, what runs, what ended."""

    owner: "Owner"
    index: StepsIndex
    missing: list[int]
    ready: deque[int]
    active: dict[str, "StepOwner"] = {}
    results: dict[str, Result] = {}
    failed: str | None = None
    calls: int = 0  # of agents, under way anywhere inside; counted where it is capped
    unfinished: dict[str, "StepOwner"] = {}  # ended without completing


class ToolAnswer(msgspec.Struct, frozen=True, gc=False):
    """What came of one tool call, as the model is to see it."""

    id: str
    tool: str
    text: Text
    error: bool = False
    code: int | None = None


class HistoryEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry of a conversation: a text of a user, a turn of the model (its record, as JSON),
    the results of its calls, or a summary of earlier entries. `by` is who wrote a message,
    `told` whether that is a person who steers the run.
    """

    kind: Literal["user", "model", "tools", "summary"]
    text: Text = ""
    answers: tuple[ToolAnswer, ...] = ()
    by: str = ""
    told: bool = False


class HistoryShortening(msgspec.Struct):
    """How the conversation was made shorter before a turn."""

    summary: EffectDone | EffectFailed | None = None
    summaries: int = 0  # the number of the last summary that was requested in this turn
    shortened: bool = False  # the conversation was cut before this turn
    overflowed: bool = False  # and once more because the provider found it too long


class CycleBody(msgspec.Struct, eq=False):
    """A turn of a model and its tool calls, each by its number in the turn, from 1."""

    owner: "Owner"
    action: ModelCycle
    retry: Retry
    attempt: int = 0
    parks: int = 0  # as above
    pending: str | None = None
    backoff: int = 0
    answer: EffectDone | None = None
    failure: EffectFailed | None = None
    shortening: HistoryShortening = msgspec.field(default_factory=HistoryShortening)
    turn: TurnTaken | None = None
    asked: dict[int, str] = {}
    approved: dict[int, Text] = {}
    answers: dict[int, ToolAnswer] = {}
    gates: dict[int, GateState] = {}
    submitted: Text | None = None
    earlier: int = 0  # as above
    withdrawn: set[int] = set()  # tool calls that were ended from outside
    runs: dict[int, int] = {}  # by tool call: how often it was run

    @property
    def tries(self) -> int:
        """Tries that count."""
        return self.attempt - self.parks - self.earlier


class ItemResult(msgspec.Struct, eq=False, gc=False):
    """What is kept of a finished pass over an item."""

    status: StepStatus
    output: Text | None
    result: Text | None
    error: Failure | None


class InterruptedIteration(msgspec.Struct, frozen=True):
    """An iteration of steps that did not end: the state of its loop before it, what completed in
    it, by step with where that was, and the first step that did not complete, if there is one.
    """

    number: int
    values: dict[str, object]
    done: dict[str, "CarriedResult"]
    stuck: str | None


class CarriedResult(msgspec.Struct, frozen=True):
    """The result of a step in an earlier try of its iteration; without it, a person skips the step
    and says so.
    """

    of: str = ""
    ended: Result | None = None
    note: str = ""


class LoopProgress(msgspec.Struct):
    """What a loop knows of the iterations that have ended; the rules that end it read this."""

    last: Result | None = None
    last_done: bool = False
    last_checks: list["CheckNote"] = []
    last_steps: dict[str, Result] = {}
    feedback: str = ""
    identical: int = 0
    unmet: int = 0  # iterations in a row that did not end the loop, since a person was asked
    broken: int = 0
    extra: int = 0  # iterations that a person has added to the cap


class LoopMemory(msgspec.Struct):
    """What a loop keeps of its iterations for the prompts of later ones and for its output."""

    learnings: list[str] = []  # the most recent ones, the newest last
    forgotten: int = 0  # learnings before those, which no prompt shows any more
    outputs: list[list[tuple[str, Text]]] = []
    sessions: dict[str, AgentSession] = {}  # by place and program
    talks: dict[str, list[HistoryEntry]] = {}  # by place and model


class LoopItems(msgspec.Struct):
    """The list that a loop goes over, and the results of its items."""

    values: list[JsonValue] | None = None
    missing: Failure | None = None  # why there is no list
    results: list[ItemResult | None] = []
    spoiled: Result | None = None  # the first item that did not complete
    again: list[int] = []  # items that begin again in a resumed run


class LoopConversation(msgspec.Struct):
    """A conversation with a chat model, where the iterations of a loop are its turns."""

    answers_call: bool = False  # whether the iterations of the loop are turns of one call
    history: list[HistoryEntry] = []
    carried: int = 0  # entries that were there before the task was given
    thread: "tuple[RepeatBody, str] | None" = None  # the loop that keeps it for the next iteration
    turns: int = 0  # iterations whose turn has entered the conversation
    summaries: int = 0
    counted: int = 0  # tokens of the conversation, as the provider counted them last
    counted_entries: int = 0  # how many entries that count was about


class LoopCarry(msgspec.Struct):
    """What the next iteration takes over from one that stopped half-way."""

    spoilt: InterruptedIteration | None = None
    keeps: dict[str, CarriedResult] = {}  # steps that are not run again
    note: str = ""  # what a person says to the step that begins next


class RepeatBody(msgspec.Struct, eq=False, weakref=True):
    """A loop under way."""

    owner: "Owner"
    action: Repeat
    step: "StepOwner"  # the step around it, whose retry policy holds inside
    call: CallAgent | None = None  # what this is a conversation with, if it is one
    spent: Spent = msgspec.field(default_factory=Spent)
    started: int = 0
    finished: int = 0
    active: dict[int, "IterationOwner"] = {}
    unfinished: dict[int, "UnfinishedIteration"] = msgspec.field(
        default_factory=dict
    )  # ended without completing
    checked_first: bool = False
    deadline: str | None = None
    deadline_hit: bool = False
    delay: str | None = None
    delayed: int = 0
    cap_gate: GateState | None = None
    progress: LoopProgress = msgspec.field(default_factory=LoopProgress)
    memory: LoopMemory = msgspec.field(default_factory=LoopMemory)
    items: LoopItems = msgspec.field(default_factory=LoopItems)
    talk: LoopConversation = msgspec.field(default_factory=LoopConversation)
    carry: LoopCarry = msgspec.field(default_factory=LoopCarry)


class UnfinishedIteration(msgspec.Struct, eq=False):
    """An iteration that ended without completing, and the values of its loop before it ended."""

    owner: "IterationOwner"
    values: dict[str, object]


class KeptLoop(msgspec.Struct):
    """What is kept of a loop of the plan that did not complete, for when the run is reopened:
    always of a conversation, of any other loop if it ended at its cap or in an iteration of steps
    that did not end.
    """

    passes: int
    most: int | None
    talk: bool
    capped: bool
    values: dict[str, object]
    spent: Spent
    spent_by_step: Spent
    spoilt: InterruptedIteration | None = None


class CheckNote(msgspec.Struct, eq=False, gc=False):
    """The feedback of a check about an iteration, for the next one."""

    index: int
    check: str
    verdict: Verdict
    evidence: Text
    code: int | None = None  # the exit code of its program
    by: str = ""  # the person or the agent that gave the verdict


SINGLE = (LeafBody, CycleBody)
"""Bodies that have an answer of their own; see `calls.CALLED`."""

Body: TypeAlias = LeafBody | CycleBody | StepsBody | RepeatBody


def value_of(body: RepeatBody, name: str) -> object:
    """A value of a loop by its place in it, such as `progress.last`."""
    part, _, field_name = name.rpartition(".")
    return getattr(getattr(body, part) if part else body, field_name)


def set_value(body: RepeatBody, name: str, value: object) -> None:
    """Put back a value that was kept."""
    part, _, field_name = name.rpartition(".")
    setattr(getattr(body, part) if part else body, field_name, value)


class RunOwner(msgspec.Struct, eq=False):
    """The run itself."""

    body: StepsBody = None  # type: ignore[assignment]  # made by the first event
    path: str = ""
    inside: str = ""
    iteration: int | None = None
    spent: Spent = msgspec.field(default_factory=Spent)
    deadline: str | None = None
    deadline_hit: bool = False
    closed: bool = False
    queued: bool = False
    parent: None = None
    kind: Literal["run"] = "run"


class StepOwner(msgspec.Struct, eq=False):
    """A step that has started and has not ended."""

    path: str
    iteration: int | None
    step: Step
    parent: StepsBody
    body: Body = None  # type: ignore[assignment]  # made right after, since it names its owner
    inside: str = ""  # how places inside are named; a new try of the whole step gets a new name
    tries: int = 1
    gate: GateState | None = None  # asked because its agent says that it is blocked
    note: str = ""  # the message of a person then
    look: str | None = None  # the last look for what it had to leave behind
    looks: int = 0
    found: bool | None = None  # the result of that
    first_try: int = 1  # with which this opening of the run began; a policy counts from here
    openings: int = 1  # how often it has begun; more than once in a resumed run
    spent: Spent = msgspec.field(default_factory=Spent)
    deadline: str | None = None
    deadline_hit: bool = False
    closed: bool = False
    queued: bool = False
    kind: Literal["step"] = "step"


class IterationChecks(msgspec.Struct, eq=False):
    """The verdicts about an iteration so far, and the check that is asked."""

    verdicts: dict[int, Verdict] = {}
    notes: list[CheckNote] = []
    pending: str | None = None
    answer: EffectDone | EffectFailed | None = None
    index: int = 0  # the check that was asked last
    tries: int = 0  # how often it was asked; 0 after its verdict
    parks: int = 0
    earlier: int = 0  # tries before the run was last resumed
    numbers: dict[int, int] = {}  # by check: the last try of one without a verdict that counts


class IterationOwner(msgspec.Struct, eq=False):
    """An iteration that has started and has not ended."""

    path: str
    iteration: int
    number: int
    parent: RepeatBody
    started_at: int = 0
    body: Body = None  # type: ignore[assignment]  # made right after, since it names its owner
    inside: str = ""
    spent: Spent = msgspec.field(default_factory=Spent)
    checks: IterationChecks = msgspec.field(default_factory=IterationChecks)
    openings: int = 1  # as above
    ended_at: int = 0
    idle_ms: int = 0  # the time between its ends and its next beginnings
    gate: GateState | None = None
    answered_gate: GateState | None = None  # the gate whose decision a check has taken up
    deadline: str | None = None
    deadline_hit: bool = False
    closed: bool = False
    queued: bool = False
    kind: Literal["pass"] = "pass"


Owner: TypeAlias = RunOwner | StepOwner | IterationOwner


class QueuedMessage(msgspec.Struct, frozen=True):
    """A message on its way."""

    id: str
    sender: str
    to: str
    text: Text
    intent: Intent = "info"


class UndeliverableMessage(msgspec.Struct, frozen=True):
    """A message that will not be read."""

    message: QueuedMessage
    reason: DropReason
    detail: str = ""
    known: tuple[str, ...] = ()


class CoordinatorNotice(msgspec.Struct, frozen=True):
    """Something that is reported to the coordinator."""

    kind: str
    step: str = ""
    words: str = ""
    text: Text | None = None
    message: QueuedMessage | None = None


AgentMessage: TypeAlias = tuple[str, str, Text]
"""A message of an active agent: the tool, the recipient, the text."""


class StepReplies(msgspec.Struct):
    """Steps that have ended and are called again to answer."""

    asleep: dict[str, None] = {}  # those with something to read
    waking: dict[str, str] = {}
    wakes: dict[str, int] = {}
    answers: dict[str, EffectDone] = {}


class CoordinatorState(msgspec.Struct):
    """The calls of the coordinator, and what it has to read."""

    notices: list[CoordinatorNotice] = []
    shown: list[CoordinatorNotice] = []  # in the call that is under way
    woken: bool = False
    call: str | None = None
    calls: int = 0
    failures: int = 0
    answer: EffectDone | None = None
    session: str | None = None
    spoke: bool = False  # whether the call used a tool while it was under way
    trouble: Failure | None = None  # of the last call, before it is made again
    backoff: str | None = None
    closed: bool = False
    summary: Text | None = None
    hold: str | None = None
    held: bool = False


class Mail(msgspec.Struct):
    """Inboxes, delivered messages, and the state of the coordinator."""

    active: bool = False  # whether anybody writes or listens in this run
    sent: int = 0
    inboxes: dict[str, list[QueuedMessage]] = {}
    boxes: dict[str, str] = {}  # the inbox of a message that waits
    delivered: dict[str, list[QueuedMessage]] = msgspec.field(
        default_factory=dict
    )  # by place, while it is open
    sent_by: dict[str, list[AgentMessage]] = msgspec.field(
        default_factory=dict
    )  # by effect, while it is pending
    stopped: dict[str, QueuedMessage] = {}  # places that a message ends
    undeliverable: dict[str, UndeliverableMessage] = {}
    sessions: dict[str, str] = {}

    replies: StepReplies = msgspec.field(default_factory=StepReplies)
    coordinator: CoordinatorState = msgspec.field(default_factory=CoordinatorState)
