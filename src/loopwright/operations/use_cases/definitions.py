"""Definitions: stored by name, changed under a version; imported ones need an approval."""

from loopwright.errors import Conflict
from loopwright.operations.api_types import DefinitionItem, DefinitionList, Request
from loopwright.operations.definitions import Definitions, stored_item
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    HttpRoute,
    PageRequest,
    operation,
    page_of,
)

BASE = "/api/v1/definitions"


class DefinitionReference(Request):
    """A stored definition, by its name."""

    name: str


class SaveDefinition(Request):
    """The text of a definition, of any dialect."""

    free = ("text",)

    name: str
    text: str
    dialect: str | None = None
    if_match: str | None = None  # the version that is replaced; None: there is none yet


class ImportDefinition(Request):
    """An imported definition, and its new name."""

    free = ("text",)

    name: str
    text: str
    dialect: str | None = None


class ApproveDefinition(Request):
    """Exactly which text is approved."""

    name: str
    digest: str


@operation(
    "definitions.list",
    "query",
    "viewer",
    "Stored definitions, without their texts",
    http=HttpRoute("GET", BASE),
)
async def list_definitions(app: App, _caller: Caller, request: PageRequest) -> DefinitionList:
    """A page of the stored definitions, by name."""
    page = page_of(
        app.cursors,
        "definitions",
        definitions_of(app).all(),
        lambda one: one.name,
        limit=request.limit,
        cursor=request.cursor,
    )
    listed = [stored_item(one, text=False) for one in page.entries]
    return DefinitionList(definitions=listed, next=page.next)


@operation(
    "definitions.show",
    "query",
    "viewer",
    "A stored definition, with its ETag",
    http=HttpRoute("GET", f"{BASE}/{{name}}", etag="version"),
)
async def show(app: App, _caller: Caller, request: DefinitionReference) -> DefinitionItem:
    """One stored definition, with its text."""
    return stored_item(definitions_of(app).get(request.name))


@operation(
    "definitions.save",
    "command",
    "editor",
    "Store a definition; a change needs If-Match",
    http=HttpRoute(
        "PUT",
        f"{BASE}/{{name}}",
        schema="StoreDefinitionBody",
        headers={"if_match": "If-Match"},
        etag="version",
        also=(201,),
        status_of=lambda saved: 201 if saved.version == 1 else 200,
    ),
    audit=("definition.saved",),
    draining="serve",
)
async def save(app: App, caller: Caller, request: SaveDefinition) -> DefinitionItem:
    """Store a new definition, or replace the version that the caller has seen."""
    known = app.records.record("definition", request.name)
    expected = _expected(request.if_match, known.version if known is not None else 0)
    try:
        stored = definitions_of(app).save(
            request.name,
            request.text,
            by=caller.name,
            dialect=request.dialect,
            expected=expected,
        )
    except Conflict as conflict:
        raise _stale(conflict.message) from conflict
    return stored_item(stored)


def _expected(given: str | None, now: int) -> int:
    """The version that the caller has seen."""
    if given is None:
        if now:
            raise Conflict(
                "say which version you saw", code="if-match-needed", hint="send If-Match: ETAG"
            )
        return 0
    if given.strip() == "*" and now:
        return now
    if given.strip().strip('"') != str(now):
        raise _stale("it was changed meanwhile")
    return now


def _stale(message: str) -> Conflict:
    return Conflict(message, code="stale", hint="read it again")


@operation(
    "definitions.remove",
    "command",
    "editor",
    "Delete a definition; its runs continue",
    http=HttpRoute("DELETE", f"{BASE}/{{name}}", status=204),
    audit=("definition.removed",),
    draining="serve",
)
async def remove(app: App, caller: Caller, request: DefinitionReference) -> None:
    """Delete a stored definition."""
    definitions_of(app).remove(request.name, by=caller.name)


@operation(
    "definitions.import",
    "command",
    "editor",
    "Import a definition; one that starts programs waits for approval (202)",
    http=HttpRoute(
        "POST",
        f"{BASE}/import",
        schema="ImportBody",
        status=201,
        etag="version",
        also=(202,),
        status_of=lambda stored: 201 if stored.enabled else 202,
    ),
    audit=("definition.imported",),
    draining="serve",
)
async def import_definition(app: App, caller: Caller, request: ImportDefinition) -> DefinitionItem:
    """Store an imported definition; one that starts programs cannot be run before approval."""
    stored = definitions_of(app).store_foreign(
        request.name, request.text, by=caller.name, dialect=request.dialect
    )
    return stored_item(stored)


@operation(
    "definitions.approve",
    "command",
    "admin",
    "Approve an imported definition, exactly as it is",
    http=HttpRoute(
        "POST",
        f"{BASE}/{{name}}/approve",
        schema="ApproveDefinitionBody",
        etag="version",
    ),
    audit=("definition.approved",),
    draining="serve",
)
async def approve(app: App, caller: Caller, request: ApproveDefinition) -> DefinitionItem:
    """Approve exactly this text of a definition."""
    return stored_item(definitions_of(app).approve(request.name, request.digest, by=caller.name))


def definitions_of(app: App) -> Definitions:
    """The stored definitions of a data directory."""
    assert app.definitions is not None, "this process has no stored definitions"
    return app.definitions()


OPERATIONS = (list_definitions, import_definition, show, save, remove, approve)
