"""Gates over HTTP: shown, answered once, by the first of any number of people."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from loopwright.server import shapes
from tests.server.served import Served
from tests.server.test_runs import fits

GATES = "/api/v1/gates"
RUNS = "/api/v1/runs"


def test_the_inbox_has_what_waits(own: Served) -> None:
    """Every open gate is listed with its run, oldest first."""
    one, first = own.gated()
    two, second = own.gated()
    listed = own("GET", GATES).json["gates"]
    assert [(gate["id"], gate["run"]) for gate in listed] == [(first, one), (second, two)]
    fits(listed[0], shapes.InboxGate)


@pytest.mark.parametrize(
    ("answer", "body", "status"),
    [
        ("approve", {}, "completed"),
        ("approve", {"text": "Good."}, "completed"),
        ("reject", {"text": "No."}, "failed"),
        ("continue", {"text": "Shorter."}, "waiting"),
    ],
)
def test_three_answers(own: Served, answer: str, body: dict[str, str], status: str) -> None:
    """Approve completes, reject fails, continue makes another pass."""
    run, gate = own.gated()
    assert own("POST", f"{GATES}/{gate}/{answer}", body).status == 200
    ended = own.until(run, status)
    assert ended["iterations"] == (2 if answer == "continue" else 1)


def test_continue_needs_words(own: Served) -> None:
    """Another pass without feedback would be the same pass; the gate stays open."""
    _, gate = own.gated()
    reply = own("POST", f"{GATES}/{gate}/continue", {"text": " "})
    assert (reply.status, reply.code) == (422, "text-needed")
    assert len(own("GET", GATES).json["gates"]) == 1


@pytest.mark.item("G7")
def test_the_second_answer_is_told_of_the_first(own: Served) -> None:
    """A gate that is answered says by whom and when; the same key gets the same answer."""
    _, gate = own.gated()
    key = {"Idempotency-Key": "one"}
    first = own("POST", f"{GATES}/{gate}/approve", {}, headers=key)
    assert first.status == 200
    second = own("POST", f"{GATES}/{gate}/approve", {})
    assert (second.status, second.code) == (409, "already-resolved")
    assert "approve by first-start at 20" in second.json["detail"]
    again = own("POST", f"{GATES}/{gate}/approve", {}, headers=key)
    assert (again.status, again.body) == (200, first.body)
    assert again.headers["idempotency-replayed"] == "true"


@pytest.mark.item("G8", "inv-11")
def test_of_a_hundred_answers_one_counts(own: Served) -> None:
    """A hundred approvals and rejections at the same instant: one is taken, with one fact."""
    run, gate = own.gated()

    def answer(number: int) -> int:
        word = "approve" if number % 2 else "reject"
        return own("POST", f"{GATES}/{gate}/{word}", {"text": f"by {number}"}).status

    with ThreadPoolExecutor(20) as people:
        statuses = list(people.map(answer, range(100)))
    assert sorted(set(statuses)) == [200, 409]
    assert statuses.count(200) == 1
    kinds = [row.action for row in own.context.cards.audited(subject=run)]
    assert kinds.count("gate.answered") == 1


@pytest.mark.item("G9")
def test_an_answer_to_something_else_is_refused(own: Served) -> None:
    """An approval of what was shown before is none of what is asked now."""
    _, gate = own.gated()
    shown = own("GET", GATES).json["gates"][0]["digest"]
    reply = own("POST", f"{GATES}/{gate}/approve", {"digest": "0" * len(shown)})
    assert (reply.status, reply.code) == (409, "changed-since-shown")
    assert own("POST", f"{GATES}/{gate}/approve", {"digest": shown}).status == 200


@pytest.mark.item("G10")
def test_an_answer_after_the_end_is_refused(own: Served) -> None:
    """Once its run is stopped, a gate takes no answer."""
    run, gate = own.gated()
    own("POST", f"{RUNS}/{run}/stop")
    reply = own("POST", f"{GATES}/{gate}/approve", {})
    assert (reply.status, reply.code) == (409, "no-longer-waiting")


@pytest.mark.parametrize("name", ["gate_", "gate_0", "run_1", "x", "gate_" + "0" * 20])
def test_unknown_gates(own: Served, name: str) -> None:
    """Only the whole id of a gate names it."""
    own.gated()
    assert own("POST", f"{GATES}/{name}/approve", {}).status == 404
    assert len(own("GET", GATES).json["gates"]) == 1


def test_an_answer_that_the_gate_does_not_take(own: Served) -> None:
    """A question about no tool call takes no arguments."""
    _, gate = own.gated()
    reply = own("POST", f"{GATES}/{gate}/approve", {"arguments": {"a": 1}})
    assert (reply.status, reply.code) == (400, "no-tool-call")
