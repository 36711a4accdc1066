"""The workspace as a tree that nothing leads out of.

A name is followed once (`locate`), link by link, to the real place that it stands for. Everything
afterwards opens that place and allows no link at all, neither on the way nor at its end: whoever
exchanges a folder for a link meanwhile gets an error and not a file from elsewhere. What has been
checked is therefore what is opened. Linux keeps the promise by itself (`openat2`); elsewhere the
path is walked folder by folder.
"""

import ctypes
import errno
import os
import stat
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import TypeAlias

from loopwright.tools.outcome import Refusal

Parts: TypeAlias = tuple[str, ...]
"""A real place: the names from the root down. The root itself is empty."""

_OPENAT2 = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_MAX_LINKS = 40
_MAX_NAME_BYTES = 4_096
_UNSUPPORTED = (errno.ENOSYS, errno.EPERM, errno.EINVAL)
_TEMPORARY = ".loopwright-"


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def outside(name: str) -> Refusal:
    return Refusal("outside-workspace", f"{_shown(name)} leads out of the workspace")


def shown(parts: Parts) -> str:
    """A place as people and models write it."""
    return "/".join(parts) or "."


class Tree:
    """A folder and all that is really inside it. `kernel=False` walks, also where Linux could."""

    def __init__(
        self,
        folder: str | Path,
        *,
        kernel: bool = sys.platform == "linux",
        hidden: Iterable[str] = (),
    ) -> None:
        self.root = os.path.realpath(folder)
        self._kernel = kernel
        inside = f"{self.root.rstrip('/')}/"
        real = (os.path.realpath(one) for one in hidden)
        # Folders of the workspace that no agent sees, such as a data directory in it.
        self._hidden = [
            tuple(one.removeprefix(inside).split("/")) for one in real if one.startswith(inside)
        ]

    # -- names

    def locate(self, name: str) -> Parts:
        """The real place of a name, which need not exist; Refusal if it is not inside."""
        with self._opened_root() as root:
            return self._follow(root, name)

    def _follow(self, root: int, name: str) -> Parts:
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

    def _link(self, root: int, parts: Parts) -> str | None:
        """Where a link points to, None for anything else and for nothing."""
        try:
            with self._held(root, parts[:-1]) as folder:
                return os.readlink(parts[-1], dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
                return None
            raise refusal(error, parts) from None

    def _exists(self, root: int, parts: Parts) -> bool:
        try:
            with self._held(root, parts[:-1]) as folder:
                os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        except OSError:
            return False
        return True

    # -- opening real places, no link allowed

    @contextmanager
    def _opened_root(self) -> Iterator[int]:
        try:
            root = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            raise Refusal("workspace-gone", "the workspace does not exist any more") from None
        try:
            yield root
        finally:
            os.close(root)

    @contextmanager
    def _held(self, root: int, parts: Parts, flags: int = _FOLDER) -> Iterator[int]:
        handle = self._open(root, parts, flags)
        try:
            yield handle
        finally:
            os.close(handle)

    def _open(self, root: int, parts: Parts, flags: int) -> int:
        if any(parts[: len(one)] == one for one in self._hidden):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self._open_any(root, parts, flags)

    def _open_any(self, root: int, parts: Parts, flags: int) -> int:
        if not parts:
            return os.open(".", flags, dir_fd=root)
        if self._kernel:
            handle = _openat2(root, "/".join(parts), flags)
            if handle is not None:
                return handle
            self._kernel = False
        folder = os.dup(root)
        try:
            for part in parts[:-1]:
                inner = os.open(part, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
            return os.open(parts[-1], flags, dir_fd=folder)
        finally:
            os.close(folder)

    @contextmanager
    def folder(self, parts: Parts) -> Iterator[int]:
        """A handle of a folder; Refusal if it is none or cannot be opened."""
        with self._opened_root() as root, _told(parts), self._held(root, parts) as handle:
            yield handle

    def read(self, parts: Parts, limit: int) -> bytes:
        """The content of a regular file; Refusal for anything else, or when it is too large."""
        with (
            self._opened_root() as root,
            _told(parts),
            self._held(root, parts, _FILE) as handle,
        ):
            found = os.fstat(handle)
            if stat.S_ISDIR(found.st_mode):
                raise Refusal("not-a-file", f"{shown(parts)} is a folder; list it instead")
            if not stat.S_ISREG(found.st_mode):
                raise Refusal("not-a-regular-file", f"{shown(parts)} is no regular file")
            if found.st_size > limit:
                raise _too_large(parts, found.st_size, limit)
            with os.fdopen(handle, "rb", closefd=False) as file:
                data = file.read(limit + 1)
        if len(data) > limit:
            raise _too_large(parts, len(data), limit)
        return data

    # -- writing

    def write(self, parts: Parts, data: bytes) -> bool:
        """Put a file in its place at once, or not at all. True when there was none before.

        What stands there is replaced and never written into: another name of the same file (a
        hard link) keeps the old content.
        """
        if not parts:
            raise Refusal("not-a-file", "the workspace itself is a folder")
        with self._opened_root() as root, _told(parts):
            self._make_folders(root, parts[:-1])
            with self._held(root, parts[:-1]) as folder:
                return _replace(folder, parts, data)

    def _make_folders(self, root: int, parts: Parts) -> None:
        for depth in range(1, len(parts) + 1):
            with self._held(root, parts[: depth - 1]) as folder:
                try:
                    os.mkdir(parts[depth - 1], dir_fd=folder)
                except FileExistsError:
                    continue


def _replace(folder: int, parts: Parts, data: bytes) -> bool:
    name = parts[-1]
    mode = _mode_of(folder, parts)
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


def _mode_of(folder: int, parts: Parts) -> int | None:
    """The rights of the regular file that stands there, None when nothing does."""
    try:
        found = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise Refusal("not-a-file", f"{shown(parts)} is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise Refusal("not-a-regular-file", f"{shown(parts)} is no regular file")
    return stat.S_IMODE(found.st_mode) & 0o777


def _openat2(root: int, path: str, flags: int) -> int | None:
    """A handle, or None where the kernel does not know this call."""
    how = _OpenHow(flags, 0, _BENEATH | _NO_MAGICLINKS | _NO_SYMLINKS)
    call = ctypes.CDLL(None, use_errno=True).syscall
    handle = int(call(_OPENAT2, root, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)))
    if handle >= 0:
        return handle
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return None
    raise OSError(number, os.strerror(number), path)


# -- words


@contextmanager
def _told(parts: Parts) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refusal(error, parts) from None


def refusal(error: OSError, parts: Parts) -> Refusal:
    """What a number of the system means for somebody who named a place."""
    match error.errno:
        case errno.ENOENT:
            return Refusal("not-found", f"{_shown(shown(parts))} does not exist")
        case errno.ELOOP | errno.EXDEV:
            return outside(shown(parts))
        case errno.ENOTDIR:
            return Refusal(
                "not-a-folder", f"{_shown(shown(parts))} is no folder, or leads over one"
            )
        case _:
            why = (error.strerror or str(error)).lower()
            return Refusal("cannot-open", f"{_shown(shown(parts))}: {why}")


def _too_large(parts: Parts, size: int, limit: int) -> Refusal:
    return Refusal("file-too-large", f"{shown(parts)} has {size} bytes, at most {limit} are read")


def _check_spelling(name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise Refusal("bad-path", f"{_shown(name)} has no form in bytes") from None
    if not name or "\0" in name:
        raise Refusal("bad-path", f"{_shown(name)} is no path")
    if size > _MAX_NAME_BYTES:
        raise Refusal("bad-path", f"{_shown(name)} is too long for a path")


def _shown(name: str) -> str:
    """A name in quotes, shortened, with nothing in it that could act on a terminal."""
    clipped = name if len(name) <= 200 else f"{name[:200]}…"
    safe = "".join("�" if unicodedata.category(c)[0] == "C" else c for c in clipped)
    return f"{safe!r}"
