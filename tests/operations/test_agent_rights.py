"""What a program of a run may not do with the operations of its data directory."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from loopwright.errors import InputError, NotAllowed
from loopwright.operations.child_runs import AgentRights, InsideRun
from loopwright.operations.data_directory import open_reader
from loopwright.operations.run_request import Request
from loopwright.operations.settings import Settings
from loopwright.operations.use_cases import accounts, allowlists, webhooks
from loopwright.operations.use_cases.operation import (
    Operation,
    PageRequest,
    local_app,
    local_caller,
)
from loopwright.ports import RecordStore

CHANGES: list[tuple[Operation[Request, object], Request]] = [
    (cast("Operation[Request, object]", accounts.add_user), accounts.AddUser(name="ann")),
    (
        cast("Operation[Request, object]", accounts.add_for_user),
        accounts.AddTokenForUser(label="x", role="admin", days=1),
    ),
    (
        cast("Operation[Request, object]", webhooks.add_webhook),
        webhooks.AddWebhook(url="https://example.org"),
    ),
    (
        cast("Operation[Request, object]", allowlists.add_workspace),
        allowlists.AddWorkspace(path="/"),
    ),
]


@pytest.mark.parametrize(("operation", "request_"), CHANGES, ids=[one.name for one, _ in CHANGES])
def test_agent_of_a_run_when_it_changes_accounts_is_refused_and_recorded(
    tmp_path: Path, operation: Operation[Request, object], request_: Request
) -> None:
    settings = Settings(home=tmp_path)
    service = open_reader(settings)
    records = cast("RecordStore", service.log)
    inside = InsideRun(run="run_1", runs=("run_1",))
    service.rights = AgentRights(
        inside=inside, log=service.log, records=records, clock=service.clock, via="cli"
    )
    app, caller = local_app(service, settings), local_caller(service)
    with pytest.raises(NotAllowed):
        asyncio.run(operation(app, caller, request_))
    [row] = records.audited(limit=1)
    assert operation.name in row.detail + row.subject
    assert asyncio.run(accounts.list_users(app, caller, PageRequest())).users == []
    service.log.close()


def test_command_of_this_process_when_it_exceeds_a_bound_is_refused(tmp_path: Path) -> None:
    """The same bounds and words as over HTTP; nothing is stored."""
    settings = Settings(home=tmp_path)
    service = open_reader(settings)
    app, caller = local_app(service, settings), local_caller()
    wanted = accounts.AddToken(label="ci", days=0)
    with pytest.raises(InputError) as refused:
        asyncio.run(accounts.add_token(app, caller, wanted))
    assert (refused.value.code, refused.value.pointer) == ("out-of-range", "/days")
    assert app.access().tokens() == []
    service.log.close()
