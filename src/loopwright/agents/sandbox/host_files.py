"""What the view of a sandbox depends on: files of this machine, its mounts and listening sockets.

Each answer is remembered. The view of the next start is the same if every question still has the
same answer, which takes less time than making the view. A socket or a data directory that has
appeared since then changes an answer, so nothing stays visible that has to be hidden.
"""

import os
import re
import socket
import stat
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from glob import glob, has_magic
from pathlib import Path
from typing import TypeVar, cast

Answer = TypeVar("Answer")

MOUNTS = Path("/proc/self/mountinfo")
# File systems of the kernel. Where another one is mounted, as for containers, it stays hidden.
_KERNEL_TYPES = ("proc", "sysfs", "devtmpfs", "debugfs", "tracefs", "securityfs", "configfs", "bpf")
_OCTAL = re.compile(r"\\([0-7]{3})")
_ACCEPTS = 0x10000  # the flag of listening sockets in /proc/net/unix
_SETTLED_S = 3.0
_MOST_REMEMBERED = 64


class HostFiles:
    """Answers about the files of this machine. A question is asked once."""

    def __init__(self) -> None:
        self._answers: dict[tuple[Callable[..., object], tuple[str, ...]], object] = {}

    def ask(self, question: Callable[..., Answer], *about: str) -> Answer:
        """The answer to a question; it depends only on what the question reads."""
        key = (question, about)
        if key not in self._answers:
            self._answers[key] = question(*about)
        return cast("Answer", self._answers[key])

    def is_unchanged(self) -> bool:
        """Whether every question that was asked has the same answer now."""
        known = self._answers.items()
        return all(question(*about) == answer for (question, about), answer in known)

    def is_folder(self, path: str) -> bool:
        return self.ask(os.path.isdir, path)

    def exists(self, path: str) -> bool:
        return self.ask(os.path.exists, path)

    def real_path(self, path: str) -> str:
        return self.ask(_real_path, path)

    def can_write(self, path: str) -> bool:
        return self.ask(_can_write, path)

    def folders_in(self, path: str) -> tuple[str, ...]:
        """The folders in a folder, without links."""
        return self.ask(_folders_in, path)

    def find(self, patterns: Iterable[str]) -> Iterator[str]:
        """The paths that match patterns. A folder with many files is read once for all of them."""
        names: dict[str, list[str]] = {}
        for pattern in patterns:
            folder, name = os.path.split(pattern)
            if not has_magic(pattern):
                yield from [pattern] if self.ask(os.path.lexists, pattern) else []
            elif has_magic(folder):
                yield from self.ask(_find, pattern)
            else:
                names.setdefault(folder, []).append(name)
        for folder, wanted in names.items():
            yield from self.ask(_find_names, folder, *wanted)

    def mounts(self) -> tuple["MountPoint", ...]:
        return parse_mounts(self.ask(read_mount_table))

    def all_paths(self, path: str, mounts: tuple["MountPoint", ...]) -> list[str]:
        """Every path by which a folder can be reached: its own, and those through other mounts of
        the same file system.
        """
        real = self.real_path(path)
        return [real, *self._mounted_elsewhere(real, mounts)]

    def _mounted_elsewhere(self, real: str, mounts: tuple["MountPoint", ...]) -> Iterator[str]:
        around = [one for one in mounts if is_within(real, one.path)]
        if not around:
            return
        own = max(around, key=lambda one: len(one.path))
        inner = os.path.normpath(os.path.join(own.root, os.path.relpath(real, own.path)))
        for one in mounts:
            if one.device == own.device and one != own and is_within(inner, one.root):
                other = os.path.normpath(os.path.join(one.path, os.path.relpath(inner, one.root)))
                if other != real and self.exists(other):
                    yield other


class RememberedArguments:
    """Arguments that were made from answers about files, for as long as these do not change."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[object, HostFiles, tuple[str, ...]]] = {}

    def get(
        self, key: Hashable, subject: object, make: Callable[[HostFiles], Iterable[str]]
    ) -> tuple[str, ...]:
        """The arguments for a subject; only those of the last subject with a key are kept."""
        known = self._known.pop(key, None)
        if known is None or known[0] != subject or not known[1].is_unchanged():
            files = HostFiles()
            known = (subject, files, tuple(make(files)))
        while len(self._known) >= _MOST_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[key] = known
        return known[2]


# -- what is asked ---------------------------------------------------------------------------------


def _real_path(path: str) -> str:
    return os.path.realpath(path)


def _can_write(path: str) -> bool:
    return os.access(path, os.W_OK)


def _folders_in(path: str) -> tuple[str, ...]:
    with os.scandir(path) as entries:
        return tuple(one.path for one in entries if one.is_dir(follow_symlinks=False))


def _find(pattern: str) -> tuple[str, ...]:
    return tuple(sorted(glob(pattern)))


def _find_names(folder: str, *patterns: str) -> tuple[str, ...]:
    """The paths in a folder whose names match one of these patterns, as `glob` matches them."""
    try:
        names = os.listdir(folder)
    except OSError:
        return ()
    plain, hidden = _expressions(patterns)
    found = [one for one in names if (hidden if one.startswith(".") else plain).fullmatch(one)]
    return tuple(os.path.join(folder, one) for one in sorted(found))


@cache
def _expressions(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What matches the patterns, and what matches those for hidden files."""
    hidden = "|".join(translate(one) for one in patterns if one.startswith("."))
    return re.compile("|".join(map(translate, patterns))), re.compile(hidden or r"(?!)")


def listening_sockets() -> tuple[str, ...]:
    """The paths of Unix sockets on which some process of this network namespace accepts
    connections, or messages without any.
    """
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as table:
            lines = table.read().split("\n")
    except OSError:
        return ()
    rows = (line.split(maxsplit=7) for line in lines[1:])
    named = (row for row in rows if len(row) == 8 and row[7].startswith("/"))
    return tuple(
        row[7]
        for row in named
        if int(row[3], 16) & _ACCEPTS or int(row[4], 16) == socket.SOCK_DGRAM
    )


def usable_sockets() -> tuple[str, ...]:
    """Those of this user and of root that a program of this user could connect to, without links.
    One that has just been made is not among them: it may be gone when it is to be hidden.
    """
    newest = time.time() - _SETTLED_S
    found = dict.fromkeys(map(os.path.realpath, listening_sockets()))
    return tuple(path for path in found if _is_usable(path, newest))


def _is_usable(path: str, newest: float) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    is_own = stat.S_ISSOCK(found.st_mode) and found.st_uid in (0, os.getuid())
    return is_own and found.st_ctime < newest and os.access(path, os.W_OK)


def read_mount_table() -> str:
    """The kernel's list of mounts; empty where the system has none."""
    try:
        return MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


# -- paths and mounts ------------------------------------------------------------------------------


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder or in it."""
    return path == folder or path.startswith(f"{folder.rstrip(os.sep)}{os.sep}")


def is_within_any(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of these folders or in it."""
    return any(is_within(path, folder) for folder in folders)


@dataclass(frozen=True, slots=True)
class MountPoint:
    """One line of the kernel's list of mounts."""

    device: str
    root: str  # what of its file system is mounted
    path: str
    kind: str


def parse_mounts(table: str) -> tuple[MountPoint, ...]:
    """The lines of the kernel's list of mounts."""
    return tuple(_mount_points(table))


def _mount_points(table: str) -> Iterator[MountPoint]:
    for line in table.splitlines():
        words = line.split(" ")
        if "-" in words[6:]:
            root, path = (_OCTAL.sub(lambda m: chr(int(m[1], 8)), one) for one in words[3:5])
            yield MountPoint(words[2], root, path, words[words.index("-", 6) + 1])


def other_kernel_mounts(mounts: Iterable[MountPoint]) -> list[str]:
    """Mounts of the kernel's own file systems at unusual places."""
    usual = ("/proc", "/sys", "/dev")
    kernel = (one.path for one in mounts if one.kind in _KERNEL_TYPES)
    return [path for path in kernel if not is_within_any(path, usual)]
