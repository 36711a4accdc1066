"""Programs that are hard to end: `shape.py NAME TOKEN FOLDER`.

Every process of a shape has the token in its command line and leaves a file named after its pid in
the folder, so that a test knows whom to look for. Uses the standard library only.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

NAME, TOKEN, FOLDER = sys.argv[1:4]

# Nothing that a test fails to end shall stay for good.
LIFETIME_SECONDS = 60


def linger() -> None:
    """Be there, without doing anything."""
    Path(FOLDER, str(os.getpid())).touch()
    time.sleep(LIFETIME_SECONDS)
    os._exit(0)


def child(then: Callable[[], None] = linger) -> int:
    """Fork a child that does this and never returns."""
    pid = os.fork()
    if pid == 0:
        then()
        os._exit(0)
    return pid


def ignore_polite_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


def again(name: str, *prefix: str) -> list[str]:
    """The command line of another shape of the same test."""
    return [*prefix, sys.executable, "-I", "-S", __file__, name, TOKEN, FOLDER]


# ---------------------------------------------------------------------------------- the shapes


def ignores_term() -> None:
    """It and its child ignore every signal that can be ignored."""
    ignore_polite_signals()
    child()
    linger()


def daemon() -> None:
    """The classical daemon: new session, two forks, all pipes let go."""

    def in_new_session() -> None:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        child()

    os.waitpid(child(in_new_session), 0)
    linger()


def setsid_grandchild() -> None:
    """A grandchild in a session of its own."""

    def middle() -> None:
        def last() -> None:
            os.setsid()
            linger()

        child(last)
        linger()

    child(middle)
    linger()


def nohup() -> None:
    """A background job of a shell, protected from the hang-up."""
    script = 'nohup "$@" >/dev/null 2>&1 & exec "$@"'
    os.execv("/bin/sh", ["sh", "-c", script, *again("plain", "shape")])  # noqa: S606 - a shape


def holds_stdout() -> None:
    """An orphan keeps the pipes open and writes into them now and then, whoever reads."""

    def heir() -> None:
        ignore_polite_signals()
        Path(FOLDER, str(os.getpid())).touch()
        while True:
            with suppress(BrokenPipeError):
                os.write(1, b"still here\n")
            time.sleep(0.05)

    os.waitpid(child(lambda: void(child(heir))), 0)
    linger()


def fork_chain() -> None:
    """Each generation starts the next in a new session and goes; never the same pid for long."""

    def generations() -> None:
        ends_at = time.monotonic() + LIFETIME_SECONDS
        while time.monotonic() < ends_at:
            os.setsid()
            Path(FOLDER, str(os.getpid())).touch()
            time.sleep(0.002)
            if os.fork():
                os._exit(0)

    child(generations)
    linger()


def stopped() -> None:
    """It and its child are stopped and can react to nothing."""

    def stop() -> None:
        Path(FOLDER, str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGSTOP)
        linger()

    child(stop)
    stop()


def orphans() -> None:
    """Children that go at once and leave theirs, which ignore polite signals."""
    ignore_polite_signals()
    for _ in range(3):
        os.waitpid(child(lambda: void(child())), 0)
    linger()


def prints_endlessly() -> None:
    """It and its child fill both pipes as fast as they can."""

    def pour() -> None:
        ignore_polite_signals()
        Path(FOLDER, str(os.getpid())).touch()
        while True:
            os.write(1, b"o" * 65536)
            os.write(2, b"e" * 65536)

    child(pour)
    pour()


def new_group() -> None:
    """It goes into the group of its parent, its child into a new one; both ignore signals."""
    ignore_polite_signals()
    os.setpgid(0, os.getpgid(os.getppid()))

    def leave() -> None:
        os.setpgid(0, 0)
        linger()

    child(leave)
    linger()


def empty_environment() -> None:
    """A child with no environment at all, in the background."""
    ignore_polite_signals()
    with subprocess.Popen(again("plain", "/usr/bin/env", "-i")):
        linger()


def void(_: object) -> None:
    """Turn an expression into a statement."""


# ------------------------------------------------------------------------ shapes for other tests


def leaves() -> None:
    """Exit with code 7 and leave a child that holds the pipes and ignores polite signals."""
    ready, said = os.pipe()

    def heir() -> None:
        ignore_polite_signals()
        os.setsid()
        os.write(said, b".")
        linger()

    child(heir)
    os.read(ready, 1)
    os._exit(7)


def kills_its_supervisor() -> None:
    """Leave a daemon, then kill the parent, which takes this process with it."""

    def detached() -> None:
        os.setsid()
        linger()

    child(detached)
    while not any(Path(FOLDER).iterdir()):
        time.sleep(0.005)
    os.kill(os.getppid(), signal.SIGKILL)
    linger()


def stops_its_supervisor() -> None:
    """Stop the parent, so that it reacts to nothing."""
    os.kill(os.getppid(), signal.SIGSTOP)
    linger()


SHAPES: dict[str, Callable[[], None]] = {
    "plain": linger,
    "ignores_term": ignores_term,
    "daemon": daemon,
    "setsid_grandchild": setsid_grandchild,
    "nohup": nohup,
    "holds_stdout": holds_stdout,
    "fork_chain": fork_chain,
    "stopped": stopped,
    "orphans": orphans,
    "prints_endlessly": prints_endlessly,
    "new_group": new_group,
    "empty_environment": empty_environment,
    "leaves": leaves,
    "kills_its_supervisor": kills_its_supervisor,
    "stops_its_supervisor": stops_its_supervisor,
}

if __name__ == "__main__":
    SHAPES[NAME]()
