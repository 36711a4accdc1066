"""Read files with untrusted names: only regular files, up to a size, and never outside a folder.

A name is not resolved twice. The file is opened once, without waiting for the other end of a pipe,
and the opened file is checked. `read_beneath` lets the kernel keep the whole path inside a folder
if it can (Linux), so that a link that is replaced in the meantime does not lead out either.

Files of data directories and of the user's own settings are never read this way: an agent cannot
see them, and could otherwise name one, or link to it, and have Loopwright show it the contents.

Files that a prompt names are read at the time of the call. One that cannot be shown is named with
the reason, and the agent is called anyway: it works in the workspace and can read it itself.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import TypeAlias

from msgspec.structs import replace

from loopwright import host
from loopwright.agents.user_records import UserRecords
from loopwright.model.chat import FilePart, UserMessage, can_see, media_type
from loopwright.ports import EffectJob
from loopwright.prompts.calls import PROMPT_BYTES
from loopwright.prompts.sections import clip_end

MOST_NAMES = 1_000
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A folder on the way does not need permission to be listed.
_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class FileProblem:
    """Why a file is not read: a slug and a sentence."""

    code: str
    message: str


_PRIVATE_FILE = FileProblem("private-file", "is a file of Loopwright itself, which is private")


Identity: TypeAlias = tuple[int, int]  # device and inode

_PRIVATE: set[str] = set()
_RECORDS: set[str] = set()
_PRIVATE_PARTS = (
    *("artifacts", "env", "live", "logs", "owners", "records", "results", "snapshots", "uploads"),
    "worktrees",
)
_OF_RUNS = ("artifacts", "worktrees")  # have a folder for each run
_TEXTS = (".md", ".txt", ".yaml", ".yml")
"""A project may be its own data directory (`home = ".loopwright"`): files that a person wrote
there, definitions and roles, are not private.
"""


@dataclass(frozen=True, slots=True)
class PrivateFiles:
    """Private folders, files that Loopwright stores at the top of them, and their worktrees."""

    folders: frozenset[Identity]
    files: frozenset[Identity]
    worktrees: frozenset[Identity]


@dataclass(frozen=True, slots=True)
class ReadScope:
    """The reader: a run, and the folder that it or a person works in. The artifacts of the run and
    a worktree around the folder are not private for it.
    """

    folder: Path
    run: str = ""


def keep_private(*paths: Path | str, records: Path | None = None) -> None:
    """Never read what Loopwright itself stores in these folders for a definition or an agent. So
    it is with all data directories in the user's records, which are read again at each use.
    """
    _PRIVATE.update(os.path.abspath(one) for one in paths)
    _RECORDS.update([str(records)] if records is not None else [])


def find_private(paths: Iterable[str], *, stored: bool = True) -> PrivateFiles:
    """The identities of these folders and files now, independent of their names. Without `stored`,
    the files in the folders are omitted.
    """
    folders: set[Identity] = set()
    files: set[Identity] = set()
    worktrees: set[Identity] = set()
    for path in paths:
        with contextlib.suppress(OSError):
            info = os.stat(path)
            if not stat.S_ISDIR(info.st_mode):
                files.add(_identity(info))
                continue
            folders.add(_identity(info))
            files.update(_stored_files(path) if stored else ())
            worktrees.add(_identity(os.lstat(os.path.join(path, "worktrees"))))
    return PrivateFiles(frozenset(folders), frozenset(files), frozenset(worktrees))


def _stored_files(folder: str) -> Iterator[Identity]:
    """The files at the top of a data directory: the database, settings, tokens, the socket."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(_TEXTS) and not entry.is_dir(follow_symlinks=False):
                yield _identity(entry.stat(follow_symlinks=False))


def _identity(info: os.stat_result) -> Identity:
    return info.st_dev, info.st_ino


def _is_private(handle: int, scope: ReadScope) -> bool:
    """Whether an open file or folder is private, by whatever name it was opened. Devices and inodes
    decide which folders contain it.
    """
    found = os.fstat(handle)
    private = find_private(_private_paths(scope), stored=found.st_nlink > 1)
    if _identity(found) in private.files:
        return True
    real = host.path_of(handle)
    if real is None:
        return False  # not Linux: there is no sandbox to hide the folder from anyway
    is_folder = stat.S_ISDIR(found.st_mode)
    return any(
        _is_own_file(real.relative_to(one), is_folder=is_folder) and not _is_of(scope, real, one)
        for one in real.parents
        if _identity_at(one) in private.folders
    )


def _private_paths(scope: ReadScope) -> Iterator[str]:
    """The private paths of this process, and the data directories in the user's records. A data
    directory that is itself used as a workspace is not private in that run.
    """
    yield from tuple(_PRIVATE)  # another thread may add one meanwhile
    around = Path(os.path.realpath(scope.folder))
    records = [UserRecords(folder) for folder in tuple(_RECORDS)]
    for one in [one for record in records for one in record.data_directories()]:
        if not around.is_relative_to(one) or around.is_relative_to(Path(one, "worktrees")):
            yield one


def _identity_at(path: Path) -> Identity | None:
    try:
        return _identity(os.stat(path))
    except OSError:
        return None


def _is_own_file(path: PurePath, *, is_folder: bool) -> bool:
    """Whether Loopwright itself stores a file of a data directory, under a name of its own."""
    if len(path.parts) == 1 and not is_folder:
        return path.suffix not in _TEXTS
    return path.parts[0] in _PRIVATE_PARTS


def _is_of(scope: ReadScope, real: Path, home: Path) -> bool:
    """Whether a file of a data directory belongs to the run that reads it."""
    parts = real.relative_to(home).parts
    if len(parts) < 3 or parts[0] not in _OF_RUNS:
        return False
    around = home.joinpath(*parts[:2])
    if parts[0] == "artifacts" and scope.run:
        return parts[1] == scope.run
    return Path(os.path.realpath(scope.folder)).is_relative_to(around)


def read_regular(path: Path, limit: int, scope: ReadScope | None = None) -> bytes | FileProblem:
    """The content of a file that a person has named."""
    try:
        handle = os.open(path, _FLAGS)
    except OSError as error:
        return _refusal(error)
    return _content(handle, limit, scope or ReadScope(_named_folder(path)))


def _named_folder(path: Path) -> Path:
    """The folder of a file that was named without links, else the current one."""
    folder = os.path.abspath(path.parent)
    return Path(folder if os.path.realpath(folder) == folder else os.curdir)


def read_beneath(
    folder: Path, name: str, limit: int, *, run: str = "", fixed: bool = False
) -> bytes | FileProblem:
    """The content of a file that a definition has named; it must lie inside the folder. A `fixed`
    folder is the workspace of a run: no link may have replaced it or a folder around it.
    """
    handle = _opened_beneath(folder, name, fixed=fixed)
    if isinstance(handle, FileProblem):
        return handle
    return _content(handle, limit, ReadScope(folder, run))


def names_beneath(folder: Path, name: str, most: int = MOST_NAMES) -> list[str] | FileProblem:
    """The names of the files in a folder inside the folder, sorted, up to a maximum number."""
    handle = _opened_beneath(folder, name)
    if isinstance(handle, FileProblem):
        return handle
    try:
        if _is_private(handle, ReadScope(folder)):
            return _PRIVATE_FILE
        return sorted(os.listdir(handle))[:most]
    except OSError as error:
        return _refusal(error)
    finally:
        os.close(handle)


def _opened_beneath(folder: Path, name: str, *, fixed: bool = False) -> int | FileProblem:
    if not name or "\0" in name or leads_out(name):
        return FileProblem("outside-workspace", f"{name!r} leads out of its folder")
    try:
        root = _open_fixed(folder) if fixed else os.open(folder, _FOLDER)
    except OSError as error:
        if fixed and error.errno in (errno.ELOOP, errno.ENOTDIR):
            detail = f"the workspace {folder} was replaced by a link or a file"
            return FileProblem("workspace-gone", detail)
        return _refusal(error)
    try:
        return _open_beneath(root, folder, name)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.ELOOP):
            return FileProblem("outside-workspace", f"{name!r} leads out of its folder")
        return _refusal(error)
    finally:
        os.close(root)


def _open_fixed(folder: Path) -> int:
    """A folder, opened from the root of the file system on without following links."""
    handle = os.open(os.sep, _STEP)
    for part in (*folder.absolute().parts[1:], os.curdir):
        try:
            inner = os.open(part, _FOLDER if part == os.curdir else _STEP, dir_fd=handle)
        finally:
            os.close(handle)
        handle = inner
    return handle


def leads_out(name: str) -> bool:
    """Whether a name, followed from a folder on, would leave it."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    return name.startswith(("/", "~", "\\")) or ".." in parts or (len(name) > 1 and name[1] == ":")


def _open_beneath(root: int, folder: Path, name: str) -> int:
    handle = host.open_beneath(root, name, _FLAGS)
    if handle is not None:
        return handle
    real = (folder / name).resolve(strict=True)
    if not real.is_relative_to(folder.resolve()):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
    return os.open(real, _FLAGS | os.O_NOFOLLOW)


def _content(handle: int, limit: int, scope: ReadScope) -> bytes | FileProblem:
    try:
        if _is_private(handle, scope):
            return _PRIVATE_FILE
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
        return FileProblem("not-a-regular-file", "is not a regular file")
    if found.st_size > limit:
        return FileProblem("file-too-large", f"{found.st_size} bytes, at most {limit} are read")
    return None


def _refusal(error: OSError) -> FileProblem:
    return FileProblem("cannot-read", (error.strerror or str(error)).lower())


MAX_FILE_BYTES = 10 * 1_024 * 1_024
LEAST_BYTES = 1_024  # of each file that is shown, however long the rest of the prompt is
# A service rejects the whole conversation if a file does not have the type of its name.
_STARTS: dict[str, bytes | tuple[bytes, ...]] = {
    "application/pdf": b"%PDF-",
    "image/gif": b"GIF8",
    "image/jpeg": b"\xff\xd8",
    "image/png": b"\x89PNG\r\n",
    "image/webp": b"RIFF",
}


def with_files(job: EffectJob) -> EffectJob:
    """The job with its files in the prompt, or in the first message of a conversation. Models that
    accept images and PDFs receive them as parts of that message; others receive their names.
    """
    if not job.prompt.files:
        return job
    room = PROMPT_BYTES - len(job.prompt.text.encode(errors="replace"))
    sections = ["## Context Files"]
    attached: list[FilePart] = []
    for name in job.prompt.files:
        part = _attached_file(job, name) if job.chat.messages else None
        if part is not None:
            attached.append(part)
            sections.append(f"### {name}\n\n(attached as {part.media_type})")
            continue
        shown = clip_end(_file_text(job, name), max(room, LEAST_BYTES))
        room -= len(shown.encode(errors="replace"))
        sections.append(f"### {name}\n\n{shown}")
    if not job.chat.messages:
        text = "\n\n".join([job.prompt.text, *sections])
        return replace(job, prompt=replace(job.prompt, text=text))
    first = job.chat.messages[0]
    if not isinstance(first, UserMessage):
        return job
    message = UserMessage(text="\n\n".join([first.text, *sections]), files=tuple(attached))
    return replace(job, chat=replace(job.chat, messages=(message, *job.chat.messages[1:])))


def _attached_file(job: EffectJob, name: str) -> FilePart | None:
    """An image or a PDF as a part of a message, if the model accepts it."""
    media = media_type(name)
    if media is None or job.agent is None or not can_see(job.agent, media):
        return None
    data = _read_named(job, name)
    if isinstance(data, FileProblem) or not data.startswith(_STARTS[media]):
        return None
    return FilePart(name=name, media_type=media, data=data)


def _read_named(job: EffectJob, name: str) -> bytes | FileProblem:
    return read_beneath(Path(job.workspace), name, MAX_FILE_BYTES, run=job.run, fixed=True)


def _file_text(job: EffectJob, name: str) -> str:
    data = _read_named(job, name)
    if isinstance(data, FileProblem):
        return f"(not shown: {data.message})"
    try:
        return data.decode()
    except UnicodeDecodeError:
        kind = media_type(name) or "binary"
        return f"(not shown: it is a {kind} file; open it in the workspace)"
