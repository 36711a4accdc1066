"""Gates over HTTP: shown, answered once, by the first of any number of people."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loopwright.model.chat import RequestedCall
from loopwright.views import run_responses
from tests.cli.planting import append_of, first_event, texts
from tests.http.served import Served, served
from tests.http.talking import tab, talk
from tests.http.test_assistants import made
from tests.http.test_runs import fits
from tests.kernel.driving import Driver
from tests.kernel.test_cycles import plan as cycle_plan
from tests.kernel.test_cycles import turn

GATES = "/api/v1/gates"
RUNS = "/api/v1/runs"


def test_the_inbox_has_what_waits(own: Served) -> None:
    """Every open gate is listed with its run, oldest first."""
    one, first = own.gated()
    two, second = own.gated()
    listed = own("GET", GATES).json["gates"]
    assert [(gate["id"], gate["run"]) for gate in listed] == [(first, one), (second, two)]
    fits(listed[0], run_responses.InboxGate)


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
    """Approve completes, reject fails, continue makes another iteration."""
    run, gate = own.gated()
    assert own("POST", f"{GATES}/{gate}/{answer}", body).status == 200
    ended = own.until(run, status)
    assert ended["iterations"] == (2 if answer == "continue" else 1)


def test_continue_needs_words(own: Served) -> None:
    """Another iteration without feedback would be the same iteration; the gate stays open."""
    _, gate = own.gated()
    reply = own("POST", f"{GATES}/{gate}/continue", {"text": " "})
    assert (reply.status, reply.code) == (422, "text-needed")
    assert len(own("GET", GATES).json["gates"]) == 1


@pytest.mark.item("G7")
def test_the_second_answer_is_notified_of_the_first(own: Served) -> None:
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
    """A hundred approvals and rejections at the same instant: one is taken, with one event."""
    run, gate = own.gated()

    def answer(number: int) -> int:
        word = "approve" if number % 2 else "reject"
        return own("POST", f"{GATES}/{gate}/{word}", {"text": f"by {number}"}).status

    with ThreadPoolExecutor(20) as people:
        statuses = list(people.map(answer, range(100)))
    assert sorted(set(statuses)) == [200, 409]
    assert statuses.count(200) == 1
    kinds = [row.action for row in own.context.records.audited(subject=run)]
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


HIDING = ["sh", "-c", "ls" + " " * 2_000 + "; rm -rf /", "\u202etxt.exe", "\x1b[8mhidden\x1b[0m"]


@pytest.mark.item("G12")
def test_nothing_hides_in_a_question(own: Served) -> None:
    """A command that hides behind blanks, turned text or escapes is told whole and escaped, with
    what it hides behind, in the inbox and in the run; one that hides nothing has no marks.
    """
    run = planted(own, HIDING)
    inbox = {gate["run"]: gate for gate in own("GET", GATES).json["gates"]}
    [in_run] = own("GET", f"{RUNS}/{run}").json["gates"]
    for gate in (inbox[run], in_run):
        assert gate["call"]["arguments"]["argv"] == HIDING
        text = "\n".join(gate["shown"])
        assert "arguments.argv[2]: ls[2000 blanks]; rm -rf /" in text
        assert "\\u202etxt.exe" in text
        assert "\\x1b[8mhidden\\x1b[0m" in text
        assert text.isascii() or not any(sign in text for sign in "\x1b\u202e")
        assert len(gate["marks"]) == 3
    fits(inbox[run], run_responses.InboxGate)
    open_run, _ = own.gated()
    assert "marks" not in own("GET", f"{RUNS}/{open_run}").json["gates"][0]


def planted(own: Served, argv: list[str]) -> str:
    """A run that waits for an approval of a command."""
    plan = cycle_plan(approvals={"shell.exec": "always"})
    driver = Driver(plan, texts=texts(), events=[first_event(plan, "run_hiding")]).start()
    call = RequestedCall(id="c1", tool="shell.exec", arguments={"argv": list(argv)})
    driver.answer("main.0/model#1", turn("let me", call))
    log = own.context.here.log
    asyncio.run_coroutine_threadsafe(log.append(append_of(plan, driver.events)), own.loop).result(9)
    return "run_hiding"


@pytest.mark.item("G11")
def test_four_eyes(tmp_path: Path) -> None:
    """Where it is set, who has started a run approves nothing in it, by whatever way they come;
    somebody else does, and what should be different may be said by anybody.
    """
    with served(tmp_path, more={"four_eyes": "on"}) as own:
        run, gate = own.gated()
        reply = own("POST", f"{GATES}/{gate}/approve", {})
        assert (reply.status, reply.code) == (403, "self-approval")
        assert "first-start started" in reply.json["detail"]
        own("POST", f"{GATES}/{gate}/continue", {"text": "Shorter."})
        own.until(run, "waiting")
        gate = own("GET", GATES).json["gates"][0]["id"]
        assert own("POST", f"{GATES}/{gate}/approve", {}).status == 403
        child = own.made("editor")  # made with the token that has started it
        assert own("POST", f"{GATES}/{gate}/approve", {}, token=child).code == "self-approval"
        access = own.context.access
        other = own.call(lambda: access.new_token("other", "editor", by="test")).text
        assert own("POST", f"{GATES}/{gate}/approve", {}, token=other).status == 200
        own.until(run, "completed")
        talk(review(own, other))


async def review(own: Served, other: str) -> None:
    """The same at the other door: the review of an assistant's loop over its socket."""
    manual = {"type": "manual", "value": ""}
    agent = await asyncio.to_thread(made, own, loopCriteria=manual)
    async with tab(own) as one, tab(own, other) as two:
        await one.say("loop:start", {"agentId": agent, "message": "Do it."})
        note = await one.first("notification", agentId=agent, level="action_required")
        said = {"agentId": agent, "loopId": note["loopId"], "approved": True}
        refused = await one.say("loop:approve", said)
        assert (refused["ok"], refused["code"]) == (False, "self-approval")
        assert (await two.say("loop:approve", said))["ok"] is True


@pytest.mark.item("F10")
def test_a_run_of_another_data_directory(own: Served, tmp_path: Path) -> None:
    """A home is a tenant: what is known of a run elsewhere opens nothing here. Its room cannot be
    joined, it is answered as if it had never been, and tokens of one home are nothing in another.
    """
    run, gate = own.gated()
    with served(tmp_path, home="other") as other:

        async def go() -> None:
            async with tab(other) as one:
                for name in (run, "run_that_never_was"):
                    answer = await one.say("subscribe", {"run": name, "after": 0})
                    assert (answer["ok"], answer["code"]) == (False, "not-found")
                await asyncio.to_thread(own, "POST", f"{GATES}/{gate}/continue", {"text": "more"})
                await asyncio.to_thread(own.until, run, "waiting")
                assert one.got == []

        talk(go())
        assert other("GET", f"{RUNS}/{run}").status == 404
        assert other("POST", f"{GATES}/{gate}/approve", {}).status == 404
        assert own("GET", f"{RUNS}/{run}", token=other.token).status == 401
