"""Rate limits for requests and sign-in attempts, and the client address that they use.

Only a trusted proxy may name another client address; anybody else could forge the header.

Failed attempts of others must not lock out a person with the right password. So a browser that
signed in before proves it with a cookie and has its own limit, an address that signed in before
has one too, and the first attempts of an address count neither for the name nor in total.
Attackers with very many addresses are limited by the number of concurrent password hashes.
"""

import hashlib
import hmac
import ipaddress
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Scope

from loopwright.operations.accounts.access import Rates
from loopwright.ports import Clock, RecordStore, StoredRecord

FORWARDED = "x-forwarded-for"
MAX_HOPS = 20
IPV6_PREFIX = 64  # one customer has a whole network of this size


def client_address(scope: Scope, proxies: Sequence[str]) -> str:
    """The nearest address that does not belong to a trusted proxy; empty if there is none."""
    client = scope.get("client")
    address = str(client[0]) if client else ""
    if not proxies:
        return address
    named = ",".join(Headers(scope=scope).getlist(FORWARDED)).split(",")
    for one in reversed(named[-MAX_HOPS:]):
        if not is_among(address, proxies) or not _is_address(one.strip()):
            break
        address = one.strip()
    return address


def is_among(address: str, networks: Sequence[str]) -> bool:
    """Whether an address lies in one of these networks."""
    if not _is_address(address):
        return False
    found = ipaddress.ip_address(address)
    return any(found in ipaddress.ip_network(one, strict=False) for one in networks)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def address_group(address: str) -> str:
    """What counts as one address: for IPv6 the network of a customer."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, IPV6_PREFIX), strict=False))


WINDOW_MS = 60_000
FOR_ADDRESS = 4  # times the limit for a name from an address
FOR_NAME = 12
IN_TOTAL = 40
FREE_ATTEMPTS = 2  # of an address per minute, which count for that address only
MAX_KNOWN = 10_000
KEY = "sign-in-key"
MAX_COOKIE = 200


@dataclass(frozen=True, slots=True)
class SignInAttempt:
    """Who tries to sign in: from where, as whom, and with the cookie of which browser."""

    address: str
    name: str
    device: str = ""


class SignInLimits:
    """Counts attempts. Everything that is kept is bounded."""

    def __init__(self, records: RecordStore, clock: Clock, most: int) -> None:
        self._records = records
        self._devices = Rates(clock, most, WINDOW_MS)
        self._pairs = Rates(clock, most, WINDOW_MS)
        self._addresses = Rates(clock, most * FOR_ADDRESS, WINDOW_MS)
        self._first = Rates(clock, FREE_ATTEMPTS, WINDOW_MS)
        self._names = Rates(clock, most * FOR_NAME, WINDOW_MS)
        self._total = Rates(clock, most * IN_TOTAL, WINDOW_MS)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def count(self, attempt: SignInAttempt) -> None:
        """Count an attempt; 429 when there were too many. Whether the name exists is not asked."""
        address = address_group(attempt.address)
        name = hashlib.sha256(attempt.name.encode(errors="replace")).hexdigest()
        device = self._device_of(attempt)
        if device:
            self._devices.count(device)
            return
        self._pairs.count(f"{address} {name}")
        if (address, name) in self._known:
            return
        self._addresses.count(address)
        if self._first.has_left(address):
            self._first.count(address)
            return
        self._names.count(name)
        self._total.count("")

    def remember(self, attempt: SignInAttempt) -> str:
        """Remember a sign-in; the result is a cookie for the browser."""
        name = hashlib.sha256(attempt.name.encode(errors="replace")).hexdigest()
        known = (address_group(attempt.address), name)
        self._known[known] = None
        self._known.move_to_end(known)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        device = self._device_of(attempt) or secrets.token_hex(16)
        return f"{device}.{self._mark(device, attempt.name)}"

    def _device_of(self, attempt: SignInAttempt) -> str:
        """The browser that signed in as this name before; empty for any other."""
        device, _, mark = attempt.device[:MAX_COOKIE].partition(".")
        wanted = self._mark(device, attempt.name)
        return device if device and hmac.compare_digest(wanted.encode(), mark.encode()) else ""

    def _mark(self, device: str, name: str) -> str:
        text = f"{device}\0{name}".encode(errors="replace")
        return hmac.new(self._key(), text, hashlib.sha256).hexdigest()

    def _key(self) -> bytes:
        """The key of cookies: of this data directory, made when it is first needed."""
        record = self._records.record(KEY, KEY)
        if record is None:
            record = StoredRecord(kind=KEY, key=KEY, body=secrets.token_bytes(32))
            self._records.change([(record, None)])
        return record.body
