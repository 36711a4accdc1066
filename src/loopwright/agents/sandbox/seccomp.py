"""The filter of system calls for programs in a sandbox, as bubblewrap takes it.

It refuses what no agent needs and what has opened sandboxes before: changes of the running system
(modules, clock, swap, reboot), the keys of the kernel, tracing of the whole machine, files opened
by number, typing into a terminal, and sockets to the host of a virtual machine. Connections that
the kernel reads on behalf of a program (Multipath TCP, SMC, TLS in the kernel) are not available:
a server could not tell whether a process reads them (`processes/tcp_peer`). What nested
sandboxes need (namespaces, mounts) is allowed: the mounts that hide something cannot be removed
from inside. Only namespaces of control groups are refused: with one, control groups could be
mounted again, and the driver be frozen or ended through them.
"""

import errno
import platform
import struct
from functools import cache
from typing import NamedTuple


class _Machine(NamedTuple):
    """The numbers of one processor architecture."""

    audit: int  # how the kernel names the architecture
    ioctl: int
    socket: int
    clone: int
    unshare: int
    setsockopt: int
    most: int | None  # above it starts another numbering of calls, which is refused
    refused: tuple[int, ...]


_X86_64 = {
    "syslog": 103,
    "uselib": 134,
    "_sysctl": 156,
    "adjtimex": 159,
    "acct": 163,
    "settimeofday": 164,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "iopl": 172,
    "ioperm": 173,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "lookup_dcookie": 212,
    "clock_settime": 227,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "perf_event_open": 298,
    "open_by_handle_at": 304,
    "clock_adjtime": 305,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "quotactl_fd": 443,
}
_AARCH64 = {
    "lookup_dcookie": 18,
    "quotactl": 60,
    "acct": 89,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "clock_settime": 112,
    "syslog": 116,
    "reboot": 142,
    "settimeofday": 170,
    "adjtimex": 171,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "swapon": 224,
    "swapoff": 225,
    "perf_event_open": 241,
    "open_by_handle_at": 265,
    "clock_adjtime": 266,
    "finit_module": 273,
    "bpf": 280,
    "userfaultfd": 282,
    "kexec_file_load": 294,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "quotactl_fd": 443,
}
_MACHINES = {
    "x86_64": _Machine(0xC000003E, 16, 41, 56, 272, 54, 0x40000000, tuple(_X86_64.values())),
    "aarch64": _Machine(0xC00000B7, 29, 198, 220, 97, 208, None, tuple(_AARCH64.values())),
}
_CLONE3 = 435  # its flags are in memory, where a filter cannot see them; libraries do without it
_TYPES_INTO_TERMINALS = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
# Kernel keys, RDS, TIPC, Bluetooth, kernel crypto, NFC, the host of a virtual machine, KCM, SMC,
# XDP.
_FAMILIES = (15, 21, 30, 31, 38, 39, 40, 41, 43, 44)
_PROTOCOLS = (256, 262)  # SMC, Multipath TCP
_SOL_TCP, _TCP_ULP = 6, 31
_NEW_CGROUP = 0x02000000

# Of classic BPF: load a word, compare, return. Offsets are those of `struct seccomp_data`.
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 24, 32
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM
_MISSING = 0x00050000 | errno.ENOSYS
_UNSUPPORTED = 0x00050000 | errno.EPROTONOSUPPORT  # programs use plain TCP then
_NO_OPTION = 0x00050000 | errno.ENOPROTOOPT
_RETURNS = {
    "allow": _ALLOW,
    "refuse": _REFUSE,
    "missing": _MISSING,
    "unsupported": _UNSUPPORTED,
    "no-option": _NO_OPTION,
}


@cache
def filter_program(machine: str | None = None) -> bytes:
    """The filter for a processor architecture; empty if there is none for it."""
    numbers = _MACHINES.get(machine or platform.machine())
    if numbers is None:
        return b""
    tests = [_Test(_LOAD, _ARCHITECTURE), _Test(_IF_EQUAL, numbers.audit, no="refuse")]
    tests.append(_Test(_LOAD, _NUMBER))
    if numbers.most is not None:
        tests.append(_Test(_IF_AT_LEAST, numbers.most, yes="refuse"))
    tests += [_Test(_IF_EQUAL, one, yes="refuse") for one in numbers.refused]
    tests.append(_Test(_IF_EQUAL, _CLONE3, yes="missing"))
    typing = [_Test(_IF_EQUAL, one, yes="refuse") for one in _TYPES_INTO_TERMINALS]
    families = [_Test(_IF_EQUAL, one, yes="refuse") for one in _FAMILIES]
    families.append(_Test(_LOAD, _THIRD_ARGUMENT))
    families += [_Test(_IF_EQUAL, one, yes="unsupported") for one in _PROTOCOLS]
    layers = [_Test(_IF_EQUAL, _SOL_TCP, no="allow"), _Test(_LOAD, _THIRD_ARGUMENT)]
    layers.append(_Test(_IF_EQUAL, _TCP_ULP, yes="no-option"))
    groups = [_Test(_IF_ANY_BIT, _NEW_CGROUP, yes="refuse")]
    tests += _argument_tests(numbers.ioctl, _SECOND_ARGUMENT, typing)
    tests += _argument_tests(numbers.socket, _FIRST_ARGUMENT, families)
    tests += _argument_tests(numbers.clone, _FIRST_ARGUMENT, groups)
    tests += _argument_tests(numbers.unshare, _FIRST_ARGUMENT, groups)
    tests += _argument_tests(numbers.setsockopt, _SECOND_ARGUMENT, layers)
    places = {name: len(tests) + index for index, name in enumerate(_RETURNS)}
    lines = [test.line(index, places) for index, test in enumerate(tests)]
    return b"".join([*lines, *(_line(_RETURN, value) for value in _RETURNS.values())])


class _Test(NamedTuple):
    """One instruction, and where to continue if its comparison is true or false: at one of the
    returns, or after this many instructions.
    """

    operation: int
    value: int
    yes: str | int = 0
    no: str | int = 0

    def line(self, index: int, places: dict[str, int]) -> bytes:
        yes, no = (
            one if isinstance(one, int) else places[one] - index - 1 for one in (self.yes, self.no)
        )
        return _line(self.operation, self.value, yes, no)


def _argument_tests(number: int, argument: int, tests: list[_Test]) -> list[_Test]:
    """Tests of an argument of one call. The call is allowed if all pass."""
    last = tests[-1]._replace(no="allow")
    own = [_Test(_LOAD, argument), *tests[:-1], last]
    return [_Test(_IF_EQUAL, number, no=len(own)), *own]


def _line(operation: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, yes, no, value)
