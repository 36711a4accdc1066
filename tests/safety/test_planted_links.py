"""What an agent puts where nothing was yet, or replaces by a link, gives it nothing later."""

import asyncio
import site
import subprocess
from pathlib import Path

import pytest

from loopwright.agents import program_files
from loopwright.agents.clis.catalogue import CLIS
from loopwright.agents.processes.process import ProgramEnd, ProgramStart
from loopwright.agents.sandbox import bubblewrap
from loopwright.agents.sandbox.bubblewrap import Confinement, Sandbox, SandboxPolicy
from loopwright.errors import LoopwrightError
from loopwright.model.plan import Plan
from loopwright.model.sandbox import SandboxLevel
from loopwright.operations.agents.programs import is_signed_out, look
from loopwright.operations.workspace_rules import STATE, base_branch, with_artifacts
from tests.workspaces.folders import commit, git, put, repository

needs_sandbox = pytest.mark.skipif(
    bubblewrap.works() is not None, reason=f"bubblewrap cannot work here: {bubblewrap.works()}"
)


def run(
    work: Path, script: str, level: SandboxLevel, policy: SandboxPolicy, *configuration: Path
) -> ProgramEnd:
    """Run a shell script as a program of a run whose home directory is beside the workspace."""
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(work.parent / "home")}
    program = ProgramStart(argv=("sh", "-c", script), cwd=str(work), env=env)
    own = tuple(map(str, configuration))
    confinement = Confinement(level=level, configuration=own)
    return asyncio.run(Sandbox(policy).run(program, confinement))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace, and a home directory beside it."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


# -- what is not there yet -------------------------------------------------------------------------


@pytest.mark.item("bnd-prf-3", "bnd-l3")
@needs_sandbox
@pytest.mark.parametrize("kind", ["protected", "hidden"])
@pytest.mark.parametrize(("level", "place"), [("guard", "home"), ("workspace", "work")])
def test_a_missing_folder_that_is_closed_cannot_be_made(
    work: Path, kind: str, level: SandboxLevel, place: str
) -> None:
    """Such as the user's folder for modules of Python, which every start of Loopwright reads, and
    the user's settings where the home directory is the workspace.
    """
    missing = work.parent / place / ".local" / "lib" / "closed"
    policy = (
        SandboxPolicy(protected=(str(missing),))
        if kind == "protected"
        else SandboxPolicy(hidden=(str(missing),))
    )
    script = f"mkdir -p {missing}; echo x > {missing}/planted; mv {missing.parent} {place}/moved"
    run(work, script, level, policy)
    assert list(missing.iterdir()) == []


@pytest.mark.item("bnd-prf-3")
@pytest.mark.parametrize("is_read", [True, False])
def test_the_folder_of_the_user_for_modules_is_closed_before_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    """Where Python reads it: not in most virtual environments."""
    folder = str(tmp_path / "missing" / "site-packages")
    monkeypatch.setattr(site, "ENABLE_USER_SITE", is_read)
    monkeypatch.setattr(site, "getusersitepackages", lambda: folder)
    assert (folder in program_files.own_program_folders.__wrapped__()) is is_read


# -- links -----------------------------------------------------------------------------------------


@pytest.mark.item("bnd-prf-1")
@needs_sandbox
@pytest.mark.parametrize("level", ["workspace", "readonly", "none"])
@pytest.mark.parametrize("way", ["link", "folder-around", "dangling"])
def test_a_link_in_the_place_of_the_own_configuration_opens_no_other_folder(
    work: Path, level: SandboxLevel, way: str
) -> None:
    """An earlier program put it into the workspace, where an agent has its configuration."""
    other = work.parent / "other"
    if way != "dangling":
        other.mkdir()
    own = work / "settings" / "own"
    if way == "folder-around":
        (other / "own").mkdir()
        (work / "settings").symlink_to(other)
    else:
        own.parent.mkdir()
        own.symlink_to(other)
    run(work, f"echo x > {own}/planted; echo x > {other}/planted", level, SandboxPolicy(), own)
    assert not (other / "planted").exists()
    assert not (other / "own" / "planted").exists()
    assert way != "dangling" or not other.exists()


@needs_sandbox
@pytest.mark.parametrize("where", ["inside", "outside"])
def test_other_links_to_the_own_configuration_work(work: Path, where: str) -> None:
    """Those of people in their home directories, and those that stay in the workspace."""
    folder = work / "kept" if where == "inside" else work.parent / "home" / "dotfiles"
    own = work / "own" if where == "inside" else work.parent / "home" / ".own"
    folder.mkdir()
    own.symlink_to(folder)
    run(work, f"echo x > {own}/settings", "workspace", SandboxPolicy(), own)
    assert (folder / "settings").read_text() == "x\n"


@pytest.mark.item("bnd-prf-3")
def test_the_folder_for_the_state_of_a_project_is_in_the_project(tmp_path: Path) -> None:
    """Loopwright makes it, without a sandbox: it follows no link that leads elsewhere."""
    plan = Plan(name="p", steps=(), settings={STATE: ".archon/state"})
    work, other = repository(tmp_path / "work"), tmp_path / "other"
    state = work / ".archon" / "state"
    state.mkdir(parents=True)
    (state / ".gitignore").symlink_to(tmp_path / "settings.toml")
    with_artifacts(plan, None, "run_1", work)
    assert not (tmp_path / "settings.toml").exists()
    (state / ".gitignore").unlink()
    state.rmdir()
    state.symlink_to(other)
    with pytest.raises(LoopwrightError, match="leads out of the project"):
        with_artifacts(plan, None, "run_1", work)
    assert not other.exists()


@pytest.mark.item("bnd-prf-3")
@pytest.mark.parametrize("kind", ["normalTarget", "eventTarget", "perfTarget"])
def test_settings_of_git_name_no_file_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """An agent at `guard` can change the user's settings; Git would write traces anywhere."""
    work, trace = repository(tmp_path / "work"), tmp_path / "trace"
    put(work, a__txt="one\n")
    commit(work, "first")
    git(work, "branch", "-M", "main")
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(f"[trace2]\n{kind} = {trace}\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    subprocess.run(["git", "-C", str(work), "status"], capture_output=True, check=True)
    assert trace.exists()
    trace.unlink()
    assert base_branch(work) == "main"
    assert not trace.exists()


# -- coding CLIs that are asked before a run -------------------------------------------------------


@pytest.mark.item("bnd-prf-3")
@needs_sandbox
@pytest.mark.parametrize("asks", ["sign-in", "doctor"])
def test_a_coding_cli_that_an_agent_replaced_is_asked_in_a_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    """It sees no data directory and changes no file of the user but its own settings."""
    home, data = tmp_path / "home", tmp_path / "share" / "loopwright"
    for folder in (home / ".claude", data):
        folder.mkdir(parents=True)
    (data / "secret.txt").write_text("secret")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_DATA_HOME", str(data.parent))
    planted = tmp_path / "bin" / "claude"
    planted.parent.mkdir()
    (tmp_path / "node").symlink_to("/bin/sh")  # programs of Node are asked
    report = home / ".claude" / "report"
    planted.write_text(
        f"#!{tmp_path}/node\necho asked >> {report}; cat {data}/secret.txt >> {report} 2>&1\n"
        f"echo x > {home}/planted; echo 1.2.3\n"
    )
    planted.chmod(0o755)
    env = {"PATH": f"{planted.parent}:/usr/bin:/bin", "HOME": str(home)}
    if asks == "doctor":
        assert {one.cli.name: one.version for one in look(env)}["claude"] == "1.2.3"
    else:
        is_signed_out(CLIS["claude"], env, str(tmp_path / "work"))
    said = report.read_text()
    assert "asked" in said
    assert "secret" not in said.replace("secret.txt", "")
    assert not (home / "planted").exists()
