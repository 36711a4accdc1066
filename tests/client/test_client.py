"""The same calls at each address: in this process, at the local server, at a remote server."""

import asyncio
import json
import re
import stat
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loopwright.client.client import (
    CommandClient,
    LocalServer,
    RemoteServer,
    has_local_server,
    open_client,
)
from loopwright.client.http_connection import LocalSocket
from loopwright.client.http_transport import HttpTransport, encode_request
from loopwright.client.in_process import InProcess
from loopwright.client.transport import FollowOptions
from loopwright.errors import (
    Conflict,
    LoopwrightError,
    NotAllowed,
    NotFound,
    NotSignedIn,
    Unreachable,
)
from loopwright.http import clients as peers
from loopwright.operations.accounts.access import InsideRun, current_user
from loopwright.operations.data_directory import HTTP_SOCKET
from loopwright.operations.use_cases import (
    artifacts,
    definitions,
    gates,
    lists,
    run_changes,
    run_queries,
    run_views,
)
from loopwright.operations.use_cases.operation import Operation
from loopwright.operations.use_cases.table import TABLE
from loopwright.ports import Delta
from tests.client.conftest import address_of
from tests.http.served import Served, served


@pytest.fixture(scope="module")
def done(server: Served) -> str:
    """A run of two iterations that has completed."""
    text = server.definition(server.script("one", "two DONE"), until={"contains": "DONE"})
    run: str = server.start(text)
    server.until(run, "completed")
    return run


QUERIES: list[tuple[Operation[Any, Any], dict[str, Any]]] = [
    (lists.list_runs, {}),
    (lists.list_runs, {"status": ("completed",), "limit": 1}),
    (run_queries.show, {"run": "RUN"}),
    (run_queries.snapshot, {"run": "RUN"}),
    (run_views.read_metrics, {"run": "RUN"}),
    (run_views.read_output, {"run": "RUN", "path": "main.0"}),
    (run_views.read_activity, {"run": "RUN", "full": True}),
    (run_views.read_certificate, {"run": "RUN"}),
    (lists.show_spend, {"by": "day"}),
    (lists.list_open, {}),
]


@pytest.mark.parametrize(("operation", "given"), QUERIES, ids=lambda one: getattr(one, "name", ""))
def test_response_of_a_query_is_the_same_at_each_address(
    clients: dict[str, CommandClient], done: str, operation: Operation[Any, Any], given: Any
) -> None:
    given = {name: done if value == "RUN" else value for name, value in given.items()}
    found = [one.call(operation, operation.request(**given)) for one in clients.values()]
    assert all(isinstance(one, operation.response) for one in found)
    assert msgspec.to_builtins(found[0]) == msgspec.to_builtins(found[1])
    assert msgspec.to_builtins(found[0]) == msgspec.to_builtins(found[2])


@pytest.mark.parametrize(
    ("operation", "given", "kind"),
    [
        (run_queries.show, {"run": "run_none"}, NotFound),
        (lists.list_runs, {"match": "none"}, NotFound),
        (run_views.read_output, {"run": "RUN", "path": "main.7"}, LoopwrightError),
        (run_changes.discard_worktree, {"run": "RUN", "confirm": False}, LoopwrightError),
        (run_changes.apply_result, {"run": "RUN"}, LoopwrightError),
        (gates.approve, {"gate": "gate_0123456789abcdef0123"}, LoopwrightError),
        (gates.continue_, {"gate": "gate_0123456789abcdef0123"}, LoopwrightError),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_refusal_is_the_same_error_at_each_address(
    clients: dict[str, CommandClient],
    done: str,
    operation: Operation[Any, Any],
    given: dict[str, Any],
    kind: type[LoopwrightError],
) -> None:
    given = {name: done if value == "RUN" else value for name, value in given.items()}
    errors = []
    for one in clients.values():
        with pytest.raises(kind) as caught:
            one.call(operation, operation.request(**given))
        errors.append((caught.value.message, caught.value.code, caught.value.hint))
    assert errors[0] == errors[1] == errors[2]


def test_run_is_found_by_what_people_type(client: CommandClient, done: str) -> None:
    assert client.find_run("last") == client.find_run(done) == client.find_run(done[-8:]) == done
    with pytest.raises(NotFound, match="no run 'none'"):
        client.find_run("none")


def test_gate_is_found_by_its_id_and_by_its_run(client: CommandClient, server: Served) -> None:
    run, gate = server.gated()
    assert client.find_gate(gate) == client.find_gate(gate[:15]) == client.find_gate(run) == gate
    answered = client.call(gates.approve, gates.AnswerGate(gate=gate, text="good"))
    assert answered.run == run
    with pytest.raises(Conflict, match=r"does not wait for anybody|has ended"):
        client.find_gate(run)
    server.until(run, "completed")
    finished = [one for one in client.follow(run) if isinstance(one, dict)]
    [by] = [str(one["by"]) for one in finished if one["kind"] == "gate.answered"]
    assert by in (current_user(), "first-start")


@pytest.mark.parametrize("view", ["events", "words", "transcript"])
@pytest.mark.parametrize("until_end", [True, False])
def test_events_are_the_same_at_each_address(
    clients: dict[str, CommandClient], done: str, view: Any, *, until_end: bool
) -> None:
    options = FollowOptions(view=view, until_end=until_end)
    found = [list(one.follow(done, options)) for one in clients.values()]
    assert found[0]
    assert found[0] == found[1] == found[2]
    later = FollowOptions(view=view, until_end=until_end, after=4)
    rest = [list(one.follow(done, later)) for one in clients.values()]
    assert rest[0] == rest[1] == rest[2]
    assert rest[0] == [
        one for one in found[0] if isinstance(one, dict) and int(str(one["seq"])) > 4
    ]


def test_follower_gets_events_and_text_until_the_run_ends(
    client: CommandClient, server: Served
) -> None:
    run = server.start(server.definition(f"command:{sys.executable} -c 'print(1)'", max=1))
    found = list(client.follow(run, FollowOptions(text=True)))
    kinds = [one["kind"] for one in found if not isinstance(one, Delta)]
    assert kinds[0] == "run.started"
    assert kinds[-1] == "run.finished"


# -- over HTTP -------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", TABLE.values(), ids=TABLE)
def test_request_is_sent_as_the_route_expects_it(operation: Operation[Any, Any]) -> None:
    """Every parameter of the path is taken from the request."""
    if operation.http is None:
        return
    hints = msgspec.structs.fields(operation.request)
    needed: dict[str, Any] = {one.name: "a/b" for one in hints if one.required}
    raw = operation.http.raw
    if raw is not None:
        needed[raw.field] = b"a/b"
    for template in operation.http.paths:
        in_path = {name: "a/b" for name in re.findall(r"\{(\w+)\}", template)}
        request = operation.request(**needed | in_path)
        path, body, _ = encode_request(operation, request)
        assert "{" not in path
        assert path.partition("?")[0].count("/") == template.count("/")
        assert (body is None) == (operation.http.method in ("GET", "DELETE"))
        assert raw is None or body == b"a/b"


def test_query_and_body_have_only_what_is_not_the_default() -> None:
    request = lists.ListRuns(status=("running", "waiting"), chats=False, limit=7)
    assert encode_request(lists.list_runs, request) == (
        "/api/v1/runs?status=running&status=waiting&limit=7&chats=false",
        None,
        {},
    )
    answer = gates.AnswerGate(gate="gate_1", remember=True)
    path, body, _ = encode_request(gates.approve, answer)
    assert (path, json.loads(body or b"")) == ("/api/v1/gates/gate_1/approve", {"remember": True})
    changed = run_views.DiffRun(run="run_1", start="2", stat=True)
    assert (
        encode_request(run_views.read_diff, changed)[0]
        == "/api/v1/runs/run_1/diff?from=2&stat=true"
    )


def test_fields_are_sent_in_headers_and_raw_bodies() -> None:
    saved = definitions.SaveDefinition(name="x", text="name: x", if_match='"3"')
    path, body, headers = encode_request(definitions.save, saved)
    assert (path, json.loads(body or b"")) == ("/api/v1/definitions/x", {"text": "name: x"})
    assert headers == {"If-Match": '"3"'}
    given = artifacts.UploadArtifact(session="ses_1", data=b"\0", name="a b")
    assert encode_request(artifacts.upload, given) == (
        "/api/v1/sessions/ses_1/artifacts?name=a+b",
        b"\0",
        {"Content-Type": "application/octet-stream"},
    )


def test_text_that_no_encoding_has_is_sent_with_a_replacement() -> None:
    """An argument on the command line may have bytes that are not text."""
    request = run_changes.MessageRun(run="run_1", text="a\udcff")
    _, body, _ = encode_request(run_changes.send_message, request)
    assert json.loads(body or b"") == {"text": "a?"}
    found, _, _ = encode_request(lists.list_runs, lists.ListRuns(match="\udcff"))
    assert found == "/api/v1/runs?match=%3F"


def test_server_without_a_token_asks_to_sign_in(server: Served) -> None:
    address = RemoteServer(f"http://127.0.0.1:{server.port}", "")
    with CommandClient(open_client(address)) as one, pytest.raises(NotSignedIn, match="Auth") as no:
        one.call(lists.list_open, lists.ListGates())
    assert "loopwright login" in str(no.value.hint)


def test_server_that_does_not_exist_is_unreachable() -> None:
    with (
        CommandClient(open_client(RemoteServer("http://127.0.0.1:9", ""))) as one,
        pytest.raises(Unreachable, match="does not answer"),
    ):
        one.call(lists.list_open, lists.ListGates())


def test_client_of_a_local_server_that_has_ended_continues_in_this_process(tmp_path: Path) -> None:
    """A run that it started is there, and a command under the same key is done once."""
    said: list[str] = []
    with served(tmp_path, held=True) as server:
        run, gate = server.gated()
        settings = server.context.settings
        client = CommandClient(open_client(LocalServer(settings), say=said.append))
        assert client.find_run("last") == run
    with client:
        assert client.find_gate(run) == gate
        assert client.call(gates.reject, gates.AnswerGate(gate=gate)).run == run
        [*events] = client.follow(run, FollowOptions(until_end=False))
    assert said == ["the local server does not answer; continuing in this process"]
    assert events[-1]["kind"] in ("gate.answered", "run.finished")  # type: ignore[index,call-overload]


def test_command_whose_response_was_lost_is_not_done_again(server: Served) -> None:
    """Its key is in the audit log, which the process that repeats it reads."""
    run, gate = server.gated()
    request = gates.AnswerGate(gate=gate, text="good")
    client = HttpTransport(LocalSocket(server.context.settings.home))
    here = InProcess(server.context.settings)

    async def repeat() -> None:
        assert (await client.call(gates.approve, request, "key-1")).run == run
        with pytest.raises(Conflict, match=f"this was done .gate.answered {run}.") as again:
            await here.call(gates.approve, request, "key-1")
        assert again.value.code == "answer-lost"
        await here.close()

    asyncio.run(repeat())


# -- the Unix socket -------------------------------------------------------------------------------


def test_socket_of_the_local_server_is_for_its_owner_alone(server: Served) -> None:
    home = server.context.settings.home
    assert has_local_server(server.context.settings)
    mode = (home / HTTP_SOCKET).stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_caller_at_the_socket_is_the_person_who_owns_the_data_directory(server: Served) -> None:
    """No token is sent; what they do is recorded under their name."""
    with CommandClient(open_client(address_of(server, "the local server"))) as one:
        run, gate = server.gated()
        one.call(gates.approve, gates.AnswerGate(gate=gate))
    rows = server.call(lambda: server.context.records.audited(subject=run, limit=50))
    assert ("gate.answered", current_user()) in {(row.action, row.who) for row in rows}


def test_program_of_a_run_cannot_use_the_socket(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused and recorded, whatever it asks for."""
    caller = InsideRun(run="run_x", agent="coder")
    monkeypatch.setattr(peers, "find_unix_peer", lambda _: caller)
    with (
        CommandClient(open_client(address_of(server, "the local server"))) as one,
        pytest.raises(NotAllowed, match="cannot use the server") as refused,
    ):
        one.call(lists.list_open, lists.ListGates())
    assert refused.value.code == "inside-run"
    rows = server.call(lambda: server.context.records.audited(limit=5))
    assert "GET /api/v1/gates" in str(rows[0])
