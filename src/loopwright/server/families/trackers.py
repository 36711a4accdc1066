"""Projects, sprints and todos, as people view, create and change them."""

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from loopwright.app.given import Where
from loopwright.app.tracker_operations import TrackerOperations
from loopwright.model.record import JsonValue
from loopwright.model.trackers import MOST_REVIEW_ROUNDS, Values
from loopwright.server.families.artifacts import given_of
from loopwright.server.loop_refusals import refuse
from loopwright.server.loop_shapes import Deleted, LoopFailure, Part, Words
from loopwright.server.routes import Answer, Asked, Body, Family, Query, Route

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

    projects: list[Part]


class SprintList(msgspec.Struct):
    """Sprints, the oldest first."""

    sprints: list[Part]


class TodoList(msgspec.Struct):
    """Todos, the oldest first."""

    todos: list[Part]


def _operations(asked: Asked) -> TrackerOperations:
    return TrackerOperations(given=given_of(asked.context), by=asked.who.name)


def _where(asked: Asked) -> Where:
    given = given_of(asked.context)
    if "run" in asked.params:
        return given.of_run(asked.params["run"])
    return given.of_session(asked.params["session"])


def _set(body: Body) -> Values:
    """The fields that a request has."""
    written: dict[str, JsonValue] = msgspec.to_builtins(body)
    return written


async def projects(asked: Asked) -> Answer:
    return {"projects": _operations(asked).projects(asked.query(StatusQuery).status)}


async def create_project(asked: Asked) -> Answer:
    body = asked.body(ProjectBody)
    return _operations(asked).create_project(
        body.title, slug=body.slug, description=body.description
    )


async def project(asked: Asked) -> Answer:
    return _operations(asked).project(asked.params["project"])


async def change_project(asked: Asked) -> Answer:
    changes = _set(asked.body(ProjectChange))
    return _operations(asked).change_project(asked.params["project"], changes)


async def sprints(asked: Asked) -> Answer:
    query = asked.query(SprintsQuery)
    return {"sprints": _operations(asked).sprints(query.project, query.status)}


async def project_sprints(asked: Asked) -> Answer:
    status = asked.query(StatusQuery).status
    return {"sprints": _operations(asked).sprints(asked.params["project"], status)}


async def create_sprint(asked: Asked) -> Answer:
    body = asked.body(SprintBody)
    return _operations(asked).create_sprint(
        asked.params["project"],
        body.title,
        criteria=body.criteria,
        max_review_rounds=body.max_review_rounds,
    )


async def move_sprint(asked: Asked) -> Answer:
    body = asked.body(SprintMove)
    return _operations(asked).move_sprint(asked.params["sprint"], body.status, notes=body.notes)


async def todos(asked: Asked) -> Answer:
    return {"todos": _operations(asked).todos(_where(asked), asked.query(StatusQuery).status)}


async def add_todo(asked: Asked) -> Answer:
    body = asked.body(TodoBody)
    return _operations(asked).add_todo(
        _where(asked), body.title, priority=body.priority, parent=body.parent
    )


async def change_todo(asked: Asked) -> Answer:
    changes = _set(asked.body(TodoChange))
    return _operations(asked).change_todo(_where(asked), asked.params["todo"], changes)


async def remove_todo(asked: Asked) -> Answer:
    return _operations(asked).remove_todo(_where(asked), asked.params["todo"])


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
        answer=Part,
        status=201,
    )
    yield Route(
        method="GET",
        path=f"{PROJECTS}/{{project}}",
        handle=project,
        need="viewer",
        say="A project by its id or slug, with its sprints",
        answer=Part,
    )
    yield Route(
        method="PATCH",
        path=f"{PROJECTS}/{{project}}",
        handle=change_project,
        need="editor",
        say="Change title, description or status of a project",
        body=ProjectChange,
        answer=Part,
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
        answer=Part,
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
        answer=Part,
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
        answer=Part,
        status=201,
    )
    yield Route(
        method="PATCH",
        path=f"{place}/{{todo}}",
        handle=change_todo,
        need="editor",
        say="Change title, status or priority of a todo",
        body=TodoChange,
        answer=Part,
    )
    yield Route(
        method="DELETE",
        path=f"{place}/{{todo}}",
        handle=remove_todo,
        need="editor",
        say="Delete a todo",
        answer=Deleted,
    )


FAMILY = Family(
    name="trackers",
    prefix=PROJECTS,
    refuse=refuse,
    failure=LoopFailure,
    routes=tuple(_routes()),
)
