"""Ids and paths: the names of steps, iterations, items and effects in a run.

A path names one of the first three: `build` (a step), `dev.0` (iteration 0 of the loop `dev`),
`each[3]` (item 3), `dev.0.review` (a step inside an iteration). The id of an effect is its place,
its purpose and a number: `dev.0.review/agent#1` is the first call of the agent of `dev.0.review`.
Paths and ids are derived, so a run that crashed and resumed uses the same names. The id is all that
a log has of the purpose: `EffectRequested.purpose` and `PendingEffect.purpose` are read from it, in
the logs of every release. No other module reads ids.
"""

import re
from typing import Literal, TypeAlias

import msgspec

ID_PATTERN = r"[a-z][a-z0-9_-]{0,62}"
_ID = re.compile(ID_PATTERN)
_PASS_OR_TRY = re.compile(r"\.-?\d+(?=[.\[]|$)|~\d+")
_LOOP = re.compile(r"(?P<loop>.*?)(?:\.-?\d+(?=[.\[~]|$)|\[|$)")
_TRY = re.compile(r"~(\d+)")
ITERATION_PATTERN = r"[0-9]{1,9}(?:~[0-9]{1,9})?"
_NAMED = re.compile(ITERATION_PATTERN)

MAIN = "main"
"""Id of the only step of a definition that is just one action."""


def is_id(text: str) -> bool:
    """Whether a text may be the id of a step or the name of an agent."""
    return _ID.fullmatch(text) is not None


def child_path(parent: str, step: str) -> str:
    return f"{parent}.{step}" if parent else step


def iteration_path(repeat: str, number: int) -> str:
    """Path of an iteration of a counted loop; `number` counts from 0."""
    return f"{repeat}.{number}"


def item_path(repeat: str, index: int) -> str:
    """Path of the iteration for one item of a list; `index` counts from 0."""
    return f"{repeat}[{index}]"


def parent_path(path: str) -> str:
    """Path of the enclosing place; the run itself is the empty path."""
    if path.endswith("]"):
        return path[: path.rindex("[")]
    return path.rpartition(".")[0]


def is_inside(path: str, place: str) -> bool:
    """Whether a path is inside a place; the run itself, the empty path, contains all paths."""
    return not place or path.startswith((f"{place}.", f"{place}["))


def last_id(path: str) -> str:
    """The last id of a step's path."""
    return path.rpartition(".")[2]


def iteration_number(path: str) -> int:
    """Number of an iteration, from 0, taken from its path."""
    if path.endswith("]"):
        return int(path[path.rindex("[") + 1 : -1])
    return int(path.rpartition(".")[2])


def logical_path(path: str) -> str:
    """A step without its iteration and attempt: `dev.0.review` and `dev~2.3.review` are
    `dev.review`. Items stay separate: `each[3].deploy`.
    """
    return _PASS_OR_TRY.sub("", path)


def loop_path(path: str) -> str:
    """The outermost loop around a place, with its attempt: `dev~2` for `dev~2.0.review`."""
    found = _LOOP.match(path)
    assert found is not None
    return found["loop"]


def try_number(path: str) -> int:
    """The attempt of the outermost loop that a place belongs to: 1 for `dev.0`, 2 for `dev~2.0`."""
    tries = _TRY.findall(loop_path(path))
    return int(tries[-1]) if tries else 1


def parse_iteration(text: str) -> tuple[int, int | None] | None:
    """An iteration as people name it: `3`, or `3~1` for the third of the first attempt."""
    if _NAMED.fullmatch(text) is None:
        return None
    number, _, attempt = text.partition("~")
    return int(number), int(attempt) if attempt else None


def iteration_name(number: int | None, attempt: int | None) -> str | None:
    """The name that `parse_iteration` reads."""
    if number is None:
        return None
    return str(number) if attempt is None else f"{number}~{attempt}"


def judge_path(repeat: str) -> str:
    """The name of a loop's judge."""
    return f"{repeat}.judge"


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
