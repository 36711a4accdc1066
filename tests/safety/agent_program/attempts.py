"""The list of escapes, and what all of them use.

An escape is a function that returns when it succeeded, maybe with what it found, and raises
`OSError` or `Blocked` when something stopped it. Each runs in a process of its own, so that it may
change that process. None of them does harm where it succeeds: files are opened and not written,
system calls are made with arguments that the kernel refuses after it has checked the permission.
"""

import ctypes
import errno
import os
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

TIMEOUT_S = 20
LIBC = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_MOVE, MS_REC = 0x1, 0x20, 0x1000, 0x2000, 0x4000
MNT_DETACH = 2
NEW_MOUNTS, NEW_CGROUP, NEW_USER, NEW_PIDS, NEW_NET = (
    *(0x00020000, 0x02000000, 0x10000000),
    *(0x20000000, 0x40000000),
)

Attempt = Callable[[], object]


class Blocked(Exception):
    """Something stopped the escape."""


@dataclass(frozen=True)
class Escape:
    """One way to get out."""

    id: str
    title: str
    blocked_by: str
    attempt: Attempt
    works_at_off: bool  # on every machine and for every user, so that the attempt itself is tested


@dataclass
class Target:
    """What the escapes are after, as the test says it."""

    data: str = ""  # the data directory
    link: str = ""  # a link to it
    database: str = "loopwright.db"
    secret: str = ""  # a text that is in the data directory and in the environment of the driver
    socket: str = ""  # a Unix socket in the data directory
    driver: int = 0  # the process that drives the run
    workspace: str = ""
    segment: int = 0  # of System V shared memory
    shared_memory: str = ""  # a file of the driver in /dev/shm
    program_folders: list[str] = field(default_factory=list)  # of Loopwright, Python, bwrap, git
    control_sockets: list[str] = field(default_factory=list)  # of programs that start programs
    settings: list[str] = field(default_factory=list)  # settings files and stored sign-ins
    folders: dict[str, str] = field(default_factory=dict)  # by their names in the table of levels
    port: int = 0  # of a server on this machine
    abstract: str = ""  # the name of an abstract Unix socket
    outside: dict[str, list[int]] = field(default_factory=dict)  # device and number of folders
    marker: str = "loopwright-planted"


TARGET = Target()

SYSTEM_FOLDERS = (
    *("/etc", "/etc/cron.d", "/etc/cron.hourly", "/var/spool/cron", "/var/spool/cron/crontabs"),
    *("/var/spool/at", "/var/spool/cron/atjobs", "/etc/systemd/system", "/etc/init.d"),
    *("/run/systemd/system", "/etc/profile.d", "/etc/udev/rules.d", "/run/udev/rules.d"),
    *("/lib/systemd/system", "/etc/ld.so.conf.d", "/usr/lib", "/lib", "/usr/local/sbin"),
    *("/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"),
    *("/", "/run", "/var/lib/dpkg/info", "/var/lib/systemd", "/var/lib/rpm", "/var/lib/cloud"),
)
SYSTEM_FILES = ("/etc/passwd", "/etc/shadow", "/etc/sudoers", "/etc/group", "/etc/hosts")
ESCAPES: dict[str, Escape] = {}


def escape(
    title: str, *, blocked_by: str, works_at_off: bool = False
) -> Callable[[Attempt], Attempt]:
    """Put a function into the list, under its own name."""

    def put(attempt: Attempt) -> Attempt:
        add_escape(attempt.__name__, title, blocked_by, attempt, works_at_off=works_at_off)
        return attempt

    return put


def add_escape(
    name: str, title: str, blocked_by: str, attempt: Attempt, *, works_at_off: bool = False
) -> None:
    """Put an escape into the list."""
    key = name.replace("_", "-")
    if key in ESCAPES:
        raise ValueError(f"there are two escapes {key}")
    ESCAPES[key] = Escape(key, title, blocked_by, attempt, works_at_off)


def check_call(result: int) -> int:
    """The result of a call of the C library; OSError when it failed."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def require_outside(path: str) -> None:
    """Refuse a file or folder that is not the one outside the sandbox: a change of what is only in
    memory changes nothing there.
    """
    found = os.stat(path)
    if [found.st_dev, found.st_ino] != TARGET.outside.get(path):
        raise Blocked("it is another one than outside, and gone with the sandbox")


def rename_and_back(path: str) -> None:
    """Rename a file or folder, and undo it."""
    require_outside(path)
    other = f"{path}-{TARGET.marker}"
    os.rename(path, other)
    os.rename(other, path)


def can_rename(folder: str) -> None:
    """Find out whether a folder could be renamed, without doing it: onto one that is not empty, for
    which the kernel looks at permissions and mounts before it refuses.
    """
    require_outside(folder)
    parent = os.path.dirname(folder)
    for name in sorted(os.listdir(parent)):
        other = os.path.join(parent, name)
        if other == folder or os.path.islink(other) or not os.path.isdir(other):
            continue
        try:
            if os.listdir(other) and not os.path.ismount(other):
                os.rename(folder, other)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return
            raise
    raise Blocked("there is no other folder beside it")


def plant(folder: str) -> None:
    """Make a file in a folder, and remove it."""
    require_outside(folder)
    path = os.path.join(folder, TARGET.marker)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    os.unlink(path)


def change(path: str) -> None:
    """Open a file for writing if it is the one outside."""
    require_outside(path)
    open_for_writing(path)


def open_for_writing(path: str) -> None:
    """Open something for writing, and write nothing."""
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))


def open_for_reading(path: str) -> None:
    """Open something for reading."""
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))


def try_each(attempts: dict[str, Attempt]) -> str:
    """The name of the first that succeeds; Blocked with what stopped the last one if none does."""
    reason = "there is nothing to try"
    for name, attempt in attempts.items():
        try:
            attempt()
        except (OSError, Blocked) as error:
            reason = f"{name}: {error}"
        else:
            return name
    raise Blocked(reason)


def find_database(folder: str) -> None:
    """See the database in a folder."""
    if TARGET.database not in os.listdir(folder):
        raise Blocked("the folder is empty")


def processes() -> list[int]:
    """The numbers of all processes that are seen."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def enter_namespaces(extra: int = 0) -> None:
    """Become the owner of a new user namespace with mounts of its own."""
    uid, gid = os.geteuid(), os.getegid()
    check_call(LIBC.unshare(NEW_USER | NEW_MOUNTS | extra))
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        try:  # without a map there are still all capabilities
            with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
                file.write(text)
        except OSError:
            continue


def try_escape(one: Escape) -> str:
    """Try it in a process of its own: what stopped it. Where it succeeded that begins with `+`, and
    where the attempt itself is broken with `!`.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            said = f"+{one.attempt() or ''}".encode()
        except (OSError, Blocked) as error:
            said = (str(error) or type(error).__name__).encode()
        except BaseException as error:
            said = f"!{type(error).__name__}: {error}".encode()
        os.write(writing, said[:1000])
        os._exit(0)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], TIMEOUT_S)
        said = os.read(reading, 1000) if ready else b"!it took too long"
    finally:
        os.close(reading)
        if not ready:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if said == b"" and os.WIFSIGNALED(status):
        return f"the process was ended by signal {os.WTERMSIG(status)}"
    return said.decode(errors="replace") or "!no answer"
