"""Declaring a use case: its name, types, role, HTTP route, and behaviour while the server drains.

A handler gets the `App` (services of this process), the `Caller` and a request, and returns a
typed response. It knows nothing about HTTP, sockets or the command line. Interfaces call the
`Operation`, which checks the role and whether the server still accepts the request.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
)
from urllib.parse import quote

import msgspec

from loopwright.errors import LoopwrightError, NotAllowed, ServerDraining, VersionConflict
from loopwright.operations.accounts.access import (
    DENIED,
    ROLES,
    Access,
    Principal,
    Role,
    acting_as,
    current_user,
    find_caller,
)
from loopwright.operations.api_types import Request
from loopwright.operations.run_groups import Beside, OnDisconnect, alone
from loopwright.ports import Clock, EventLog, RecordStore, RunRow, StoredRecord, Workspaces
from loopwright.views.run_responses import RunSnapshot

if TYPE_CHECKING:
    from loopwright.kernel.state import State
    from loopwright.operations.agents.allowlist import AgentRegistry
    from loopwright.operations.definitions import Definitions
    from loopwright.operations.run_admission import WorkspaceRoots
    from loopwright.operations.run_request import RunStart
    from loopwright.operations.runs import Service
    from loopwright.operations.settings import Settings
    from loopwright.operations.webhooks import OutgoingWebhooks
    from loopwright.operations.wiring import Local
    from loopwright.views.run_responses import RunSnapshot

SECRET = ("secret", "cursors")
MOST = 1_000
_TAG = 8
_Entry = TypeVar("_Entry")


class Cursors:
    """Signs and reads cursors with a secret of the data directory, so that they outlive a
    restart.
    """

    def __init__(self, records: RecordStore) -> None:
        kind, key = SECRET
        if records.record(kind, key) is None:
            made = StoredRecord(kind=kind, key=key, body=secrets.token_bytes(32))
            with contextlib.suppress(VersionConflict):  # another process may be first
                records.change([(made, 0)])
        record = records.record(kind, key)
        assert record is not None, "it was just made"
        self._secret = record.body

    def after(self, kind: str, place: str) -> str:
        """The cursor of the page that follows this place."""
        text = f"{kind}:{place}".encode()
        return base64.urlsafe_b64encode(self._tag(text) + text).decode().rstrip("=")

    def place(self, kind: str, cursor: str) -> str:
        """Where a page ended; 400 for what we did not make."""
        try:
            raw = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
            tag, text = raw[:_TAG], raw[_TAG:]
            words = text.decode()
        except (ValueError, UnicodeError) as error:
            raise _bad() from error
        if not hmac.compare_digest(tag, self._tag(text)) or not words.startswith(f"{kind}:"):
            raise _bad()
        return words.removeprefix(f"{kind}:")

    def _tag(self, text: bytes) -> bytes:
        return hmac.new(self._secret, text, hashlib.sha256).digest()[:_TAG]


def _bad() -> LoopwrightError:
    return LoopwrightError(
        "this cursor belongs to another list", code="bad-cursor", hint="begin without one"
    )


class ListPage(NamedTuple, Generic[_Entry]):
    """Some entries of a list, and the cursor of those that follow; None: these are the last."""

    entries: list[_Entry]
    next: str | None


def page_of(
    cursors: Callable[[], Cursors],
    kind: str,
    found: Iterable[_Entry],
    place: Callable[[_Entry], str],
    *,
    limit: int,
    cursor: str | None,
) -> ListPage[_Entry]:
    """A page of a list, in the order of its places."""
    after = "" if cursor is None else cursors().place(kind, cursor)
    left = sorted((one for one in found if place(one) > after), key=place)
    page = left[:limit]
    more = cursors().after(kind, place(page[-1])) if len(left) > limit else None
    return ListPage(page, more)


def newest_first(at: int | None, name: str) -> str:
    """The place of an entry in a list that begins with the newest."""
    return f"{10**15 - (at or 0):016d} {name}"


def oldest_first(at: int, name: str) -> str:
    """The place of an entry in a list that begins with the oldest."""
    return f"{at:016d} {name}"


Kind: TypeAlias = Literal["query", "command", "stream", "raw"]
"""`raw` is for bodies that are not JSON, such as files."""

WhileDraining: TypeAlias = Literal["serve", "refuse"]
"""What happens to a request at a server that is about to stop. Refuse what begins new work; serve
what ends work or records a decision, which the next process acts on.
"""

Method: TypeAlias = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

Need: TypeAlias = Literal["open", "signed"] | Role
"""Who may call an operation: everybody, a caller that signs with a secret which the handler knows,
or a caller with at least this role.
"""

BYTES = "application/octet-stream"
_PARAMETER = re.compile(r"\{(\w+)\}")


class RunReference(Request):
    """A run, by its whole id."""

    run: str


class PageRequest(Request):
    """Which page of a list, and how much of it."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST)] = MOST
    cursor: str | None = None


class FileContent(msgspec.Struct, frozen=True):
    """A response that is a file: its bytes, their hash, and the name to save it under."""

    data: bytes
    digest: str
    name: str


def _never() -> bool:
    return False


def _nothing() -> None:
    return None


def _no_address() -> str:
    return ""


async def _in_thread(work: "Callable[[], _Part]") -> "_Part":
    return await asyncio.to_thread(work)


class KeepBeside(Protocol):
    """What is stored with a new run for the case that its starter disconnects."""

    def __call__(
        self,
        caller: "Caller",
        on_disconnect: OnDisconnect | None,
        *,
        start: "RunStart | None" = None,
        name: str = "",
    ) -> Beside: ...


def _beside_nothing(
    caller: "Caller",
    on_disconnect: OnDisconnect | None,
    *,
    start: "RunStart | None" = None,
    name: str = "",
) -> Beside:
    return alone


_Part = TypeVar("_Part")


class RunSlowly(Protocol):
    """Runs work that needs much time and memory, such as the hash of a password."""

    def __call__(self, work: Callable[[], _Part], /) -> Awaitable[_Part]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """What operations work with: the same for a server and for a command without one."""

    log: EventLog
    clock: Clock
    settings: "Settings"
    records: RecordStore
    get_service: "Callable[[], Service]"  # what needs more than rows of the log
    visible_rows: Callable[[list[RunRow]], list[RunRow]] | None = None  # None: all of them
    workspace: Path = field(default_factory=Path.cwd)  # of runs that name none
    definitions: "Callable[[], Definitions] | None" = None  # the stored ones
    registry: "Callable[[], AgentRegistry] | None" = None  # agents that editors may use
    roots: "Callable[[], WorkspaceRoots] | None" = None  # folders that editors may use
    is_draining: Callable[[], bool] = _never
    get_workspaces: Callable[[], Workspaces | None] = _nothing  # the snapshots of runs
    read_state: "Callable[[str], Awaitable[State]] | None" = None  # where views are cached
    read_snapshot: "Callable[[str], Awaitable[RunSnapshot]] | None" = None
    beside: KeepBeside = _beside_nothing
    here: "Local | None" = None  # of a process that drives runs
    webhooks: "Callable[[], OutgoingWebhooks] | None" = None
    run_slowly: RunSlowly = _in_thread
    base_url: Callable[[], str] = _no_address  # what links to this server begin with
    _parts: dict[Callable[..., object], Any] = field(default_factory=dict)

    def part(self, kind: "Callable[[App], _Part]") -> _Part:
        """What a use case keeps for as long as the process lives; made when it is first needed."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        found: _Part = self._parts[kind]
        return found

    @property
    def service(self) -> "Service":
        """The use cases of runs."""
        return self.get_service()

    @property
    def workspaces(self) -> Workspaces | None:
        """The snapshots of runs."""
        return self.get_workspaces()

    def access(self) -> Access:
        """Accounts, tokens and the audit log, for the interface of this process."""
        return Access(self.records, self.service.clock, self.service.via)

    def refuse_while_draining(self) -> None:
        """The one place where a server that is about to stop refuses new work."""
        if self.is_draining():
            raise ServerDraining("the server is about to stop")

    def cursors(self) -> Cursors:
        """The cursors of pages, which only this data directory can create."""
        return Cursors(self.records)

    async def state(self, run: str) -> "State":
        """The state of a run now."""
        return self.service.state(run) if self.read_state is None else await self.read_state(run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls an operation, and through which interface."""

    name: str
    role: Role
    interface: str
    inside: str = ""  # the run that a program of a run belongs to
    principal: Principal | None = None  # how they signed in; None: there is no sign-in
    address: str = ""  # the network address that a request came from

    def check(self, role: Need) -> None:
        """NotAllowed unless the caller has this role or a higher one."""
        if role == "open" or role == "signed":
            return
        if ROLES.index(self.role) < ROLES.index(role):
            hint = f"this needs the role {role}; {self.name} is {self.role}"
            raise NotAllowed(DENIED, code="role", hint=hint)


def local_app(service: "Service", settings: "Settings", workspace: Path | None = None) -> App:
    """What operations work with in a process that has opened the data directory itself."""
    return replace(
        _app_of(service.log, service.clock, settings, lambda: service),
        visible_rows=None if service.rights is None else service.visible_rows,
        workspace=workspace or Path.cwd(),
    )


def list_app(
    log: EventLog,
    settings: "Settings",
    clock: Clock,
    get_service: "Callable[[], Service]",
    get_workspaces: Callable[[], Workspaces | None],
) -> App:
    """The same before the service is opened, which lists do not need unless a program of a run
    calls.
    """

    def visible_rows(rows: list[RunRow]) -> list[RunRow]:
        return get_service().visible_rows(rows)

    return replace(
        _app_of(log, clock, settings, get_service),
        visible_rows=None if find_caller() is None else visible_rows,
        get_workspaces=get_workspaces,
    )


def _app_of(
    log: EventLog, clock: Clock, settings: "Settings", get_service: "Callable[[], Service]"
) -> App:
    records = cast("RecordStore", log)  # the log of a data directory also stores its records

    def stored() -> "Definitions":
        from loopwright.operations.definitions import Definitions  # noqa: PLC0415 - rarely needed

        return Definitions(records, Access(records, clock))

    def webhooks() -> "OutgoingWebhooks":
        from loopwright.operations.webhooks import (  # noqa: PLC0415 - rarely needed
            OutgoingWebhooks,
        )

        return OutgoingWebhooks(
            log,
            records,
            Access(records, clock),
            clock,
            loopback=settings.webhooks_to_loopback == "on",
        )

    def registry() -> "AgentRegistry":
        from loopwright.operations.agents.allowlist import (  # noqa: PLC0415 - rarely needed
            AgentRegistry,
            listed_default,
        )

        return AgentRegistry(Access(records, clock), listed_default(settings))

    def roots() -> "WorkspaceRoots":
        from loopwright.operations.run_admission import WorkspaceRoots  # noqa: PLC0415 - the same

        access = Access(records, clock)
        return WorkspaceRoots(access, settings.home, named=settings.workspaces)

    def base_url() -> str:
        from loopwright.operations.data_directory import address_of  # noqa: PLC0415 - the same

        return address_of(settings.home) or "SERVER"

    return App(
        log=log,
        clock=clock,
        settings=settings,
        records=records,
        get_service=get_service,
        definitions=stored,
        registry=registry,
        roots=roots,
        webhooks=webhooks,
        base_url=base_url,
    )


def local_caller(interface: str = "cli") -> Caller:
    """The person who owns this process, or the agent of a run that it descends from. The data
    directory is theirs, so they have every right; what a program of a run may do is decided by
    the service.
    """
    inside = find_caller()
    run = inside.run if inside is not None else ""
    return Caller(name=current_user(), role="admin", interface=interface, inside=run)


Q = TypeVar("Q", bound=Request)
A = TypeVar("A")
Handle: TypeAlias = Callable[[App, Caller, Q], Awaitable[A]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawBody:
    """A body that is not described as JSON: the field of the request that has its bytes."""

    field: str
    media: str = BYTES
    most_bytes: int | None = None  # None: as many as any body
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """Where an operation is served. Fields of the request that a path, a header or `raw` names are
    taken from there; the others come from the query of a GET, a DELETE or a request with a raw
    body, and from the JSON body of every other method.
    """

    method: Method
    path: str
    _: KW_ONLY
    other_paths: tuple[str, ...] = ()  # of the same use case, with other fields of the request
    status: int = 200
    also: tuple[int, ...] = ()  # further statuses, with the same response
    status_of: Callable[[Any], int] | None = None  # of a response, where there are several
    location: str = ""  # of what was created, with fields of the response: /api/v1/runs/{run}
    schema: str = ""  # what the body or query is called in the description of the API
    is_body_optional: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)  # by field: {"if_match": "If-Match"}
    etag: str = ""  # the field of the response that is its version
    raw: RawBody | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path at which the operation is served."""
        return (self.path, *self.other_paths)

    @property
    def outside(self) -> frozenset[str]:
        """The fields of a request that are neither in its query nor in its JSON body."""
        in_paths = {name for path in self.paths for name in _PARAMETER.findall(path)}
        raw = () if self.raw is None else (self.raw.field,)
        return frozenset(in_paths.union(self.headers, raw))

    @property
    def has_query(self) -> bool:
        """Whether the other fields are in the query."""
        return self.method in ("GET", "DELETE") or self.raw is not None

    def address(self, request: Request) -> str:
        """The path for a request, with its values; of several, the one whose fields are set."""
        fitting = [
            path
            for path in self.paths
            if all(getattr(request, name) for name in _PARAMETER.findall(path))
        ]
        path = fitting[0] if fitting else self.path
        values = {name: str(getattr(request, name)) for name in _PARAMETER.findall(path)}
        return path.format_map({name: quote(one, safe="") for name, one in values.items()})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation(Generic[Q, A]):
    """A use case as it is declared, which interfaces call."""

    name: str
    kind: Kind
    summary: str
    role: Need
    request: type[Q]
    response: type[A]
    http: HttpRoute | None
    draining: WhileDraining
    audit: tuple[str, ...] = ()  # its actions in the audit log
    waits_seconds: float = 0.0  # the longest that it waits for an effect of what it has recorded
    repeatable: bool = True  # whether a repeated Idempotency-Key returns the first response
    again: Callable[[App, Caller, str], Awaitable[A]] | None = None
    """The response for something that was created, by its name, if the first response is lost."""
    family: str = ""  # its group in the description of the API; the noun by default
    _handle: Handle[Q, A]

    def route(self) -> HttpRoute:
        """Where it is served."""
        assert self.http is not None, f"{self.name} has no route"
        return self.http

    async def __call__(self, app: App, caller: Caller, request: Q) -> A:
        """Do it, if the caller may and the server still accepts it."""
        caller.check(self.role)
        if self.role == "admin" and self.kind == "command":
            rights = app.service.rights
            if rights is not None:
                # The owner of the data directory is an admin, and so would be an agent of theirs.
                rights.refuse("change accounts, webhooks or lists of a server", self.name)
        if self.draining == "refuse":
            app.refuse_while_draining()
        if self.kind == "command" and caller.principal is None and not request.is_valid:
            validate(request)
        with acting_as(caller.role):
            return await self._handle(app, caller, request)


def validate(request: Request) -> None:
    """Refuse a request that was made in this process and exceeds a bound of its fields. Requests
    from outside are validated where they are read.
    """
    kind = type(request)
    value = msgspec.to_builtins(request, builtin_types=(bytes,))
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        from loopwright.operations.problems import request_problem  # noqa: PLC0415 - rarely needed

        raise request_problem(kind, value, str(error)) from error


def operation(  # noqa: PLR0913 - one parameter for each part of a declaration
    name: str,
    kind: Kind,
    role: Need,
    summary: str,
    *,
    http: HttpRoute | None = None,
    draining: WhileDraining | None = None,
    audit: tuple[str, ...] | None = None,
    waits_seconds: float = 0.0,
    repeatable: bool = True,
    again: Callable[[App, Caller, str], Awaitable[Any]] | None = None,
    family: str = "",
) -> Callable[[Handle[Q, A]], Operation[Q, A]]:
    """Declare the use case that a handler is; its request and response have the types that the
    handler has. A command has to say what happens while the server drains, and which actions it
    writes to the audit log, `()` for none; a query is served.
    """
    if kind == "command" and (draining is None or audit is None):
        raise LoopwrightError(f"{name}: a command declares `draining` and `audit`")

    def declare(handle: Handle[Q, A]) -> Operation[Q, A]:
        *_, request, response = handle.__annotations__.values()
        return Operation(
            name=name,
            kind=kind,
            summary=summary,
            role=role,
            request=request,
            response=type(None) if response is None else response,
            http=http,
            draining=draining or "serve",
            audit=audit or (),
            waits_seconds=waits_seconds,
            repeatable=repeatable,
            again=again,
            family=family or name.partition(".")[0],
            _handle=handle,
        )

    return declare
