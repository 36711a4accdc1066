"""Stored definitions: by name, changed with an ETag; imported ones need an approval."""

from starlette.requests import Request

from loopwright.errors import Conflict
from loopwright.http.requests import (
    Answer,
    Body,
    PageQuery,
    Route,
    RouteFamily,
    RouteRequest,
    paged,
)
from loopwright.http.responses import RequestRefusal, as_response
from loopwright.operations.definitions import Stored, stored_item
from loopwright.operations.response_types import DefinitionItem, DefinitionList

BASE = "/api/v1/definitions"


class StoreDefinitionBody(Body):
    """The text of a definition, of any dialect."""

    free = ("text",)

    text: str
    dialect: str | None = None


class ImportBody(Body):
    """An imported definition, and its new name."""

    free = ("text",)

    name: str
    text: str
    dialect: str | None = None


class ApproveDefinitionBody(Body):
    """Exactly which text is approved."""

    digest: str


async def listed(asked: RouteRequest) -> Answer:
    page = paged(asked, "definitions", asked.context.definitions.all(), lambda one: one.name)
    return {
        "definitions": [stored_item(one, text=False) for one in page.entries],
        "next": page.next,
    }


async def shown(asked: RouteRequest) -> Answer:
    return _told(asked.context.definitions.get(asked.params["name"]), 200)


async def saved(asked: RouteRequest) -> Answer:
    """New without a condition; changed only by who says which version they saw."""
    body, name = asked.body(StoreDefinitionBody), asked.params["name"]
    known = asked.context.cards.card("definition", name)
    expected = _expected(asked.request, known.version if known is not None else 0)
    try:
        stored = asked.context.definitions.save(
            name, body.text, by=asked.who.name, dialect=body.dialect, expected=expected
        )
    except Conflict as conflict:
        raise RequestRefusal(412, "stale", conflict.message, hint="read it again") from conflict
    return _told(stored, 200 if known is not None else 201)


def _expected(request: Request, now: int) -> int:
    """The version that the client has seen."""
    given = request.headers.get("if-match")
    if given is None:
        if now:
            raise RequestRefusal(
                428, "if-match-needed", "say which version you saw", hint="send If-Match: ETAG"
            )
        return 0
    tag = given.strip().strip('"')
    if given.strip() == "*" and now:
        return now
    if tag != str(now):
        raise RequestRefusal(412, "stale", "it was changed meanwhile", hint="read it again")
    return now


async def removed(asked: RouteRequest) -> Answer:
    asked.context.definitions.remove(asked.params["name"], by=asked.who.name)
    return None


async def imported(asked: RouteRequest) -> Answer:
    body = asked.body(ImportBody)
    stored = asked.context.definitions.take_in(
        body.name, body.text, by=asked.who.name, dialect=body.dialect
    )
    return _told(stored, 201 if stored.enabled else 202)


async def approved(asked: RouteRequest) -> Answer:
    body = asked.body(ApproveDefinitionBody)
    stored = asked.context.definitions.approve(asked.params["name"], body.digest, by=asked.who.name)
    return _told(stored, 200)


def _told(stored: Stored, status: int) -> Answer:
    response = as_response(stored_item(stored), status)
    response.headers["ETag"] = f'"{stored.version}"'
    return response


FAMILY = RouteFamily(
    name="definitions",
    prefix=BASE,
    routes=(
        Route(
            method="GET",
            path=BASE,
            handle=listed,
            need="viewer",
            say="Stored definitions, without their texts",
            query=PageQuery,
            answer=DefinitionList,
        ),
        Route(
            method="POST",
            path=f"{BASE}/import",
            handle=imported,
            need="editor",
            say="Import a definition; one that starts programs waits for approval (202)",
            body=ImportBody,
            answer=DefinitionItem,
            status=201,
            also=(202,),
        ),
        Route(
            method="GET",
            path=f"{BASE}/{{name}}",
            handle=shown,
            need="viewer",
            say="A stored definition, with its ETag",
            answer=DefinitionItem,
        ),
        Route(
            method="PUT",
            path=f"{BASE}/{{name}}",
            handle=saved,
            need="editor",
            say="Keep a definition; a change needs If-Match",
            body=StoreDefinitionBody,
            answer=DefinitionItem,
            also=(201,),
        ),
        Route(
            method="DELETE",
            path=f"{BASE}/{{name}}",
            handle=removed,
            need="editor",
            say="Delete a definition; its runs continue",
            status=204,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{name}}/approve",
            handle=approved,
            need="admin",
            say="Approve an imported definition, exactly as it is",
            body=ApproveDefinitionBody,
            answer=DefinitionItem,
        ),
    ),
)
