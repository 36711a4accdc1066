"""What a repeat carries from one pass to the next: a closed union of policies."""

from typing import Final, Literal, TypeAlias

from loopwright.model.record import Record


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


class History(Record, frozen=True, kw_only=True, tag="history", tag_field="memory"):
    """The whole conversation, compressed when it fills `at` of the window."""

    window: int
    strategy: Literal["rolling-window", "periodic-summary"] = ROLLING_WINDOW
    at: float = 0.8
    summaries: int = 3
    trim: bool = True  # long results are cut to their heads before old turns go


Memory: TypeAlias = NoMemory | ProgressLog | PreviousOutput | StageOutputs | SameSession | History
