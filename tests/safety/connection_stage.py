"""Programs of a run that connect to a server and hide that the connection is theirs.

Started as a program under some identity (see `identities`). It listens, has a process beside it
that reads from a connection and whose open files cannot be listed, as those of `sshd` cannot, and
prints for each way to hide what was found at the other end of the connection, as JSON.
"""

import asyncio
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from loopwright.agents.processes.process import ProgramStart, run_program
from loopwright.agents.processes.tcp_peer import (
    UNLISTED_PEER,
    Address,
    find_tcp_peer,
    is_read_outside,
)

BYSTANDER = "bystander"
_PR_SET_DUMPABLE, _CLONE_FILES = 4, 0x400
_HIDING_S = 60.0
_TRIES = 20
_LIBC = ctypes.CDLL(None, use_errno=True)


def _connect(port: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(port)))


def _wait(sock: socket.socket | None = None) -> None:
    """Wait until this program is ended, with the connection where it is."""
    threading.Event().wait(_HIDING_S)
    del sock


def openly(port: str) -> None:
    """Not at all."""
    _wait(_connect(port))


def in_flight(port: str) -> None:
    """Send the connection through a socket, and do not receive it."""
    sock, (one, other) = _connect(port), socket.socketpair()
    socket.send_fds(one, [b"x"], [sock.fileno()])
    sock.close()
    _wait(other)


def in_a_thread(port: str) -> None:
    """Leave it to a thread that has a table of open files of its own."""
    sock, ready = _connect(port), threading.Event()

    def keep() -> None:
        if _LIBC.unshare(_CLONE_FILES) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        ready.set()
        _wait(sock)

    threading.Thread(target=keep, daemon=True).start()
    ready.wait(_HIDING_S)
    os.close(sock.fileno())  # in the table of this thread alone
    _wait()


def unlisted(port: str) -> None:
    """Be a program whose open files cannot be listed."""
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    _wait(_connect(port))


def handed_on(port: str) -> None:
    """Hand it to a new process all the time."""
    sock = _connect(port)
    sock.settimeout(0)
    while os.fork() == 0:
        try:
            if not sock.recv(1):
                os._exit(0)  # the server has looked, and closed it
        except BlockingIOError:
            continue
    os._exit(0)


def mapped(port: str) -> None:
    """Map it into memory, and close it."""
    sock = _connect(port)
    _LIBC.mmap.restype = ctypes.c_void_p
    size, how = ctypes.c_size_t(4096), (1, 1)
    _LIBC.mmap(None, size, *how, sock.fileno(), ctypes.c_long(0))
    sock.close()
    _wait()


WAYS = {one.__name__: one for one in (openly, in_flight, in_a_thread, unlisted, handed_on, mapped)}


def reader(port: str) -> None:
    """Be a program whose open files cannot be listed, and read."""
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    sock = _connect(port)
    while sock.recv(1_024):
        pass


def _find(connection: socket.socket, peer: Address) -> str:
    """What is at the other end of a connection."""
    own = connection.getsockname()[:2]
    found = find_tcp_peer(peer, own)
    is_person = found is None
    if found is UNLISTED_PEER:
        is_person = is_read_outside(peer, own, lambda: connection.send(b"x") == 1)
    return "person" if is_person or found is None else found.actor


def _look_up(sock: socket.socket) -> str:
    """What is at the other end of the next connection, once it has been hidden."""
    connection, peer = sock.accept()
    with connection:
        threading.Event().wait(0.5)
        return _find(connection, peer[:2])


def _start(way: str, port: int) -> list[str]:
    return [sys.executable, "-m", "tests.safety.connection_stage", way, str(port)]


async def _run(way: str, sock: socket.socket) -> str:
    port = sock.getsockname()[1]
    env = {**os.environ, "LOOPWRIGHT_RUN": "run_1", "LOOPWRIGHT_AGENT": "coder"}
    program = ProgramStart(argv=tuple(_start(way, port)), cwd=str(Path.cwd()), env=env, wall_s=60)
    running = asyncio.create_task(run_program(program))
    try:
        return await asyncio.to_thread(_look_up, sock)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _see_bystander(connection: socket.socket, peer: tuple[str, int]) -> str:
    """What is found at a connection of a person while a program of a run is under way."""
    env = {**os.environ, "LOOPWRIGHT_RUN": "run_1"}
    running = asyncio.create_task(
        run_program(ProgramStart(argv=("sleep", "60"), cwd="/", env=env, wall_s=60))
    )
    try:
        await asyncio.sleep(0.5)
        for _ in range(_TRIES):  # programs of other tests may run at each of the moments
            found = await asyncio.to_thread(_find, connection, peer)
            if found == "person":
                break
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return found


async def _attempts(sock: socket.socket, bystander: socket.socket) -> dict[str, str]:
    found = {way: await _run(way, sock) for way in WAYS}
    return {**found, BYSTANDER: await _see_bystander(bystander, bystander.getpeername())}


def main() -> None:
    """Make all attempts beside a process whose open files cannot be listed."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.settimeout(_HIDING_S)
        beside = subprocess.Popen(_start(reader.__name__, sock.getsockname()[1]))
        try:
            connection, _ = sock.accept()
            with connection:
                sys.stdout.write(json.dumps(asyncio.run(_attempts(sock, connection))))
        finally:
            beside.kill()
            beside.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        {**WAYS, reader.__name__: reader}[sys.argv[1]](sys.argv[2])
    else:
        main()
