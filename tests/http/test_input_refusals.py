"""Input that an interface cannot use has one code and one sentence at every interface."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.cli.conftest import lw
from tests.http.served import Served
from tests.http.talking import tab, talk
from tests.http.test_equal_refusals import LOOP, Request, as_tool, code_of
from tests.http.test_remote_commands import Both, both

__all__ = ["both", "lw"]


@dataclass(frozen=True)
class Case:
    """The same wrong input at each interface. `http_code`: a name in an address is a filter."""

    code: str
    detail: str
    cli: list[str]
    http: list[Request] = field(default_factory=list)
    mcp: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    socket: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    http_code: str = ""


DEFINITION = json.dumps(LOOP)


def starting(code: str, detail: str, flags: list[str], **body: Any) -> Case:
    """A start with a value that cannot be used, as a run and as a dry run."""
    whole = {"definition": DEFINITION, **body}
    paths = ("/api/v1/runs", "/api/v1/rehearsals")
    return Case(code, detail, ["run", "d.yaml", *flags], [("POST", one, whole) for one in paths])


def most(code: str, shown: str, word: str, value: Any) -> dict[str, Case]:
    """The limit of iterations, wherever one is taken."""
    detail = f"max must be a whole number from 1 to 1000, not {shown}"
    start = {"definition": "harness", "goal": "x"}
    resume = {"action": "resume", "id": "RUN", "max": value}
    return {
        f"max {shown} of a run": Case(
            code,
            detail,
            ["run", "d.yaml", "--max", word],
            [
                ("POST", "/api/v1/runs", {"definition": DEFINITION, "max": value}),
                ("POST", "/api/v1/loops", {**start, "max_iterations": value}),
            ],
            [("loop_start", {**start, "max_iterations": value})],
        ),
        f"max {shown} of a resumed run": Case(
            code,
            detail,
            ["resume", "RUN", "--max", word],
            [("POST", "/api/v1/runs/RUN/resume", {"max": value})],
            [("loop_control", resume)],
            [("run:resume", {"run": "RUN", "max": value})],
        ),
        f"max {shown} of a loop": Case(code, detail, ["loop", "x", "--max", word]),
    }


def query(code: str, detail: str, cli: list[str], path: str, http_code: str = "") -> Case:
    return Case(code, detail, cli, [("GET", path, None)], http_code=http_code)


STATUSES = '"cancelled", "completed", "exhausted", "failed", "paused", "running" or "waiting"'
CASES: dict[str, Case] = {
    **most("out-of-range", "0", "0", 0),
    **most("out-of-range", "-1", "-1", -1),
    **most("out-of-range", "1001", "1001", 1001),
    **most("out-of-range", "99999999999999999999", "99999999999999999999", 99999999999999999999),
    **most("wrong-type", '"many"', "many", "many"),
    **most("wrong-type", "1.5", "1.5", 1.5),
    **most("wrong-type", '""', "", ""),
    **{
        f"parallel {shown}": starting(
            code,
            f"parallel must be a whole number from 1 to 1000, not {shown}",
            ["--parallel", word],
            parallel=value,
        )
        for code, shown, word, value in (
            ("out-of-range", "0", "0", 0),
            ("out-of-range", "1001", "1001", 1001),
            ("wrong-type", '"two"', "two", "two"),
            ("wrong-type", "2.5", "2.5", 2.5),
        )
    },
    "unknown sandbox": starting(
        "unknown-value",
        'sandbox must be "guard", "none", "off", "readonly" or "workspace", not "wall"',
        ["--sandbox", "wall"],
        sandbox="wall",
    ),
    "unknown permission": starting(
        "unknown-value",
        'permission must be "all", "ask" or "edit", not "root"',
        ["--permission", "root"],
        permission="root",
    ),
    "unknown field of a start": Case(
        "unknown-field",
        "colour is not a known field",
        ["run", "d.yaml", "--colour", "red"],
        [
            ("POST", "/api/v1/runs", {"definition": DEFINITION, "colour": "red"}),
            ("POST", "/api/v1/loops", {"definition": "harness", "goal": "x", "colour": "red"}),
        ],
        [("loop_start", {"definition": "harness", "goal": "x", "colour": "red"})],
        [("loop:start", {"agentId": "a", "message": "x", "colour": "red"})],
    ),
    "unknown field of two words": Case(
        "unknown-field",
        "max_passes is not a known field",
        ["resume", "RUN", "--max-passes", "3"],
        [("POST", "/api/v1/runs/RUN/resume", {"max_passes": 3})],
        [("loop_control", {"action": "resume", "id": "RUN", "max_passes": 3})],
        [("run:resume", {"run": "RUN", "max_passes": 3})],
    ),
    "unknown field of a message": Case(
        "unknown-field",
        "urgent is not a known field",
        ["tell", "RUN", "hello", "--urgent"],
        [("POST", "/api/v1/runs/RUN/messages", {"text": "hello", "urgent": True})],
        [("loop_tell", {"id": "RUN", "text": "hello", "urgent": True})],
        [("run:tell", {"run": "RUN", "text": "hello", "urgent": True})],
    ),
    "unknown field of an answer": Case(
        "unknown-field",
        "loudly is not a known field",
        ["approve", "gate_zz", "--loudly"],
        [("POST", "/api/v1/gates/gate_zz/approve", {"loudly": True})],
        [("gate_answer", {"id": "gate_zz", "decision": "approve", "loudly": True})],
        [("loop:approve", {"agentId": "a", "loopId": "g", "approved": True, "loudly": True})],
    ),
    "no definition": Case(
        "missing-field",
        "definition is required",
        ["run"],
        [("POST", "/api/v1/runs", {}), ("POST", "/api/v1/loops", {"goal": "x"})],
        [("loop_start", {"goal": "x"})],
    ),
    "no run to follow": Case(
        "missing-field",
        "run is required",
        ["events"],
        [],
        [("loop_events", {})],
        [("subscribe", {}), ("unsubscribe", {}), ("run:resume", {}), ("run:tell", {"text": "x"})],
    ),
    "no run to tell": Case(
        "missing-field", "run is required", ["tell"], [], [("loop_tell", {"text": "x"})]
    ),
    "no text to tell": Case(
        "missing-field",
        "text is required",
        ["tell", "RUN"],
        [("POST", "/api/v1/runs/RUN/messages", {})],
        [("loop_tell", {"id": "RUN"})],
        [("run:tell", {"run": "RUN"})],
    ),
    "no gate to answer": Case(
        "missing-field",
        "gate is required",
        ["approve"],
        [],
        [("gate_answer", {"decision": "approve"})],
    ),
    "no run to diff": Case("missing-field", "run is required", ["diff"], [], [("loop_diff", {})]),
    "no run to show": Case("missing-field", "run is required", ["show"], [], [("loop_status", {})]),
    **{
        f"after {shown}": Case(
            code,
            f"after must be a whole number from 0 to 1000000000, not {shown}",
            ["events", "RUN", "--after", str(value)],
            [("GET", f"/api/v1/runs/RUN/events?after={value}", None)],
            [("loop_events", {"id": "RUN", "after": value})],
            [("subscribe", {"run": "RUN", "after": value})],
        )
        for code, shown, value in (
            ("out-of-range", "-1", -1),
            ("out-of-range", "1000000001", 1000000001),
            ("wrong-type", '"x"', "x"),
            ("wrong-type", "0.5", 0.5),
        )
    },
    "unknown status of runs": query(
        "unknown-value",
        f'status must be {STATUSES}, not "done"',
        ["ls", "--status", "done"],
        "/api/v1/runs?status=done",
    ),
    "unknown filter of runs": query(
        "unknown-field",
        "colour is not a known field",
        ["ls", "--colour", "red"],
        "/api/v1/runs?colour=red",
        "unknown-filter",
    ),
    "unknown level of notifications": query(
        "unknown-value",
        'level must be "action_required", "critical", "error" or "info", not "loud"',
        ["notifications", "ls", "--level", "loud"],
        "/api/v1/notifications?level=loud",
    ),
    "unknown way to add up costs": query(
        "unknown-value",
        'by must be "agent", "day", "definition" or "label", not "colour"',
        ["spend", "--by", "colour"],
        "/api/v1/spend?by=colour",
    ),
    "unknown role of a person": Case(
        "unknown-value",
        'role must be "admin", "editor" or "viewer", not "root"',
        ["token", "create", "x", "--role", "root"],
        [("POST", "/api/v1/tokens", {"label": "x", "role": "root"})],
    ),
    **{
        f"days {shown} of a token": Case(
            code,
            f"days must be a whole number from 1 to 3650, not {shown}",
            ["token", "create", "x", "--days", str(value)],
            [("POST", "/api/v1/tokens", {"label": "x", "days": value})],
        )
        for code, shown, value in (
            ("out-of-range", "0", 0),
            ("out-of-range", "3651", 3651),
            ("wrong-type", '"long"', "long"),
        )
    },
    "too many messages at once": Case(
        "out-of-range",
        "at_once must be a whole number from 1 to 100, not 0",
        ["hook", "add", "x", "--run", "stored:x", "--at-once", "0"],
        [("POST", "/api/v1/hooks", {"name": "x", "stored": "x", "at_once": 0})],
    ),
    "no definition of a webhook": Case(
        "missing-field",
        "stored is required",
        ["hook", "add", "x"],
        [("POST", "/api/v1/hooks", {"name": "x"})],
    ),
    "too many reviews": Case(
        "out-of-range",
        "max_review_rounds must be a whole number from 1 to 5, not 6",
        ["sprint", "create", "x", "y", "--max-review-rounds", "6"],
        [("POST", "/api/v1/projects/x/sprints", {"title": "y", "max_review_rounds": 6})],
    ),
    "version of an artifact": query(
        "out-of-range",
        "version must be a whole number from 1 to 9007199254740992, not 0",
        ["artifact", "get", "RUN", "a", "--version", "0"],
        "/api/v1/runs/RUN/artifacts/a/content?version=0",
    ),
    "unknown action": Case(
        "unknown-value",
        'decision must be "approve", "continue" or "reject", not "maybe"',
        [],
        [],
        [("gate_answer", {"id": "gate_zz", "decision": "maybe"})],
    ),
}


def put_in(value: Any, run: str) -> Any:
    return json.loads(json.dumps(value).replace("RUN", run))


@pytest.fixture(scope="module")
def ended(shared: Served) -> str:
    """A run that has completed."""
    run = shared.start(shared.definition(shared.script("DONE"), max=1))
    shared.until(run, "completed", "exhausted")
    return run


@pytest.mark.item("rec-46")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_wrong_input_is_refused_alike(both: Both, shared: Served, ended: str, case: Case) -> None:
    """The code and the sentence agree; how the interface spells the field is only in the hint."""
    both.lw.write("d.yaml", DEFINITION)
    assert "--" not in case.detail
    if case.cli:
        here = both.here(*put_in(case.cli, ended), "--json")
        problem = (here.json["type"].rpartition(":")[2], here.json["detail"])
        assert (here.code, *problem) == (2, case.code, case.detail)
    for method, path, body in put_in(case.http, ended):
        reply = shared(method, path, body)
        assert code_of(reply.json) == (case.http_code or case.code), reply.body
        if "error" in reply.json:  # the API of loops: the hint is part of the text
            assert reply.json["error"].partition(" (")[0] == case.detail
            assert reply.status == 400
        else:
            assert (reply.status, reply.json["detail"]) == (422, case.detail)
        assert "--" not in reply.body.decode()
    for name, arguments in put_in(case.mcp, ended):
        text = as_tool(shared, name, arguments)
        assert text.partition(" (")[0] == f"{case.code}: {case.detail}"
        assert "--" not in text

    async def go() -> None:
        async with tab(shared) as one:
            for event, given in put_in(case.socket, ended):
                answer = await one.say(event, given)
                assert (answer["ok"], answer["code"]) == (False, case.code)
                assert answer["error"].partition(" (")[0] == case.detail

    if case.socket:
        talk(go())
