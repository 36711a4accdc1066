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
    """An expression that must give true or false. `missing` is the result for an absent name."""

    text: str
    missing: Literal["false", "error"] = "error"


class Compare(Record, frozen=True, kw_only=True, tag="compare", tag_field="if"):
    """Compares a value of an earlier step or an input with a literal.

    Equality compares texts; an order needs numbers on both sides, and anything else is an error.
    """

    ref: Ref
    op: Operator
    value: JsonValue


UNREADABLE = "unreadable: "
"""The beginning of the value of a comparison that replaces a condition which cannot be read."""


class EveryOf(Record, frozen=True, kw_only=True, tag="every", tag_field="if"):
    """All parts are true; the first that is not decides."""

    parts: tuple["Condition", ...]


class SomeOf(Record, frozen=True, kw_only=True, tag="some", tag_field="if"):
    """One part is true; the first that is decides, and later parts are not evaluated."""

    parts: tuple["Condition", ...]


Condition: TypeAlias = Cel | Compare | EveryOf | SomeOf


Decision: TypeAlias = Literal["approve", "reject", "continue"]

SCRIPT_FLAGS = ("-c",)
"""The arguments between an interpreter and the text of a script, for every shell."""


class CallAgent(Record, frozen=True, kw_only=True, tag="agent", tag_field="do"):
    """One call of an agent. An empty prompt means the run's own message."""

    agent: str
    prompt: Template = ()
    schema: dict[str, JsonValue] | None = None
    session: SessionMode = "fresh"
    context_files: tuple[str, ...] = ()
    show_needs: bool = False  # the results of the steps before it are shown below the prompt
    on_idle: Literal["fail", "answer"] = "fail"  # after silence, the text so far is the answer
    on_empty: Literal["answer", "fail"] = "answer"  # whether an empty answer is a failure


class RunCommand(Record, frozen=True, kw_only=True, tag="command", tag_field="do"):
    """A program without a shell; its output is the step's output."""

    argv: tuple[str, ...]
    timeout_ms: int = 600_000
    env: dict[str, str] = {}


class RunScript(Record, frozen=True, kw_only=True, tag="script", tag_field="do"):
    """A script of the author, run by its interpreter; it receives values through the environment
    only.
    """

    text: str
    interpreter: str = "bash"
    flags: tuple[str, ...] = SCRIPT_FLAGS
    by_stdin: bool = False  # the text is read from stdin and is not an argument
    timeout_ms: int = 120_000
    env: dict[str, Template] = {}
    on_timeout: Literal["fail", "skip"] = "fail"  # with skip, the step counts as not run
    schema: dict[str, JsonValue] | None = None  # its output must be JSON of this form


class AskPerson(Record, frozen=True, kw_only=True, tag="gate", tag_field="do"):
    """Wait until a person decides. With `capture`, the person's text is the output. With `choices`,
    an approval begins with one of them, and the output says which. With `expired`, no decision is
    required: when the time of the step is over, it completes with that output.
    """

    message: Template = ()
    answers: tuple[Decision, ...] = ("approve", "reject")
    capture: bool = False
    choices: tuple[str, ...] = ()
    approved: str | None = None  # the output of an approval, whatever the person writes
    timed: bool = False  # `approved` is a JSON object, to which the time and the text are added
    expired: str | None = None
    on_reject: "Rework | None" = None
    reject: Literal["fail", "cancel"] = "fail"


class Rework(Record, frozen=True, kw_only=True):
    """After a rejection, an agent changes the result and the gate opens again.

    The rejection number `attempts` ends it.
    """

    agent: str
    prompt: Template = ()
    attempts: int = 3


class Wait(Record, frozen=True, kw_only=True, tag="wait", tag_field="do"):
    """Wait for a time."""

    ms: int
    output: str | None = None


class StopRun(Record, frozen=True, kw_only=True, tag="stop", tag_field="do"):
    """End the whole run with a reason."""

    reason: Template = ()


class FailStep(Record, frozen=True, kw_only=True, tag="fail", tag_field="do"):
    """Fail the step when it is reached, with a reason: something that it needs was missing at the
    start.
    """

    reason: str


class ModelCycle(Record, frozen=True, kw_only=True, tag="cycle", tag_field="do"):
    """One call of a chat model and the tool calls that it requests, all at once. After an iteration
    without a tool call that did not end the loop, the model receives `nudge`. `schema` is the form
    of the result, which the model submits with a separate tool. With `one_call` the loop around it
    is a single call of the model, and its turns do not count as iterations.
    """

    agent: str
    prompt: Template = ()
    nudge: str | None = None
    schema: dict[str, JsonValue] | None = None
    one_call: bool = False


class WorkflowInputs(Record, frozen=True, kw_only=True):
    """The values of a graph of steps that is a separate workflow: it can use nothing else of its
    surroundings except the item that it runs for. Without a message it has the outer one. If none
    of its steps completes, it has failed.
    """

    message: Template = ()
    inputs: dict[str, Template] = {}


class Steps(Record, frozen=True, kw_only=True, tag="steps", tag_field="do"):
    """Steps ordered by their dependencies. The output is that of the last step that completed, or a
    JSON list of the outputs of all, in their order.
    """

    steps: tuple["Step", ...]
    on_failure: OnFailure = "cascade"
    parallel: int | None = None
    output: GraphOutput = "last"
    returns: str | None = None  # the step whose output is the output of the graph, instead
    given: WorkflowInputs | None = None


class Each(Record, frozen=True, kw_only=True):
    """One iteration for each item of a list, up to `parallel` at once."""

    items: ItemSource
    parallel: int | None = None
    max_items: int = 1_000
    on_item_error: OnItemError = "stop"
    failed_key: str = ""  # what marks the entry of a failed item in a list, as `KEY: true`


class LoopGate(Record, frozen=True, kw_only=True):
    """A gate opens after each iteration that did not end the loop, or only after `after` of them in
    a row since the last gate, and then not after the last allowed iteration.
    """

    message: Template = ()
    answers: tuple[Decision, ...] = ("approve", "reject", "continue")
    first_always: bool = False  # opened after the first iteration even if its check passed
    approve_continues: bool = False  # approving an iteration that is not done starts another
    grants: bool = False  # `continue` after the last iteration raises the limit by one
    reject: Literal["fail", "cancel"] = "fail"
    after: int = 0


MAX_ITERATIONS = 1_000
"""The maximum number of iterations that a definition may allow a loop."""


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
    # maximum number of iterations in a row whose check could not run; 0 means unlimited
    broken_after: int = 3
    check_first: bool = False
    on_deadline: OnDeadline = "stop"  # what happens to running work at the time limit of the loop
    criteria: bool = False  # the prompt includes the completion criteria and the failed checks
    checks: CheckOrder = "all"  # whether `all` runs its other checks after one has failed

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
    """Position of a step in its file; for messages only."""

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
    # if the answer of an agent begins with STATUS: BLOCKED
    on_blocked: Literal["go_on", "ask"] = "go_on"
    needs_artifact: bool = False  # without one, a gate opens when the step has completed
    needs_output: bool = False  # without one, the step has failed
    origin: Origin | None = None
