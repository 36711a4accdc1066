"""Effects as a performer sees them: the job of an effect, what it consists of, and its answers.

Jobs and answers are made for every iteration, so they are msgspec structs. Parts that are the same
for all calls of a run, or that most calls do not need, are shared records.
"""

from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol, TypeAlias, final

import msgspec

from loopwright.kernel.event_parts import AnyCall, Failure, Snapshot, ToolUse
from loopwright.kernel.events import Usage
from loopwright.kernel.references import NO_PROMPT, CallPrompt
from loopwright.model.chat import AnyMessage, ChatTool
from loopwright.model.plan import Agent
from loopwright.model.sandbox import SandboxLevel
from loopwright.ports.runs import (
    IGNORED_ACTIVITY,
    NO_VALUES,
    UNLIMITED,
    ActivitySink,
    AgentChannel,
    Meter,
)


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
