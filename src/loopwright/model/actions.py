"""Actions: what a step does, and the conditions under which it runs.

Both are closed unions of records. `Repeat` is the only loop of the product. Conditions are
data; the kernel evaluates them.
"""

from typing import Literal, TypeAlias

from loopwright.model.checks import Cap, Check
from loopwright.model.policy import (
    NO_LIMITS,
    AtCap,
    CheckOrder,
    GraphOutput,
    Join,
    Limits,
    Memory,
    NoMemory,
    OnDeadline,
    OnError,
    OnFailure,
    OnItemError,
    OutputMode,
    Retry,
    SessionMode,
)
from loopwright.model.record import ItemSource, JsonValue, Record, Ref, Template

Operator: TypeAlias = Literal["==", "!=", "<", ">", "<=", ">="]


class Cel(Record, frozen=True, kw_only=True, tag="cel", tag_field="if"):
    """An expression that must give true or false. `missing` says what an absent name means."""

    text: str
    missing: Literal["false", "error"] = "error"


class Compare(Record, frozen=True, kw_only=True, tag="compare", tag_field="if"):
    """A value of an earlier step or an input against a literal.

    Equality compares texts; an order needs numbers on both sides, and anything else is an error.
    """

    ref: Ref
    op: Operator
    value: JsonValue


class EveryOf(Record, frozen=True, kw_only=True, tag="every", tag_field="if"):
    """All parts hold; the first that does not decides."""

    parts: tuple["Condition", ...]


class SomeOf(Record, frozen=True, kw_only=True, tag="some", tag_field="if"):
    """One part holds; the first that does decides, and what follows is not looked at."""

    parts: tuple["Condition", ...]


Condition: TypeAlias = Cel | Compare | EveryOf | SomeOf


Decision: TypeAlias = Literal["approve", "reject", "continue"]

SCRIPT_FLAGS = ("-c",)
"""The words between an interpreter and the text of a script, for every shell."""


class CallAgent(Record, frozen=True, kw_only=True, tag="agent", tag_field="do"):
    """One call of an agent. An empty prompt means the run's own message."""

    agent: str
    prompt: Template = ()
    schema: dict[str, JsonValue] | None = None
    session: SessionMode = "fresh"
    context_files: tuple[str, ...] = ()
    show_needs: bool = False  # the results of the steps before it are shown below the prompt
    on_idle: Literal["fail", "answer"] = "fail"  # after silence, what was said is the answer
    on_empty: Literal["answer", "fail"] = "answer"  # whether saying nothing at all is a failure


class RunCommand(Record, frozen=True, kw_only=True, tag="command", tag_field="do"):
    """A program without a shell; its output is the step's output."""

    argv: tuple[str, ...]
    timeout_ms: int = 600_000
    env: dict[str, str] = {}


class RunScript(Record, frozen=True, kw_only=True, tag="script", tag_field="do"):
    """A script of the author's, run by its interpreter; values reach it by environment only."""

    text: str
    interpreter: str = "bash"
    flags: tuple[str, ...] = SCRIPT_FLAGS
    by_stdin: bool = False  # the text is read from stdin, and is no argument
    timeout_ms: int = 120_000
    env: dict[str, Template] = {}
    on_timeout: Literal["fail", "skip"] = "fail"  # with skip, the step counts as not run
    schema: dict[str, JsonValue] | None = None  # what it prints must be JSON of this form


class AskPerson(Record, frozen=True, kw_only=True, tag="gate", tag_field="do"):
    """Stop until a person decides. With `capture`, what the person says is the output. With
    `choices`, an approval begins with one of them, and the output says which it was. With
    `expired`, nobody has to: when the time of the step is up, it completes with that output.
    """

    message: Template = ()
    answers: tuple[Decision, ...] = ("approve", "reject")
    capture: bool = False
    choices: tuple[str, ...] = ()
    approved: str | None = None  # the output of an approval, whatever the person says
    expired: str | None = None
    on_reject: "Rework | None" = None
    reject: Literal["fail", "cancel"] = "fail"


class Rework(Record, frozen=True, kw_only=True):
    """What happens when a person rejects: an agent works on it and the person is asked again.

    The rejection that makes `attempts` ends it.
    """

    agent: str
    prompt: Template = ()
    attempts: int = 3


class Wait(Record, frozen=True, kw_only=True, tag="wait", tag_field="do"):
    """Do nothing for a while."""

    ms: int
    output: str | None = None


class StopRun(Record, frozen=True, kw_only=True, tag="stop", tag_field="do"):
    """End the whole run, saying why."""

    reason: Template = ()


class FailStep(Record, frozen=True, kw_only=True, tag="fail", tag_field="do"):
    """Fail the step when it is reached, saying why: what it needs was missing at the start."""

    reason: str


class ModelCycle(Record, frozen=True, kw_only=True, tag="cycle", tag_field="do"):
    """One call of a chat model and the tool calls that it asks for, all at once. A pass without a
    tool call that did not end the loop is followed by `nudge`. `schema` is the form of the result,
    which the model hands in by a tool of its own. With `one_call` the loop around it is a single
    call of the model, and its turns do not count as iterations.
    """

    agent: str
    prompt: Template = ()
    nudge: str | None = None
    schema: dict[str, JsonValue] | None = None
    one_call: bool = False


class WorkflowInputs(Record, frozen=True, kw_only=True):
    """What a graph of steps is told that is a workflow of its own: it sees nothing else of what is
    around it but the item that it is made for. Without a message it has the one around it. Where
    none of its steps completes, it has failed.
    """

    message: Template = ()
    inputs: dict[str, Template] = {}


class Steps(Record, frozen=True, kw_only=True, tag="steps", tag_field="do"):
    """Steps that form a graph by what they need. What they come to is the output of the last that
    completed, or a JSON list of the outputs of all, in their order.
    """

    steps: tuple["Step", ...]
    on_failure: OnFailure = "cascade"
    parallel: int | None = None
    output: GraphOutput = "last"
    returns: str | None = None  # the step whose output it is, instead
    given: WorkflowInputs | None = None


class Each(Record, frozen=True, kw_only=True):
    """One pass for each item of a list, up to `parallel` at once."""

    items: ItemSource
    parallel: int | None = None
    max_items: int = 1_000
    on_item_error: OnItemError = "stop"


class LoopGate(Record, frozen=True, kw_only=True):
    """A person is asked after each pass that did not end the loop, or only `after` so many of them
    in a row since a person was asked last, and then not about the last pass that there may be.
    """

    message: Template = ()
    answers: tuple[Decision, ...] = ("approve", "reject", "continue")
    first_always: bool = False  # asked after the first pass even when its check passed
    approve_continues: bool = False  # an approval of a pass that is not done asks for another
    grants: bool = False  # `continue` after the last iteration raises the limit by one
    reject: Literal["fail", "cancel"] = "fail"
    after: int = 0


MAX_ITERATIONS = 1_000
"""So many passes a definition may allow a loop at most."""


class Repeat(Record, frozen=True, kw_only=True, tag="repeat", tag_field="do"):
    """Repeat a body, carrying a memory, until a check, a limit or a person ends it."""

    body: "Action"
    max: int | None = None
    each: Each | None = None
    until: Check = Cap()
    memory: Memory = NoMemory()
    gate: LoopGate | None = None
    at_cap: AtCap = "exhaust"
    output: OutputMode = "last"
    delay_ms: int = 0
    limits: Limits = NO_LIMITS
    broken_after: int = 3  # so many iterations in a row whose check could not run; 0 is never
    check_first: bool = False
    on_deadline: OnDeadline = "stop"  # what happens to the work when the time of the loop is up
    criteria: bool = False  # the prompt says when the work is done and which checks failed
    checks: CheckOrder = "all"  # whether `all` asks its other checks after one has failed

    @property
    def is_one_call(self) -> bool:
        """Whether the iterations are the turns of a single call of a chat model."""
        return isinstance(self.body, ModelCycle) and self.body.one_call


Action: TypeAlias = (
    CallAgent
    | RunCommand
    | RunScript
    | AskPerson
    | Wait
    | StopRun
    | FailStep
    | ModelCycle
    | Steps
    | Repeat
)


class Origin(Record, frozen=True, kw_only=True):
    """Where a step was written; for messages only."""

    line: int = 0
    column: int = 0


class Step(Record, frozen=True, kw_only=True):
    """One node of a graph of steps."""

    id: str
    action: Action
    needs: tuple[str, ...] = ()
    when: Condition | None = None
    when_error: Literal["fail", "skip"] = "fail"
    join: Join = "all_success"
    retry: Retry = Retry()
    limits: Limits = NO_LIMITS
    on_error: OnError = "fail"
    on_blocked: Literal["go_on", "ask"] = "go_on"  # where an agent begins with STATUS: BLOCKED
    needs_artifact: bool = False  # without one a person is asked when it has completed
    needs_output: bool = False  # without one it has failed
    origin: Origin | None = None
