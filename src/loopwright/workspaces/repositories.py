"""Repositories: those that hold snapshots, and the user's own.

snapshots/KEY.git                        one for each project, shared by its worktrees
snapshots/KEY.git/refs/loopwright/RUN    the last snapshot of a run; its parents are the others
snapshots/KEY.git/worktrees/NAME/        index, HEAD and ignore rules of one workspace

Of the user's own repository this module reads where it is, what it ignores and what it tracks.
It never writes to it.
"""

import asyncio
import fcntl
import hashlib
import os
import time
import zlib
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from loopwright.errors import LoopwrightError, NotFound
from loopwright.workspaces.git import SAFE_SETTINGS, Confine, Git, GitFailed, start_unconfined

_REFS = "refs/loopwright"
_LOCK_PAUSE_S = 0.02
_IDENTITY = "Loopwright <loopwright@localhost>"

# Files are stored byte by byte: a .gitattributes file of the workspace has no effect.
_ATTRIBUTES = "* -text !eol -ident !filter !working-tree-encoding !diff !merge !crlf\n"

_CONFIG = """\
[core]
	repositoryformatversion = 0
	bare = false
	fileMode = true
	symlinks = true
	ignoreCase = {ignore_case}
	precomposeUnicode = false
	autocrlf = false
	safecrlf = false
	logAllRefUpdates = false
	preloadIndex = true
	untrackedCache = false
	fsmonitor = false
	hooksPath = /dev/null
	attributesFile = /dev/null
	quotePath = true
	compression = 1
	protectHFS = true
	protectNTFS = false
[index]
	version = 4
	threads = true
	skipHash = true
[status]
	showUntrackedFiles = all
	relativePaths = false
	aheadBehind = false
[pack]
	compression = 1
[gc]
	auto = 0
	packRefs = false
	worktreePruneExpire = never
	reflogExpire = now
[maintenance]
	auto = false
[protocol]
	allow = never
[diff]
	renameLimit = 1000
[advice]
	addEmbeddedRepo = false
"""


@dataclass(frozen=True, slots=True)
class Store:
    """One repository of snapshots."""

    path: Path

    def git(self, *, fds: tuple[int, ...] = ()) -> Git:
        """Git on the objects alone, without a workspace."""
        return Git(folder=self.path, variables={"GIT_DIR": str(self.path)}, fds=fds)

    def ref(self, run: str) -> Path:
        return self.path / _REFS / run

    def tip(self, run: str) -> str:
        """The commit of the last snapshot of a run, empty when it has none."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return self.ref(run).read_text(encoding="utf-8").strip()
        return ""

    def runs(self) -> list[str]:
        """The runs that have snapshots here."""
        with suppress(FileNotFoundError):
            return sorted(one.name for one in (self.path / _REFS).iterdir())
        return []

    def add_commit(self, tree: str, parent: str) -> str:
        """Store a commit, which keeps the tree and everything before it."""
        at = f"{_IDENTITY} {int(time.time())} +0000"
        parents = f"parent {parent}\n" if parent else ""
        body = f"tree {tree}\n{parents}author {at}\ncommitter {at}\n\nsnapshot\n".encode()
        data = b"commit %d\0" % len(body) + body
        name = hashlib.sha1(data, usedforsecurity=False).hexdigest()
        target = self.path / "objects" / name[:2] / name[2:]
        if not target.exists():
            target.parent.mkdir(mode=0o700, exist_ok=True)
            write_file(target, zlib.compress(data, 1))
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class LastScan:
    """When the workspace was last compared with its index, in nanoseconds (0: never). `recent` are
    the files that had changed at that time or just before; None if the index is not the one that
    the scan left.
    """

    at: int = 0
    recent: tuple[bytes, ...] | None = None


@dataclass(frozen=True, slots=True)
class WorkspaceIndex:
    """The data of one workspace: its index, and the tree of the index."""

    store: Store
    workspace: Path

    @property
    def path(self) -> Path:
        return self.store.path / "worktrees" / _digest(os.fsencode(self.workspace))

    def git(self, *, fds: tuple[int, ...] = ()) -> Git:
        """Git with the files of the workspace and the index that belongs to it."""
        return Git(
            folder=self.workspace,
            variables={"GIT_DIR": str(self.path), "GIT_WORK_TREE": str(self.workspace)},
            settings={"core.excludesFile": str(self.path / "exclude")},
            fds=fds,
        )

    def prepare(self) -> None:
        """Create what is missing, and remove what a killed process has left."""
        if not (self.path / "commondir").exists():
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_file(self.path / "gitdir", os.fsencode(self.path / "gitdir") + b"\n")
            write_file(self.path / "HEAD", b"ref: refs/heads/none\n")
            write_file(self.path / "commondir", b"../..\n")
        for stale in ("index.lock", "HEAD.lock"):
            (self.path / stale).unlink(missing_ok=True)

    def recorded_tree(self) -> str:
        """The tree of the index as it was last written, empty if unknown."""
        with suppress(FileNotFoundError):
            return (self.path / "tree").read_text(encoding="utf-8").strip()
        return ""

    def last_scan(self) -> LastScan:
        """The last scan that succeeded."""
        with suppress(FileNotFoundError, ValueError):
            head, _, recent = (self.path / "scanned").read_bytes().partition(b"\n")
            at, _, signature = head.decode().partition(" ")
            paths = tuple(one for one in recent.split(b"\0") if one)
            unchanged = bool(signature) and signature == file_signature(self.path / "index")
            return LastScan(at=int(at), recent=paths if unchanged else None)
        return LastScan()

    def record_scan(self, at: int, recent: Sequence[bytes]) -> None:
        head = f"{at} {file_signature(self.path / 'index')}\n".encode()
        write_file(self.path / "scanned", head + b"\0".join(recent))

    def forget_tree(self) -> None:
        (self.path / "tree").unlink(missing_ok=True)

    def record_tree(self, tree: str, commit: str) -> None:
        """Remember the tree of the index; HEAD names it, so that a scan lists only what differs."""
        write_file(self.path / "HEAD", commit.encode() + b"\n")
        write_file(self.path / "tree", tree.encode() + b"\n")

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[tuple[int, ...]]:
        """Wait until the workspace is free and no process cleans up the repository."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with (
            lock(self.store.path / "lock", fcntl.LOCK_SH) as shared,
            lock(self.path / "lock", fcntl.LOCK_EX) as own,
        ):
            self.prepare()
            yield (shared, own)


class Stores:
    """All repositories of snapshots of a data directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of_workspace(self, run: str, workspace: Path, project: Path | None) -> Store:
        """The repository for a workspace: the one that already has the run, or that of its project
        (the folder of the user's repository), which is created.
        """
        found = self._find(run)
        if found is not None:
            return found
        store = Store(self.folder / f"{_digest(os.fsencode(project or workspace))}.git")
        _create(store.path)
        return store

    def of_run(self, run: str) -> Store:
        """The repository that has the snapshots of a run."""
        found = self._find(run)
        if found is None:
            raise NotFound(
                f"run {run} has no snapshots", code="no-snapshots", hint="were they deleted?"
            )
        return found

    def _find(self, run: str) -> Store | None:
        if "/" in run or run in ("", ".", ".."):
            raise LoopwrightError(f"{run!r} is not the id of a run", code="bad-run-id")
        with suppress(FileNotFoundError):
            for entry in sorted(self.folder.iterdir()):
                if entry.suffix == ".git" and (entry / _REFS / run).exists():
                    return Store(entry)
        return None

    def find(self, run: str) -> Store | None:
        """The same; None if there is none."""
        return self._find(run)

    def all(self) -> list[Store]:
        """Every repository."""
        with suppress(FileNotFoundError):
            return [Store(one) for one in sorted(self.folder.iterdir()) if one.suffix == ".git"]
        return []


async def check_stores(stores: Stores, trees: Mapping[str, Collection[str]]) -> AsyncIterator[str]:
    """Compare the repositories with the snapshots that events name, by run: what is missing, and
    which objects do not match their names.
    """
    homes: dict[Path, list[str]] = {store.path: [] for store in stores.all()}
    for run in trees:
        store = stores.find(run)
        if store is None:
            yield f"{run}: its snapshots are missing"
        else:
            homes[store.path].append(run)
    for path, runs in homes.items():
        git = Store(path).git()
        try:
            for line in await _damaged_objects(git):
                yield f"snapshots/{path.name}: {line}"
            for run, tree in await _missing_trees(git, {run: trees[run] for run in runs}):
                yield f"{run}: snapshot {tree} is missing"
        except GitFailed as error:
            yield f"snapshots/{path.name}: {error.message}"


async def _damaged_objects(git: Git) -> list[str]:
    """What Git finds in a repository when it reads all of it."""
    options = ("--full", "--no-dangling", "--no-progress", "--no-reflogs")
    any_end = range(-64, 256)
    done = await git.run("fsck", *options, accept=any_end)
    if done.status == 0:
        return []
    printed = (done.out + done.errors).decode("utf-8", "backslashreplace").splitlines()
    lines = [line for line in printed if not line.startswith("notice:") and line.strip()]
    return lines or [f"`git fsck` exited with code {done.status}"]


async def _missing_trees(git: Git, trees: Mapping[str, Collection[str]]) -> list[tuple[str, str]]:
    wanted = [(run, tree) for run, found in trees.items() for tree in found]
    if not wanted:
        return []
    names = "".join(f"{tree}\n" for _, tree in wanted).encode()
    done = await git.run("cat-file", "--batch-check=%(objecttype)", feed=names)
    kinds = done.out.decode().splitlines()
    return [one for one, kind in zip(wanted, kinds, strict=True) if kind != "tree"]


@asynccontextmanager
async def lock(path: Path, kind: int) -> AsyncIterator[int]:
    """Hold a lock on a file; processes that inherit the descriptor hold it too."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOCK_PAUSE_S)
        yield descriptor
    finally:
        os.close(descriptor)


def file_signature(path: Path) -> str:
    """A value that changes when the file is replaced or written; empty if there is none."""
    with suppress(OSError):
        info = path.stat()
        return f"{info.st_mtime_ns} {info.st_size} {info.st_ino}"
    return ""


def write_file(path: Path, data: bytes) -> None:
    """Replace a file as a whole."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{id(data):x}.tmp")
    with _created(temporary) as descriptor:
        os.write(descriptor, data)
    temporary.replace(path)


@contextmanager
def _created(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _digest(name: bytes) -> str:
    return hashlib.sha256(name).hexdigest()[:24]


def _create(path: Path) -> None:
    """Write an empty repository; faster than a call of Git, and without any template."""
    if (path / "HEAD").exists():
        return
    for folder in ("objects/info", "objects/pack", "refs/heads", _REFS, "info", "worktrees"):
        (path / folder).mkdir(parents=True, exist_ok=True, mode=0o700)
    path.parent.chmod(0o700)
    path.chmod(0o700)
    write_file(path / "config", b"")
    ignore_case = str((path / "CONFIG").exists()).lower()
    write_file(path / "config", _CONFIG.format(ignore_case=ignore_case).encode())
    write_file(path / "info" / "attributes", _ATTRIBUTES.encode())
    write_file(path / "HEAD", b"ref: refs/heads/none\n")  # last: without it, this is repeated


_IGNORE_FILE = ".gitignore"
_LONGEST_IGNORE_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class UserRepository:
    """A repository that contains a workspace. `git_dir` is that of the worktree."""

    root: Path
    git_dir: Path
    common_dir: Path
    confine: Confine = start_unconfined  # for commands with the settings of the repository

    def index_signature(self) -> str:
        """A value that changes when the index does."""
        return file_signature(self.git_dir / "index")

    def git(self, folder: Path, *, fds: tuple[int, ...] = ()) -> Git:
        """Git for reading. It does not lock or refresh anything and starts no other program."""
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
        except LoopwrightError:  # an index that Git cannot read: nothing to add
            return []
        return [one for one in done.out.split(b"\0") if one]


def find_user_repository(workspace: Path) -> UserRepository | None:
    """The repository that contains a folder, found in the same way as by Git."""
    for folder in (workspace, *workspace.parents):
        found = _git_dir(folder / ".git")
        if found is not None:
            return UserRepository(folder, found, _common_dir(found))
    return None


def ignore_rules(workspace: Path, repository: UserRepository | None) -> list[str]:
    """Rules of the user's repository that apply in the workspace but are not written below it: its
    private file, and the .gitignore files of the folders above.
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
    """A rule of a folder above as a rule of the workspace, empty if it does not apply there."""
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
