"""Trackers: projects, sprints, todos, and the sessions that runs share them in."""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from loopwright.model.record import JsonValue
from loopwright.model.trackers import MOST_REVIEW_ROUNDS, Values
from loopwright.operations.api_types import Deleted, Request, SessionItem, SessionList
from loopwright.operations.run_groups import TrackerSession, TrackerSessions
from loopwright.operations.trackers import TrackerOperations, artifacts_in
from loopwright.operations.use_cases.artifacts import OfRunOrSession, artifact_scope
from loopwright.operations.use_cases.operation import (
    App,
    Caller,
    HttpRoute,
    PageRequest,
    newest_first,
    operation,
    page_of,
)
from loopwright.views.event_records import timestamp

PROJECTS, SPRINTS = "/api/v1/projects", "/api/v1/sprints"
PROJECT_SPRINTS = f"{PROJECTS}/{{project}}/sprints"
TODOS, SESSION_TODOS = "/api/v1/runs/{run}/todos", "/api/v1/sessions/{session}/todos"
SESSIONS = "/api/v1/sessions"
FAMILY = "trackers"
QUERY = "StatusQuery"
Words: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
JsonPart: TypeAlias = dict[str, JsonValue]


class ProjectList(msgspec.Struct):
    """Projects, the oldest first."""

    projects: list[JsonPart]


class SprintList(msgspec.Struct):
    """Sprints, the oldest first."""

    sprints: list[JsonPart]


class TodoList(msgspec.Struct):
    """Todos, the oldest first."""

    todos: list[JsonPart]


class ListProjects(Request):
    """Only those of a status."""

    status: str = ""


class CreateProject(Request):
    """A new project. Without a slug, one is made of the title."""

    title: Words
    slug: str = ""
    description: str = ""


class ProjectReference(Request):
    """A project, by its id or slug."""

    project: str


class ChangeProject(ProjectReference):
    """What changes of a project."""

    title: Words | UnsetType = UNSET
    description: str | UnsetType = UNSET
    status: str | UnsetType = UNSET


class ListSprints(Request):
    """Only those of a project, by its id or slug; without one, of all active projects."""

    status: str = ""
    project: str = ""


class CreateSprint(ProjectReference):
    """A sprint that is planned."""

    title: Words
    criteria: str = ""
    max_review_rounds: Annotated[int, msgspec.Meta(ge=1, le=MOST_REVIEW_ROUNDS)] | None = None


class MoveSprint(Request):
    """The next status of a sprint, and why."""

    sprint: str
    status: Words
    notes: str = ""


class ListTodos(OfRunOrSession):
    """Only those of a status."""

    status: str = ""


class AddTodo(OfRunOrSession, kw_only=True):
    """A new todo."""

    title: Words
    priority: str = "medium"
    parent: str = ""


class TodoReference(OfRunOrSession, kw_only=True):
    """A todo, by its id."""

    todo: str


class ChangeTodo(TodoReference, kw_only=True):
    """What changes of a todo."""

    title: Words | UnsetType = UNSET
    status: str | UnsetType = UNSET
    priority: str | UnsetType = UNSET


@operation(
    "projects.list",
    "query",
    "viewer",
    "Projects, the oldest first",
    http=HttpRoute("GET", PROJECTS, schema=QUERY),
    family=FAMILY,
)
async def list_projects(app: App, caller: Caller, request: ListProjects) -> ProjectList:
    """All projects, or those of a status."""
    return ProjectList(projects=_trackers(app, caller).projects(request.status))


@operation(
    "projects.create",
    "command",
    "editor",
    "Create a project",
    http=HttpRoute("POST", PROJECTS, status=201, schema="ProjectBody"),
    audit=("project.created",),
    draining="serve",
    family=FAMILY,
)
async def create_project(app: App, caller: Caller, request: CreateProject) -> JsonPart:
    """Create a project of a person."""
    return _trackers(app, caller).create_project(
        request.title, slug=request.slug, description=request.description
    )


@operation(
    "projects.show",
    "query",
    "viewer",
    "A project by its id or slug, with its sprints",
    http=HttpRoute("GET", f"{PROJECTS}/{{project}}"),
    family=FAMILY,
)
async def show_project(app: App, caller: Caller, request: ProjectReference) -> JsonPart:
    """One project with its sprints."""
    return _trackers(app, caller).project(request.project)


@operation(
    "projects.change",
    "command",
    "editor",
    "Change title, description or status of a project",
    http=HttpRoute("PATCH", f"{PROJECTS}/{{project}}", schema="ProjectChange"),
    audit=("project.changed",),
    draining="serve",
    family=FAMILY,
)
async def change_project(app: App, caller: Caller, request: ChangeProject) -> JsonPart:
    """Change a project; what is not given stays as it is."""
    return _trackers(app, caller).change_project(request.project, _changes(request))


@operation(
    "projects.sprints",
    "query",
    "viewer",
    "Sprints of a project, with the iterations of its loops",
    http=HttpRoute("GET", PROJECT_SPRINTS, schema=QUERY),
    family=FAMILY,
)
async def project_sprints(app: App, caller: Caller, request: ListSprints) -> SprintList:
    """The sprints of one project."""
    return SprintList(sprints=_trackers(app, caller).sprints(request.project, request.status))


@operation(
    "sprints.create",
    "command",
    "editor",
    "Plan a sprint",
    http=HttpRoute("POST", PROJECT_SPRINTS, status=201, schema="SprintBody"),
    audit=("sprint.created",),
    draining="serve",
    family=FAMILY,
)
async def create_sprint(app: App, caller: Caller, request: CreateSprint) -> JsonPart:
    """Plan a sprint of a project."""
    return _trackers(app, caller).create_sprint(
        request.project,
        request.title,
        criteria=request.criteria,
        max_review_rounds=request.max_review_rounds,
    )


@operation(
    "sprints.list",
    "query",
    "viewer",
    "Sprints of a project, or of all active projects",
    http=HttpRoute("GET", SPRINTS, schema="SprintsQuery"),
    family=FAMILY,
)
async def list_sprints(app: App, caller: Caller, request: ListSprints) -> SprintList:
    """The sprints of a project, or of all active projects."""
    return SprintList(sprints=_trackers(app, caller).sprints(request.project, request.status))


@operation(
    "sprints.move",
    "command",
    "editor",
    "Move a sprint to its next status",
    http=HttpRoute("PATCH", f"{SPRINTS}/{{sprint}}", schema="SprintMove"),
    audit=("sprint.changed",),
    draining="serve",
    family=FAMILY,
)
async def move_sprint(app: App, caller: Caller, request: MoveSprint) -> JsonPart:
    """Move a sprint of a person to its next status."""
    return _trackers(app, caller).move_sprint(request.sprint, request.status, notes=request.notes)


@operation(
    "todos.list",
    "query",
    "viewer",
    "Todos, the oldest first",
    http=HttpRoute("GET", TODOS, other_paths=(SESSION_TODOS,), schema=QUERY),
    family=FAMILY,
)
async def list_todos(app: App, caller: Caller, request: ListTodos) -> TodoList:
    """The todos of a session, or of a run without one."""
    _, scope = artifact_scope(app, request)
    return TodoList(todos=_trackers(app, caller).todos(scope, request.status))


@operation(
    "todos.add",
    "command",
    "editor",
    "Add a todo; agents find it in their list",
    http=HttpRoute("POST", TODOS, other_paths=(SESSION_TODOS,), status=201, schema="TodoBody"),
    audit=("todo.created",),
    draining="serve",
    family=FAMILY,
)
async def add_todo(app: App, caller: Caller, request: AddTodo) -> JsonPart:
    """Add a todo."""
    _, scope = artifact_scope(app, request)
    return _trackers(app, caller).add_todo(
        scope, request.title, priority=request.priority, parent=request.parent
    )


@operation(
    "todos.change",
    "command",
    "editor",
    "Change title, status or priority of a todo",
    http=HttpRoute(
        "PATCH",
        f"{TODOS}/{{todo}}",
        other_paths=(f"{SESSION_TODOS}/{{todo}}",),
        schema="TodoChange",
    ),
    audit=("todo.changed",),
    draining="serve",
    family=FAMILY,
)
async def change_todo(app: App, caller: Caller, request: ChangeTodo) -> JsonPart:
    """Change a todo; what is not given stays as it is."""
    _, scope = artifact_scope(app, request)
    return _trackers(app, caller).change_todo(scope, request.todo, _changes(request))


@operation(
    "todos.remove",
    "command",
    "editor",
    "Delete a todo",
    http=HttpRoute("DELETE", f"{TODOS}/{{todo}}", other_paths=(f"{SESSION_TODOS}/{{todo}}",)),
    audit=("todo.removed",),
    draining="serve",
    family=FAMILY,
)
async def remove_todo(app: App, caller: Caller, request: TodoReference) -> Deleted:
    """Delete a todo with all its versions."""
    _, scope = artifact_scope(app, request)
    return Deleted(deleted=True, id=_trackers(app, caller).remove_todo(scope, request.todo))


def _trackers(app: App, caller: Caller) -> TrackerOperations:
    artifacts = artifacts_in(app.settings, app.service, app.access())
    return TrackerOperations(given=artifacts, by=caller.name)


def _changes(request: ChangeProject | ChangeTodo) -> Values:
    """The fields that are set; the others of these requests are references."""
    changes: dict[str, JsonValue] = msgspec.to_builtins(request)
    for name in ("project", "todo", "run", "session"):
        changes.pop(name, None)
    return changes


# -- sessions --------------------------------------------------------------------------------------


class AddSession(Request):
    """What a session is about."""

    title: Annotated[str, msgspec.Meta(max_length=200)] = ""


class SessionReference(Request):
    """A session, by its id."""

    session: str


@operation(
    "sessions.list",
    "query",
    "viewer",
    "Sessions, newest first",
    http=HttpRoute("GET", SESSIONS),
)
async def list_sessions(app: App, _caller: Caller, request: PageRequest) -> SessionList:
    """A page of the sessions, newest first."""
    page = page_of(
        app.cursors,
        "sessions",
        sessions_of(app).all(),
        lambda one: newest_first(one.created_at, one.id),
        limit=request.limit,
        cursor=request.cursor,
    )
    return SessionList(sessions=[_session(one) for one in page.entries], next=page.next)


@operation(
    "sessions.add",
    "command",
    "editor",
    "Create a session; its loops share trackers and are listed together",
    http=HttpRoute("POST", SESSIONS, status=201, schema="SessionBody"),
    audit=("session.made",),
    draining="serve",
)
async def add_session(app: App, caller: Caller, request: AddSession) -> SessionItem:
    """Create a session."""
    return _session(sessions_of(app).make(request.title, by=caller.name))


@operation(
    "sessions.show",
    "query",
    "viewer",
    "One session",
    http=HttpRoute("GET", f"{SESSIONS}/{{session}}"),
)
async def show_session(app: App, _caller: Caller, request: SessionReference) -> SessionItem:
    """One session."""
    return _session(sessions_of(app).get(request.session))


@operation(
    "sessions.close",
    "command",
    "editor",
    "Close a session: no further loop is started in it",
    http=HttpRoute("POST", f"{SESSIONS}/{{session}}/close"),
    audit=("session.closed",),
    draining="serve",
)
async def close_session(app: App, caller: Caller, request: SessionReference) -> SessionItem:
    """Close a session; its loops that are running continue."""
    return _session(sessions_of(app).close(request.session, by=caller.name))


def sessions_of(app: App) -> TrackerSessions:
    """The sessions of a data directory."""
    return TrackerSessions(app.service.log, app.records, app.access())


def _session(session: TrackerSession) -> SessionItem:
    return SessionItem(
        id=session.id,
        title=session.title,
        by=session.by,
        status="open" if session.closed_at is None else "closed",
        created_at=None if session.created_at is None else timestamp(session.created_at),
        closed_at=None if session.closed_at is None else timestamp(session.closed_at),
    )


OPERATIONS = (
    list_projects,
    create_project,
    show_project,
    change_project,
    project_sprints,
    create_sprint,
    list_sprints,
    move_sprint,
    list_todos,
    add_todo,
    change_todo,
    remove_todo,
    list_sessions,
    add_session,
    show_session,
    close_session,
)
