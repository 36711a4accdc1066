"""Perform snapshot effects: the tree of the workspace, and which protected files changed.

Patterns of protected files can match no file, or lead through links. A link out of the
workspace is refused, because no snapshot contains what it leads to.
"""

import asyncio
import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from loopwright.errors import LoopwrightError
from loopwright.kernel.event_parts import Failure, Snapshot, SnapshotCall
from loopwright.kernel.snapshots import UNRECORDED, name_files
from loopwright.model.sandbox import NO_MATCH, is_protected, matches_any, may_match
from loopwright.ports import (
    ActivityEntry,
    Answer,
    EffectFailure,
    EffectJob,
    EffectSuccess,
    FileChange,
    FilesOfInterest,
    Workspaces,
)

_MOST_ENTRIES = 100_000  # maximum number of files of a workspace that are checked
_ROUNDS = 4  # links that lead to links
_LONGEST_PATH = 4_095  # that the system opens
_READ_BYTES = 1_000_000
_SPECIAL = "pipe, socket or device"
TOO_LONG = "path too long"


def unmatched_patterns(workspace: Path, patterns: Sequence[str]) -> list[str]:
    """The patterns that no file of the workspace matches."""
    left = list(patterns)
    for path, _ in _entries(workspace) if left else ():
        left = [one for one in left if not matches_any([one], path)]
        if not left:
            break
    return left


def unmatched_note(workspace: Path, patterns: Sequence[str]) -> str:
    """`no file matches test/**`; empty where every pattern matches some file."""
    if not patterns:
        return ""
    left = unmatched_patterns(workspace, patterns)
    return f"{NO_MATCH}{', '.join(left)}" if left else ""


def with_link_targets(workspace: Path, patterns: Sequence[str]) -> tuple[str, ...]:
    """The patterns, and one for each file or folder that a protected link leads to. A link that
    leads out of the workspace is refused: what it leads to is in no snapshot.
    """
    if not patterns:
        return ()
    found = dict.fromkeys(patterns)
    root = Path(os.path.realpath(workspace))
    new = list(found)
    for _ in range(_ROUNDS):
        targets = [one for pattern in new for one in _targets(root, pattern)]
        new = [one for one in dict.fromkeys(targets) if one not in found]
        found.update(dict.fromkeys(new))
        if not new:
            break
    return tuple(found)


def _targets(root: Path, pattern: str) -> Iterator[str]:
    parts = pattern.removeprefix("./").rstrip("/").split("/")
    for count in range(1, len(parts) + 1):
        inside = "/".join(parts[:count])
        if "*" in inside or "?" in inside:
            break
        if (root / inside).is_symlink():
            rest = "/".join(parts[count:])
            target = _target(root, inside)
            yield f"{target}/{rest}" if rest else _anchored(target)
            return
    for path, is_link in _entries(root):
        if is_link and matches_any([pattern], path):
            yield _anchored(_target(root, path))


def _anchored(path: str) -> str:
    """A pattern for exactly this path: one without a slash would match at any depth."""
    return path if "/" in path else f"./{path}"


def _target(root: Path, link: str) -> str:
    real = Path(os.path.realpath(root / link))
    if real != root and real.is_relative_to(root):
        return str(real.relative_to(root))
    raise LoopwrightError(
        f"{link} is a link to {os.readlink(root / link)}, outside the workspace, and cannot be "
        "protected",
        code="outside-workspace",
        hint="replace the link by a copy, or do not protect it",
    )


def _entries(root: Path) -> Iterator[tuple[str, bool]]:
    """Files and links of a workspace, each with whether it is a link."""
    seen = 0
    for folder, folders, files in os.walk(root):
        folders[:] = [one for one in folders if one != ".git"]
        for name in (*files, *folders):
            full = os.path.join(folder, name)
            is_link = os.path.islink(full)
            if is_link or name not in folders:
                shown = os.fsencode(os.path.relpath(full, root))
                yield shown.decode("utf-8", "backslashreplace"), is_link
            seen += 1
            if seen > _MOST_ENTRIES:
                return


# -- files that no snapshot has --------------------------------------------------------------------


def find_unrecorded(workspace: str, patterns: Sequence[str]) -> dict[str, str]:
    """Protected files that Git does not record, each with a state that changes whenever the file
    does: what is in folders `.git` below the workspace; pipes, sockets and devices; and folders
    whose path is too long for the system.
    """
    found: dict[str, str] = {}
    for folder in _starts(patterns):
        for name, entry in _all_files(workspace, folder):
            if entry is None:
                if may_match(patterns, f"{name}/"):
                    found[name] = TOO_LONG
            elif is_protected(patterns, name):
                state = _unrecorded_state(name, entry)
                if state:
                    found[name] = state
    return found


def _starts(patterns: Sequence[str]) -> list[str]:
    """The folders that protected files are in: the first part of each pattern without wildcards."""
    found = set()
    for pattern in patterns:
        parts = pattern.removeprefix("./").rstrip("/").split("/")
        count = next((n for n, one in enumerate(parts) if "*" in one or "?" in one), len(parts))
        # A pattern without a slash counts in every folder.
        found.add("/".join(parts[:count]) if len(parts) > 1 or pattern.startswith("./") else "")
    return [""] if "" in found else sorted(found)


def _all_files(root: str, start: str) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
    """All files below a folder except those of the repository itself, with their paths relative to
    the root; None for a file whose path is too long.
    """
    waiting = [start]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(os.path.join(root, folder)))
        except OSError:
            continue
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if len(os.fsencode(os.path.join(root, name))) > _LONGEST_PATH:
                yield name, None
            elif not entry.is_dir(follow_symlinks=False):
                yield _shown(name), entry
            elif name != ".git":
                waiting.append(name)


def _shown(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _unrecorded_state(name: str, entry: os.DirEntry[str]) -> str:
    """Empty for a file that snapshots have."""
    try:
        info = entry.stat(follow_symlinks=False)
        if not (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)):
            return _SPECIAL
        parts = name.split("/")
        # Git itself writes its index whenever it reads a repository.
        if ".git" not in parts[1:] or (parts[-1] == "index" and parts[-2] == ".git"):
            return ""
        if stat.S_ISLNK(info.st_mode):
            return f"link {os.readlink(entry.path)}"
        if info.st_size > _READ_BYTES:
            return f"{info.st_size} bytes, {info.st_ino}, {info.st_ctime_ns}"
        with open(entry.path, "rb") as file:
            return hashlib.sha256(file.read(_READ_BYTES + 1)).hexdigest()
    except OSError:
        return "not readable"


_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
FAILED = "snapshot"
"""The type of a failure to take a snapshot."""

NAMED = 100
MOST_OUTSIDE = 20
MOST_UNRECORDED = 500
_LONGEST_NAME = 500
_MISSING = "missing"
READ_BYTES = 1_000_000
SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/sys",
    "/dev",
    "/nix/store",
)
"""Folders where agents cannot write, or that are temporary anyway."""


async def take_snapshot(
    workspaces: Workspaces | None, job: EffectJob, call: SnapshotCall
) -> Answer:
    """The answer of a snapshot effect. It fails if protected files cannot be recorded, and if it
    takes longer than allowed.
    """
    if workspaces is None:
        return EffectFailure(error=Failure(FAILED, "this process cannot take snapshots"))
    if _is_replaced(job.workspace):
        detail = f"the workspace {job.workspace} was replaced by a link"
        return EffectFailure(error=Failure(FAILED, detail))
    limit_s = call.within_ms / 1_000 if call.within_ms else None
    try:
        return await asyncio.wait_for(_take_snapshot(workspaces, job, call), limit_s)
    except TimeoutError:
        return EffectFailure(error=Failure(FAILED, f"it was not finished within {limit_s:g} s"))


def _is_replaced(workspace: str) -> bool:
    """Whether a link has replaced a workspace, whose path was recorded without links."""
    return os.path.realpath(workspace) != workspace


async def _take_snapshot(workspaces: Workspaces, job: EffectJob, call: SnapshotCall) -> Answer:
    words = watched_words(Path(job.workspace), call.watch)
    files = [word for word in words if _is_file(job.workspace, word)]

    def progress(line: str) -> None:
        job.activity.record(ActivityEntry(kind="status", text=line))

    try:
        snapshot = await workspaces.snapshot(
            job.run,
            job.workspace,
            previous=call.previous,
            first=call.first,
            files=FilesOfInterest(
                include=(*call.protect, *files),
                verify=tuple(f"{word}/**" for word in words if word not in files),
            ),
            progress=progress,
        )
        unseen = [one for one in snapshot.omitted if _may_be_protected(call.protect, one)]
        if unseen and not call.baseline:
            detail = f"cannot record {name_files(tuple(unseen), len(unseen))}"
            return EffectFailure(error=Failure(FAILED, f"{detail} (too large, or not readable)"))
        compared = _Compared(workspaces, job.run, snapshot.tree)
        carried, changed = await _compare_unrecorded(job.workspace, call)
        protected, caches = await _protected(compared, call, [*unseen, *changed])
        watched = await _watched(compared, call, words)
        outside = await asyncio.to_thread(
            outside_files, job.workspace, call.watch, snapshot.omitted
        )
    except LoopwrightError as error:
        hint = f"; {error.hint}" if error.hint else ""
        return EffectFailure(error=Failure(FAILED, f"{error.message}{hint}"))
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        return EffectFailure(error=Failure(FAILED, f"{what}{error.strerror or error}"))
    named = name_files(caches, len(caches))
    note = f"caches of Python are not counted as protected files: {named}" if caches else ""
    if call.protect and not call.baseline:
        note = await asyncio.to_thread(unmatched_note, Path(job.workspace), call.protect)
    before = {path: state for path, state in call.outside if not path.endswith(UNRECORDED)}
    watched += _changed_outside(before, outside)
    outside.update(carried)
    found = replace(_with_files(snapshot, protected, watched), outside=tuple(outside.items()))
    return EffectSuccess(snapshot=found, note=note)


async def _compare_unrecorded(
    workspace: str, call: SnapshotCall
) -> tuple[dict[str, str], list[str]]:
    """Protected files that no snapshot has: their states at the baseline, and those that differ."""
    if not call.protect:
        return {}, []
    now = await asyncio.to_thread(find_unrecorded, workspace, call.protect)
    if call.baseline:
        before = {
            path.removesuffix(UNRECORDED): state
            for path, state in call.outside
            if path.endswith(UNRECORDED) and not path.endswith(UNRECORDED * 2)
        }
        differing = sorted(
            one for one in {*before, *now} if before.get(one, _MISSING) != now.get(one, _MISSING)
        )[:MOST_UNRECORDED]
        # Beside the state at the baseline that of now, which a person may accept.
        carried = {f"{path}{UNRECORDED}": state for path, state in before.items()}
        carried |= {f"{path}{UNRECORDED * 2}": now.get(path, _MISSING) for path in differing}
        return carried, [one[:_LONGEST_NAME] for one in differing]
    hidden = tuple(path for path, state in now.items() if state == TOO_LONG)
    if hidden or len(now) > MOST_UNRECORDED:
        detail = f"cannot record {name_files(hidden or tuple(sorted(now)), 0)[:_LONGEST_NAME]}"
        why = TOO_LONG if hidden else "files of other repositories"
        raise LoopwrightError(f"{detail} ({why})", code="not-recorded")
    return {f"{path}{UNRECORDED}": state for path, state in now.items()}, []


def watched_words(workspace: Path, words: Iterable[str]) -> list[str]:
    """Arguments of commands as paths relative to the workspace; others are omitted."""
    found: dict[str, None] = {}
    root = str(workspace)
    for word in words:
        if not word or word.startswith("-") or "\0" in word or len(word) > 1_000:
            continue
        for place in _places(root, word):
            path = os.path.relpath(place, root)
            if path != "." and not path.startswith(".."):
                found[path] = None
    return list(found)


def outside_files(
    workspace: str, words: Iterable[str], omitted: Collection[str] = ()
) -> dict[str, str]:
    """Files that commands name and that no snapshot contains, each with its state: files outside of
    the workspace, where an agent may be able to write, and those that were left out. Those of the
    system do not count.
    """
    found: dict[str, str] = {}
    root = os.path.realpath(workspace)
    for word in words:
        if "\0" in word or word.startswith("-"):
            continue
        path = os.path.normpath(os.path.join(workspace, word))
        if _is_below(path, workspace, root):
            path = os.path.realpath(path)  # a link may lead out of the workspace
        if _is_below(path, *SYSTEM):
            continue
        name = os.path.relpath(path, root) if _is_below(path, root) else path
        if name != path and name not in omitted and ".git" not in name.split("/"):
            continue
        try:
            state = _state_of(path)
        except FileNotFoundError:
            state = "missing"
        except OSError:
            state = "unreadable"
        if state and len(found) < MOST_OUTSIDE:
            found[name] = state
    return found


def _state_of(path: str) -> str:
    """A value that changes with the file; empty if it is not a file. Large files are not read."""
    real = os.path.realpath(path, strict=True)
    info = os.stat(real)
    if not stat.S_ISREG(info.st_mode):
        return ""
    way = f"link {os.readlink(path)} " if os.path.islink(path) else ""
    if _is_below(real, *SYSTEM):
        return way
    if info.st_uid == os.geteuid() and not info.st_mode & stat.S_IRUSR:
        raise PermissionError(path)  # root could read it, but no program in a sandbox can
    if info.st_size > READ_BYTES:
        return f"{way}{info.st_size} bytes, {info.st_ino}, {info.st_ctime_ns}"
    with open(real, "rb") as file:
        digest = hashlib.sha256(file.read(READ_BYTES + 1)).hexdigest()
    return f"{way}{digest}{' x' if info.st_mode & stat.S_IXUSR else ''}"


def _is_below(path: str, *folders: str) -> bool:
    return any(path == one or path.startswith(f"{one}/") for one in folders)


def _changed_outside(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """As inside the workspace, no check depended on a new file."""
    known = {path: state for path, state in before.items() if state != "missing"}
    return [path for path, state in known.items() if now.get(path, "missing") != state]


def _places(root: str, word: str) -> list[str]:
    """Possible targets of an argument: a path, the target of a link there, or a Python module."""
    plain = os.path.join(root, word)
    places = [plain]
    if _MODULE.fullmatch(word):
        module = os.path.join(root, word.replace(".", "/"))
        files = (f"{module}.py", f"{module}/__init__.py", f"{module}/__main__.py")
        places += [one for one in files if os.path.isfile(one)]
    real_root = os.path.realpath(root)
    real = os.path.relpath(os.path.realpath(plain), real_root)
    return [*places, os.path.join(root, real)]


def _is_file(workspace: str, word: str) -> bool:
    """Whether an argument names a file, or a link to one; a folder is not stored for its name
    alone.
    """
    path = os.path.join(workspace, word)
    return os.path.lexists(path) and not os.path.isdir(path)


class _Compared:
    """What differs between other trees and this one; each is compared once."""

    def __init__(self, workspaces: Workspaces, run: str, tree: str) -> None:
        self._workspaces, self._run, self._tree = workspaces, run, tree
        self._known: dict[str, Sequence[FileChange]] = {tree: ()}

    async def since(self, tree: str) -> Sequence[FileChange]:
        if tree not in self._known:
            self._known[tree] = await self._workspaces.changes(self._run, tree, self._tree)
        return self._known[tree]


async def _protected(
    compared: _Compared, call: SnapshotCall, unseen: Sequence[str]
) -> tuple[list[str], tuple[str, ...]]:
    """The protected files that changed, and caches that changed among them and do not count."""
    if not call.protect or not call.baseline:
        return [], ()
    names = _names(await compared.since(call.baseline))
    matching = {one for one in names if matches_any(call.protect, one)}
    changed = {one for one in matching if is_protected(call.protect, one)}
    return sorted(changed.union(unseen)), tuple(sorted(matching - changed))


async def _watched(compared: _Compared, call: SnapshotCall, words: Sequence[str]) -> list[str]:
    """Files that a check names and that have changed. Files that the run itself has added are its
    work, and no check depended on them before.
    """
    if not words or not call.previous:
        return []
    names = _names(await compared.since(call.previous))
    found = {one for one in names if _is_named(words, one)}
    if not found:
        return []
    changed = await compared.since(call.first or call.previous)
    return sorted(found & _names([one for one in changed if one.status != "added"]))


def _names(changes: Sequence[FileChange]) -> set[str]:
    return {name for one in changes for name in (one.path, one.old_path) if name}


def _is_named(words: Sequence[str], path: str) -> bool:
    return any(path == word or path.startswith(f"{word}/") for word in words)


def _may_be_protected(patterns: Sequence[str], omitted: str) -> bool:
    """A folder that is not readable ends with a slash; the files in it may be protected."""
    is_folder = omitted.endswith("/")
    return may_match(patterns, omitted) if is_folder else is_protected(patterns, omitted)


def _with_files(snapshot: Snapshot, protected: list[str], watched: list[str]) -> Snapshot:
    if not protected and not watched:
        return snapshot
    return replace(
        snapshot,
        protected=tuple(protected[:NAMED]),
        protected_count=len(protected),
        watched=tuple(watched[:NAMED]),
    )
