"""Reading files that somebody else has named: regular ones only, up to a size, and never outside.

A name is not trusted twice. The file is opened once, without waiting for a pipe's other end, and
what was opened is looked at. `read_beneath` lets the kernel keep the whole path inside a folder
where it can (Linux), so that a link exchanged meanwhile leads nowhere either.
"""

import ctypes
import errno
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MOST_NAMES = 1_000
_OPENAT2 = 437
_RESOLVE_BENEATH = 0x08
_RESOLVE_NO_MAGICLINKS = 0x02
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class FileProblem:
    """Why a file is not read: a slug and a sentence."""

    code: str
    message: str


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def read_regular(path: Path, limit: int) -> bytes | FileProblem:
    """The content of a file that a person has named."""
    try:
        handle = os.open(path, _FLAGS)
    except OSError as error:
        return _refusal(error)
    return _content(handle, limit)


def read_beneath(folder: Path, name: str, limit: int) -> bytes | FileProblem:
    """The content of a file that a definition has named; it must lie inside the folder."""
    handle = _opened_beneath(folder, name)
    return handle if isinstance(handle, FileProblem) else _content(handle, limit)


def names_beneath(folder: Path, name: str, most: int = MOST_NAMES) -> list[str] | FileProblem:
    """The names of the files in a folder inside the folder, sorted; at most so many."""
    handle = _opened_beneath(folder, name)
    if isinstance(handle, FileProblem):
        return handle
    try:
        return sorted(os.listdir(handle))[:most]
    except OSError as error:
        return _refusal(error)
    finally:
        os.close(handle)


def _opened_beneath(folder: Path, name: str) -> int | FileProblem:
    if not name or "\0" in name or leads_out(name):
        return FileProblem("outside-workspace", f"{name!r} leads out of its folder")
    try:
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return _refusal(error)
    try:
        return _open_beneath(root, folder, name)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.ELOOP):
            return FileProblem("outside-workspace", f"{name!r} leads out of its folder")
        return _refusal(error)
    finally:
        os.close(root)


def leads_out(name: str) -> bool:
    """Whether a name, followed from a folder on, would leave it."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    return name.startswith(("/", "~", "\\")) or ".." in parts or (len(name) > 1 and name[1] == ":")


def _open_beneath(root: int, folder: Path, name: str) -> int:
    if sys.platform == "linux":
        how = _OpenHow(_FLAGS, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
        call = ctypes.CDLL(None, use_errno=True).syscall
        handle = int(call(_OPENAT2, root, os.fsencode(name), ctypes.byref(how), ctypes.sizeof(how)))
        if handle >= 0:
            return handle
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
            raise OSError(number, os.strerror(number), name)
    real = (folder / name).resolve(strict=True)
    if not real.is_relative_to(folder.resolve()):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
    return os.open(real, _FLAGS | os.O_NOFOLLOW)


def _content(handle: int, limit: int) -> bytes | FileProblem:
    try:
        unfit = _unfit(os.fstat(handle), limit)
        if unfit is not None:
            return unfit
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    except OSError as error:
        return _refusal(error)
    finally:
        os.close(handle)
    if len(data) > limit:
        return FileProblem("file-too-large", f"more than {limit} bytes")
    return data


def _unfit(found: os.stat_result, limit: int) -> FileProblem | None:
    if stat.S_ISDIR(found.st_mode):
        return FileProblem("not-a-file", "is a directory; name a file")
    if not stat.S_ISREG(found.st_mode):
        return FileProblem("not-a-regular-file", "is no regular file")
    if found.st_size > limit:
        return FileProblem("file-too-large", f"{found.st_size} bytes, at most {limit} are read")
    return None


def _refusal(error: OSError) -> FileProblem:
    return FileProblem("cannot-read", (error.strerror or str(error)).lower())
