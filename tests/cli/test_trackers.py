"""`project`, `sprint` and `todo`: people view, create and change what agents track."""

from typing import Any

import pytest

from loopwright.cli.repl.tracker_commands import split_title
from loopwright.errors import InputError
from tests.cli.conftest import Place, Told
from tests.person import ME


def typed(lw: Place, *lines: str) -> Told:
    return lw.real("repl", stdin="".join(f"{line}\n" for line in lines).encode())


@pytest.fixture
def loop(lw: Place) -> str:
    """A loop of roles that has ended, with its project."""
    agent = lw.script("a plan", "the work", "APPROVED")
    run: str = lw("run", "harness", "Build it", "--agent", agent, "--json").json["run"]
    return run


@pytest.mark.item("coqui-14", "coqui-85")
def test_a_loop_creates_its_project_and_its_sprints(lw: Place, loop: str) -> None:
    """A loop that is started by a command has a project with the goal, and a sprint for each
    iteration.
    """
    [project] = lw("project", "ls", "--json").json["projects"]
    assert (project["title"], project["description"]) == ("Loop: harness", "Build it")
    assert lw.events(loop)[0]["project"] == project["id"]
    shown: Any = lw("project", "show", project["slug"], "--json").json
    [sprint] = shown["sprints"]
    assert (sprint["title"], sprint["status"]) == ("harness — iteration 1", "complete")
    assert "Loop: harness" in lw("project", "ls").out
    refused = lw("sprint", "move", sprint["id"], "review")
    assert (refused.code, "moved by their loop" in refused.err) == (2, True)


@pytest.mark.item("coqui-85")
def test_projects_and_sprints_are_created_and_changed(lw: Place) -> None:
    """By slug or id; a sprint moves only to its next status, and who did it is on record."""
    made = lw("project", "create", "Auth system", "--slug", "auth", "--json").json
    assert (made["slug"], made["status"]) == ("auth", "active")
    assert lw("project", "create", "Other", "--slug", "auth").code == 8
    assert lw("project", "create", "Other", "--slug", "Not A Slug").code == 2
    plain = lw("project", "create", "Auth system", "--json").json
    assert plain["slug"] == "auth-system"
    again = lw("project", "create", "Auth system", "--json").json
    assert again["slug"].startswith("auth-system-")
    sprint = lw("sprint", "create", "auth", "Login", "--criteria", "One can log in", "--json").json
    assert (sprint["status"], sprint["created_by"]) == ("planned", ME)
    assert lw("sprint", "move", sprint["id"], "complete").code == 8
    for status in ("in_progress", "review", "rejected"):
        told = lw("sprint", "move", sprint["id"][:8], status, "--notes", "why", "--json").json
        assert told["status"] == status
    assert (told["summary"], told["review_round"]) == ("why", 1)
    assert [one["id"] for one in lw("sprint", "ls", "auth", "--json").json["sprints"]] == [
        sprint["id"]
    ]
    lw("project", "change", "auth", "--status", "completed")
    assert lw("sprint", "ls", "--json").json["sprints"] == []  # of active projects
    assert (
        lw("project", "ls", "--status", "completed", "--json").json["projects"][0]["id"]
        == (made["id"])
    )


@pytest.mark.item("coqui-79", "coqui-85")
@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("project", "ls", "--status", "done"), "archived"),
        (("project", "change", "auth", "--status", "done"), "archived"),
        (("project", "change", "auth"), "nothing"),
        (("project", "show", "none"), "auth"),
        (("project", "create", "  "), "title"),
        (("sprint", "ls", "--status", "done"), "in_progress"),
        (("sprint", "move", "none", "review"), "no sprint"),
        (("sprint", "move", "none", "done"), "in_progress"),
        (("todo", "ls", "last", "--status", "done"), "in_progress"),
        (("todo", "add", "last", "x", "--priority", "urgent"), "medium"),
        (("todo", "change", "last", "none", "--status", "pending"), "no todo"),
        (("todo", "add", "ses_none", "x"), "ses_none"),
    ],
)
def test_what_is_wrong_is_refused_in_words(
    lw: Place, loop: str, command: tuple[str, ...], says: str
) -> None:
    """With what there is in its place."""
    lw("project", "create", "Auth", "--slug", "auth")
    told = lw(*command)
    assert told.code == 2, told
    assert says in told.err


@pytest.mark.item("coqui-62", "coqui-85")
def test_todos_are_added_changed_and_removed(lw: Place, loop: str) -> None:
    """They belong to the run; a parent may be named by the beginning of its id."""
    first = lw("todo", "add", loop, "Write the test", "--priority", "high", "--json").json
    part = lw("todo", "add", "last", "Name it", "--parent", first["id"][:8], "--json").json
    assert part["parent"] == first["id"]
    lw("todo", "change", "last", first["id"], "--status", "completed")
    [open_one] = lw("todo", "ls", "last", "--status", "pending", "--json").json["todos"]
    assert open_one["id"] == part["id"]
    [done] = lw("todo", "ls", "last", "--status", "completed", "--json").json["todos"]
    assert done["completed_by"] == ME
    assert "deleted" in lw("todo", "rm", "last", part["id"]).out
    assert "Write the test" in lw("todo", "ls", "last").out


@pytest.mark.item("coqui-85")
def test_the_prompt_has_the_same_trackers(lw: Place, loop: str) -> None:
    """/projects, /sprints, /todos and /artifacts list and create."""
    lw.write("notes.txt", "what I know")
    told = typed(
        lw,
        "/projects create Auth system",
        "/projects",
        "/todos add last Write the test",
        "/todos",
        "/artifacts put last notes.txt",
        "/artifacts",
    )
    assert told.code == 0, told
    for words in ("Loop: harness", "Write the test", "notes.txt", "Loop output: coder"):
        assert words in told.out
    slug = next(one["slug"] for one in lw("project", "ls", "--json").json["projects"][1:])
    told = typed(lw, f"/sprints create {slug} Login page", f"/sprints {slug}")
    assert told.out.count("Login page") == 2
    [sprint] = lw("sprint", "ls", slug, "--json").json["sprints"]
    [todo] = lw("todo", "ls", "last", "--json").json["todos"]
    told = typed(
        lw,
        f"/sprints move {sprint['id']} in_progress",
        f"/todos change last {todo['id']} completed",
        f"/projects change {slug} archived",
        "/todos completed",
    )
    assert told.code == 0, told
    assert "completed" in told.out
    for line, says in (
        ("/projects done", "archived"),
        ("/todos last done", "in_progress"),
        ("/todos add last", "write /todos add"),
        ("/sprints none", "no project"),
    ):
        refused = typed(lw, line)
        assert refused.code != 0
        assert says in refused.err


@pytest.mark.item("coqui-85")
def test_titles_at_the_prompt_may_be_quoted_and_have_an_option(lw: Place, loop: str) -> None:
    """`--slug`, `--criteria` and `--priority` mean what they mean in commands; what is not known is
    refused, and an empty list names the command of the prompt.
    """
    told = typed(
        lw,
        "/todos last",
        "/projects create 'Auth system' --slug auth",
        "/projects create Bob's part",
        "/sprints auth",
        "/sprints create auth Login page --criteria 'Users can log in'",
        '/todos add last "Write it" --priority high',
    )
    assert told.code == 0, told
    assert "`/todos add RUN TITLE`" in told.err
    assert "`/sprints create PROJECT TITLE`" in told.err
    projects = lw("project", "ls", "--json").json["projects"]
    titles = {one["slug"]: one["title"] for one in projects}
    assert titles["auth"] == "Auth system"
    assert "Bob's part" in titles.values()
    [sprint] = lw("sprint", "ls", "auth", "--json").json["sprints"]
    assert (sprint["title"], sprint["criteria"]) == ("Login page", "Users can log in")
    [todo] = lw("todo", "ls", loop, "--json").json["todos"]
    assert (todo["title"], todo["priority"]) == ("Write it", "high")
    for line, says in (
        ("/projects create X --slugg y", "did you mean --slug?"),
        ("/projects create X --slug", "--slug needs a value"),
        ("/todos add last X --priority urgent", "no priority 'urgent'"),
    ):
        refused = typed(lw, line)
        assert refused.code != 0
        assert says in refused.err


@pytest.mark.item("rec-46")
@pytest.mark.parametrize(
    ("line", "code", "message", "hint"),
    [
        ("X --slugg y", "unknown-field", "slugg is not a known field",
         "there is no option --slugg; did you mean --slug?"),
        ("X --colour red", "unknown-field", "colour is not a known field",
         "there is no option --colour; this command has --slug"),
        ("X --slug", "missing-field", "--slug needs a value",
         "write a value after --slug, or leave it out"),
    ],
)  # fmt: skip
def test_an_unknown_option_at_the_prompt_has_the_code_of_other_interfaces(
    lw: Place, line: str, code: str, message: str, hint: str
) -> None:
    """The code and the first line are those of a command and of a request."""
    with pytest.raises(InputError) as refused:
        split_title(line, "--slug")
    assert (refused.value.code, refused.value.message, refused.value.hint) == (code, message, hint)
    shown = typed(lw, f"/projects create {line}")
    assert shown.code == 2
    assert f"{message}\n  {hint}" in shown.err
    if code == "unknown-field":
        as_command = lw("project", "create", *line.split(), "--json").json
        assert as_command["type"].rpartition(":")[2] == code
        assert as_command["detail"] == message
