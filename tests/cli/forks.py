"""Commands in processes of their own that start in milliseconds.

    forks.py FD

loads the package once and forks a process for each order that it receives. Each command has its own
environment, folder and streams, and ends as any interpreter does; only the imports are shared.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import loopwright
from loopwright.cli.main import main as run_loopwright

ROOT = Path(__file__).resolve().parents[2]
ORDER_BYTES = 1 << 20
STREAMS = 3
FIXED_AT_START = ("PYTHON", "LC_", "LANG")
"""How the variables begin that an interpreter reads only when it starts."""


# -- the side of the tests -------------------------------------------------------------------------


def is_startable(env: Mapping[str, str]) -> bool:
    """Tell whether a forked interpreter behaves in this environment as a new one does."""
    names = {name for name in (*env, *os.environ) if name.startswith(FIXED_AT_START)}
    return all(env.get(name) == os.environ.get(name) for name in names)


@functools.cache
def _server(_pid: int) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The server of this process; it ends when the connection to it is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        number = theirs.fileno()
        words = [sys.executable, "-m", "tests.cli.forks", str(number)]
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(
            words, cwd=ROOT, pass_fds=[number], stdin=nothing, stdout=nothing
        )
    return ours, process


class Command:
    """A command that was started, with the methods of `subprocess.Popen` that the tests use."""

    def __init__(
        self,
        args: Sequence[str],
        streams: Sequence[int],
        *,
        env: Mapping[str, str],
        cwd: Path,
        terminal: bool = False,
    ) -> None:
        self.args = [*args]
        self.returncode: int | None = None
        self.stdin: BinaryIO | None = None
        self.stdout: BinaryIO | None = None
        self.stderr: BinaryIO | None = None
        ended, end = os.pipe()
        self._status = os.fdopen(ended, "rb", buffering=0)
        order = {"args": self.args, "env": dict(env), "cwd": str(cwd), "terminal": terminal}
        connection, _ = _server(os.getpid())
        try:
            socket.send_fds(connection, [json.dumps(order).encode()], [*streams, end])
        finally:
            os.close(end)
        self.pid = int(self._status.readline())

    def __enter__(self) -> Command:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                file.close()
        self.wait()

    def poll(self) -> int | None:
        """The exit code, if the command has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def communicate(
        self, input: bytes | None = None, timeout: float | None = None
    ) -> tuple[bytes, bytes]:
        """Write to its input, read its outputs to their ends, and wait for the command."""
        end = None if timeout is None else time.monotonic() + timeout
        found: dict[BinaryIO, bytes] = {}
        files = [one for one in (self.stdout, self.stderr) if one is not None and not one.closed]
        readers = [
            threading.Thread(target=lambda one=one: found.update({one: one.read()}), daemon=True)
            for one in files
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self.stdin:
                self.stdin.write(input or b"")
        for reader in readers:
            reader.join(None if end is None else max(0.0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if end is None else max(0.0, end - time.monotonic()))
        for file in files:
            file.close()
        out, err = (found.get(one, b"") if one else b"" for one in (self.stdout, self.stderr))
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_forked(
    args: Sequence[str], *, env: Mapping[str, str], cwd: Path, piped: bool = False
) -> Command:
    """Start a command with pipes as its outputs, and with one as its input if that is wanted."""
    pipes = [os.pipe() for _ in range(STREAMS)]
    (read, write), *outputs = pipes
    if not piped:
        os.close(read)
        read = os.open(os.devnull, os.O_RDONLY)
    streams = [read, *(number for _, number in outputs)]
    try:
        command = Command(args, streams, env=env, cwd=cwd)
    finally:
        for number in streams:
            os.close(number)
    command.stdin = os.fdopen(write, "wb") if piped else None
    if not piped:
        os.close(write)
    command.stdout, command.stderr = (os.fdopen(number, "rb") for number, _ in outputs)
    return command


# -- the server ------------------------------------------------------------------------------------


def load() -> None:
    """Import what commands import only when they need it."""
    for found in pkgutil.walk_packages(loopwright.__path__, "loopwright."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    gc.collect()
    gc.freeze()


def begin(order: dict[str, Any], streams: Sequence[int]) -> None:
    """Become the process of a command, with the streams that a new interpreter makes."""
    for target, number in enumerate(streams):
        os.dup2(number, target)
    for number in set(streams):
        os.close(number)
    if order["terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    time.tzset()
    sys.stdin = os.fdopen(0, encoding=sys.stdin.encoding, closefd=False)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            os.fdopen(number, "wb", closefd=False),
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=number == 2 or os.isatty(number),
            write_through=old.write_through,
        )
        for number, old in ((1, sys.stdout), (2, sys.stderr))
    )


def attend(order: dict[str, Any], streams: Sequence[int], status: int) -> list[str] | None:
    """Fork the command and report its end; in the process of the command, return its arguments."""
    command = os.fork()
    if command == 0:
        os.close(status)
        begin(order, streams)
        return [*order["args"]]
    for number in streams:
        os.close(number)
    os.write(status, b"%d\n" % command)
    _, ended = os.waitpid(command, 0)
    os.write(status, b"%d\n" % os.waitstatus_to_exitcode(ended))
    os._exit(0)


def serve(connection: socket.socket) -> list[str] | None:
    """Fork for each order until the connection is closed; a command leaves with its arguments."""
    while True:
        text, numbers, _, _ = socket.recv_fds(connection, ORDER_BYTES, STREAMS + 1)
        if not text:
            return None
        if os.fork() == 0:  # waits for the command, so that the server does not have to
            connection.close()
            return attend(json.loads(text), numbers[:STREAMS], numbers[STREAMS])
        for number in numbers:
            os.close(number)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    load()
    words = serve(socket.socket(fileno=int(sys.argv[1])))
    if words is not None:
        sys.argv[:] = ["loopwright", *words]
        run_loopwright(words)
