"""What operations declare about the audit log is what they write."""

from collections.abc import Iterator
from typing import Any

import pytest

from loopwright.http.operation_routes import app_of
from loopwright.operations.use_cases import tokens, users
from loopwright.operations.use_cases.operation import App, Caller, Operation, Request
from tests.http.served import Served

Call = tuple[Operation[Any, Any], Request]
ANN = "ann"


def user_calls(_app: App) -> Iterator[Call]:
    """Every change of an account that is recorded, and lists."""
    yield users.add, users.AddUser(name=ANN)
    yield users.change, users.ChangeUser(name=ANN, role="editor")
    yield users.change, users.ChangeUser(name=ANN, password="correct horse")
    yield users.change, users.ChangeUser(name=ANN, active=False)
    yield users.change, users.ChangeUser(name=ANN, active=True)
    yield users.link, users.UserReference(name=ANN)
    yield users.list_users, users.PageRequest()
    yield users.remove, users.UserReference(name=ANN)


def token_calls(app: App) -> Iterator[Call]:
    """A token that is created, listed and revoked."""
    yield tokens.add, tokens.AddToken(label="ci")
    yield tokens.list_tokens, tokens.PageRequest()
    [made] = [one for one in app.access().tokens() if one.label == "ci"]
    yield tokens.revoke, tokens.TokenReference(token=made.id)


NOUNS = {
    "users": (users.OPERATIONS, user_calls),
    "tokens": (tokens.OPERATIONS, token_calls),
}


def newest(app: App) -> int:
    return max((row.id for row in app.cards.audited(limit=1)), default=0)


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
        rows = [row for row in app.cards.audited(limit=50) if row.id > before]
        assert all((row.who, row.via) == ("boss", "http") for row in rows)
        written.setdefault(called.name, set()).update(row.action for row in rows)
    assert written == {one.name: set(one.audit) for one in operations}
