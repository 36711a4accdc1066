"""The ASGI application: host check, route, caller, role, limits, body, handler, response.

A page of another site may make a browser send requests here, and its host name may resolve to
this machine. So the Host must be one of ours, and so must the Origin if there is one.

A repeated request with the same Idempotency-Key gets the first response, for a day. While the
first request runs, a second one is refused for now; a different body under the same key is
refused. A server may crash between an action and storing the response. So the start of a
request is stored first, and its key is in the audit rows that are written with the action:
after a restart, either there is such a row and nothing is repeated, or nothing was done.

Mounted applications get requests with the same limits, and their responses the same headers.
"""

import base64
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loopwright.errors import LoopwrightError
from loopwright.http.clients import EarlyHandshake, admit, identify, refuse_agents
from loopwright.http.context import LOOPBACK, Context, RequestLimits, ServerOptions
from loopwright.http.operation_routes import app_of
from loopwright.http.requests import (
    NoBody,
    Route,
    RouteFamily,
    RouteRequest,
    parse_body,
    parse_query,
    read_body,
)
from loopwright.http.responses import (
    LONGEST,
    RequestRefusal,
    answer_lost,
    as_problem,
    as_response,
    headers_of,
    no_route,
    odd_path,
    problem_of,
    secured,
    secured_headers,
    without_paths,
)
from loopwright.operations.accounts.access import ROLES, Principal, Rates, acting_as
from loopwright.operations.problems import ProblemReport
from loopwright.ports import AuditRow, Clock, RecordStore, StoredRecord
from loopwright.views.event_records import request_name, under
from loopwright.workers.background_tasks import NAME


@runtime_checkable
class LimitsBodies(Protocol):
    """An application that has a limit of its own for some bodies."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""

    def body_limit(self, scope: Scope) -> int | None:
        """How many bytes the body of a request has at most; None for the usual limit."""

    async def refuse_body(self, scope: Scope) -> None:
        """Called when a body was too large or too slow."""


def bounded(app: ASGIApp, limits: RequestLimits, request_id: str) -> ASGIApp:
    """The application for one request; a socket bounds its messages itself."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        try:
            limit = app.body_limit(scope) if isinstance(app, LimitsBodies) else None
            limit = min(limits.body_bytes, limit or limits.body_bytes)
            body = await read_body(Request(scope, receive), limits, limit)
        except RequestRefusal as refusal:
            if isinstance(app, LimitsBodies):
                await app.refuse_body(scope)
            problem = problem_of(refusal)
            request_id_path = scope["path"], request_id
            response = as_problem(problem, headers_of(refusal, problem.status), request_id_path)
            await secured(response, request_id)(scope, receive, send)
            return
        await app(scope, _read_already(body, receive), _securing(send, request_id))

    return answer


def _read_already(body: bytes, receive: Receive) -> Receive:
    """The body first, whole; then whatever else comes."""
    left = [body]

    async def again() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return again


def _securing(send: Send, request_id: str) -> Send:
    async def secure(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = secured_headers(message.get("headers", ()), request_id)
            message = {**message, "headers": headers}
        await send(message)

    return secure


PORTS = {"http": 80, "https": 443}
SAFE = ("GET", "HEAD", "OPTIONS")
FOREIGN = ("cross-site", "same-site")
SECRETS = ("token", "access_token", "auth_token", "api_key", "apikey", "authorization")


class Guard:
    """Knows by which names this server may be called."""

    def __init__(self, serving: ServerOptions) -> None:
        self._limits = serving.limits
        named = [*LOOPBACK, serving.host_in_url, *serving.allowed_hosts]
        self.hosts = {host.lower() for host in named if host not in ("0.0.0.0", "[::]")}
        self.origins = {
            _origin(scheme, host, serving.port) for host in self.hosts for scheme in PORTS
        }
        if serving.public_url:
            public = urlsplit(serving.public_url)
            name = public.hostname or ""
            host = f"[{name}]" if ":" in name else name
            self.hosts.add(host)
            self.origins.add(_origin(public.scheme, host, public.port or PORTS[public.scheme]))

    def check(self, scope: Scope) -> None:
        """Refuse what must not come in."""
        headers = Headers(scope=scope)
        check_sizes(scope, self._limits)
        self._check_host(headers.getlist("host"))
        self._check_origin(scope, headers)
        _check_query(scope, self._limits)

    def _check_host(self, hosts: list[str]) -> None:
        if len(hosts) != 1 or _hostname(hosts[0]) not in self.hosts:
            raise RequestRefusal(
                400,
                "bad-host",
                "this server is not called so",
                hint="use its address, or start it with --allow-host NAME",
            )

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        origins = headers.getlist("origin")
        if len(origins) > 1 or (origins and origins[0].lower() not in self.origins):
            raise RequestRefusal(403, "foreign-origin", "pages of other sites may not ask here")
        method = scope.get("method", "GET")
        foreign = headers.get("sec-fetch-site", "").lower() in FOREIGN
        if foreign and (method not in SAFE or headers.get("sec-fetch-mode") == "websocket"):
            raise RequestRefusal(403, "foreign-origin", "pages of other sites may not ask here")


def _origin(scheme: str, host: str, port: int) -> str:
    """As browsers write it: without the port that everybody knows."""
    return f"{scheme}://{host}" + ("" if port == PORTS[scheme] else f":{port}")


def check_sizes(scope: Scope, limits: RequestLimits) -> None:
    """Addresses and headers have a limit, whatever they say."""
    target = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
    if target > limits.target_bytes:
        raise RequestRefusal(
            414, "address-too-long", f"an address has at most {limits.target_bytes} bytes"
        )
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    if size > limits.header_bytes:
        raise RequestRefusal(
            431, "headers-too-large", f"headers have at most {limits.header_bytes} bytes in all"
        )
    if len(scope["headers"]) > limits.header_fields:
        raise RequestRefusal(
            431, "headers-too-large", f"a request has at most {limits.header_fields} headers"
        )
    if not scope["path"].startswith("/"):
        raise RequestRefusal(400, "bad-target", "the address must begin with /")


def _check_query(scope: Scope, limits: RequestLimits) -> None:
    query = bytes(scope.get("query_string") or b"")
    if query.count(b"&") >= limits.query_fields:
        raise RequestRefusal(
            400, "too-many-parameters", f"at most {limits.query_fields} parameters"
        )
    names = {part.partition(b"=")[0].decode("latin-1").lower() for part in query.split(b"&")}
    if names.intersection(SECRETS):
        raise RequestRefusal(
            400,
            "secret-in-address",
            "a token does not belong into an address, which is written into logs",
            hint="send it as `Authorization: Bearer TOKEN`",
        )


def _hostname(host: str) -> str:
    """The name in a Host header, without its port; empty where it is not a name."""
    name, bracket, rest = host.partition("]") if host.startswith("[") else ("", "", host)
    if bracket:
        name, port = f"{name}]", rest.removeprefix(":") if rest else ""
        bad = bool(rest) and not rest.startswith(":")
    else:
        name, colon, port = rest.partition(":")
        bad = bool(colon) and not port
    if bad or (port and not port.isdigit()):
        return ""
    return name.lower()


HEADER = "idempotency-key"
REPLY = "reply"
KEPT_MS = 86_400_000
KEY_CHARS = 255


BEGUN = 0
"""Instead of a status: the answer is not known yet."""
MOST_ROWS = 1_000

Work = Callable[[], Awaitable[Response]]
Again = Callable[[AuditRow], Awaitable[Response]]
"""The answer to an earlier request, from its stored record."""


class StoredReply(msgspec.Struct, frozen=True):
    """What was answered."""

    digest: str
    status: int = BEGUN
    media: str = ""
    body: str = ""
    location: str = ""


class IdempotencyKeys:
    """Keeps answers by who asked and under which key."""

    def __init__(self, records: RecordStore, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._at_work: set[str] = set()

    async def once(
        self, who: Principal, key: str, request_id_path: bytes, *, work: Work, again: Again
    ) -> Response:
        """Do the work, unless it was done before under this key."""
        check_key(key)
        name = request_name(who.name, key)
        digest = hashlib.sha256(request_id_path).hexdigest()
        kept = self._kept(name)
        if kept is not None and kept.status != BEGUN:
            return _again(kept, digest)
        if name in self._at_work:
            raise RequestRefusal(
                409,
                "still-at-work",
                "the first request with this Idempotency-Key is still at work",
                headers={"Retry-After": "1"},
            )
        self._at_work.add(name)
        try:
            done = self._done(name) if kept is not None else None
            if done is not None and kept is not None:
                _check(kept, digest)
                response = await again(done)
            else:
                self._put(name, StoredReply(digest))
                with under(name):
                    response = await work()
            if response.status_code < 500:
                self._keep(name, digest, response)
            return response
        finally:
            self._at_work.discard(name)

    def forget_old(self) -> int:
        """Let go of what was kept for long enough."""
        old = self._records.records(REPLY, due_by=self._clock.now_ms(), limit=1_000)
        if old:
            self._records.change(drops=[(record.kind, record.key) for record in old])
        return len(old)

    def _kept(self, name: str) -> StoredReply | None:
        record = self._records.record(REPLY, name)
        if record is None or (record.due or 0) <= self._clock.now_ms():
            return None
        return msgspec.json.decode(record.body, type=StoredReply)

    def _done(self, name: str) -> AuditRow | None:
        """What a request that was begun and never answered has done first; None: nothing."""
        rows = self._records.audited(request=name, limit=MOST_ROWS)
        return rows[-1] if rows else None

    def _keep(self, name: str, digest: str, response: Response) -> None:
        reply = StoredReply(
            digest=digest,
            status=response.status_code,
            media=response.headers.get("content-type", ""),
            body=base64.b64encode(bytes(response.body)).decode(),
            location=response.headers.get("location", ""),
        )
        self._put(name, reply)

    def _put(self, name: str, reply: StoredReply) -> None:
        due = self._clock.now_ms() + KEPT_MS
        self._records.change(
            [(StoredRecord(kind=REPLY, key=name, body=msgspec.json.encode(reply), due=due), None)]
        )


def check_key(key: str) -> None:
    """A key is short, visible ASCII."""
    if not key or len(key) > KEY_CHARS or not all("!" <= sign <= "~" for sign in key):
        raise RequestRefusal(
            400,
            "bad-idempotency-key",
            f"an Idempotency-Key has 1 to {KEY_CHARS} visible ASCII characters",
        )


def _check(kept: StoredReply, digest: str) -> None:
    if kept.digest != digest:
        raise RequestRefusal(
            422,
            "key-reused",
            "this Idempotency-Key was used for another request",
            hint="take a new one",
        )


def _again(kept: StoredReply, digest: str) -> Response:
    _check(kept, digest)
    headers = {"Idempotency-Replayed": "true"}
    if kept.media:
        headers["Content-Type"] = kept.media
    if kept.location:
        headers["Location"] = kept.location
    return Response(base64.b64decode(kept.body), kept.status, headers=headers)


_LOG = logging.getLogger(NAME)
GUARD = "guard"  # instead of a family: requests that were refused before routing
MOST_LOGGED = 2_000  # of a path
VIEWER = ROLES[0]  # the role of a request that says nothing about who sends it
UNKNOWN = ("open", "signed")  # no sign-in is needed
WRITING = ("POST", "PUT", "PATCH", "DELETE")


class Application:
    """The ASGI application of all families."""

    def __init__(self, context: Context, families: Sequence[RouteFamily]) -> None:
        self._context = context
        self._families = sorted(families, key=lambda one: -len(one.prefix))
        self._table: dict[int, list[tuple[RouteFamily, Route]]] = {}  # by how many parts paths have
        for family in families:
            for route in family.routes:
                self._table.setdefault(route.path.count("/"), []).append((family, route))
        self._mounts: list[tuple[str, ASGIApp]] = [
            (mount.path, mount.make(context)) for family in families for mount in family.mounts
        ]
        self._guard = Guard(context.serving)
        self._rates = Rates(context.clock, context.serving.limits.requests_per_second)
        self.repeating = IdempotencyKeys(context.records, context.clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            return
        request_id = secrets.token_hex(8)
        try:
            self._guard.check(scope)
            mounted = self._mounted(scope["path"])
            if mounted is not None and scope["type"] == "websocket":
                handshake = EarlyHandshake(receive, send)
                receive, send = handshake.receive, handshake.send
                await refuse_agents(self._context, scope, handshake.complete)
            elif mounted is not None:
                await refuse_agents(self._context, scope)
        except LoopwrightError as error:
            path, problem = scope["path"], problem_of(error)
            headers = headers_of(error, problem.status)
            request_id_path = path, request_id
            response = self._told(self._family_of(path), request_id_path, problem, headers)
            self._note(request_id, scope, response.status_code, GUARD, 0.0)
            await _refused(secured(response, request_id), scope, receive, send)
            return
        if mounted is not None:
            app = bounded(mounted, self._context.serving.limits, request_id)
            await app(scope, receive, send)
        elif scope["type"] == "websocket":
            await _refused(Response(status_code=404), scope, receive, send)
        else:
            request = Request(scope, receive)
            began = time.perf_counter()
            response, family = await self._respond(request, request_id)
            took = time.perf_counter() - began
            self._note(request_id, scope, response.status_code, family, took)
            await secured(response, request_id)(scope, receive, send)

    def _note(self, request_id: str, scope: Scope, status: int, family: str, took: float) -> None:
        """Count and log an answer."""
        method = scope.get("method", "GET")  # a websocket has none
        self._context.metrics.count(method, family, status, took)
        _LOG.info(
            "request",
            extra={
                "request": request_id,
                "method": method,
                "path": scope["path"][:MOST_LOGGED],
                "status": status,
                "ms": round(took * 1_000, 1),
            },
        )

    def _mounted(self, path: str) -> ASGIApp | None:
        for prefix, app in self._mounts:
            if path == prefix or path.startswith(f"{prefix}/"):
                return app
        return None

    async def _respond(self, request: Request, request_id: str) -> tuple[Response, str]:
        """The answer, and the family that gave it."""
        path = request.scope["path"]
        family, name = self._family_of(path), "none"
        try:
            family, route, params = self._find(request)
            name = family.name
            return await self._serve(request, route, params), name
        except LoopwrightError as error:
            problem = problem_of(error, flags=_is_command_line(request))
            headers = headers_of(error, problem.status)
            return self._told(family, (path, request_id), problem, headers), name
        except Exception:
            _LOG.exception("request %s failed", request_id)
            return self._told(family, (path, request_id), _unexpected(request_id), {}), name

    def _family_of(self, path: str) -> RouteFamily | None:
        """The family in whose shape a path is refused that nothing is served at."""
        return next((one for one in self._families if path.startswith(one.prefix)), None)

    def _told(
        self,
        family: RouteFamily | None,
        request_id_path: tuple[str, str],
        problem: ProblemReport,
        headers: dict[str, str],
    ) -> Response:
        """A refusal in the shape of a family."""
        problem = without_paths(problem, self._context.private_paths)
        if family is None or family.refuse is None:
            return as_problem(problem, headers, request_id_path)
        return family.refuse(problem, headers)

    def _find(self, request: Request) -> tuple[RouteFamily, Route, dict[str, str]]:
        path, method = request.scope["path"], request.method
        raw = bytes(request.scope.get("raw_path") or b"").lower()
        tricks = b"%2f" in raw or b"%00" in raw or b"%5c" in raw
        if tricks or ".." in path.split("/"):
            raise odd_path(path)
        allowed: list[str] = []
        for family, route in self._table.get(path.count("/"), ()):
            matched = route.pattern.fullmatch(path)
            if matched is None:
                continue
            if route.method == method or (method == "HEAD" and route.method == "GET"):
                return family, route, matched.groupdict()
            allowed.append(route.method)
        if allowed:
            names = ", ".join(sorted(set(allowed)))
            raise RequestRefusal(
                405, "wrong-method", f"this takes {names}", headers={"Allow": names}
            )
        raise no_route(path)

    async def _serve(self, request: Request, route: Route, params: dict[str, str]) -> Response:
        context = self._context
        if route.need != "open" or route.method in WRITING:
            await refuse_agents(context, request.scope)
        who = None if route.need in UNKNOWN else identify(context, request)
        if who is not None and route.need != "open" and route.need != "signed":
            self._rates.count(who.root)  # more tokens are no more requests
            admit(context, who, route.need, f"{route.method} {request.scope['path']}"[:LONGEST])
        query = parse_query(request.query_params, route.query)
        raw = b""
        if route.method in WRITING:
            limits = context.serving.limits
            limits = replace(limits, body_seconds=route.body_seconds or limits.body_seconds)
            raw = await read_body(request, limits, route.body_bytes or limits.body_bytes)
        body = NoBody() if route.takes else parse_body(raw, request.headers, route.body)
        request_id_path = RouteRequest(
            context=context,
            request=request,
            route=route,
            params=params,
            _who=who,
            _body=body,
            _query=query,
            raw=raw,
        )

        async def work() -> Response:
            if route.draining == "refuse":
                context.part(app_of).refuse_while_draining()
            with acting_as(VIEWER if who is None else who.role):
                return as_response(await route.handle(request_id_path), route.status)

        keys = request.headers.getlist(HEADER)
        if route.method not in WRITING or not route.repeatable or not keys or who is None:
            return await work()

        async def again(done: AuditRow) -> Response:
            if route.again is None:
                raise answer_lost(done.action, done.subject)
            return as_response(await route.again(request_id_path, done.subject), route.status)

        query_string = bytes(request.scope.get("query_string") or b"")
        exactly = f"{route.method} {request.url.path}".encode() + b"?" + query_string + b"\n" + raw
        return await self.repeating.once(who, ",".join(keys), exactly, work=work, again=again)


def _is_command_line(request: Request) -> bool:
    """Whether the program of the command line asks, which shows a refusal to a person there."""
    return request.headers.get("user-agent", "").startswith("loopwright/")


def _unexpected(request_id: str) -> ProblemReport:
    """The answer contains no internal details; the server log has them under this id."""
    return ProblemReport(
        exit=1,
        status=500,
        code="unexpected",
        title="Something unexpected happened",
        detail=f"the server failed; its log tells more about request {request_id}",
    )


async def _refused(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """A refusal before anything was begun, on either transport."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
        return
    await response(scope, receive, send)
