"""An invalid definition is refused with the same code, text and places at each interface."""

import json
from pathlib import Path
from typing import Any

import pytest

from loopwright.model.record import JsonValue
from loopwright.operations.mcp.loop_tools import LoopTools
from loopwright.operations.problems import without_flags
from loopwright.operations.use_cases.role_loops import RoleLoops
from tests.cli.conftest import MODEL, lw
from tests.http.served import Served
from tests.http.test_equal_refusals import code_of
from tests.http.test_remote_commands import Both, both

__all__ = ["both", "lw"]

CORPUS = Path(__file__).parents[1] / "corpus"
NEED_OTHERS = {"empty-command", "workflow-broken", "workflow-cycle"}
"""Archon workflows that are invalid only with the files that they name."""

FIELDS = ("type", "status", "detail", "hint", "errors")
RONDO = {"name": "a", "persona": "p", "loopEnabled": True, "maxIterations": 3}
COQUI = {
    "name": "zz",
    "description": "d",
    "roles": [{"role": "coder", "prompt": "Work."}],
    "termination_condition": {"type": "iteration_bound", "value": 2},
}


def rondo(**more: Any) -> str:
    return json.dumps({**RONDO, **more})


def coqui(**more: Any) -> str:
    return json.dumps({**COQUI, **more})


ODD: dict[str, str] = {
    "empty": "",
    "blank": "  \n\n",
    "scalar": "just words\n",
    "list": "- 1\n- 2\n",
    "null": "null\n",
    "number": "42\n",
    "unclosed": "name: [a\n",
    "tab": "name: a\n\tnodes: []\n",
    "nul": "name: a\x00b\n",
    "duplicate": "name: a\nname: b\n",
    "deep": "[" * 300 + "]" * 300,
    "aliases of aliases": "a: &a [x, x, x]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]\n"
    + "d: [*c]\n" * 3,
    "two documents": "name: a\n---\nname: b\n",
    "tag": "name: !!python/object:os.system x\n",
    "json nan": '{"name": "a", "goal": "x", "agent": "claude", "repeat": {"max": NaN}}',
    "huge number": "name: a\ngoal: x\nagent: claude\nrepeat: {max: 1e400}\n",
    "surrogate": '{"name": "\\ud800"}',
}
ASSISTANTS: dict[str, str] = {
    "max 0": rondo(maxIterations=0),
    "max 101": rondo(maxIterations=101),
    "max as text": rondo(maxIterations="3"),
    "unknown criterion": rondo(loopCriteria={"type": "magic"}),
    "no pattern": rondo(loopCriteria={"type": "regex"}),
    "no command": rondo(loopCriteria={"type": "test_pass"}),
    "empty command": rondo(loopCriteria={"type": "test_pass", "value": " "}),
    "no such program": rondo(loopCriteria={"type": "test_pass", "value": "nosuchprog x"}),
    "criterion as text": rondo(loopCriteria="regex"),
    "misspelt": rondo(maxIteration=3),
    "looping is off": rondo(loopEnabled=False),
    "enabled as text": rondo(loopEnabled="yes"),
    "two assistants": json.dumps([{**RONDO, "name": "a"}, {**RONDO, "name": "b"}]),
}
ROLES: dict[str, str] = {
    "no roles": coqui(roles=[]),
    "role without a prompt": coqui(roles=[{"role": "coder"}]),
    "unknown role": coqui(roles=[{"role": "nobody", "prompt": "x"}]),
    "unknown termination": coqui(termination_condition={"type": "magic"}),
    "bound 0": coqui(termination_condition={"type": "iteration_bound", "value": 0}),
    "no bound": coqui(termination_condition={"type": "iteration_bound"}),
    "no time": coqui(termination_condition={"type": "time_bound"}),
    "order as text": coqui(roles=[{"role": "coder", "prompt": "x", "order": "first"}]),
    "parameters as a mapping": coqui(parameters={"a": 1}),
    "parameter twice": coqui(parameters=[{"name": "a"}, {"name": "a"}]),
    "parameter without a name": coqui(parameters=[{"required": True}]),
    "required parameter": coqui(parameters=[{"name": "a", "required": True}]),
    "name with blanks": coqui(name="a b"),
    "roles as texts": coqui(roles=["coder"]),
}
FILES = {
    f"{place.parts[-3]}/{place.stem}": place
    for place in sorted(CORPUS.glob("*/invalid/*"))
    if place.suffix in {".yaml", ".json"} and place.stem not in NEED_OTHERS
}


def refusal_of(answer: dict[str, Any]) -> dict[str, Any]:
    """A refusal without what differs by design: the name of the file, and options as parameters."""
    text = json.dumps({name: answer.get(name) for name in FIELDS}).replace("d.yaml", "(request)")
    found: dict[str, Any] = json.loads(without_flags(text))
    return found


def check_same_problems(refusal: dict[str, Any], problems: list[dict[str, Any]]) -> None:
    """`validate` finds what `run` refuses. A role is not in the file, so `run` names no place."""
    if "errors" in refusal:
        assert problems == [one for one in refusal["errors"] if one.get("severity") != "warning"]
        return
    [problem] = problems
    assert refusal["type"].endswith(f":{problem['code']}")
    assert problem["message"] in refusal["title"] + refusal["detail"]


def check_refused(both: Both, shared: Served, text: str, dialect: str | None = None) -> None:
    """`run`, `run --dry-run` and the two routes give one code, one text and the same places, and
    `validate` the same places.
    """
    both.lw.write("d.yaml", text)
    asked = ["run", "d.yaml", "Go.", "--agent", MODEL, "--json"]
    body = {"definition": text, "message": "Go.", "agent": MODEL}
    if dialect is not None:
        asked += ["--dialect", dialect]
        body["dialect"] = dialect
    run = both.here(*asked)
    assert run.code == 2, run
    checked = both.here("validate", "d.yaml", "--json", *asked[6:])
    if checked.code:  # what a run alone refuses is valid: a missing input, looping that is off
        check_same_problems(run.json, checked.json["errors"])
    refusal = refusal_of(run.json)
    assert refusal_of(shared("POST", "/api/v1/runs", body).json) == refusal
    if run.json["type"].endswith(":no-program"):  # a warning of a dry run
        return
    assert refusal_of(both.here(*asked, "--dry-run").json) == refusal
    assert refusal_of(shared("POST", "/api/v1/rehearsals", body).json) == refusal


@pytest.mark.item("rec-46")
@pytest.mark.parametrize("text", (ODD | ASSISTANTS | ROLES).values(), ids=ODD | ASSISTANTS | ROLES)
def test_an_invalid_definition_is_refused_alike(both: Both, shared: Served, text: str) -> None:
    """What is hardly a definition, and what an assistant or a loop of roles may get wrong."""
    check_refused(both, shared, text)


@pytest.mark.item("rec-46")
@pytest.mark.parametrize(
    "text",
    [
        '{"name": "a, "persona": "p"}',
        '{"name": "a", "persona": "p", "loopEnabled": true,}',
        '{name: "a", persona: "p", loopEnabled: true}',
    ],
    ids=["unclosed quote", "comma at the end", "keys without quotes"],
)
def test_a_broken_json_file_is_refused_alike_with_a_server(both: Both, text: str) -> None:
    """The request does not name the file, and all but the first of these are valid YAML."""
    both.lw.write("d.json", text)
    refused = both.alike("run", "d.json", "Go.", "--agent", MODEL)
    assert refused.code == 2
    assert "json-syntax" in refused.err
    assert both.alike("run", "d.json", "Go.", "--agent", MODEL, "--json").code == 2


@pytest.mark.item("rec-46")
@pytest.mark.parametrize("place", FILES.values(), ids=FILES)
def test_an_invalid_file_is_refused_alike(both: Both, shared: Served, place: Path) -> None:
    """The invalid files of every dialect."""
    text = place.read_text(encoding="utf-8")
    check_refused(both, shared, text, place.relative_to(CORPUS).parts[0])


@pytest.mark.item("rec-46")
@pytest.mark.parametrize("text", ROLES.values(), ids=ROLES)
def test_a_named_loop_of_roles_is_refused_alike(both: Both, shared: Served, text: str) -> None:
    """A file in the folder of definitions, started by its name with a command, a tool and a
    request.
    """
    here, there = both.lw.folder / "workspace", shared.folder / "workspace"
    for folder in (here, there):
        place = folder / "loops" / "zz.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    run = both.here("run", "zz", "Go.", "--agent", MODEL, "--json").json
    options: dict[str, JsonValue] = {"definition": "zz", "goal": "Go."}
    over = shared("POST", "/api/v1/loops", {**options, "agent": MODEL}).json
    context = shared.context
    loops = RoleLoops(
        here=context.here, settings=context.settings, cwd=both.lw.folder, agents=(MODEL,)
    )
    told = shared.as_admin(LoopTools(loops=loops).answer("loop_start", options))
    assert told.error
    code = run["type"].rpartition(":")[2]
    assert code_of(over) == code
    if code == "missing-input":  # each interface says how it takes values
        assert told.text.startswith(f"{code}: {run['detail']} (")
    else:
        assert told.text == tool_text(run)
    assert over["error"] in told.text.replace(str(here), str(there))
    places = json.dumps(over["details"].get("errors", [])).replace(str(there), str(here))
    assert json.loads(places) == run.get("errors", [])


def tool_text(problem: dict[str, Any]) -> str:
    """A refusal of the command line as a tool writes it."""
    lines = [f"{problem['type'].rpartition(':')[2]}: {problem['detail']}"]
    lines[0] += f" ({problem['hint']})" if problem.get("hint") else ""
    for one in problem.get("errors", []):
        hint = f" ({one['hint']})" if one["hint"] else ""
        place = f"{one['file']}:{one['line']}:{one['column']}"
        lines.append(f"{place}: {one['code']}: {one['message']}{hint}")
    return "\n".join(lines)
