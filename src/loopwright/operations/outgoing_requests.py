"""Requests to public addresses: address checks, webhook POSTs, and pages for the tool `web.fetch`.

The server must not send to this machine, to its network, or to internal services of a cloud. A
name is resolved first, all its addresses are checked, also after redirects, and the connection
goes to the checked address. To try webhooks on one machine, loopback addresses can be allowed.
One time limit covers the whole request, so a slow server gets no more time than a silent one.

The tables in `address_tables` are the IPv4 and IPv6 Special-Purpose Address Registries of IANA,
with their dates, and are read as package data. Blocks of cloud providers that lead to services
inside their networks (`providers.csv`) are refused first. Otherwise the most specific block
decides. Beyond the tables, multicast is never allowed, and public IPv6 addresses exist only in
2000::/3 and for embedded IPv4 addresses.
"""

import asyncio
import contextlib
import csv
import http.client
import io
import ipaddress
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple, TypeAlias, TypeVar, cast
from urllib.parse import urldefrag, urljoin, urlsplit

from loopwright.errors import LoopwrightError
from loopwright.tools.builtin import WebPage
from loopwright.tools.results import ToolRefusal

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_LOW_BITS = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Block:
    """A row of a registry."""

    network: Network
    name: str
    rfc: str
    is_reachable: bool  # the value "n/a" counts as false


@cache
def read_blocks(version: int) -> tuple[Block, ...]:
    """The rows of the registry for IPv4 or IPv6, the most specific first."""
    return tuple(sorted(_read_table(f"ipv{version}"), key=lambda one: -one.network.prefixlen))


@cache
def read_provider_blocks() -> tuple[Block, ...]:
    """Blocks of cloud providers that lead to services inside their networks."""
    return _read_table("providers")


def _read_table(name: str) -> tuple[Block, ...]:
    text = files(__package__).joinpath("address_tables", f"{name}.csv").read_text("utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(
        Block(
            ipaddress.ip_network(row["block"]),
            row["name"],
            row["rfc"] if "rfc" in row else row["source"],
            row["globally_reachable"] == "true",
        )
        for row in rows
    )


def embedded_address(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address to which an IPv6 address leads: mapped, NAT64, 6to4 or Teredo."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & _LOW_BITS)
    if address.sixtofour is not None:
        return address.sixtofour
    return address.teredo[1] if address.teredo is not None else None


def why_not_public(text: str) -> str:
    """Why an address is not reachable from everywhere; empty when it is."""
    try:
        address: Address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return "not an address"
    if isinstance(address, ipaddress.IPv6Address):
        inner = embedded_address(address)
        why = why_not_public(str(inner)) if inner is not None else ""
        if why:
            return f"it leads to {inner}: {why}"
        if address.ipv4_mapped is not None:
            return ""
    if address.is_multicast:
        return "multicast"
    for block in (*read_provider_blocks(), *read_blocks(address.version)):
        if address in block.network:
            return "" if block.is_reachable else f"{block.network} is {block.name} ({block.rfc})"
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_UNICAST:
        return "it is not in 2000::/3, where public IPv6 addresses are"
    return ""


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
    """Whether an address is a literal address of this machine."""
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


SECONDS = 15.0  # for connecting, sending and the answer together
MOST_READ = 65_536  # of an answer, its headers included
REST_SECONDS = 1.0  # for what follows the headers, which is not read


def send(target: Target, headers: dict[str, str], body: bytes) -> int:
    """Post a body; the status. A redirect is an answer like any other, and is not followed."""
    line = _Pinned(target, _time_left(SECONDS))
    try:
        line.request("POST", target.path, body, headers)
        answer = _Answer(line.sock, line.left)
        reply = http.client.HTTPResponse(cast("socket.socket", answer), method="POST")
        reply.begin()
        # It has answered. A connection that is closed with unread bytes looks like a failure to
        # some senders, so the rest is read as far as `_Answer` accepts it, without waiting.
        answer.left = _time_left(REST_SECONDS)
        with contextlib.suppress(OSError, http.client.HTTPException):
            reply.read()
        return reply.status
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(str(error)) from error
    finally:
        line.close()


class Fetched(NamedTuple):
    """What a server answered."""

    status: int
    location: str  # where a redirect leads
    type: str
    body: bytes
    truncated: bool


def fetch(target: Target, *, seconds: float, limit: int) -> Fetched:
    """Get a page, at most `limit` bytes of it. A redirect is an answer, and is not followed."""
    line = _Pinned(target, _time_left(seconds))
    try:
        line.request("GET", target.path, headers={"User-Agent": "loopwright", "Accept": "*/*"})
        answer = _Answer(line.sock, line.left, limit + MOST_READ)
        reply = http.client.HTTPResponse(cast("socket.socket", answer), method="GET")
        reply.begin()
        body = reply.read(limit + 1)
        return Fetched(
            status=reply.status,
            location=reply.getheader("Location", ""),
            type=reply.getheader("Content-Type", ""),
            body=body[:limit],
            truncated=len(body) > limit,
        )
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(str(error)) from error
    finally:
        line.close()


def _time_left(seconds: float) -> Callable[[], float]:
    end = time.monotonic() + seconds

    def left() -> float:
        rest = end - time.monotonic()
        if rest <= 0:
            raise TimeoutError(f"no answer within {seconds:g} seconds")
        return rest

    return left


class _Pinned(http.client.HTTPConnection):
    """Connects to an address, and speaks to a name."""

    def __init__(self, target: Target, left: Callable[[], float]) -> None:
        super().__init__(target.host, target.port)
        self._target = target
        self.left = left

    def connect(self) -> None:
        """The name is not resolved again: it could mean something else by now."""
        address = self._target.address, self._target.port
        self.sock = socket.create_connection(address, self.left())
        if self._target.scheme == "https":
            context = ssl.create_default_context()
            self.sock.settimeout(self.left())  # holds for the whole handshake
            self.sock = context.wrap_socket(self.sock, server_hostname=self._target.host)

    def send(self, data: object) -> None:
        """Piece by piece, each within what is left of the time."""
        if self.sock is None:
            self.connect()
        assert isinstance(data, bytes)
        rest = memoryview(data)
        while rest:
            self.sock.settimeout(self.left())
            rest = rest[self.sock.send(rest) :]


class _Answer(io.RawIOBase):
    """What comes over a socket, up to a size and as long as there is time; all that a response
    needs of a socket.
    """

    def __init__(
        self, sock: socket.socket, left: Callable[[], float], most: int = MOST_READ
    ) -> None:
        self._sock, self.left, self._more = sock, left, most

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        room = memoryview(cast("bytearray", buffer))[: self._more]
        if not room:
            return 0
        self._sock.settimeout(self.left())
        got = self._sock.recv_into(room)
        self._more -= got
        return got


MOST_BYTES = 1_000_000
MOST_REDIRECTS = 5


class PublicWeb:
    """Fetches pages in a thread; the name is resolved once, and the checked address is used."""

    def __init__(
        self, check: Callable[[str], Target] = check_url, get: Callable[..., Fetched] = fetch
    ) -> None:
        self._check, self._get = check, get

    async def get(self, url: str, seconds: float) -> WebPage:
        url = urldefrag(url).url
        for _ in range(MOST_REDIRECTS + 1):
            found = await asyncio.to_thread(self._once, url, seconds)
            if not (300 <= found.status < 400 and found.location):
                return WebPage(url, found.status, found.type, found.body, found.truncated)
            url = urldefrag(urljoin(url, found.location)).url
        raise ToolRefusal(
            "too-many-redirects", f"more than {MOST_REDIRECTS} redirects, last to {url}"
        )

    def _once(self, url: str, seconds: float) -> Fetched:
        try:
            return self._get(self._check(url), seconds=seconds, limit=MOST_BYTES)
        except LoopwrightError as error:
            raise ToolRefusal("not-allowed", f"{url[:200]}: {error.message}") from None
        except OSError as error:
            raise ToolRefusal("unreachable", f"{url[:200]} cannot be reached: {error}") from None


_Found = TypeVar("_Found")


async def run_in_daemon_thread(work: Callable[[], _Found]) -> _Found:
    """Run something slow in a thread that does not delay the shutdown of the server."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Found] = loop.create_future()

    def settle(found: _Found | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(found)  # type: ignore[arg-type]  # there was no error

    def run() -> None:
        found, trouble = None, None
        try:
            found = work()
        except BaseException as error:
            trouble = error
        with contextlib.suppress(RuntimeError):  # the server has ended in the meantime
            loop.call_soon_threadsafe(settle, found, trouble)

    threading.Thread(target=run, name="loopwright-aside", daemon=True).start()
    return await done
