"""Incoming hooks: a message that is signed starts one run; any other starts none."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopwright.http.operation_routes import app_of
from loopwright.http.responses import problem_of as refusal_of
from loopwright.operations.accounts.access import TooManyRequests
from loopwright.operations.use_cases import webhooks
from loopwright.operations.use_cases.operation import Caller
from loopwright.operations.webhooks import (
    ARRIVAL,
    INCOMING_HOOK,
    Arrival,
    Hooks,
    Incoming,
    is_signed,
    new_secret,
    sign,
)
from loopwright.workers import webhooks as deliveries
from loopwright.workers.webhooks import MessageStarter
from tests.cli.conftest import Place, lw
from tests.http.served import SECONDS, Reply, Served, served, wait_for

__all__ = ["lw"]
BASE = "/api/v1/hooks"
BODY = b'{"issue": 7, "title": "It is broken"}'


def stored(own: Served, *replies: str, **repeat: Any) -> str:
    text = own.definition(own.script(*(replies or ("one", "two", "three"))), **repeat)
    reply = own("PUT", "/api/v1/definitions/triage", {"text": text}, headers={"If-None-Match": "*"})
    assert reply.status in (200, 201, 428), reply.body
    return "triage"


def hooked(own: Served, **more: Any) -> str:
    """A hook; its secret."""
    reply = own("POST", BASE, {"name": "issues", "stored": "triage", **more})
    assert reply.status == 201, reply.body
    return str(reply.json["secret"])


def headers(secret: str, *, message: str = "msg_1", body: bytes = BODY, off: int = 0) -> Any:
    at = str(int(time.time()) + off)
    signature = sign(secret, message, at, body)
    return {"webhook-id": message, "webhook-timestamp": at, "webhook-signature": signature}


def post(own: Served, given: Any, body: bytes = BODY, name: str = "issues") -> Reply:
    return own("POST", f"{BASE}/{name}", raw=body, headers=given, token="")


def runs(own: Served) -> list[Any]:
    return list(own("GET", "/api/v1/runs").json["runs"])


@pytest.mark.item("H7")
def test_a_message_starts_one_run(own: Served) -> None:
    """The run is known when the message is taken, sees its words as its task, and is started once:
    the same message again is answered with the same run and does nothing.
    """
    stored(own)
    secret = hooked(own, message="An issue came in.")
    given = headers(secret)
    first = post(own, given)
    assert (first.status, first.json["taken"]) == (202, True)
    run = first.json["run"]
    own.until(run, "completed")
    for again in (given, headers(secret)):
        reply = post(own, again)
        assert (reply.status, reply.json) == (200, {"id": "msg_1", "run": run, "taken": False})
    assert [one["run"] for one in runs(own)] == [run]
    start = own("GET", f"/api/v1/runs/{run}/events", headers={"Accept": "application/json"})
    event = start.json["events"][0]
    assert event["by"] == "hook:issues"
    assert event["message"] == f"An issue came in.\n\n{BODY.decode()}"
    actions = [row["action"] for row in own("GET", "/api/v1/audit").json["rows"]]
    assert {"hook.added", "hook.taken", "run.started"} <= set(actions)
    assert "secret" not in own("GET", BASE).json["hooks"][0]


def without(name: str) -> Callable[[dict[str, str]], dict[str, str]]:
    return lambda given: {key: value for key, value in given.items() if key != name}


WRONG: dict[str, Callable[[dict[str, str]], dict[str, str]]] = {
    "no signature": without("webhook-signature"),
    "no id": without("webhook-id"),
    "no time": without("webhook-timestamp"),
    "another secret": lambda _: headers(new_secret()),
    "another id": lambda given: {**given, "webhook-id": "msg_2"},
    "another time": lambda given: {**given, "webhook-timestamp": str(int(time.time()) + 1)},
    "no version": lambda given: {**given, "webhook-signature": given["webhook-signature"][3:]},
    "rubbish": lambda given: {**given, "webhook-signature": "v1,\xe9 v1, ,,, v2,x"},
    "time as text": lambda given: {**given, "webhook-timestamp": "now"},
    "negative time": lambda given: {**given, "webhook-timestamp": "-5"},
    "token": lambda given: {"Authorization": "Bearer lwt_a_b"},
}


@pytest.mark.item("H7")
def test_what_is_not_signed_starts_nothing(shared: Served) -> None:
    """No, old, early and foreign signatures get 401, as a hook that is not there does."""
    stored(shared)
    secret = hooked(shared)
    for name, change in WRONG.items():
        reply = post(shared, change(headers(secret)))
        assert (reply.status, reply.code) == (401, "bad-signature"), name
    for off in (-360, 360):
        assert post(shared, headers(secret, off=off)).status == 401
    there = post(shared, headers(secret), name="none")
    assert (there.status, there.code) == (401, "bad-signature")
    assert runs(shared) == []
    several = {**headers(secret)}
    several["webhook-signature"] = f"v1,AAAA {several['webhook-signature']}"
    assert post(shared, several).status == 202


@pytest.mark.item("H8")
@pytest.mark.parametrize("changed", [BODY + b" ", b" " + BODY, BODY.replace(b": 7", b":7"), b""])
def test_a_body_that_was_changed(changed: bytes) -> None:
    """What is signed is the body as it was sent, blank by blank."""
    secret = new_secret()
    at = "1000"
    given = ("msg_1", at, sign(secret, "msg_1", at, BODY))
    assert is_signed(secret, given, BODY, 1_000_000)
    assert not is_signed(secret, given, changed, 1_000_000)


@pytest.mark.item("H8")
def test_a_body_that_was_changed_on_its_way(shared: Served) -> None:
    """The same over HTTP."""
    secret = shared("POST", BASE, {"name": "way", "stored": stored(shared)}).json["secret"]
    reply = post(shared, headers(secret), BODY.replace(b"7,", b"7, "), name="way")
    assert (reply.status, reply.code) == (401, "bad-signature")


@pytest.mark.item("H9")
def test_a_thousand_in_a_second(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many messages in a second some are taken and the rest get 429; what waits is bounded."""
    monkeypatch.setattr(webhooks, "QUEUE", 30)
    stored(own, until={"person": True})
    secret = hooked(own, at_once=1)
    names = [f"msg_{number}" for number in range(1_000)]
    sent = [(name, headers(secret, message=name)) for name in names]
    app = own.context.part(app_of)
    caller = Caller(name="", role="viewer", interface="http", address="127.0.0.1")

    async def all_at_once() -> list[str]:
        told = []
        for name, given in sent:
            message = webhooks.ReceiveMessage(
                name="issues",
                body=BODY,
                message=name,
                sent_at=given["webhook-timestamp"],
                signatures=given["webhook-signature"],
            )
            try:
                await webhooks.receive(app, caller, message)
                told.append("taken")
            except TooManyRequests as error:
                status = refusal_of(error).status
                told.append(f"{status} {error.code} {next(iter(error.headers))}")
        return told

    told = asyncio.run_coroutine_threadsafe(all_at_once(), own.loop).result(SECONDS)
    assert told.count("taken") == 30
    refused = {"429 queue-full Retry-After", "429 too-many-requests Retry-After"}
    assert set(told) == {"taken", *refused}
    over_http = [post(own, headers(secret, message=f"late_{number}")) for number in range(4)]
    late = [reply for reply in over_http if reply.status == 429]
    assert len(late) >= 3  # one may find the place of the message that was started
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in late)
    assert own("GET", "/healthz").status == 200


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that is met on a slow machine too."""
    monkeypatch.setattr(webhooks, "UNSIGNED_PER_SECOND", 2)


@pytest.mark.usefixtures("strict")
def test_who_guesses_is_slowed_down(own: Served) -> None:
    """Messages that nobody signed cost their sender, not the hook."""
    stored(own)
    secret = hooked(own)
    statuses = [post(own, headers(new_secret())).status for _ in range(20)]
    assert (statuses[0], set(statuses)) == (401, {401, 429})
    assert post(own, headers(secret)).status == 202


def test_so_many_at_once(own: Served) -> None:
    """The messages of a hook take turns, in the order in which they came."""
    stored(own, until={"person": True})
    secret = hooked(own, at_once=1)
    first, second = (post(own, headers(secret, message=name)).json["run"] for name in ("a", "b"))
    own.until(first, "waiting")
    assert own("GET", f"/api/v1/runs/{second}").status == 404
    own("POST", f"/api/v1/runs/{first}/stop")
    wait_for(lambda: own("GET", f"/api/v1/runs/{second}").status == 200)
    own.until(second, "waiting")


@pytest.mark.parametrize("crash", ["before the start", "after the start"])
def test_what_was_taken_is_started_after_a_crash(tmp_path: Path, crash: str) -> None:
    """A message that was answered becomes a run, exactly one, wherever the server died."""
    with served(tmp_path) as own:
        stored(own)
        secret = hooked(own)
        part = own.context.part(app_of).part(MessageStarter)
        hook = part.hooks.get("issues")
        assert hook is not None
        arrival = own.call(lambda: part.hooks.take(hook, "msg_1", "words"))
        if crash == "after the start":
            asyncio.run_coroutine_threadsafe(part._start(hook, arrival), own.loop).result(SECONDS)
    with served(tmp_path) as again:
        again.token = own.token
        again.until(arrival.run, "completed")
        assert post(again, headers(secret)).json["run"] == arrival.run
        assert len(runs(again)) == 1


def test_a_definition_that_is_gone(own: Served) -> None:
    """A message for which nothing can be started leaves its reason with the hook."""
    stored(own)
    secret = hooked(own)
    tag = own("GET", "/api/v1/definitions/triage").headers["etag"]
    path = "/api/v1/definitions/triage"
    assert own("DELETE", path, headers={"If-Match": tag}).status == 204
    assert post(own, headers(secret)).status == 202
    wait_for(lambda: problem_of(own) is not None)
    assert "no stored definition" in str(problem_of(own))
    assert runs(own) == []


def problem_of(own: Served) -> str | None:
    told = own("GET", BASE).json["hooks"][0]["problem"]
    return None if told is None else str(told)


def test_a_problem_is_over_with_the_next_success(own: Served) -> None:
    """A message that could not be started is told with its hook until one is started again."""
    stored(own)
    secret = hooked(own)
    version = own("GET", "/api/v1/definitions/triage").headers["etag"]
    own("DELETE", "/api/v1/definitions/triage", headers={"If-Match": version})
    post(own, headers(secret))
    wait_for(lambda: problem_of(own) is not None)
    stored(own)
    run = post(own, headers(secret, message="msg_2")).json["run"]
    own.until(run, "completed")
    wait_for(lambda: problem_of(own) is None)


def test_a_defect_ends_nothing(
    own: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception that nobody expects is logged; the message stays and is started later, those
    behind it are started meanwhile, and the problem is told until then.
    """
    stored(own)
    secret = hooked(own, at_once=1)
    begin, broken = MessageStarter._start, threading.Event()
    broken.set()

    async def start(self: MessageStarter, hook: Incoming, arrival: Arrival) -> None:
        if arrival.id == "msg_1" and broken.is_set():
            raise ZeroDivisionError("a defect")
        await begin(self, hook, arrival)

    monkeypatch.setattr(MessageStarter, "_start", start)
    monkeypatch.setattr(deliveries, "INCOMING_LOOK_S", 0.02)
    monkeypatch.setattr(deliveries, "AGAIN_MS", (1_500,))
    first = post(own, headers(secret)).json["run"]
    wait_for(lambda: problem_of(own) is not None)
    assert "ZeroDivisionError" in str(problem_of(own))
    second = post(own, headers(secret, message="msg_2")).json["run"]
    own.until(second, "completed")
    assert own("GET", f"/api/v1/runs/{first}").status == 404
    assert "a defect" in caplog.text
    broken.clear()
    wait_for(lambda: own("GET", f"/api/v1/runs/{first}").status == 200)
    own.until(first, "completed")
    wait_for(lambda: problem_of(own) is None)


def test_a_defect_between_messages_ends_nothing(
    own: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The same where it is no message that breaks: the next round is made all the same."""
    stored(own)
    secret = hooked(own)
    look, calls = Hooks.all, list[int]()

    def broken(self: Hooks) -> list[Incoming]:
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("a defect")
        return look(self)

    monkeypatch.setattr(deliveries, "INCOMING_LOOK_S", 0.02)
    monkeypatch.setattr(Hooks, "all", broken)
    wait_for(lambda: len(calls) > 1)
    own.until(post(own, headers(secret)).json["run"], "completed")
    assert "starting what came in by hooks failed" in caplog.text


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"name": "../x", "stored": "triage"}, 422, "bad-hook-name"),
        ({"name": "x", "stored": "none"}, 404, "not-found"),
        ({"name": "x", "stored": "triage", "at_once": 0}, 422, "out-of-range"),
        ({"name": "x", "stored": "triage", "secret": "mine"}, 422, "unknown-field"),
    ],
)
def test_hooks_that_cannot_be(shared: Served, body: Any, status: int, code: str) -> None:
    """What cannot be a hook is refused with its reason."""
    reply = shared("POST", BASE, body)
    assert (reply.status, reply.code) == (status, code)


def test_old_messages_are_forgotten(own: Served) -> None:
    """What is done is kept for three days, and taken away with its hook."""
    stored(own)
    secret = hooked(own)
    run = post(own, headers(secret)).json["run"]
    own.until(run, "completed")
    part, records = own.context.part(app_of).part(MessageStarter), own.context.records
    wait_for(lambda: own.call(lambda: records.records(ARRIVAL, owner="done/issues")))
    [record] = own.call(lambda: records.records(ARRIVAL))
    assert record.due is not None
    assert record.due > own.context.clock.now_ms() + 2 * 86_400_000
    own.call(part.hooks.forget_old)
    assert len(own.call(lambda: records.records(ARRIVAL))) == 1
    assert own("DELETE", f"{BASE}/issues").status == 204
    assert own.call(lambda: [*records.records(ARRIVAL), *records.records(INCOMING_HOOK)]) == []
    assert own("DELETE", f"{BASE}/issues").status == 404
    assert post(own, headers(secret)).status == 401


def test_the_command_line(lw: Place, tmp_path: Path) -> None:
    """`hook` makes, lists and ends hooks of the home; the secret is printed once."""
    with served(tmp_path, home="home") as own:
        stored(own)
    assert lw("hook", "ls").code == 0
    made = lw("hook", "add", "issues", "--run", "triage")
    assert made.out.startswith("whsec_")
    assert lw("hook", "add", "issues", "--run", "triage").code == 8
    assert lw("hook", "add", "other", "--run", "none").code == 2
    listed = lw("hook", "ls")
    assert "issues  triage  4" in listed.out
    assert "whsec_" not in listed.out + json.dumps(lw("hook", "ls", "--json").json)
    assert lw("hook", "rm", "issues", "--json").json == {"name": "issues", "removed": True}
    assert lw("hook", "rm", "issues").code == 2
