"""Run one program to its end, with limits, and leave none of its processes behind.

`run_program` starts a supervisor (see `supervise`) that starts the program. The driver's side feeds
stdin, keeps a bounded part of the output, watches the time limits, and asks the supervisor to end
the process tree when a limit is reached or the waiting task is cancelled.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from loopwright.agents.processes.process_marks import ProcessMark, boot_id, sweep_marks
from loopwright.agents.processes.supervise import command_line, read_entry
from loopwright.agents.program_files import CannotStart, cannot_start, checked_command

_CHUNK = 64 * 1024
# How long a supervisor may take beyond the grace time before it counts as stuck.
_STUCK_SECONDS = 2.5
# How long a program may take to exit after its result.
_LINGER_SECONDS = 1.0
# How long output is awaited after all processes have ended: others may have the pipe open.
_DRAIN_SECONDS = 1.0
_REAP_POLL_SECONDS = 0.002

# Signals that end programs; a program that exits by itself rarely uses such a code.
_DEADLY = (
    *(signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE),
    *(signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE, signal.SIGALRM, signal.SIGTERM),
    *(signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGXFSZ, signal.SIGSYS),
)
# Bubblewrap's messages if the machine has nothing left for a sandbox.
_WITHOUT_SANDBOX = re.compile(
    rb"bwrap: [^\n]*"
    rb"(Resource temporarily unavailable|Too many open files|Cannot allocate memory)\s*\Z"
)

How = Literal["exited", "answered", "signalled", "idle_timeout", "wall_timeout", "not_started"]
OnStdout = Callable[[bytes], bool | None]
"""Takes bytes as they arrive; true if the program has nothing more to say."""
OnStderr = Callable[[bytes], None]
OnStart = Callable[[ProcessMark], None]


class RunningProgram(Protocol):
    """A running program, for code that communicates with it."""

    def write(self, data: bytes) -> None:
        """Send more to its standard input."""

    def end_input(self) -> None:
        """Close its standard input; what was written before still arrives."""

    def finish(self, within_s: float) -> None:
        """Its work is done: if it does not exit within that time, it is ended."""

    def hold_idle(self, *, held: bool) -> None:
        """While this is active, silence does not count: the other side has to answer."""

    def no_progress(self) -> None:
        """The output that is being read right now does not restart the idle limit."""


OnRunning = Callable[[RunningProgram], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStart:
    """A program to run: what, where, with what, and for how long.

    Its form as text leaves out what may be secret or large, as it may end up in a log.
    """

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(repr=False)  # the whole environment
    stdin: bytes = field(default=b"", repr=False)
    wall_s: float | None = None
    idle_s: float | None = None  # without a byte on stdout, or on stderr if that counts
    stderr_counts: bool = True  # whether a byte on stderr restarts the idle limit
    stdout_cap: int = 10 * 1024 * 1024
    stderr_cap: int = 256 * 1024
    grace_s: float = 2.0  # from SIGTERM to SIGKILL
    call_filter: bytes = field(default=b"", repr=False)  # of system calls, for bubblewrap
    in_sandbox: bool = False  # argv starts bubblewrap, which starts the program


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnd:
    """How a program ended, and its output. Its text form omits the output."""

    how: How
    code: int | None = None
    signal: int | None = None
    # If truncated: first and last part, with a note between them.
    stdout: bytes = field(default=b"", repr=False)
    stdout_truncated: bool = False
    stderr_tail: bytes = field(default=b"", repr=False)
    stderr_bytes: int = 0  # all received bytes, of which the tail is kept
    error: str | None = None  # `problem: sentence`
    seconds: float = 0.0
    survivors_killed: int = 0  # processes besides the program itself that had to be killed
    finished: bool = False  # its work was done before it was ended
    limit_s: float | None = None  # the limit on silence or time that it exceeded

    @property
    def problem(self) -> str | None:
        """The first word of `error`: one of StartProblem, or about the supervisor."""
        return None if self.error is None else self.error.partition(":")[0]


async def run_program(
    program: ProgramStart,
    *,
    on_stdout: OnStdout | None = None,
    on_stderr: OnStderr | None = None,
    on_start: OnStart | None = None,
    on_running: OnRunning | None = None,
) -> ProgramEnd:
    """Run a program until it and all its descendants have ended. With `on_running`, its standard
    input stays open until that callback's program handle closes it.

    Cancelling the waiting task ends the whole tree first. So does an exception in a callback, which
    is raised again here. Errors of the program are in the result, not raised.
    """
    run = _Run(program, on_stdout, on_stderr, talks=on_running is not None)
    try:
        run.start()
    except CannotStart as why:
        return ProgramEnd(how="not_started", error=str(why))
    try:
        if on_start is not None and run.mark is not None:
            on_start(run.mark)
        if on_running is not None:
            on_running(run)
        # Not awaited directly: a cancelled task would cancel the future with it.
        await asyncio.wait([run.ended])
    except GeneratorExit:  # the event loop is closed, so nothing can be awaited any more
        run.stop(None)
        raise
    except BaseException:
        run.stop(None)
        await _whatever_happens(run.ended)
        raise
    error, run.callback_error = run.callback_error, None
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
    return run.result()


async def _whatever_happens(ended: asyncio.Future[None]) -> None:
    """Wait for the end, cancelled or not; a cancellation is raised afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


@contextmanager
def open_filter(data: bytes) -> Iterator[list[int]]:
    """A descriptor from which a program reads these few bytes; none for no bytes."""
    if not data:
        yield []
        return
    reading, writing = os.pipe()
    try:
        with open(writing, "wb", buffering=0) as pipe:
            pipe.write(data)  # never waits: a pipe holds at least a page
        yield [reading]
    finally:
        os.close(reading)


# -------------------------------------------------------------------------------------- pipes


class HeadAndTail:
    """Keeps the first and the last bytes of a stream of any length; counts all of them."""

    def __init__(self, head_cap: int, tail_cap: int) -> None:
        self.total = 0
        self._head_cap = head_cap
        self._tail_cap = tail_cap
        self._head = bytearray()
        # Grows up to its cap and is a ring from then on: `_oldest` is where the next byte goes.
        self._tail = bytearray()
        self._oldest = 0

    def add(self, data: bytes) -> None:
        """Process bytes."""
        self.total += len(data)
        room = self._head_cap - len(self._head)
        self._head += data[:room]
        rest = memoryview(data)[room:]
        room = self._tail_cap - len(self._tail)
        self._tail += rest[:room]
        self._overwrite(rest[room:])

    def _overwrite(self, data: memoryview) -> None:
        if not data or self._tail_cap == 0:
            return
        data = data[-self._tail_cap :]
        until_the_end = self._tail_cap - self._oldest
        first, second = data[:until_the_end], data[until_the_end:]
        self._tail[self._oldest : self._oldest + len(first)] = first
        self._tail[: len(second)] = second
        self._oldest = (self._oldest + len(data)) % self._tail_cap

    @property
    def left_out(self) -> int:
        """The number of dropped bytes of the stream."""
        return max(0, self.total - self._head_cap - self._tail_cap)

    def value(self) -> bytes:
        """Everything, or first and last part with a note between them."""
        note = f"\n[… {self.left_out} bytes left out …]\n".encode() if self.left_out else b""
        return b"".join((self._head, note, *self._tail_parts()))

    def last(self) -> bytes:
        """The last part alone."""
        return b"".join(self._tail_parts())

    def _tail_parts(self) -> tuple[memoryview, memoryview]:
        whole = memoryview(self._tail)
        return whole[self._oldest :], whole[: self._oldest]


class PipeSource:
    """Reads a pipe as data comes, until it ends or is closed. Owns the descriptor."""

    def __init__(
        self,
        fd: int,
        take: Callable[[bytes], None],
        at_end: Callable[[], None],
    ) -> None:
        self.closed = False
        self._loop = loop = asyncio.get_running_loop()
        self._fd = fd
        self._take = take
        self._at_end = at_end
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._ready)

    def _ready(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self.close()

    def close(self) -> None:
        """Stop reading."""
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            # A closed source does not refer to its readers.
            at_end, self._take, self._at_end = self._at_end, lambda data: None, lambda: None
            at_end()


class PipeFeed:
    """Writes data into a pipe as fast as the other side reads, then closes it, or keeps it open for
    more.

    A reader that disconnects early is not an error. Owns the descriptor.
    """

    def __init__(
        self, fd: int, data: bytes, *, keep_open: bool = False, most: float = math.inf
    ) -> None:
        self._loop, self._fd, self._most = asyncio.get_running_loop(), fd, most
        self._rest = memoryview(data)
        self._more: list[bytes] = []
        self._keep_open = keep_open
        self._open = True
        os.set_blocking(fd, False)
        self._ready()

    def write(self, data: bytes) -> None:
        """Send more; dropped when the pipe is closed, or if too much is still unread."""
        if self._open and len(self._rest) + sum(map(len, self._more)) + len(data) <= self._most:
            self._more.append(data)
            self._ready()

    def end(self) -> None:
        """Close the pipe as soon as everything is written."""
        self._keep_open = False
        if self._open:
            self._ready()

    def _ready(self) -> None:
        try:
            while self._rest or self._more:
                if not self._rest:
                    self._rest, self._more = memoryview(b"".join(self._more)), []
                self._rest = self._rest[os.write(self._fd, self._rest[:_CHUNK]) :]
        except BlockingIOError:
            self._loop.add_writer(self._fd, self._ready)
            return
        except OSError:
            self.close()
            return
        if self._keep_open:
            self._loop.remove_writer(self._fd)
        else:
            self.close()

    def close(self) -> None:
        """Stop writing; unwritten data is dropped."""
        if self._open:
            self._open = False
            self._loop.remove_writer(self._fd)
            self._rest, self._more = memoryview(b""), []
            os.close(self._fd)


class _Run:
    """One running program, from the driver's event loop. No task and no thread."""

    def __init__(
        self,
        program: ProgramStart,
        on_stdout: OnStdout | None,
        on_stderr: OnStderr | None,
        *,
        talks: bool,
    ) -> None:
        self._program = program
        self._talks = talks
        self._idle_held = False
        self._finished = False
        self._on_stdout = on_stdout
        self._on_stderr = on_stderr
        self._loop = asyncio.get_running_loop()
        self._stdout = HeadAndTail(program.stdout_cap // 2, program.stdout_cap // 2)
        self._stderr = HeadAndTail(0, program.stderr_cap)
        self._report = HeadAndTail(4096, 0)
        self._timers: list[asyncio.TimerHandle] = []
        self._limit: How | None = None
        self._stopping = False
        self._has_report = False
        self._swept = 0
        self.callback_error: Exception | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        """Start the supervisor; raises CannotStart with nothing left open."""
        self._command = checked_command(self._program)
        self._began = self._last_byte = self._byte_before = self._loop.time()
        pipes: list[int] = []
        try:
            # Pairs of (read, write): stdin, stdout, stderr, report.
            for _ in range(4):
                pipes += os.pipe()
            self._process = self._spawn(pipes)
        except OSError as error:
            for end in pipes:
                os.close(end)
            raise cannot_start(error.errno or 0, self._command[1]) from error
        for theirs in (pipes[0], pipes[3], pipes[5], pipes[7]):
            os.close(theirs)
        self._supervisor = read_entry(self._process.pid)
        self._feed = PipeFeed(pipes[1], self._program.stdin, keep_open=self._talks)
        self._output = PipeSource(pipes[2], self._read_stdout, self._source_closed)
        self._errors = PipeSource(pipes[4], self._read_stderr, self._source_closed)
        PipeSource(pipes[6], self._report.add, self._supervisor_closed)
        self._set_limits()

    @property
    def mark(self) -> ProcessMark | None:
        """The supervisor; None where the system has no process table."""
        entry = self._supervisor
        return None if entry is None else ProcessMark(entry.pid, entry.start, boot_id())

    def _spawn(self, pipes: list[int]) -> subprocess.Popen[bytes]:
        cwd, file, name, *words = self._command
        with open_filter(self._program.call_filter) as given:
            words = [*(word for one in given for word in ("--seccomp", str(one))), *words]
            return subprocess.Popen(
                command_line(
                    pipes[7],
                    self._program.grace_s,
                    cwd,
                    [file, name, *words],
                    in_sandbox=self._program.in_sandbox,
                ),
                stdin=pipes[0],
                stdout=pipes[3],
                stderr=pipes[5],
                pass_fds=[pipes[7], *given],
                cwd="/",
                env=dict(self._program.env),
                start_new_session=True,
            )

    # ---- limits and stopping

    def _set_limits(self) -> None:
        if self._program.wall_s is not None:
            self._later(self._program.wall_s, lambda: self.stop("wall_timeout"))
        if self._program.idle_s is not None:
            self._later(self._program.idle_s, self._check_idle)

    def _check_idle(self) -> None:
        assert self._program.idle_s is not None
        if self._idle_held:
            self._last_byte = self._loop.time()
        remaining = self._last_byte + self._program.idle_s - self._loop.time()
        if remaining <= 0:
            self.stop("idle_timeout")
        else:
            self._later(remaining, self._check_idle)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append(self._loop.call_later(seconds, call))

    def stop(self, limit: How | None) -> None:
        """Have the supervisor end the tree. The first reason counts."""
        if self._stopping or self.ended.done():
            return
        self._stopping = True
        self._limit = limit
        self._process.send_signal(signal.SIGTERM)
        self._process.send_signal(signal.SIGCONT)  # the program may have stopped its supervisor
        self._later(self._program.grace_s + _STUCK_SECONDS, self._process.kill)

    # ---- for those who talk with it

    def write(self, data: bytes) -> None:
        self._feed.write(data)

    def end_input(self) -> None:
        self._feed.end()

    def finish(self, within_s: float) -> None:
        self._finished = True
        self._later(within_s, lambda: self.stop(None))

    def hold_idle(self, *, held: bool) -> None:
        self._idle_held = held
        self._last_byte = self._loop.time()

    def no_progress(self) -> None:
        self._last_byte = self._byte_before

    # ---- what comes from the processes

    def _read_stdout(self, data: bytes) -> None:
        self._byte_before, self._last_byte = self._last_byte, self._loop.time()
        self._stdout.add(data)
        if self._call(self._on_stdout, data):
            self._later(_LINGER_SECONDS, lambda: self.stop("answered"))

    def _read_stderr(self, data: bytes) -> None:
        if self._program.stderr_counts:
            self._last_byte = self._loop.time()
        self._stderr.add(data)
        self._call(self._on_stderr, data)

    def _call(self, listener: OnStdout | None, data: bytes) -> bool | None:
        """The answer of a listener; its exception ends the program."""
        if listener is None or self.callback_error is not None:
            return None
        try:
            return listener(data)
        except Exception as error:
            self.callback_error = error
            self.stop(None)
            return None

    def _source_closed(self) -> None:
        if self._has_report and self._output.closed and self._errors.closed:
            self._finish()

    def _supervisor_closed(self) -> None:
        """The end of the report is approximately the end of the supervisor."""
        if self._process.poll() is None:
            self._loop.call_later(_REAP_POLL_SECONDS, self._supervisor_closed)
        elif self._report.total == 0 and self.mark is not None:
            # It was killed, so its descendants have to be ended from here.
            sweeping = self._loop.run_in_executor(None, sweep_marks, [self.mark])
            sweeping.add_done_callback(self._swept_up)
        else:
            self._await_output()

    def _swept_up(self, sweeping: asyncio.Future[int]) -> None:
        self._swept = 0 if sweeping.cancelled() else sweeping.result()
        self._await_output()

    def _await_output(self) -> None:
        # Sending a signal may have collected the supervisor before its report was read.
        self._has_report = True
        self._later(_DRAIN_SECONDS, self._finish)
        self._source_closed()

    def _finish(self) -> None:
        if self.ended.done():
            return
        self.seconds = self._loop.time() - self._began
        for timer in self._timers:
            timer.cancel()
        self.ended.set_result(None)  # first, as closing the sources calls back
        for open_end in (self._feed, self._output, self._errors):
            open_end.close()
        # Listeners often refer to this object.
        self._timers, self._on_stdout, self._on_stderr = [], None, None

    # ---- the result

    def result(self) -> ProgramEnd:
        """The result, after everything has ended."""
        word, _, rest = self._report.value().decode(errors="replace").partition(" ")
        if word == "ended":
            return self._ended(dict(pair.split("=") for pair in rest.split()))
        if word == "failed":
            report = dict(pair.split("=") for pair in rest.split())
            file = self._command[0 if report["stage"] == "chdir" else 1]
            why = cannot_start(int(report["errno"]), file, stage=report["stage"])
            return self._end("not_started", error=str(why))
        if word == "broken":
            return self._end("not_started", error=f"supervisor-broken: {rest}")
        return self._without_report()

    def _ended(self, report: dict[str, str]) -> ProgramEnd:
        # Killed without being collected in time: as good as killed.
        status = int(report["status"] or signal.SIGKILL)
        by_signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        if self._program.in_sandbox and code is not None and code - 128 in _DEADLY:
            by_signal, code = code - 128, None  # bubblewrap reports it as a shell does
        how: How = "exited" if by_signal is None else "signalled"
        if code and self._program.in_sandbox and _WITHOUT_SANDBOX.match(self._stderr.last()):
            errors_text = self._stderr.last().decode(errors="replace").strip()
            return self._end("not_started", error=f"resource: waiting for processes: {errors_text}")
        if self._limit is not None and report["stopped"] == "1":
            how = self._limit
        left = "processes-left: some processes could not be killed"
        error, killed = left if report["left"] == "1" else None, int(report["killed"])
        return self._end(how, code=code, by_signal=by_signal, error=error, killed=killed)

    def _without_report(self) -> ProgramEnd:
        status = self._process.returncode
        if status >= 0:
            return self._end("not_started", error=f"supervisor-broken: it exited with {status}")
        return self._end(
            self._limit or "signalled",
            by_signal=-status,
            error=f"supervisor-killed: the supervisor was ended by signal {-status}",
            killed=self._swept,
        )

    def _end(
        self,
        how: How,
        *,
        code: int | None = None,
        by_signal: int | None = None,
        error: str | None = None,
        killed: int = 0,
    ) -> ProgramEnd:
        return ProgramEnd(
            how=how,
            code=code,
            signal=by_signal,
            stdout=self._stdout.value(),
            stdout_truncated=self._stdout.left_out > 0,
            stderr_tail=self._stderr.last(),
            stderr_bytes=self._stderr.total,
            error=error,
            seconds=self.seconds,
            survivors_killed=killed,
            finished=self._finished and self._stopping and self._limit is None,
            limit_s=self._program.idle_s if how == "idle_timeout" else self._program.wall_s,
        )
