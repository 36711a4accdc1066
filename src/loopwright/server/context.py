"""What every handler may use: one `Context` for the life of the server."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from loopwright.app.access import Access
from loopwright.app.agent_registry import AgentRegistry
from loopwright.app.definitions import Definitions
from loopwright.app.people import People
from loopwright.app.pulse import Pulse
from loopwright.app.service import Service
from loopwright.app.settings import Settings
from loopwright.app.wiring import Local
from loopwright.app.workspace_roots import WorkspaceRoots
from loopwright.ports import Cards, Clock
from loopwright.server.cursors import Cursors
from loopwright.server.feed import Feed
from loopwright.server.gallery import Gallery
from loopwright.server.metrics import Metrics
from loopwright.server.sign_in_limits import SignInLimits
from loopwright.server.webhooks import Webhooks

_Part = TypeVar("_Part")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
UNIDENTIFIED_BYTES = 16_384  # of a body or a message, before its sender has shown a token
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
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
    recheck_seconds: float = 4.0  # how long a stream goes on for somebody who was shut out


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
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
    limits: Limits = field(default_factory=Limits)
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
        """A name by which it can be called; whoever listens everywhere can be called here."""
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
    webhooks: Webhooks
    sign_ins: SignInLimits
    settings: Settings
    serving: Serving
    feed: Feed
    gallery: Gallery
    cursors: Cursors
    pulse: Pulse
    described: dict[str, object] = field(default_factory=dict)  # the API, for programs
    metrics: Metrics = field(default_factory=Metrics)
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
    def cards(self) -> Cards:
        return self.here.log

    @property
    def clock(self) -> Clock:
        return self.here.service.clock
