"""Repeated requests: the same key, the same answer."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loopwright.http.application import IdempotencyKeys
from loopwright.operations.run_request import RunStart
from tests.http.served import SECONDS, Reply, Served, served
from tests.http.test_assistants import people

RUNS = "/api/v1/runs"


@pytest.mark.item("E6", "inv-18")
def test_a_key_is_answered_once(own: Served) -> None:
    """The same key and body get the first answer again, and nothing is done twice; another body
    is refused.
    """
    body = {"definition": own.definition(own.script("x"), until={"person": True})}
    key = {"Idempotency-Key": "start-1"}
    first = own("POST", RUNS, body, headers=key)
    again = own("POST", RUNS, body, headers=key)
    assert (first.status, again.status, again.body) == (201, 201, first.body)
    assert again.headers["location"] == first.headers["location"]
    other = own("POST", RUNS, {**body, "message": "else"}, headers=key)
    assert (other.status, other.code) == (422, "key-reused")
    assert len(own("GET", RUNS).json["runs"]) == 1


@pytest.mark.item("E6")
def test_another_address_is_another_request(shared: Served) -> None:
    """What stands behind the question mark counts as the body does."""
    path = f"/api/v1/runs/{shared.gated()[0]}/artifacts"
    key = {"Idempotency-Key": "give-1"}
    first = shared("POST", f"{path}?name=a", raw=b"same", headers=key)
    other = shared("POST", f"{path}?name=b", raw=b"same", headers=key)
    assert (first.status, other.status, other.code) == (201, 422, "key-reused")


@pytest.mark.item("E6")
def test_a_key_that_is_at_work_waits(own: Served) -> None:
    """Of many requests at once under one key one is done; the others get its answer or are told
    when to come back.
    """
    body = {"definition": own.definition(own.script("x"), until={"person": True})}

    def ask(_: int) -> Reply:
        return own("POST", RUNS, body, headers={"Idempotency-Key": "start-2"})

    with ThreadPoolExecutor(10) as many:
        replies = list(many.map(ask, range(20)))
    assert {reply.status for reply in replies} <= {201, 409}
    assert all(r.headers["retry-after"] == "1" for r in replies if r.status == 409)
    assert len({reply.body for reply in replies if reply.status == 201}) == 1
    assert len(own("GET", RUNS).json["runs"]) == 1


AGENTS, LOOPS = "/api/agents", "/api/v1/loops"


@pytest.mark.item("E6", "inv-18")
def test_every_family_keeps_its_keys(shared: Served) -> None:
    """Another body under a key is 422 everywhere, in the shape of the family."""
    run, gate = shared.gated()
    paths = {
        AGENTS: ({"name": "a"}, {"name": "b"}, "code"),
        LOOPS: (
            {"definition": "harness", "goal": "a", "agent": "command:true"},
            {"goal": "b"},
            "details",
        ),
        f"/v1/runs/{run}/approve": ({"callId": gate}, {"callId": gate, "reason": "x"}, "error"),
    }
    for path, (first, other, shape) in paths.items():
        key = {"Idempotency-Key": f"of {path}".replace(" ", "-")}
        assert shared("POST", path, first, headers=key).status < 300
        again = shared("POST", path, first, headers=key)
        assert again.headers["idempotency-replayed"] == "true"
        reply = shared("POST", path, {**first, **other}, headers=key)
        assert reply.status == 422, reply.body
        assert shape in reply.json
        assert b"key-reused" in reply.body


@pytest.mark.item("E6", "inv-18")
def test_a_key_is_of_one_person(shared: Served) -> None:
    """Two people may take the same key for different things, or for the same."""
    tokens = [people(shared, "editor", name) for name in ("ann", "bob")]
    key = {"Idempotency-Key": "mine"}
    ids = []
    for token, name in zip(tokens, ("a", "b"), strict=True):
        reply = shared("POST", AGENTS, {"name": name}, token=token, headers=key)
        assert (reply.status, reply.json["data"]["name"]) == (201, name)
        ids.append(reply.json["data"]["id"])
    assert len(set(ids)) == 2


@pytest.mark.item("E6")
def test_the_second_waits_while_the_first_is_at_work(
    shared: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told so and when to come back, in the shape of its family, and does nothing."""
    begun, go_on = threading.Event(), threading.Event()
    service = shared.context.service
    start, calls = service.start, []

    async def slow(what: RunStart) -> str:
        calls.append(what)
        begun.set()
        await asyncio.to_thread(go_on.wait, SECONDS)
        return await start(what)

    monkeypatch.setattr(service, "start", slow)
    body = {"definition": "harness", "goal": "g", "agent": "command:true"}
    key = {"Idempotency-Key": "slow-1"}
    with ThreadPoolExecutor(1) as one:
        first = one.submit(lambda: shared("POST", LOOPS, body, headers=key))
        assert begun.wait(SECONDS)
        second = shared("POST", LOOPS, body, headers=key)
        go_on.set()
        assert first.result().status == 201
    assert (second.status, second.json["code"]) == (409, "conflict")
    assert second.json["details"]["reason"] == "still-at-work"
    assert second.headers["retry-after"] == "1"
    assert shared("POST", LOOPS, body, headers=key).body == first.result().body
    assert len(calls) == 1


@pytest.mark.item("E7")
@pytest.mark.parametrize("key", ["", "a" * 10_000, "a" * 256, "naïve", "a b", "\t"])
def test_keys_that_are_none(shared: Served, key: str) -> None:
    """A key is short, visible ASCII."""
    reply = shared("POST", RUNS, {"definition": "x"}, headers={"Idempotency-Key": key})
    assert reply.status == (431 if len(key) > 8_000 else 400)
    assert reply.code in ("bad-idempotency-key", "headers-too-large")


def test_a_refusal_is_kept_like_an_answer(own: Served) -> None:
    """What was refused under a key is refused the same way again."""
    replies = [
        own("POST", RUNS, {"definition": "name: ["}, headers={"Idempotency-Key": "k"})
        for _ in range(2)
    ]
    assert [reply.status for reply in replies] == [422, 422]
    first, again = ({**reply.json, "trace_id": ""} for reply in replies)
    assert first == again


@pytest.mark.item("inv-18")
def test_a_crash_before_the_answer_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was done is not done again: a start is answered with its run, anything else is named."""

    def crash(*_: object) -> None:
        raise RuntimeError("the lights went out")

    started, stopped = {"Idempotency-Key": "s-1"}, {"Idempotency-Key": "s-2"}
    with served(tmp_path) as first:
        token = first.token
        body = {"definition": first.definition(first.script("x"), until={"person": True})}
        monkeypatch.setattr(IdempotencyKeys, "_keep", crash)
        assert first("POST", RUNS, body, headers=started).status == 500
        run = first("GET", RUNS).json["runs"][0]["run"]
        assert first("POST", f"{RUNS}/{run}/pause", headers=stopped).status == 500
        monkeypatch.undo()
    with served(tmp_path) as second:
        second.token = token
        other = second("POST", RUNS, {**body, "message": "else"}, headers=started)
        assert (other.status, other.code) == (422, "key-reused")
        for _ in range(2):
            again = second("POST", RUNS, body, headers=started)
            assert (again.status, again.json["run"]) == (201, run)
            assert again.headers["location"] == f"{RUNS}/{run}"
        lost = second("POST", f"{RUNS}/{run}/pause", headers=stopped)
        assert (lost.status, lost.code) == (409, "answer-lost")
        assert run in lost.json["detail"]
        assert len(second("GET", RUNS).json["runs"]) == 1


def test_a_request_that_did_nothing_is_done_when_it_is_repeated(own: Served) -> None:
    """A refusal is not kept, also for another body under its key."""
    key = {"Idempotency-Key": "s-3"}
    assert own("POST", RUNS, {"definition": "{"}, headers=key).status == 422
    body = {"definition": own.definition(own.script("x"), until={"person": True})}
    assert own("POST", RUNS, body, headers=key).status == 201
    assert len(own("GET", RUNS).json["runs"]) == 1
