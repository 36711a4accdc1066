"""What tools need to run programs. Who does so, and leaves nothing behind, is chosen by `app`."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from loopwright.model.sandbox import SandboxLevel

Wall: TypeAlias = Literal["none", "reading", "writing"]
"""What a program is held by: nothing, a machine that can only be read, or one of which only the
workspace can be written. Where there is no such wall for reading, the rules alone must do.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to be run. The text form has no environment in it, as that may hold secrets."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(repr=False)  # all of it
    wall_s: float | None = None
    stderr_cap: int = 8 * 1024
    root: str = ""  # the workspace, of which `cwd` is a part
    wall: Wall = "none"
    offline: bool = False  # it has no network; without a sandbox nothing starts then
    sandbox: SandboxLevel | None = None  # of the agent; None: as this machine is set


class Running(Protocol):
    """A program while it runs."""

    def write(self, data: bytes) -> None: ...
    def end_input(self) -> None: ...
    def finish(self, within_s: float) -> None: ...


class End(Protocol):
    """How a program has ended."""

    @property
    def how(self) -> str: ...
    @property
    def code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def stderr_tail(self) -> bytes: ...
    @property
    def stderr_bytes(self) -> int: ...
    @property
    def error(self) -> str | None: ...
    @property
    def seconds(self) -> float: ...


OnStdout: TypeAlias = Callable[[bytes], None]
OnRunning: TypeAlias = Callable[[Running], None]


class Programs(Protocol):
    """Runs programs without a shell, each with its whole tree under a supervisor."""

    def environment(self, pass_on: Iterable[str]) -> dict[str, str]:
        """What a program is given: the harmless variables, and these by name."""

    def secret(self, name: str) -> str | None:
        """The value of a variable of our own environment."""

    def find(self, argv0: str, cwd: str, path: str | None) -> str:
        """The file behind the first word of a command; LookupError says why there is none."""

    def run(
        self, command: Command, on_stdout: OnStdout, on_running: OnRunning | None = None
    ) -> Awaitable[End]:
        """Run it to its end; cancelling ends the whole tree first."""
