"""The context that every handler uses: one `Context` for the life of the server.

Also Prometheus metrics.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from loopwright.http.rate_limits import SignInLimits
from loopwright.operations.accounts.access import Access
from loopwright.operations.accounts.people import People
from loopwright.operations.agents.allowlist import AgentRegistry
from loopwright.operations.definitions import Definitions
from loopwright.operations.preflight import Pulse
from loopwright.operations.run_admission import WorkspaceRoots
from loopwright.operations.run_lists import UsageLedger
from loopwright.operations.runs import Service
from loopwright.operations.settings import Settings
from loopwright.operations.use_cases.operation import Cursors
from loopwright.operations.wiring import Local
from loopwright.ports import Clock, RecordStore, RunRow
from loopwright.workers.run_updates import EventFeed, ViewCache
from loopwright.workers.webhooks import WebhookDeliveries

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
