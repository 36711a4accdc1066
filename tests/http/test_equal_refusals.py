"""A refusal has one code and one text on every interface."""

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.problems import without_flags
from loopwright.operations.use_cases.role_loops import RoleLoops
from tests.cli.conftest import lw
from tests.http.served import Served
from tests.http.test_remote_commands import Both, both

__all__ = ["both", "lw"]

Request = tuple[str, str, dict[str, Any] | None]


@dataclass(frozen=True)
class Case:
    """The same wish at each interface; `RUN` is a run that has ended, `GATE` an open gate."""

    code: str
    cli: list[str]
    http: Request | None = None
    mcp: tuple[str, dict[str, Any]] | None = None
    definition: dict[str, Any] | None = None


def starting_named(code: str, flags: list[str], **asked: Any) -> Case:
    """A loop of roles that is not started, over the API of loops too."""
    options = {"definition": "harness", "goal": "Do it.", **asked}
    parameters = options.get("parameters")
    mcp = {**options, "parameters": json.dumps(parameters)} if parameters else options
    return Case(
        code,
        ["run", options["definition"], options["goal"], *flags],
        ("POST", "/api/v1/loops", options),
        ("loop_start", mcp),
    )


def of_run(code: str, command: list[str], path: str, body: dict[str, Any], **asked: Any) -> Case:
    """A change of a run that has ended."""
    tool = "loop_tell" if "text" in asked else "loop_control"
    return Case(code, command, ("POST", f"/api/v1/{path}", body), (tool, {"id": "RUN", **asked}))


LOOP = {"name": "work", "agent": "command:true", "goal": "Do it.", "repeat": {"max": 2}}
UNNAMED = {
    "name": "work",
    "goal": "Do it.",
    "agents": {"a": {}},
    "agent": "a",
    "repeat": {"max": 2},
}


def starting(code: str, flags: list[str], definition: dict[str, Any] = LOOP, **body: Any) -> Case:
    """A run that is not started."""
    return Case(
        code,
        ["run", "d.yaml", *flags],
        ("POST", "/api/v1/runs", {"definition": json.dumps(definition), **body}),
        definition=definition,
    )


CASES = {
    "unknown run": Case(
        "not-found",
        ["show", "run_zz"],
        ("GET", "/api/v1/runs/run_zz", None),
        ("loop_status", {"id": "run_zz"}),
    ),
    "unknown run to stop": Case(
        "not-found",
        ["stop", "run_zz"],
        ("POST", "/api/v1/runs/run_zz/stop", {}),
        ("loop_control", {"action": "stop", "id": "run_zz"}),
    ),
    "unknown run to tell": Case(
        "not-found",
        ["tell", "run_zz", "hello"],
        ("POST", "/api/v1/runs/run_zz/messages", {"text": "hello"}),
        ("loop_tell", {"id": "run_zz", "text": "hello"}),
    ),
    "unknown definition": starting_named("unknown-definition", [], definition="nonesuch"),
    "unknown parameter": starting_named(
        "unknown-input", ["--input", "colour=red"], parameters={"colour": "red"}
    ),
    "no agent for a role": starting_named("no-agent", []),
    "blank goal": starting_named("bad-definition", [], goal=" "),
    "goal of what has no stages": Case(
        "not-editable",
        ["edit", "RUN", "--goal", "x"],
        ("PATCH", "/api/v1/loops/RUN", {"goal": "x"}),
    ),
    "fork of no iteration": Case(
        "unknown-place",
        ["fork", "RUN", "--at", "99"],
        ("POST", "/api/v1/runs/RUN/fork", {"at": "99"}),
    ),
    "pause of what has ended": of_run(
        "ended", ["pause", "RUN"], "runs/RUN/pause", {}, action="pause"
    ),
    "pause of a loop that has ended": of_run(
        "ended", ["pause", "RUN"], "loops/RUN/pause", {}, action="pause"
    ),
    "stop of a loop that has ended": of_run(
        "ended", ["stop", "RUN"], "loops/RUN/stop", {}, action="stop"
    ),
    "message to what has ended": of_run(
        "ended", ["tell", "RUN", "hello"], "runs/RUN/messages", {"text": "hello"}, text="hello"
    ),
    "empty message": of_run(
        "bad-message", ["tell", "RUN", " "], "runs/RUN/messages", {"text": " "}, text=" "
    ),
    "stage of what has no stages": of_run(
        "no-stages", ["skip", "RUN"], "loops/RUN/skip-stage", {}, action="skip"
    ),
    "unknown loop": Case(
        "not-found",
        ["pause", "run_zz"],
        ("POST", "/api/v1/loops/run_zz/pause", {}),
        ("loop_control", {"action": "pause", "id": "run_zz"}),
    ),
    "events of an unknown run": Case(
        "not-found",
        ["events", "run_zz"],
        ("GET", "/api/v1/runs/run_zz/events", None),
        ("loop_events", {"id": "run_zz"}),
    ),
    "result without a worktree": Case(
        "no-worktree", ["apply", "RUN"], ("POST", "/api/v1/runs/RUN/apply", {})
    ),
    "unknown project": Case(
        "not-found", ["project", "show", "nope"], ("GET", "/api/v1/projects/nope", None)
    ),
    "bad slug": Case(
        "bad-value",
        ["project", "create", "x", "--slug", "bad slug"],
        ("POST", "/api/v1/projects", {"title": "x", "slug": "bad slug"}),
    ),
    "unknown status of projects": Case(
        "bad-status",
        ["project", "ls", "--status", "done"],
        ("GET", "/api/v1/projects?status=done", None),
    ),
    "unknown priority": Case(
        "bad-priority",
        ["todo", "add", "RUN", "x", "--priority", "urgent"],
        ("POST", "/api/v1/runs/RUN/todos", {"title": "x", "priority": "urgent"}),
    ),
    "unknown notification": Case(
        "not-found",
        ["notifications", "read", "ntf_zz"],
        ("POST", "/api/v1/notifications/ntf_zz/read", {}),
    ),
    "unknown webhook": Case(
        "not-found", ["hook", "rm", "zz"], ("DELETE", "/api/v1/hooks/zz", None)
    ),
    "no agent": starting("no-agent", [], UNNAMED),
    "unknown agent": starting(
        "unknown-agent", ["--agent", "nobody=claude"], UNNAMED, agents={"nobody": "claude"}
    ),
    "bad budget": starting("bad-budget", ["--budget", "euro=5"], budget="euro=5"),
    "budget twice": starting("bad-budget", ["--budget", "usd=5,usd=6"], budget="usd=5,usd=6"),
    "empty budget": starting("bad-budget", ["--budget", ""], budget=""),
    "bad name": starting("bad-name", ["--name", " "], name=" "),
    "bad label": starting("bad-label", ["--label", " "], labels=[" "]),
    "no workspace": starting(
        "no-workspace", ["--workspace", "/nonesuch"], workspace="/nonesuch"
    ),
    "unknown input": starting("unknown-input", ["--input", "a=b"], inputs={"a": "b"}),
    "bad definition": starting("bad-definition", [], {**LOOP, "repeat": {"maxx": 2}}),
    "bad pattern of protected files": starting(
        "outside-workspace", ["--protect", "/etc/**"], protect=["/etc/**"]
    ),
    "max of no loop": starting(
        "unsupported-here",
        ["--max", "3"],
        {"name": "w", "steps": [{"id": "a", "run": ["true"]}]},
        max=3,
    ),
    "unknown cost": starting(
        "unknown-cost", ["--agent", "command:true", "--budget", "usd=1"], UNNAMED,
        agent="command:true", budget="usd=1",
    ),
    "resume of what has completed": Case(
        "ended",
        ["resume", "RUN"],
        ("POST", "/api/v1/runs/RUN/resume", {}),
        ("loop_control", {"action": "resume", "id": "RUN"}),
    ),
    "diff without snapshots": Case(
        "no-snapshots",
        ["diff", "RUN"],
        ("GET", "/api/v1/runs/RUN/diff", None),
        ("loop_diff", {"id": "RUN"}),
    ),
    "unknown iteration": Case(
        "no-such-iteration",
        ["logs", "RUN", "--tools", "--iteration", "99"],
        ("GET", "/api/v1/runs/RUN/activity?iteration=99", None),
        ("loop_activity", {"id": "RUN", "iteration": 99}),
    ),
    "unknown gate": Case(
        "not-found",
        ["approve", "gate_zz"],
        ("POST", "/api/v1/gates/gate_zz/approve", {}),
        ("gate_answer", {"id": "gate_zz", "decision": "approve"}),
    ),
    "spend since never": Case(
        "bad-since", ["spend", "--since", "never"], ("GET", "/api/v1/spend?since=never", None)
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def ended(shared: Served) -> str:
    """A run that has completed."""
    run = shared.start(shared.definition(shared.script("DONE"), max=1))
    shared.until(run, "completed", "exhausted")
    return run


def put_in(value: Any, run: str) -> Any:
    return json.loads(json.dumps(value).replace("RUN", run))


def code_of(answer: Any) -> str:
    """The code of a refusal. The API of loops has few codes of its own, and ours as the reason."""
    reason = (answer.get("details") or {}).get("reason", "")
    return str(reason or str(answer.get("type", "")).rpartition(":")[2])


def as_tool(shared: Served, name: str, arguments: dict[str, Any]) -> str:
    """The text of a refusal over the Model Context Protocol."""
    context = shared.context
    loops = RoleLoops(here=context.here, settings=context.settings, cwd=shared.folder, by="agent")
    told = shared.as_admin(LoopTools(loops=loops, answers=True).answer(name, arguments))
    assert told.error, told.text
    return str(told.text)


@pytest.mark.item("rec-46")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_refusal_is_the_same_at_each_interface(
    both: Both, shared: Served, ended: str, case: Case
) -> None:
    """The code and the text agree. Only the command line names its own flags."""
    if case.definition is not None:
        both.lw.write("d.yaml", json.dumps(case.definition))
    here = both.here(*put_in(case.cli, ended), "--json")
    assert here.code in (2, 8), here
    told = here.json
    assert told["type"].rpartition(":")[2] == case.code, told
    detail = without_flags(told["detail"]).replace("d.yaml", "(request)")
    hint = without_flags(told.get("hint") or "")
    if case.http is not None:
        method, path, body = put_in(case.http, ended)
        reply = shared(method, path, body)
        assert code_of(reply.json) == case.code, reply.body
        if "error" in reply.json:  # the API of loops: one text
            shown = reply.json["error"]
            assert shown == f"{detail}{f' ({hint})' if hint else ''}"
        else:
            assert reply.json["detail"] == detail
            assert (reply.json.get("hint") or "") == hint
            shown = f"{reply.json['detail']} {reply.json.get('hint')}"
        assert "--" not in re.sub(r"`loopwright [^`]*`", "", shown)
    if case.mcp is not None:
        text = as_tool(shared, *put_in(case.mcp, ended))
        assert text == f"{case.code}: {detail}{f' ({hint})' if hint else ''}"


@pytest.mark.item("rec-46")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("add --agent SPEC", "add `agent` SPEC"),
        ("(`--budget tokens=2M`) or give --allow-unknown-cost",
         "(`budget tokens=2M`) or give `allow_unknown_cost`"),
        ("write --input NAME=VALUE", "write `inputs` NAME=VALUE"),
        ("`loopwright doctor --deep` says which", "`loopwright doctor --deep` says which"),
        ("`loopwright mcp --allow-answers` or --label x", "`loopwright mcp --allow-answers` or "
         "`labels` x"),
        ("check `npm test --ci`: add --env X", "check `npm test --ci`: add `env` X"),
        ("'a --env x' isn't a name; add --env X", "'a --env x' isn't a name; add `env` X"),
        ("isn't there: add --env X, don't wait", "isn't there: add `env` X, don't wait"),
        ("(`--max 5`, `--budget x`) or `a --max`", "(`max 5`, `budget x`) or `a --max`"),
        ("a -- b, run-time --", "a -- b, run-time --"),
        ("nothing", "nothing"),
    ],
)  # fmt: skip
def test_flags_are_written_as_parameters(text: str, shown: str) -> None:
    """A whole command in backticks stays, since it says itself where it belongs, and so do the
    words of a definition.
    """
    assert without_flags(text) == shown


@pytest.mark.item("rec-46")
def test_warnings_over_http_name_no_flags(shared: Served) -> None:
    """What a warning advises is a parameter of the request, or a whole command."""
    node = {"id": "a", "bash": 'echo "$NOPE"', "env": {"A": "b"}}
    flow = {"name": "w", "description": "d", "provider": "pi", "nodes": [node]}
    body = {"definition": json.dumps(flow), "message": "Go."}
    warnings = "\n".join(shared("POST", "/api/v1/runs", body).json["warnings"])
    assert "(give a run `agent` SPEC" in warnings
    assert "(`loopwright run --env NOPE` passes it on)" in warnings
    assert "--" not in re.sub(r"`loopwright [^`]*`", "", warnings)
