"""Parts of events: base classes, calls of effects, usage, failures, masked secrets.

`AnyCall` is a closed union: it lists everything that an effect can request from the outside
world, and nothing else reaches the outside world. Text that looks like a secret is masked
before it becomes part of an event.
"""

import re
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec

from loopwright.model.patterns import LazyPattern
from loopwright.model.policy import FailureKind
from loopwright.model.record import JsonValue, Text


class ToolUse(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A tool call of an agent, with its arguments as JSON text; secrets are masked."""

    name: str
    input: str = ""


class DiffStat(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How many files and lines differ between two snapshots."""

    files: int = 0
    insertions: int = 0
    deletions: int = 0


NO_DIFF = DiffStat()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The state of a workspace at one moment. `tree` is the id of a Git tree in the repository of
    the data directory.
    """

    tree: str
    changed: DiffStat = NO_DIFF  # since the previous snapshot of the run
    total: DiffStat = NO_DIFF  # since the first snapshot of the run
    paths: tuple[str, ...] = ()  # changed since the previous snapshot, the first 100 of them
    omitted: tuple[str, ...] = ()  # left out because of size or kind, the first 100 of them
    omitted_count: int = 0
    protected: tuple[str, ...] = ()  # protected files that differ from the baseline, the first 100
    protected_count: int = 0
    watched: tuple[str, ...] = ()  # files that a check names, changed since the previous snapshot
    outside: tuple[tuple[str, str], ...] = ()  # files that no snapshot contains, with their state


class Worktree(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The Git worktree that a run works in, and its origin."""

    repository: str  # the folder of the user's checkout
    folder: str  # the root of the worktree
    branch: str
    base: str  # the commit that the branch started from
    uncommitted: int = 0  # files of the checkout that differed from that commit and are not in it


class ActivityNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One thing that an agent did during a call, as the log stores it. `number` counts from 1
    within the call. Secrets are masked; long arguments and results are stored by content.
    """

    number: int
    at: int
    kind: str  # tool, command, edit, read, fetch, status, denied, stderr, warning
    tool: str = ""
    target: str = ""
    ok: bool | None = None
    code: int | None = None
    ms: int | None = None
    text: str = ""
    arguments: Text = ""
    result: Text = ""


class Failure(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Why something failed, in a form that policies and people can read."""

    type: FailureKind | str
    detail: str = ""
    retry_after_ms: int | None = None
    resets_at: int | None = None  # when a rate limit is renewed; milliseconds since the epoch
    outer: bool = False  # a limit around the call ended it, not a limit of the call itself


class BaseEvent(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", gc=False
):
    """Base class of all events. Events hold plain data and never refer to each other: none is part
    of a reference cycle.
    """

    at: int


class PlaceEvent(BaseEvent, frozen=True, kw_only=True):
    """An event that belongs to a place in the run."""

    path: str
    iteration: int | None = None


class EffectCall(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="do", gc=False
):
    """Base of all calls."""


class AgentCall(EffectCall, frozen=True, kw_only=True, tag="agent"):
    """Call an agent of the plan. `role` says what the call is for: work, judging, coordinating, or
    answering a message to a step that has ended. `step` is the id of a judge.
    """

    agent: str
    role: Literal["worker", "judge", "goal", "coordinator", "reply"] = "worker"
    step: str = ""


class CommandCall(EffectCall, frozen=True, kw_only=True, tag="command"):
    """Run a program without a shell."""

    argv: tuple[str, ...]
    timeout_ms: int
    env: dict[str, str] = {}
    stdin: str = ""


class SleepCall(EffectCall, frozen=True, kw_only=True, tag="sleep"):
    """Wait until this time (milliseconds since the epoch)."""

    until: int


class ModelCall(EffectCall, frozen=True, kw_only=True, tag="model"):
    """One completion of a chat model: a turn of its conversation, or a summary of it."""

    agent: str
    role: Literal["turn", "summary"] = "turn"


class ToolCall(EffectCall, frozen=True, kw_only=True, tag="tool"):
    """One tool call of a model's turn. `arguments` is JSON text; `call` is the id that the model
    gave it.
    """

    agent: str
    tool: str
    arguments: Text = "{}"
    call: str = ""


class SnapshotCall(EffectCall, frozen=True, kw_only=True, tag="snapshot"):
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


class LookupCall(EffectCall, frozen=True, kw_only=True, tag="lookup"):
    """Look for an artifact that was created in the scope of the run since a time. The code of the
    answer is 0 if there is one, and its output says which.
    """

    since: int = 0


class MatchCall(EffectCall, frozen=True, kw_only=True, tag="match"):
    """Search a text with the JavaScript engine, which may need very long for some patterns. The
    code of the answer is 0 where the pattern matches, and its output is what was found.
    """

    pattern: str
    text: Text
    timeout_ms: int
    ignore_case: bool = False


class CallNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A tool call of a turn: run at once, held for approval (`held` says why), or refused
    (`problem` says why).
    """

    id: str
    tool: str
    arguments: Text = "{}"
    held: str = ""
    problem: str = ""


CALLED = (AgentCall, ModelCall)
"""Calls of an agent, for the checks in every iteration: testing against a tuple is faster than
against a union.
"""

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


HOME_BUDGET = "home_budget"
"""Why a call is not made: the budget shared by all runs of the data directory is used up."""

Intent: TypeAlias = Literal["info", "context_update", "cancel", "reply", "tell"]
DropReason: TypeAlias = Literal[
    "unknown-step",  # no step has this id
    "ambiguous",  # a bare name that matches more than one step
    "container",  # a loop or a graph of steps, which has no inbox
    "not-an-agent",  # a command, a gate, a wait
    "not-running",  # only a running step can be cancelled
    "target-terminal",  # the step has ended and is not called again
    "no-transcript",  # the step ended without an answer
    "max-wake-cycles",  # the maximum number of further calls is reached
    "mailbox-full",
    "mailbox-closed-by-finalize",
    "no-coordinator",
    "coordinator-failed",
    "budget",
    "hold-timeout",
    "workflow-cancelled",
    "run-ended",
]


MASK = "***"
MAX_DEPTH = 40

_NAME = LazyPattern(
    r"passw(?:or)?d|passphrase|secret|(?:api|access|private|auth)[_-]?key|credential"
    r"|^authorization$|(?:^|[_-])(?:token|pwd)$|(?:access|auth|refresh|bearer|id)[_-]?token",
    re.IGNORECASE,
)
_PLAIN = LazyPattern(
    r"\bsk-[A-Za-z0-9_-]{8,}"
    r"|\bgh[opsur]_[A-Za-z0-9]{8,}|\bgithub_pat_[A-Za-z0-9_]{8,}"
    r"|\bxox[a-z]-[A-Za-z0-9-]{8,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|(?<=://)[^\s:/@]{1,200}:[^\s/@]{1,200}(?=@)"  # user:password@host
)
_BEARER = LazyPattern(r"\b(bearer\s{1,5})(?=\S{0,200}\d)[\w.~+/=-]{8,}", re.IGNORECASE)
_AFTER = LazyPattern(
    r"(--?(?:password|passwd|pass|token|secret|api-?key)[=\s]\s{0,5}"
    r"|(?:password|passwd|secret|api[_-]?key|token)[\"']?\s{0,5}[=:]\s{0,5}"
    r"|authorization[\"']?\s{0,5}[=:]\s{0,5}(?:basic\s{1,5}|bearer\s{1,5})?)"
    r"(\"[^\"]*\"|'[^']*'|[^\s\"',;&]+)",
    re.IGNORECASE,
)


_FOLDERS = ("PWD", "OLDPWD")  # of a shell: these name the working directory, not a password


@lru_cache(maxsize=1_024)
def is_secret_name(name: str) -> bool:
    """Whether a field or variable of this name holds a secret."""
    return name not in _FOLDERS and _NAME.search(name) is not None


def mask_tokens(text: str) -> str:
    """A text with everything that looks like a key masked: for prose, where a name alone proves
    nothing.
    """
    return _BEARER.sub(rf"\g<1>{MASK}", _PLAIN.sub(MASK, text))


def mask_text(text: str) -> str:
    """The same for the input of a tool, where the value after a secret's name is masked too."""
    return _AFTER.sub(rf"\g<1>{MASK}", mask_tokens(text))


def mask(value: JsonValue, depth: int = 0) -> JsonValue:
    """A JSON value with its secrets masked, recognised by their form and by the names of their
    fields.
    """
    if isinstance(value, str):
        return mask_text(value)
    if depth == MAX_DEPTH and isinstance(value, list | dict):
        return MASK
    if isinstance(value, list):
        return [mask(one, depth + 1) for one in value]
    if isinstance(value, dict):
        return {name: _field(name, one, depth) for name, one in value.items()}
    return value


def _field(name: str, value: JsonValue, depth: int) -> JsonValue:
    secret = is_secret_name(name) and isinstance(value, str | int | float)
    return MASK if secret and not isinstance(value, bool) else mask(value, depth + 1)
