"""Projects as users of Archon have them: every workflow loads and runs to its expected outcome.

Each folder of `corpus/archon/projects` is a project with a table `cases.yaml`; files of the person
are in its folder `home`. A case names a workflow and its message, what the agents answer, what
people decide, and what must come of it. With the agent `command:cat` an output is the prompt.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loopwright.operations.dialects import read_definition
from tests.cli.conftest import Place
from tests.dialects.archon.reading import flow
from tests.support.tables import read_table

PROJECTS = Path(__file__).resolve().parents[1] / "corpus" / "archon" / "projects"
# Scripts are run by Python and Node in the place of uv and bun.
PROGRAMS = {"uv": "exec python3 -", "bun": "exec node -"}
WORKFLOWS = sorted(
    path
    for path in PROJECTS.rglob("*.y*ml")
    if "workflows" in path.parts and path.name != "cases.yaml"
)


def cases() -> list[Any]:
    found = []
    for project in sorted(path for path in PROJECTS.iterdir() if path.is_dir()):
        table = read_table(project / "cases.yaml")
        for number, case in enumerate(table):
            name = f"{project.name}-{number}-{Path(case['file']).stem}"
            found.append(pytest.param(project, case, id=name))
    return found


@pytest.fixture
def in_project(lw: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place whose programs `uv` and `bun` are Python and Node, with a home of its own."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, command in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    return lw


def set_up(place: Place, project: Path, person: Path) -> None:
    shutil.copytree(project, place.folder, dirs_exist_ok=True)
    if (project / "home").is_dir():
        shutil.copytree(project / "home", person, dirs_exist_ok=True)
        shutil.rmtree(place.folder / "home")
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=place.folder, check=True)
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(
        ["git", *author, "commit", "-q", "--allow-empty", "-m", "Begin"],
        cwd=place.folder,
        check=True,
    )


@pytest.mark.item("archon-77", "archon-81")
@pytest.mark.parametrize(("project", "case"), cases())
def test_workflows_of_projects_run_to_their_expected_outcome(
    project: Path, case: Mapping[str, Any], in_project: Place, tmp_path: Path
) -> None:
    """The status, the outputs of nodes and the warnings are as the table says."""
    lw = in_project
    set_up(lw, project, tmp_path / "person")
    (lw.folder / "replies.yaml").write_text(json.dumps({"replies": case.get("replies", [])}))
    message = [case["message"]] if case.get("message") else []
    given = [f"--input={key}={value}" for key, value in case.get("inputs", {}).items()]
    agent = case.get("agent", "script:replies.yaml")
    command = ["run", case["file"], *message, "--agent", agent, "--json", *given]
    told = lw(*command)
    assert told.code in (0, 3, 4, 5), told.err
    for decision in case.get("answers", []):
        assert told.json["status"] == "waiting"
        told = lw(decision[0], told.json["run"], *decision[1:], "--json")
    end = told.json
    assert (end["status"], end["error"]) == (case["status"], end["error"]), told.err
    check_outputs(case, end)
    definition = read_definition(lw.folder / case["file"])
    if "warnings" in case:
        assert sorted({one.code for one in definition.warnings}) == case["warnings"]


def check_outputs(case: Mapping[str, Any], end: Mapping[str, Any]) -> None:
    if "output" in case:
        assert end["output"] == case["output"]
    for step, output in case.get("steps", {}).items():
        assert end["steps"][step]["output"] == output
    for step, part in case.get("contains", {}).items():
        assert part in end["steps"][step]["output"]
    for step in case.get("skipped", []):
        assert end["steps"][step]["status"] == "skipped"
    if "error" in case:
        assert case["error"] in json.dumps(end["error"]) + str(end["reason"])


@pytest.mark.item("archon-81")
def test_the_corpus_is_large_enough() -> None:
    """At least forty workflow files, each of them run by a case or named by one that is."""
    assert len(WORKFLOWS) >= 40
    run = {project / case["file"] for project, case in (one.values for one in cases())}
    others = [path for path in WORKFLOWS if path not in run]
    texts = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    assert [path for path in others if f": {path.stem}\n" not in texts] == []


@pytest.mark.item("archon-72")
def test_the_config_of_the_project_defines_tiers(lw: Place) -> None:
    """`.archon/config.yaml` says what a tier and an alias are."""
    folder = lw.folder / ".archon"
    folder.mkdir()
    (folder / "config.yaml").write_text(
        "tiers: {small: {provider: codex, model: gpt-5-mini}}\naliases: {fast: {model: haiku}}\n"
    )
    nodes = '{id: a, prompt: Go, model: small}\n  - {id: b, prompt: Go, model: "@fast"}'
    lw.write("flow.yaml", flow(nodes, head="provider: claude"))
    shown = lw("convert", "flow.yaml").out
    assert "gpt-5-mini" in shown
    assert "haiku" in shown
    assert "alias" not in lw("validate", "flow.yaml").err


@pytest.mark.item("archon-84")
def test_a_script_whose_result_did_not_fit_runs_again_when_the_run_is_resumed(lw: Place) -> None:
    """What it printed before is not taken again."""
    schema = "{type: object, properties: {ok: {type: boolean}}, required: [ok]}"
    lw.write("flow.yaml", flow(f"{{id: a, bash: cat answer, output_format: {schema}}}"))
    (lw.folder / "answer").write_text('{"ok": "yes"}')
    told = lw("run", "flow.yaml", "--json")
    assert (told.code, told.json["error"]["type"]) == (3, "bad_result")
    (lw.folder / "answer").write_text('{"ok": true}')
    assert lw("resume", told.json["run"], "--json").json["output"].strip() == '{"ok": true}'


@pytest.mark.item("archon-19", "archon-71", "archon-72")
def test_the_config_of_the_project_says_what_a_workflow_leaves_open(lw: Place) -> None:
    """A folder with commands, the documentation, the base branch and the agent; `--base-branch`
    and `--agent` replace them.
    """
    for name, text in {
        ".archon/config.yaml": "assistant: pi\ncommands: {folder: .claude/commands}\n"
        "docs: {path: pages/}\nworktree: {baseBranch: dev}\n",
        ".claude/commands/review.md": "Review $DOCS_DIR against $BASE_BRANCH.",
    }.items():
        (lw.folder / name).parent.mkdir(parents=True, exist_ok=True)
        lw.write(name, text)
    lw.write("flow.yaml", flow("{id: a, command: review}"))
    refused = lw("run", "flow.yaml", "--json")
    assert refused.code == 2
    assert "pi" in refused.json["detail"]
    echo = ["--agent", "command:cat", "--json"]
    for options, branch in (((), "dev"), (("--base-branch", "next"), "next")):
        done = lw("run", "flow.yaml", *echo, *options).json
        assert f"Review pages/ against {branch}." in done["output"]
    lw.write(
        ".archon/config.yaml",
        "commands: {folder: .claude/commands}\nworktree: {baseBranch: '--upload-pack=x'}\n",
    )
    refused = lw("run", "flow.yaml", *echo)
    assert (refused.code, refused.json["type"]) == (2, "urn:loopwright:problem:bad-ref")


@pytest.mark.item("archon-79")
def test_state_is_shared_by_the_runs_of_a_project(lw: Place) -> None:
    """Two runs append to one file, which git does not see."""
    text = 'echo x >> "$STATE_DIR/seen"; wc -l < "$STATE_DIR/seen" | tr -d " "'
    lw.write("flow.yaml", flow(f"{{id: a, bash: '{text}'}}"))
    ends = [lw("run", "flow.yaml", "--json").json["output"] for _ in range(2)]
    assert ends == ["1", "2"]
    assert (lw.folder / ".archon" / "state" / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize(
    ("answer", "whole", "part"),
    [
        ({"text": "It is fine.", "data": {"ok": True}}, '{"ok":true}', "true"),
        ({"data": {"ok": True}}, '{"ok":true}', "true"),
        ({"text": 'So:\n{"ok": true}'}, '{"ok": true}', "true"),
    ],
    ids=["text and result", "result", "result in the text"],
)
def test_the_output_of_a_node_with_an_output_format_is_its_result(
    lw: Place, answer: dict[str, Any], whole: str, part: str
) -> None:
    """In texts and in scripts, whatever else the agent wrote; the node itself shows its text."""
    schema = "{type: object, properties: {ok: {type: boolean}}, required: [ok]}"
    nodes = (
        f"{{id: a, prompt: Judge it., output_format: {schema}}}",
        "{id: b, depends_on: [a], bash: 'echo \"$a.output $a.output.ok\"'}",
        "{id: c, depends_on: [b], approval: {message: '$a.output $a.output.ok'}}",
    )
    lw.write("flow.yaml", flow("\n  - ".join(nodes)))
    told = lw("run", "flow.yaml", "--agent", lw.script(answer), "--no-wait", "--json").json
    assert told["steps"]["b"]["output"].strip() == f"{whole} {part}"
    assert told["steps"]["a"]["output"].strip() == answer.get("text", "").strip()
    assert [one["message"] for one in told["gates"]] == [f"{whole} {part}"]


def test_the_output_of_a_node_without_an_output_format_is_its_text(lw: Place) -> None:
    """Also if its agent gave a structured result too."""
    nodes = "{id: a, prompt: Judge it.}\n  - {id: b, depends_on: [a], bash: 'echo \"$a.output\"'}"
    lw.write("flow.yaml", flow(nodes))
    agent = lw.script({"text": "It is fine.", "data": {"ok": True}})
    told = lw("run", "flow.yaml", "--agent", agent, "--json").json
    assert told["steps"]["b"]["output"].strip() == "It is fine."
