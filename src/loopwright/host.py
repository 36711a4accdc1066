"""What depends on the operating system, and what is missing where it is not Linux.

Only this module, `agents.processes` and `agents.sandbox` use calls and files that other systems do
not have. On other systems each function here does what is possible, or refuses: `missing_features`
says in words what a user of that system does without.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from loopwright.model.sandbox import SYSTEM_PATH

SYSTEM: str = sys.platform
NEEDS_LINUX = "run Loopwright on Linux, for example in a virtual machine"

LONGEST_SOCKET_PATH = 100  # in bytes; systems take a few more
_NAMES = {"darwin": "macOS"}
_PEER = struct.Struct("3i")
_LOCAL_PEER = struct.Struct("=IIh66x")  # `struct xucred`: version, user, groups
_LOCAL_PEERCRED = 1
_PR_GET_CHILD_SUBREAPER = 37
_OPENAT2 = 437
_RESOLVE_BENEATH = 0x08
_RESOLVE_NO_MAGICLINKS = 0x02
_NOT_OFFERED = (errno.ENOSYS, errno.EPERM, errno.EINVAL)


class MissingFeature(NamedTuple):
    """Something that Loopwright does on Linux only."""

    name: str
    effect: str


def is_linux() -> bool:
    return SYSTEM == "linux"


def system_name() -> str:
    """What people call the operating system."""
    return _NAMES.get(SYSTEM, SYSTEM)


def sandbox_problem() -> str | None:
    """Why no sandbox can work on this system; None on Linux, where it can."""
    return None if is_linux() else f"the sandbox needs Linux, and this is {system_name()}"


def missing_features() -> tuple[MissingFeature, ...]:
    """What is not available on this system; nothing on Linux."""
    if is_linux():
        return ()
    here = f"not available on {system_name()}: "
    return (
        MissingFeature(
            "sandbox",
            f"{here}`guard` runs as `off` (a server refuses it), "
            "and `workspace`, `readonly` and `none` are refused",
        ),
        MissingFeature(
            "callers",
            f"{here}a command or a connection of an agent is recognised by an environment variable "
            "only, which the agent can clear; loop tools of programs are refused",
        ),
        MissingFeature(
            "processes",
            f"{here}a process that detaches itself may survive its run, and processes that a dead "
            "driver left are not found",
        ),
    )


# -- programs --------------------------------------------------------------------------------------


def find_program(name: str, path: str | None = None) -> str | None:
    """The file of a program that Loopwright itself starts. On Linux one in a folder of the system
    comes before others on the PATH, such as `~/.local/bin`, where an agent can put something of the
    same name; not if it is looked for in `path`.
    """
    found = shutil.which(name, path=path)
    if found is None or path is not None or not is_linux():
        return found
    return shutil.which(name, path=os.pathsep.join(SYSTEM_PATH)) or found


def can_adopt_orphans() -> bool:
    """Whether a process here can become the parent of the orphans among its descendants."""
    if not is_linux():
        return False
    import ctypes  # noqa: PLC0415 - takes time to load

    answer = ctypes.c_int(-1)
    try:
        failed = ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    except (AttributeError, OSError):
        return False
    return int(failed) == 0 and answer.value in (0, 1)


# -- sockets ---------------------------------------------------------------------------------------


def peer_user(connection: socket.socket) -> int | None:
    """The number of the user at the other end of a Unix socket; None where it cannot be known."""
    try:
        if sys.platform == "linux":
            data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            return int(_PEER.unpack(data)[1])
        else:
            data = connection.getsockopt(0, _LOCAL_PEERCRED, _LOCAL_PEER.size)
            return int(_LOCAL_PEER.unpack(data)[1])
    except (OSError, struct.error):
        return None


def is_own_user(connection: socket.socket) -> bool:
    """Whether the user of this process, or root, is at the other end of a Unix socket. The rights
    of its file say the same, and a system may ignore those.
    """
    return peer_user(connection) in (0, os.getuid())


def peer_process(connection: socket.socket) -> int | None:
    """The number of the process at the other end of a Unix socket; None where it is not known."""
    if sys.platform == "linux":
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return int(_PEER.unpack(data)[0])
    else:
        return None


# -- files -----------------------------------------------------------------------------------------


@contextmanager
def socket_path(folder: Path, name: str) -> Iterator[str]:
    """The path of a Unix socket, short enough to be one: in a deep folder by a handle of the
    folder, which only Linux has names for.
    """
    path = str(folder / name)
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        yield path
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{name}"
    finally:
        os.close(handle)


def path_of(handle: int) -> Path | None:
    """Where an open file or folder is now; None where the system does not tell."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{handle}"))
    except OSError:
        return None


def open_beneath(root: int, name: str, flags: int) -> int | None:
    """Open a file in an open folder without ever leaving the folder; None where the system has no
    call for that.
    """
    if not is_linux():
        return None
    import ctypes  # noqa: PLC0415 - takes time to load

    how = struct.pack("=QQQ", flags, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    call = ctypes.CDLL(None, use_errno=True).syscall
    handle = int(call(_OPENAT2, root, os.fsencode(name), how, len(how)))
    if handle >= 0:
        return handle
    number = ctypes.get_errno()
    if number in _NOT_OFFERED:
        return None
    raise OSError(number, os.strerror(number), name)
