"""Requests that are sent again: the same key, the same answer."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.server.served import Reply, Served

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
    assert replies[0].body == replies[1].body
