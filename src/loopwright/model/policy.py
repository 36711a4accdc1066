"""Policies of steps and loops: limits, retries, the workspace, and the memory of a loop.

All of them are data. The memory of a loop is a closed union: it says what one iteration passes
on to the next.
"""

from typing import Final, Literal, TypeAlias

from loopwright.model.record import Record

FailureKind: TypeAlias = Literal[
    "exit",  # the program ended with a code other than 0
    "agent",  # the agent itself reported a failure
    "rate_limited",  # the provider asked the client to come back later
    "overloaded",  # the provider or the machine could not accept the call now
    # no file descriptors, processes or memory left; counts neither as an attempt nor as a failure
    "host_shortage",
    "idle_timeout",  # no output for too long
    "wall_timeout",  # the call took too long
    "not_found",  # the program does not exist or may not be run
    "workspace_gone",  # the working directory does not exist
    "bad_result",  # the answer does not fit the result's schema
    "bad_input",  # nothing could be sent: an empty prompt, a missing value
    "script",  # the script of answers has no matching reply
    "crashed",  # the agent's program ended in the middle of its turn
    "not_signed_in",  # the provider rejected the credentials
    "permission_denied",  # the agent needed a permission that it does not have
    "session_gone",  # the session to continue does not exist any more
    "turn_limit",  # the agent used the maximum number of turns of one call
    "budget_limit",  # the agent used the maximum cost of one call
    "cancelled",  # ended from outside: stop, deadline, a sibling
    "overflow",  # the conversation does not fit in the context window of the model
    "tool",  # a tool call of a model failed; the model receives the error
    "vanished",  # its process disappeared each time the call was started
    "interrupted",  # a call whose result is unknown and that is not safe to repeat
    "internal",  # a defect of ours; never retried
    "any",  # in a policy: every failure except stops, rejections and our own defects
]

RETRYABLE: tuple[FailureKind, ...] = ("rate_limited", "overloaded")


class Retry(Record, frozen=True, kw_only=True):
    """How often an action is attempted and how long to wait; attempts are counted separately from
    iterations.
    """

    attempts: int = 1
    base_ms: int = 1_000
    cap_ms: int = 60_000
    on: tuple[FailureKind, ...] = RETRYABLE
    if_says: tuple[str, ...] = ()  # texts in a failure that make it worth retrying
    # texts in a failure that rule out a retry, whatever else matches
    unless_says: tuple[str, ...] = ()


class Limits(Record, frozen=True, kw_only=True):
    """Limits on use. A missing value means no limit here; limits of outer places also apply."""

    wall_ms: int | None = None
    ends_at: int | None = None  # a point in time, in milliseconds since the epoch; of a loop
    pass_wall_ms: int | None = None
    idle_ms: int | None = None
    tokens: int | None = None
    usd: float | None = None
    identical: int | None = None  # after this many equal results in a row the loop has stalled
    no_progress: int | None = None  # after this many iterations without a change in the workspace


NO_LIMITS = Limits()


class WorkspacePolicy(Record, frozen=True, kw_only=True):
    """Snapshots and the worktree of a run. Everything is off by default; if a definition does not
    say whether snapshots are taken, this is decided when a run is started.
    """

    snapshots: bool | None = None  # of the files, before the first iteration and after each one
    worktree: bool = False  # work in a Git worktree on a separate branch
    protect: tuple[str, ...] = ()  # patterns of files that an agent may not change


NO_WORKSPACE_POLICY = WorkspacePolicy()

Join: TypeAlias = Literal[
    "all_success",  # every step before it completed
    "finished_ok",  # every one completed or was skipped
    "one_success",  # at least one completed
    "none_failed_min_one_success",
    "all_done",  # every one ended, with any result
]
OnFailure: TypeAlias = Literal["cascade", "skip", "abort"]
OnItemError: TypeAlias = Literal[
    "stop",  # no further item is started, and the loop has failed
    "continue",  # the loop completes anyway
    "fail",  # all others are processed, and then the loop has failed
]
OnError: TypeAlias = Literal["fail", "continue"]
AtCap: TypeAlias = Literal["exhaust", "complete", "fail", "ask"]
CheckOrder: TypeAlias = Literal[
    "all",  # `all` runs its cheap checks even after one has failed, so every failure is reported
    "until_decided",  # `all` runs no further check after the first failure
]
OutputMode: TypeAlias = Literal[
    "last",  # the output of the last iteration
    "all",  # the output of every iteration, each under a heading
    "learning",  # the learning of the last iteration, unless the check has passed
    "result",  # the structured result of the last iteration
    "list",  # of a loop over a list: the output of each item, as a JSON array in its order
]
GraphOutput: TypeAlias = Literal[
    "last",  # of the last step that completed
    "sink",  # of the first completed step, as written, that no other needs and that has an output
    "list",  # of all steps in their order, as a JSON list of texts
]
OnDeadline: TypeAlias = Literal[
    "stop",  # running calls are stopped at once
    "after_step",  # running steps finish, and no other starts
    "after_pass",  # the iteration finishes and is judged, and no other starts
]
SessionMode: TypeAlias = Literal["fresh", "thread"]


class NoMemory(Record, frozen=True, kw_only=True, tag="none", tag_field="memory"):
    """Every iteration has the same prompt."""


class ProgressLog(Record, frozen=True, kw_only=True, tag="progress-log", tag_field="memory"):
    """One short learning for each previous iteration; `chars` is the maximum length of a learning.

    `total` limits the whole log in a prompt: the most recent entries are shown in full and older
    ones are condensed. 0 means unlimited, which is the value in plans of earlier versions.
    """

    chars: int = 300
    total: int = 0


class PreviousOutput(Record, frozen=True, kw_only=True, tag="previous-output", tag_field="memory"):
    """The whole output, the result and the verdict of the previous iteration; for an iteration with
    steps, those of every step.
    """

    by_step: bool = False


class StageOutputs(Record, frozen=True, kw_only=True, tag="stages", tag_field="memory"):
    """Outputs of the earlier stages of this iteration, and one line for each previous iteration.
    `chars` limits how much of one output is shown; the stored output is complete.
    """

    chars: int = 32_000


class SameSession(Record, frozen=True, kw_only=True, tag="session", tag_field="memory"):
    """The agent's own session continues."""


# One object, because the encoder leaves out a default value only if it is the same object.
ROLLING_WINDOW: Final = "rolling-window"


class ConversationHistory(Record, frozen=True, kw_only=True, tag="history", tag_field="memory"):
    """The whole conversation, compressed when it fills `at` of the window."""

    window: int
    strategy: Literal["rolling-window", "periodic-summary"] = ROLLING_WINDOW
    at: float = 0.8
    summaries: int = 3
    trim: bool = True  # long results are cut before old turns are removed


Memory: TypeAlias = (
    NoMemory | ProgressLog | PreviousOutput | StageOutputs | SameSession | ConversationHistory
)
