"""`project`, `sprint` and `todo`: view, create and change trackers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote

import click

from loopwright.cli.completion import complete_runs
from loopwright.cli.formats import open_service, put_rows
from loopwright.cli.terminal import Terminal
from loopwright.cli.verb import Verb, group, terminal_of
from loopwright.model.record import JsonValue

if TYPE_CHECKING:
    from loopwright.cli.remote_client import RemoteClient
    from loopwright.operations.trackers import TrackerOperations

SESSION = "ses_"
JsonObject = dict[str, Any]
Changes = dict[str, JsonValue]
_WHERE = click.argument("where", metavar="RUN|SESSION", shell_complete=complete_runs)


class TrackerClient(Protocol):
    """The trackers of this data directory, or of a server."""

    def ask(self, method: str, path: str, body: Changes | None = None, **query: str) -> JsonObject:
        """The answer of a server's route, wherever the trackers are."""

    def todos_of(self, where: str) -> str:
        """The path of the todos of a run or a session."""


class RemoteTrackers:
    """Those of a server."""

    def __init__(self, remote: "RemoteClient") -> None:
        self._remote = remote

    def ask(self, method: str, path: str, body: Changes | None = None, **query: str) -> JsonObject:
        path = f"/api/v1/{path}"
        if method == "DELETE":
            self._remote.delete(path)
            return {"deleted": True, "id": path.rpartition("/")[2]}
        if method == "GET":
            given = {name: value for name, value in query.items() if value}
            found: JsonObject = self._remote.get(path, **given)
            return found
        send = self._remote.post if method == "POST" else self._remote.patch
        answer: JsonObject = send(path, body or {})
        return answer

    def todos_of(self, where: str) -> str:
        if where.startswith(SESSION):
            return f"sessions/{quote(where, safe='')}/todos"
        return f"runs/{quote(self._remote.run(where), safe='')}/todos"


class LocalTrackers:
    """Those of this data directory."""

    def __init__(self, operations: "TrackerOperations", find: "FindRun") -> None:
        self._do, self._find = operations, find

    def ask(self, method: str, path: str, body: Changes | None = None, **query: str) -> JsonObject:
        given: Changes = dict(body or {})
        texts = {name: value for name, value in given.items() if isinstance(value, str)}
        match (method, *map(unquote, path.split("/"))):
            case ("GET", "projects"):
                return {"projects": self._do.projects(**query)}
            case ("POST", "projects"):
                return self._do.create_project(**texts)
            case ("GET", "projects", name):
                return self._do.project(name)
            case ("PATCH", "projects", name):
                return self._do.change_project(name, given)
            case ("GET", "sprints"):
                return {"sprints": self._do.sprints(**query)}
            case ("POST", "projects", name, "sprints"):
                most = given.get("max_review_rounds")
                rounds = most if isinstance(most, int) else None
                return self._do.create_sprint(name, **texts, max_review_rounds=rounds)
            case ("PATCH", "sprints", name):
                return self._do.move_sprint(name, **texts)
            case (_, kind, place, "todos", *rest):
                return self._todo(method, kind, place, rest, texts, query)
        raise AssertionError(path)

    def _todo(
        self,
        method: str,
        kind: str,
        place: str,
        rest: Sequence[str],
        given: dict[str, str],
        query: dict[str, str],
    ) -> JsonObject:
        of = self._do.given.of_session if kind == "sessions" else self._do.given.of_run
        where = of(place)
        match method:
            case "GET":
                return {"todos": self._do.todos(where, **query)}
            case "POST":
                return self._do.add_todo(where, **given)
            case "PATCH":
                return self._do.change_todo(where, rest[0], dict(given))
            case _:
                return {"deleted": True, "id": self._do.remove_todo(where, rest[0])}

    def todos_of(self, where: str) -> str:
        if where.startswith(SESSION):
            return f"sessions/{where}/todos"
        return f"runs/{self._find(where)}/todos"


class FindRun(Protocol):
    """Finds a run by the beginning or the end of its id."""

    def __call__(self, reference: str) -> str: ...


@contextmanager
def trackers_of(terminal: Terminal) -> "Iterator[TrackerClient]":
    if terminal.remote is not None:
        yield RemoteTrackers(terminal.remote)
        return
    from loopwright.operations.runs import current_user  # noqa: PLC0415 - help stays quick
    from loopwright.operations.trackers import (  # noqa: PLC0415 - help stays quick
        TrackerOperations,
        artifacts_in,
    )

    with open_service(terminal) as service:
        given = artifacts_in(terminal.settings, service)
        yield LocalTrackers(TrackerOperations(given=given, by=current_user()), service.find)


def _ask(
    ctx: click.Context, method: str, path: str, body: Changes | None = None, **query: str
) -> tuple[Terminal, JsonObject]:
    terminal = terminal_of(ctx)
    with trackers_of(terminal) as trackers:
        return terminal, trackers.ask(method, path, body, **query)


def _part(name: str) -> str:
    return quote(name, safe="")


def _given(**values: JsonValue) -> Changes:
    return {name: value for name, value in values.items() if value is not None}


# -- how they are shown ----------------------------------------------------------------------------

COLUMNS: dict[str, tuple[tuple[str, str], ...]] = {
    "projects": (("SLUG", "slug"), ("STATUS", "status"), ("TITLE", "title"), ("ID", "id")),
    "sprints": (("ID", "id"), ("STATUS", "status"), ("REVIEWS", "reviews"), ("TITLE", "title")),
    "todos": (("ID", "id"), ("STATUS", "status"), ("PRIORITY", "priority"), ("TITLE", "title")),
}
EMPTY = {
    "projects": "no projects; a loop creates one, and so does `loopwright project create TITLE`",
    "sprints": "no sprints; `loopwright sprint create PROJECT TITLE` plans one",
    "todos": "no todos; `loopwright todo add RUN TITLE` adds one",
}


EMPTY_AT_PROMPT = {
    "projects": "no projects; a loop creates one, and so does `/projects create TITLE`",
    "sprints": "no sprints; `/sprints create PROJECT TITLE` plans one",
    "todos": "no todos; `/todos add RUN TITLE` adds one",
}


def put_list(
    terminal: Terminal, kind: str, found: Sequence[JsonObject], *, at_prompt: bool = False
) -> None:
    """A list of projects, sprints or todos as a table."""
    heads = [head for head, _ in COLUMNS[kind]]
    rows = [[str(_shown(one).get(key, "")) for _, key in COLUMNS[kind]] for one in found]
    put_rows(terminal, heads, rows, (EMPTY_AT_PROMPT if at_prompt else EMPTY)[kind])


def _shown(one: JsonObject) -> JsonObject:
    rounds = one.get("review_round")
    reviews = f"{rounds}/{one.get('max_review_rounds')}" if rounds is not None else "-"
    return {**one, "reviews": reviews}


def _put_list(terminal: Terminal, kind: str, answer: JsonObject) -> None:
    if terminal.as_json:
        terminal.put_json(answer)
    else:
        put_list(terminal, kind, answer[kind])


def _put_one(terminal: Terminal, one: JsonObject) -> None:
    if terminal.as_json:
        terminal.put_json(one)
    else:
        words = " ".join(str(one[key]) for key in ("slug", "status", "title") if one.get(key))
        terminal.put(f"{one['id']}  {words}".rstrip())


# -- projects --------------------------------------------------------------------------------------


@click.command("ls", cls=Verb, remote=True)
@click.option("--status", default="", metavar="STATUS", help="active, completed or archived.")
@click.pass_context
def project_ls(ctx: click.Context, /, *, status: str) -> None:
    """Projects, the oldest first. A loop that is started without one creates one."""
    terminal, answer = _ask(ctx, "GET", "projects", status=status)
    _put_list(terminal, "projects", answer)


@click.command("show", cls=Verb, remote=True)
@click.argument("project", metavar="PROJECT")
@click.pass_context
def project_show(ctx: click.Context, /, *, project: str) -> None:
    """A project by its slug or id, with its sprints."""
    terminal, answer = _ask(ctx, "GET", f"projects/{_part(project)}")
    if terminal.as_json:
        terminal.put_json(answer)
        return
    terminal.put(f"{answer['title']} ({answer['slug']}, {answer['status']})")
    if answer.get("description"):
        terminal.put(str(answer["description"]))
    put_list(terminal, "sprints", answer["sprints"])


@click.command(
    "create",
    cls=Verb,
    remote=True,
    examples=[('loopwright project create "Auth system" --slug auth', "")],
)
@click.argument("title", metavar="TITLE")
@click.option("--slug", default="", metavar="SLUG", help="A short name; else made of the title.")
@click.option("--description", default="", metavar="TEXT", help="What it is for.")
@click.pass_context
def project_create(ctx: click.Context, /, *, title: str, slug: str, description: str) -> None:
    """Create a project."""
    body: Changes = {"title": title, "slug": slug, "description": description}
    _put_one(*_ask(ctx, "POST", "projects", body))


@click.command("change", cls=Verb, remote=True)
@click.argument("project", metavar="PROJECT")
@click.option("--title", metavar="TEXT", help="A new title.")
@click.option("--description", metavar="TEXT", help="A new description.")
@click.option("--status", metavar="STATUS", help="active, completed or archived.")
@click.pass_context
def project_change(
    ctx: click.Context,
    /,
    *,
    project: str,
    title: str | None,
    description: str | None,
    status: str | None,
) -> None:
    """Change title, description or status of a project."""
    body = _given(title=title, description=description, status=status)
    _put_one(*_ask(ctx, "PATCH", f"projects/{_part(project)}", body))


# -- sprints ---------------------------------------------------------------------------------------


@click.command("ls", cls=Verb, remote=True)
@click.argument("project", required=False, default="", metavar="[PROJECT]")
@click.option("--status", default="", metavar="STATUS", help="Only sprints of this status.")
@click.pass_context
def sprint_ls(ctx: click.Context, /, *, project: str, status: str) -> None:
    """Sprints of a project or of all active ones; each iteration of a loop is one."""
    terminal, answer = _ask(ctx, "GET", "sprints", project=project, status=status)
    _put_list(terminal, "sprints", answer)


@click.command(
    "create",
    cls=Verb,
    remote=True,
    examples=[('loopwright sprint create auth "Login" --criteria "Users can log in"', "")],
)
@click.argument("project", metavar="PROJECT")
@click.argument("title", metavar="TITLE")
@click.option("--criteria", default="", metavar="TEXT", help="When it counts as complete.")
@click.option(
    "--max-review-rounds", type=click.IntRange(1, 5), metavar="N", help="Most reviews; else 3."
)
@click.pass_context
def sprint_create(
    ctx: click.Context,
    /,
    *,
    project: str,
    title: str,
    criteria: str,
    max_review_rounds: int | None,
) -> None:
    """Plan a sprint; agents of the project see it."""
    body = _given(title=title, criteria=criteria, max_review_rounds=max_review_rounds)
    _put_one(*_ask(ctx, "POST", f"projects/{_part(project)}/sprints", body))


@click.command("move", cls=Verb, remote=True)
@click.argument("sprint", metavar="SPRINT")
@click.argument("status", metavar="STATUS")
@click.option("--notes", default="", metavar="TEXT", help="What the review found.")
@click.pass_context
def sprint_move(ctx: click.Context, /, *, sprint: str, status: str, notes: str) -> None:
    """Move a sprint: planned, in_progress, review, then complete or rejected."""
    body: Changes = {"status": status, "notes": notes}
    _put_one(*_ask(ctx, "PATCH", f"sprints/{_part(sprint)}", body))


# -- todos -----------------------------------------------------------------------------------------


@click.command("ls", cls=Verb, remote=True)
@_WHERE
@click.option("--status", default="", metavar="STATUS", help="Only todos of this status.")
@click.pass_context
def todo_ls(ctx: click.Context, /, *, where: str, status: str) -> None:
    """Todos of a run or a session, the oldest first."""
    terminal = terminal_of(ctx)
    with trackers_of(terminal) as trackers:
        answer = trackers.ask("GET", trackers.todos_of(where), status=status)
    _put_list(terminal, "todos", answer)


@click.command(
    "add", cls=Verb, remote=True, examples=[('loopwright todo add last "Write the test"', "")]
)
@_WHERE
@click.argument("title", metavar="TITLE")
@click.option("--priority", default="medium", metavar="WORD", help="low, medium or high.")
@click.option("--parent", default="", metavar="TODO", help="The todo that it is a part of.")
@click.pass_context
def todo_add(ctx: click.Context, /, *, where: str, title: str, priority: str, parent: str) -> None:
    """Add a todo; agents of the run or session find it in their list."""
    terminal = terminal_of(ctx)
    body: Changes = {"title": title, "priority": priority, "parent": parent}
    with trackers_of(terminal) as trackers:
        answer = trackers.ask("POST", trackers.todos_of(where), body)
    _put_one(terminal, answer)


@click.command("change", cls=Verb, remote=True)
@_WHERE
@click.argument("todo", metavar="TODO")
@click.option("--title", metavar="TEXT", help="A new title.")
@click.option("--status", metavar="STATUS", help="pending, in_progress, completed or cancelled.")
@click.option("--priority", metavar="WORD", help="low, medium or high.")
@click.pass_context
def todo_change(
    ctx: click.Context,
    /,
    *,
    where: str,
    todo: str,
    title: str | None,
    status: str | None,
    priority: str | None,
) -> None:
    """Change title, status or priority of a todo."""
    terminal = terminal_of(ctx)
    body = _given(title=title, status=status, priority=priority)
    with trackers_of(terminal) as trackers:
        answer = trackers.ask("PATCH", f"{trackers.todos_of(where)}/{_part(todo)}", body)
    _put_one(terminal, answer)


@click.command("rm", cls=Verb, remote=True)
@_WHERE
@click.argument("todo", metavar="TODO")
@click.pass_context
def todo_rm(ctx: click.Context, /, *, where: str, todo: str) -> None:
    """Delete a todo."""
    terminal = terminal_of(ctx)
    with trackers_of(terminal) as trackers:
        answer = trackers.ask("DELETE", f"{trackers.todos_of(where)}/{_part(todo)}")
    if terminal.as_json:
        terminal.put_json(answer)
    else:
        terminal.put(f"{answer['id']}: deleted")


VERBS = {
    "project": group(
        "project",
        "Projects that loops belong to.",
        [project_ls, project_show, project_create, project_change],
    ),
    "sprint": group("sprint", "Sprints of projects.", [sprint_ls, sprint_create, sprint_move]),
    "todo": group("todo", "Todos of runs and sessions.", [todo_ls, todo_add, todo_change, todo_rm]),
}
