"""Definitions that name files, started over HTTP and with `--server`: what is read came with the
request, or is in the workspace.
"""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loopwright.operations.dialects import MOST_FILES, packed
from tests.cli.aldo import MODEL, agent
from tests.cli.conftest import Place, lw
from tests.http.served import Reply, Served
from tests.http.test_command_line import There
from tests.journeys.workflows import workflow

__all__ = ["lw"]

MARK = "Mind the gap."
STEP = "{id: x, agent: one, instructions: Go.}"
PART = f"name: part\nagents: {{one: {{description: Works.}}}}\nsteps: [{STEP}]\n"


@dataclass(frozen=True)
class Case:
    """A definition, and the files that it names; the mark stands in the last of them."""

    main: str
    text: str
    files: dict[str, str]
    agent: str = "command:true"


CASES = {
    "aldo": Case(
        "agent.yaml",
        json.dumps(agent(prompt={"system_file": "prompts/system.md"})),
        {"prompts/system.md": MARK},
        MODEL,
    ),
    "zenflow": Case(
        "flow.yaml",
        'name: x\nagents: {one: {description: Works., prompt: "@role.md"}}\n'
        "steps:\n  - {id: a, agent: one, instructions: Go.}\n  - {id: b, include: part.yaml}\n",
        {"role.md": "A \u00fcser  of\twords.", "part.yaml": PART.replace("Go.", MARK)},
    ),
    "archon": Case(
        ".archon/workflows/ship.yaml",
        workflow({"id": "a", "command": "own"}, {"id": "b", "command": "next"}),
        {".archon/commands/own.md": "Go.", "~/.archon/commands/next.md": MARK},
    ),
}

# An ALDO agent whose prompt file is missing loads with a warning, so its file is not required.
# A workflow of Archon that names a missing file loads, and the node fails when it is reached.
REQUIRED = {name: case for name, case in CASES.items() if name not in ("aldo", "archon")}


@pytest.fixture(autouse=True)
def nobody_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The person's own folder is empty, and no model answers."""
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    monkeypatch.setenv("LOOPWRIGHT_MODEL_BASE_URL", "http://127.0.0.1:9/v1")


@pytest.fixture
def workspace(shared: Served, tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def put(folder: Path, files: dict[str, str], home: Path) -> None:
    for name, text in files.items():
        path = home / name[2:] if name.startswith("~/") else folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def asked(own: Served, case: Case, workspace: Path, **more: Any) -> Reply:
    body = {"definition": case.text, "agent": case.agent, "message": "x", **more}
    return own("POST", "/api/v1/runs", {**body, "workspace": str(workspace)})


def plan_of(own: Served, run: str) -> str:
    service = own.context.service
    own("POST", f"/api/v1/runs/{run}/stop", {})
    return str(own.call(lambda: service.plan(service.events(run)[0].event)))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_files_come_with_the_request(shared: Served, workspace: Path, case: Case) -> None:
    """The files are read as they were sent; the workspace has none of them."""
    reply = asked(shared, case, workspace, files=case.files)
    assert reply.status == 201, reply.body
    assert MARK in plan_of(shared, reply.json["run"])
    dry = {"definition": case.text, "message": "x", "files": case.files}
    assert shared("POST", "/api/v1/rehearsals", dry).status == 200


@pytest.mark.parametrize("case", REQUIRED.values(), ids=REQUIRED)
def test_files_of_the_workspace(
    shared: Served, workspace: Path, tmp_path: Path, case: Case
) -> None:
    """Without any, those of the workspace are read."""
    assert asked(shared, case, workspace).status == 422
    put(workspace, case.files, tmp_path / "person")
    reply = asked(shared, case, workspace)
    assert reply.status == 201, reply.body
    assert MARK in plan_of(shared, reply.json["run"])


def test_agents_beside_the_workspace_are_not_read(shared: Served, workspace: Path) -> None:
    """Subagents are found in the workspace and in folders below it; whoever asks may have no right
    to the folders beside it, in which the command line looks too.
    """
    subagents = {"strategy": "sequential", "subagents": [{"agent": "other"}]}
    lead = json.dumps(agent("lead", iteration=None, composite=subagents))
    case = Case("lead.yaml", lead, {}, MODEL)
    text = json.dumps(agent("other"))
    put(workspace.parent, {"beside/other.yaml": text}, workspace)
    reply = asked(shared, case, workspace)
    assert reply.status == 422
    assert "there is no agent other" in reply.body.decode()
    put(workspace, {"below/other.yaml": text}, workspace)
    assert asked(shared, case, workspace).status == 201


@pytest.mark.parametrize("case", REQUIRED.values(), ids=REQUIRED)
def test_files_that_came_count_alone(
    shared: Served, workspace: Path, tmp_path: Path, case: Case
) -> None:
    """What is missing among them is missing, whatever lies in the workspace; of two that have the
    same name the one that came is read.
    """
    put(workspace, case.files, tmp_path / "person")
    *_, last = case.files
    rest = {path: text for path, text in case.files.items() if path != last}
    for files in ({}, rest):
        reply = asked(shared, case, workspace, files=files)
        assert reply.status == 422
        assert json.loads(reply.body)["errors"], reply.body
    other = {**case.files, last: case.files[last].replace(MARK, "Stay behind the line.")}
    reply = asked(shared, case, workspace, files=other)
    assert reply.status == 201, reply.body
    told = plan_of(shared, reply.json["run"])
    assert ("Stay behind the line." in told, MARK in told) == (True, False)


def test_files_with_other_names(shared: Served, workspace: Path) -> None:
    """The node of one that is not among them fails, and names those in its folder."""
    files = {".archon/commands/own.md": "x", "next.md": "x", ".archon/commands/in/nxet.md": "x"}
    for more, hint in (({}, "known are own"), ({".archon/commands/nex.md": "x"}, "did you mean")):
        reply = asked(shared, CASES["archon"], workspace, files={**files, **more})
        assert reply.status == 201, reply.body
        assert hint in plan_of(shared, reply.json["run"])
        assert [hint in one for one in reply.json["warnings"]] == [True]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("", "outside-workspace"),
        ("/etc/passwd", "outside-workspace"),
        ("../prompt.md", "outside-workspace"),
        ("a/../../b", "outside-workspace"),
        ("a/./b", "outside-workspace"),
        ("a//b", "outside-workspace"),
        ("a/", "outside-workspace"),
        ("~root/a", "outside-workspace"),
        ("~/../a", "outside-workspace"),
        ("~/~/a", "outside-workspace"),
        ("C:\\a", "outside-workspace"),
        ("\\a", "outside-workspace"),
        ("a" * 501, "outside-workspace"),
        ("a\0b", "bad-character"),
        ("a\nb", "bad-character"),
        ("a\u202eb", "bad-character"),
    ],
)
def test_paths_that_are_none(shared: Served, workspace: Path, path: str, code: str) -> None:
    """A file has a path below a folder, in signs that can be seen."""
    reply = asked(shared, CASES["aldo"], workspace, files={path: "x"})
    assert (reply.status, reply.code) == (422, code), reply.body


@pytest.mark.parametrize("files", [["a"], {"a": 1}, {"a": None}, "a"])
def test_what_are_no_files(shared: Served, workspace: Path, files: object) -> None:
    """Texts by their paths, nothing else."""
    reply = asked(shared, CASES["aldo"], workspace, files=files)
    assert (reply.status, reply.code) == (422, "wrong-type")


def test_how_many_files(shared: Served, workspace: Path, tmp_path: Path) -> None:
    """There is a number that nobody exceeds."""
    case = CASES["aldo"]
    many = {**case.files, **{f"{number}.md": "x" for number in range(MOST_FILES - 1)}}
    reply = asked(shared, case, workspace, files=many)
    assert reply.status == 201, reply.body
    plan_of(shared, reply.json["run"])
    reply = asked(shared, case, workspace, files={**many, "more.md": "x"})
    assert (reply.status, reply.code) == (422, "out-of-range")


# -- with the command line -------------------------------------------------------------------------


@pytest.fixture
def there(lw: Place, shared: Served, monkeypatch: pytest.MonkeyPatch) -> There:
    monkeypatch.setenv("LOOPWRIGHT_MODEL_BASE_URL", "http://127.0.0.1:9/v1")
    return There(lw, shared, monkeypatch)


@pytest.mark.parametrize("case", REQUIRED.values(), ids=REQUIRED)
def test_a_definition_takes_its_files_along(
    there: There, workspace: Path, tmp_path: Path, case: Case
) -> None:
    """`run --server` sends what the definition names here; nothing is looked for there."""
    put(there.lw.folder, {case.main: case.text, **case.files}, tmp_path / "person")
    words = ["--agent", case.agent, "--workspace", str(workspace)]
    told = there("run", case.main, "Do it.", *words, "--detach", "--json")
    assert told.code == 0, told
    assert MARK in plan_of(there.server, told.json["run"])
    assert there("run", case.main, "Do it.", "--dry-run").code == 0
    *_, last = case.files
    home = tmp_path / "person"
    (home / last[2:] if last.startswith("~/") else there.lw.folder / last).unlink()
    here, away = there.lw("run", case.main, "Do it.", *words), there("run", case.main, *words)
    assert (away.code, away.err) == (here.code, here.err) == (2, here.err)
    assert case.main in away.err


def test_files_that_cannot_be_sent(there: There) -> None:
    """Too much of them, or what is not text, stays here, and is told."""
    case = CASES["zenflow"]
    put(there.lw.folder, {case.main: case.text, **case.files}, there.lw.folder)
    (there.lw.folder / "role.md").write_bytes(b"\xff\xfe")
    words = ["run", case.main, "Do it.", "--agent", case.agent]
    assert "role.md is not UTF-8 at byte offset 0" in there(*words).err
    (there.lw.folder / "role.md").write_text("x" * 1_000_001)
    told = there(*words)
    assert (told.code, "start it on that machine" in told.err) == (2, True), told


def test_definitions_that_name_no_file(tmp_path: Path) -> None:
    """Nothing is sent along with them, of whatever dialect they are; nor with what is none."""
    texts = [
        '{"name": "a", "goal": "x", "agent": "command:true", "repeat": {"max": 1}}',
        '{"name": "a", "agentId": "a", "loopEnabled": true}',
        PART,
        workflow({"id": "a", "prompt": "Go."}),
        "\t{",
    ]
    for text in texts:
        assert packed(text.encode(), file="a", dialect=None, folder=tmp_path) is None


@pytest.mark.parametrize("where", ["here", "there"])
def test_a_definition_from_a_pipe(
    there: There, workspace: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """What comes by `-` names files of the folder in which it is said."""
    case = CASES["zenflow"]
    put(there.lw.folder, case.files, there.lw.folder)
    given = io.TextIOWrapper(io.BytesIO(case.text.encode()))
    monkeypatch.setattr("sys.stdin", given)
    said = there if where == "there" else there.lw
    told = said("run", "-", "Do it.", "--agent", "command:true", "--workspace", str(workspace))
    assert told.code == 0, told
