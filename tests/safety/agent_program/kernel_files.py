"""Escapes through files of the kernel and devices: root may open many without capabilities."""

import fcntl
import os
import stat
from functools import partial

from tests.safety.agent_program.attempts import (
    Blocked,
    add_escape,
    escape,
    open_for_reading,
    open_for_writing,
    try_each,
)

MOST_FILES = 4_000
# Of the namespaces of the sandbox itself: the number of its last process, its message queues and
# shared memory.
OWN = (
    *("ns_last_pid", "pid_max", "auto_msgmni", "msgmax", "msgmnb", "msgmni", "msg_next_id", "sem"),
    *("sem_next_id", "shmall", "shmmax", "shmmni", "shm_next_id", "shm_rmid_forced"),
    *("msg_default", "msg_max", "msgsize_default", "msgsize_max", "queues_max"),
)
READ_ONLY = "the kernel's settings are read-only mounts"
OWN_DEVICES = "the sandbox has a /dev of its own"

for _name, _title, _path in (
    ("core_pattern", "name a program that the kernel starts when a process crashes",
     "/proc/sys/kernel/core_pattern"),
    ("modprobe_path", "name a program that the kernel starts for unknown formats",
     "/proc/sys/kernel/modprobe"),
    ("sysrq_trigger", "restart or crash the machine", "/proc/sysrq-trigger"),
    ("uevent_helper", "name a program that the kernel starts for new devices",
     "/sys/kernel/uevent_helper"),
    ("power_state", "put the machine to sleep", "/sys/power/state"),
):  # fmt: skip
    add_escape(_name, _title, READ_ONLY, partial(open_for_writing, _path))


def writable_below(*folders: str) -> str:
    """A file that can be opened for writing; Blocked where there is none."""
    seen = 0
    for top in folders:
        for folder, names, files in os.walk(top):
            names.sort()
            for name in files:
                path = os.path.join(folder, name)
                seen += 1
                if seen > MOST_FILES:
                    break
                if name not in OWN and os.path.isfile(path) and os.access(path, os.W_OK):
                    try:
                        open_for_writing(path)
                    except OSError:
                        continue
                    return path
    raise Blocked(f"none of {seen} files can be opened for writing")


@escape("write any setting of the kernel", blocked_by=READ_ONLY)
def any_sysctl() -> str:
    # Settings of a network namespace and of the own limits belong to the process itself.
    return writable_below(
        *(f"/proc/sys/{one}" for one in ("kernel", "vm", "fs", "dev", "debug", "abi"))
    )


@escape("write any file of /sys", blocked_by=READ_ONLY)
def any_sys_file() -> str:
    return writable_below("/sys/kernel", "/sys/module", "/sys/power", "/sys/fs", "/sys/firmware")


@escape("write another file of /proc that belongs to the kernel", blocked_by=READ_ONLY)
def any_proc_file() -> str:
    tops = ("irq", "bus", "fs", "acpi", "scsi", "driver", "tty")
    return writable_below(*(f"/proc/{one}" for one in tops))


@escape("name the program of a control group", blocked_by=READ_ONLY)
def release_agent() -> str:
    tops = os.listdir("/sys/fs/cgroup")
    files = {f"/sys/fs/cgroup/{one}/release_agent" for one in (*tops, ".")}
    return try_each({one: partial(open_for_writing, one) for one in files})


@escape("leave the control group and its limits", blocked_by=READ_ONLY)
def cgroup_procs() -> str:
    tops = os.listdir("/sys/fs/cgroup")
    files = {f"/sys/fs/cgroup/{one}/cgroup.procs" for one in (*tops, ".")}
    return try_each({one: partial(open_for_writing, one) for one in files})


@escape("read the memory of the kernel", blocked_by="/proc/kcore is covered")
def kcore() -> None:
    with open("/proc/kcore", "rb") as file:
        if file.read(4) != b"\x7fELF":
            raise Blocked("it is not the memory of the kernel")


@escape("learn the addresses of the kernel", blocked_by="no capability to see them")
def kallsyms() -> None:
    with open("/proc/kallsyms", encoding="ascii") as file:
        if int(file.readline().split()[0], 16) == 0:
            raise Blocked("all addresses are zero")


@escape("read the messages of the kernel", blocked_by=f"{OWN_DEVICES}; no capability")
def kernel_messages() -> str:
    return try_each({one: partial(open_for_reading, one) for one in ("/dev/kmsg", "/proc/kmsg")})


@escape("read physical memory", blocked_by=OWN_DEVICES)
def physical_memory() -> str:
    names = ("/dev/mem", "/dev/kmem", "/dev/port", "/dev/cpu/0/msr", "/dev/nvram")
    return try_each({one: partial(open_for_reading, one) for one in names})


@escape("read a disk past the file system", blocked_by=OWN_DEVICES)
def raw_disk() -> str:
    disks = [f"/dev/{name}" for name in os.listdir("/sys/class/block")]
    return try_each({one: partial(open_for_reading, one) for one in disks})


@escape(
    "make a device file for the disk", blocked_by="no capability, and the mounts allow no devices"
)
def make_disk() -> None:
    device = os.stat("/").st_dev
    for name in os.listdir("/sys/class/block"):
        with open(f"/sys/class/block/{name}/dev", encoding="ascii") as file:
            major, minor = file.read().split(":")
            device = os.makedev(int(major), int(minor))
    make_and_open(stat.S_IFBLK, device)


@escape(
    "make a device file for memory", blocked_by="no capability, and the mounts allow no devices"
)
def make_memory() -> None:
    make_and_open(stat.S_IFCHR, os.makedev(1, 1))


def make_and_open(kind: int, device: int) -> None:
    """Make a device file and open it."""
    path = f"/tmp/loopwright-device-{os.getpid()}"
    os.mknod(path, kind | 0o600, device)
    try:
        open_for_reading(path)
    finally:
        os.unlink(path)


@escape("put a file system on a loop device", blocked_by=OWN_DEVICES)
def loop_device() -> str:
    names = ("/dev/loop-control", "/dev/loop0", "/dev/mapper/control", "/dev/btrfs-control")
    return try_each({one: partial(open_for_reading, one) for one in names})


@escape("talk to input, video and other raw devices", blocked_by=OWN_DEVICES)
def raw_devices() -> str:
    kept = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
    kept |= {"stdin", "stdout", "stderr", "core", "fd", "pts", "shm"}
    # Those that builds use are shown on purpose: virtual machines, user file systems, graphics.
    kept |= {"kvm", "fuse", "dri", *(name for name in os.listdir("/dev") if "nvidia" in name)}
    others = [f"/dev/{name}" for name in os.listdir("/dev") if name not in kept]
    return try_each({one: partial(open_for_reading, one) for one in others})


@escape(
    "open the terminal of the person", blocked_by="the process has a session without a terminal"
)
def own_terminal() -> None:
    open_for_writing("/dev/tty")


@escape("open another terminal", blocked_by="the sandbox has a /dev/pts of its own")
def other_terminals() -> str:
    names = [f"/dev/pts/{name}" for name in os.listdir("/dev/pts") if name.isdigit()]
    names += [f"/dev/tty{number}" for number in range(64)]
    return try_each({one: partial(open_for_writing, one) for one in names})


@escape("type into a terminal (TIOCSTI)", blocked_by="the filter of system calls")
def type_into_terminal() -> None:
    _, terminal = os.openpty()
    try:
        fcntl.ioctl(terminal, 0x5412, b"x")
    except OSError as error:
        refuse_unless_forbidden(error)


@escape("paste into a terminal (TIOCLINUX)", blocked_by="the filter of system calls")
def paste_into_terminal() -> None:
    _, terminal = os.openpty()
    try:
        fcntl.ioctl(terminal, 0x541C, b"\x03")
    except OSError as error:
        refuse_unless_forbidden(error)


def refuse_unless_forbidden(error: OSError) -> None:
    """Blocked where the permission is missing; anything else means that the call was made."""
    if isinstance(error, PermissionError):
        raise Blocked(str(error)) from error
