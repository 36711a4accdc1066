"""One way for every request: guard, route, who asks, role, limits, body, handler, answer."""

import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from loopwright.app.access import ROLES
from loopwright.app.problems import Problem
from loopwright.app.run_admission import acting_as
from loopwright.errors import LoopwrightError
from loopwright.ports import AuditRow
from loopwright.server.answers import LONGEST, as_problem, as_response, secured
from loopwright.server.bodies import parse_body, parse_query, read_body
from loopwright.server.context import Context
from loopwright.server.guarding import Guard
from loopwright.server.identity import identify
from loopwright.server.logs import NAME
from loopwright.server.mounting import bounded
from loopwright.server.peers import refuse_agents
from loopwright.server.rates import Rates
from loopwright.server.refusals import (
    Refusal,
    answer_lost,
    headers_of,
    no_route,
    odd_path,
    problem_of,
    without_paths,
)
from loopwright.server.repeating import HEADER, Repeating
from loopwright.server.roles import admit
from loopwright.server.routes import Asked, Family, NoBody, Route

_LOG = logging.getLogger(NAME)
GUARD = "guard"  # in the place of a family: what was refused before any was asked
MOST_LOGGED = 2_000  # of a path
VIEWER = ROLES[0]  # the role of a request that says nothing about who sends it
UNKNOWN = ("open", "signed")  # nobody has to say who they are
WRITING = ("POST", "PUT", "PATCH", "DELETE")


class Application:
    """The ASGI application of all families."""

    def __init__(self, context: Context, families: Sequence[Family]) -> None:
        self._context = context
        self._families = sorted(families, key=lambda one: -len(one.prefix))
        self._table: dict[int, list[tuple[Family, Route]]] = {}  # by how many parts paths have
        for family in families:
            for route in family.routes:
                self._table.setdefault(route.path.count("/"), []).append((family, route))
        self._mounts: list[tuple[str, ASGIApp]] = [
            (mount.path, mount.make(context)) for family in families for mount in family.mounts
        ]
        self._guard = Guard(context.serving)
        self._rates = Rates(context.clock, context.serving.limits.requests_per_second)
        self.repeating = Repeating(context.cards, context.clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            return
        request_id = secrets.token_hex(8)
        try:
            self._guard.check(scope)
            mounted = self._mounted(scope["path"])
            if mounted is not None:
                await refuse_agents(self._context, scope)
        except LoopwrightError as error:
            path, problem = scope["path"], problem_of(error)
            headers = headers_of(error, problem.status)
            asked = path, request_id
            response = self._told(self._family_of(path), asked, problem, headers)
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

    def _family_of(self, path: str) -> Family | None:
        """The family in whose shape a path is refused that nothing is served at."""
        return next((one for one in self._families if path.startswith(one.prefix)), None)

    def _told(
        self,
        family: Family | None,
        asked: tuple[str, str],
        problem: Problem,
        headers: dict[str, str],
    ) -> Response:
        """A refusal in the shape of a family."""
        problem = without_paths(problem, self._context.private_paths)
        if family is None or family.refuse is None:
            return as_problem(problem, headers, asked)
        return family.refuse(problem, headers)

    def _find(self, request: Request) -> tuple[Family, Route, dict[str, str]]:
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
            raise Refusal(405, "wrong-method", f"this takes {names}", headers={"Allow": names})
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
        asked = Asked(
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
            with acting_as(VIEWER if who is None else who.role):
                return as_response(await route.handle(asked), route.status)

        keys = request.headers.getlist(HEADER)
        if route.method not in WRITING or not route.repeatable or not keys or who is None:
            return await work()

        async def again(done: AuditRow) -> Response:
            if route.again is None:
                raise answer_lost(done.action, done.subject)
            return as_response(await route.again(asked, done.subject), route.status)

        query_string = bytes(request.scope.get("query_string") or b"")
        exactly = f"{route.method} {request.url.path}".encode() + b"?" + query_string + b"\n" + raw
        return await self.repeating.once(who, ",".join(keys), exactly, work=work, again=again)


def _is_command_line(request: Request) -> bool:
    """Whether the program of the command line asks, which shows a refusal to a person there."""
    return request.headers.get("user-agent", "").startswith("loopwright/")


def _unexpected(request_id: str) -> Problem:
    """Nothing of what happened inside is told outside; the log has it under this id."""
    return Problem(
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
