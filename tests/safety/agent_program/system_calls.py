"""Escapes by system calls that no agent needs.

Each is made with arguments that mean nothing. The kernel looks at the permission first: EPERM says
that the call is forbidden, every other error that it was looked at.
"""

import ctypes
import errno
import mmap
import os
import socket
import struct
from functools import partial

from tests.safety.agent_program.attempts import LIBC, Blocked, add_escape, check_call, escape

FILTER = "the filter of system calls"
BAD = 1  # an address that is never mapped
NUMBERS: dict[str, tuple[int, int]] = {  # x86-64, then arm64
    "syslog": (103, 116),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "iopl": (172, 0),
    "ioperm": (173, 0),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "clock_settime": (227, 112),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "open_by_handle_at": (304, 265),
    "clock_adjtime": (305, 266),
    "finit_module": (313, 273),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
}
X86 = os.uname().machine == "x86_64"


def call(name: str, *arguments: int) -> int:
    """Make a system call; OSError when it failed."""
    number = NUMBERS[name][0 if X86 else 1]
    if number == 0:
        raise Blocked("this machine has no such call")
    words = [ctypes.c_long(one) for one in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    return check_call(LIBC.syscall(ctypes.c_long(number), *words))


def probe(name: str, *arguments: int) -> None:
    """Find out whether a call is forbidden."""
    try:
        call(name, *arguments)
    except PermissionError as error:
        raise Blocked(str(error)) from error
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise Blocked("this kernel has no such call") from error


def probe_any(*calls: tuple[str, int, int, int]) -> None:
    """Succeed when one of the calls is not forbidden."""
    for name, *arguments in calls:
        try:
            probe(name, *arguments)
        except Blocked:
            continue
        return
    raise Blocked("all of them are forbidden")


for _title, _calls in {
    "load a program into the kernel (bpf)": (("bpf", 999, BAD, 0),),
    "use the keys of the kernel (keyctl)": (
        *(("keyctl", 999, 0, 0), ("add_key", BAD, BAD, 0), ("request_key", BAD, BAD, 0)),
    ),
    "watch the whole machine (perf_event_open)": (("perf_event_open", BAD, 0, 0),),
    "stop the kernel in the middle of a call (userfaultfd)": (("userfaultfd", 0x10, 0, 0),),
    "make calls that a filter does not see (io_uring)": (("io_uring_setup", 1, BAD, 0),),
    "load or remove a module": (
        ("init_module", BAD, 1, BAD),
        ("finit_module", 999, BAD, 0),
        ("delete_module", BAD, 0, 0),
    ),
    "start another kernel": (("kexec_load", 0, 999, BAD), ("kexec_file_load", 999, 999, 0)),
    "change the swap space": (("swapon", BAD, 0, 0), ("swapoff", BAD, 0, 0)),
    "restart the machine": (("reboot", 0, 0, 0),),
    "set the clock": (("clock_settime", 0, BAD, 0), ("settimeofday", BAD, 0, 0)),
    "turn the clock slowly": (("clock_adjtime", 0, BAD, 0),),
    "use the ports of the machine": (("iopl", 9, 0, 0), ("ioperm", 0, 0, 1)),
    "keep accounts of all processes": (("acct", BAD, 0, 0),),
    "change disk quotas": (("quotactl", 0x800002 << 8, BAD, 0),),
    "read the log of the kernel by a call": (("syslog", 10, 0, 0),),
}.items():
    add_escape(_calls[0][0], _title, FILTER, partial(probe_any, *_calls))


@escape("open a file by its number, past all mounts", blocked_by=FILTER)
def open_by_handle() -> None:
    """The root of most file systems has the number 2, so every mount of a disk can be walked."""
    handle = ctypes.create_string_buffer(struct.pack("=IiII", 8, 1, 2, 0))
    root = os.open("/", os.O_RDONLY)
    try:
        call("open_by_handle_at", root, ctypes.addressof(handle), 0)
    except OSError as error:
        if error.errno == errno.ESTALE:
            return  # it was looked for
        raise


@escape("make a forbidden call by its 32-bit number", blocked_by=FILTER)
def other_architecture() -> None:
    if not X86:
        raise Blocked("this machine has no second way to number calls")
    code = bytes((0xB8, *(357).to_bytes(4, "little"), 0xCD, 0x80, 0xC3))  # bpf; int 0x80; ret
    with mmap.mmap(
        -1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    ) as page:
        page.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        result = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    if result in (-errno.EPERM, -errno.ENOSYS):
        raise Blocked(os.strerror(-result))


@escape("make a forbidden call by its x32 number", blocked_by=FILTER)
def x32_numbers() -> None:
    if not X86:
        raise Blocked("this machine has no second way to number calls")
    try:
        check_call(LIBC.syscall(ctypes.c_long(0x40000000 + 321), 999, BAD, 0))
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS):
            raise Blocked(str(error)) from error


@escape("change the root folder", blocked_by="no capability")
def change_root() -> None:
    os.chroot("/proc/self/fd")


@escape("swap the root mount", blocked_by="no capability")
def pivot() -> None:
    probe("pivot_root", BAD, BAD)


@escape("rename the machine", blocked_by="no capability")
def host_name() -> None:
    name = os.uname().nodename.encode()
    check_call(LIBC.sethostname(name, len(name)))


@escape("read the packets of the network", blocked_by="no capability")
def packet_socket() -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()


@escape("send raw packets", blocked_by="no capability")
def raw_socket() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP).close()


@escape("change the network of the machine", blocked_by="no capability")
def network_settings() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.bind((0, 0))
        # Change the device with a number that does not exist.
        body = struct.pack("=BxHiII", 0, 0, 0x7FFFFFF0, 0, 0)
        link.send(struct.pack("=IHHII", 16 + len(body), 19, 5, 1, 0) + body)
        error = -struct.unpack_from("=i", link.recv(4096), 16)[0]
    if error == errno.EPERM:
        raise Blocked(os.strerror(error))


@escape("reach the host of a virtual machine (vsock)", blocked_by=FILTER)
def vsock() -> None:
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()


@escape("use rarely tested network families", blocked_by=FILTER)
def rare_families() -> None:
    # Keys, RDS, TIPC, Bluetooth, crypto, NFC, KCM, SMC, XDP.
    if all(is_forbidden(family) for family in (15, 21, 30, 31, 38, 39, 41, 43, 44)):
        raise Blocked("all of them are forbidden or missing")


@escape("have the kernel read a connection (Multipath TCP, TLS in the kernel)", blocked_by=FILTER)
def kernel_readers() -> None:
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).close()
    except OSError as error:
        if error.errno != errno.EPROTONOSUPPORT:
            raise
    else:
        return
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, 31, b"tls")
        except OSError as error:
            if error.errno == errno.ENOPROTOOPT:
                raise Blocked(str(error)) from error
            raise


def is_forbidden(family: int) -> bool:
    """Whether no socket of a family can be made; what this kernel lacks counts as forbidden."""
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
    except PermissionError:
        return True
    except OSError as error:
        return error.errno == errno.EAFNOSUPPORT
    return False


@escape("get more rights from a setuid program", blocked_by="no_new_privs is set")
def setuid_programs() -> None:
    if status_field("NoNewPrivs") == "1":
        raise Blocked("no_new_privs is set")


@escape("use a capability of root", blocked_by="all capabilities are dropped")
def capabilities() -> None:
    held = {name: int(status_field(name), 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")}
    if not any(held.values()):
        raise Blocked("there are none")


@escape("take rights of root with setuid", blocked_by="all capabilities are dropped")
def set_user() -> None:
    if os.geteuid() == 0:
        os.setgroups([0])  # needs a capability, also for root
    else:
        os.setuid(0)


def status_field(name: str) -> str:
    """One value of the status of this process."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(line.split()[1] for line in file if line.startswith(f"{name}:"))
