"""Escapes through other processes and the memory that they share."""

import ctypes
import errno
import os
import resource
import signal
import struct

from tests.safety.agent_program.attempts import (
    LIBC,
    TARGET,
    Blocked,
    check_call,
    escape,
    open_for_reading,
    processes,
)
from tests.safety.agent_program.system_calls import call

OWN_PROCESSES = "the sandbox has process numbers of its own"
PTRACE_SEIZE = 0x4206


@escape("signal the driver", blocked_by=OWN_PROCESSES, works_at_off=True)
def signal_driver() -> None:
    os.kill(TARGET.driver, 0)


@escape(
    "signal the supervisor and everything above it", blocked_by=OWN_PROCESSES, works_at_off=True
)
def signal_parents() -> None:
    pid, seen = os.getpid(), 0
    while pid > 1:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
        seen += 1
        if pid == TARGET.driver:
            os.kill(pid, 0)
            return
    raise Blocked(f"{seen} processes above, none of them is the driver")


@escape("signal all processes at once", blocked_by=OWN_PROCESSES)
def signal_everything() -> None:
    # A signal that is ignored by default: it reaches what it may, and changes nothing.
    signal.signal(signal.SIGURG, signal.SIG_IGN)
    os.kill(-1, 0)
    if TARGET.driver not in processes():
        raise Blocked("only processes of the sandbox are reached")


@escape("see the driver in the table of processes", blocked_by=OWN_PROCESSES, works_at_off=True)
def see_driver() -> None:
    os.stat(f"/proc/{TARGET.driver}/status")


@escape("read the memory of the driver", blocked_by=OWN_PROCESSES)
def read_memory() -> None:
    open_for_reading(f"/proc/{TARGET.driver}/mem")


@escape("copy memory out of the driver", blocked_by=OWN_PROCESSES, works_at_off=True)
def copy_memory() -> None:
    """The address is that of nothing, so that it is only asked whether the process may be read."""
    buffer = ctypes.create_string_buffer(8)
    here = struct.pack("@PN", ctypes.addressof(buffer), 8)
    there = struct.pack("@PN", 8, 8)
    ours, theirs = ctypes.create_string_buffer(here), ctypes.create_string_buffer(there)
    try:
        call(
            "process_vm_readv",
            *(TARGET.driver, ctypes.addressof(ours), 1, ctypes.addressof(theirs), 1, 0),
        )
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise


@escape("trace the driver", blocked_by=OWN_PROCESSES)
def trace() -> None:
    check_call(LIBC.ptrace(PTRACE_SEIZE, TARGET.driver, None, None))


@escape("trace any process outside the sandbox", blocked_by=OWN_PROCESSES)
def trace_any() -> None:
    parents = {os.getpid(), os.getppid()}
    for pid in processes():
        if pid not in parents and pid != 1 and not is_ours(pid):
            check_call(LIBC.ptrace(PTRACE_SEIZE, pid, None, None))
            return
    raise Blocked("no other process is seen")


def is_ours(pid: int) -> bool:
    """Whether a process belongs to the sandbox, as far as its first process goes."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[1]) in (0, 1, os.getppid())


@escape("change the limits of the driver", blocked_by=OWN_PROCESSES, works_at_off=True)
def change_limits() -> None:
    resource.prlimit(TARGET.driver, resource.RLIMIT_NOFILE)


@escape("hold the driver by a descriptor", blocked_by=OWN_PROCESSES, works_at_off=True)
def process_descriptor() -> None:
    os.close(os.pidfd_open(TARGET.driver))


@escape("change the priority of the driver", blocked_by=OWN_PROCESSES, works_at_off=True)
def change_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, TARGET.driver, os.getpriority(os.PRIO_PROCESS, TARGET.driver))


@escape(
    "attach shared memory of the driver (System V)",
    blocked_by="the sandbox has its own",
    works_at_off=True,
)
def shared_segment() -> None:
    LIBC.shmat.restype = ctypes.c_void_p
    address = LIBC.shmat(TARGET.segment, None, 0o10000)
    if address in (None, ctypes.c_void_p(-1).value):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@escape(
    "open shared memory of the driver (/dev/shm)",
    blocked_by="the sandbox has its own",
    works_at_off=True,
)
def shared_file() -> None:
    open_for_reading(TARGET.shared_memory)
