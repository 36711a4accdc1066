"""Git settings and hooks of a workspace, which start programs for the next user of Git there.

At level `workspace` an agent can commit but cannot change them. Most are mounted read-only (see
`mounts`). A missing file is created first, with content that changes nothing for Git, because a
file that does not exist cannot be mounted. What cannot be mounted is compared when the program has
ended: changes are undone, and the call fails. Git itself is never started for that.
"""

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from loopwright.agents.program_files import CannotStart

_FOLDERS = ("hooks", "modules", "worktrees")
_FILES = ("config", "config.worktree")
_COMMON = "commondir"
_HERE = b".\n"  # as the content of `commondir`: the repository is where it is anyway
_HEAD = re.compile(rb"ref:\s*refs/[^\0]+|[0-9a-f]{40}([0-9a-f]{24})?\s*")
_MOST_BYTES = 1_048_576  # of HEAD and similar files
_SUBMODULE = 0o160000
_MODE_OFFSET, _ID_OFFSET = 24, 40  # in an entry of the index
_EXTENDED = 0x4000
_in_use: Counter[str] = Counter()  # files `commondir` created here, with the number of calls


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository whose working tree is the workspace."""

    workspace: str
    entry: str  # `.git` in the workspace
    own: str = ""  # the folder of this working tree; empty if no agent may write to it
    common: str = ""  # the folder of all working trees

    def read_only(self) -> Iterator[str]:
        """What programs must not change, without links, as far as it exists."""
        paths = [] if os.path.isdir(self.entry) else [self.entry]
        if self.common:
            paths += [os.path.join(self.common, name) for name in (*_FOLDERS, *_FILES, _COMMON)]
        if self.own != self.common:
            names = (_COMMON, "gitdir", "config.worktree")
            paths += [os.path.join(self.own, name) for name in names]
        paths += [*self.submodules(), *self._worktrees_inside()]
        yield from (os.path.realpath(one) for one in paths if os.path.exists(one))

    def submodules(self) -> list[str]:
        """`.git` of each submodule in the index that has one."""
        found = (os.path.join(self.workspace, one) for one in _submodule_paths(self))
        return [
            f"{one}/.git"
            for one in found
            # Unlike paths that lead outside, which Git rejects too.
            if os.path.realpath(one) == one != self.workspace and os.path.lexists(f"{one}/.git")
        ]

    def _worktrees_inside(self) -> Iterator[str]:
        """`.git` of each worktree of this repository that is in the workspace."""
        folder = os.path.join(self.common, "worktrees")
        for name in os.listdir(folder) if self.common and os.path.isdir(folder) else ():
            file = (_content(os.path.join(folder, name, "gitdir")) or b"").strip()
            path = os.path.realpath(os.fsdecode(file)) if file and b"\0" not in file else ""
            if path.startswith(f"{self.workspace}{os.sep}"):
                yield path


def find_repository(workspace: str) -> Repository | None:
    """The repository of a workspace (a path without links), if there is one at its top."""
    entry = os.path.join(workspace, ".git")
    if not os.path.lexists(entry):
        return None
    if not os.path.isdir(entry):
        return Repository(workspace, entry, *_linked_repository(entry))
    real = os.path.realpath(entry)
    if not real.startswith(f"{workspace}{os.sep}"):
        return Repository(workspace, entry)  # an agent may have made this link
    return Repository(workspace, entry, real, real)


def _linked_repository(file: str) -> tuple[str, str]:
    """The folders of a worktree, if the repository itself lists it as one of its worktrees: the
    files in the workspace alone may have been written by an agent.
    """
    try:
        own = _read(file).decode().removeprefix("gitdir:").strip()
        back = _read(os.path.join(own, "gitdir")).decode().strip()
        common = os.path.realpath(
            os.path.join(own, _read(os.path.join(own, _COMMON)).decode().strip())
        )
    except (OSError, ValueError):
        return "", ""
    real = os.path.realpath(own)
    is_own = os.path.realpath(back) == os.path.realpath(file)
    return (real, common) if is_own and real.startswith(f"{common}{os.sep}") else ("", "")


# -- while a program runs --------------------------------------------------------------------------


@contextmanager
def protect_git_settings(workspace: str) -> Iterator[None]:
    """Create what is missing before a program starts. Undo what it changed, when it has ended, and
    raise CannotStart if it changed something.
    """
    repository = find_repository(os.path.realpath(workspace))
    if repository is None:
        yield
        return
    if repository.common:
        _create_missing(repository)
    with _placeholder(repository) as problems:
        before = _State.read(repository)
        try:
            yield
        finally:
            problems += _undo_changes(repository, before)
    if problems:
        raise CannotStart(
            "git-settings-changed",
            f"the program tried to make Git start other programs: {'; '.join(problems)}",
        )


def _create_missing(repository: Repository) -> None:
    for name in _FOLDERS:
        with suppress(OSError):
            Path(repository.common, name).mkdir()
    for folder, names in ((repository.common, _FILES), (repository.own, _FILES[1:])):
        for name in names:
            _create(os.path.join(folder, name), b"")


@contextmanager
def _placeholder(repository: Repository) -> Iterator[list[str]]:
    """Keep a file `commondir` in the repository while a call needs it, and collect problems.

    A worktree has one; a repository itself does not, and its settings are read from the target of
    this file.
    """
    problems: list[str] = []
    file = os.path.join(repository.common, _COMMON) if repository.common else ""
    is_new = bool(file) and (_in_use[file] > 0 or _create(file, _HERE) or _content(file) == _HERE)
    if not is_new:
        yield problems
        return
    _in_use[file] += 1
    try:
        yield problems
    finally:
        _in_use[file] -= 1
        if _content(file) not in (_HERE, None) or os.path.islink(file):
            problems.append(f"{file} was changed{_quarantine(file)}")
        elif not _in_use[file]:
            with suppress(OSError):
                os.unlink(file)
        if not _in_use[file]:
            del _in_use[file]


def _create(file: str, content: bytes) -> bool:
    """Create a file; false if the name exists, or it cannot be created."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError:
        return False
    with open(descriptor, "wb") as stream:
        stream.write(content)
    return True


# -- before and after ------------------------------------------------------------------------------


@dataclass(slots=True)
class _State:
    """What is compared."""

    links: dict[str, str] = field(default_factory=dict)  # with their targets
    head: bytes | None = None
    is_valid: bool = False  # Git recognises the repository
    submodules: frozenset[str] = frozenset()

    @classmethod
    def read(cls, repository: Repository) -> "_State":
        own, common = repository.own, repository.common
        watched = [repository.entry]
        watched += [os.path.join(common, name) for name in (*_FOLDERS, *_FILES)] if common else []
        return cls(
            links={one: os.readlink(one) for one in watched if os.path.islink(one)},
            head=_content(os.path.join(own, "HEAD")) if own else None,
            is_valid=_is_valid(repository),
            submodules=frozenset(repository.submodules()),
        )


def _undo_changes(repository: Repository, before: _State) -> list[str]:
    problems: list[str] = []
    for link, target in before.links.items():
        if not os.path.islink(link) or os.readlink(link) != target:
            problems.append(f"{link} was replaced{_quarantine(link)}")
            with suppress(OSError):
                os.symlink(target, link)
    if before.is_valid and not _is_valid(repository):
        # Git would treat the workspace itself as a repository, with settings of the agent.
        _repair(repository, before)
        is_repaired = "and was repaired" if _is_valid(repository) else "and cannot be repaired"
        problems.append(f"{repository.entry} was made unusable {is_repaired}")
    for nested in repository.submodules():
        if nested not in before.submodules:
            problems.append(
                f"{nested} is a repository that was added as a submodule{_quarantine(nested)}"
            )
    return problems


def _quarantine(path: str) -> str:
    """Move something to a name that Git does not read, and report it."""
    for number in range(1, 100):
        other = f"{path}.quarantined{number}"
        if os.path.lexists(other):
            continue
        try:
            os.rename(path, other)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f" (remove it: it cannot be moved: {error.strerror})"
        return f" (moved to {os.path.basename(other)})"
    return " (remove it)"


def _is_valid(repository: Repository) -> bool:
    """Whether Git treats the folder as a repository, by the rules of Git."""
    if not repository.own:
        return False
    head = os.path.join(repository.own, "HEAD")
    if os.path.islink(head):
        is_head = os.readlink(head).startswith("refs/")
    else:
        is_head = _HEAD.match(_content(head) or b"") is not None
    folders = (os.path.join(repository.common, name) for name in ("objects", "refs"))
    return is_head and all(os.path.isdir(one) and _can_enter(one) for one in folders)


def _can_enter(folder: str) -> bool:
    """Also for root, whose permissions in a sandbox are those of an owner."""
    return bool(os.stat(folder).st_mode & stat.S_IXUSR) and os.access(folder, os.X_OK)


def _repair(repository: Repository, before: _State) -> None:
    for name in ("objects", "refs"):
        folder = Path(repository.common, name)
        if folder.is_symlink():
            continue
        with suppress(OSError):
            folder.mkdir(exist_ok=True)
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_IRWXU)
    head = Path(repository.own, "HEAD")
    if before.head is not None and (head.is_symlink() or _content(str(head)) != before.head):
        _quarantine(str(head))
        _create(str(head), before.head)


# -- the index -------------------------------------------------------------------------------------


def _submodule_paths(repository: Repository) -> Iterator[str]:
    """The paths of the index that are submodules: `git status` starts Git in each of them."""
    if not repository.own:
        return
    settings = _content(os.path.join(repository.common, "config")) or b""
    id_bytes = 32 if re.search(rb"objectformat\s*=\s*\"?sha256", settings, re.IGNORECASE) else 20
    names = {"index", *_shared_indexes(repository.own)}
    for name in sorted(names):
        data = _content(os.path.join(repository.own, name), most=None) or b""
        if _SUBMODULE.to_bytes(4, "big") in data:
            yield from map(os.fsdecode, _submodules_of(data, id_bytes))


def _shared_indexes(folder: str) -> list[str]:
    with suppress(OSError):
        return [one for one in os.listdir(folder) if one.startswith("sharedindex.")]
    return []


def _submodules_of(data: bytes, id_bytes: int) -> Iterator[bytes]:
    """The paths with the mode of a submodule, in an index of version 2, 3 or 4."""
    version, count = (int.from_bytes(data[one : one + 4], "big") for one in (4, 8))
    at, name = 12, b""
    for _ in range(count):
        begin, flags_at = at, at + _ID_OFFSET + id_bytes
        mode = int.from_bytes(data[at + _MODE_OFFSET : at + _MODE_OFFSET + 4], "big")
        flags = int.from_bytes(data[flags_at : flags_at + 2], "big")
        at = flags_at + (4 if version >= 3 and flags & _EXTENDED else 2)
        if version == 4:
            left_out, at = _number(data, at)
            kept = name[: len(name) - left_out]
        else:
            kept = b""
        end = data.find(b"\0", at)
        if end < 0:
            return
        name = kept + data[at:end]
        at = end + 1 if version == 4 else begin + ((end - begin) // 8 + 1) * 8
        if mode == _SUBMODULE:
            yield name


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, as Git writes it, and the position after it."""
    value = -1
    while at < len(data):
        byte = data[at]
        value, at = ((value + 1) << 7) | (byte & 0x7F), at + 1
        if not byte & 0x80:
            break
    return max(value, 0), at


# -- files -----------------------------------------------------------------------------------------


def _read(file: str, most: int | None = _MOST_BYTES) -> bytes:
    """The content of an ordinary file; a pipe is not waited for."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{file} is not an ordinary file")
        return stream.read() if most is None else stream.read(most)


def _content(file: str, most: int | None = _MOST_BYTES) -> bytes | None:
    try:
        return _read(file, most)
    except OSError:
        return None
