"""The life of a server: hold the home, take up what was left behind, serve, drain, leave."""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

import uvicorn

from loopwright import __version__
from loopwright.app.access import Access
from loopwright.app.agent_registry import AgentRegistry, ListedPrograms, listed_default
from loopwright.app.definitions import Definitions
from loopwright.app.gate_links import GateLinks
from loopwright.app.home_line import Held
from loopwright.app.nesting import superseded
from loopwright.app.people import People
from loopwright.app.plugins import plugins
from loopwright.app.pulse import LOOPS, TASKS, Pulse
from loopwright.app.run_admission import RunAdmission
from loopwright.app.settings import Settings
from loopwright.app.surroundings import CLOCK_FIX, clock_problem, jump_words
from loopwright.app.views.listing import driver_pid
from loopwright.app.wiring import Local, local
from loopwright.app.workspace_roots import WorkspaceRoots
from loopwright.errors import CannotServe, LoopwrightError
from loopwright.runtime.clock import JUMP_MS
from loopwright.server.channels import SettingsChannels, idle_channels
from loopwright.server.context import Context, Serving
from loopwright.server.cursors import Cursors
from loopwright.server.dispatch import Application
from loopwright.server.enduring import Enduring
from loopwright.server.families import FAMILIES
from loopwright.server.feed import Feed
from loopwright.server.gallery import Gallery
from loopwright.server.holding import announce, holding
from loopwright.server.home_door import home_door
from loopwright.server.logs import NAME, log_to
from loopwright.server.openapi import describe
from loopwright.server.patience import BoundedWebSocket, limit_connections
from loopwright.server.reach import check_options, check_reach
from loopwright.server.sign_in_limits import SignInLimits
from loopwright.server.webhooks import Webhooks

_LOG = logging.getLogger(NAME)
BACKLOG = 512
DRAIN_SECONDS = 3
CLOSE_SECONDS = 6.0
LAST_SECONDS = 8.0  # after a signal
RESCUE_SECONDS = 5.0
BEAT_SECONDS = 1.0
FORGET_SECONDS = 600.0
CLOCK_SECONDS = 30.0
PARENT_GONE = "parent_gone"  # why a run was stopped
SOCKET_BYTES = 1_000_000  # of a message
TARGET_BYTES = 131_072  # so that what is too long is refused by us, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A server that is there now; the token of the very first start is told once."""

    url: str
    pid: int
    token: str | None
    link: str | None  # makes the first admin
    troubles: tuple[str, ...]  # runs that could not be taken up, notifiers that tell nobody


def serve(settings: Settings, serving: Serving, started: Callable[[Started], None]) -> int:
    """Serve until a signal ends it; the exit code."""
    check_options(serving)
    with holding(settings.home) as handle, _listening(serving) as (sock, port):
        serving = replace(serving, port=port, bound=str(sock.getsockname()[0]))
        log_to(requests=serving.log_requests)
        return asyncio.run(_serve(settings, serving, sock, handle, started))


async def _serve(
    settings: Settings,
    serving: Serving,
    sock: socket.socket,
    handle: int,
    started: Callable[[Started], None],
) -> int:
    async with living(settings, serving) as (context, app), home_door(context) as has_line:
        server = quiet_server(app, serving)
        with _signals(context, server):
            sock.listen(BACKLOG)  # whoever comes from here on waits a moment
            public = serving.public_url or ""
            held = Held(
                pid=os.getpid(),
                url=serving.url,
                version=__version__,
                public=public,
                has_line=has_line,
            )
            announce(handle, held)
            started(_greeting(context))
            await server.serve(sockets=[sock])
    return 0


@asynccontextmanager
async def living(
    settings: Settings, serving: Serving
) -> AsyncIterator[tuple[Context, Application]]:
    """Everything but the socket: runs are taken up and driven, and are let go in order."""
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(_bounded(settings))
        feed = Feed(here.log)
        gallery = Gallery(here.service, here.log)
        stack.callback(here.log.subscribe(gallery.written))
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
            settings, log=here.log, cards=here.log, clock=clock, base=serving.base
        )
        context = Context(
            here=here,
            access=access,
            people=people,
            definitions=Definitions(here.log, access, here.service.admission),
            registry=registry,
            roots=roots,
            webhooks=Webhooks(
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
                gallery.follow(),
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
    work = Enduring("the beat of the server")
    while True:
        with work.round():
            context.pulse.beat(TASKS, context.clock.now_ms())
        await asyncio.sleep(BEAT_SECONDS)


async def _rescuing(context: Context) -> None:
    """Take up what other processes leave behind while we are here."""
    here, work = context.here, Enduring("taking up runs that were left behind")
    while True:
        with work.round():
            context.pulse.beat(LOOPS, context.clock.now_ms())
        await asyncio.sleep(RESCUE_SECONDS)
        with work.round():
            rows = [row for row in here.log.rows(statuses=("running",)) if not _ours(here, row.run)]
            lost = superseded(here.log, [row for row in rows if driver_pid(here.log, row) is None])
            for run in lost:
                with contextlib.suppress(LoopwrightError):  # what is wrong with one is told of it
                    await here.service.stop(run, reason=PARENT_GONE)
            if rows:
                here.driver.recover(row for row in rows if row.run not in lost)


def _ours(here: Local, run: str) -> bool:
    return here.driver.is_driving(run)


async def _forgetting(app: Application, links: GateLinks) -> None:
    work = Enduring("forgetting what is old")
    while True:
        with work.round():
            app.repeating.forget_old()
        with work.round():
            links.forget_old()
        await asyncio.sleep(FORGET_SECONDS)


async def watch_clock(here: Local, every_s: float = CLOCK_SECONDS) -> None:
    """Say it once when the clock does not fit what was recorded, and whenever it jumps."""
    told, work = 0, Enduring("watching the clock")
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
    """Signals are ours: being asked to end is no failure."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def quiet_server(app: Application, serving: Serving) -> uvicorn.Server:
    """A server that neither logs nor catches signals."""
    config = uvicorn.Config(
        app,
        http=limit_connections(serving.trusted_proxies),
        backlog=128,  # of so many is it told at once that no place is left for them
        ws=BoundedWebSocket,
        ws_max_size=SOCKET_BYTES,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,  # whoever asks may say anything about where they come from
        timeout_graceful_shutdown=DRAIN_SECONDS,
        timeout_keep_alive=20,
        h11_max_incomplete_event_size=TARGET_BYTES,
        ssl_certfile=str(serving.tls_cert) if serving.tls_cert else None,
        ssl_keyfile=str(serving.tls_key) if serving.tls_key else None,
    )
    return _Server(config)


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
def _listening(serving: Serving) -> Iterator[tuple[socket.socket, int]]:
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


def _cannot_bind(serving: Serving, error: OSError) -> CannotServe:
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


def _greeting(context: Context) -> Started:
    """Where it is, and how to come in: with the token of the very first start, and as long as
    nobody has an account by a link that makes the first admin.
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
