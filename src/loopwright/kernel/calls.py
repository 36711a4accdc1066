"""Calls: what an effect asks the world for. A closed union; nothing else touches the world."""

from typing import Literal, TypeAlias

import msgspec

from loopwright.model.record import Text


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="do", gc=False):
    """Base of all calls."""


class AgentCall(Call, frozen=True, kw_only=True, tag="agent"):
    """Ask an agent of the plan; `role` tells the worker from a judge, from the coordinator, and
    from a step that has ended and answers a message. `step` is the id of a judge.
    """

    agent: str
    role: Literal["worker", "judge", "goal", "coordinator", "reply"] = "worker"
    step: str = ""


class CommandCall(Call, frozen=True, kw_only=True, tag="command"):
    """Run a program without a shell."""

    argv: tuple[str, ...]
    timeout_ms: int
    env: dict[str, str] = {}
    stdin: str = ""


class SleepCall(Call, frozen=True, kw_only=True, tag="sleep"):
    """Answer not before this time (milliseconds since the epoch)."""

    until: int


class ModelCall(Call, frozen=True, kw_only=True, tag="model"):
    """One completion of a chat model: a turn of its conversation, or a summary of it."""

    agent: str
    role: Literal["turn", "summary"] = "turn"


class ToolCall(Call, frozen=True, kw_only=True, tag="tool"):
    """One tool of a model's turn. `arguments` is JSON text; `call` is the model's own id."""

    agent: str
    tool: str
    arguments: Text = "{}"
    call: str = ""


class SnapshotCall(Call, frozen=True, kw_only=True, tag="snapshot"):
    """Take a snapshot of the workspace. `previous` and `first` are the trees of earlier snapshots
    of the run, empty where there are none. Files that match `protect` are compared with the tree
    `baseline`; `watch` are words of check commands, some of which may be files. `outside` are those
    files that no snapshot has, as they were found with the previous one. After a stop or a time
    limit it may take `within_ms` (0: as long as it needs).
    """

    previous: str = ""
    first: str = ""
    baseline: str = ""
    protect: tuple[str, ...] = ()
    watch: tuple[str, ...] = ()
    outside: tuple[tuple[str, str], ...] = ()
    within_ms: int = 0


class LookupCall(Call, frozen=True, kw_only=True, tag="lookup"):
    """Look whether somebody has left an artifact in the scope of the run since a time. The code of
    the answer is 0 where there is one, and its output says which.
    """

    since: int = 0


class MatchCall(Call, frozen=True, kw_only=True, tag="match"):
    """Search a text with the JavaScript engine, which may need very long for some patterns. The
    code of the answer is 0 where the pattern matches, and its output is what was found.
    """

    pattern: str
    text: Text
    timeout_ms: int
    ignore_case: bool = False


class CallNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A tool call of a turn: run at once, held for a person (`held` says why), or not to be run
    (`problem` says why).
    """

    id: str
    tool: str
    arguments: Text = "{}"
    held: str = ""
    problem: str = ""


CALLED = (AgentCall, ModelCall)
"""Calls of an agent, for the checks of every pass: a tuple is looked at quicker than a union."""

AnyCall: TypeAlias = (
    AgentCall
    | CommandCall
    | SleepCall
    | ModelCall
    | ToolCall
    | SnapshotCall
    | LookupCall
    | MatchCall
)
