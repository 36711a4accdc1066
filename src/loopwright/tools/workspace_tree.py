"""The workspace as a tree of files that no path leads out of, and its protected paths.

A name is resolved once (`locate`), link by link, to its real path. All later code opens that path
and allows no link at all, neither on the way nor at its end: if a folder is replaced by a link in
the meantime, the result is an error and not a file from another place. So what has been checked is
what is opened.

Every path is opened folder by folder, each one from the descriptor of the folder around it,
starting at the root of the file system. The workspace must be the folder that it was when the run
started, and device and inode, not the name, identify an opened folder or file.

Agents write to protected paths only after a person has approved it: these files decide what runs
later.
"""

import errno
import os
import stat
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from secrets import token_hex
from typing import TypeAlias

from loopwright.tools.results import ToolRefusal

Parts: TypeAlias = tuple[str, ...]
"""A real path: the names from the root down. The root itself is empty."""

Identity: TypeAlias = tuple[int, int]
"""The device and the inode of a folder or file: the same by whatever name it is opened."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
# A folder on the way does not need permission to be listed.
_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_MAX_LINKS = 40
_MAX_NAME_BYTES = 4_096
_TEMPORARY = ".loopwright-"


@dataclass(frozen=True, slots=True)
class PrivateFolders:
    """Folders and files that no tool reads, changes or lists, and the folders inside them that
    contain workspaces.
    """

    hidden: frozenset[Identity] = frozenset()
    workspaces: frozenset[Identity] = frozenset()


FindPrivate: TypeAlias = Callable[[], PrivateFolders]
"""The private folders and files now. Read at each use: they may have changed."""


def outside(name: str) -> ToolRefusal:
    return ToolRefusal("outside-workspace", f"{_shown(name)} leads out of the workspace")


def shown(parts: Parts) -> str:
    """A path as people and models write it."""
    return "/".join(parts) or "."


class WorkspaceTree:
    """A folder and everything that is really inside it. Its path has no links: it was recorded when
    the run started. `identity` is the folder's identity at that time.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        private: FindPrivate = PrivateFolders,
        identity: Identity | None = None,
    ) -> None:
        self.root = os.path.abspath(folder)
        self._private = private
        self._identity = identity

    # -- names

    def locate(self, name: str) -> Parts:
        """The real path of a name, which need not exist; Refusal if it is not inside."""
        with self._opened_root() as root:
            return self._follow(root, name)

    def _follow(self, root: "_Root", name: str) -> Parts:
        todo = list(reversed(self._names(name)))
        found: list[str] = []
        links, exists = 0, True
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not found or not exists:
                    raise outside(name)
                found.pop()
                continue
            target = self._link(root, (*found, part)) if exists else None
            if target is None:
                found.append(part)
                exists = exists and self._exists(root, tuple(found))
                continue
            links += 1
            if links > _MAX_LINKS or target.startswith("/"):
                raise outside(name)
            todo += reversed(target.split("/"))
        return tuple(found)

    def _names(self, name: str) -> list[str]:
        _check_spelling(name)
        inside = self.root.rstrip("/") + "/"
        if name == self.root or name.startswith(inside):
            name = name[len(inside) :]
        if name.startswith(("/", "~", "\\")) or (len(name) > 1 and name[1] == ":"):
            raise outside(name)
        return name.split("/")

    def _link(self, root: "_Root", parts: Parts) -> str | None:
        """The target of a link, None for anything else and if nothing exists."""
        try:
            with self._held(root, parts[:-1]) as folder:
                return os.readlink(parts[-1], dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
                return None
            raise refusal(error, parts) from None

    def _exists(self, root: "_Root", parts: Parts) -> bool:
        try:
            with self._held(root, parts[:-1]) as folder:
                os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        except OSError:
            return False
        return True

    # -- opening real places, no link allowed

    @contextmanager
    def _opened_root(self) -> Iterator["_Root"]:
        """The workspace, if it is still the folder that the run was started in."""
        private = self._private()
        try:
            handle, is_hidden = _open_without_links(self.root, private)
        except OSError as error:
            raise self._gone(error) from None
        try:
            if self._identity not in (None, identity_of(os.fstat(handle))):
                raise ToolRefusal("workspace-gone", f"another folder has replaced {self.root}")
            if is_hidden:
                detail = f"the workspace {self.root} is in a data directory, which is private"
                raise ToolRefusal("private-workspace", detail)
            yield _Root(handle, private.hidden)
        finally:
            os.close(handle)

    def _gone(self, error: OSError) -> ToolRefusal:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            detail = f"the workspace {self.root} was replaced by a link or a file"
            return ToolRefusal("workspace-gone", detail)
        return ToolRefusal("workspace-gone", f"the workspace {self.root} does not exist any more")

    @contextmanager
    def _held(self, root: "_Root", parts: Parts, flags: int = _FOLDER) -> Iterator[int]:
        handle = self._open(root, parts, flags)
        try:
            yield handle
        finally:
            os.close(handle)

    def _open(self, root: "_Root", parts: Parts, flags: int) -> int:
        """Open a path from the workspace down. FileNotFoundError for what is private."""
        if not parts:
            return os.open(".", flags, dir_fd=root.handle)
        folder = os.dup(root.handle)
        try:
            for part in parts[:-1]:
                inner = _open_visible(folder, part, _STEP, root.hidden)
                os.close(folder)
                folder = inner
            return _open_visible(folder, parts[-1], flags, root.hidden)
        finally:
            os.close(folder)

    @contextmanager
    def folder(self, parts: Parts) -> Iterator[int]:
        """A handle of a folder; Refusal if it is not a folder or cannot be opened."""
        with self._opened_root() as root, _close(parts), self._held(root, parts) as handle:
            yield handle

    def read(self, parts: Parts, limit: int) -> bytes:
        """The content of a regular file; Refusal for anything else, or if it is too large."""
        with (
            self._opened_root() as root,
            _close(parts),
            self._held(root, parts, _FILE) as handle,
        ):
            found = os.fstat(handle)
            if stat.S_ISDIR(found.st_mode):
                raise ToolRefusal("not-a-file", f"{shown(parts)} is a folder; list it instead")
            if not stat.S_ISREG(found.st_mode):
                raise ToolRefusal("not-a-regular-file", f"{shown(parts)} is not a regular file")
            if found.st_size > limit:
                raise _too_large(parts, found.st_size, limit)
            with os.fdopen(handle, "rb", closefd=False) as file:
                data = file.read(limit + 1)
        if len(data) > limit:
            raise _too_large(parts, len(data), limit)
        return data

    # -- writing

    def write(self, parts: Parts, data: bytes) -> bool:
        """Write a file atomically. True if there was none before.

        An existing file is replaced and never written into: another name of the same file (a hard
        link) keeps the old content.
        """
        if not parts:
            raise ToolRefusal("not-a-file", "the workspace itself is a folder")
        with self._opened_root() as root, _close(parts):
            self._make_folders(root, parts[:-1])
            with self._held(root, parts[:-1]) as folder:
                return _replace(folder, parts, data, root.hidden)

    def make(self, parts: Parts) -> bool:
        """Create a folder and its parents; returns whether there was none before."""
        with self._opened_root() as root, _close(parts):
            if self._exists(root, parts):
                with self._held(root, parts):  # Refusal if something else has its name
                    return False
            self._make_folders(root, parts)
            return True

    def _make_folders(self, root: "_Root", parts: Parts) -> None:
        for depth in range(1, len(parts) + 1):
            with self._held(root, parts[: depth - 1]) as folder:
                try:
                    os.mkdir(parts[depth - 1], dir_fd=folder)
                except FileExistsError:
                    continue


def _replace(folder: int, parts: Parts, data: bytes, hidden: frozenset[Identity]) -> bool:
    name = parts[-1]
    mode = _mode_of(folder, parts, hidden)
    temporary = f"{_TEMPORARY}{token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o666, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise
    return mode is None


def _mode_of(folder: int, parts: Parts, hidden: frozenset[Identity]) -> int | None:
    """The permissions of an existing regular file, None if there is none."""
    try:
        found = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if identity_of(found) in hidden:
        raise ToolRefusal("private-file", f"{shown(parts)} is a file of Loopwright itself")
    if stat.S_ISDIR(found.st_mode):
        raise ToolRefusal("not-a-file", f"{shown(parts)} is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise ToolRefusal("not-a-regular-file", f"{shown(parts)} is not a regular file")
    return stat.S_IMODE(found.st_mode) & 0o777


@dataclass(frozen=True, slots=True)
class _Root:
    """The opened workspace, and what is private while it is open."""

    handle: int
    hidden: frozenset[Identity]


def identity_of(info: os.stat_result) -> Identity:
    return info.st_dev, info.st_ino


def _open_without_links(path: str, private: PrivateFolders) -> tuple[int, bool]:
    """The descriptor of a folder, and whether the folder is private: it is in a private folder and
    not in one of the folders there that contain workspaces.
    """
    folder, is_hidden = os.open(os.sep, _STEP), False
    try:
        for part in path.split(os.sep):
            if part:
                inner = os.open(part, _STEP, dir_fd=folder)
                os.close(folder)
                folder = inner
            found = identity_of(os.fstat(folder))
            is_hidden = (is_hidden or found in private.hidden) and found not in private.workspaces
        return os.open(".", _FOLDER, dir_fd=folder), is_hidden
    finally:
        os.close(folder)


def _open_visible(folder: int, name: str, flags: int, hidden: frozenset[Identity]) -> int:
    handle = os.open(name, flags, dir_fd=folder)
    if identity_of(os.fstat(handle)) in hidden:
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return handle


# -- words


@contextmanager
def _close(parts: Parts) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refusal(error, parts) from None


def refusal(error: OSError, parts: Parts) -> ToolRefusal:
    """The message for an error number of the system, for the path that was named."""
    match error.errno:
        case errno.ENOENT:
            return ToolRefusal("not-found", f"{_shown(shown(parts))} does not exist")
        case errno.ELOOP | errno.EXDEV:
            return outside(shown(parts))
        case errno.ENOTDIR:
            return ToolRefusal(
                "not-a-folder", f"{_shown(shown(parts))} is not a folder, or leads over one"
            )
        case _:
            why = (error.strerror or str(error)).lower()
            return ToolRefusal("cannot-open", f"{_shown(shown(parts))}: {why}")


def _too_large(parts: Parts, size: int, limit: int) -> ToolRefusal:
    return ToolRefusal(
        "file-too-large", f"{shown(parts)} has {size} bytes, at most {limit} are read"
    )


def _check_spelling(name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ToolRefusal("bad-path", f"{_shown(name)} has no form in bytes") from None
    if not name or "\0" in name:
        raise ToolRefusal("bad-path", f"{_shown(name)} is not a path")
    if size > _MAX_NAME_BYTES:
        raise ToolRefusal("bad-path", f"{_shown(name)} is too long for a path")


def _shown(name: str) -> str:
    """A name in quotes, shortened, without anything that could affect a terminal."""
    clipped = name if len(name) <= 200 else f"{name[:200]}…"
    safe = "".join("�" if unicodedata.category(c)[0] == "C" else c for c in clipped)
    return f"{safe!r}"


PROTECTED: tuple[str, ...] = (
    ".git/**",
    ".loopwright/**",
    "loopwright.toml",
    "node_modules/**",
    ".env*",
    ".mcp.json",
    "Dockerfile",
    "docker-compose*",
    "package.json",
    "*.lock",
    "*.lockb",
    "bun.lock*",
    "go.sum",
    "npm-shrinkwrap.json",
    "package-lock.json",
    "pnpm-lock.yaml",
)


class Protection:
    """A list of patterns. `NAME/**` is a folder of that name at any depth, itself and everything in
    it; `NAME` a file or folder of that name at any depth; a pattern with another slash is matched
    against the whole path. Case and look-alike forms of letters make no difference.
    """

    def __init__(self, patterns: Iterable[str] = PROTECTED) -> None:
        self._anywhere: list[str] = []
        self._whole: list[str] = []
        for pattern in map(_plain, patterns):
            bare = pattern.removesuffix("/**")
            (self._whole if "/" in bare else self._anywhere).append(bare)

    def covers(self, parts: Parts) -> bool:
        """Whether a path is on the list, or inside an entry of it."""
        plain = [_plain(part) for part in parts]
        if any(fnmatchcase(part, pattern) for part in plain for pattern in self._anywhere):
            return True
        heads = ["/".join(plain[: end + 1]) for end in range(len(plain))]
        return any(fnmatchcase(head, pattern) for head in heads for pattern in self._whole)


def _plain(text: str) -> str:
    """As a tolerant file system would compare it: it may treat `.GIT` or `.git ` as `.git`."""
    letters = (c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c) != "Cf")
    return "".join(letters).casefold().rstrip(" .") or text
