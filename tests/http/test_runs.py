"""Runs over HTTP: started, listed page by page, looked at, controlled; each act is on record."""

from typing import Any

import msgspec
import pytest

from loopwright.views import run_responses
from tests.http.served import Served

RUNS = "/api/v1/runs"


def fits(value: Any, kind: Any) -> None:
    """An answer has every field of its shape, and no other."""
    fields = set(kind.__struct_encode_fields__)
    given = set(value) if isinstance(value, dict) else set()
    optional = {"call", "marks", "shown", "snapshot"} if "digest" in fields else set()
    assert given | optional == fields | optional
    msgspec.convert(value, kind)


def test_a_run_goes_to_its_end(own: Served) -> None:
    """A definition is started, driven here, and its summary is the one of `run --json`."""
    text = own.definition(own.script("nothing", "all DONE"), until={"contains": "DONE"})
    reply = own("POST", RUNS, {"definition": text, "message": "Do it now."})
    assert reply.status == 201
    run = reply.json["run"]
    assert reply.headers["location"] == f"{RUNS}/{run}"
    ended = own.until(run, "completed")
    assert (ended["output"], ended["iterations"], ended["reason"]) == ("all DONE", 2, "contains")
    fits(ended, run_responses.RunSummary)
    seen = own("GET", f"{RUNS}/{run}/snapshot").json
    fits(seen, run_responses.RunSnapshot)
    assert seen["seq"] == own.context.here.log.version(run)
    assert [one["learning"] for one in seen["passes"]] == ["nothing", "all DONE"]


def test_agents_inputs_and_name_are_given_with_the_start(own: Served) -> None:
    """What the command line can say at a start, a request can say too."""
    text = (
        '{"name": "n", "agents": {"a": {}}, "agent": "a", "inputs": {"word": {}}, '
        '"prompt": "{{input.word}}", "goal": "g"}'
    )
    run = own.start(
        text, agents={"a": own.script("said")}, inputs={"word": "hello"}, name="mine", parallel=2
    )
    assert own.until(run, "completed")["output"] == "said"
    listed = own("GET", RUNS).json["runs"]
    assert [one["name"] for one in listed] == ["mine"]
    first = own("GET", f"{RUNS}/{run}/events", headers={"Accept": "application/json"}).json
    assert first["events"][0]["inputs"] == {"word": "hello"}
    assert first["events"][0]["by"] == "first-start"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"definition": "name: [", "message": "x"}, 422, "bad-definition"),
        ({"definition": "", "message": "x"}, 422, "bad-definition"),
        ({"definition": "name: a\ngoal: b\nagnet: c"}, 422, "bad-definition"),
        ({"definition": "name: a\ngoal: b"}, 400, "no-agent"),
        ({"definition": "x", "dialect": "none"}, 422, "bad-definition"),
        ({}, 422, "missing-field"),
        ({"definition": "x", "stored": "y"}, 422, "mutually-exclusive"),
        ({"stored": "nothing"}, 404, "not-found"),
        ({"stored": "../x"}, 404, "not-found"),
        (
            {"definition": "name: a\ngoal: b\nagent: command:x", "workspace": "/none"},
            400,
            "no-workspace",
        ),
        (
            {"definition": "name: a\ngoal: b\nagent: command:x", "inputs": {"z": 1}},
            400,
            "unknown-input",
        ),
        ({"definition": "name: a\ngoal: b\nagent: command:x", "budget": "x"}, 400, "bad-budget"),
    ],
)
def test_a_start_that_cannot_be(shared: Served, body: Any, status: int, code: str) -> None:
    """What is wrong with a start is told like on the command line, and nothing is created."""
    before = shared("GET", RUNS).json["runs"]
    reply = shared("POST", RUNS, body)
    assert (reply.status, reply.code) == (status, code)
    assert shared("GET", RUNS).json["runs"] == before


@pytest.mark.item("rec-39")
def test_a_check_whose_program_is_not_there(own: Served) -> None:
    """The start is refused with the program, and no run is created."""
    text = own.definition(own.script("x"), until={"command": ["nope-nope", "-q"]})
    reply = own("POST", RUNS, {"definition": text, "message": "Do it."})
    assert (reply.status, reply.code) == (400, "no-program")
    words = "(request): step main: check `nope-nope -q`: nope-nope is not on PATH"
    assert words in reply.json["detail"]
    assert own("GET", RUNS).json["runs"] == []


def test_problems_of_a_definition_have_lines(shared: Served) -> None:
    """Each problem of a definition has its place, code and fix."""
    reply = shared("POST", RUNS, {"definition": "name: a\ngoal: b\nagnet: c\n"})
    (found,) = reply.json["errors"]
    assert (found["line"], found["code"]) == (3, "unknown-field")
    assert "did you mean agent" in found["message"] + str(found["hint"])


@pytest.mark.item("E8")
def test_a_loop_that_runs_is_not_started_again(own: Served) -> None:
    """The second start of one assistant is refused with the run of the first, which goes on."""
    text = (
        '{"id": "a1", "name": "helper", "loopEnabled": true, "maxIterations": 3, '
        '"loopCriteria": {"type": "manual", "value": ""}}'
    )
    given = {"definition": text, "message": "Go.", "agent": own.script("x")}
    first = own("POST", RUNS, given).json["run"]
    reply = own("POST", RUNS, given)
    assert (reply.status, reply.code) == (409, "already-running")
    assert first in reply.json["detail"]
    own.until(first, "waiting")
    assert own("POST", f"{RUNS}/{first}/stop").json["status"] == "cancelled"
    assert own("POST", RUNS, given).status == 201


def test_pages_follow_each_other(own: Served) -> None:
    """Pages by cursor hold every run once, newest first, also while new ones are started."""
    made = [own.gated()[0] for _ in range(5)]
    page = own("GET", f"{RUNS}?limit=2").json
    own.gated()
    seen = [one["run"] for one in page["runs"]]
    while page["next"]:
        page = own("GET", f"{RUNS}?limit=2&cursor={page['next']}").json
        seen += [one["run"] for one in page["runs"]]
    assert seen == made[::-1]
    fits(page["runs"][0], run_responses.RunItem)


def test_runs_by_status_and_by_name(own: Served) -> None:
    """A list has those of the wanted statuses, or the one that a part of an id means."""
    waiting, _ = own.gated()
    done = own.start(own.definition(own.script("DONE"), until={"contains": "DONE"}))
    own.until(done, "completed")
    listed = own("GET", f"{RUNS}?status=waiting,paused").json["runs"]
    assert [one["run"] for one in listed] == [waiting]
    both = own("GET", f"{RUNS}?status=waiting&status=completed").json["runs"]
    assert [one["run"] for one in both] == [done, waiting]
    for part in ("last", done[-8:], done):
        assert own("GET", f"{RUNS}?match={part}").json["runs"][0]["run"] == done
    assert own("GET", f"{RUNS}?match=run_").code == "ambiguous"
    assert own("GET", f"{RUNS}?match=zzzz").status == 404


@pytest.mark.item("E9")
def test_stop_is_read_once_and_is_harmless_twice(own: Served) -> None:
    """A run is ended at once with its program; a second stop changes nothing and says how it is."""
    run = own.start(own.definition("command:/bin/sleep 60"))
    own.until(run, "running")
    first = own("POST", f"{RUNS}/{run}/stop")
    assert (first.status, first.json["status"]) == (200, "cancelled")
    version = own.context.here.log.version(run)
    again = own("POST", f"{RUNS}/{run}/stop")
    assert (again.status, again.json) == (200, first.json)
    assert own.context.here.log.version(run) == version


def test_pause_and_resume(own: Served) -> None:
    """A paused run holds before its next iteration and goes on when it is told to."""
    program, go = own.folder / "agent.sh", own.folder / "go"
    program.write_text(f"#!/bin/sh\nwhile [ ! -e {go} ]; do sleep 0.02; done\necho x\n")
    program.chmod(0o755)
    run = own.start(own.definition(f"command:{program}"))
    assert own("POST", f"{RUNS}/{run}/pause").json["status"] == "paused"
    assert own("POST", f"{RUNS}/{run}/pause").status == 200
    assert own("POST", f"{RUNS}/{run}/resume").json["status"] == "running"
    go.touch()
    assert own.until(run, "completed")["iterations"] == 3
    assert own("POST", f"{RUNS}/{run}/pause").code == "ended"
    kinds = [row.action for row in own.context.records.audited(subject=run)]
    assert kinds == ["run.resumed", "run.paused", "run.started"]


@pytest.mark.item("inv-24")
def test_every_act_has_its_row(own: Served) -> None:
    """Who did what by which door is kept together with the event."""
    run, gate = own.gated()
    own("POST", f"/api/v1/gates/{gate}/continue", {"text": "Shorter."})
    own.until(run, "waiting")
    own("POST", f"{RUNS}/{run}/stop")
    rows = own.context.records.audited(subject=run)
    told = [(row.who, row.via, row.action, row.detail) for row in reversed(rows)]
    assert told == [
        ("first-start", "http", "run.started", "work"),
        ("first-start", "http", "gate.answered", f"continue {gate}: Shorter."),
        ("first-start", "http", "cancel.requested", "stopped"),
    ]
