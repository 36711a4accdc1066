"""An agent cannot have Loopwright read what the agent itself does not see."""

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from loopwright.agents.files import FileProblem, names_beneath, read_beneath, read_regular
from loopwright.agents.sandbox.bubblewrap import Sandbox, works
from loopwright.agents.script import BadScript, load_script
from loopwright.agents.snapshots import take_snapshot
from loopwright.kernel.event_parts import SnapshotCall
from loopwright.model.actions import CallAgent, Step
from loopwright.model.plan import Agent, Plan
from loopwright.model.record import literal
from loopwright.operations.agents.roles import find_roles
from loopwright.operations.agents.tool_grants import find_skills
from loopwright.operations.agents.tools import open_workshop
from loopwright.operations.data_directory import open_log
from loopwright.operations.settings import Settings
from loopwright.operations.settings_files import user_records
from loopwright.operations.workspace_rules import policy_of
from loopwright.ports import EffectFailure
from loopwright.tools.results import FolderResultStore, ToolCallResult
from loopwright.tools.toolbox import Grant
from loopwright.workspaces.snapshots import GitWorkspaces
from tests.http.served import Served, served
from tests.safety import stage
from tests.support.jobs import effect_job
from tests.tools.boxes import problem

RUNS, AGENTS = "/api/v1/runs", "/api/v1/agents"
SECRET = "the-secret-of-the-server"
STORED = ("token", "settings.toml", "env/run_1.json", "records/known-files.json", "loopwright.db")
OF_RUNS = ("artifacts/run_1/x.md", "worktrees/run_1/x.md")
OF_PEOPLE = ("roles/a.md", "skills/b.md", "loops/c.yaml", "notes.md")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A data directory inside of a workspace, with a secret in every file."""
    found = tmp_path / "work" / ".loopwright"
    with closing(open_log(Settings(home=found))):
        pass
    for name in (*STORED, *OF_RUNS, *OF_PEOPLE):
        if name != "loopwright.db":
            (found / name).parent.mkdir(parents=True, exist_ok=True)
            (found / name).write_text(SECRET)
    return found


@pytest.mark.item("bnd-l11")
@pytest.mark.parametrize("name", [*STORED, *OF_RUNS])
def test_files_of_the_data_directory_are_read_by_no_name(home: Path, name: str) -> None:
    """Neither inside of the workspace nor through links."""
    work = home.parent
    (work / "link").symlink_to(home / name)
    (work / "folder").symlink_to(home)
    for found in (
        read_regular(work / "link", 10_000_000),
        read_regular(work / "folder" / name, 10_000_000),
        read_beneath(work, f".loopwright/{name}", 10_000_000),
        read_beneath(work, "link", 10_000_000),
    ):
        assert isinstance(found, FileProblem)
        assert found.code in ("private-file", "outside-workspace")


@pytest.mark.item("bnd-l11")
@pytest.mark.parametrize("name", OF_PEOPLE)
def test_files_that_people_keep_in_a_data_directory_are_read(home: Path, name: str) -> None:
    """A project may be its own data directory."""
    assert read_beneath(home.parent, f".loopwright/{name}", 1_000) == SECRET.encode()


@pytest.mark.item("bnd-l11")
def test_skills_roles_and_scripts_that_are_links_to_it_show_nothing(
    home: Path, tmp_path: Path
) -> None:
    """Their texts reach the next agent, or are quoted in errors."""
    project = tmp_path / "project"
    for folder in ("skills", "roles"):
        (project / ".loopwright" / folder).mkdir(parents=True)
        (project / ".loopwright" / folder / "leak.md").symlink_to(home / "token")
    assert "leak" not in find_skills(None, project)
    role = find_roles(None, project)["leak"]
    assert role.problem
    assert SECRET not in repr(role)
    (project / "replies.yaml").symlink_to(home / "token")
    with pytest.raises(BadScript) as refusal:
        load_script(str(project / "replies.yaml"))
    assert SECRET not in str(refusal.value)


@pytest.mark.item("bnd-l11")
def test_a_run_is_shown_its_own_artifacts_and_its_own_worktree_only(home: Path) -> None:
    """Those of other runs may have been made by agents with other rights."""
    work = home.parent
    for run in ("run_1", "run_2"):
        found = read_beneath(work, ".loopwright/artifacts/run_1/x.md", 1_000, run=run)
        assert (found == SECRET.encode()) == (run == "run_1")
    other = home / "worktrees" / "run_2"
    other.mkdir()
    (other / "link.md").symlink_to("../run_1/x.md")
    assert read_beneath(home / "worktrees" / "run_1", "x.md", 1_000) == SECRET.encode()
    assert isinstance(read_beneath(other, "link.md", 1_000), FileProblem)
    assert read_regular(home / "worktrees" / "run_1" / "x.md", 1_000) == SECRET.encode()
    assert isinstance(read_regular(other / "link.md", 1_000), FileProblem)
    assert isinstance(names_beneath(work, ".loopwright/worktrees"), FileProblem)


@pytest.mark.item("bnd-l11")
@pytest.mark.parametrize("name", [*STORED, *OF_RUNS])
def test_other_data_directories_of_the_user_are_private_too(tmp_path: Path, name: str) -> None:
    """Also those that another process opens after this one has started."""
    work, other = tmp_path / "work", tmp_path / "work" / "other"
    with closing(open_log(Settings(home=tmp_path / "own"))):
        pass
    user_records().add_data_directory(other)
    (other / name).parent.mkdir(parents=True)
    (other / "loopwright.db").touch()
    (other / name).write_text(SECRET)
    found = read_beneath(work, f"other/{name}", 1_000)
    assert isinstance(found, FileProblem)
    assert found.code == "private-file"
    said = tools_in(work, tmp_path / "own", [("fs.read", {"path": f"other/{name}"})])
    assert SECRET not in said[0].text
    assert problem(said[0]) == "not-found"


@pytest.mark.item("bnd-l11")
@pytest.mark.parametrize("name", ["settings.toml", "token", "loopwright.db"])
def test_a_hard_link_to_a_stored_file_is_private(tmp_path: Path, name: str) -> None:
    """The device and the inode are those of the stored file, whatever its other name is."""
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    with closing(open_log(Settings(home=home))):
        pass
    (home / "settings.toml").write_text("")
    (home / "token").write_text(SECRET)
    (work / "twin.md").hardlink_to(home / name)
    assert isinstance(read_beneath(work, "twin.md", 10_000_000), FileProblem)
    assert isinstance(read_regular(work / "twin.md", 10_000_000), FileProblem)
    calls = [("fs.read", {"path": "twin.md"}), ("fs.write", {"path": "twin.md", "content": "x"})]
    said = tools_in(work, home, calls)
    assert [problem(one) for one in said] == ["not-found", "private-file"]
    assert os.path.samefile(work / "twin.md", home / name)


# -- a workspace that was replaced -----------------------------------------------------------------

FILE_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("fs.read", {"path": "secret.txt"}),
    ("fs.list", {}),
    ("fs.search", {"pattern": "."}),
    ("fs.write", {"path": "settings.toml", "content": "planted"}),
    ("fs.edit", {"path": "secret.txt", "old": "e", "new": "planted", "all": True}),
    ("fs.mkdir", {"path": "planted"}),
]


def tools_in(
    work: Path, home: Path, calls: list[tuple[str, dict[str, Any]]], *, served: bool = False
) -> list[ToolCallResult]:
    """What file tools answer in a new process of this data directory."""

    async def whole() -> list[ToolCallResult]:
        sandbox = Sandbox(policy_of(Settings(home=home), env={}, served=served))
        async with open_workshop({"PATH": os.defpath}, "token-of-a-test", sandbox) as workshop:
            grant = Grant(native=tuple(name for name, _ in FILE_CALLS))
            box = workshop.toolbox(str(work), grant, FolderResultStore(home / "results"))
            return [await box.run(name, arguments) for name, arguments in calls]

    return asyncio.run(whole())


@pytest.mark.item("bnd-l12")
@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("replaced", ["workspace", "folder around it"])
def test_file_tools_do_not_follow_a_link_in_the_place_of_a_workspace(
    tmp_path: Path, replaced: str, *, served: bool
) -> None:
    """By the path that was recorded when the run started, in every process."""
    work, secret = tmp_path / "project" / "inner", tmp_path / "elsewhere" / "inner"
    for folder in (work, secret):
        folder.mkdir(parents=True)
    (secret / "secret.txt").write_text(SECRET)
    moved = work if replaced == "workspace" else work.parent
    moved.rename(tmp_path / "moved")
    moved.symlink_to(secret if replaced == "workspace" else secret.parent)
    said = tools_in(work, tmp_path / "home", FILE_CALLS, served=served)
    assert [problem(one) for one in said] == ["workspace-gone"] * len(FILE_CALLS)
    assert [one.name for one in secret.iterdir()] == ["secret.txt"]
    assert (secret / "secret.txt").read_text() == SECRET
    shown = read_beneath(work, "secret.txt", 1_000, fixed=True)
    assert isinstance(shown, FileProblem)
    assert shown.code == "workspace-gone"
    job = effect_job(
        run="run_1",
        effect="e",
        path="p",
        iteration=1,
        attempt=1,
        call=SnapshotCall(),
        workspace=str(work),
        token="t",
    )
    taken = asyncio.run(
        take_snapshot(GitWorkspaces(tmp_path / "home" / "snapshots"), job, SnapshotCall())
    )
    assert isinstance(taken, EffectFailure)
    assert "replaced by a link" in taken.error.detail


@pytest.mark.item("bnd-l12")
def test_file_tools_do_not_work_in_a_data_directory(tmp_path: Path) -> None:
    """Only in worktrees of runs; programs are not started there either."""
    home = tmp_path / "home"
    for name in ("inner", "worktrees/run_1"):
        (home / name).mkdir(parents=True)
        (home / name / "a.txt").write_text("a")
    read = [("fs.read", {"path": "a.txt"})]
    assert problem(tools_in(home / "inner", home, read)[0]) == "private-workspace"
    assert tools_in(home / "worktrees" / "run_1", home, read)[0].text == "a"


REPLACEMENTS = {
    "data directory": "mv work work2; ln -s home work",
    "other folder": "mv work work2; ln -s neighbour work",
    "folder without links": "mv work work2; cp -r neighbour work",
}


@pytest.mark.item("bnd-l12")
@pytest.mark.skipif(works() is not None, reason="bubblewrap cannot work here")
@pytest.mark.parametrize("way", REPLACEMENTS)
def test_a_model_does_not_work_in_a_folder_that_an_earlier_step_put_there(
    tmp_path: Path, way: str
) -> None:
    """A whole run: a program at `guard` replaces the workspace, then a chat model writes."""
    scene = stage.furnish(tmp_path)
    script = shlex.quote(f"cd ..; {REPLACEMENTS[way]}")
    mover = Agent(spec=f"command:sh -c {script}")
    coder = Agent(spec="model:local/tiny", tools=("fs.write", "fs.read"))
    plan = Plan(
        name="swap",
        steps=(
            Step(id="move", action=CallAgent(agent="mover", prompt=literal("Go."))),
            Step(
                id="write",
                needs=("move",),
                action=CallAgent(agent="coder", prompt=literal("Go.")),
            ),
        ),
        agents={"mover": mover, "coder": coder},
    )
    calls = [
        stage.call("fs_write", path="settings.toml", content="planted"),
        stage.call("fs_read", path="secret.txt"),
    ]
    played = stage.play(scene, plan, stage.Obedient([], [stage.doing(*calls)]))
    assert (tmp_path / "work2").is_dir(), "the workspace was not moved: this shows nothing"
    assert len(played.requests) > 1
    answers = played.requests[-1].raw.decode()
    assert answers.count("replaced") == len(calls)
    assert stage.NEIGHBOUR not in answers
    for folder in ("home", "neighbour", "work", "work2"):
        assert not (tmp_path / folder / "settings.toml").exists()


# -- an editor of a server -------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "work").mkdir()
    with served(tmp_path / "work") as one:
        (one.context.settings.home / "token").write_text(SECRET)
        yield one


@pytest.mark.item("bnd-l11")
def test_a_definition_of_an_editor_names_no_file_of_the_server(server: Served) -> None:
    """The data directory may lie in the workspace."""
    editor = server.made("editor")
    for value in ("home/token", "./home/token", "link"):
        if value == "link":
            (server.folder / "link").symlink_to(server.context.settings.home / "token")
        text = json.dumps({"name": "w", "agent": "claude", "goal": {"file": value}})
        for path in (RUNS, "/api/v1/rehearsals"):
            reply = server("POST", path, {"definition": text}, token=editor)
            assert reply.status >= 400, reply.body
            assert SECRET.encode() not in reply.body


@pytest.mark.item("bnd-l11")
def test_a_fork_reports_an_editor_nothing_about_other_folders(server: Served) -> None:
    """A folder that exists and one that does not are refused with the same words."""
    editor = server.made("editor")
    run = server.start(server.definition(server.script("one", "two"), max=2))
    server.until(run, "completed")
    codes = [
        server("POST", f"{RUNS}/{run}/fork", {"at": "1", "workspace": path}, token=editor).code
        for path in ("/etc", "/no-such-folder")
    ]
    assert codes == ["workspace-not-approved"] * 2


LOADING = {
    "PYTHONPATH": "evil",
    "HOME": "evil",
    "NODE_EXTRA_CA_CERTS": "evil",
    "ANTHROPIC_BASE_URL": "http://attacker.example",
    "https_proxy": "http://attacker.example",
    "CLAUDE_CONFIG_DIR": "evil",
    "SHELL": "./evil",
    "AWS_ENDPOINT_URL": "http://attacker.example",
    "OLLAMA_HOST": "attacker.example",
    "MAKEFLAGS": "--eval=evil",
    "DOTNET_STARTUP_HOOKS": "evil",
    "KUBECONFIG": "evil",
    "REVIEW_DEPTH": "3",
}


@pytest.mark.item("bnd-e7")
@pytest.mark.parametrize("variable", LOADING)
def test_a_definition_of_an_editor_does_not_change_what_a_program_loads(
    server: Served, variable: str
) -> None:
    """A listed program with other modules, settings or addresses is another program."""
    agent: dict[str, Any] = {"use": "claude", "env": {variable: LOADING[variable]}}
    text = json.dumps({"name": "w", "goal": "g", "agents": {"a": agent}, "agent": "a"})
    editor = server.made("editor")
    reply = server("POST", RUNS, {"definition": text}, token=editor)
    assert (reply.status, reply.code) == (403, "variable-not-listed")
    kept = server("PUT", "/api/v1/definitions/d", {"text": text}, token=editor)
    assert (kept.status, kept.code) == (403, "variable-not-listed")
    dry = server("POST", "/api/v1/rehearsals", {"definition": text}, token=editor)
    assert (dry.status, dry.code) == (403, "variable-not-listed")
    plain = text.replace(variable, "INPUTS_DEPTH")
    assert server("POST", "/api/v1/rehearsals", {"definition": plain}, token=editor).status == 200
    assert server("PUT", "/api/v1/definitions/d", {"text": plain}, token=editor).status == 201


@pytest.mark.item("bnd-e7")
def test_an_admin_lists_variables_that_definitions_of_editors_may_set(tmp_path: Path) -> None:
    """The setting replaces the default; the beginning of a name lists nothing that loads code."""
    (tmp_path / "work").mkdir()
    more = {"editor_variables": ("REVIEW_*", "PYTHON*", "NODE_EXTRA_CA_CERTS")}
    with served(tmp_path / "work", more=more) as server:
        editor = server.made("editor")
        for variable, status in (
            ("REVIEW_DEPTH", 201),
            ("NODE_EXTRA_CA_CERTS", 201),
            ("PYTHONPATH", 403),
            ("CI", 403),
        ):
            agent = {"use": "claude", "env": {variable: "1"}}
            text = json.dumps({"name": "w", "goal": "g", "agents": {"a": agent}, "agent": "a"})
            path = f"/api/v1/definitions/{variable.lower()}"
            kept = server("PUT", path, {"text": text}, token=editor)
            assert kept.status == status, kept.body


def test_the_tests_run_where_the_kernel_names_open_files() -> None:
    """Without that nothing above would be shown."""
    handle = os.open("/", os.O_RDONLY)
    try:
        assert os.readlink(f"/proc/self/fd/{handle}") == "/"
    finally:
        os.close(handle)


@pytest.mark.item("bnd-l11")
@pytest.mark.parametrize("linked", [True, False], ids=["hard link", "inside"])
@pytest.mark.parametrize("options", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_a_definition_on_the_command_line_names_no_stored_file(
    tmp_path: Path, linked: bool, options: list[str]
) -> None:
    """Definitions are read before the data directory is opened, and its files are private even
    then: a hard link to its settings is not a command of an Archon workflow.
    """
    work = tmp_path / "work"
    (work / ".archon" / "commands").mkdir(parents=True)
    home = tmp_path / "data" if linked else work / ".archon" / "commands" / "data"
    home.mkdir()
    (home / "settings.toml").write_text(f'four_eyes = "off"  # {SECRET}\n')
    name = work / ".archon" / "commands" / "x.md"
    if linked:
        name.hardlink_to(home / "settings.toml")
    else:
        name.symlink_to("data/settings.toml")
    nodes = [{"id": "a", "command": "x"}]
    (work / "flow.yaml").write_text(json.dumps({"name": "w", "description": "d", "nodes": nodes}))
    command = [sys.executable, "-P", "-m", "loopwright", "--data-dir", str(home)]
    done = subprocess.run(
        [*command, "run", "flow.yaml", "--agent", "command:cat", "--no-worktree", *options],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    assert SECRET not in done.stdout + done.stderr
    assert (done.returncode, "private" in done.stderr) == (2, True), done.stderr
