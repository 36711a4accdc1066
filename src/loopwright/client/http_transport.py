"""Calls of operations over HTTP: the inverse of `http/operation_routes.py`.

The method, the path, the query and the body of a request follow from the declaration of its
operation. A refusal (problem+json) is raised as the exception that the operation raises. Tokens
come from the environment, from a file or from `loopwright login`, never from the command line,
where other users could see them.
"""

import asyncio
import json
import secrets
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec

from loopwright import __version__
from loopwright.client.http_connection import (
    LOST,
    HttpCall,
    HttpReply,
    LocalSocket,
    Target,
    exchange,
)
from loopwright.client.servers import TOKEN, TOKEN_FILE, Account
from loopwright.client.transport import Fed, Followed, FollowOptions, Keeper, SeenEvent
from loopwright.errors import (
    Conflict,
    DefinitionError,
    LoopwrightError,
    NotAllowed,
    NotFound,
    NotSignedIn,
    ServerFailed,
    Unreachable,
)
from loopwright.kernel.events import RunFinished, RunPaused
from loopwright.model.plan import Plan, decode_plan
from loopwright.model.record import JsonValue
from loopwright.operations.api_types import Request
from loopwright.operations.use_cases.operation import (
    FileContent,
    Operation,
    RunReference,
)
from loopwright.operations.use_cases.run_queries import plan, show, snapshot
from loopwright.ports import OPEN_STATUSES, Delta
from loopwright.syntax.document import Diagnostic
from loopwright.views.event_records import event_from_wire, text_of
from loopwright.views.progress import Progress, ProgressLine
from loopwright.views.run_responses import RunSummary

API = 1  # the version of the API that this client uses
SECONDS = 30.0
QUIET_SECONDS = 60.0  # of a stream, in which something is sent every 15 seconds
RETRIES_S = (0.2, 0.5, 1.0, 2.0, 5.0)
PAGE = 200
HEALTH = "/api/v1/health"
SESSION = "/api/v1/session"
EVENTS: dict[str, str] = {
    "events": "/api/v1/runs/{run}/events",
    "words": "/api/v1/runs/{run}/events",
    "transcript": "/api/v1/runs/{run}/logs",
    "dialect": "/v1/runs/{run}/events",
}
"""Where the views of events are served."""

_ERRORS: dict[int, type[LoopwrightError]] = {
    401: NotSignedIn,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    412: Conflict,
    428: Conflict,
}
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
Q = TypeVar("Q", bound=Request)
A = TypeVar("A")


def encode_request(
    operation: Operation[Q, Any], request: Q
) -> tuple[str, bytes | None, dict[str, str]]:
    """The path with its query, the body and the headers of a call. Fields that have their default
    value are left out, so that an older server need not know them.
    """
    route = operation.route()
    given = {
        one.encode_name: msgspec.to_builtins(getattr(request, one.name))
        for one in msgspec.structs.fields(operation.request)
        if one.name not in route.outside and not _is_default(one, getattr(request, one.name))
    }
    sent = {header: getattr(request, name) for name, header in route.headers.items()}
    headers = {header: str(value) for header, value in sent.items() if value is not None}
    body = None
    if route.raw is not None:
        body, headers["Content-Type"] = getattr(request, route.raw.field), route.raw.media
    elif not route.has_query:
        # Half a character, which an argument that is not text has, is replaced as it is here.
        body = json.dumps(given, ensure_ascii=False).encode(errors="replace")
    if operation.response is FileContent:
        headers["Accept"] = "*/*"
    pairs = [pair for name, value in given.items() for pair in _pairs(name, value)]
    query = urlencode(pairs, errors="replace")
    path = route.address(request)
    return (f"{path}?{query}" if query and route.has_query else path), body, headers


def _is_default(field: msgspec.structs.FieldInfo, value: object) -> bool:
    if field.default_factory is not msgspec.NODEFAULT:
        return bool(value == field.default_factory())
    return field.default is not msgspec.NODEFAULT and bool(value == field.default)


def _pairs(name: str, value: object) -> list[tuple[str, str]]:
    values = value if isinstance(value, list | tuple) else (value,)
    return [(name, str(one).lower() if isinstance(one, bool) else str(one)) for one in values]


class HttpTransport:
    """Calls a server."""

    def __init__(
        self,
        target: Target,
        *,
        token: str = "",
        account: Account | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.target = target
        self._token = token
        self._account = account
        self._say = say
        self._is_checked = False
        self._is_signed_in = False
        self._cookie = ""

    async def call(self, operation: Operation[Q, A], request: Q, key: str = "") -> A:
        """Call an operation through its route. A command that was done under this key before is not
        repeated.
        """
        path, body, more = encode_request(operation, request)
        if operation.kind == "command" and operation.repeatable:
            more["Idempotency-Key"] = key or secrets.token_hex(16)
        seconds = SECONDS + operation.waits_seconds
        data = await self.send(operation.route().method, path, body, more, seconds=seconds)
        if operation.response is FileContent:
            return cast("A", FileContent(data=data, digest="", name=""))
        return self._decode(data or b"null", operation.response)

    def _decode(self, data: bytes, kind: type[A]) -> A:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.ValidationError as error:
            raise ServerFailed(
                f"{self.target.url} sent a response that this version cannot read: {error}",
                code="other-version",
                hint="use versions that fit together",
            ) from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise ServerFailed(
                f"{self.target.url} answered with what is not JSON", code="not-loopwright"
            ) from error

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        more: Mapping[str, str] | None = None,
        *,
        seconds: float = SECONDS,
    ) -> bytes:
        """The body of the response to a request; raises the error of a refusal."""
        await self._check_version()
        await self._sign_in()
        status, data = await self._exchange(method, path, body, more or {}, seconds)
        if status >= 300:
            raise self._refusal(status, data)
        return data

    async def read_health(self) -> object:
        """What the server says about its health, unchecked; None if it is of an older version."""
        try:
            data = await self.send("GET", HEALTH)
        except NotFound:
            return None
        return self._decode(data or b"null", object)

    async def close(self) -> None:
        """Sign out, if an account was signed in. Nothing else is open between two calls."""
        if not self._is_signed_in:
            return
        try:
            await self.send("DELETE", SESSION)
        except LoopwrightError as error:  # the session ends by itself, later
            self._say(f"warning: the session was not ended: {error.message}")
        self._is_signed_in, self._cookie = False, ""

    async def _sign_in(self) -> None:
        """Begin a session with the account, once."""
        if self._account is None or self._is_signed_in:
            return
        given = {"name": self._account.name, "password": self._account.password}
        body = json.dumps(given, ensure_ascii=False).encode(errors="replace")
        status, data = await self._exchange("POST", SESSION, body, {}, SECONDS)
        if status >= 300:
            raise self._refusal(status, data)
        self._is_signed_in = True

    # -- requests ------------------------------------------------------------------------------

    async def _exchange(
        self, method: str, path: str, body: bytes | None, more: Mapping[str, str], seconds: float
    ) -> tuple[int, bytes]:
        headers = {**self._headers(), **more}
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        call = HttpCall(method=method, path=path, headers=headers, body=body, seconds=seconds)
        try:
            async with exchange(self.target, call) as reply:
                if path == SESSION:
                    self._cookie = _session_cookies(reply.header_values("set-cookie"))
                return reply.status, await reply.read()
        except LOST as error:
            raise self._unreachable(error) from error

    def _headers(self, accept: str = "application/json") -> dict[str, str]:
        headers = {"Accept": accept, "User-Agent": f"loopwright/{__version__}"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if self._cookie:
            headers |= {"Cookie": self._cookie, "Origin": self.target.url}
        return headers

    async def _check_version(self) -> None:
        """Check once that a Loopwright server with the same API answers."""
        if self._is_checked:
            return
        status, data = await self._exchange("GET", "/api/version", None, {}, SECONDS)
        url = self.target.url
        try:
            found = msgspec.json.decode(data) if status == 200 else {}
            api, version = int(found["api"]), str(found["version"])
        except _UNREADABLE as error:
            raise ServerFailed(
                f"{url} is not a Loopwright server",
                code="not-loopwright",
                hint="it sends to another address: name that one" if 300 <= status < 400 else None,
            ) from error
        if api != API:
            raise ServerFailed(
                f"{url} is version {version} and speaks API {api}; this command is "
                f"version {__version__} and speaks API {API}",
                code="other-version",
                hint="use versions that fit together",
            )
        self._is_checked = True

    # -- refusals ------------------------------------------------------------------------------

    def _unreachable(self, error: Exception) -> Unreachable:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, ssl.SSLCertVerificationError):
            return Unreachable(
                f"the certificate of {self.target.url} is not trusted here: {error.verify_message}",
                code="bad-certificate",
                hint="name a PEM file with the one to trust in SSL_CERT_FILE",
            )
        return Unreachable(
            f"{self.target.url} does not answer: {why.lower()}",
            hint="see whether it runs there: `loopwright serve`",
        )

    def _refusal(self, status: int, data: bytes) -> LoopwrightError:
        is_local = isinstance(self.target, LocalSocket)
        return read_refusal(self.target.url, status, data, is_local=is_local)

    # -- events --------------------------------------------------------------------------------

    async def open_feed(self, run: str, after: int | None, options: FollowOptions) -> "ServedFeed":
        """Follow a run after an event, or from now on."""
        found = await self.call(plan, RunReference(run=run))
        feed = ServedFeed(self, run, decode_plan(json.dumps(found.plan)), options)
        if after != 0:
            await feed.skip(after)
        return feed

    async def follow(self, run: str, options: FollowOptions) -> AsyncIterator[Followed]:
        """Events of a run. A lost connection is made again, after the last event that came."""
        if options.until_end and await self._is_paused(run):
            options = replace(options, until_end=False)
        if options.until_end or options.view == "transcript":
            last = options.after
            async for record in self._stream_again(run, options):
                last = int(str(record.get("seq", last)))
                yield _as_followed(record)
            options = replace(options, after=last)
        if options.view == "dialect" or not (options.until_end or options.view == "transcript"):
            async for record in self._pages(run, options):
                yield record

    async def _pages(self, run: str, options: FollowOptions) -> AsyncIterator[dict[str, JsonValue]]:
        """The events that exist now, page by page."""
        path = _run_path(EVENTS[options.view], run)
        is_dialect = options.view == "dialect"
        query = {"own": "true"} if is_dialect else {"limit": str(PAGE)}
        if options.view == "words":
            query["words"] = "true"
        query["after"], more = str(options.after), ""
        while more is not None:
            page = msgspec.json.decode(await self.send("GET", f"{path}?{urlencode(query)}"))
            for one in page["events"]:
                yield one
            more = page["next"]
            query["cursor" if is_dialect else "after"] = str(more)

    async def _stream_again(
        self, run: str, options: FollowOptions
    ) -> AsyncIterator[dict[str, JsonValue]]:
        await self._check_version()
        after, tries, is_tail = options.after, 0, options.tail
        while True:
            now = replace(options, after=after, tail=is_tail)
            try:
                async with aclosing(self._stream(run, now)) as records:
                    async for record in records:
                        after, tries = int(str(record.get("seq", after))), 0
                        yield record
                return
            except LOST as error:
                if not options.retry:
                    raise self._unreachable(error) from error
                if not tries:
                    self._say(f"{self.target.url} is gone; reconnecting")
                await asyncio.sleep(RETRIES_S[min(tries, len(RETRIES_S) - 1)])
                tries += 1
                is_tail = False  # earlier text was shown before

    async def _stream(
        self, run: str, options: FollowOptions
    ) -> AsyncGenerator[dict[str, JsonValue], None]:
        """One stream of server-sent events until its end. Raises ConnectionResetError if it ends
        although the run has not.
        """
        kind = ""
        async with self._open_stream(run, options) as reply:
            if reply.status == 204:
                return
            if reply.status >= 400:
                raise self._refusal(reply.status, await reply.read())
            async for line in reply.lines():
                if line == b"event: end":
                    return
                if line.startswith(b":") and await self._is_paused(run):  # the stream is silent
                    return
                if line.startswith(b"data: "):
                    record = msgspec.json.decode(line[6:])
                    named = str(record.get("kind") or record.get("type") or "")
                    if named and named != "delta":
                        kind = named
                    if named:
                        yield record
        if not await self._is_over(run, options, kind):
            raise ConnectionResetError("the stream ended")

    async def _is_paused(self, run: str) -> bool:
        """Whether a run is paused and no iteration of it is under way."""
        page = await self.call(snapshot, RunReference(run=run))
        is_working = any(one.status == "running" for one in page.passes) and not page.gates
        return page.status == "paused" and not is_working

    @asynccontextmanager
    async def _open_stream(self, run: str, options: FollowOptions) -> AsyncIterator[HttpReply]:
        wanted = {
            "words": options.view == "words",
            "own": options.view == "dialect",
            "text": options.text,
            "tail": options.text and options.tail,
        }
        query = {name: "true" for name, is_wanted in wanted.items() if is_wanted}
        if not options.until_end:
            query["follow"] = "false"
        path = _run_path(EVENTS[options.view], run) + (f"?{urlencode(query)}" if query else "")
        headers = {**self._headers("text/event-stream"), "Last-Event-ID": str(options.after)}
        call = HttpCall(method="GET", path=path, headers=headers, seconds=QUIET_SECONDS)
        async with exchange(self.target, call) as reply:
            yield reply

    async def _is_over(self, run: str, options: FollowOptions, kind: str) -> bool:
        """Whether a stream whose last event was of this kind has everything."""
        if options.view != "dialect":
            return kind == ("end" if options.view == "transcript" else "run.finished")
        try:  # only the system of the definition knows which event is the last one
            page = msgspec.json.decode(await self.send("GET", f"/api/v1/runs/{quote(run)}"))
        except Unreachable as error:
            raise ConnectionResetError(error.message) from error
        return page["status"] not in OPEN_STATUSES


class ServedFeed:
    """A run that a server drives."""

    other_driver = None
    keeper: Keeper = "server"

    def __init__(
        self, transport: HttpTransport, run: str, plan_of_run: Plan, options: FollowOptions
    ) -> None:
        self.run = run
        self.progress = Progress(plan_of_run, text_of)
        self._transport, self._options = transport, options
        self._seen = 0
        self._is_tail = options.tail
        self._knows_all = True  # no event was of a kind that only a later version knows

    async def skip(self, after: int | None) -> None:
        """Take the events up to a number, or all that there are now, without returning them."""
        options = FollowOptions(until_end=False)
        async for one in self._transport.follow(self.run, options):
            assert isinstance(one, dict)
            if after is not None and int(str(one["seq"])) > after:
                return
            self._take(one)

    async def follow(self) -> AsyncGenerator[Fed, None]:
        """What comes next. Text from before is returned once."""
        is_running, is_held = (await self.read_summary()).status == "running", False
        options = replace(
            self._options,
            after=self._seen,
            view="words",
            tail=self._is_tail,
            until_end=is_running,
        )
        self._is_tail = False
        async for one in self._transport.follow(self.run, options):
            if isinstance(one, Delta):
                self.progress.hear(one)
                yield one
                continue
            yield self._take(one)
            is_held = is_held or one["kind"] in ("gate.opened", "run.paused")
            if is_held and (await self.read_summary()).status != "running":
                return

    def _take(self, record: dict[str, JsonValue]) -> SeenEvent:
        """Fold an event. Its line is that of the server, which has the whole texts."""
        self._seen = int(str(record["seq"]))
        words = record.pop("told", None)
        line = msgspec.convert(words, ProgressLine) if words is not None else None
        try:
            numbered = event_from_wire(record)
        except msgspec.ValidationError:  # of a kind that a later version writes
            path, kind = record.get("path", ""), record["kind"]
            text = f"{path}: unknown event {kind}; a newer loopwright would know it"
            self._knows_all = False
            return SeenEvent(None, ProgressLine(text), record)
        if not self._knows_all and not isinstance(numbered.event, RunFinished | RunPaused):
            return SeenEvent(None, line, record)  # the steps and iterations are not known any more
        self.progress.take(numbered)
        return SeenEvent(numbered, line, record)

    async def read_summary(self) -> RunSummary:
        """The run as one object."""
        return await self._transport.call(show, RunReference(run=self.run))


def _session_cookies(given: list[str]) -> str:
    """All cookies that were set: a proxy before a server may have its own."""
    pairs = [" ".join(one.partition(";")[0].split()) for one in given]
    return "; ".join(pair for pair in pairs if pair.isascii() and pair)


def _run_path(template: str, run: str) -> str:
    return template.replace("{run}", quote(run, safe=""))


def _as_followed(record: dict[str, JsonValue]) -> Followed:
    if record.get("kind") != "delta":
        return record
    with suppress(msgspec.ValidationError):
        return msgspec.convert({**record, "kind": record["said"]}, Delta)
    return record


def read_refusal(url: str, status: int, data: bytes, *, is_local: bool = False) -> LoopwrightError:
    """The exception for a response of a server that is a refusal."""
    try:
        detail, code, hint, errors = _read_problem(msgspec.json.decode(data))
    except _UNREADABLE:
        return ServerFailed(f"{url} answered with {status}")
    if status == 401:
        hint = (
            f"sign in: `loopwright login {url}`; or put a token of that server into {TOKEN}, or "
            f"name a file in {TOKEN_FILE}"
        )
    if code == "agent-not-signed-in" and hint and not is_local:
        hint = f"on the machine of {url}: {hint}"
    if code == DefinitionError.code:
        return _definition_error(detail, errors)
    kind = _ERRORS.get(status, LoopwrightError if status < 500 else ServerFailed)
    return kind(detail, code=code, hint=hint)


def _read_problem(found: dict[str, Any]) -> tuple[str, str, str | None, object]:
    """A refusal: its message, code, hint and details. Routes of other systems have another format,
    with the hint in the message.
    """
    if "error" in found:
        inner = found["error"] if isinstance(found["error"], dict) else found["details"]
        hint = inner.get("hint")
        detail = str(inner.get("message") or found["error"]).removesuffix(f" ({hint})")
        return detail, str(inner.get("code") or inner["reason"]), hint, inner.get("errors")
    code = str(found["type"]).rpartition(":")[2]
    return str(found["detail"]), code, found.get("hint"), found.get("errors")


def _definition_error(detail: str, errors: object) -> DefinitionError:
    """The error of a definition that was refused, with each of its problems."""
    found = [one for one in errors if isinstance(one, dict)] if isinstance(errors, list) else []
    problems = [
        Diagnostic(
            file=str(one.get("file")),
            line=int(one.get("line") or 1),
            column=int(one.get("column") or 1),
            code=str(one.get("code")),
            message=str(one.get("message")),
            hint=one.get("hint"),
            severity="warning" if one.get("severity") == "warning" else "error",
        )
        for one in found
    ]
    return DefinitionError(detail, problems=problems)
