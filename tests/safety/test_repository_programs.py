"""What an agent writes into a repository starts no program outside of the sandbox."""

import asyncio
import os
from pathlib import Path

import pytest

from loopwright.agents.clis.catalogue import CLIS
from loopwright.agents.sandbox import bubblewrap
from loopwright.host import find_program
from loopwright.model.sandbox import SYSTEM_PATH
from loopwright.operations.agents.programs import is_signed_out, look
from loopwright.operations.settings import Settings
from loopwright.operations.workspace_rules import base_branch, confine_git
from loopwright.workspaces.git import Confine, git_program, start_unconfined
from loopwright.workspaces.snapshots import GitWorkspaces
from loopwright.workspaces.worktrees import GitWorktrees
from tests.cli.conftest import Place, lw, until
from tests.workspaces.folders import commit, git, put, repository

__all__ = ["lw"]

SECRET = "secret-5f2d81c0a9"
needs_sandbox = pytest.mark.skipif(
    bubblewrap.works() is not None, reason=f"bubblewrap cannot work here: {bubblewrap.works()}"
)
HOOKS = (
    *("applypatch-msg", "commit-msg", "fsmonitor-watchman", "post-applypatch", "post-checkout"),
    *("post-commit", "post-index-change", "post-merge", "post-rewrite", "pre-applypatch"),
    *("pre-auto-gc", "pre-commit", "pre-merge-commit", "prepare-commit-msg", "pre-rebase"),
    *("reference-transaction", "sendemail-validate", "update"),
)
SETTINGS = (
    *("core.fsmonitor", "core.pager", "core.editor", "core.askPass", "core.sshCommand"),
    *("diff.external", "diff.evil.textconv", "diff.evil.command", "merge.evil.driver"),
    *("filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "gpg.program"),
    *("gpg.ssh.program", "credential.helper", "interactive.diffFilter", "pager.diff"),
    *("trailer.x.command", "uploadpack.packObjectsHook", "core.gitProxy", "sequence.editor"),
)


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that copies a secret out of the data directory, and a home without settings."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "secret.txt").write_text(SECRET)
    program = tmp_path / "trap"
    found, secret = tmp_path / "started", tmp_path / "data" / "secret.txt"
    program.write_text(f"#!/bin/sh\n(echo started; cat '{secret}') >> '{found}' 2>&1\ncat\n")
    program.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    return program


def set_traps(folder: Path, trap: Path, where: str) -> None:
    """Settings, hooks and attributes that start the program at every occasion."""
    config = (
        folder / ".git" / "config" if where == "local" else Path(os.environ["HOME"]) / ".gitconfig"
    )
    for name in SETTINGS:
        git(folder, "config", "--file", str(config), name, str(trap))
    git(folder, "config", "--file", str(config), "commit.gpgSign", "true")
    hooks = folder / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in HOOKS:
        (hooks / name).write_text(trap.read_text())
        (hooks / name).chmod(0o755)
    git(folder, "config", "--file", str(config), "core.hooksPath", str(hooks))


def plant_attributes(folder: Path) -> None:
    put(folder, **{".gitattributes": "* filter=evil diff=evil merge=evil\n", "a.txt": "changed\n"})


@pytest.mark.item("bnd-prf-3")
@pytest.mark.parametrize("where", ["local", "global"])
def test_snapshots_start_no_program_of_a_repository(tmp_path: Path, trap: Path, where: str) -> None:
    """Neither taking a snapshot nor comparing nor restoring one."""
    user = repository(tmp_path / "user")
    put(user, a__txt="one\n")
    commit(user, "first")
    workspaces = GitWorkspaces(tmp_path / "data")

    async def use() -> None:
        first = await workspaces.snapshot("run_a", str(user))
        set_traps(user, trap, where)
        plant_attributes(user)
        second = await workspaces.snapshot("run_a", str(user))
        await workspaces.changes("run_a", first.tree, second.tree)
        await workspaces.diff("run_a", first.tree, second.tree)
        await workspaces.restore("run_a", first.tree, user, expected=second.tree, force=True)

    asyncio.run(use())
    assert not (tmp_path / "started").exists(), (tmp_path / "started").read_text()


def use_worktree(tmp_path: Path, trap: Path, where: str, confine: Confine) -> str:
    """Commit, apply and discard a result with traps in it: what the program found out."""
    user = repository(tmp_path / "user")
    put(user, a__txt="one\n")
    commit(user, "first")
    worktrees = GitWorktrees(tmp_path / "data" / "worktrees", confine)

    async def use() -> None:
        folder, worktree = await worktrees.create("run_a", user)
        set_traps(user, trap, where)
        plant_attributes(folder)
        await worktrees.save(worktree)
        await worktrees.unapplied(worktree, folder)
        await worktrees.apply(worktree, folder)
        await worktrees.discard(worktree)
        assert not folder.exists()

    asyncio.run(use())
    assert "changed" in (user / "a.txt").read_text()
    return (tmp_path / "started").read_text()


@pytest.mark.item("bnd-prf-3")
@needs_sandbox
@pytest.mark.parametrize("where", ["local", "global"])
def test_worktrees_start_programs_of_a_repository_in_a_sandbox(
    tmp_path: Path, trap: Path, where: str
) -> None:
    """Filters work, and do not see the data directory."""
    confine = confine_git(Settings(home=tmp_path / "data"))
    found = use_worktree(tmp_path, trap, where, confine)
    assert "started" in found
    assert SECRET not in found


def test_the_trap_works_without_a_sandbox(tmp_path: Path, trap: Path) -> None:
    """Otherwise the test above would show nothing."""
    assert SECRET in use_worktree(tmp_path, trap, "local", start_unconfined)


@pytest.mark.parametrize("name", ["git", "bwrap"])
def test_a_program_planted_on_the_path_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What Loopwright itself starts comes from folders of the system, if it is there."""
    if not any((Path(folder) / name).exists() for folder in SYSTEM_PATH):
        pytest.skip(f"there is no {name} in a folder of the system")
    planted = tmp_path / name
    planted.write_text("#!/bin/sh\nexit 7\n")
    planted.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = git_program() if name == "git" else find_program(name)
    assert found is not None
    assert os.path.dirname(found) in SYSTEM_PATH


# -- modules of Python -----------------------------------------------------------------------------

PLANTED = ("msgspec.py", "json.py", "sitecustomize.py", "loopwright/__init__.py")


@pytest.mark.item("bnd-prf-3")
@pytest.mark.parametrize("planted", PLANTED)
def test_a_driver_in_the_background_imports_nothing_from_the_workspace(
    lw: Place, planted: str
) -> None:
    """`--detach`, and `python -m loopwright`, start in a folder that agents write to."""
    file = lw.folder / planted
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"open({str(lw.folder / 'imported')!r}, 'w')\n")
    run = lw.real("run", lw.loop("command:/bin/true"), "--detach").out.strip()
    until(lambda: lw("show", run, "--json").json["status"] == "completed")
    assert not (lw.folder / "imported").exists()


def test_git_on_the_path_does_not_find_the_base_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git of the system is asked, also for the branch that a run starts from."""
    if not any((Path(folder) / "git").exists() for folder in SYSTEM_PATH):
        pytest.skip("there is no git in a folder of the system")
    user = repository(tmp_path / "user")
    put(user, a__txt="one\n")
    commit(user, "first")
    git(user, "branch", "-M", "main")
    planted = tmp_path / "git"
    planted.write_text(f"#!/bin/sh\necho x > {tmp_path}/started\necho other\n")
    planted.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert base_branch(user) == "main"
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("folder", ["", "node_modules/.bin"])
def test_a_coding_cli_of_the_workspace_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Whether it is signed in is asked without a sandbox, so never of a file of the workspace."""
    work = tmp_path / "work"
    planted = work / folder / "claude"
    planted.parent.mkdir(parents=True)
    (tmp_path / "node").symlink_to("/bin/sh")  # programs of Node are asked
    planted.write_text(f"#!{tmp_path}/node\necho x > {tmp_path}/started\n")
    planted.chmod(0o755)
    monkeypatch.chdir(work)
    env = {"PATH": f"{planted.parent}:{os.environ['PATH']}"}
    is_signed_out(CLIS["claude"], env, str(work))
    [*look(env)]
    assert not (tmp_path / "started").exists()
