"""At `workspace`, nothing that an agent does in a repository starts a program when a person uses
Git there afterwards; and Git works for the agent.
"""

import asyncio
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from loopwright.agents.processes.process import ProgramEnd, ProgramStart
from loopwright.agents.sandbox import bubblewrap
from loopwright.agents.sandbox.bubblewrap import Confinement, Sandbox
from loopwright.model.sandbox import SandboxLevel

pytestmark = [
    pytest.mark.skipif(
        bubblewrap.works() is not None, reason=f"bubblewrap cannot work here: {bubblewrap.works()}"
    ),
    pytest.mark.item("bnd-prf-3"),
]
_IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "a"), ("EMAIL", "a@example.org"))
}
_OWN = ("-c", "commit.gpgsign=false", "-c", "protocol.file.allow=always")


@dataclass(frozen=True)
class Attack:
    """What an agent does in the workspace, and where a person then uses Git."""

    script: str
    where: str = "work"  # of main, work, other
    use: str = "git status; git commit --allow-empty -m x"


# `$EVIL` is a setting that starts the trap, `$TRAP` the trap itself.
_COPY = 'mkdir e && cp -r "$(git rev-parse --git-common-dir)/." e/ && echo "$EVIL" >> e/config'
MAIN = {
    "commondir": Attack(f"{_COPY}; rm -f .git/commondir; echo ../e > .git/commondir"),
    "commondir behind a link": Attack(f"{_COPY}; echo ../e > c; ln -sf ../c .git/commondir"),
    "commondir moved away": Attack(
        f"{_COPY}; mv .git/commondir x; echo ../e > c; mv c .git/commondir"
    ),
    "settings of a worktree": Attack('echo "$EVIL" > .git/config.worktree'),
    "settings": Attack('echo "$EVIL" >> .git/config'),
    "hooks": Attack('cp "$TRAP" .git/hooks/pre-commit'),
    "hooks moved away": Attack(
        'mv .git/hooks h; mkdir -p .git/hooks; cp "$TRAP" .git/hooks/pre-commit'
    ),
    "repository moved away": Attack(f"{_COPY}; mv .git g; mv e .git"),
    "no HEAD, and the workspace as a repository": Attack(
        f"{_COPY}; mv e/* .; git config -f config core.worktree $PWD; rm .git/HEAD",
        use="git status; git log",
    ),
    "a useless HEAD": Attack(
        f"{_COPY}; mv e/* .; git config -f config core.worktree $PWD; echo x > .git/HEAD",
        use="git status; git log",
    ),
    "no objects": Attack(
        f"{_COPY}; mv e/* .; git config -f config core.worktree $PWD; mv .git/objects o",
        use="git status; git log",
    ),
    "a new submodule": Attack(
        'git init -q s; cd s; git commit -q --allow-empty -m s; echo "$EVIL" >> .git/config; cd ..;'
        "git update-index --add --cacheinfo 160000,$(git -C s rev-parse HEAD),s"
    ),
    "a new submodule in an index of version 4": Attack(
        'git init -q s/t; cd s/t; git commit -q --allow-empty -m s; echo "$EVIL" >> .git/config;'
        "cd ../..; git update-index --index-version 4 --add --cacheinfo"
        " 160000,$(git -C s/t rev-parse HEAD),s/t"
    ),
    "a new submodule in a shared index": Attack(
        'git init -q s; cd s; git commit -q --allow-empty -m s; echo "$EVIL" >> .git/config; cd ..;'
        "git update-index --add --cacheinfo 160000,$(git -C s rev-parse HEAD),s;"
        "git update-index --split-index"
    ),
    "settings of a submodule": Attack('echo "$EVIL" >> .git/modules/lib/config'),
    "hooks of a submodule": Attack(
        'mkdir -p .git/modules/lib/hooks; cp "$TRAP" .git/modules/lib/hooks/pre-commit',
        use="cd parts/lib && git commit --allow-empty -m x",
    ),
    "submodule replaced": Attack(
        "cd parts/lib; cp -r ../../.git/modules/lib g; rm .git; mv g .git;"
        'git config -f .git/config --unset core.worktree; echo "$EVIL" >> .git/config'
    ),
    "submodule moved away": Attack(
        "cp -r parts p; cp -r .git/modules/lib g; mv parts q; mv p parts; rm -rf parts/lib/.git;"
        "mv g parts/lib/.git; git config -f parts/lib/.git/config --unset core.worktree;"
        'echo "$EVIL" >> parts/lib/.git/config'
    ),
    "settings of another worktree": Attack(
        'echo "$EVIL" > .git/worktrees/other/config.worktree', "other"
    ),
    "commondir of another worktree": Attack(
        f"{_COPY}; pwd | sed s,$,/e, > .git/worktrees/other/commondir", "other"
    ),
    "worktree in the workspace": Attack(
        f"{_COPY}; cp .git/worktrees/inside/HEAD .git/worktrees/inside/index e/;"
        "echo 'gitdir: ../e' > inside/.git",
        use="cd inside; git status",
    ),
    "folder of a worktree moved away": Attack(
        f"{_COPY}; cp .git/worktrees/inside/HEAD .git/worktrees/inside/index e/;"
        "mv inside i; mkdir inside; echo 'gitdir: ../e' > inside/.git",
        use="cd inside; git status",
    ),
}
LINKED = {
    "the file .git": Attack(
        f'G=$(git rev-parse --git-dir); {_COPY}; cp "$G/HEAD" "$G/index" e/; rm .git;'
        "echo 'gitdir: e' > .git"
    ),
    "the file .git moved away": Attack(
        f'G=$(git rev-parse --git-dir); {_COPY}; cp "$G/HEAD" "$G/index" e/;'
        "echo 'gitdir: e' > f; mv f .git"
    ),
    "commondir": Attack(
        f'G=$(git rev-parse --git-dir); {_COPY}; pwd | sed s,$,/e, > "$G/commondir"'
    ),
    "commondir moved away": Attack(
        f'G=$(git rev-parse --git-dir); {_COPY}; mv "$G/commondir" x;'
        'pwd | sed s,$,/e, > "$G/commondir"'
    ),
    "own settings": Attack('echo "$EVIL" > "$(git rev-parse --git-dir)/config.worktree"'),
    "commondir of the repository": Attack(
        f'C=$(git rev-parse --git-common-dir); {_COPY}; pwd | sed s,$,/e, > "$C/commondir"', "main"
    ),
    "settings of the repository": Attack(
        'echo "$EVIL" > "$(git rev-parse --git-common-dir)/config.worktree"', "main"
    ),
    "commondir of another worktree": Attack(
        f"C=$(git rev-parse --git-common-dir); {_COPY};"
        'pwd | sed s,$,/e, > "$C/worktrees/other/commondir"',
        "other",
    ),
}


@dataclass(frozen=True)
class Repositories:
    """A repository with a submodule and two more worktrees, and a trap."""

    top: Path

    def folder(self, name: str) -> Path:
        return self.top / name

    @property
    def caught(self) -> Path:
        return self.top / "started"

    @property
    def env(self) -> dict[str, str]:
        evil = f'[core]\n\tfsmonitor = "{self.top}/trap; false"'
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.top / "home"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "EVIL": evil,
            "TRAP": str(self.top / "trap"),
            **_IDENTITY,
        }

    def git(self, folder: str, *words: str) -> None:
        subprocess.run(
            ["git", *_OWN, *words],
            cwd=self.folder(folder),
            env=self.env,
            check=True,
            capture_output=True,
        )

    def use(self, where: str, script: str) -> None:
        """What a person does afterwards."""
        subprocess.run(
            ["sh", "-c", script],
            cwd=self.folder(where),
            env=self.env,
            check=False,
            capture_output=True,
            timeout=60,
        )

    def perform(self, where: str, script: str, level: SandboxLevel) -> ProgramEnd:
        """What an agent does."""
        argv = ("/bin/sh", "-c", script)
        program = ProgramStart(argv=argv, cwd=str(self.folder(where)), env=self.env)
        return asyncio.run(Sandbox().run(program, Confinement(level=level)))


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    made = Repositories(tmp_path)
    (tmp_path / "home").mkdir()
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\necho x >> '{made.caught}'\n")
    trap.chmod(0o755)
    for name in ("lib", "main"):
        made.git(".", "init", "-q", "-b", "main", name)
        made.git(name, "commit", "-q", "--allow-empty", "-m", "first")
    made.git("main", "submodule", "-q", "add", "--name", "lib", "../lib", "parts/lib")
    made.git("main", "commit", "-q", "-m", "second")
    made.git("main", "config", "extensions.worktreeConfig", "true")
    made.git("main", "worktree", "add", "-q", "../linked")
    made.git("main", "worktree", "add", "-q", "../other")
    made.git("main", "worktree", "add", "-q", "inside")
    made.git(".", "init", "-q", "-b", "main", "plain")
    made.git("plain", "commit", "-q", "--allow-empty", "-m", "first")
    return made


def attack_all(
    repositories: Repositories, workspace: str, attack: Attack, level: SandboxLevel
) -> ProgramEnd:
    """Attack, then use Git; what the attack itself has started does not count."""
    end = repositories.perform(workspace, attack.script, level)
    repositories.caught.unlink(missing_ok=True)
    where = workspace if attack.where == "work" else attack.where
    repositories.use(where, attack.use)
    return end


@pytest.mark.parametrize("level", ["workspace", "off"])
@pytest.mark.parametrize(
    ("workspace", "name"),
    [*(("main", name) for name in MAIN), *(("linked", name) for name in LINKED)],
)
def test_no_program_is_planted(
    repositories: Repositories, workspace: str, name: str, level: SandboxLevel
) -> None:
    """At `off` every attack succeeds, so the attacks themselves work."""
    attack = (MAIN if workspace == "main" else LINKED)[name]
    end = attack_all(repositories, workspace, attack, level)
    assert repositories.caught.exists() == (level == "off"), end


def test_what_is_undone_is_reported(repositories: Repositories) -> None:
    """The call fails with a message that says what was changed and where it is now."""
    script = MAIN["a new submodule"].script
    end = repositories.perform("main", script, "workspace")
    assert (end.how, end.problem) == ("not_started", "git-settings-changed")
    assert "s/.git is a repository that was added as a submodule (moved to .git.quar" in str(end)
    end = repositories.perform("plain", "rm .git/HEAD", "workspace")
    assert ".git was made unusable and was repaired" in str(end.error)
    repositories.git("plain", "status")


def test_a_planted_path_leads_to_no_change_elsewhere(repositories: Repositories) -> None:
    """An entry of the index with the name of a link out of the workspace is passed over."""
    repositories.git(".", "init", "-q", "victim")
    repositories.git("victim", "commit", "-q", "--allow-empty", "-m", "x")
    commit = "$(git rev-parse HEAD)"
    script = (
        f"git update-index --add --cacheinfo 160000,{commit},a/victim; rm -rf a; ln -s .. a;"
        f"git update-index --add --cacheinfo 160000,{commit},aa/victim;"
        "sed -i 's,aa/victim,../victim,' .git/index"
    )
    repositories.perform("plain", script, "workspace")
    assert (repositories.folder("victim") / ".git" / "HEAD").exists()


WORK = """
set -e
git() { command git -c commit.gpgsign=false "$@"; }
B=$(git branch --show-current)
echo 1 > f; git add f; git commit -q -m f
git checkout -q -b side; echo 2 > f; git commit -q -a -m g
git checkout -q "$B"; echo x > h; git add h; git commit -q -m h
git rebase -q side; git tag t; echo 3 > f; git stash -q; git stash pop -q; git checkout -q f
git branch -q -d side; git pack-refs --all; git repack -adq; git merge-base HEAD t; git status
git worktree list; git reset -q --hard HEAD~1; git cherry-pick ORIG_HEAD; git fsck
"""


@pytest.mark.parametrize("workspace", ["plain", "main", "linked"])
def test_git_works_for_an_agent(repositories: Repositories, workspace: str) -> None:
    """Commits, branches, stashes, rebases; nothing is left behind. Garbage collection needs the
    history of all worktrees, so it works where there are no others.
    """
    collect = "git gc -q\n" if workspace == "plain" else ""
    end = repositories.perform(workspace, f"{WORK}{collect}", "workspace")
    assert (end.how, end.code) == ("exited", 0), end.stderr_tail
    repositories.git(workspace, "fsck")
    common = repositories.folder("main" if workspace == "linked" else workspace) / ".git"
    assert not (common / "commondir").exists()
    assert (common / "config.worktree").read_text() == ""


def test_calls_in_one_workspace_at_a_time_keep_it_protected(repositories: Repositories) -> None:
    """The end of one call does not remove what protects another one."""

    async def both() -> list[ProgramEnd]:
        env = repositories.env
        work = str(repositories.folder("plain"))
        own = Sandbox()
        scripts = (
            "true",
            'sleep 2; mkdir e && cp -r .git/. e/; echo "$EVIL" >> e/config;'
            "rm -f .git/commondir; echo ../e > .git/commondir",
        )
        programs = [ProgramStart(argv=("/bin/sh", "-c", one), cwd=work, env=env) for one in scripts]
        level = Confinement(level="workspace")
        return await asyncio.gather(*(own.run(one, level) for one in programs))

    first, _ = asyncio.run(both())
    assert first.code == 0
    repositories.use("plain", "git status")
    assert not repositories.caught.exists()
    assert not (repositories.folder("plain") / ".git" / "commondir").exists()


def test_a_link_in_the_place_of_a_repository_gives_no_access(repositories: Repositories) -> None:
    """An agent that links `.git` to another repository cannot write there in its next call."""
    work = repositories.folder("work")
    work.mkdir()
    repositories.perform("work", "ln -s ../plain/.git .git", "workspace")
    assert (work / ".git").is_symlink()
    repositories.perform("work", 'cp "$TRAP" .git/hooks/pre-commit; touch .git/x', "workspace")
    hooks = repositories.folder("plain") / ".git"
    assert not (hooks / "x").exists()
    assert not (hooks / "hooks" / "pre-commit").exists()
