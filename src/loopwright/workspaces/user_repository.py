"""The user's own repository: where it is, what it ignores, what it tracks. Read, never written."""

import os
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from loopwright.errors import LoopwrightError
from loopwright.workspaces.git import SAFE_SETTINGS, Confine, Git, start_unconfined
from loopwright.workspaces.store import file_signature

_IGNORE_FILE = ".gitignore"
_LONGEST_IGNORE_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class UserRepository:
    """A repository that a workspace lies in. `git_dir` is that of the worktree."""

    root: Path
    git_dir: Path
    common_dir: Path
    confine: Confine = start_unconfined  # for commands with the settings of the repository

    def index_signature(self) -> str:
        """Changes when the index does."""
        return file_signature(self.git_dir / "index")

    def git(self, folder: Path, *, fds: tuple[int, ...] = ()) -> Git:
        """Git for reading. It takes no locks, refreshes nothing and starts no other program."""
        return Git(
            folder=folder,
            variables={
                "GIT_DIR": str(self.git_dir),
                "GIT_WORK_TREE": str(self.root),
                "GIT_OPTIONAL_LOCKS": "0",
            },
            settings=SAFE_SETTINGS,
            fds=fds,
        )

    async def tracked_but_ignored(self, folder: Path, *, fds: tuple[int, ...]) -> list[bytes]:
        """Files below the folder that are tracked although they are ignored, relative to it."""
        git = self.git(folder, fds=fds)
        try:
            done = await git.run("ls-files", "-z", "--cached", "--ignored", "--exclude-standard")
        except LoopwrightError:  # an index that Git cannot read: there is nothing to add
            return []
        return [one for one in done.out.split(b"\0") if one]


def find_user_repository(workspace: Path) -> UserRepository | None:
    """The repository that a folder lies in, looked for like Git does."""
    for folder in (workspace, *workspace.parents):
        found = _git_dir(folder / ".git")
        if found is not None:
            return UserRepository(folder, found, _common_dir(found))
    return None


def ignore_rules(workspace: Path, repository: UserRepository | None) -> list[str]:
    """Rules of the user's repository that hold in the workspace but are not written below it:
    its private file, and the .gitignore files of the folders above.
    """
    if repository is None:
        return []
    rules: list[str] = []
    _translate(_read(repository.common_dir / "info" / "exclude"), repository.root, workspace, rules)
    folder = repository.root
    for part in workspace.relative_to(repository.root).parts:
        _translate(_read(folder / _IGNORE_FILE), folder, workspace, rules)
        folder = folder / part
    return rules


def anchored_rule(parts: tuple[str, ...]) -> str:
    """A rule that ignores exactly this path below the workspace."""
    escaped = ["".join(f"\\{c}" if c in "*?[\\" else c for c in part) for part in parts]
    return "/" + "/".join(escaped)


def _translate(text: str, folder: Path, workspace: Path, rules: list[str]) -> None:
    prefix = workspace.relative_to(folder).parts
    for line in text.splitlines():
        rule = _rule_below(line, prefix)
        if rule:
            rules.append(rule)


def _rule_below(line: str, prefix: tuple[str, ...]) -> str:
    """A rule of a folder above as a rule of the workspace, empty when it says nothing there."""
    if not line.strip() or line.startswith("#"):
        return ""
    negated, rule = ("!", line[1:]) if line.startswith("!") else ("", line)
    anchored = "/" in rule.rstrip().rstrip("/")
    if not anchored or rule.startswith("**/") or not prefix:
        return line
    body = rule.rstrip()
    parts = body.strip("/").split("/")
    for number, name in enumerate(prefix):
        if number >= len(parts) - 1:
            return ""  # about the workspace itself or a folder above it
        if parts[number] == "**":
            return f"{negated}{'/'.join(parts[number:])}"
        if not fnmatchcase(name, parts[number]):
            return ""
    return f"{negated}/{'/'.join(parts[len(prefix) :])}{'/' if body.endswith('/') else ''}"


def _read(path: Path) -> str:
    """A file of rules; anything but a plain file of a sensible size has none."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            return file.read(_LONGEST_IGNORE_FILE).decode("utf-8", "surrogateescape")
    return ""


def _git_dir(path: Path) -> Path | None:
    with suppress(OSError):
        if path.is_dir():
            return path if (path / "HEAD").exists() or (path / "HEAD").is_symlink() else None
        text = _read(path)
        if text.startswith("gitdir:"):
            target = (path.parent / text[len("gitdir:") :].strip()).resolve()
            return target if target.is_dir() else None
    return None


def _common_dir(git_dir: Path) -> Path:
    text = _read(git_dir / "commondir").strip()
    return (git_dir / text).resolve() if text else git_dir.resolve()
