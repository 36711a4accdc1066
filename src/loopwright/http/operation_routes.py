"""HTTP routes of operations, derived from the table: method, path, role, body, query, response.

Fields that the path names are taken from the path, the others from the query of a GET or DELETE
and from the body of every other method. The description of the API is made from the same routes.
"""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar, get_type_hints

import msgspec

from loopwright.http.context import Context
from loopwright.http.loop_disconnects import Looping
from loopwright.http.password_hashes import Hashing
from loopwright.http.requests import (
    Answer,
    Body,
    NoBody,
    NoQuery,
    OptionalBody,
    PageQuery,
    Query,
    Route,
    RouteFamily,
    RouteRequest,
)
from loopwright.http.responses import as_response
from loopwright.kernel.state import State
from loopwright.operations.accounts.access import Principal
from loopwright.operations.accounts.people import Hashed, hashed
from loopwright.operations.run_groups import Beside, OnDisconnect
from loopwright.operations.run_request import RunStart
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    HttpRoute,
    Method,
    Operation,
    PageRequest,
    Request,
)
from loopwright.operations.use_cases.table import TABLE

API = "/api/v1/"
WITH_QUERY: tuple[Method, ...] = ("GET", "DELETE")
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
        looping = context.part(Looping)
        return looping.beside(caller.name, start, parting=on_disconnect, name=name)

    async def hash_password(password: str) -> Hashed:
        return await context.part(Hashing).do(lambda: hashed(password))

    return App(
        service=context.service,
        settings=context.settings,
        cards=context.cards,
        workspace=context.serving.workspace,
        definitions=lambda: context.definitions,
        registry=lambda: context.registry,
        roots=lambda: context.roots,
        is_draining=context.closing.is_set,
        workspaces=context.here.workspaces,
        read_state=read_state,
        read_item=context.gallery.item,
        read_snapshot=context.gallery.snapshot,
        beside=beside,
        hash_password=hash_password,
        base_url=lambda: context.serving.base,
    )


def caller_of(who: Principal, interface: str = "http") -> Caller:
    """The person or program behind a request."""
    signed_in = None if who.by == "socket" else who
    return Caller(name=who.name, role=who.role, interface=interface, principal=signed_in)


def body_of(operation: Operation[Any, Any]) -> type[Body]:
    """The type of the body of an operation: fields of its request that the path does not name."""
    http = _http(operation)
    in_path = _names_in(http.path)
    if http.method in WITH_QUERY or not (http.schema or _fields(operation.request, in_path)):
        return NoBody
    request: type[Request] = operation.request
    return _body_type(request, http.schema, in_path, is_optional=http.is_body_optional)


@cache
def _body_type(
    request: type[Request], name: str, in_path: frozenset[str], *, is_optional: bool
) -> type[Body]:
    """One type for all operations with the same request, so that it is described once."""
    base: type[Body] = OptionalBody if is_optional else Body
    made = msgspec.defstruct(
        name,
        _fields(request, in_path),
        bases=(base,),
        namespace={"free": request.free, "__doc__": request.__doc__},
        kw_only=True,
        forbid_unknown_fields=True,
    )
    assert issubclass(made, Body)
    return made


def _query_of(operation: Operation[Any, Any]) -> type[Query]:
    """The query of a GET or DELETE: the fields of its request that the path does not name."""
    http, request = _http(operation), operation.request
    fields = _fields(request, _names_in(http.path))
    if http.method not in WITH_QUERY or not fields:
        return NoQuery
    if request is PageRequest:  # described once, with the routes that have the same query
        return PageQuery
    made = msgspec.defstruct(
        http.schema or f"{request.__name__}Query",
        fields,
        bases=(Query,),
        namespace={"__doc__": request.__doc__},
        kw_only=True,
        forbid_unknown_fields=True,
    )
    assert issubclass(made, Query)
    return made


def request_of(operation: Operation[_R, Any], values: msgspec.Struct, params: dict[str, str]) -> _R:
    """The request of an operation, from a body or query and the parameters of the path."""
    given = {name: getattr(values, name) for name in values.__struct_fields__}
    return operation.request(**given, **params)


def route_of(operation: Operation[Any, Any]) -> Route:
    """The route at which an operation is served."""
    http = _http(operation)
    query = _query_of(operation)
    body = body_of(operation)

    async def handle(asked: RouteRequest) -> Answer:
        values = asked.query(query) if http.method in WITH_QUERY else asked.body(body)
        request = request_of(operation, values, dict(asked.params))
        answer = await operation(app_of(asked.context), caller_of(asked.who), request)
        return _respond(http, answer)

    return Route(
        method=http.method,
        path=http.path,
        handle=handle,
        need=operation.role,
        say=operation.summary,
        body=body,
        query=query,
        answer=_described(operation.response),
        status=http.status,
        repeatable=operation.repeatable,
        draining=operation.draining,
        again=_again(operation, http),
    )


def _described(response: object) -> object:
    """The type of a response in the description of the API; None: it has no content."""
    return None if response is type(None) else response


def _again(operation: Operation[Any, Any], http: HttpRoute) -> Any:  # noqa: ANN401 - of any operation
    again = operation.again
    if again is None:
        return None

    async def repeat(asked: RouteRequest, name: str) -> Answer:
        answer = await again(app_of(asked.context), caller_of(asked.who), name)
        return _respond(http, answer)

    return repeat


def _respond(http: HttpRoute, answer: Answer) -> Answer:
    if not http.location:
        return answer
    response = as_response(answer, http.status)
    response.headers["Location"] = _PARAMETER.sub(
        lambda found: str(getattr(answer, found[1])), http.location
    )
    return response


def _http(operation: Operation[Any, Any]) -> HttpRoute:
    assert operation.http is not None, f"{operation.name} has no route"
    return operation.http


def _names_in(path: str) -> frozenset[str]:
    return frozenset(_PARAMETER.findall(path))


def _fields(request: type[Request], in_path: frozenset[str]) -> list[Any]:
    """The fields of a request that the path does not name, as `defstruct` has them."""
    hints = get_type_hints(request, include_extras=True)
    return [
        _field(one, hints[one.name])
        for one in msgspec.structs.fields(request)
        if one.name not in in_path
    ]


def _field(one: msgspec.structs.FieldInfo, kind: object) -> tuple[Any, ...]:
    if one.default is not msgspec.NODEFAULT:
        name = None if one.encode_name == one.name else one.encode_name
        return one.name, kind, msgspec.field(default=one.default, name=name)
    if one.default_factory is not msgspec.NODEFAULT:
        return one.name, kind, msgspec.field(default_factory=one.default_factory)
    return one.name, kind


def families(operations: Iterable[Operation[Any, Any]]) -> tuple[RouteFamily, ...]:
    """The routes of operations, in the groups of the description of the API."""
    found: dict[str, list[Route]] = {}
    for one in operations:
        if one.http is not None:
            found.setdefault(one.family, []).append(route_of(one))
    return tuple(
        RouteFamily(name=name, prefix=f"{API}{name}", routes=tuple(routes))
        for name, routes in found.items()
    )


FAMILIES = families(TABLE.values())
