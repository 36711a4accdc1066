"""Addresses that the server may send to: none of this machine, of its network, or of a cloud's
inside. A name is resolved first, every address that it has is checked (`address_registry`), and the
connection is made to the checked address. To try webhooks on one machine, its own addresses can be
allowed, and no others.
"""

import ipaddress
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from loopwright.app.address_registry import Address, why_not_public
from loopwright.errors import LoopwrightError

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]

PORTS = {"https": 443, "http": 80}
ALLOWED_PORTS = frozenset({80, 443, 8080, 8443})
MAX_URL = 2_000
RESOLVE_SECONDS = 5.0
PRIVATE = "private-address"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to send: the name for the request, the address for the connection."""

    scheme: str
    host: str
    port: int
    path: str
    address: str


def resolve(host: str, port: int) -> Sequence[str]:
    """Every address of a name; TimeoutError when no name server answers in time."""
    done: queue.SimpleQueue[Sequence[str] | OSError | UnicodeError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            done.put([str(one[4][0]) for one in found])
        except (OSError, UnicodeError) as error:
            done.put(error)

    # The system has no way to end a lookup; its thread ends by itself.
    threading.Thread(target=look_up, name="loopwright-resolve", daemon=True).start()
    try:
        answer = done.get(timeout=RESOLVE_SECONDS)
    except queue.Empty:
        raise TimeoutError(f"no name server answers within {RESOLVE_SECONDS:g} s") from None
    if isinstance(answer, OSError | UnicodeError):
        raise answer
    return answer


def check_url(
    url: str, resolved: Resolve = resolve, *, private: bool = False, loopback: bool = False
) -> Target:
    """Where a URL leads, if it may; LoopwrightError `private-address` or `bad-url` else."""
    if len(url) > MAX_URL or any(ord(sign) <= 32 or sign == "\\" for sign in url):
        raise _bad("it is too long, or has signs that no address has")
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise _bad("it cannot be read") from error
    if parts.scheme not in PORTS:
        raise _bad("it must begin with https:// or http://")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise _bad("it may have neither a user nor a fragment")
    if port not in ALLOWED_PORTS and not private:
        known = ", ".join(str(one) for one in sorted(ALLOWED_PORTS))
        raise _bad(f"port {port} is not for this, {known} are")
    host = parts.hostname or ""
    if not host:
        raise _bad("it names no host")
    path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    near = _anywhere if private else is_loopback if loopback else _nowhere
    address = _public(host, port, resolved, near)
    return Target(scheme=parts.scheme, host=host, port=port, path=path, address=address)


def _anywhere(_text: str) -> bool:
    return True


def _nowhere(_text: str) -> bool:
    return False


def _public(host: str, port: int, resolved: Resolve, near: Callable[[str], bool]) -> str:
    """An address of a host; refused when any of its addresses is not public, unless the settings
    say that it may be near.
    """
    try:
        found = list(resolved(host, port))
    except (OSError, UnicodeError) as error:
        raise _bad(f"{host} has no address") from error
    if not found:
        raise _bad(f"{host} has no address")
    for one in found:
        if not is_public(one) and not near(one):
            raise LoopwrightError(
                f"{host} is not an address out in the world: {_shown(host, one)}",
                code=PRIVATE,
                hint="webhooks go to public addresses only"
                + ("; the setting webhooks_to_loopback lets in this one" * is_loopback(one)),
            )
    return found[0]


def is_loopback(text: str) -> bool:
    """Whether an address is this machine itself, said plainly."""
    try:
        address: Address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def is_public(text: str) -> bool:
    """Whether an address is reachable from everywhere."""
    return not why_not_public(text)


def _shown(host: str, address: str) -> str:
    """Why an address is refused, with the address unless the host is written so."""
    why = why_not_public(address)
    return why if host == address else f"{address}, {why}"


def _bad(why: str) -> LoopwrightError:
    return LoopwrightError(
        f"the address cannot be used: {why}", code="bad-url", hint="write https://HOST/PATH"
    )
