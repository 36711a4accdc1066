"""The port of activity: what an agent did during one call, entry by entry.

Backends report entries as they read them; the runtime stores them in batches, attached to the
effect of the call. Recording never blocks and never fails the call.
"""

from collections.abc import Callable, Mapping
from typing import Literal, Protocol, TypeAlias

import msgspec

ActivityKind: TypeAlias = Literal[
    "tool",  # any tool that is none of the others
    "command",  # a command line was run
    "edit",  # a file was written, edited, moved or deleted
    "read",  # a file or a folder was read, listed or searched
    "fetch",  # a host was contacted
    "status",  # the agent reported its own state: reconnecting, rate limited
    "denied",  # the agent was denied a permission; `text` names what would allow it
    "stderr",  # the program wrote to standard error and succeeded; `result` is the end of it
    "warning",  # Loopwright noted something about the call; `text` says what
]


class ActivityEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One thing that an agent did. `arguments` and `result` are whole texts; the runtime masks
    secrets, cuts them at a cap and stores them by content. `ok` is None while nobody knows.
    """

    kind: ActivityKind
    tool: str = ""  # the agent's own name for it
    target: str = ""  # the path, command line or host
    ok: bool | None = None
    code: int | None = None  # exit code of a command
    ms: int | None = None  # duration
    text: str = ""  # one short line for people
    arguments: str = ""
    result: str = ""


class ActivitySink(Protocol):
    """Where a backend reports what its agent does. Nothing that is reported makes it raise."""

    def hide(self, values: Callable[[], Mapping[str, str]]) -> None:
        """Name the secrets that the agent was given: variables and their values, which are never
        stored. They are asked for when something is recorded.
        """

    def redact(self, text: str) -> str:
        """A text without the secrets that the agent was given."""

    def record(self, entry: ActivityEntry) -> None:
        """Record an entry that is complete. Entries beyond the cap of a call are counted only."""

    def keep_stream(self, chunk: bytes) -> None:
        """Keep the agent's own output, as it is read; stored compressed when the call ends."""


class IgnoredActivity:
    """A sink that stores nothing, for dry runs and tests of backends."""

    def hide(self, values: Callable[[], Mapping[str, str]]) -> None:
        """Nothing is stored, so nothing has to be hidden."""

    def redact(self, text: str) -> str:
        """Nothing is hidden."""
        return text

    def record(self, entry: ActivityEntry) -> None:
        """Drop the entry."""

    def keep_stream(self, chunk: bytes) -> None:
        """Drop the bytes."""


IGNORED_ACTIVITY = IgnoredActivity()
