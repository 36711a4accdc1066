"""The context that every handler uses: one `Context` for the life of the server.

Also Prometheus metrics, addresses of clients, and limits on attempts to sign in.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.types import Scope

from loopwright.operations.accounts.access import Access, Rates
from loopwright.operations.accounts.people import People
from loopwright.operations.agents.allowlist import AgentRegistry
from loopwright.operations.definitions import Definitions
from loopwright.operations.preflight import Pulse
from loopwright.operations.run_admission import WorkspaceRoots
from loopwright.operations.run_lists import UsageLedger
from loopwright.operations.run_tail import EventFeed
from loopwright.operations.runs import Service
from loopwright.operations.settings import Settings
from loopwright.operations.use_cases.operation import Cursors
from loopwright.operations.wiring import Local
from loopwright.ports import Clock, RecordStore, RunRow, StoredRecord
from loopwright.workers.run_updates import ViewCache
from loopwright.workers.webhooks import WebhookDeliveries

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
    """Whether an address is in one of these networks."""
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


MEDIA = "text/plain; version=0.0.4"
_EDGES_S = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0)


class ServerMetrics:
    """Counters of requests; everything else is read when it is asked for."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._within: Counter[float] = Counter()
        self._seconds = 0.0

    def count(self, method: str, family: str, status: int, seconds: float) -> None:
        """One request that was answered."""
        self._requests[method, family, status] += 1
        self._seconds += seconds
        for edge in _EDGES_S:
            self._within[edge] += seconds <= edge

    def text(self, service: Service, *, open_rows: list[RunRow], listeners: int) -> str:
        """Everything, as Prometheus reads it."""
        total = sum(self._requests.values())
        runs = Counter(row.headline.status for row in open_rows)
        assert service.driver is not None
        used = UsageLedger(service.log).used(since_day=0)
        lines = [
            "# HELP loopwright_requests_total Requests that were answered.",
            "# TYPE loopwright_requests_total counter",
            *(
                f'loopwright_requests_total{{method="{method}",family="{family}",'
                f'status="{status}"}} {count}'
                for (method, family, status), count in sorted(self._requests.items())
            ),
            "# HELP loopwright_request_seconds How long requests took.",
            "# TYPE loopwright_request_seconds histogram",
            *(
                f'loopwright_request_seconds_bucket{{le="{edge:g}"}} {self._within[edge]}'
                for edge in _EDGES_S
            ),
            f'loopwright_request_seconds_bucket{{le="+Inf"}} {total}',
            f"loopwright_request_seconds_sum {self._seconds:.6f}",
            f"loopwright_request_seconds_count {total}",
            "# HELP loopwright_runs Runs that have not ended, by status.",
            "# TYPE loopwright_runs gauge",
            *(
                f'loopwright_runs{{status="{status}"}} {runs[status]}'
                for status in ("running", "waiting", "paused")
            ),
            "# HELP loopwright_gates Questions that wait for a person.",
            "# TYPE loopwright_gates gauge",
            f"loopwright_gates {len(service.gates())}",
            "# HELP loopwright_cost_usd_total Known cost of the calls of all runs, in USD.",
            "# TYPE loopwright_cost_usd_total counter",
            f"loopwright_cost_usd_total {used.usd:.9g}",
            "# HELP loopwright_calls_unknown_cost_total Calls whose cost is unknown.",
            "# TYPE loopwright_calls_unknown_cost_total counter",
            f"loopwright_calls_unknown_cost_total {used.unpriced}",
            "# HELP loopwright_streams Clients that follow events.",
            "# TYPE loopwright_streams gauge",
            f"loopwright_streams {listeners}",
            "# HELP loopwright_troubles_total Problems that the driver met.",
            "# TYPE loopwright_troubles_total counter",
            f"loopwright_troubles_total {service.driver.problem_count}",
        ]
        return "\n".join(lines) + "\n"


_Part = TypeVar("_Part")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
UNIDENTIFIED_BYTES = 16_384  # of a body or a message, before its sender has shown a token
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """How much of anything is taken."""

    body_bytes: int = 1_000_000
    body_seconds: float = 10.0
    target_bytes: int = 8_192
    header_bytes: int = 8_192
    header_fields: int = 128
    query_fields: int = 64
    requests_per_second: int = 100
    heartbeat_seconds: float = 15.0
    sign_ins_per_minute: int = 5  # for a name from an address; see sign_in_limits
    recheck_seconds: float = 4.0  # how long a stream continues after access was revoked


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How the server was started."""

    host: str = "127.0.0.1"
    port: int = 3001
    public_url: str | None = None  # what a proxy in front of it is called
    tls_cert: Path | None = None
    tls_key: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()  # their X-Forwarded-For names the client
    workspace: Path = field(default_factory=Path.cwd)  # of runs that name none
    log_requests: bool = False
    limits: RequestLimits = field(default_factory=RequestLimits)
    bound: str = ""  # the address that the host turned out to be

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach it by TLS alone."""
        return self.tls_cert is not None or (self.public_url or "").lower().startswith("https:")

    @property
    def address(self) -> str:
        """What is listened to."""
        return self.bound or self.host

    @property
    def base(self) -> str:
        """What links begin with: how others call it."""
        return (self.public_url or self.url).rstrip("/")

    @property
    def url(self) -> str:
        scheme = "https" if self.tls_cert else "http"
        return f"{scheme}://{self.host_in_url}:{self.port}"

    @property
    def host_in_url(self) -> str:
        """A name at which clients can reach it; a server that listens on all addresses is reachable
        here.
        """
        if self.address in ANYWHERE:
            return ANYWHERE[self.address]
        return f"[{self.host}]" if ":" in self.host else self.host


@dataclass(slots=True, kw_only=True)
class Context:
    """The use cases and the surroundings, as handlers see them."""

    here: Local
    access: Access
    people: People
    definitions: Definitions
    registry: AgentRegistry
    roots: WorkspaceRoots
    webhooks: WebhookDeliveries
    sign_ins: SignInLimits
    settings: Settings
    serving: ServerOptions
    feed: EventFeed
    gallery: ViewCache
    cursors: Cursors
    pulse: Pulse
    described: dict[str, object] = field(default_factory=dict)  # the API, for programs
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    closing: asyncio.Event = field(default_factory=asyncio.Event)  # the server is on its way out
    _parts: dict[Callable[..., object], Any] = field(default_factory=dict)

    def part(self, kind: Callable[["Context"], _Part]) -> _Part:
        """What a family keeps for as long as the server lives: made when it is first asked for."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        found: _Part = self._parts[kind]
        return found

    @property
    def private_paths(self) -> tuple[str, ...]:
        """How the data directory is written; no answer has it."""
        home = self.settings.home
        return (str(home.resolve()), str(home))

    @property
    def service(self) -> Service:
        return self.here.service

    @property
    def records(self) -> RecordStore:
        return self.here.log

    @property
    def clock(self) -> Clock:
        return self.here.service.clock
