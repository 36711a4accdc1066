"""What depends on the operating system, and what is missing where it is not Linux.

Only this module, `agents.processes` and `agents.sandbox` use calls and files that other systems do
not have. On other systems each function here does what is possible, or refuses: `missing_features`
says in words what a user of that system does without.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


MOUNTS = Path("/proc/self/mountinfo")
# File systems of the kernel. Where another one is mounted, as for containers, it stays hidden.
_KERNEL_TYPES = ("proc", "sysfs", "devtmpfs", "debugfs", "tracefs", "securityfs", "configfs", "bpf")
_OCTAL = re.compile(r"\\([0-7]{3})")


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder or in it."""
    return path == folder or path.startswith(f"{folder.rstrip(os.sep)}{os.sep}")


@dataclass(frozen=True, slots=True)
class MountPoint:
    """One line of the kernel's list of mounts."""

    device: str
    root: str  # what of its file system is mounted
    path: str
    kind: str


def read_mounts() -> Iterator[MountPoint]:
    try:
        text = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    for line in text.splitlines():
        words = line.split(" ")
        if "-" in words[6:]:
            root, path = (_OCTAL.sub(lambda m: chr(int(m[1], 8)), one) for one in words[3:5])
            yield MountPoint(words[2], root, path, words[words.index("-", 6) + 1])


def all_paths(path: str, mounts: tuple[MountPoint, ...]) -> list[str]:
    """Every path by which a folder can be reached: its own, and those through other mounts of the
    same file system.
    """
    real = os.path.realpath(path)
    return [real, *_mounted_elsewhere(real, mounts)]


def _mounted_elsewhere(real: str, mounts: tuple[MountPoint, ...]) -> Iterator[str]:
    around = [one for one in mounts if is_within(real, one.path)]
    if not around:
        return
    own = max(around, key=lambda one: len(one.path))
    inner = os.path.normpath(os.path.join(own.root, os.path.relpath(real, own.path)))
    for one in mounts:
        if one.device == own.device and one != own and is_within(inner, one.root):
            other = os.path.normpath(os.path.join(one.path, os.path.relpath(inner, one.root)))
            if other != real and os.path.exists(other):
                yield other


def other_kernel_mounts() -> list[str]:
    """Mounts of the kernel's own file systems at unusual places."""
    usual = ("/proc", "/sys", "/dev")
    return [
        one.path
        for one in tuple(read_mounts())
        if one.kind in _KERNEL_TYPES and not any(is_within(one.path, folder) for folder in usual)
    ]
