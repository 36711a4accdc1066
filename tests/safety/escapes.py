"""Ways out of a sandbox, tried one after the other by a program inside of it.

Called with the data directory, a link to it and the number of a process outside. Prints a JSON
object: for each way, what stopped it, or nothing where it succeeded.
"""

import ctypes
import fcntl
import json
import os
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

DATA, LINK, OUTSIDE = sys.argv[1], sys.argv[2], int(sys.argv[3])
LIBC = ctypes.CDLL(None, use_errno=True)
NEW_USER, NEW_MOUNTS = 0x10000000, 0x00020000
X86_64 = {
    "init_module": 175,
    "kexec_load": 246,
    "add_key": 248,
    "keyctl": 250,
    "perf_event_open": 298,
    "open_by_handle_at": 304,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "swapon": 167,
    "acct": 163,
    "iopl": 172,
    "settimeofday": 164,
    "syslog": 103,
}
GENERIC = {
    "init_module": 105,
    "kexec_load": 104,
    "add_key": 217,
    "keyctl": 219,
    "perf_event_open": 241,
    "open_by_handle_at": 265,
    "bpf": 280,
    "userfaultfd": 282,
    "io_uring_setup": 425,
    "swapon": 224,
    "acct": 89,
    "settimeofday": 170,
    "syslog": 116,
}
NUMBERS = X86_64 if os.uname().machine == "x86_64" else GENERIC


class StoppedError(Exception):
    """The way is closed."""


def checked(result: int) -> int:
    """The result of a call of the C library; OSError when it failed."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def opened(path: str) -> Callable[[], None]:
    """Open something for writing. Nothing is written: being able to is bad enough."""

    def way() -> None:
        os.close(os.open(path, os.O_WRONLY))

    return way


def listed(path: str) -> Callable[[], None]:
    """See the database in a folder."""

    def way() -> None:
        if "loopwright.db" not in os.listdir(path):
            raise StoppedError("it is not there")

    return way


def of_all_processes() -> None:
    """Look for the data directory through every process that is seen."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if "loopwright.db" in os.listdir(f"/proc/{name}/root{DATA}"):
                    return
    raise StoppedError("empty everywhere")


def in_a_child(way: Callable[[], None]) -> Callable[[], None]:
    """Try something that changes the process itself."""

    def tried() -> None:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                way()
                said = b""
            except (OSError, StoppedError) as error:
                said = str(error).encode() or b"?"
            os.write(writing, said or b"\0")
            os._exit(0)
        os.close(writing)
        said = os.read(reading, 1000)
        os.close(reading)
        os.waitpid(child, 0)
        if said != b"\0":
            raise StoppedError(said.decode())

    return tried


def nested_unmount() -> None:
    """Remove what hides the data directory, from a namespace of our own."""
    checked(LIBC.unshare(NEW_USER | NEW_MOUNTS))
    LIBC.umount2(DATA.encode(), 2)
    listed(DATA)()


def nested_move() -> None:
    """Move away what hides the data directory, from a namespace of our own."""
    checked(LIBC.unshare(NEW_USER | NEW_MOUNTS))
    target = b"/tmp"
    checked(LIBC.mount(DATA.encode(), target, None, 0x2000, None))
    listed(DATA)()


def nested_remount() -> None:
    """Make the settings of the kernel writable, from a namespace of our own."""
    checked(LIBC.unshare(NEW_USER | NEW_MOUNTS))
    checked(LIBC.mount(None, b"/proc/sys", None, 0x20 | 0x1000, None))
    opened("/proc/sys/kernel/core_pattern")()


def nested_proc() -> None:
    """Mount the table of processes anew, from a namespace of our own."""
    checked(LIBC.unshare(NEW_USER | NEW_MOUNTS))
    checked(LIBC.mount(b"proc", b"/proc", b"proc", 0, None))
    opened("/proc/sys/kernel/core_pattern")()


def another_root() -> None:
    """Join the namespace of the first process that is seen."""
    for name in sorted((one for one in os.listdir("/proc") if one.isdigit()), key=int):
        with suppress(OSError):
            descriptor = os.open(f"/proc/{name}/ns/mnt", os.O_RDONLY)
            checked(LIBC.setns(descriptor, 0))
            listed(DATA)()
            return
    raise StoppedError("no namespace could be joined")


def device() -> None:
    """Make a device for the disk that the data directory is on."""
    where = "/tmp/loopwright-device"
    os.mknod(where, 0o60600, os.stat("/").st_dev)
    try:
        os.close(os.open(where, os.O_RDONLY))
    finally:
        os.unlink(where)


def disks() -> None:
    """Open any disk."""
    for name in os.listdir("/sys/class/block"):
        with suppress(OSError):
            os.close(os.open(f"/dev/{name}", os.O_RDONLY))
            return
    raise StoppedError("no disk could be opened")


def foreign_descriptor() -> None:
    """Use a descriptor that was left open."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if int(name) > 2 and os.readlink(f"/proc/self/fd/{name}").startswith(DATA):
                return
    raise StoppedError("none leads there")


def variable() -> None:
    """Learn from the environment where the data directory is."""
    if "LOOPWRIGHT_HOME" not in os.environ and DATA not in os.environ.values():
        raise StoppedError("no variable names it")


def signalled() -> None:
    """Signal the process that drives the run."""
    os.kill(OUTSIDE, 0)


def memory() -> None:
    """Read the memory of the process that drives the run."""
    with open(f"/proc/{OUTSIDE}/mem", "rb"):
        pass


def traced() -> None:
    """Attach to the process that drives the run."""
    checked(LIBC.ptrace(16, OUTSIDE, None, None))


def typed() -> None:
    """Type into a terminal."""
    _, terminal = os.openpty()
    fcntl.ioctl(terminal, 0x5412, b"x")


def by_number() -> None:
    """Open a folder by its number, past all mounts."""
    handle = struct.pack("=Ii", 8, 1) + struct.pack("=II", 2, 0)
    root = os.open("/", os.O_RDONLY)
    checked(LIBC.syscall(NUMBERS["open_by_handle_at"], root, handle, 0))


def called(name: str) -> Callable[[], None]:
    """Make a system call. Arguments that mean nothing would be refused as such, not forbidden."""

    def way() -> None:
        try:
            checked(LIBC.syscall(NUMBERS[name], 0, 0, 0, 0, 0, 0))
        except PermissionError as error:
            raise StoppedError("forbidden") from error
        except OSError as error:
            if name in ("kexec_load", "init_module", "swapon", "acct", "settimeofday", "iopl"):
                raise StoppedError(str(error)) from error

    return way


WAYS: dict[str, Callable[[], None]] = {
    "the pattern of core dumps": opened("/proc/sys/kernel/core_pattern"),
    "the program for modules": opened("/proc/sys/kernel/modprobe"),
    "the program for hotplug": opened("/sys/kernel/uevent_helper"),
    "the magic key": opened("/proc/sysrq-trigger"),
    "swappiness": opened("/proc/sys/vm/swappiness"),
    "huge pages": opened("/sys/kernel/mm/transparent_hugepage/enabled"),
    "memory of the kernel": opened("/proc/kcore"),
    "physical memory": opened("/dev/mem"),
    "messages of the kernel": opened("/dev/kmsg"),
    "ports": opened("/dev/port"),
    "a control group": opened("/sys/fs/cgroup/cgroup.procs"),
    "disks": disks,
    "a new device": device,
    "the data directory": listed(DATA),
    "a link to the data directory": listed(LINK),
    "through our own root": listed(f"/proc/self/root{DATA}"),
    "through the roots of all processes": of_all_processes,
    "a descriptor": foreign_descriptor,
    "a variable": variable,
    "unmounting in a namespace": in_a_child(nested_unmount),
    "moving a mount in a namespace": in_a_child(nested_move),
    "remounting in a namespace": in_a_child(nested_remount),
    "a table of processes in a namespace": in_a_child(nested_proc),
    "the namespace of another process": in_a_child(another_root),
    "a signal to the driver": signalled,
    "the memory of the driver": memory,
    "tracing the driver": traced,
    "typing into a terminal": typed,
    "a file by its number": by_number,
    **{f"the call {name}": called(name) for name in NUMBERS if name != "open_by_handle_at"},
}


def main() -> None:
    """Try all of them."""
    found: dict[str, str] = {}
    for name, way in WAYS.items():
        try:
            way()
            found[name] = ""
        except (OSError, StoppedError) as error:
            found[name] = str(error) or type(error).__name__
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
