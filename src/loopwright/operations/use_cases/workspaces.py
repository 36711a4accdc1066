"""Workspaces: the folders of a server that editors may choose workspaces in."""

import msgspec

from loopwright.operations.request_types import Request
from loopwright.operations.run_admission import MOST_PATH_CHARS, WorkspaceRoot, WorkspaceRoots
from loopwright.operations.use_cases.operation import App, Caller, HttpRoute, PageRequest, operation
from loopwright.operations.use_cases.pages import page_of
from loopwright.views.event_records import timestamp

BASE = "/api/v1/workspaces"


class RootItem(msgspec.Struct):
    """A folder that editors may choose workspaces in."""

    path: str
    source: str  # settings, server (the folder that it was started in) or admin
    by: str | None
    approved_at: str | None


class RootList(msgspec.Struct):
    """All of them."""

    workspaces: list[RootItem]
    next: str | None


class AddWorkspace(Request):
    """A folder of the server that editors may choose workspaces in from now on."""

    path: str


class WorkspaceReference(Request):
    """The folder that is meant."""

    path: str


@operation(
    "workspaces.list",
    kind="query",
    role="editor",
    summary="The folders that editors may choose workspaces in",
    request=PageRequest,
    response=RootList,
    http=HttpRoute(method="GET", path=BASE),
)
async def list_workspaces(app: App, _caller: Caller, request: PageRequest) -> RootList:
    """A page of the approved folders, by path."""
    page = page_of(
        app.cursors,
        "workspaces",
        _roots(app).all(),
        lambda one: one.path,
        limit=request.limit,
        cursor=request.cursor,
    )
    return RootList(workspaces=[_item(one) for one in page.entries], next=page.next)


@operation(
    "workspaces.add",
    kind="command",
    role="admin",
    summary="Approve a folder: editors may choose workspaces in it",
    request=AddWorkspace,
    response=RootItem,
    http=HttpRoute(method="POST", path=BASE, status=201, schema="RootBody"),
    audit=("workspace.added",),
    draining="serve",
)
async def add(app: App, caller: Caller, request: AddWorkspace) -> RootItem:
    """Approve a folder."""
    return _item(_roots(app).add(request.path, by=caller.name))


@operation(
    "workspaces.remove",
    kind="command",
    role="admin",
    summary="Take a folder off the list; runs that work in it continue",
    request=WorkspaceReference,
    response=type(None),
    http=HttpRoute(method="DELETE", path=BASE, status=204, schema="RootQuery"),
    audit=("workspace.removed",),
    draining="serve",
)
async def remove(app: App, caller: Caller, request: WorkspaceReference) -> None:
    """Remove a folder from the list."""
    _roots(app).remove(request.path[:MOST_PATH_CHARS], by=caller.name)


def _roots(app: App) -> WorkspaceRoots:
    assert app.roots is not None, "this process has no list of folders"
    return app.roots()


def _item(root: WorkspaceRoot) -> RootItem:
    return RootItem(
        path=root.path,
        source=root.source,
        by=root.by or None,
        approved_at=timestamp(root.approved_at) if root.approved_at else None,
    )


OPERATIONS = (list_workspaces, add, remove)
