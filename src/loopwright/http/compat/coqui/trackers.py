"""Projects, sprints, todos and sessions: list, create, show, change."""

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from loopwright.http.compat.coqui.loops import sessions_of
from loopwright.http.compat.coqui.payloads import Deleted, JsonPart, LoopFailure, Words, refuse
from loopwright.http.requests import (
    Answer,
    Body,
    PageQuery,
    Query,
    Route,
    RouteFamily,
    RouteRequest,
    paged,
)
from loopwright.http.routes.artifacts import given_of
from loopwright.model.record import JsonValue
from loopwright.model.trackers import MOST_REVIEW_ROUNDS, Values
from loopwright.operations.response_types import SessionItem, SessionList
from loopwright.operations.run_groups import TrackerSession
from loopwright.operations.trackers import ArtifactScope, TrackerOperations
from loopwright.operations.use_cases.pages import newest_first
from loopwright.views.event_records import timestamp

PROJECTS, SPRINTS = "/api/v1/projects", "/api/v1/sprints"
PLACES = ("/api/v1/runs/{run}/todos", "/api/v1/sessions/{session}/todos")


class StatusQuery(Query):
    """Only those of a status."""

    status: str = ""


class SprintsQuery(StatusQuery):
    """Only those of a project, by its id or slug; without one, of all active projects."""

    project: str = ""


class ProjectBody(Body):
    """A new project. Without a slug, one is made of the title."""

    title: Words
    slug: str = ""
    description: str = ""


class ProjectChange(Body):
    """What changes of a project."""

    title: Words | UnsetType = UNSET
    description: str | UnsetType = UNSET
    status: str | UnsetType = UNSET


class SprintBody(Body):
    """A sprint that is planned."""

    title: Words
    criteria: str = ""
    max_review_rounds: Annotated[int, msgspec.Meta(ge=1, le=MOST_REVIEW_ROUNDS)] | None = None


class SprintMove(Body):
    """The next status of a sprint, and why."""

    status: Words
    notes: str = ""


class TodoBody(Body):
    """A new todo."""

    title: Words
    priority: str = "medium"
    parent: str = ""


class TodoChange(Body):
    """What changes of a todo."""

    title: Words | UnsetType = UNSET
    status: str | UnsetType = UNSET
    priority: str | UnsetType = UNSET


class ProjectList(msgspec.Struct):
    """Projects, the oldest first."""

    projects: list[JsonPart]


class SprintList(msgspec.Struct):
    """Sprints, the oldest first."""

    sprints: list[JsonPart]


class TodoList(msgspec.Struct):
    """Todos, the oldest first."""

    todos: list[JsonPart]


def _operations(request: RouteRequest) -> TrackerOperations:
    return TrackerOperations(given=given_of(request.context), by=request.who.name)


def _where(request: RouteRequest) -> ArtifactScope:
    given = given_of(request.context)
    if "run" in request.params:
        return given.of_run(request.params["run"])
    return given.of_session(request.params["session"])


def _set(body: Body) -> Values:
    """The fields that a request has."""
    written: dict[str, JsonValue] = msgspec.to_builtins(body)
    return written


async def projects(request: RouteRequest) -> Answer:
    return {"projects": _operations(request).projects(request.query(StatusQuery).status)}


async def create_project(request: RouteRequest) -> Answer:
    body = request.body(ProjectBody)
    return _operations(request).create_project(
        body.title, slug=body.slug, description=body.description
    )


async def project(request: RouteRequest) -> Answer:
    return _operations(request).project(request.params["project"])


async def change_project(request: RouteRequest) -> Answer:
    changes = _set(request.body(ProjectChange))
    return _operations(request).change_project(request.params["project"], changes)


async def sprints(request: RouteRequest) -> Answer:
    query = request.query(SprintsQuery)
    return {"sprints": _operations(request).sprints(query.project, query.status)}


async def project_sprints(request: RouteRequest) -> Answer:
    status = request.query(StatusQuery).status
    return {"sprints": _operations(request).sprints(request.params["project"], status)}


async def create_sprint(request: RouteRequest) -> Answer:
    body = request.body(SprintBody)
    return _operations(request).create_sprint(
        request.params["project"],
        body.title,
        criteria=body.criteria,
        max_review_rounds=body.max_review_rounds,
    )


async def move_sprint(request: RouteRequest) -> Answer:
    body = request.body(SprintMove)
    return _operations(request).move_sprint(request.params["sprint"], body.status, notes=body.notes)


async def todos(request: RouteRequest) -> Answer:
    return {"todos": _operations(request).todos(_where(request), request.query(StatusQuery).status)}


async def add_todo(request: RouteRequest) -> Answer:
    body = request.body(TodoBody)
    return _operations(request).add_todo(
        _where(request), body.title, priority=body.priority, parent=body.parent
    )


async def change_todo(request: RouteRequest) -> Answer:
    changes = _set(request.body(TodoChange))
    return _operations(request).change_todo(_where(request), request.params["todo"], changes)


async def remove_todo(request: RouteRequest) -> Answer:
    return _operations(request).remove_todo(_where(request), request.params["todo"])


def _routes() -> Iterator[Route]:
    yield Route(
        method="GET",
        path=PROJECTS,
        handle=projects,
        need="viewer",
        say="Projects, the oldest first",
        query=StatusQuery,
        answer=ProjectList,
    )
    yield Route(
        method="POST",
        path=PROJECTS,
        handle=create_project,
        need="editor",
        say="Create a project",
        body=ProjectBody,
        answer=JsonPart,
        status=201,
    )
    yield Route(
        method="GET",
        path=f"{PROJECTS}/{{project}}",
        handle=project,
        need="viewer",
        say="A project by its id or slug, with its sprints",
        answer=JsonPart,
    )
    yield Route(
        method="PATCH",
        path=f"{PROJECTS}/{{project}}",
        handle=change_project,
        need="editor",
        say="Change title, description or status of a project",
        body=ProjectChange,
        answer=JsonPart,
    )
    yield Route(
        method="GET",
        path=f"{PROJECTS}/{{project}}/sprints",
        handle=project_sprints,
        need="viewer",
        say="Sprints of a project, with the iterations of its loops",
        query=StatusQuery,
        answer=SprintList,
    )
    yield Route(
        method="POST",
        path=f"{PROJECTS}/{{project}}/sprints",
        handle=create_sprint,
        need="editor",
        say="Plan a sprint",
        body=SprintBody,
        answer=JsonPart,
        status=201,
    )
    yield Route(
        method="GET",
        path=SPRINTS,
        handle=sprints,
        need="viewer",
        say="Sprints of a project, or of all active projects",
        query=SprintsQuery,
        answer=SprintList,
    )
    yield Route(
        method="PATCH",
        path=f"{SPRINTS}/{{sprint}}",
        handle=move_sprint,
        need="editor",
        say="Move a sprint to its next status",
        body=SprintMove,
        answer=JsonPart,
    )
    for place in PLACES:
        yield from _todo_routes(place)


def _todo_routes(place: str) -> Iterator[Route]:
    yield Route(
        method="GET",
        path=place,
        handle=todos,
        need="viewer",
        say="Todos, the oldest first",
        query=StatusQuery,
        answer=TodoList,
    )
    yield Route(
        method="POST",
        path=place,
        handle=add_todo,
        need="editor",
        say="Add a todo; agents find it in their list",
        body=TodoBody,
        answer=JsonPart,
        status=201,
    )
    yield Route(
        method="PATCH",
        path=f"{place}/{{todo}}",
        handle=change_todo,
        need="editor",
        say="Change title, status or priority of a todo",
        body=TodoChange,
        answer=JsonPart,
    )
    yield Route(
        method="DELETE",
        path=f"{place}/{{todo}}",
        handle=remove_todo,
        need="editor",
        say="Delete a todo",
        answer=Deleted,
    )


FAMILY = RouteFamily(
    name="trackers",
    prefix=PROJECTS,
    refuse=refuse,
    failure=LoopFailure,
    routes=tuple(_routes()),
)


BASE = "/api/v1/sessions"


class SessionBody(Body):
    """What a session is about."""

    title: Annotated[str, msgspec.Meta(max_length=200)] = ""


async def listed(request: RouteRequest) -> Answer:
    found = sessions_of(request.context).all()
    page = paged(request, "sessions", found, lambda one: newest_first(one.created_at, one.id))
    return {"sessions": [_item(one) for one in page.entries], "next": page.next}


async def made(request: RouteRequest) -> Answer:
    return _item(
        sessions_of(request.context).make(request.body(SessionBody).title, by=request.who.name)
    )


async def shown(request: RouteRequest) -> Answer:
    return _item(sessions_of(request.context).get(request.params["session"]))


async def closed(request: RouteRequest) -> Answer:
    return _item(sessions_of(request.context).close(request.params["session"], by=request.who.name))


def _item(session: TrackerSession) -> dict[str, JsonValue]:
    return {
        "id": session.id,
        "title": session.title,
        "by": session.by,
        "status": "open" if session.closed_at is None else "closed",
        "created_at": None if session.created_at is None else timestamp(session.created_at),
        "closed_at": None if session.closed_at is None else timestamp(session.closed_at),
    }


SESSIONS_FAMILY = RouteFamily(
    name="sessions",
    prefix=BASE,
    routes=(
        Route(
            method="GET",
            path=BASE,
            handle=listed,
            need="viewer",
            say="Sessions that were made here",
            query=PageQuery,
            answer=SessionList,
        ),
        Route(
            method="POST",
            path=BASE,
            handle=made,
            need="editor",
            say="Add a session: its loops share trackers and are listed together",
            body=SessionBody,
            answer=SessionItem,
            status=201,
        ),
        Route(
            method="GET",
            path=f"{BASE}/{{session}}",
            handle=shown,
            need="viewer",
            say="One session",
            answer=SessionItem,
        ),
        Route(
            method="POST",
            path=f"{BASE}/{{session}}/close",
            handle=closed,
            need="editor",
            say="Close a session: no further loop is started in it",
            answer=SessionItem,
        ),
    ),
)
