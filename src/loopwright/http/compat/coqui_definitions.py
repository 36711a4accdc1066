"""Definitions of loops by their name: list, show, write under a version, delete."""

import msgspec
from starlette.datastructures import Headers

from loopwright.http.compat.coqui_payloads import (
    LoopDefinition,
    LoopDefinitionBody,
    LoopDefinitions,
    LoopFailure,
    refuse_definition,
)
from loopwright.http.operation_routes import app_of, caller_of
from loopwright.http.requests import Answer, PageQuery, Route, RouteFamily, RouteRequest, paged
from loopwright.http.responses import RequestRefusal, as_response
from loopwright.model.record import JsonValue
from loopwright.operations.api_types import Deleted, Request
from loopwright.operations.library import NEW, LibraryEntry
from loopwright.operations.use_cases import loops
from loopwright.operations.use_cases.operation import App, Caller

BASE = "/api/v1/loops/definitions"


def _call(request: RouteRequest) -> tuple[App, Caller]:
    return request.context.part(app_of), caller_of(request.who)


async def listed(request: RouteRequest) -> Answer:
    entries = await loops.list_definitions(*_call(request), Request())
    page = paged(request, "loop definitions", entries, _place)
    found = [_item(one) for one in page.entries]
    return {"definitions": found, "count": len(found), "next": page.next}


def _place(one: LibraryEntry) -> str:
    """By name; files that are wrong may have the name of another."""
    return f"{one.name}\0{one.source}\0{one.version}"


async def shown(request: RouteRequest) -> Answer:
    reference = loops.NamedDefinition(name=request.params["name"])
    return _answer(await loops.show_definition(*_call(request), reference), 200)


async def saved(request: RouteRequest) -> Answer:
    """New with `If-None-Match: *`, changed with `If-Match: VERSION`, and nothing without either."""
    name = request.params["name"]
    expected = _expected(request.request.headers)
    body = request.body(LoopDefinitionBody)
    written = msgspec.to_builtins(body)
    data = msgspec.json.format(msgspec.json.encode({"name": name, **written}), indent=2)
    wanted = loops.SaveLoopDefinition(name=name, data=data, expected=expected)
    saved_definition = await loops.save_definition(*_call(request), wanted)
    return _answer(saved_definition.entry, 201 if saved_definition.is_new else 200)


def _expected(headers: Headers) -> str:
    """Which version is replaced, or that there is none."""
    new, seen = headers.get("if-none-match"), headers.get("if-match")
    if new is not None and new.strip() == "*" and seen is None:
        return NEW
    if seen is not None and new is None and seen.strip() != "*":
        return _tag(seen)
    raise RequestRefusal(
        409,
        "precondition-required",
        "say which version you replace",
        hint="send If-Match: VERSION, or If-None-Match: * for a new one",
    )


def _tag(given: str) -> str:
    return given.strip().removeprefix("W/").strip('"')


async def deleted(request: RouteRequest) -> Answer:
    name = request.params["name"]
    seen = request.request.headers.get("if-match")
    expected = None if seen is None else _tag(seen)
    wanted = loops.RemoveLoopDefinition(name=name, expected=expected)
    await loops.remove_definition(*_call(request), wanted)
    return {"deleted": True, "id": name}


def _answer(found: LibraryEntry, status: int) -> Answer:
    response = as_response(_item(found), status)
    response.headers["ETag"] = f'"{found.version}"'
    return response


def _item(found: LibraryEntry) -> dict[str, JsonValue]:
    """As everybody lists it, but for where on the disk it lies."""
    answer = {
        "description": "",
        "roles": [],
        "termination": {},
        "parameters": [],
        **found.as_dict(),
    }
    del answer["file"]
    problems = answer["problems"]
    assert isinstance(problems, list)
    answer["problems"] = [
        {name: value for name, value in one.items() if name != "file"}
        for one in problems
        if isinstance(one, dict)
    ]
    return answer


FAMILY = RouteFamily(
    name="loop definitions",
    prefix=BASE,
    refuse=refuse_definition,
    failure=LoopFailure,
    routes=(
        Route(
            method="GET",
            path=BASE,
            handle=listed,
            need="viewer",
            say="Definitions of loops by name, and what is wrong with those that cannot be used",
            query=PageQuery,
            answer=LoopDefinitions,
        ),
        Route(
            method="GET",
            path=f"{BASE}/{{name}}",
            handle=shown,
            need="viewer",
            say="One definition, with its version as its ETag",
            answer=LoopDefinition,
        ),
        Route(
            method="PUT",
            path=f"{BASE}/{{name}}",
            handle=saved,
            need="editor",
            say="Write a definition: If-None-Match: * for a new one, If-Match to change one",
            body=LoopDefinitionBody,
            answer=LoopDefinition,
            also=(201,),
        ),
        Route(
            method="DELETE",
            path=f"{BASE}/{{name}}",
            handle=deleted,
            need="editor",
            say="Delete a definition of your own; what it hid is back then",
            answer=Deleted,
        ),
    ),
)
