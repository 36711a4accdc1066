"""A command on a terminal: a pseudo-terminal of any size, keys in, bytes out."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.cli.forks import Command, is_startable

COMMAND = [sys.executable, "-m", "loopwright"]
PATIENCE_S = 60.0
"""How long a command is waited for: only one that never comes to its end takes so long."""


class Terminal:
    """One command with a terminal as stdin, stdout and stderr."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        size: tuple[int, int] = (24, 80),
    ) -> None:
        master, slave = pty.openpty()
        self._master = master
        self.resize(*size)
        whole = {**env, "TERM": env.get("TERM", "xterm-256color")}
        self.process: Command | subprocess.Popen[bytes]
        if is_startable(whole):
            self.process = Command(args, [slave] * 3, env=whole, cwd=cwd, terminal=True)
        else:
            self.process = subprocess.Popen(
                [*COMMAND, *args],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=whole,
                cwd=cwd,
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )
        os.close(slave)
        self.seen = ""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def press_ctrl_c(self) -> None:
        self.type("\x03")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_for(self, text: str, seconds: float = PATIENCE_S, *, times: int = 1) -> str:
        """Read until a text has been seen so often; answers with everything up to now."""
        end = time.monotonic() + seconds
        while self.seen.count(text) < times:
            if not self._read(end) and self.seen.count(text) < times:
                raise AssertionError(f"{text!r} was not shown; this was:\n{self.seen[-2000:]}")
        return self.seen

    def leave(self, seconds: float = PATIENCE_S) -> int:
        """Read to the end; the exit code."""
        end = time.monotonic() + seconds
        while self._read(end):
            pass
        return self.process.wait(max(1.0, end - time.monotonic()))

    def _read(self, end: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # the other side has closed
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)
