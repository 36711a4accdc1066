"""HTTP routes of operations, derived from the table: method, path, role, body, query, response.

Fields that the path names are taken from the path, the others from the query of a GET or DELETE
and from the body of every other method. The description of the API is made from the same routes.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, get_type_hints

import msgspec

from loopwright.http.context import Context
from loopwright.http.requests import (
    Answer,
    Body,
    NoBody,
    NoQuery,
    OptionalBody,
    PageQuery,
    Query,
    Refuse,
    Route,
    RouteFamily,
    RouteRequest,
)
from loopwright.http.responses import RequestRefusal, as_response, file_response
from loopwright.kernel.state import State
from loopwright.operations.accounts.access import Principal
from loopwright.operations.api_types import Request
from loopwright.operations.run_groups import Beside, OnDisconnect
from loopwright.operations.run_request import RunStart
from loopwright.operations.use_cases.assistants import looping_of
from loopwright.operations.use_cases.operation import (
    BYTES,
    App,
    Caller,
    FileContent,
    HttpRoute,
    Operation,
    PageRequest,
)

API = "/api/v1/"
_PARAMETER = re.compile(r"\{(\w+)\}")
_R = TypeVar("_R", bound=Request)


def app_of(context: Context) -> App:
    """What operations work with at this server."""

    async def read_state(run: str) -> State:
        return (await context.gallery.picture(run)).state

    def beside(
        caller: Caller,
        on_disconnect: OnDisconnect | None,
        *,
        start: RunStart | None = None,
        name: str = "",
    ) -> Beside:
        looping = context.part(app_of).part(looping_of)
        return looping.beside(caller.name, start, parting=on_disconnect, name=name)

    return App(
        log=context.service.log,
        clock=context.service.clock,
        get_service=lambda: context.service,
        visible_rows=None if context.service.rights is None else context.service.visible_rows,
        settings=context.settings,
        records=context.records,
        workspace=context.serving.workspace,
        definitions=lambda: context.definitions,
        registry=lambda: context.registry,
        roots=lambda: context.roots,
        is_draining=context.closing.is_set,
        get_workspaces=lambda: context.here.workspaces,
        read_state=read_state,
        read_snapshot=context.gallery.snapshot,
        beside=beside,
        here=context.here,
        webhooks=lambda: context.webhooks,
        run_slowly=context.part(Hashing).do,
        base_url=lambda: context.serving.base,
    )


def caller_of(who: Principal, interface: str = "http") -> Caller:
    """The person or program behind a request."""
    signed_in = None if who.by == "socket" else who
    return Caller(name=who.name, role=who.role, interface=interface, principal=signed_in)


def caller_from(request: RouteRequest) -> Caller:
    """The caller of a route, which may be open to everybody."""
    if request.route.need not in ("open", "signed"):
        return caller_of(request.who)
    peer = request.request.client.host if request.request.client else ""
    return Caller(name="", role="viewer", interface="http", address=peer)


def body_of(operation: Operation[Any, Any]) -> type[Body]:
    """The type of the JSON body of an operation."""
    http = operation.route()
    if http.has_query or not (http.schema or _fields(operation.request, http.outside)):
        return NoBody
    request: type[Request] = operation.request
    return body_type(request, http.schema, http.outside, is_optional=http.is_body_optional)


@cache
def body_type(
    request: type[Request],
    name: str,
    outside: frozenset[str] = frozenset(),
    *,
    is_optional: bool = False,
) -> type[Body]:
    """One type for all operations with the same request, so that it is described once."""
    base: type[Body] = OptionalBody if is_optional else Body
    made = msgspec.defstruct(
        name,
        _fields(request, outside),
        bases=(base,),
        namespace={"free": request.free, "__doc__": request.__doc__},
        kw_only=True,
        forbid_unknown_fields=True,
    )
    assert issubclass(made, Body)
    return made


def _query_of(operation: Operation[Any, Any]) -> type[Query]:
    """The type of the query of an operation."""
    http, request = operation.route(), operation.request
    fields = _fields(request, http.outside)
    if not (http.has_query and fields):
        return NoQuery
    if request is PageRequest:  # described once, with the routes that have the same query
        return PageQuery
    name = http.schema or f"{request.__name__}Query"
    known = _QUERIES.get(name)
    if known is not None and _fields_of(known) == _fields_of(request, http.outside):
        return known
    made = msgspec.defstruct(
        name,
        fields,
        bases=(Query,),
        namespace={"__doc__": request.__doc__},
        kw_only=True,
        forbid_unknown_fields=True,
    )
    assert issubclass(made, Query)
    _QUERIES[name] = made
    return made


_QUERIES: dict[str, type[Query]] = {}
"""By name: operations with the same name and fields of their query have one type."""


def _fields_of(
    kind: type[msgspec.Struct], outside: frozenset[str] = frozenset()
) -> list[tuple[str, object]]:
    hints = get_type_hints(kind, include_extras=True)
    found = [(one.name, hints[one.name]) for one in msgspec.structs.fields(kind)]
    return [one for one in found if one[0] not in outside]


def request_of(operation: Operation[_R, Any], values: msgspec.Struct, params: dict[str, str]) -> _R:
    """The request of an operation, from a body or query and the parameters of the path."""
    given = {name: getattr(values, name) for name in values.__struct_fields__}
    return operation.request(**given, **params)


def routes_of(operation: Operation[Any, Any]) -> Iterator[Route]:
    """The routes at which an operation is served, one for each path."""
    http = operation.route()
    query = _query_of(operation)
    body = body_of(operation)
    is_file = operation.response is FileContent

    async def handle(route_request: RouteRequest) -> Answer:
        values = route_request.query(query) if http.has_query else route_request.body(body)
        request = request_of(
            operation, values, {**route_request.params, **_sent_aside(http, route_request)}
        )
        answer = await operation(
            route_request.context.part(app_of), caller_from(route_request), request
        )
        return _respond(http, route_request, answer)

    for path in http.paths:
        yield Route(
            method=http.method,
            path=path,
            handle=handle,
            need=operation.role,
            say=operation.summary,
            body=body,
            query=query,
            answer=None if is_file else _described(operation.response),
            status=http.status,
            also=http.also,
            media=BYTES if is_file else "application/json",
            takes=None if http.raw is None else http.raw.media,
            body_bytes=None if http.raw is None else http.raw.most_bytes,
            body_seconds=None if http.raw is None else http.raw.seconds,
            repeatable=operation.repeatable,
            draining=operation.draining,
            again=_again(operation, http),
        )


def _sent_aside(http: HttpRoute, request: RouteRequest) -> dict[str, Any]:
    """The fields of a request that headers and a raw body have."""
    headers = request.request.headers
    found: dict[str, Any] = {
        name: ",".join(headers.getlist(header))
        for name, header in http.headers.items()
        if header in headers
    }
    return found if http.raw is None else {**found, http.raw.field: request.raw}


def _described(response: object) -> object:
    """The type of a response in the description of the API; None: it has no content."""
    return None if response is type(None) else response


def _again(operation: Operation[Any, Any], http: HttpRoute) -> Any:  # noqa: ANN401 - of any operation
    again = operation.again
    if again is None:
        return None

    async def repeat(request: RouteRequest, name: str) -> Answer:
        answer = await again(request.context.part(app_of), caller_of(request.who), name)
        return _respond(http, request, answer)

    return repeat


def _respond(http: HttpRoute, request: RouteRequest, answer: Answer) -> Answer:
    if isinstance(answer, FileContent):
        return file_response(answer, request.request.headers)
    if not (http.location or http.etag or http.status_of):
        return answer
    response = as_response(answer, http.status_of(answer) if http.status_of else http.status)
    if http.location:
        response.headers["Location"] = _PARAMETER.sub(
            lambda found: str(getattr(answer, found[1])), http.location
        )
    if http.etag:
        response.headers["ETag"] = f'"{getattr(answer, http.etag)}"'
    return response


def _fields(request: type[Request], outside: frozenset[str]) -> list[Any]:
    """The fields of a query or a JSON body, as `defstruct` has them."""
    hints = get_type_hints(request, include_extras=True)
    return [
        _field(one, hints[one.name])
        for one in msgspec.structs.fields(request)
        if one.name not in outside
    ]


def _field(one: msgspec.structs.FieldInfo, kind: object) -> tuple[Any, ...]:
    if one.default is not msgspec.NODEFAULT:
        name = None if one.encode_name == one.name else one.encode_name
        return one.name, kind, msgspec.field(default=one.default, name=name)
    if one.default_factory is not msgspec.NODEFAULT:
        return one.name, kind, msgspec.field(default_factory=one.default_factory)
    return one.name, kind


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTraits:
    """What the routes of a group have in common, besides their operations."""

    prefix: str = ""  # empty: that of the API, and the name of the family
    refuse: Refuse | None = None
    failure: type[msgspec.Struct] | None = None
    living: Callable[[Context], AbstractAsyncContextManager[None]] | None = None


def families(
    operations: Iterable[Operation[Any, Any]], traits: Mapping[str, FamilyTraits]
) -> tuple[RouteFamily, ...]:
    """The routes of operations, in the groups of the description of the API."""
    found: dict[str, list[Route]] = {name: [] for name in traits}
    for one in operations:
        if one.http is not None:
            found.setdefault(one.family, []).extend(routes_of(one))
    return tuple(
        _family(name, routes, traits.get(name, FamilyTraits())) for name, routes in found.items()
    )


def _family(name: str, routes: list[Route], traits: FamilyTraits) -> RouteFamily:
    return RouteFamily(
        name=name,
        prefix=traits.prefix or f"{API}{name}",
        routes=tuple(routes),
        refuse=traits.refuse,
        failure=traits.failure,
        living=traits.living,
    )


AT_ONCE = 2
MOST_WAITING = 32
_Made = TypeVar("_Made")


class Hashing:
    """Does slow work, one after the other."""

    def __init__(self, _context: Context) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)
        self.inside = 0

    async def do(self, work: Callable[[], _Made]) -> _Made:
        """What comes of some work; 503 when too many wait for theirs."""
        if self.inside >= AT_ONCE + MOST_WAITING:
            raise RequestRefusal(
                503, "busy", "too many passwords are tried just now", headers={"Retry-After": "1"}
            )
        self.inside += 1
        try:
            async with self._places:
                return await asyncio.to_thread(work)
        finally:
            self.inside -= 1
