"""`project`, `sprint` and `todo`: view, create and change trackers."""

from collections.abc import Sequence
from typing import Any, cast

import click

from loopwright.cli.artifact import scope_of
from loopwright.cli.completion import complete_runs
from loopwright.cli.formats import put_rows
from loopwright.cli.terminal import Terminal
from loopwright.cli.verb import Verb, group, terminal_of
from loopwright.model.record import JsonValue

JsonObject = dict[str, JsonValue]
_WHERE = click.argument("where", metavar="RUN|SESSION", shell_complete=complete_runs)


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


def _put_list(terminal: Terminal, kind: str, found: list[JsonObject]) -> None:
    if terminal.as_json:
        terminal.put_json({kind: found})
    else:
        put_list(terminal, kind, found)


def _given(**values: str | None) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


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
    from loopwright.operations.use_cases import trackers  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    found = terminal.call(trackers.list_projects, trackers.ListProjects(status=status))
    _put_list(terminal, "projects", found.projects)


@click.command("show", cls=Verb, remote=True)
@click.argument("project", metavar="PROJECT")
@click.pass_context
def project_show(ctx: click.Context, /, *, project: str) -> None:
    """A project by its slug or id, with its sprints."""
    from loopwright.operations.use_cases import trackers  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    found = terminal.call(trackers.show_project, trackers.ProjectReference(project=project))
    if terminal.as_json:
        terminal.put_json(found)
        return
    terminal.put(f"{found['title']} ({found['slug']}, {found['status']})")
    if found.get("description"):
        terminal.put(str(found["description"]))
    put_list(terminal, "sprints", cast("list[JsonObject]", found["sprints"]))


@click.command(
    "create",
    cls=Verb,
    remote=True,
    examples=[('loopwright project create "Auth system" --slug auth', "")],
)
@click.argument("title", metavar="TITLE")
@click.option("--slug", default="", metavar="SLUG", help="Short name. Default: from the title.")
@click.option("--description", default="", metavar="TEXT", help="Description of the project.")
@click.pass_context
def project_create(ctx: click.Context, /, *, title: str, slug: str, description: str) -> None:
    """Create a project."""
    from loopwright.operations.use_cases import trackers  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    wanted = trackers.CreateProject(title=title, slug=slug, description=description)
    _put_one(terminal, terminal.call(trackers.create_project, wanted))


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
    from loopwright.operations.use_cases import trackers  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    changes = _given(title=title, description=description, status=status)
    wanted = trackers.ChangeProject(project=project, **changes)
    _put_one(terminal, terminal.call(trackers.change_project, wanted))


# -- sprints ---------------------------------------------------------------------------------------


@click.command("ls", cls=Verb, remote=True)
@click.argument("project", required=False, default="", metavar="[PROJECT]")
@click.option("--status", default="", metavar="STATUS", help="Only sprints of this status.")
@click.pass_context
def sprint_ls(ctx: click.Context, /, *, project: str, status: str) -> None:
    """Sprints of a project or of all active ones; each iteration of a loop is one."""
    from loopwright.operations.use_cases import trackers  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    wanted = trackers.ListSprints(project=project, status=status)
    _put_list(terminal, "sprints", terminal.call(trackers.list_sprints, wanted).sprints)


@click.command(
    "create",
    cls=Verb,
    remote=True,
    examples=[('loopwright sprint create auth "Login" --criteria "Users can log in"', "")],
)
@click.argument("project", metavar="PROJECT")
@click.argument("title", metavar="TITLE")
@click.option("--criteria", default="", metavar="TEXT", help="Criteria for completion.")
@click.option(
    "--max-review-rounds",
    type=click.IntRange(1, 5),
    metavar="N",
    help="Maximum number of reviews; default 3.",
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
    from loopwright.operations.use_cases import trackers  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    wanted = trackers.CreateSprint(
        project=project, title=title, criteria=criteria, max_review_rounds=max_review_rounds
    )
    _put_one(terminal, terminal.call(trackers.create_sprint, wanted))


@click.command("move", cls=Verb, remote=True)
@click.argument("sprint", metavar="SPRINT")
@click.argument("status", metavar="STATUS")
@click.option("--notes", default="", metavar="TEXT", help="What the review found.")
@click.pass_context
def sprint_move(ctx: click.Context, /, *, sprint: str, status: str, notes: str) -> None:
    """Move a sprint: planned, in_progress, review, then complete or rejected."""
    from loopwright.operations.use_cases import trackers  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    wanted = trackers.MoveSprint(sprint=sprint, status=status, notes=notes)
    _put_one(terminal, terminal.call(trackers.move_sprint, wanted))


# -- todos -----------------------------------------------------------------------------------------


@click.command("ls", cls=Verb, remote=True)
@_WHERE
@click.option("--status", default="", metavar="STATUS", help="Only todos of this status.")
@click.pass_context
def todo_ls(ctx: click.Context, /, *, where: str, status: str) -> None:
    """Todos of a run or a session, the oldest first."""
    from loopwright.operations.use_cases import trackers  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    with terminal.client() as client:
        wanted = trackers.ListTodos(status=status, **scope_of(client, where))
        found = client.call(trackers.list_todos, wanted).todos
    _put_list(terminal, "todos", found)


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
    from loopwright.operations.use_cases import trackers  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    with terminal.client() as client:
        scope = scope_of(client, where)
        wanted = trackers.AddTodo(title=title, priority=priority, parent=parent, **scope)
        _put_one(terminal, client.call(trackers.add_todo, wanted))


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
    from loopwright.operations.use_cases import trackers  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    changes = _given(title=title, status=status, priority=priority)
    with terminal.client() as client:
        wanted = trackers.ChangeTodo(todo=todo, **changes, **scope_of(client, where))
        _put_one(terminal, client.call(trackers.change_todo, wanted))


@click.command("rm", cls=Verb, remote=True)
@_WHERE
@click.argument("todo", metavar="TODO")
@click.pass_context
def todo_rm(ctx: click.Context, /, *, where: str, todo: str) -> None:
    """Delete a todo."""
    from loopwright.operations.use_cases import trackers  # noqa: PLC0415 - help stays quick

    terminal = terminal_of(ctx)
    with terminal.client() as client:
        wanted = trackers.TodoReference(todo=todo, **scope_of(client, where))
        deleted = client.call(trackers.remove_todo, wanted)
    if terminal.as_json:
        terminal.put_json(deleted)
    else:
        terminal.put(f"{deleted.id}: deleted")


VERBS = {
    "project": group(
        "project",
        "Projects that loops belong to.",
        [project_ls, project_show, project_create, project_change],
    ),
    "sprint": group("sprint", "Sprints of projects.", [sprint_ls, sprint_create, sprint_move]),
    "todo": group("todo", "Todos of runs and sessions.", [todo_ls, todo_add, todo_change, todo_rm]),
}
