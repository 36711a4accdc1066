"""The table of all routes, and its OpenAPI 3.1 description. Routes of operations are derived; a
family of other routes is added here.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, get_type_hints

import msgspec

from loopwright import __version__
from loopwright.http import access, events, operation_routes, socket_endpoint, status
from loopwright.http.compat import (
    aldo_approvals,
    aldo_assistant,
    coqui_definitions,
    coqui_loops,
    coqui_payloads,
    rondoflow,
)
from loopwright.http.context import Context
from loopwright.http.operation_routes import FamilyTraits, app_of
from loopwright.http.requests import NoBody, NoQuery, OptionalBody, Route, RouteFamily
from loopwright.http.responses import JSON, PROBLEM
from loopwright.operations.outgoing_requests import send
from loopwright.operations.use_cases.table import TABLE
from loopwright.workers import notifications
from loopwright.workers.webhooks import MessageStarter


def _watch_events(context: Context) -> AbstractAsyncContextManager[None]:
    watcher = context.part(app_of).part(notifications.NotificationWatcher)
    return notifications.living(watcher, context.feed)


def _worker(
    work: Callable[[Context], Coroutine[Any, Any, None]],
) -> Callable[[Context], AbstractAsyncContextManager[None]]:
    """A background task that runs as long as the server."""

    @asynccontextmanager
    async def living(context: Context) -> AsyncIterator[None]:
        task = asyncio.ensure_future(work(context))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return living


TRAITS = {
    "notifications": FamilyTraits(living=_watch_events),
    "trackers": FamilyTraits(
        prefix="/api/v1/projects", refuse=coqui_payloads.refuse, failure=coqui_payloads.LoopFailure
    ),
    "webhooks": FamilyTraits(
        living=_worker(lambda context: context.webhooks.working(context.feed, send))
    ),
    "hooks": FamilyTraits(
        living=_worker(lambda context: context.part(app_of).part(MessageStarter).working())
    ),
}
"""What groups of derived routes have besides their operations."""

FAMILIES: tuple[RouteFamily, ...] = (
    status.FAMILY,
    status.START_PAGE_FAMILY,
    access.SETUP_FAMILY,
    access.FAMILY,
    events.FAMILY,
    events.VIEWS_FAMILY,
    *operation_routes.families(TABLE.values(), TRAITS),
    coqui_definitions.FAMILY,
    coqui_loops.FAMILY,
    coqui_loops.LOOP_EVENTS_FAMILY,
    coqui_loops.STEERING_FAMILY,
    rondoflow.FAMILY,
    aldo_approvals.FAMILY,
    aldo_approvals.DIALECT_EVENTS_FAMILY,
    aldo_assistant.FAMILY,
    socket_endpoint.FAMILY,
    access.LINKS_FAMILY,
)

STREAM = "text/event-stream"
EMPTY = 204
_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)\}")


class FieldProblem(msgspec.Struct):
    """One thing that is wrong with a request."""

    code: str
    message: str
    pointer: str | None = None
    hint: str | None = None
    severity: Literal["warning"] | None = None  # of a finding that would not refuse it alone


class ProblemDetails(msgspec.Struct, omit_defaults=True):
    """A refusal, by RFC 9457. `instance` is what was asked for, `trace_id` the id of the request,
    under which the log of the server has it.
    """

    type: str
    title: str
    status: int
    detail: str
    instance: str
    trace_id: str
    hint: str | None = None
    errors: list[FieldProblem] | None = None


class StreamEvent(msgspec.Struct, omit_defaults=True):
    """One of a stream of server-sent events; `data` is JSON."""

    event: str | None = None
    data: str | None = None
    id: str | None = None
    retry: int | None = None


def describe(families: Sequence[RouteFamily]) -> dict[str, object]:
    """Everything that is served, as programs read it."""
    routes = [(family, route) for family in families for route in family.routes]
    kinds = list(_kinds(families))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    known = dict(zip(map(repr, kinds), schemas, strict=True))
    paths: dict[str, dict[str, object]] = {}
    for family, route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(family, route, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Loopwright",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _kinds(families: Iterable[RouteFamily]) -> Iterable[object]:
    found: dict[str, object] = {repr(one): one for one in (ProblemDetails, StreamEvent)}
    found |= {repr(one.failure): one.failure for one in families if one.failure is not None}
    for route in (route for family in families for route in family.routes):
        for kind in (route.body, route.query, route.answer):
            if kind is not None:
                found[repr(kind)] = kind
    return found.values()


def _operation(family: RouteFamily, route: Route, known: dict[str, Any]) -> dict[str, object]:
    told: dict[str, object] = {
        "operationId": _name(route),
        "summary": route.say,
        "tags": [family.name],
        "x-role": route.need,
        "responses": _responses(family, route, known),
    }
    parameters = [*_in_path(route), *_in_query(route)]
    if parameters:
        told["parameters"] = parameters
    if route.body is not NoBody:
        content = {"application/json": {"schema": known[repr(route.body)]}}
        needed = not issubclass(route.body, OptionalBody)
        told["requestBody"] = {"required": needed, "content": content}
    if route.takes is not None:
        told["requestBody"] = {"required": True, "content": {route.takes: {}}}
    if route.need not in ("open", "signed"):
        told["security"] = [{"token": []}]
    return told


def _responses(family: RouteFamily, route: Route, known: dict[str, Any]) -> dict[str, object]:
    good: dict[str, object] = {"description": route.say}
    kinds = {route.media: route.answer} if route.answer is not None else {}
    kinds |= {STREAM: StreamEvent} if route.streams else {}
    if kinds:
        good["content"] = {media: {"schema": known[repr(kind)]} for media, kind in kinds.items()}
    others = {str(one): _also(one, good) for one in route.also}
    problem = {PROBLEM: {"schema": known[repr(ProblemDetails)]}}
    if family.failure is not None:
        problem = {JSON: {"schema": known[repr(family.failure)]}}
    return {
        str(route.status): good,
        **others,
        "default": {"description": "A refusal that names its reason", "content": problem},
    }


def _also(status: int, good: dict[str, object]) -> dict[str, object]:
    return {"description": "Nothing more will come"} if status == EMPTY else good


def _in_path(route: Route) -> list[dict[str, object]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]


def _in_query(route: Route) -> list[dict[str, object]]:
    if route.query is NoQuery:
        return []
    [schema], components = msgspec.json.schema_components([route.query], ref_template=_REF)
    found = components[str(schema["$ref"]).rpartition("/")[2]]
    fields, needed = found["properties"], found.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in needed, "schema": fields[name]}
        for name in get_type_hints(route.query)
        if name in fields
    ]


def _name(route: Route) -> str:
    words = re.findall(r"\w+", route.path)
    return "_".join([route.method.lower(), *words])
