"""What operations declare about the audit log is what they write."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from loopwright.http.operation_routes import app_of
from loopwright.operations.api_types import Request
from loopwright.operations.use_cases import (
    accounts,
    allowlists,
    definitions,
    notifications,
    trackers,
)
from loopwright.operations.use_cases.notifications import StoredNotification, notice_record
from loopwright.operations.use_cases.operation import App, Caller, Operation
from tests.http.served import Served

AnyOperation = Operation[Any, Any]
Call = tuple[AnyOperation, Request]
ANN = "ann"


def user_calls(_app: App) -> Iterator[Call]:
    """Every change of an account that is recorded, and lists."""
    yield accounts.add_user, accounts.AddUser(name=ANN)
    yield accounts.change_user, accounts.ChangeUser(name=ANN, role="editor")
    yield accounts.change_user, accounts.ChangeUser(name=ANN, password="correct horse")
    yield accounts.change_user, accounts.ChangeUser(name=ANN, active=False)
    yield accounts.change_user, accounts.ChangeUser(name=ANN, active=True)
    yield accounts.link, accounts.UserReference(name=ANN)
    yield accounts.list_users, accounts.PageRequest()
    yield accounts.remove_user, accounts.UserReference(name=ANN)


def token_calls(app: App) -> Iterator[Call]:
    """A token that is created, listed and revoked."""
    yield accounts.add_token, accounts.AddToken(label="ci")
    yield accounts.list_tokens, accounts.PageRequest()
    wanted = accounts.AddTokenForUser(label="other", role="viewer", days=1)
    yield accounts.add_for_user, wanted
    [made] = [one for one in app.access().tokens() if one.label == "ci"]
    yield accounts.revoke_token, accounts.TokenReference(token=made.id)


def definition_calls(app: App) -> Iterator[Call]:
    """A definition that is stored, imported, approved, shown and removed."""
    text = '{"name": "work", "agent": "command:/bin/cat", "goal": "Do it.", "repeat": {"max": 3}}'
    saved = definitions.SaveDefinition(name="one", text=text)
    yield definitions.save, saved
    yield definitions.list_definitions, definitions.PageRequest()
    reference = definitions.DefinitionReference(name="one")
    yield definitions.show, reference
    yield definitions.import_definition, definitions.ImportDefinition(name="two", text=text)
    assert app.definitions is not None
    held = app.definitions().get("two")
    approval = definitions.ApproveDefinition(name="two", digest=held.digest)
    yield definitions.approve, approval
    yield definitions.remove, reference


def tracker_calls(_app: App) -> Iterator[Call]:
    """A project with a sprint, and a session with a todo, until they are closed."""
    yield trackers.create_project, trackers.CreateProject(title="Shop", slug="shop")
    yield trackers.list_projects, trackers.ListProjects()
    yield trackers.show_project, trackers.ProjectReference(project="shop")
    yield trackers.change_project, trackers.ChangeProject(project="shop", title="Store")
    yield trackers.create_sprint, trackers.CreateSprint(project="shop", title="One")
    yield trackers.list_sprints, trackers.ListSprints()


def agent_calls(_app: App) -> Iterator[Call]:
    """An agent that is approved, disabled and removed."""
    yield allowlists.add_agent, allowlists.AddAgent(name="helper", spec="model:test/one")
    yield allowlists.change_agent, allowlists.ChangeAgent(agent="helper", enabled=False)
    yield allowlists.list_agents, allowlists.PageRequest()
    yield allowlists.remove_agent, allowlists.AgentReference(agent="helper")


def workspace_calls(app: App) -> Iterator[Call]:
    """A folder that is approved and removed."""
    folder = app.workspace / "more"
    folder.mkdir()
    yield allowlists.add_workspace, allowlists.AddWorkspace(path=str(folder))
    yield allowlists.list_workspaces, allowlists.PageRequest()
    yield allowlists.remove_workspace, allowlists.WorkspaceReference(path=str(folder))


def notification_calls(app: App) -> Iterator[Call]:
    """A notification that is listed and read, in both ways."""
    one = StoredNotification(
        id="n1",
        kind="run.completed",
        level="info",
        title="x",
        run="r",
        seq=1,
        at=app.service.clock.now_ms(),
        to="boss",
    )
    app.records.change([(notice_record(one), None)])
    yield notifications.list_notifications, notifications.ListNotifications()
    yield notifications.read_many, notifications.MarkNotificationsRead(ids=["n1"])
    yield notifications.read, notifications.NotificationReference(notification="n1")


TRACKERS = (
    trackers.list_projects,
    trackers.create_project,
    trackers.show_project,
    trackers.change_project,
    trackers.create_sprint,
    trackers.list_sprints,
)


def operations_of(noun: str, operations: Sequence[AnyOperation]) -> list[AnyOperation]:
    """Those of one noun, by their names."""
    return [one for one in operations if one.name.startswith(f"{noun}.")]


NOUNS = {
    "users": (operations_of("users", accounts.OPERATIONS), user_calls),
    "tokens": (operations_of("tokens", accounts.OPERATIONS), token_calls),
    "trackers": (TRACKERS, tracker_calls),
    "definitions": (definitions.OPERATIONS, definition_calls),
    "agents": (operations_of("agents", allowlists.OPERATIONS), agent_calls),
    "workspaces": (operations_of("workspaces", allowlists.OPERATIONS), workspace_calls),
    "notifications": (notifications.OPERATIONS, notification_calls),
}


def newest(app: App) -> int:
    return max((row.id for row in app.records.audited(limit=1)), default=0)


@pytest.mark.parametrize("noun", NOUNS)
def test_operation_of_a_noun_when_called_writes_the_actions_that_it_declares(
    own: Served, noun: str
) -> None:
    """No other action is written, and each declared one is; queries write none."""
    operations, calls = NOUNS[noun]
    app = own.context.part(app_of)
    caller = Caller(name="boss", role="admin", interface="http")
    written: dict[str, set[str]] = {}
    for called, request in calls(app):
        before = newest(app)
        own.as_admin(called(app, caller, request))
        rows = [row for row in app.records.audited(limit=50) if row.id > before]
        assert all((row.who, row.via) == ("boss", "http") for row in rows)
        written.setdefault(called.name, set()).update(row.action for row in rows)
    assert written == {one.name: set(one.audit) for one in operations}
