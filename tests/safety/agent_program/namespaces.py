"""Escapes through mounts and namespaces, directly and from a new user namespace."""

import ctypes
import os
from functools import partial

from tests.safety.agent_program.attempts import (
    LIBC,
    MNT_DETACH,
    MS_BIND,
    MS_MOVE,
    MS_REC,
    MS_REMOUNT,
    NEW_CGROUP,
    NEW_MOUNTS,
    NEW_NET,
    NEW_PIDS,
    TARGET,
    Blocked,
    check_call,
    enter_namespaces,
    escape,
    find_database,
    open_for_writing,
    processes,
    try_each,
)
from tests.safety.agent_program.kernel_files import writable_below

LOCKED = "mounts of the sandbox are locked in every namespace below it"
NO_CAPABILITY = "no capability"
OPEN_TREE = 428
AT_FDCWD, OPEN_TREE_CLONE, AT_RECURSIVE = -100, 1, 0x8000


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Mount something; OSError when it failed."""
    words = [None if one is None else one.encode() for one in (source, target, kind)]
    check_call(LIBC.mount(*words, ctypes.c_ulong(flags), data.encode() or None))


def make_folder(name: str) -> str:
    """A folder of our own to mount things on."""
    path = f"/tmp/loopwright-{name}-{os.getpid()}"
    os.makedirs(path, exist_ok=True)
    return path


def unmount_cover() -> None:
    """Take away what hides the data directory, as often as something is mounted there."""
    for _ in range(4):
        if LIBC.umount2(TARGET.data.encode(), MNT_DETACH) != 0:
            break
    find_database(TARGET.data)


@escape("unmount what hides the data directory", blocked_by=NO_CAPABILITY)
def unmount() -> None:
    check_call(LIBC.umount2(TARGET.data.encode(), MNT_DETACH))


@escape("make the kernel's settings writable again", blocked_by=NO_CAPABILITY)
def remount() -> None:
    mount(None, "/proc/sys", None, MS_REMOUNT | MS_BIND)


@escape("mount the disk itself", blocked_by=NO_CAPABILITY)
def mount_disk() -> str:
    disks = [f"/dev/{name}" for name in os.listdir("/sys/class/block")]
    where = make_folder("disk")
    LIBC.unshare(NEW_MOUNTS)  # so that it would be gone with this process
    return try_each({one: partial(mount, one, where, "ext4", 1) for one in disks})


@escape("unmount in a new namespace", blocked_by=LOCKED)
def nested_unmount() -> None:
    enter_namespaces()
    unmount_cover()


@escape("move the cover away in a new namespace", blocked_by=LOCKED)
def nested_move() -> None:
    enter_namespaces()
    mount(TARGET.data, make_folder("move"), None, MS_MOVE)
    find_database(TARGET.data)


@escape("bind the folder below the cover in a new namespace", blocked_by=LOCKED)
def nested_bind() -> str:
    enter_namespaces()
    parent, name = os.path.split(os.path.realpath(TARGET.data))
    where = make_folder("bind")
    return try_each(
        {
            "only that mount": partial(bind_and_find, parent, where, MS_BIND, name),
            "with those below": partial(bind_and_find, parent, where, MS_BIND | MS_REC, name),
            "the root": partial(bind_and_find, "/", where, MS_BIND, TARGET.data.lstrip("/")),
        }
    )


def bind_and_find(source: str, where: str, flags: int, name: str) -> None:
    """Bind a folder elsewhere and look for the database there."""
    mount(source, where, None, flags)
    LIBC.umount2(os.path.join(where, name).encode(), MNT_DETACH)
    find_database(os.path.join(where, name))


@escape("copy a mount with open_tree in a new namespace", blocked_by=LOCKED)
def nested_open_tree() -> None:
    enter_namespaces()
    parent, name = os.path.split(os.path.realpath(TARGET.data))
    tree = check_call(LIBC.syscall(OPEN_TREE, AT_FDCWD, parent.encode(), OPEN_TREE_CLONE))
    found = os.open(name, os.O_RDONLY, dir_fd=tree)
    if TARGET.database not in os.listdir(found):
        raise Blocked("the folder is empty")


@escape("look under the cover with an overlay in a new namespace", blocked_by=LOCKED)
def nested_overlay() -> None:
    enter_namespaces()
    parent, name = os.path.split(os.path.realpath(TARGET.data))
    where, empty = make_folder("overlay"), make_folder("empty")
    mount("overlay", where, "overlay", 1, f"lowerdir={empty}:{parent}")
    find_database(os.path.join(where, name))


@escape("make the kernel's settings writable in a new namespace", blocked_by=LOCKED)
def nested_remount() -> str:
    enter_namespaces()
    for path in ("/proc/sys", "/sys"):
        try:
            mount(None, path, None, MS_REMOUNT | MS_BIND)
        except OSError:
            LIBC.umount2(path.encode(), MNT_DETACH)
    return writable_below("/proc/sys/kernel", "/sys/kernel")


@escape("mount a new table of processes", blocked_by=LOCKED)
def nested_proc() -> None:
    enter_namespaces(NEW_PIDS)
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        if status:
            raise Blocked("it cannot be mounted, or is read-only")
        return
    try:
        mount("proc", "/proc", "proc", 0)
        open_for_writing("/proc/sys/kernel/core_pattern")
    except OSError:
        os._exit(1)
    os._exit(0)


@escape("mount a new /sys", blocked_by=LOCKED)
def nested_sys() -> str:
    enter_namespaces(NEW_NET)
    where = make_folder("sys")
    mount("sysfs", where, "sysfs", 0)
    return writable_below(f"{where}/kernel")


@escape("mount the control groups anew", blocked_by=f"{LOCKED}; the files belong to root outside")
def nested_cgroup() -> str:
    enter_namespaces(NEW_CGROUP)
    where = make_folder("cgroup")
    kinds = {
        "cgroup2": ("cgroup2", ""),
        **{one: ("cgroup", one) for one in ("devices", "memory", "pids", "rdma", "misc")},
    }

    def mount_and_write(kind: str, data: str) -> None:
        mount("none", where, kind, 0, data)
        for name in ("release_agent", "cgroup.procs"):
            path = os.path.join(where, name)
            if os.path.exists(path):
                open_for_writing(path)
                return
        raise Blocked("nothing there can be written")

    return try_each({name: partial(mount_and_write, *one) for name, one in kinds.items()})


@escape("mount the debug files of the kernel", blocked_by="no capability outside the namespace")
def nested_debug() -> str:
    enter_namespaces()
    where = make_folder("debug")
    kinds = ("debugfs", "tracefs", "securityfs", "configfs", "bpf", "pstore", "efivarfs")
    kinds_of_disks = ("ext4", "xfs", "devtmpfs")
    return try_each(
        {one: partial(mount, one, where, one, 0) for one in (*kinds[:4], *kinds_of_disks)}
    )


@escape(
    "join the namespaces of another process", blocked_by="only processes of the sandbox are seen"
)
def join_namespaces() -> None:
    joined = 0
    for nested in (False, True):
        if nested:
            enter_namespaces()
        for pid in processes():
            try:
                space = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
                check_call(LIBC.setns(space, 0))
            except OSError:
                continue
            joined += 1
            find_database(TARGET.data)
            return
    raise Blocked(f"{joined} were joined")


@escape("be root of the machine in a new namespace", blocked_by="it only counts inside")
def nested_root() -> str:
    enter_namespaces()
    return try_each(
        {
            "module": partial(open_for_writing, "/proc/sys/kernel/modprobe"),
            "clock": partial(
                os.sched_setscheduler, TARGET.driver, os.SCHED_FIFO, os.sched_param(1)
            ),
            "signal": partial(os.kill, TARGET.driver, 0),
            "device": partial(os.mknod, f"/tmp/loopwright-node-{os.getpid()}", 0o20600, 259),
        }
    )
