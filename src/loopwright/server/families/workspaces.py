"""The folders of this server that editors may choose workspaces in, which admins change."""

import msgspec

from loopwright.app.moments import timestamp
from loopwright.app.workspace_roots import MOST_PATH_CHARS, WorkspaceRoot
from loopwright.server.paging import PageQuery, paged
from loopwright.server.routes import Answer, Asked, Body, Family, Query, Route

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


class RootBody(Body):
    """A folder of the server that editors may choose workspaces in from now on."""

    path: str


class RootQuery(Query):
    """The folder that is meant."""

    path: str


async def listed(asked: Asked) -> Answer:
    found = [_item(one) for one in asked.context.roots.all()]
    page = paged(asked, "workspaces", found, lambda one: one.path)
    return RootList(workspaces=page.entries, next=page.next)


async def added(asked: Asked) -> Answer:
    path = asked.body(RootBody).path
    return _item(asked.context.roots.add(path, by=asked.who.name))


async def removed(asked: Asked) -> Answer:
    path = asked.query(RootQuery).path[:MOST_PATH_CHARS]
    asked.context.roots.remove(path, by=asked.who.name)
    return None


def _item(root: WorkspaceRoot) -> RootItem:
    return RootItem(
        path=root.path,
        source=root.source,
        by=root.by or None,
        approved_at=timestamp(root.approved_at) if root.approved_at else None,
    )


FAMILY = Family(
    name="workspaces",
    prefix=BASE,
    routes=(
        Route(
            method="GET",
            path=BASE,
            handle=listed,
            need="editor",
            say="The folders that editors may choose workspaces in",
            query=PageQuery,
            answer=RootList,
        ),
        Route(
            method="POST",
            path=BASE,
            handle=added,
            need="admin",
            say="Approve a folder: editors may choose workspaces in it",
            body=RootBody,
            answer=RootItem,
            status=201,
        ),
        Route(
            method="DELETE",
            path=BASE,
            handle=removed,
            need="admin",
            say="Take a folder off the list; runs that work in it continue",
            query=RootQuery,
            status=204,
        ),
    ),
)
