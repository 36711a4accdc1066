"""The life of a server: lock, recovery of runs, listening, draining, exit.

There is one server per data directory: a lock that ends with the process, so a second server
reports the first. Before it listens beyond this machine, accounts and TLS or a proxy must be
configured.
"""

import asyncio
import contextlib
import errno
import fcntl
import ipaddress
import logging
import os
import re
import signal
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec
import uvicorn

from loopwright import __version__
from loopwright.engine.services import JUMP_MS
from loopwright.errors import CannotServe, Conflict, LoopwrightError, NotAllowed
from loopwright.http.application import Application
from loopwright.http.clients import BoundedWebSocket, limit_connections
from loopwright.http.context import Context, ServerOptions, SignInLimits
from loopwright.http.local_socket import serve_http_socket, serve_local_socket
from loopwright.http.route_table import FAMILIES, describe
from loopwright.operations.accounts.access import Access
from loopwright.operations.accounts.people import LINK, Link, People
from loopwright.operations.agents.allowlist import AgentRegistry, ListedPrograms, listed_default
from loopwright.operations.agents.programs import plugins
from loopwright.operations.child_runs import superseded
from loopwright.operations.data_directory import RECORD, ServerLockInfo
from loopwright.operations.definitions import Definitions
from loopwright.operations.preflight import (
    CLOCK_FIX,
    LOOPS,
    TASKS,
    Pulse,
    clock_problem,
    jump_words,
)
from loopwright.operations.run_admission import RunAdmission, WorkspaceRoots
from loopwright.operations.run_lists import driver_pid
from loopwright.operations.run_tail import EventFeed
from loopwright.operations.settings import Settings
from loopwright.operations.settings_files import refuse_remote, unusable
from loopwright.operations.use_cases.operation import Cursors
from loopwright.operations.wiring import Local, local
from loopwright.workers.background_tasks import NAME, BackgroundTask, log_to
from loopwright.workers.notifiers import GateLinks, SettingsChannels, idle_channels
from loopwright.workers.run_updates import ViewCache
from loopwright.workers.webhooks import WebhookDeliveries

TRIES = 20
TRY_S = 0.02


@contextmanager
def hold_lock(home: Path) -> Iterator[int]:
    """Become the only server of this data directory; returns the lock file."""
    refuse_remote(home)
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(home / RECORD, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise unusable(home, error) from error
    try:
        _lock(home, handle)
        yield handle
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _lock(home: Path, handle: int) -> None:
    """Take the lock. A command that looks whether there is a server has it for a moment, too."""
    for left in reversed(range(TRIES)):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not left:
                raise _taken(home, handle) from error
            time.sleep(TRY_S)
        else:
            return


def announce(handle: int, held: ServerLockInfo) -> None:
    """Say where the server is."""
    os.ftruncate(handle, 0)
    os.pwrite(handle, msgspec.json.encode(held), 0)


def _taken(home: Path, handle: int) -> Conflict:
    try:
        held = msgspec.json.decode(os.pread(handle, 4_096, 0), type=ServerLockInfo)
        who = f"process {held.pid} at {held.url}"
    except msgspec.DecodeError:
        who = "another process that is just starting"
    return Conflict(
        f"{home} already has a server: {who}",
        code="already-served",
        hint="use that one, end it, or name another data directory with --data-dir",
    )


_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")


def check_options(serving: ServerOptions) -> None:
    """What can be seen to be wrong before anything is touched."""
    if serving.public_url is not None:
        _check_public_url(serving.public_url)
    for one in serving.trusted_proxies:
        _check_proxy(one)
    if serving.tls_cert is not None:
        _check_tls(serving)


def _check_proxy(text: str) -> None:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise LoopwrightError(
            f"--trusted-proxy {text[:200]!a} is not an address",
            code="bad-proxy",
            hint="write an address or a network, as 10.0.0.5 or 10.0.0.0/24",
        ) from error


def check_reach(serving: ServerOptions, people: People) -> None:
    """A server that other machines reach needs an admin and an encrypted connection."""
    if is_loopback(serving.address):
        return
    missing = []
    if not _has_admin(people):
        missing.append("an admin who can sign in (`loopwright user add NAME --role admin`)")
    if serving.tls_cert is None and not (serving.public_url or "").lower().startswith("https://"):
        missing.append(
            "TLS (--tls-cert and --tls-key, or --public-url https://NAME of a proxy that has it)"
        )
    if missing:
        raise NotAllowed(
            f"other machines can reach {serving.host}, so the server needs "
            + " and ".join(missing),
            code="unsafe-address",
            hint="without --host, only this machine can reach the server",
        )


def _has_admin(people: People) -> bool:
    """Whether an admin could come in: by a password, or by a link that is still good."""
    now = people.clock.now_ms()
    links = [msgspec.json.decode(record.body, type=Link) for record in people.records.records(LINK)]
    good = [one for one in links if one.used_at is None and one.expires_at > now]
    if any(one.role == "admin" and not one.person for one in good):
        return True
    linked = {one.person for one in good}
    return any(
        one.role == "admin" and one.active and (one.password or one.name in linked)
        for one in people.all()
    )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# -- options ---------------------------------------------------------------------------------------


def _check_public_url(url: str) -> None:
    """An address as browsers show it: links are made of it, and requests from it are let in."""
    why = _flaw(url)
    if why:
        raise LoopwrightError(
            f"--public-url {url[:200]!a} cannot be used: {why}",
            code="bad-public-url",
            hint="write the address of the proxy, as https://loops.example.org",
        )


def _flaw(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "it cannot be read"
    if parts.scheme not in ("http", "https") or any(ord(sign) <= 32 for sign in url):
        return "it is not an address of a web site"
    if port == 0 or parts.netloc.endswith(":") or not _is_host(parts.hostname or ""):
        return "it names no host"
    if parts.username is not None or _has_more(parts, url):
        return "it has more than a name and a port"
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        return "passwords and tokens would go over an open line"
    return ""


def _has_more(parts: SplitResult, url: str) -> bool:
    return parts.path not in ("", "/") or "?" in url or "#" in url


def _is_host(name: str) -> bool:
    try:
        return not ipaddress.ip_address(name).is_unspecified
    except ValueError:
        labels = name.removesuffix(".").split(".")
        plain = all(_LABEL.fullmatch(one) for one in labels) and not labels[-1].isdigit()
        return plain and len(name) <= 253


def _check_tls(serving: ServerOptions) -> None:
    """Read the files as the server will; a key with a password would be asked for at a terminal."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(str(serving.tls_cert), str(serving.tls_key), password=str)
    except (OSError, ValueError) as error:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        raise CannotServe(
            f"TLS cannot be served with {serving.tls_cert} and {serving.tls_key}: {why}",
            code="bad-tls",
            hint="both must be PEM files that can be read, of the same key, without a password",
        ) from error


_LOG = logging.getLogger(NAME)
BACKLOG = 512
DRAIN_SECONDS = 3
CLOSE_SECONDS = 6.0
LAST_SECONDS = 8.0  # after a signal
RESCUE_SECONDS = 5.0
HEARTBEAT_SECONDS = 1.0
FORGET_SECONDS = 600.0
CLOCK_SECONDS = 30.0
PARENT_GONE = "parent_gone"  # why a run was stopped
SOCKET_BYTES = 1_000_000  # of a message
TARGET_BYTES = 131_072  # so that what is too long is refused by us, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A server that listens now; the token of the very first start is shown once."""

    url: str
    pid: int
    token: str | None
    link: str | None  # makes the first admin
    troubles: tuple[str, ...]  # runs that could not be resumed, notifiers that do not work


def serve(settings: Settings, serving: ServerOptions, started: Callable[[Started], None]) -> int:
    """Serve until a signal ends it; the exit code."""
    check_options(serving)
    with hold_lock(settings.home) as handle, _listening(serving) as (sock, port):
        serving = replace(serving, port=port, bound=str(sock.getsockname()[0]))
        log_to(requests=serving.log_requests)
        return asyncio.run(_serve(settings, serving, sock, handle, started))


async def _serve(
    settings: Settings,
    serving: ServerOptions,
    sock: socket.socket,
    handle: int,
    started: Callable[[Started], None],
) -> int:
    async with (
        living(settings, serving) as (context, app),
        serve_local_socket(context) as has_line,
        serve_http_socket(context, local_http_server(app, serving)),
    ):
        server = quiet_server(app, serving)
        with _signals(context, server):
            sock.listen(BACKLOG)  # connections wait from here on
            public = serving.public_url or ""
            held = ServerLockInfo(
                pid=os.getpid(),
                url=serving.url,
                version=__version__,
                public=public,
                has_line=has_line,
            )
            announce(handle, held)
            started(_started_server(context))
            await server.serve(sockets=[sock])
    return 0


@asynccontextmanager
async def living(
    settings: Settings, serving: ServerOptions
) -> AsyncIterator[tuple[Context, Application]]:
    """Everything but the socket: runs are taken up and driven, and are let go in order."""
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(_bounded(settings))
        feed = EventFeed(here.log, BackgroundTask("noticing what other processes write").round)
        gallery = ViewCache(here.service, here.log)
        clock = here.service.clock
        access = Access(here.log, clock, via="http")
        people = People(access)
        registry = AgentRegistry(access, listed_default(settings))
        roots = WorkspaceRoots(
            access, settings.home, named=settings.workspaces, served=serving.workspace
        )
        if roots.problem:
            _LOG.warning(
                "%s; admins approve folders with `loopwright workspace add DIR`", roots.problem
            )
        here.sandbox.approvals = ListedPrograms(registry, access)
        here.service.admission = RunAdmission(
            registry,
            access,
            settings.home,
            roots=roots,
            allow_unsandboxed=settings.allow_unsandboxed == "on",
            editor_variables=settings.editor_variables,
        )
        check_reach(serving, people)
        channels = SettingsChannels(
            settings, log=here.log, records=here.log, clock=clock, base=serving.base
        )
        context = Context(
            here=here,
            access=access,
            people=people,
            definitions=Definitions(here.log, access, here.service.admission),
            registry=registry,
            roots=roots,
            webhooks=WebhookDeliveries(
                here.log,
                here.log,
                access,
                clock,
                channels,
                loopback=settings.webhooks_to_loopback == "on",
            ),
            sign_ins=SignInLimits(here.log, clock, serving.limits.sign_ins_per_minute),
            settings=settings,
            serving=serving,
            feed=feed,
            gallery=gallery,
            cursors=Cursors(here.log),
            pulse=Pulse(clock.now_ms()),
            described=describe(FAMILIES),
        )
        app = Application(context, FAMILIES)
        for family in FAMILIES:
            if family.living is not None:
                await stack.enter_async_context(family.living(context))
        for one in plugins():
            if one.problem:
                _LOG.warning("plugin %s of %s is off: %s", one.name, one.origin, one.problem)
        here.service.recover()
        jobs = [
            asyncio.ensure_future(job)
            for job in (
                feed.watch_others(),
                gallery.work(feed),
                _rescuing(context),
                _beating(context),
                _forgetting(app, channels.links),
                watch_clock(here),
            )
        ]
        try:
            yield context, app
        finally:
            context.closing.set()
            feed.close()
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)


@asynccontextmanager
async def _bounded(settings: Settings) -> AsyncIterator[Local]:
    """Runs and their processes; ending them takes a bounded time."""
    stack = AsyncExitStack()
    here = await stack.enter_async_context(local(settings, via="http"))
    try:
        yield here
    finally:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stack.aclose(), CLOSE_SECONDS)


async def _beating(context: Context) -> None:
    """Whatever holds up this thread holds this up too."""
    work = BackgroundTask("the heartbeat of the server")
    while True:
        with work.round():
            context.pulse.beat(TASKS, context.clock.now_ms())
        await asyncio.sleep(HEARTBEAT_SECONDS)


async def _rescuing(context: Context) -> None:
    """Take up what other processes leave behind while we are here."""
    here, work = context.here, BackgroundTask("taking up runs that were left behind")
    while True:
        with work.round():
            context.pulse.beat(LOOPS, context.clock.now_ms())
        await asyncio.sleep(RESCUE_SECONDS)
        with work.round():
            rows = [row for row in here.log.rows(statuses=("running",)) if not _ours(here, row.run)]
            lost = superseded(here.log, [row for row in rows if driver_pid(here.log, row) is None])
            for run in lost:
                with contextlib.suppress(LoopwrightError):  # its problem is reported with it
                    await here.service.stop(run, reason=PARENT_GONE)
            if rows:
                here.driver.recover(row for row in rows if row.run not in lost)


def _ours(here: Local, run: str) -> bool:
    return here.driver.is_driving(run)


async def _forgetting(app: Application, links: GateLinks) -> None:
    work = BackgroundTask("forgetting what is old")
    while True:
        with work.round():
            app.repeating.forget_old()
        with work.round():
            links.forget_old()
        await asyncio.sleep(FORGET_SECONDS)


async def watch_clock(here: Local, every_s: float = CLOCK_SECONDS) -> None:
    """Say it once when the clock does not fit what was recorded, and whenever it jumps."""
    told, work = 0, BackgroundTask("watching the clock")
    with work.round():
        problem = clock_problem(here.log, here.service.clock.now_ms())
        if problem:
            _LOG.warning("%s; %s", problem, CLOCK_FIX)
    while True:
        with work.round():
            jump = here.jumped()
            if abs(jump - told) > JUMP_MS:
                _LOG.warning("%s", jump_words(jump) if jump else "the clock is where it was before")
            told = jump
        await asyncio.sleep(every_s)


# -- starting --------------------------------------------------------------------------------------


class _Server(uvicorn.Server):
    """The server handles signals itself: a stop request is not a failure."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def quiet_server(app: Application, serving: ServerOptions) -> uvicorn.Server:
    """A server that neither logs nor catches signals."""
    config = uvicorn.Config(
        app,
        http=limit_connections(serving.trusted_proxies),
        backlog=128,  # so many connections are refused with a message when the limit is reached
        ws=BoundedWebSocket,
        ws_max_size=SOCKET_BYTES,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,  # clients could claim any address
        timeout_graceful_shutdown=DRAIN_SECONDS,
        timeout_keep_alive=20,
        h11_max_incomplete_event_size=TARGET_BYTES,
        ssl_certfile=str(serving.tls_cert) if serving.tls_cert else None,
        ssl_keyfile=str(serving.tls_key) if serving.tls_key else None,
    )
    return _Server(config)


def local_http_server(app: Application, serving: ServerOptions) -> uvicorn.Server:
    """The same for the Unix socket, which needs no TLS."""
    return quiet_server(app, replace(serving, tls_cert=None, tls_key=None))


def _leave_at_last() -> None:
    """Whatever holds us up, a disk or a lock of another process: a signal ends the server. What is
    not written by then was not promised to anybody, and programs end with us.
    """
    timer = threading.Timer(LAST_SECONDS, os._exit, [0])
    timer.daemon = True
    timer.start()


@contextmanager
def _signals(context: Context, server: uvicorn.Server) -> Iterator[None]:
    """The first signal drains, the second leaves at once."""
    loop = asyncio.get_running_loop()

    def ending(number: int) -> None:
        if context.closing.is_set():
            os._exit(128 + number)
        context.closing.set()
        context.feed.close()
        server.should_exit = True
        _leave_at_last()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending, number)
    try:
        yield
    finally:
        if not context.closing.is_set():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


@contextmanager
def _listening(serving: ServerOptions) -> Iterator[tuple[socket.socket, int]]:
    """The socket, bound before anything else is touched."""
    family = socket.AF_INET6 if ":" in serving.host else socket.AF_INET
    # Named, or connections wait for acknowledgements between the head and the body of an answer:
    # asyncio turns that off only where it can see that a socket speaks TCP.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((serving.host, serving.port))
        except OSError as error:
            raise _cannot_bind(serving, error) from error
        yield sock, int(sock.getsockname()[1])


def _cannot_bind(serving: ServerOptions, error: OSError) -> CannotServe:
    if error.errno == errno.EADDRINUSE:
        return CannotServe(
            f"port {serving.port} on {serving.host} is in use",
            code="port-taken",
            hint="end the program that has it, or choose another with --port",
        )
    why = (error.strerror or str(error)).lower()
    return CannotServe(
        f"{serving.host}:{serving.port} cannot be listened to: {why}",
        hint="choose another address with --host and --port",
    )


def _started_server(context: Context) -> Started:
    """Where it is, and how to come in: with the token of the very first start, and as long as
    no account exists yet, by a link that makes the first admin.
    """
    first = context.access.first_token()
    code = context.people.first_link()
    return Started(
        url=context.serving.url,
        pid=os.getpid(),
        token=first.text if first is not None else None,
        link=f"{context.serving.base}/setup#{code}" if code is not None else None,
        troubles=(
            *(f"{run}: {why}" for run, why in context.here.driver.problems),
            *idle_channels(context.settings),
        ),
    )
