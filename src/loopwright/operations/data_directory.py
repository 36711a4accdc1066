"""Open the log of a data directory, for reading or for driving runs, and connect to its server.

The server listens on a Unix socket in the data directory; messages are lines of JSON. The
socket has the access rights of the data. Commands read and write the log themselves; over the
socket they ask the server to drive a run, and receive live text and change notices. Nothing
that is sent there is needed later: the log has everything.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from loopwright import __version__, host
from loopwright.agents.processes.process_marks import owner_mark
from loopwright.engine.driver import LocalDriver
from loopwright.engine.services import SystemClock
from loopwright.operations.accounts.access import find_caller, is_private
from loopwright.operations.child_runs import AgentRights
from loopwright.operations.cost_limits import CostRules, PriceBook
from loopwright.operations.run_lists import open_data_log
from loopwright.operations.run_variables import RunVariables
from loopwright.operations.runs import Service
from loopwright.operations.settings import Settings
from loopwright.operations.workspace_rules import confine_git, keep_files_private, rules_of
from loopwright.ports import Owner, Workspaces
from loopwright.stores.sqlite.log import SqliteLog
from loopwright.stores.trackers import SqliteTrackers
from loopwright.workspaces.worktrees import GitWorktrees

SERVED = "http"
"""How a server says that it drives runs, for other people."""
HANDED = "LOOPWRIGHT_HANDED_OWNER"
"""Where a process finds the token of the one that hands its run over to it."""
TOKEN_BYTES = 8
_TOKEN = re.compile(f"[0-9a-f]{{{2 * TOKEN_BYTES}}}")


def this_owner() -> Owner:
    """This process as the owner of runs."""
    handed = os.environ.pop(HANDED, "")  # also the name of a file, so nothing else is taken for one
    return owner_mark(handed if _TOKEN.fullmatch(handed) else secrets.token_hex(TOKEN_BYTES))


def open_log(settings: Settings) -> SqliteLog:
    """The log in the data directory, for code that also reads definitions or starts agents: they
    never get files of the data directory.
    """
    log = open_data_log(settings)
    keep_files_private(settings)
    return log


def restrict(service: Service, log: SqliteLog) -> Service:
    """Take the rights of a person from a service that a program of a run has opened. In a data
    directory of its own the program keeps them.
    """
    inside = find_caller()
    service.inside = inside
    if inside is not None and not is_private(log, inside):
        service.rights = AgentRights(
            inside=inside, log=log, records=log, clock=service.clock, via=service.via
        )
    return service


def open_service(
    settings: Settings,
    log: SqliteLog,
    driver: LocalDriver | None = None,
    *,
    via: str = "cli",
    book: PriceBook | None = None,
) -> Service:
    """The use cases, as the settings want them. Each service is made here, also one that does not
    drive: it may start or resume a run that another process drives.
    """
    service = Service(
        log,
        driver.clock if driver is not None else SystemClock(),
        driver,
        rules_of(settings, served=via == SERVED),
        via=via,
        four_eyes=settings.four_eyes == "on",
    )
    service.artifacts = settings.artifacts
    service.costs = CostRules(book=book or PriceBook(settings.prices), budget=settings.budget)
    service.takes_snapshots = settings.snapshots == "on"
    service.trackers = SqliteTrackers(log)
    service.worktrees = GitWorktrees(settings.worktrees, confine_git(settings))
    service.variables = RunVariables(settings.home)
    return restrict(service, log)


def open_reader(settings: Settings, log: SqliteLog | None = None) -> Service:
    """A service that does not drive, on a log that is open or that is opened now."""
    if log is None:
        return open_service(settings, open_log(settings))
    keep_files_private(settings)
    return open_service(settings, log)


def workspaces_of(settings: Settings) -> Workspaces:
    """Where snapshots of workspaces are stored."""
    from loopwright.workspaces.scan import SnapshotLimits  # noqa: PLC0415 - few commands need them
    from loopwright.workspaces.snapshots import GitWorkspaces  # noqa: PLC0415 - the same

    limits = SnapshotLimits(
        file_bytes=settings.snapshot_max_file,
        total_bytes=settings.snapshot_max_total,
        files=settings.snapshot_max_files,
    )
    return GitWorkspaces(settings.home, limits)


RECORD = "server.json"
SOCKET = "server.sock"
HTTP_SOCKET = "http.sock"  # where the same server answers HTTP requests
PROTOCOL = 1
LINE_BYTES = 4_000_000
_KEY = re.compile(r"_(API_KEY|AUTH_TOKEN|OAUTH_TOKEN)$|^LOOPWRIGHT_MODEL_BASE_URL$")
TEXT_CHARS = 100_000  # of the text of an agent, in one line


class ServerLockInfo(msgspec.Struct):
    """The server of a data directory, as other processes find it."""

    pid: int
    url: str
    version: str
    public: str = ""  # how others call it, where that is something else
    has_line: bool = True  # commands can reach it


# -- live text
# ---------------------------------------------------------------------------------------


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The first line: who serves here."""

    protocol: int
    version: str
    pid: int
    path: str = ""  # the hash of where it looks for programs
    keys: tuple[str, ...] = ()  # names of keys that it has
    limits: str = ""  # the hash of its budget and its servers of tools


class DriveRequest(msgspec.Struct, tag="drive", frozen=True):
    """Asked by a command: take a run up, or look at what is new in it; tell of it from now on."""

    run: str


class DriveAccepted(msgspec.Struct, tag="driven", frozen=True):
    """It was taken up."""

    run: str


class DriveRefused(msgspec.Struct, tag="refused", frozen=True):
    """It cannot be taken up."""

    run: str
    kind: str  # of the error
    code: str
    message: str
    hint: str | None = None


class RunMoved(msgspec.Struct, tag="moved", frozen=True):
    """The newest event of a run has this number."""

    run: str
    seq: int


class LiveTextSent(msgspec.Struct, tag="said", frozen=True):
    """New text of an agent."""

    run: str
    effect: str
    kind: Literal["text", "tool", "note"]
    text: str


class Heartbeat(msgspec.Struct, tag="beat", frozen=True):
    """It is still there."""


class DriveTrouble(msgspec.Struct, tag="troubled", frozen=True):
    """Something keeps the server from driving a run on; it is tried again."""

    run: str
    message: str


FromServer: TypeAlias = (
    Hello | DriveAccepted | DriveRefused | RunMoved | LiveTextSent | Heartbeat | DriveTrouble
)


def keys_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the variables that hold keys of models and agents; never what is in them."""
    return tuple(sorted(name for name, text in environment.items() if text and _KEY.search(name)))


def path_of(environment: Mapping[str, str]) -> str:
    """What tells two PATHs apart."""
    return _hashed(os.fsencode(environment.get("PATH", "")))


def limits_of(settings: Settings) -> str:
    """What tells two budgets, and two sets of servers of tools, apart."""
    prices = {name: asdict(price) for name, price in settings.prices.items()}
    limits = [asdict(settings.budget), settings.mcp, *([prices] if prices else [])]
    return _hashed(msgspec.json.encode(limits, order="sorted"))


def _hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def as_line(message: FromServer | DriveRequest) -> bytes:
    return msgspec.json.encode(message) + b"\n"


# -- finding it ------------------------------------------------------------------------------------


def lock_holder(home: Path) -> ServerLockInfo | None:
    """The running server of a data directory, or None; its pid is 0 while it starts."""
    try:
        handle = os.open(home / RECORD, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(os.pread(handle, 4_096, 0), type=ServerLockInfo)
        return ServerLockInfo(pid=0, url="", version="")
    finally:
        os.close(handle)
    return None


def address_of(home: Path) -> str | None:
    """The address of the running server of this data directory, or None."""
    held = lock_holder(home)
    return (held.public or held.url).rstrip("/") or None if held is not None else None


HELLO_S = 5.0
CONNECT_RETRY_S = 0.05
Say = Callable[[str], None]
_DECODER = msgspec.json.Decoder(FromServer)


class LocalServerLink:
    """A command's end of the line."""

    def __init__(
        self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.pid = hello.pid
        self.hello = hello
        self._reader = reader
        self._writer = writer

    def drive(self, run: str) -> None:
        if not self._writer.is_closing():
            self._writer.write(as_line(DriveRequest(run)))

    async def hear(self, take: Callable[[FromServer], None]) -> None:
        """Forward live text until the peer disconnects."""
        with contextlib.suppress(OSError, ValueError):
            while line := await self._reader.readline():
                with contextlib.suppress(msgspec.DecodeError):  # a later version says more
                    take(_DECODER.decode(line))
        self.close()

    def close(self) -> None:
        self._writer.close()


async def reach(settings: Settings, say: Say, seconds: float = HELLO_S) -> LocalServerLink | None:
    """A connection to the server of a data directory; None without a server that may drive runs."""
    home = settings.home
    end = time.monotonic() + seconds
    while (held := lock_holder(home)) is not None:
        if not held.has_line:
            _without(say, held.pid, "it takes nothing from commands; its log says why")
            return None
        try:
            async with asyncio.timeout(max(CONNECT_RETRY_S, end - time.monotonic())):
                line = await _connected(home, say)
        except (FileNotFoundError, ConnectionError) as error:
            if time.monotonic() > end or (held.pid and isinstance(error, FileNotFoundError)):
                _without(say, held.pid, str(error.strerror or error).lower())
                return None
            await asyncio.sleep(CONNECT_RETRY_S)  # it is just starting, or about to leave
        except TimeoutError:
            _without(say, held.pid, "it does not answer")
            return None
        except OSError as error:
            _without(say, held.pid, str(error.strerror or error).lower())
            return None
        else:
            if line is not None and line.hello.limits != limits_of(settings):
                line.close()
                _without(say, held.pid, "it has another budget, or other servers of tools")
                return None
            return line
    return None


async def _connected(home: Path, say: Say) -> LocalServerLink | None:
    with host.socket_path(home, SOCKET) as path:
        reader, writer = await asyncio.open_unix_connection(path, limit=LINE_BYTES)
    try:
        hello = _DECODER.decode(await reader.readline())
    except (ValueError, asyncio.CancelledError) as error:
        writer.close()
        if isinstance(error, asyncio.CancelledError):
            raise
        raise ConnectionResetError("it hung up") from error
    if isinstance(hello, Hello) and hello.protocol == PROTOCOL:
        return LocalServerLink(hello, reader, writer)
    writer.close()
    version = hello.version if isinstance(hello, Hello) else "unknown"
    _without(say, 0, f"it is version {version} and this is version {__version__}")
    return None


def _without(say: Say, pid: int, why: str) -> None:
    who = f" (pid {pid})" if pid else ""
    say(f"warning: not using the local server{who}: {why}; running in this process")
