"""Which process is at the other end of a connection on this machine.

For a Unix socket the kernel says which process connected. For TCP it does not: the socket of the
peer is found in the tables of the kernel, and then among the open files of processes.
"""

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Literal, TypeAlias

from loopwright.programs.lineage import InsideRun, find_inside_run, list_descendants
from loopwright.programs.supervise import HAS_TABLE

_SO_PEERPIDFD = 77  # Linux 6.5; Python has no name for it
_ACCEPTS = 0x10000  # the flag of listening sockets in /proc/net/unix
_PEER = struct.Struct("3i")
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
Address: TypeAlias = tuple[str, int]
UNKNOWN_PEER = InsideRun()
"""A peer that cannot be told apart from an agent."""
_Found: TypeAlias = Literal["inside", "outside", "nowhere"]


# -- Unix sockets ----------------------------------------------------------------------------------


def find_unix_peer(connection: socket.socket) -> InsideRun | None:
    """The run that the process at the other end of a Unix socket belongs to, or None. A process
    that has ended since it connected cannot be looked up, and is taken for one of a run.
    """
    if not HAS_TABLE or not hasattr(socket, "SO_PEERCRED"):
        return None
    handle = _open_peer(connection)
    try:
        pid = _read_pid(handle) if handle is not None else _credentials(connection)
        if pid <= 0 or not os.path.exists(f"/proc/{pid}"):
            return UNKNOWN_PEER
        found = find_inside_run(pid)
        if handle is not None and _read_pid(handle) != pid:  # its number may be another's by now
            return UNKNOWN_PEER
        return found
    finally:
        if handle is not None:
            os.close(handle)


def list_listening_sockets() -> Iterator[str]:
    """The paths of Unix sockets on which some process of this network namespace accepts
    connections.
    """
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as table:
            lines = table.read().split("\n")
    except OSError:
        return
    for line in lines[1:]:
        words = line.split(maxsplit=7)
        if len(words) == 8 and words[7].startswith("/") and int(words[3], 16) & _ACCEPTS:
            yield words[7]


def _open_peer(connection: socket.socket) -> int | None:
    """A handle of the process, which is not mistaken for another one; None on older kernels."""
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return None


def _read_pid(handle: int) -> int:
    """The number of the process behind a handle; -1 when it has ended."""
    with suppress(OSError, ValueError), open(f"/proc/self/fdinfo/{handle}", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("Pid:"))
    return -1


def _credentials(connection: socket.socket) -> int:
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(data)[0])


# -- TCP -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    """A socket as the kernel lists it; without an inode no process has it open any more."""

    uid: int
    inode: int


def find_tcp_peer(peer: Address, own: Address) -> InsideRun | None:
    """The run that the process at the other end of a TCP connection belongs to, or None.

    A peer on another machine is none of ours. While programs of runs are under way, a peer of this
    machine must be found outside of them.
    """
    if not HAS_TABLE:
        return None
    address = _unmapped(peer[0])
    row = _find_row((address, peer[1]), (_unmapped(own[0]), own[1]))
    if row is None:
        return UNKNOWN_PEER if address.is_loopback else None
    if row.inode == 0:
        return UNKNOWN_PEER
    inside = list_descendants()
    if not inside:
        return None
    owner = _find_owner(row.inode, inside)
    if owner is not None:
        return find_inside_run(owner) or UNKNOWN_PEER
    return None if _is_outside(row, inside) else UNKNOWN_PEER


def _is_outside(row: _Row, inside: set[int]) -> bool:
    """Whether a process that is not of a run has the socket open, or may have: the files of some
    processes cannot be listed.
    """
    others = [pid for pid in _list_processes() if pid not in inside]
    if _find_owner(row.inode, others) is not None:
        return True
    return any(_uid_of(pid) == row.uid and not _can_list(pid) for pid in others)


def _find_row(peer: tuple[IPv4Address | IPv6Address, int], own: object) -> _Row | None:
    for table in _TABLES:
        with suppress(OSError), open(table, encoding="ascii") as lines:
            next(lines, None)
            for line in lines:
                words = line.split()
                if _parse_address(words[1]) == peer and _parse_address(words[2]) == own:
                    return _Row(uid=int(words[7]), inode=int(words[9]))
    return None


def _parse_address(text: str) -> tuple[IPv4Address | IPv6Address, int]:
    """An address as the kernel writes it: words of four bytes in the order of this machine."""
    host, _, port = text.partition(":")
    words = [int(host[at : at + 8], 16) for at in range(0, len(host), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return _unmapped(str(ip_address(packed))), int(port, 16)


def _unmapped(host: str) -> IPv4Address | IPv6Address:
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _find_owner(inode: int, pids: Iterable[int]) -> int | None:
    """The first of these processes that has the socket open."""
    wanted = f"socket:[{inode}]"
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{name}") == wanted:
                        return pid
    return None


def _list_processes() -> Iterator[int]:
    with suppress(OSError):
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def _can_list(pid: int) -> bool:
    try:
        os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        return False
    except OSError:
        return True  # it has ended
    return True


def _uid_of(pid: int) -> int:
    with suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as f:
        return next((int(line.split()[1]) for line in f if line.startswith("Uid:")), -1)
    return -1
