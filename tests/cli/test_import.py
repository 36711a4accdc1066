"""`import`: a folder of files of other systems, checked without running anything."""

import json
import os
from pathlib import Path

import pytest

from loopwright.operations import definition_checks
from tests.cli.conftest import Place

WORKFLOW = """\
name: fix
description: Fix it
nodes:
  - {id: plan, command: make-plan}
  - id: work
    depends_on: [plan]
    loop: {prompt: "Do $plan.output", until: DONE, max_iterations: 3}
  - {id: touch, bash: "touch ran-for-real"}
"""
LOOP = {
    "name": "review",
    "description": "Review it",
    "roles": [{"role": "coder", "prompt": "Do it"}, {"role": "reviewer", "prompt": "Look"}],
    "termination_condition": {"type": "evaluation_bound", "value": {"criteria": "It works"}},
}
ASSISTANT = {"name": "fixer", "loopEnabled": True, "loopCriteria": {"type": "regex", "value": "OK"}}
AGENT = """\
apiVersion: aldo-ai/agent.v1
kind: Agent
identity: {name: worker, version: 1.0.0, description: Works., owner: team-a}
role: {team: delivery, pattern: worker}
model_policy:
  privacy_tier: public
  primary: {capability_class: local-reasoning}
  budget: {usd_per_run: 0}
prompt: {system_file: prompt.md}
iteration:
  max_cycles: 5
  context_window: 8000
  summary_strategy: rolling-window
  termination_conditions: [{kind: text-includes, text: DONE}]
"""
ZENFLOW = """\
name: flow
agents:
  writer: {description: Writes., prompt: "@prompts/writer.md"}
steps:
  - {id: a, agent: writer, instructions: Write.}
  - {id: b, include: parts/two.yaml, dependsOn: [a]}
"""
NATIVE = "name: own\nagent: script:x\ngoal: Do it.\nrepeat: {max: 2, until: {signal: DONE}}\n"
TREE = {
    "app/.archon/workflows/fix.yaml": WORKFLOW,
    "app/.archon/workflows/deep/broken.yaml": "name: broken\ndescription: No nodes\n",
    "app/.archon/commands/make-plan.md": "Make a plan.",
    "app/.archon/scripts/count.py": "print(1)",
    "app/.archon/config.yaml": "botName: robot\n",
    "coqui/workspace/loops/review.json": json.dumps(LOOP),
    "coqui/workspace/loops/empty.json": "{}",
    "rondoflow/fixer.json": json.dumps(ASSISTANT),
    "aldo/worker.yaml": AGENT,
    "aldo/prompt.md": "You work.",
    "zen/flow.yaml": ZENFLOW,
    "zen/parts/two.yaml": "name: two\nsteps: [{id: c, instructions: Check.}]\n",
    "zen/prompts/writer.md": "Write well.",
    "own.yaml": NATIVE,
    "typo.yaml": NATIVE.replace("until", "untli"),
    "unreadable.yaml": 'name: x\nnodes:\n  - {id: a, prompt: "open\n',
    "package.json": '{"name": "site", "scripts": {"test": "jest"}, "agent": "x"}',
    "data.json": "[1, 2, 3]",
    "notes.yaml": "key: [\n",
    "README.md": "# Site",
    "node_modules/lib/flow.yaml": ZENFLOW,
    ".git/config.yaml": "name: x\n",
}


def plant(root: Path, tree: dict[str, str]) -> None:
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def mixed(lw: Place) -> Place:
    """A folder with projects of every system and files that are no definitions."""
    plant(lw.folder, TREE)
    return lw


@pytest.mark.item("rec-44")
def test_import_of_a_mixed_folder_reports_every_file(mixed: Place) -> None:
    """Every definition has its dialect and result, and every other file a reason."""
    told = mixed("import", ".", "--json")
    assert told.code == 2
    report = told.json
    found = {one["file"]: (one["dialect"], one["result"]) for one in report["files"]}
    assert found == {
        "aldo/worker.yaml": ("aldo", "runs"),
        "app/.archon/workflows/deep/broken.yaml": ("archon", "refused"),
        "app/.archon/workflows/fix.yaml": ("archon", "runs"),
        "coqui/workspace/loops/empty.json": ("coqui", "refused"),
        "coqui/workspace/loops/review.json": ("coqui", "runs"),
        "own.yaml": ("native", "runs"),
        "rondoflow/fixer.json": ("rondoflow", "runs"),
        "typo.yaml": ("native", "refused"),
        "unreadable.yaml": ("archon", "refused"),
        "zen/flow.yaml": ("zenflow", "runs"),
        "zen/parts/two.yaml": ("zenflow", "runs"),
    }
    skipped = {one["file"]: one["code"] for one in report["skipped"]}
    assert skipped == {
        ".git": "hidden",
        "README.md": "other-ending",
        "aldo/prompt.md": "part",
        "app/.archon/commands/make-plan.md": "part",
        "app/.archon/config.yaml": "part",
        "app/.archon/scripts/count.py": "part",
        "data.json": "not-a-definition",
        "node_modules": "folder-of-tools",
        "notes.yaml": "unreadable",
        "package.json": "not-a-definition",
        "zen/prompts/writer.md": "part",
    }
    files = {one["file"]: one for one in report["files"]}
    assert files["zen/parts/two.yaml"]["used_by"] == ["zen/flow.yaml"]
    assert (files["own.yaml"]["needs_agent"], files["zen/flow.yaml"]["needs_agent"]) == (
        False,
        True,
    )
    assert report["totals"] == {
        "definitions": 11,
        "runs": 7,
        "warnings": 0,
        "refused": 4,
        "skipped": 11,
    }
    assert report["dialects"]["archon"] == {"runs": 1, "warnings": 0, "refused": 2}


@pytest.mark.item("rec-44")
def test_import_messages_have_a_place_and_a_code(mixed: Place) -> None:
    """Every message names file, line, column and code; files without a definition have none."""
    report = mixed("import", ".", "--json").json
    messages = [one for file in report["files"] for one in file["messages"]]
    keys = {"file", "line", "column", "code", "message", "hint", "severity"}
    assert messages
    assert all(set(one) == keys for one in messages)
    typo = next(one for one in messages if one["file"] == "typo.yaml")
    assert (typo["line"], typo["column"], typo["code"]) == (4, 18, "unknown-field")
    assert "until" in typo["hint"]


@pytest.mark.item("rec-44")
def test_import_prints_a_table_with_totals(mixed: Place) -> None:
    """The table lists each file with its result, messages below it, totals at the end."""
    told = mixed("import", ".")
    assert told.code == 2
    lines = told.out.splitlines()
    assert lines[0].split() == ["RESULT", "DIALECT", "FILE"]
    assert any(line.split()[-2:] == ["zenflow", "zen/flow.yaml"] for line in lines)
    assert any(line.startswith("    typo.yaml:4:18: unknown-field: untli") for line in lines)
    assert "11 definitions: 7 run, 0 run with warnings, 4 refused" in lines
    assert "  archon: 1 runs, 2 refused" in lines
    assert "2 YAML or JSON without a definition" in told.out
    assert "data.json" not in told.out
    assert "  data.json: no dialect recognises it" in mixed("import", ".", "--skipped").out
    few = mixed("import", ".", "--refused").out
    assert "own.yaml" not in few
    assert "typo.yaml" in few


@pytest.mark.item("rec-44", "rondoflow-7")
def test_import_says_which_assistants_need_max(lw: Place) -> None:
    """Looping is off: `run` refuses the file without `--max`, and the row says so."""
    lw.write("on.json", json.dumps(ASSISTANT))
    lw.write("off.json", json.dumps({**ASSISTANT, "loopEnabled": False}))
    lw.write("odd.json", json.dumps({**ASSISTANT, "loopEnabled": False, "maxIterations": 0}))
    told = lw("import", ".")
    rows = {line.split()[-1]: line for line in told.out.splitlines() if line.endswith(".json")}
    assert "runs with --max N " in rows["off.json"]
    assert "--max" not in rows["on.json"]
    assert "refused" in rows["odd.json"]
    assert "1 runs, 1 runs with warnings (1 only with --max N), 1 refused" in told.out
    assert "Start an assistant whose looping is off: `loopwright run FILE --max N`." in told.out
    files = {one["file"]: one for one in lw("import", ".", "--json").json["files"]}
    needs = {file: one["needs_max"] for file, one in files.items()}
    assert needs == {"on.json": False, "off.json": True, "odd.json": False}
    agent = lw.script("OK")
    assert lw("run", "off.json", "x", "--agent", agent).code == 2
    assert lw("run", "off.json", "x", "--agent", agent, "--max", "1").code == 0


@pytest.mark.item("rec-44")
def test_import_knows_the_files_beside_a_workflow(lw: Place) -> None:
    """Commands and scripts in the folder of an Archon workflow are listed as used by it."""
    folder = "app/.archon/workflows/site/build"
    nodes = "  - {id: a, command: plan}\n  - {id: b, script: count, runtime: uv}\n"
    plant(
        lw.folder,
        {
            f"{folder}/build.yaml": f"name: build\ndescription: Builds\nnodes:\n{nodes}",
            f"{folder}/commands/plan.md": "Plan.",
            f"{folder}/scripts/count.py": "print(1)",
        },
    )
    report = lw("import", ".", "--json").json
    assert [one["file"] for one in report["files"]] == [f"{folder}/build.yaml"]
    parts = {one["file"] for one in report["skipped"] if one["code"] == "part"}
    assert parts == {f"{folder}/commands/plan.md", f"{folder}/scripts/count.py"}


@pytest.mark.item("rec-44")
def test_import_runs_and_writes_nothing(mixed: Place) -> None:
    """Nothing is started, and neither the folder nor the data directory changes."""
    before = sorted(mixed.folder.rglob("*"))
    mixed("import", ".")
    assert sorted(mixed.folder.rglob("*")) == before
    assert not (mixed.folder / "ran-for-real").exists()
    assert not list(Path(mixed.env["LOOPWRIGHT_HOME"]).glob("*.db"))


@pytest.mark.item("rec-44")
@pytest.mark.parametrize(
    ("tree", "code", "words"),
    [
        pytest.param({"own.yaml": NATIVE}, 0, "1 definition: 1 runs", id="all run"),
        pytest.param({"a.md": "x"}, 0, "No definitions in box.", id="nothing there"),
        pytest.param({}, 0, "No definitions in box.", id="empty"),
        pytest.param(
            {"w.json": json.dumps({**ASSISTANT, "loopCriteria": {"type": "regex", "value": "(["}})},
            0,
            "1 runs with warnings",
            id="warnings",
        ),
        pytest.param({"x.yaml": "goal: [\n"}, 2, "1 refused", id="syntax"),
        pytest.param({"x.yaml": "key: [\n"}, 0, "1 YAML or JSON that cannot be read", id="other"),
        pytest.param(
            {".archon/workflows/x.yaml": "- a\n"}, 2, "  archon: 1 refused", id="by its folder"
        ),
        pytest.param(
            {".archon/workflows/x.yaml": "#" * 300_000}, 2, "file-too-large", id="too large"
        ),
        pytest.param({"x.json": " " * 300_000}, 0, "1 too large for a definition", id="data"),
        pytest.param(
            {"x.yaml": NATIVE.replace("script:x", "command:no-such-program-here")},
            0,
            "no-program: agent",
            id="a program is missing",
        ),
        pytest.param({"x.yaml": NATIVE.replace("script:x", "x")}, 2, "unknown-agent", id="agent"),
    ],
)
def test_import_exit_code_and_total(lw: Place, tree: dict[str, str], code: int, words: str) -> None:
    """Exit code 2 when a definition is refused, else 0."""
    (lw.folder / "box").mkdir()
    plant(lw.folder / "box", tree)
    told = lw("import", "box")
    assert (told.code, words in told.out) == (code, True), told.out + told.err


@pytest.mark.item("rec-44")
def test_import_does_not_follow_links_out_of_the_folder(lw: Place, tmp_path: Path) -> None:
    """Links, pipes and unreadable files are named; none of them stops the check or blocks it."""
    outside = tmp_path / "elsewhere"
    plant(outside, {"own.yaml": NATIVE})
    box = lw.folder / "box"
    plant(box, {"own.yaml": NATIVE})
    (box / "folder").symlink_to(outside)
    (box / "out.yaml").symlink_to(outside / "own.yaml")
    (box / "in.yaml").symlink_to("own.yaml")
    (box / "around").symlink_to(box)
    os.mkfifo(box / "pipe.yaml")
    report = lw("import", "box", "--json").json
    assert {one["file"]: one["result"] for one in report["files"]} == {
        "box/in.yaml": "runs",
        "box/own.yaml": "runs",
        "box/pipe.yaml": "refused",
    }
    assert {one["file"]: one["code"] for one in report["skipped"]} == {
        "box/around": "link",
        "box/folder": "link",
        "box/out.yaml": "link",
    }


@pytest.mark.item("rec-44")
def test_import_when_links_lead_in_a_circle_skips_them(lw: Place) -> None:
    """A link to itself is named; it does not stop the check."""
    box = lw.folder / "box"
    plant(box, {"own.yaml": NATIVE})
    (box / "self").symlink_to("self")
    (box / "one.yaml").symlink_to("two.yaml")
    (box / "two.yaml").symlink_to("one.yaml")
    told = lw("import", "box", "--json")
    assert told.code in (0, 2), told.err
    assert "box/own.yaml" in {one["file"] for one in told.json["files"]}
    assert "defect" not in told.err


@pytest.mark.item("rec-44")
def test_import_takes_a_fragment_as_part_of_what_includes_it(lw: Place) -> None:
    """A file that runs only inside another is checked with that one and not refused."""
    plant(
        lw.folder / "box",
        {
            "main.yaml": "name: main\nsteps: [{id: a, include: part.yaml}]\n",
            "part.yaml": "name: part\nsteps: [{id: c, instructions: '@text.md'}]\n",
            "text.md": "Check.",
        },
    )
    report = lw("import", "box", "--json").json
    assert report["totals"]["refused"] == 0
    assert {one["file"]: one["code"] for one in report["skipped"]} == {"box/text.md": "part"}


@pytest.mark.item("rec-44")
@pytest.mark.parametrize("files", [300, pytest.param(1_000, marks=pytest.mark.deep)])
def test_import_of_many_files_shows_progress(lw: Place, files: int) -> None:
    """Progress goes to stderr, and to no program that reads JSON."""
    plant(lw.folder / "box", {f"{n % 7}/{n}.yaml": NATIVE for n in range(files)})
    told = lw("import", "box", "--refused")
    assert told.code == 0
    assert f"checked 250 of {files} files" in told.err
    assert f"{files} definitions: {files} run, 0 run with warnings, 0 refused" in told.out
    assert lw("import", "box/1", "--json", "--quiet").err == ""


@pytest.mark.item("rec-44")
def test_import_refuses_what_it_cannot_check(lw: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing folder, an unknown dialect and a folder without end are refused with a remedy."""
    missing = lw("import", "nowhere", "--json")
    assert (missing.code, missing.json["type"].rpartition(":")[2]) == (2, "no-folder")
    assert lw("import", ".", "--dialect", "archno").code == 2
    monkeypatch.setattr(definition_checks, "MAX_FILES", 3)
    plant(lw.folder / "box", {f"{n}.yaml": NATIVE for n in range(4)})
    assert "more than 3 files" in lw("import", "box").err
    assert lw("import", "box/1.yaml").code == 0


@pytest.mark.parametrize("command", ["import", "validate"])
def test_stub_files_beside_workflows_are_not_read(lw: Place, command: str) -> None:
    """Answers for dry runs of another system are not definitions."""
    folder = lw.folder / ".archon" / "workflows"
    (folder / "fixtures").mkdir(parents=True)
    text = "name: a\ndescription: b\nnodes: [{id: say, prompt: Go}]\n"
    (folder / "say.yaml").write_text(text, encoding="utf-8")
    (folder / "fixtures" / "good.stubs.yaml").write_text("stubs: {say: Hello}\n", encoding="utf-8")
    assert lw(command, str(folder)).code == 0


def test_a_loop_with_an_unknown_role_is_refused_as_a_run_refuses_it(lw: Place) -> None:
    """A role of the project makes it run."""
    loops = lw.folder / "workspace" / "loops"
    loops.mkdir(parents=True)
    stages = [{"role": "coder", "prompt": "Do it"}, {"role": "reviwer", "prompt": "Look"}]
    (loops / "review.json").write_text(json.dumps({**LOOP, "roles": stages}))
    told = lw("import", str(lw.folder), "--json")
    (checked,) = told.json["files"]
    assert (told.code, checked["result"]) == (2, "refused")
    (message,) = checked["messages"]
    assert (message["code"], message["hint"]) == ("unknown-role", "did you mean reviewer?")
    checked = lw("validate", str(loops / "review.json"), "--json")
    assert checked.code == 2
    assert [one["code"] for one in checked.json["errors"]] == ["unknown-role"]
    assert lw("run", "review", "Go", "--agent", "command:true").code == 2
    roles = lw.folder / ".loopwright" / "roles"
    roles.mkdir(parents=True)
    role = "---\nname: reviwer\naccess_level: readonly\n---\n\nYou look at changes.\n"
    (roles / "reviwer.md").write_text(role)
    assert lw("import", str(lw.folder)).code == 0


OTHER_KINDS = {
    "suite.yaml": (
        "name: smoke\nversion: 0.1.0\nagent: worker\npassThreshold: 0.5\n"
        "cases:\n  - {id: a, input: Say hello., expect: {kind: contains, value: hello}}\n",
        "an evaluation suite",
    ),
    "cases.yaml": (
        "definition: own.yaml\ncases: [{input: Go, evaluators: [{contains: x}]}]\n",
        "an evaluation suite",
    ),
    "models.yaml": (
        "apiVersion: aldo/models.v1\nkind: ModelCatalog\nmodels: [{id: a, provider: b}]\n",
        "a list of models",
    ),
    "canvas.json": (
        '{"id": "team", "name": "Team", "nodes": [{"key": "a", "type": "agent", "name": "A", '
        '"position": {"x": 1, "y": 2}}], "edges": [{"source": "a", "target": "a"}]}',
        "a template of a canvas",
    ),
}


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_a_file_of_another_kind_is_named_and_not_refused(lw: Place, name: str) -> None:
    """`import` says what it is and leaves with 0; `validate` and `run` say it in one error."""
    text, kind = OTHER_KINDS[name]
    lw.write(name, text)
    told = lw("import", ".", "--json")
    assert (told.code, told.json["files"]) == (0, [])
    (skipped,) = told.json["skipped"]
    assert (skipped["file"], skipped["code"]) == (name, "not-a-definition")
    assert kind in skipped["reason"]
    for words in (("validate", name), ("run", name)):
        refused = lw(*words)
        assert refused.code == 2
        assert f"{name}:1:1: not-a-definition: this is {kind}" in refused.out + refused.err
        assert "unknown-field" not in refused.out + refused.err
