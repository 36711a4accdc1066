"""Policies of steps and loops: limits, retries, the workspace, and the memory of a loop.

All of them are data. The memory of a loop is a closed union: it says what one iteration passes
on to the next.
"""

from typing import Final, Literal, TypeAlias

from loopwright.model.record import Record

FailureKind: TypeAlias = Literal[
    "exit",  # the program ended with a code other than 0
    "agent",  # the agent itself said that it failed
    "rate_limited",  # the provider asked to come back later
    "overloaded",  # the provider or the machine could not take it now
    "host_shortage",  # no file descriptors, processes or memory left; neither a try nor a failure
    "idle_timeout",  # no output for too long
    "wall_timeout",  # too long altogether
    "not_found",  # the program does not exist or may not be run
    "workspace_gone",  # the working directory is not there
    "bad_result",  # the answer does not fit the result's schema
    "bad_input",  # nothing could be sent: an empty prompt, a missing value
    "script",  # the script of answers has no fitting reply
    "crashed",  # the agent's program ended in the middle of its turn
    "not_signed_in",  # the provider does not know us
    "permission_denied",  # the agent needed a right that it does not have
    "session_gone",  # the session to go on with is not there any more
    "turn_limit",  # the agent made as many turns as one call may have
    "budget_limit",  # the agent spent as much as one call may cost
    "cancelled",  # ended from outside: stop, deadline, a sibling
    "overflow",  # the conversation does not fit in the window of the model
    "tool",  # a tool that a model asked for did not work; the model is told
    "vanished",  # its process was gone each time that it was begun
    "interrupted",  # a call whose end nobody saw, and that may not simply be made again
    "internal",  # a defect of ours; never retried
    "any",  # in a policy: whatever went wrong, but for stops, rejections and our own defects
]

RETRYABLE: tuple[FailureKind, ...] = ("rate_limited", "overloaded")


class Retry(Record, frozen=True, kw_only=True):
    """How often an action is tried and after which wait; tries are counted apart from passes."""

    attempts: int = 1
    base_ms: int = 1_000
    cap_ms: int = 60_000
    on: tuple[FailureKind, ...] = RETRYABLE
    if_says: tuple[str, ...] = ()  # words in what went wrong that make another try worth it
    unless_says: tuple[str, ...] = ()  # words that make any other try vain, whatever else is said


class Limits(Record, frozen=True, kw_only=True):
    """What may be used. An absent value is no limit here; limits of outer places hold too."""

    wall_ms: int | None = None
    ends_at: int | None = None  # a point in time, in milliseconds since the epoch; of a loop
    pass_wall_ms: int | None = None
    idle_ms: int | None = None
    tokens: int | None = None
    usd: float | None = None
    identical: int | None = None  # so many equal results in a row, and the loop has stalled
    no_progress: int | None = None  # so many passes without a change in the workspace


NO_LIMITS = Limits()


class WorkspacePolicy(Record, frozen=True, kw_only=True):
    """How the workspace of a run is recorded and kept apart. Everything is off by default; whether
    snapshots are taken where a definition does not say so is decided when a run is started.
    """

    snapshots: bool | None = None  # of the files, before the first iteration and after each one
    worktree: bool = False  # work in a Git worktree on a branch of its own
    protect: tuple[str, ...] = ()  # patterns of files that an agent may not change


NO_WORKSPACE_POLICY = WorkspacePolicy()

Join: TypeAlias = Literal[
    "all_success",  # every step before it completed
    "finished_ok",  # every one completed or was skipped
    "one_success",  # at least one completed
    "none_failed_min_one_success",
    "all_done",  # every one ended, however
]
OnFailure: TypeAlias = Literal["cascade", "skip", "abort"]
OnItemError: TypeAlias = Literal[
    "stop",  # no further item is begun, and the loop has failed
    "continue",  # the loop completes all the same
    "fail",  # all others are worked on, and then the loop has failed
]
OnError: TypeAlias = Literal["fail", "continue"]
AtCap: TypeAlias = Literal["exhaust", "complete", "fail", "ask"]
CheckOrder: TypeAlias = Literal[
    "all",  # `all` asks its cheap checks even after one has failed, so every failure is seen
    "until_decided",  # `all` asks nothing more after the first failure
]
OutputMode: TypeAlias = Literal[
    "last",  # what the last pass said
    "all",  # what every pass said, each under a heading
    "learning",  # the learning of the last pass, unless the check has passed
    "result",  # the structured result of the last pass
    "list",  # of a loop over a list: the output of each item, as a JSON array in its order
]
GraphOutput: TypeAlias = Literal[
    "last",  # of the last step that completed
    "sink",  # of the first completed step, as written, that no other needs and that said something
    "list",  # of all steps in their order, as a JSON list of texts
]
OnDeadline: TypeAlias = Literal[
    "stop",  # what is under way is stopped at once
    "after_step",  # the steps under way are finished, and no other begins
    "after_pass",  # the pass is finished and judged, and no other begins
]
SessionMode: TypeAlias = Literal["fresh", "thread"]


class NoMemory(Record, frozen=True, kw_only=True, tag="none", tag_field="memory"):
    """Every pass sees the same prompt."""


class ProgressLog(Record, frozen=True, kw_only=True, tag="progress-log", tag_field="memory"):
    """One short learning for each pass before; `chars` is the length that a learning may have.

    `total` limits the whole log in a prompt: the most recent entries are shown in full and older
    ones are condensed. 0 means no limit, which is what plans of earlier versions have.
    """

    chars: int = 300
    total: int = 0


class PreviousOutput(Record, frozen=True, kw_only=True, tag="previous-output", tag_field="memory"):
    """The whole output, the result and the verdict of the pass before; of a pass with steps,
    every step's.
    """

    by_step: bool = False


class StageOutputs(Record, frozen=True, kw_only=True, tag="stages", tag_field="memory"):
    """Outputs of the earlier stages of this pass, and one line for each pass before. `chars` is
    how much of one output is shown; what is stored is whole.
    """

    chars: int = 32_000


class SameSession(Record, frozen=True, kw_only=True, tag="session", tag_field="memory"):
    """The agent's own session goes on."""


# One object, because the encoder leaves out a default value only if it is the same object.
ROLLING_WINDOW: Final = "rolling-window"


class ConversationHistory(Record, frozen=True, kw_only=True, tag="history", tag_field="memory"):
    """The whole conversation, compressed when it fills `at` of the window."""

    window: int
    strategy: Literal["rolling-window", "periodic-summary"] = ROLLING_WINDOW
    at: float = 0.8
    summaries: int = 3
    trim: bool = True  # long results are cut to their heads before old turns go


Memory: TypeAlias = (
    NoMemory | ProgressLog | PreviousOutput | StageOutputs | SameSession | ConversationHistory
)
