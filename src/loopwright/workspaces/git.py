"""Start Git: its own environment, no shell, no hooks, no prompts, no process left running."""

import asyncio
import os
import signal
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from loopwright import host
from loopwright.errors import LoopwrightError

_TAIL = 2000  # of an error output that a message repeats

# The user's configuration is ignored, and nothing prompts.
_ENVIRONMENT = {
    "HOME": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "SSH_ASKPASS": "",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "false",
    "LC_ALL": "C",
    # Git releases and requests memory for every file; a larger reserve halves the system calls.
    "MALLOC_TOP_PAD_": "67108864",
    "MALLOC_TRIM_THRESHOLD_": "268435456",
}

SAFE_SETTINGS = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.attributesFile": os.devnull,
    "core.pager": "cat",
    "core.sshCommand": "false",
    "protocol.allow": "never",
    "diff.external": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
}
"""Settings that keep another repository from starting programs."""


class GitFailed(LoopwrightError):
    """Git ended with an error; `code` of the class, `errors` is its error output."""

    code = "git-failed"

    def __init__(self, arguments: Sequence[str | bytes | Path], status: int, errors: bytes) -> None:
        self.errors = errors
        self.status = status
        words = " ".join(os.fsdecode(word) for word in arguments[:3])
        tail = errors[-_TAIL:].decode("utf-8", "backslashreplace").strip()
        super().__init__(f"`git {words}` exited with code {status}: {tail or 'no message'}")


@dataclass(frozen=True, slots=True)
class GitResult:
    """How a call of Git ended."""

    status: int
    out: bytes
    errors: bytes


@dataclass(frozen=True, slots=True)
class GitStart:
    """How to start Git: its command, its environment, and the descriptors that it needs."""

    argv: Sequence[str | bytes | Path]
    env: Mapping[str, str]
    fds: tuple[int, ...] = ()


# A file that the sandbox was to hide disappeared just before; Git itself was not started.
_NO_SANDBOX = b"bwrap: Can't "

Confine = Callable[[GitStart, Path], AbstractContextManager[GitStart]]
"""Puts a start of Git, in any folder, into a sandbox."""


def start_unconfined(start: GitStart, folder: Path) -> AbstractContextManager[GitStart]:
    """Start Git as it is."""
    return nullcontext(start)


@dataclass(frozen=True, kw_only=True)
class Git:
    """Git for one repository and one folder. `variables` name them; `fds` are kept open by every
    process, so that the locks behind them end with the last one.
    """

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    fds: tuple[int, ...] = ()
    as_user: bool = False  # with the user's own settings, for commands that the user requested
    confine: Confine = start_unconfined  # as settings and attributes may name programs

    def with_variables(self, **variables: str) -> "Git":
        return replace(self, variables={**self.variables, **variables})

    async def run(
        self,
        *arguments: str | bytes | Path,
        feed: bytes | AsyncIterable[bytes] = b"",
        accept: Sequence[int] = (0,),
    ) -> GitResult:
        """Run one command. An exit code that is not accepted is an error."""
        program = git_program()
        options = [
            word for name, value in self.settings.items() for word in ("-c", f"{name}={value}")
        ]
        environment = {**(_user_environment() if self.as_user else _ENVIRONMENT), **self.variables}
        environment["PATH"] = os.environ.get("PATH", os.defpath)
        start = GitStart([program, *options, *arguments], environment, tuple(self.fds))
        status, out, errors = await self._perform(start, feed)
        if status == 1 and errors.startswith(_NO_SANDBOX) and isinstance(feed, bytes):
            status, out, errors = await self._perform(start, feed)
        if status not in accept:
            raise GitFailed(arguments, status, errors)
        return GitResult(status, out, errors)

    async def _perform(
        self, start: GitStart, feed: bytes | AsyncIterable[bytes]
    ) -> tuple[int, bytes, bytes]:
        with self.confine(start, self.folder) as confined:
            process = await self._start(confined, has_input=bool(feed))
            try:
                out, errors = await _talk(process, feed)
            finally:
                await _end(process)
        return process.returncode if process.returncode is not None else -1, out, errors

    async def _start(self, start: GitStart, *, has_input: bool) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *start.argv,
                stdin=asyncio.subprocess.PIPE if has_input else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=self.folder,
                env=start.env,
                pass_fds=start.fds,
                process_group=0,
            )
        except FileNotFoundError as error:
            raise workspace_gone(self.folder) from error


def _user_environment() -> dict[str, str]:
    """The environment of a command for the user: their home, and nothing that prompts or redirects
    it.
    """
    names = ("HOME", "USER", "LANG", "TMPDIR", "XDG_CONFIG_HOME")
    given = {name: os.environ[name] for name in names if name in os.environ}
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "GIT_EDITOR": "false", "LC_ALL": "C"}
    return {**given, **quiet}


def git_program() -> str:
    """The path of Git, which an agent cannot have put there on Linux."""
    found = host.find_program("git")
    if found is None:
        raise LoopwrightError(
            "Git is not installed, or not on the PATH",
            code="git-missing",
            hint="snapshots and worktrees need Git 2.32 or newer",
        )
    return found


def workspace_gone(folder: Path) -> LoopwrightError:
    """The error for a folder that does not exist."""
    return LoopwrightError(
        f"the workspace {folder} does not exist or is not a folder",
        code="workspace-gone",
        hint="create the folder, or name another one with --workspace",
    )


def shown_path(path: bytes) -> str:
    """A path as text; bytes that are not UTF-8 are written as `\\xNN`."""
    return path.decode("utf-8", "backslashreplace")


def listed_paths(paths: Sequence[bytes], most: int = 10) -> str:
    """The first paths on one line, and how many more there are."""
    names = ", ".join(" ".join(shown_path(one).splitlines()) for one in paths[:most])
    return names + (f" and {len(paths) - most} more" if len(paths) > most else "")


async def _talk(
    process: asyncio.subprocess.Process, feed: bytes | AsyncIterable[bytes]
) -> tuple[bytes, bytes]:
    if isinstance(feed, bytes):
        return await process.communicate(feed or None)
    assert process.stdout is not None
    assert process.stderr is not None
    reading = asyncio.gather(process.stdout.read(), process.stderr.read())
    try:
        await _feed(process, feed)
        out, errors = await reading
    except BaseException:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        raise
    await process.wait()
    return out, errors


async def _feed(process: asyncio.subprocess.Process, feed: AsyncIterable[bytes]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # Git ended: its error says why
        async for chunk in feed:
            process.stdin.write(chunk)
            await process.stdin.drain()
    process.stdin.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Make sure that nothing of a cancelled call is left running."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
