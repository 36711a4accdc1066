"""What a program inside a run does to hide from a server that a request is its own.

Started as `python hiding_attempts.py` with an order as JSON on standard input: the port, the
request, how often to try each way, and the Unix socket of a process outside of runs that receives
nothing. Every attempt sends the request, and hides the connection where something still reads the
response or nothing does. Prints the status of each attempt as JSON, or 0 where nothing was read.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _CLONE_FILES, _F_SETSIG = 4, 36, 0x400, 10
_WAIT_S, _UNREAD_S = 30.0, 1.5
_CHAIN = 60


class Attempt:
    """One connection, and a pipe for whatever is read from it."""

    def __init__(self, order: dict[str, str], report: int) -> None:
        self.order = order
        self.report = report
        self.sock = socket.create_connection(("127.0.0.1", int(order["port"])))
        self.sock.sendall(order["request"].encode())

    def read(self, sock: socket.socket) -> None:
        """Read until the end."""
        sock.setblocking(True)
        while data := sock.recv(65_536):
            os.write(self.report, data)

    def glance(self, sock: socket.socket) -> None:
        """Read what is there."""
        with contextlib.suppress(BlockingIOError):
            data = sock.recv(65_536, socket.MSG_DONTWAIT)
            os.write(self.report, data)
            if not data:
                os._exit(0)


def passed_around(attempt: Attempt) -> None:
    """Two processes pass it to each other all the time, and read what is there."""
    left, right = socket.socketpair()
    child = os.fork()
    own, is_first = (left, True) if child else (right, False)
    held = attempt.sock if is_first else None
    if not is_first:
        attempt.sock.close()
    while True:
        if held is None:
            _, [number], _, _ = socket.recv_fds(own, 1, 1)
            held = socket.socket(fileno=number)
        attempt.glance(held)
        socket.send_fds(own, [b"x"], [held.fileno()])
        held.close()
        held = None


def handed_to_children(attempt: Attempt) -> None:
    """Every process hands it to a new one, which clears its environment."""
    while True:
        attempt.glance(attempt.sock)
        if os.fork():
            os._exit(0)


def in_a_system_call(attempt: Attempt) -> None:
    """A thread reads from it, and no process has it open any more."""
    sock = attempt.sock
    reading = threading.Thread(target=_libc_read, args=(sock.fileno(), attempt.report))
    reading.start()
    time.sleep(0.1)  # until it is in the system call, also on a busy machine
    os.close(sock.detach())
    reading.join()


def _libc_read(number: int, report: int) -> None:
    data = ctypes.create_string_buffer(65_536)
    size = _LIBC.recv(number, data, len(data), 0)
    os.write(report, data.raw[: max(size, 0)])


def in_a_thread(attempt: Attempt) -> None:
    """A thread with a table of open files of its own reads it."""
    ready, sock = threading.Event(), attempt.sock

    def work() -> None:
        _LIBC.unshare(_CLONE_FILES)
        ready.set()
        attempt.read(sock)

    reading = threading.Thread(target=work)
    reading.start()
    ready.wait()
    os.close(sock.fileno())
    reading.join()


def unlisted(attempt: Attempt) -> None:
    """Its open files cannot be listed."""
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    attempt.read(attempt.sock)


def woken_by_data(attempt: Attempt) -> None:
    """It cannot be listed, and whatever arrives continues it if it was stopped."""
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    sock = attempt.sock
    fcntl.fcntl(sock, _F_SETSIG, signal.SIGCONT)
    fcntl.fcntl(sock, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sock, fcntl.F_SETFL, fcntl.fcntl(sock, fcntl.F_GETFL) | os.O_ASYNC)
    while True:
        select.select([sock], [], [])
        attempt.glance(sock)


def below_ending_parents(attempt: Attempt) -> None:
    """Its ancestors end one after the other; each is a sub-reaper."""
    pids: list[int] = []
    pipe = os.pipe()
    for _ in range(_CHAIN):
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        pids.append(os.getpid())
        if os.fork():
            os.close(pipe[1])
            attempt.sock.close()
            signal.pause()
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if os.fork() == 0:
        attempt.sock.close()
        for pid in reversed(pids[1:]):
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        os._exit(0)
    attempt.read(attempt.sock)


def garbage(attempt: Attempt) -> None:
    """Two sockets are in the queue of each other, and it is with them. Nothing reads it."""
    one, other = socket.socketpair()
    socket.send_fds(one, [b"x"], [attempt.sock.fileno(), one.fileno()])
    socket.send_fds(other, [b"x"], [other.fileno()])
    for sock in (attempt.sock, one, other):
        sock.close()
    _wait_unread()


def queued_outside(attempt: Attempt) -> None:
    """It is in the queue of a process outside of runs that receives nothing."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(attempt.order["outside"])
        socket.send_fds(sock, [b"x"], [attempt.sock.fileno()])
        attempt.sock.close()
        _wait_unread()


def _wait_unread() -> None:
    time.sleep(_UNREAD_S)
    os._exit(0)


READ = (passed_around, handed_to_children, in_a_system_call, in_a_thread, unlisted)
READ = (*READ, woken_by_data, below_ending_parents)
WAYS: dict[str, Callable[[Attempt], None]] = {
    one.__name__: one for one in (*READ, garbage, queued_outside)
}


def try_once(order: dict[str, str], way: str) -> int:
    """The status of one attempt."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reading)
        try:
            WAYS[way](Attempt(order, writing))
        finally:
            os._exit(0)
    os.close(writing)
    try:
        return _final_status(reading)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _final_status(reading: int) -> int:
    """The status of the first response that is not an informational one."""
    text, deadline = b"", time.monotonic() + _WAIT_S
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([reading], [], [], left)[0]:
            break
        data = os.read(reading, 65_536)
        text += data
        while text.startswith(b"HTTP/1.1 1") and b"\r\n\r\n" in text:
            text = text.partition(b"\r\n\r\n")[2]
        if len(text) > 12:
            return int(text[9:12])
        if not data:
            break
    return 0


def main() -> None:
    order = json.load(sys.stdin)
    found = {way: [try_once(order, way) for _ in range(n)] for way, n in order["ways"].items()}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
