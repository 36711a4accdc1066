"""Ids of effects: the place, the purpose and the number of each. No other module reads them.

The id of an effect is derived, so a run that crashed and resumed uses the same ids:
`dev.0.review/agent#1` is the first call of the agent of `dev.0.review`. The id is all that a log
has of the purpose. `EffectRequested.purpose` and `PendingEffect.purpose` are read from it, in the
logs of every release.
"""

from typing import Literal, TypeAlias

import msgspec

CallKind: TypeAlias = Literal["agent", "command", "script", "wait"]


class CallPurpose(msgspec.Struct, frozen=True, gc=False):
    """The call that a step or an iteration consists of."""

    kind: CallKind

    @property
    def word(self) -> str:
        return self.kind


class BackoffPurpose(msgspec.Struct, frozen=True, gc=False):
    """The wait before a call, or a turn of a model, is tried again."""

    word = "backoff"


class ReworkPurpose(msgspec.Struct, frozen=True, gc=False):
    """A call of the agent that works on what a person has rejected at a gate."""

    word = "rework"


class DeadlinePurpose(msgspec.Struct, frozen=True, gc=False):
    """The timer of a run, a step or an iteration with a time limit."""

    word = "deadline"


class LoopDeadlinePurpose(msgspec.Struct, frozen=True, gc=False):
    """The timer of a loop with a time limit."""

    word = "loop-deadline"


class DelayPurpose(msgspec.Struct, frozen=True, gc=False):
    """The pause of a loop between two iterations."""

    word = "delay"


class ArtifactPurpose(msgspec.Struct, frozen=True, gc=False):
    """Looking for the artifact that a step must leave."""

    word = "artifact"


class CheckPurpose(msgspec.Struct, frozen=True, gc=False):
    """A check of an iteration; `index` is its place among the checks of the loop."""

    index: int

    @property
    def word(self) -> str:
        return f"check{self.index}"


class CheckBackoffPurpose(msgspec.Struct, frozen=True, gc=False):
    """The wait before a check is tried again. It has the number of the try before it."""

    word = "park"


class SnapshotPurpose(msgspec.Struct, frozen=True, gc=False):
    """A snapshot of the workspace."""

    word = "snapshot"


class TurnPurpose(msgspec.Struct, frozen=True, gc=False):
    """A turn of a chat model."""

    word = "model"


class SummaryPurpose(msgspec.Struct, frozen=True, gc=False):
    """A summary of a conversation with a chat model."""

    word = "summary"


class ToolPurpose(msgspec.Struct, frozen=True, gc=False):
    """A tool call of a turn; `call` is its number in the turn, from 1."""

    call: int

    @property
    def word(self) -> str:
        return f"tool{self.call}"


class CoordinatorPurpose(msgspec.Struct, frozen=True, gc=False):
    """A call of the coordinator of a run."""

    word = "coordinator"


class CoordinatorBackoffPurpose(msgspec.Struct, frozen=True, gc=False):
    """The wait before the coordinator is called again."""

    word = "coordinator-backoff"


class ReplyPurpose(msgspec.Struct, frozen=True, gc=False):
    """A call of a step that has ended and answers a message."""

    word = "reply"


class HoldPurpose(msgspec.Struct, frozen=True, gc=False):
    """The time that a run which has ended waits for its coordinator."""

    word = "hold"


MailPurpose: TypeAlias = CoordinatorPurpose | CoordinatorBackoffPurpose | ReplyPurpose | HoldPurpose
"""What is requested on behalf of the run itself, for its messages."""

EffectPurpose: TypeAlias = (
    CallPurpose
    | BackoffPurpose
    | ReworkPurpose
    | DeadlinePurpose
    | LoopDeadlinePurpose
    | DelayPurpose
    | ArtifactPurpose
    | CheckPurpose
    | CheckBackoffPurpose
    | SnapshotPurpose
    | TurnPurpose
    | SummaryPurpose
    | ToolPurpose
    | MailPurpose
)

AGENT_CALL = CallPurpose("agent")
COMMAND_CALL = CallPurpose("command")
SCRIPT_CALL = CallPurpose("script")
WAIT_CALL = CallPurpose("wait")
BACKOFF = BackoffPurpose()
REWORK = ReworkPurpose()
DEADLINE = DeadlinePurpose()
LOOP_DEADLINE = LoopDeadlinePurpose()
DELAY = DelayPurpose()
ARTIFACT = ArtifactPurpose()
CHECK_BACKOFF = CheckBackoffPurpose()
SNAPSHOT = SnapshotPurpose()
TURN = TurnPurpose()
SUMMARY = SummaryPurpose()
COORDINATOR_CALL = CoordinatorPurpose()
COORDINATOR_BACKOFF = CoordinatorBackoffPurpose()
REPLY = ReplyPurpose()
HOLD = HoldPurpose()

PURPOSES: dict[str, EffectPurpose] = {
    one.word: one
    for one in (
        *(AGENT_CALL, COMMAND_CALL, SCRIPT_CALL, WAIT_CALL, BACKOFF, REWORK),
        *(DEADLINE, LOOP_DEADLINE, DELAY, ARTIFACT, CHECK_BACKOFF, SNAPSHOT, TURN, SUMMARY),
        *(COORDINATOR_CALL, COORDINATOR_BACKOFF, REPLY, HOLD),
    )
}
"""Purposes by their word in an id. The word of a check or a tool call has its number."""


class EffectId(msgspec.Struct, frozen=True, gc=False):
    """What the id of an effect says."""

    path: str
    purpose: EffectPurpose
    number: int


def effect_id(path: str, purpose: EffectPurpose, number: int) -> str:
    return f"{path}/{purpose.word}#{number}"


def read_effect_id(effect: str) -> EffectId:
    """The parts of an id; one that nothing of ours has made is a ValueError."""
    path, _, rest = effect.rpartition("/")
    word, _, number = rest.partition("#")
    return EffectId(path, PURPOSES.get(word) or _numbered(word), int(number))


def effect_path(effect: str) -> str:
    """The place for which an effect was requested; empty where it is the run itself."""
    return effect.rpartition("/")[0]


def effect_words(effect: str) -> str:
    """The purpose of an effect as people read it: `agent`, `check0`."""
    return effect.rpartition("/")[2].partition("#")[0]


def _numbered(word: str) -> CheckPurpose | ToolPurpose:
    if word.startswith("check"):
        return CheckPurpose(int(word[5:]))
    if word.startswith("tool"):
        return ToolPurpose(int(word[4:]))
    raise ValueError(f"unknown purpose of an effect: {word!r}")
