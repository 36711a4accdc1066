"""Ports of runs: the event log, effects as a performer sees them (the job of an effect and its
answers), model clients, live activity and live usage.

Records that are made for every iteration (appends, jobs and their answers) are msgspec structs:
cheap to make, and invisible to the garbage collector, which is safe because none is part of a
cycle. Parts of a job that are the same for all calls of a run, or that most calls do not need, are
shared records.

A backend reports activity while a call runs; the runtime stores the entries in batches,
attached to the effect of the call. Recording never blocks and never fails the call.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol, TypeAlias, final

import msgspec

from loopwright.kernel.event_parts import AnyCall, Failure, Snapshot, ToolUse
from loopwright.kernel.events import AnyEvent, Usage
from loopwright.kernel.references import NO_PROMPT, CallPrompt
from loopwright.model.chat import (
    AnyMessage,
    CallPart,
    ChatTool,
    ModelEvent,
    ModelRequest,
    Pricing,
    RequestedCall,
)
from loopwright.model.plan import Agent, Plan
from loopwright.model.record import JsonValue, Text
from loopwright.model.sandbox import SandboxLevel
from loopwright.ports.storage import (
    AuditRow,
    ClosedGate,
    Headline,
    OpenGate,
    Owner,
    RunDetails,
    RunListing,
    RunRow,
    RunStatus,
    StoredRecord,
    UsageRow,
)

ActivityKind: TypeAlias = Literal[
    "tool",  # any tool that is none of the others
    "command",  # a command line was run
    "edit",  # a file was written, edited, moved or deleted
    "read",  # a file or a folder was read, listed or searched
    "fetch",  # a host was contacted
    "status",  # the agent reported its own state: reconnecting, rate limited
    "denied",  # the agent was denied a permission; `text` names what would allow it
    "stderr",  # the program wrote to standard error and succeeded; `result` is the end of it
    "warning",  # Loopwright noted something about the call; `text` says what
]


class ActivityEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One action of an agent. `arguments` and `result` are whole texts; the engine masks secrets,
    cuts them at a limit and stores them by content. `ok` is None if unknown.
    """

    kind: ActivityKind
    tool: str = ""  # the agent's own name for it
    target: str = ""  # the path, command line or host
    ok: bool | None = None
    code: int | None = None  # exit code of a command
    ms: int | None = None  # duration
    text: str = ""  # one short line for people
    arguments: str = ""
    result: str = ""


class ActivitySink(Protocol):
    """Receives the activity that a backend reports. No report makes it raise."""

    def hide(self, values: Callable[[], Mapping[str, str]]) -> None:
        """Name the secrets of the agent: variables and their values, which are never stored. The
        function is called when something is recorded.
        """

    def redact(self, text: str) -> str:
        """A text without the secrets that the agent was given."""

    def record(self, entry: ActivityEntry) -> None:
        """Record an entry that is complete. Entries beyond the cap of a call are counted only."""

    def keep_stream(self, chunk: bytes) -> None:
        """Keep the agent's own output, as it is read; stored compressed when the call ends."""


class IgnoredActivity:
    """A sink that stores nothing, for dry runs and tests of backends."""

    def hide(self, values: Callable[[], Mapping[str, str]]) -> None:
        """Nothing is stored, so nothing has to be hidden."""

    def redact(self, text: str) -> str:
        """Nothing is hidden."""
        return text

    def record(self, entry: ActivityEntry) -> None:
        """Drop the entry."""

    def keep_stream(self, chunk: bytes) -> None:
        """Drop the bytes."""


IGNORED_ACTIVITY = IgnoredActivity()


class Meter(Protocol):
    """Watches one call against the budgets around it."""

    def report(self, usage: Usage) -> str | None:
        """Record the usage of the call so far. Returns the exceeded budget, as a message; the
        backend must then end the call. None: the call may continue.
        """


class UnlimitedMeter:
    """A meter without any budget."""

    def report(self, usage: Usage) -> str | None:
        return None


UNLIMITED = UnlimitedMeter()


NO_BLOBS: Mapping[str, bytes] = MappingProxyType({})
NO_VALUES: Mapping[str, str] = MappingProxyType({})


class Append(msgspec.Struct, kw_only=True, gc=False):
    """One atomic addition to a run: events, the blobs they name, and what lists show afterwards."""

    run: str
    expected: int
    events: Sequence[AnyEvent]
    blobs: Mapping[str, bytes] = NO_BLOBS
    headline: Headline | None = None
    figures: str = ""  # encoded; none: they stay as they are
    details: RunDetails | None = None  # with the first append
    gates_opened: Sequence[OpenGate] = ()
    gates_closed: Sequence[ClosedGate] = ()
    usage: Sequence[UsageRow] = ()  # of the calls that these events end; added to what is stored
    token: str | None = None  # the driver's fence; None: a caller who does not drive
    owner: Owner | None = None  # with the first append of a run: who drives it from the start
    audit: Sequence[AuditRow] = ()
    records: Sequence[
        StoredRecord
    ] = ()  # records that are written with it, whatever version they have


@dataclass(frozen=True, slots=True)
class NumberedEvent:
    """An event with its number in its run."""

    seq: int
    event: AnyEvent


class EventLog(Protocol):
    """The log of all runs. Everything is safe to call from the thread of one event loop."""

    def submit(self, append: Append, done: Callable[[Exception | None], None]) -> None:
        """Queue an append; `done` is called in the event loop's thread once it is durable, with
        None, or with VersionConflict, Conflict (fenced, key taken) or StorageError.
        """

    async def append(self, append: Append) -> None:
        """`submit` and wait; raises what `submit` would have reported."""

    def read(
        self, run: str, after: int = 0, limit: int | None = None, *, as_is: bool = False
    ) -> list[NumberedEvent]:
        """Events with numbers above `after`, in order, at most `limit`; NotFound if there is no
        such run. StorageError if they were changed after they were recorded; with `as_is` they are
        returned anyway, for inspection only.
        """

    def version(self, run: str) -> int:
        """Number of the newest event of a run; NotFound if there is no such run."""

    def head(self, run: str) -> str:
        """The newest value of the hash chain over the events of a run; NotFound if there is no such
        run.
        """

    def blob(self, digest: str) -> bytes:
        """Content by its hash; NotFound if it is not stored."""

    def row(self, run: str) -> RunRow:
        """The row of one run; NotFound if no such run."""

    def rows(
        self,
        *,
        statuses: Sequence[RunStatus] = (),
        prefix: str = "",
        limit: int | None = None,
        before: str | None = None,
        session: str | None = None,
        key: str | None = None,
    ) -> list[RunRow]:
        """Rows, newest first; with `before`, those that are older than that run; with `key`, those
        that have it or had it while they were open.
        """

    def check_end(self, run: str) -> None:
        """Refuse a run whose newest events, or whose row, were changed after they were recorded.
        Earlier events are not read.
        """

    def missing(self) -> list[str]:
        """Ids of runs that were recorded and not deleted, and are missing. A list of runs is
        incomplete without them.
        """

    def gates(self, run: str | None = None) -> list[OpenGate]:
        """Open gates, oldest first."""

    def find_gates(self, beginning: str, limit: int) -> list[OpenGate | ClosedGate]:
        """Gates whose ids begin so, open ones first, at most `limit`."""

    def usage(self, since_day: int = 0) -> list[UsageRow]:
        """What was used since a day, by run, agent and day, in the order of the runs."""

    def usage_sum(self, since_day: int = 0, run: str = "", agent: str = "") -> Usage:
        """The sum of what was used since a day: by all runs, or by one agent of one run."""

    def unlisted(self) -> list[str]:
        """Runs of older versions, without some of what lists show; `replace_listing` stores it."""

    def replace_listing(self, run: str, listing: RunListing) -> None:
        """Store what lists show of a run as its events say, instead of what is stored. Nothing
        happens if the run has changed since.
        """

    def claim(self, runs: Iterable[str], owner: Owner) -> dict[str, Owner | None]:
        """Claim the named runs for this owner in one transaction. Returns, for each run, None if it
        is ours now, or the living owner that keeps it. A run that has ended has no owner.
        """

    def alive(self, owner: Owner) -> bool:
        """Whether the process of an owner still lives."""

    def release(self, runs: Iterable[str], owner: Owner) -> None:
        """Give runs back; ones that are not ours are left alone."""

    def forget(self, runs: Iterable[str], audit: Sequence[AuditRow] = ()) -> int:
        """Delete runs that have ended, all of them or none, with the content that nothing else
        names; returns the number of deleted pieces of content. NotFound, or Conflict for an open
        one. `audit` is written with it, or not at all.
        """

    def nudges(self, after: int) -> tuple[list[str], int]:
        """Runs that were changed since the cursor `after`, each once, and the new cursor. The
        cursor 0 means now: it returns no run.
        """

    def subscribe(self, listener: Callable[[str, int], None]) -> Callable[[], None]:
        """Call `listener(run, version)` after each append of this process; the answer ends it."""

    def changed(self) -> bool:
        """Whether another process has written since this was last asked. Cheap, for polling."""

    def close(self) -> None:
        """Flush what waits and close; further calls fail."""


Liveness: TypeAlias = Callable[[Owner], bool]


class Clock(Protocol):
    """Time as the runtime sees it."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def call_at(self, when_ms: int, action: Callable[[], None]) -> Callable[[], None]:
        """Run `action` at or after that time; the answer cancels it."""

    def call_after(self, delay_ms: int, action: Callable[[], None]) -> Callable[[], None]:
        """Run `action` after this much time, whatever happens to the wall clock; the returned
        function cancels it.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Live text of an agent. Losing it harms nothing."""

    run: str
    effect: str
    kind: Literal["text", "tool", "note"]
    text: str


class Bus(Protocol):
    """Carries deltas from performers to listeners."""

    def publish(self, delta: Delta) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxMessage:
    """A message as it is handed to an agent under way."""

    sender: str
    text: str
    kind: str = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReply:
    """The answer to an agent that used a tool of its run."""

    text: str
    ok: bool = True
    messages: tuple[InboxMessage, ...] = ()


class AgentChannel(Protocol):
    """What the agent of a call under way may ask of its run: the tools of the run."""

    def use(self, tool: str, arguments: JsonValue) -> Awaitable[ToolReply]:
        """Use a tool; returns when the resulting events are durable. Never raises for a request of
        an agent.
        """

    def end_waiting(self) -> None:
        """Let readers of the call that wait for a message wait no longer. One whose messages are
        being recorded as delivered still gets them.
        """


class OfferedTools(Protocol):
    """The tools to offer to a model, and the servers that cannot be reached now."""

    @property
    def tools(self) -> tuple[ChatTool, ...]: ...

    @property
    def problems(self) -> tuple[str, ...]: ...


class ToolEnd(Protocol):
    """What came of a tool, for the model."""

    @property
    def text(self) -> str: ...

    @property
    def error(self) -> bool: ...

    @property
    def code(self) -> int | None: ...


class AgentTools(Protocol):
    """What one agent may do in one workspace, and the only way to it."""

    async def specs(self) -> OfferedTools:
        """The available tools."""

    async def resolve(self, call: CallPart) -> RequestedCall:
        """A call that a model requests, under the tool's own name, or the problem with it."""

    async def run(
        self, tool: str, arguments: JsonValue, *, approved: bool = False, key: str = ""
    ) -> ToolEnd:
        """Execute it. Failures are data for the model; cancelling ends what it has started. A
        tracker stores a change once per key.
        """

    def repeatable(self, tool: str) -> bool:
        """Whether a call with an unknown result can simply be repeated."""


class ModelClient(Protocol):
    """Asks chat models. There is one way, a stream; a whole answer is its last event."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call a model and yield events. The first event is an `AttemptStarted`; deltas follow, an
        `AttemptFailed` and a new `AttemptStarted` for each further attempt, and the last event is
        always one `Answered` or `Unanswered`. Never raises for failures of a service or a network.
        Closing the generator, or cancelling the task in it, closes the connection at once.
        """


class ModelCatalogue(Protocol):
    """The known data of models before one is called."""

    def window(self, model: str) -> int | None:
        """The context window of `PROVIDER/NAME` in tokens, None if unknown."""

    def price(
        self, model: str, input_tokens: int, output_tokens: int, pricing: Pricing
    ) -> float | None:
        """The maximum cost of this many tokens in USD, None if unknown."""


class RunReader(Protocol):
    """What views read of runs."""

    @property
    def log(self) -> EventLog: ...

    def events(self, run: str, after: int = 0) -> list[NumberedEvent]:
        """The events of a run; one that has none at all is damaged."""

    def plan(self, first: AnyEvent) -> Plan:
        """The plan that a run was started with."""

    def read_text(self, text: Text | None) -> str:
        """A text of an event, whole."""


class JobOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """What all effects of a run have in common."""

    token: str  # marks every process of the driver, so that a later start can find leftovers
    scope: str = ""  # of the trackers: the session that the run belongs to, or the run itself
    depth: int = 0  # of runs around this one
    pass_env: tuple[str, ...] = ()  # names of variables that the run was given


class JobLimits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How long a call may take, and what it may cost."""

    idle_ms: int | None = None
    wall_ms: int | None = None
    budgeted: bool = False  # what it costs counts against a limit in USD
    counted: bool = False  # its tokens count against some limit
    covered: bool = True  # False: a limit in USD does not apply to this agent; its cost is unknown
    remaining_usd: float | None = None  # what the budgets around the call leave for it
    remaining_tokens: int | None = None


class ChatTurn(msgspec.Struct, frozen=True, kw_only=True):
    """What a chat model is sent for a turn, or what one of its tools is run with."""

    system: str | None = None  # instead of the agent's own
    messages: tuple[AnyMessage, ...] = ()  # the conversation so far
    offers: tuple[ChatTool, ...] = ()  # tools of the run
    task: str = ""  # to be recorded with the turn, for a later iteration that continues
    forced: bool = False  # the model may only submit its result
    arguments: str = "{}"  # of a tool, as JSON
    approved: bool = False  # a person has let this very call of a tool through


class ProgramConfinement(msgspec.Struct, frozen=True, kw_only=True):
    """What a program is given, and what is kept from it and from those who look on."""

    sandbox: SandboxLevel | None = None  # of the run; None: as this machine is set
    env: Mapping[str, str] = NO_VALUES  # values that a script is given
    checks: tuple[tuple[str, ...], ...] = ()  # command checks of the loops around the call
    # a check: Python reads no bytecode that an agent may have left behind
    fresh_bytecode: bool = False
    hidden: str | None = None  # a signal whose tags those who look on do not see


NO_JOB_LIMITS = JobLimits()

NO_CHAT = ChatTurn()

NO_CONFINEMENT = ProgramConfinement()


@final
class EffectJob(msgspec.Struct, kw_only=True):
    """One effect as a performer sees it: what to do, where, and under which key."""

    run: str
    effect: str
    path: str
    iteration: int
    attempt: int
    call: AnyCall
    workspace: str
    origin: JobOrigin
    agent: Agent | None = None
    step: str = ""
    prompt: CallPrompt = NO_PROMPT
    chat: ChatTurn = NO_CHAT
    limits: JobLimits = NO_JOB_LIMITS
    confinement: ProgramConfinement = NO_CONFINEMENT
    used: AbstractSet[int] = frozenset()  # bookmarks that this agent has already used up
    again: bool = False  # started by an earlier process, and its result is unknown
    talk: AgentChannel | None = None
    meter: Meter = UNLIMITED  # where the backend reports the usage of the call
    activity: ActivitySink = IGNORED_ACTIVITY  # where the backend reports the activity of its agent


@final
class EffectSuccess(msgspec.Struct, kw_only=True, gc=False):
    """An effect's answer."""

    output: str = ""
    result: str | None = None  # JSON text
    usage: Usage | None = None
    session: str | None = None
    code: int | None = None
    mark: int | None = None
    note: str = ""
    tools: tuple[ToolUse, ...] = ()
    snapshot: Snapshot | None = None
    model: str = ""  # that answered, as far as the agent names it; prices depend on it


@final
class EffectFailure(msgspec.Struct, kw_only=True, gc=False):
    """The other answer: it did not work, and why."""

    error: Failure
    output: str = ""
    usage: Usage | None = None
    session: str | None = None
    code: int | None = None
    mark: int | None = None
    tools: tuple[ToolUse, ...] = ()
    model: str = ""


Answer: TypeAlias = EffectSuccess | EffectFailure


class Question(msgspec.Struct, kw_only=True, frozen=True):
    """A question that a person has to decide before an effect can continue. `number` distinguishes
    equal questions of one effect.
    """

    message: str
    about: str = ""  # exactly what is decided
    number: int = 0


Ask: TypeAlias = Callable[[EffectJob, Question], Awaitable[bool]]
"""Asks a person, durably; True is an approval, and nothing else is."""


class Performer(Protocol):
    """Performs effects. Returns at once or an awaitable; never raises for the behaviour of an agent
    or a program. Cancelling the wait ends everything that the effect has started.
    """

    def perform(self, job: EffectJob) -> Answer | Awaitable[Answer]: ...
