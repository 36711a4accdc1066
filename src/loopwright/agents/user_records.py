"""Records that all data directories of a user share, in a folder that no agent sees: where the data
directories are, and when programs of runs worked in which folder.

The second shows whether an agent may have written a file: the kernel's time of change of the file,
of its folder, or of a link on the way to it, is in a period in which a program or a file tool of a
run worked there. An agent can set neither that time nor the clock.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright.agents.processes.supervise import read_entry

DATABASE = "loopwright.db"
_DIRECTORIES, _WORK, _KNOWN = "data-directories.json", "agent-work", "known-files.json"
_MOST_LINKS = 40  # on the way to a file, as reported by the kernel
_MOST_KNOWN = 5_000
_MOST_SPANS = 2_000
_JOINED_NS = 1_000_000_000  # two spans with less between them are one
_CLOCK_NS = 10_000_000  # the clock of file systems lags by some milliseconds


@dataclass(frozen=True, slots=True)
class _Work:
    """A program of a run that works in a folder now."""

    file: Path
    token: str


class UserRecords:
    """The records in a folder. If they cannot be written or read there are none: the folder is
    hidden from programs of runs, which call Loopwright too.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    # -- data directories ----------------------------------------------------------------------

    def add_data_directory(self, folder: Path) -> None:
        """Record a data directory, so that agents of other ones do not see it."""
        path = os.path.realpath(folder)
        if path in _paths(self._folder / _DIRECTORIES):
            return
        with contextlib.suppress(OSError, ValueError), self._locked(_DIRECTORIES) as file:
            # One that is forgotten while it exists would be visible to agents from then on.
            found = [one for one in _paths(file) if one != path and not _is_gone(one)]
            _write(file, {"paths": [*found, path]})

    def data_directories(self) -> list[str]:
        """The recorded directories that still are data directories."""
        return [one for one in _paths(self._folder / _DIRECTORIES) if _is_data_directory(one)]

    # -- work of agents ------------------------------------------------------------------------

    def _begin(self, workspace: str) -> _Work | None:
        real = os.path.realpath(workspace)
        name = hashlib.sha256(os.fsencode(real)).hexdigest()[:32]
        entry = read_entry(os.getpid())
        work = _Work(self._folder / _WORK / f"{name}.json", os.urandom(8).hex())
        with contextlib.suppress(OSError, ValueError), self._locked(f"{_WORK}/{name}.json") as file:
            state = _read(file)
            state["workspace"] = real
            started = entry.start if entry is not None else 0
            state.setdefault("open", {})[work.token] = [_now(), os.getpid(), started]
            _write(file, state)
            return work
        return None

    def _end(self, work: _Work | None) -> None:
        if work is None:
            return
        with contextlib.suppress(OSError, ValueError), self._locked(f"{_WORK}/{work.file.name}"):
            state = _read(work.file)
            found = state.get("open", {}).pop(work.token, None)
            if found is not None:
                state["spans"] = _joined([*state.get("spans", []), [found[0], _now()]])
                _write(work.file, state)

    @contextlib.contextmanager
    def working(self, workspace: str) -> Iterator[None]:
        """Record that files of agents are written in a folder, by a program or by Loopwright."""
        work = self._begin(workspace)
        try:
            yield
        finally:
            self._end(work)

    def find_agent_work(self, file: Path) -> str | None:
        """The workspace in which an agent worked when a file was last changed, or None. A file
        above a workspace counts too: the settings of a workspace are looked up there. So does every
        link on the way to the file, wherever it is.
        """
        entries = list(entries_on_the_way(file))
        for workspace, spans in self._all_work():
            around = Path(workspace)
            if not any(_is_near(one, around) for one in entries):
                continue
            if any(_came_in(one, around, spans) for one in entries):
                return workspace
        return None

    def _all_work(self) -> Iterator[tuple[str, list[list[int]]]]:
        with contextlib.suppress(OSError):
            for file in sorted((self._folder / _WORK).glob("*.json")):
                state = _read(file)
                running = [[one[0], _now()] for one in state.get("open", {}).values()]
                yield str(state.get("workspace", "")), [*state.get("spans", []), *running]
                if any(not _is_running(one) for one in state.get("open", {}).values()):
                    self._close_lost(file)

    def _close_lost(self, file: Path) -> None:
        """End the records of processes that ended without doing so."""
        with contextlib.suppress(OSError, ValueError), self._locked(f"{_WORK}/{file.name}"):
            state = _read(file)
            lost = {token: one for token, one in state["open"].items() if not _is_running(one)}
            state["open"] = {
                token: one for token, one in state["open"].items() if token not in lost
            }
            ended = [[one[0], _now()] for one in lost.values()]
            state["spans"] = _joined([*state.get("spans", []), *ended])
            _write(file, state)

    # -- files that a person has used or accepted ----------------------------------------------

    def is_known(self, name: str, contents: bytes) -> bool:
        """Whether a file had these contents when it was accepted."""
        return bool(_read(self._folder / _KNOWN).get(name) == _digest(contents))

    def remember(self, name: str, contents: bytes) -> None:
        """Accept a file with these contents from now on, whichever agent works in its folder."""
        with contextlib.suppress(OSError, ValueError), self._locked(_KNOWN) as file:
            known = _read(file)
            known.pop(name, None)
            known[name] = _digest(contents)
            _write(file, dict(list(known.items())[-_MOST_KNOWN:]))

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[Path]:
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(handle)


def _paths(file: Path) -> list[str]:
    return [one for one in _read(file).get("paths", []) if isinstance(one, str)]


def _is_data_directory(path: str) -> bool:
    return os.path.isfile(os.path.join(path, DATABASE))


def _is_gone(path: str) -> bool:
    """Whether a folder does not exist any more; one that cannot be read still does."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def entries_on_the_way(file: Path) -> Iterator[Path]:
    """Every link that leads to a file, in the order in which the kernel follows them, and the file
    itself. The folders around each of them are real ones.
    """
    todo = list(reversed(os.path.abspath(file).split(os.sep)))
    found, links = Path(os.sep), 0
    while todo:
        part = todo.pop()
        if part in ("", os.curdir):
            continue
        if part == os.pardir:
            found = found.parent
            continue
        target = _read_link(found / part)
        if target is None:
            found /= part
            continue
        yield found / part
        links += 1
        if links > _MOST_LINKS:
            return
        found = Path(os.sep) if os.path.isabs(target) else found
        todo += reversed(target.split(os.sep))
    yield found


def _read_link(path: Path) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _is_near(entry: Path, workspace: Path) -> bool:
    """Whether an entry is in a workspace, or in a folder above it."""
    return entry.is_relative_to(workspace) or workspace.is_relative_to(entry.parent)


def _came_in(entry: Path, workspace: Path, spans: list[list[int]]) -> bool:
    """Whether a file or link was last changed in one of these periods."""
    own = list(_change_times(entry))
    folders = list(_folder_times(entry, workspace))
    for start, end in spans:
        # An older file may have come with a folder that was moved; a newer one has not.
        times = own if max(own, default=0) > end else [*own, *folders]
        if any(start - _CLOCK_NS <= one <= end for one in times):
            return True
    return False


def _change_times(entry: Path) -> Iterator[int]:
    """When a file, folder or link was made, changed, renamed or linked."""
    with contextlib.suppress(OSError):
        yield os.lstat(entry).st_ctime_ns


def _folder_times(entry: Path, workspace: Path) -> Iterator[int]:
    """When the folders between a workspace and a file changed: they may have been moved there."""
    if not entry.is_relative_to(workspace):
        return
    for folder in entry.parents:
        if folder == workspace:
            return
        yield from _change_times(folder)


def _is_running(one: list[int]) -> bool:
    entry = read_entry(int(one[1]))
    return entry is not None and (not one[2] or entry.start == one[2])


def _joined(spans: list[list[int]]) -> list[list[int]]:
    found: list[list[int]] = []
    for start, end in sorted(spans):
        if found and start - found[-1][1] < _JOINED_NS:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return found[-_MOST_SPANS:]


def _now() -> int:
    return time.time_ns()


def _digest(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


def _read(file: Path) -> dict[str, Any]:
    """The object in a file; empty if there is none."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(file: Path, value: object) -> None:
    new = file.with_suffix(f".{os.getpid()}.new")
    new.write_text(json.dumps(value), encoding="utf-8")
    new.replace(file)
