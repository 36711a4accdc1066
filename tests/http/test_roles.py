"""The matrix of roles: every route with everybody who may ask. A route without a row fails."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loopwright.http.clients import COOKIE
from loopwright.http.context import RequestLimits
from loopwright.http.route_table import FAMILIES
from loopwright.http.socket_endpoint import TABLE
from loopwright.operations.accounts.access import DENIED, ROLES, TOKEN, TokenRecord, digest
from loopwright.operations.accounts.people import SESSION, as_role, hashed
from loopwright.ports import StoredRecord
from tests.http.served import Reply, Served, served
from tests.http.talking import tab, talk
from tests.http.test_sockets import refused

SIGNED, OPEN, VIEWER, EDITOR, ADMIN = range(-1, 4)
ROWS = {
    "GET /": OPEN,
    "GET /healthz": OPEN,
    "GET /readyz": OPEN,
    "GET /api/version": OPEN,
    "GET /api/v1/health": OPEN,
    "GET /setup": OPEN,
    "GET /setup.js": OPEN,
    "POST /api/v1/session": OPEN,
    "POST /api/v1/setup": OPEN,
    "GET /decide": OPEN,
    "GET /decide.js": OPEN,
    "POST /api/v1/links": OPEN,
    "GET /metrics": VIEWER,
    "GET /openapi.json": VIEWER,
    "GET /api/v1/definitions": VIEWER,
    "GET /api/v1/definitions/{name}": VIEWER,
    "PUT /api/v1/definitions/{name}": EDITOR,
    "DELETE /api/v1/definitions/{name}": EDITOR,
    "POST /api/v1/definitions/import": EDITOR,
    "POST /api/v1/definitions/{name}/approve": ADMIN,
    "GET /api/v1/me": VIEWER,
    "DELETE /api/v1/session": VIEWER,
    "GET /api/v1/tokens": VIEWER,
    "POST /api/v1/tokens": VIEWER,
    "DELETE /api/v1/tokens/{token}": VIEWER,
    "GET /api/v1/agents": VIEWER,
    "POST /api/v1/agents": ADMIN,
    "PATCH /api/v1/agents/{agent}": ADMIN,
    "DELETE /api/v1/agents/{agent}": ADMIN,
    "GET /api/v1/workspaces": EDITOR,
    "POST /api/v1/workspaces": ADMIN,
    "DELETE /api/v1/workspaces": ADMIN,
    "GET /api/v1/users": ADMIN,
    "POST /api/v1/users": ADMIN,
    "PATCH /api/v1/users/{name}": ADMIN,
    "DELETE /api/v1/users/{name}": ADMIN,
    "POST /api/v1/users/{name}/link": ADMIN,
    "GET /api/v1/audit": ADMIN,
    "GET /api/v1/webhooks": ADMIN,
    "POST /api/v1/webhooks": ADMIN,
    "DELETE /api/v1/webhooks/{webhook}": ADMIN,
    "POST /api/v1/webhooks/{webhook}/test": ADMIN,
    "GET /api/v1/hooks": ADMIN,
    "POST /api/v1/hooks": ADMIN,
    "DELETE /api/v1/hooks/{name}": ADMIN,
    "POST /api/v1/hooks/{name}": SIGNED,
    "GET /api/v1/runs": VIEWER,
    "POST /api/v1/runs": EDITOR,
    "POST /api/v1/rehearsals": EDITOR,
    "GET /api/v1/runs/{run}": VIEWER,
    "GET /api/v1/runs/{run}/snapshot": VIEWER,
    "GET /api/v1/runs/{run}/plan": VIEWER,
    "GET /api/v1/runs/{run}/events": VIEWER,
    "GET /api/v1/runs/{run}/metrics": VIEWER,
    "GET /api/v1/runs/{run}/picture": VIEWER,
    "GET /api/v1/runs/{run}/output": VIEWER,
    "GET /api/v1/runs/{run}/activity": VIEWER,
    "GET /api/v1/runs/{run}/diff": VIEWER,
    "GET /api/v1/runs/{run}/worktree": VIEWER,
    "GET /api/v1/runs/{run}/certificate": VIEWER,
    "GET /api/v1/spend": VIEWER,
    "GET /api/v1/runs/{run}/logs": VIEWER,
    "GET /api/v1/runs/{run}/artifacts": VIEWER,
    "POST /api/v1/runs/{run}/artifacts": EDITOR,
    "GET /api/v1/runs/{run}/artifacts/{artifact}": VIEWER,
    "DELETE /api/v1/runs/{run}/artifacts/{artifact}": EDITOR,
    "GET /api/v1/runs/{run}/artifacts/{artifact}/content": VIEWER,
    "GET /api/v1/projects": VIEWER,
    "POST /api/v1/projects": EDITOR,
    "GET /api/v1/projects/{project}": VIEWER,
    "PATCH /api/v1/projects/{project}": EDITOR,
    "GET /api/v1/projects/{project}/sprints": VIEWER,
    "POST /api/v1/projects/{project}/sprints": EDITOR,
    "GET /api/v1/sprints": VIEWER,
    "PATCH /api/v1/sprints/{sprint}": EDITOR,
    "GET /api/v1/runs/{run}/todos": VIEWER,
    "POST /api/v1/runs/{run}/todos": EDITOR,
    "PATCH /api/v1/runs/{run}/todos/{todo}": EDITOR,
    "DELETE /api/v1/runs/{run}/todos/{todo}": EDITOR,
    "GET /api/v1/sessions/{session}/todos": VIEWER,
    "POST /api/v1/sessions/{session}/todos": EDITOR,
    "PATCH /api/v1/sessions/{session}/todos/{todo}": EDITOR,
    "DELETE /api/v1/sessions/{session}/todos/{todo}": EDITOR,
    "GET /api/v1/sessions/{session}/artifacts": VIEWER,
    "POST /api/v1/sessions/{session}/artifacts": EDITOR,
    "GET /api/v1/sessions/{session}/artifacts/{artifact}": VIEWER,
    "DELETE /api/v1/sessions/{session}/artifacts/{artifact}": EDITOR,
    "GET /api/v1/sessions/{session}/artifacts/{artifact}/content": VIEWER,
    "POST /api/v1/runs/{run}/pause": EDITOR,
    "POST /api/v1/runs/{run}/resume": EDITOR,
    "POST /api/v1/runs/{run}/stop": EDITOR,
    "POST /api/v1/runs/{run}/retry": EDITOR,
    "POST /api/v1/runs/{run}/skip": EDITOR,
    "POST /api/v1/runs/{run}/edit": EDITOR,
    "POST /api/v1/runs/{run}/fork": EDITOR,
    "POST /api/v1/runs/{run}/messages": EDITOR,
    "POST /api/v1/runs/{run}/apply": EDITOR,
    "POST /api/v1/runs/{run}/discard": EDITOR,
    "GET /api/v1/loops": VIEWER,
    "POST /api/v1/loops": EDITOR,
    "GET /api/v1/loops/active/count": VIEWER,
    "GET /api/v1/loops/definitions": VIEWER,
    "GET /api/v1/loops/definitions/{name}": VIEWER,
    "PUT /api/v1/loops/definitions/{name}": EDITOR,
    "DELETE /api/v1/loops/definitions/{name}": EDITOR,
    "GET /api/v1/loops/{loop}": VIEWER,
    "DELETE /api/v1/loops/{loop}": EDITOR,
    "PATCH /api/v1/loops/{loop}": EDITOR,
    "GET /api/v1/loops/{loop}/live": VIEWER,
    "POST /api/v1/loops/{loop}/skip-stage": EDITOR,
    "POST /api/v1/loops/{loop}/iterations/{iteration}/retry": EDITOR,
    "GET /api/v1/loops/{loop}/history": VIEWER,
    "GET /api/v1/loops/{loop}/metrics": VIEWER,
    "GET /api/v1/loops/{loop}/events": VIEWER,
    "GET /api/v1/loops/{loop}/iterations": VIEWER,
    "GET /api/v1/loops/{loop}/iterations/{iteration}": VIEWER,
    "POST /api/v1/loops/{loop}/pause": EDITOR,
    "POST /api/v1/loops/{loop}/resume": EDITOR,
    "POST /api/v1/loops/{loop}/stop": EDITOR,
    "GET /api/v1/notifications": VIEWER,
    "POST /api/v1/notifications/read": VIEWER,
    "POST /api/v1/notifications/{notification}/read": VIEWER,
    "GET /api/v1/sessions": VIEWER,
    "POST /api/v1/sessions": EDITOR,
    "GET /api/v1/sessions/{session}": VIEWER,
    "POST /api/v1/sessions/{session}/close": EDITOR,
    "GET /api/v1/gates": VIEWER,
    "POST /api/v1/gates/{gate}/approve": EDITOR,
    "POST /api/v1/gates/{gate}/reject": EDITOR,
    "POST /api/v1/gates/{gate}/continue": EDITOR,
    "POST /v1/assistant/stream": EDITOR,
    "GET /v1/runs/{run}/approvals": VIEWER,
    "POST /v1/runs/{run}/approve": EDITOR,
    "POST /v1/runs/{run}/reject": EDITOR,
    "GET /v1/runs/{run}/events": VIEWER,
    "GET /v1/runs/{run}/tree": VIEWER,
    "POST /v1/runs/{run}/edit-and-resume": EDITOR,
    "POST /v1/runs/{run}/swap-model": EDITOR,
    "GET /api/agents": VIEWER,
    "POST /api/agents": EDITOR,
    "GET /api/agents/{agent}": VIEWER,
    "PATCH /api/agents/{agent}": EDITOR,
    "DELETE /api/agents/{agent}": EDITOR,
    "POST /api/agents/{agent}/loop/start": EDITOR,
    "POST /api/agents/{agent}/loop/stop": EDITOR,
    "GET /api/agents/{agent}/loop/status": VIEWER,
    "POST /api/agents/{agent}/loop/approve": EDITOR,
}
"""Every route, and the least that may use it."""

CALLERS = {
    "anonymous": OPEN,
    "viewer": VIEWER,
    "editor": EDITOR,
    "admin": ADMIN,
    "expired": OPEN,
    "revoked": OPEN,
    "closed": OPEN,
}
"""Whoever asks, with a token or with the cookie of a session; the last three had the role of an
admin until their time was over, they were ended, or their account was closed.
"""
CLOSED = "Your account has been deactivated"


@pytest.fixture(scope="module")
def tokens(shared: Served) -> dict[str, str]:
    """The token of each caller."""
    made = {role: shared.made(role) for role in ("viewer", "editor", "admin")}
    made |= {"expired": shared.made("admin"), "revoked": shared.made("admin"), "anonymous": ""}
    shared("DELETE", f"/api/v1/tokens/{made['revoked'].split('_')[1]}")
    shared.call(lambda: expire(shared, made["expired"]))
    access, people = shared.context.access, shared.context.people

    def close() -> str:
        people.add("closed", "admin", by="t")
        people.add("closer", "admin", by="t")
        text = access.new_token("x", "admin", by="t", person="closed").text
        people.change("closed", by="t", active=False)
        return text

    return made | {"closed": shared.call(close)}


@pytest.fixture(scope="module")
def cookies(shared: Served) -> dict[str, str]:
    """The session of each caller."""
    records, people = shared.context.records, shared.context.people
    password = hashed("a good password")

    def sign_in(caller: str) -> str:
        role = caller if caller in ROLES else "admin"
        people.add(f"s-{caller}", as_role(role), by="t", password=password)
        return people.begin(f"s-{caller}", password).secret

    made = {
        caller: shared.call(lambda caller=caller: sign_in(caller))
        for caller in CALLERS
        if caller != "anonymous"
    }

    def end() -> None:
        record = records.record(SESSION, digest(made["expired"]))
        assert record is not None
        records.change([(replace(record, due=1), None)])
        people.sign_out(people.by_session(made["revoked"]))
        people.change("s-closed", by="t", active=False)

    shared.call(end)
    return made | {"anonymous": "x"}


def expire(server: Served, text: str) -> None:
    """Let the time of a token be over."""
    records = server.context.records
    record = records.record(TOKEN, text.split("_")[1])
    assert record is not None
    token = msgspec.json.decode(record.body, type=TokenRecord)
    old = msgspec.structs.replace(token, expires_at=1)
    records.change(
        [(StoredRecord(kind=TOKEN, key=record.key, body=msgspec.json.encode(old)), None)]
    )


def test_every_route_has_a_row() -> None:
    """What is served is what is stated here, row by row."""
    served_routes = {f"{r.method} {r.path}": r.need for f in FAMILIES for r in f.routes}
    names = {"signed": SIGNED, "open": OPEN, "viewer": VIEWER, "editor": EDITOR, "admin": ADMIN}
    assert {row: names[need] for row, need in served_routes.items()} == ROWS


@pytest.mark.item("G4")
@pytest.mark.parametrize("caller", CALLERS)
def test_every_cell(shared: Served, tokens: dict[str, str], caller: str) -> None:
    """Whoever has less than a route needs gets 401 or 403 and nothing else; who has enough gets
    an answer about what they asked.
    """
    for row, least in ROWS.items():
        check(row, least, caller, ask(shared, row, token=tokens[caller]))


@pytest.mark.item("G4")
@pytest.mark.parametrize("caller", CALLERS)
def test_every_cell_by_cookie(shared: Served, cookies: dict[str, str], caller: str) -> None:
    """The same for whoever has signed in."""
    held = f"{COOKIE}={cookies[caller]}"
    headers = {"Cookie": held, "Origin": f"http://127.0.0.1:{shared.port}"}
    for row, least in ROWS.items():
        if row != "DELETE /api/v1/session":  # the last one to be asked: it ends the session
            check(row, least, caller, ask(shared, row, token="", headers=headers))
    row = "DELETE /api/v1/session"
    check(row, ROWS[row], caller, ask(shared, row, token="", headers=headers))
    after = shared("GET", "/api/v1/me", token="", headers=headers)
    assert after.status == (403 if caller == "closed" else 401)


def ask(server: Served, row: str, **how: Any) -> Reply:
    method, _, path = row.partition(" ")
    sent = re.sub(r"\{\w+\}", "nothing", path)
    body = {} if method in ("POST", "PUT", "PATCH") else None
    return server(method, sent, body, **how)


def check(row: str, least: int, caller: str, reply: Reply) -> None:
    """One cell."""
    if least == SIGNED:  # who asks does not matter, only what is signed does
        assert (reply.status, reply.code) == (401, "bad-signature"), (row, caller)
    elif CALLERS[caller] >= least:
        assert reply.status not in (401, 403, 405, 500), (row, caller, reply.body)
    elif CALLERS[caller] == OPEN and caller != "closed":
        assert reply.status == 401, (row, caller)
    else:
        said = json.dumps(reply.json)  # each family has its own shape
        words = CLOSED if caller == "closed" else DENIED
        assert (reply.status, words in said) == (403, True), (row, caller)


EVENTS = {
    "loop:start": EDITOR,
    "loop:stop": EDITOR,
    "loop:approve": EDITOR,
    "subscribe": VIEWER,
    "run:resume": EDITOR,
    "run:tell": EDITOR,
    "unsubscribe": VIEWER,
    "notifications:read": VIEWER,
}
"""Everything that may be said over a socket, and the least that may say it."""


@pytest.mark.parametrize("caller", CALLERS)
def test_every_cell_of_the_sockets(shared: Served, tokens: dict[str, str], caller: str) -> None:
    """The same for events: who is nobody does not get in, who has less is denied."""
    names = {"viewer": VIEWER, "editor": EDITOR, "admin": ADMIN}
    assert {event: names[one.need] for event, one in TABLE.items()} == EVENTS

    async def go() -> None:
        if CALLERS[caller] == OPEN:
            await refused(shared, auth={"token": tokens[caller]})
            return
        async with tab(shared, tokens[caller]) as one:
            for event, least in EVENTS.items():
                answer = await one.say(event, {})
                denied = CALLERS[caller] < least
                assert answer["code"] == ("role" if denied else "missing-field"), event
                assert (answer["type"] == "POLICY_ERROR") is denied

    talk(go())


@pytest.mark.parametrize("bad", ["x", "lwt_a_b", "lwt__", "lwt_a_b_c", "é", "lwt_{id}_wrong"])
def test_tokens_that_are_none(shared: Served, bad: str) -> None:
    """Whatever is no token gets the same answer."""
    text = bad.format(id=shared.token.split("_")[1])
    headers = {"Authorization": f"Bearer {text}".encode().decode("latin-1")}
    reply = shared("GET", "/api/v1/me", token="", headers=headers)
    assert (reply.status, reply.code) == (401, "not-signed-in")
    assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("scheme", ["Basic", "Token", ""])
def test_other_schemes(shared: Served, scheme: str) -> None:
    """A token is sent as a bearer token."""
    headers = {"Authorization": f"{scheme} {shared.token}"}
    assert shared("GET", "/api/v1/me", token="", headers=headers).status == 401


@pytest.mark.item("F13")
def test_a_role_is_not_claimed(shared: Served, tokens: dict[str, str]) -> None:
    """What a request says about its own role changes nothing."""
    claims = {"X-Role": "admin", "X-User": "root", "Cookie": "role=admin"}
    reply = shared("GET", "/api/v1/me", token=tokens["viewer"], headers=claims)
    assert reply.json == {"name": "first-start/a viewer", "role": "viewer"}
    more = shared("POST", "/api/v1/tokens", {"label": "x", "role": "admin"}, token=tokens["editor"])
    assert (more.status, more.code) == (403, "role")


def test_a_denial_is_on_record(shared: Served, tokens: dict[str, str]) -> None:
    """Who was not let through, and to what, can be read later."""
    before = shared("GET", "/api/v1/runs").json["runs"]
    shared("POST", "/api/v1/runs", {"definition": "x"}, token=tokens["viewer"])
    rows = shared("GET", "/api/v1/audit?limit=1").json["rows"]
    assert (rows[0]["who"], rows[0]["action"]) == ("first-start/a viewer", "denied")
    assert rows[0]["subject"] == "POST /api/v1/runs"
    assert shared("GET", "/api/v1/runs").json["runs"] == before


@pytest.mark.item("inv-23")
def test_a_viewer_changes_nothing(shared: Served, tokens: dict[str, str]) -> None:
    """Whatever a viewer sends to routes that change something, everything stays as it is."""
    run, gate = shared.gated()
    names = {"run": run, "gate": gate, "name": "work", "token": tokens["editor"].split("_")[1]}

    def everything() -> list[object]:
        log, records = shared.context.here.log, shared.context.records
        kinds = ("token", "person", "session", "definition", "webhook", "incoming", "reply")
        return [
            *[(row.run, row.version) for row in log.rows()],
            *[(record.key, record.version) for kind in kinds for record in records.records(kind)],
        ]

    before = shared.call(everything)
    for row in ROWS:
        method, _, path = row.partition(" ")
        if method == "GET" or ROWS[row] <= VIEWER:
            continue
        sent = re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], "x"), path)
        reply = shared(method, sent, {}, token=tokens["viewer"])
        assert reply.status == 403, row
    assert shared.call(everything) == before


@pytest.fixture
def quick(tmp_path: Path, full_once: None) -> Iterator[Served]:
    with served(tmp_path, limits=RequestLimits(requests_per_second=10)) as one:
        yield one


def test_rates(quick: Served) -> None:
    """Nobody keeps the others from being answered."""
    replies = [quick("GET", "/api/v1/me") for _ in range(15)]
    assert [reply.status for reply in replies] == [200] * 10 + [429] * 5
    late = replies[-1]
    assert late.headers["ratelimit"] == f'"requests";r=0;t={late.headers["retry-after"]}'
    assert late.headers["ratelimit-policy"] == '"requests";q=10;w=1'
    other = quick.call(lambda: quick.context.access.new_token("b", "viewer", by="t")).text
    assert quick("GET", "/api/v1/me", token=other).status == 200
