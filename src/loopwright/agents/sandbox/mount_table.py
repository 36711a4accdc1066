"""The mounts of this machine, as the kernel lists them."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
# File systems of the kernel. Where another one is mounted, as for containers, it stays hidden.
_KERNEL_TYPES = ("proc", "sysfs", "devtmpfs", "debugfs", "tracefs", "securityfs", "configfs", "bpf")
_OCTAL = re.compile(r"\\([0-7]{3})")


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder or in it."""
    return path == folder or path.startswith(f"{folder.rstrip(os.sep)}{os.sep}")


@dataclass(frozen=True, slots=True)
class MountPoint:
    """One line of the kernel's list of mounts."""

    device: str
    root: str  # what of its file system is mounted
    path: str
    kind: str


def read_mounts() -> Iterator[MountPoint]:
    try:
        text = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    for line in text.splitlines():
        words = line.split(" ")
        if "-" in words[6:]:
            root, path = (_OCTAL.sub(lambda m: chr(int(m[1], 8)), one) for one in words[3:5])
            yield MountPoint(words[2], root, path, words[words.index("-", 6) + 1])


def all_paths(path: str, mounts: tuple[MountPoint, ...]) -> list[str]:
    """Every path by which a folder can be reached: its own, and those through other mounts of the
    same file system.
    """
    real = os.path.realpath(path)
    return [real, *_mounted_elsewhere(real, mounts)]


def _mounted_elsewhere(real: str, mounts: tuple[MountPoint, ...]) -> Iterator[str]:
    around = [one for one in mounts if is_within(real, one.path)]
    if not around:
        return
    own = max(around, key=lambda one: len(one.path))
    inner = os.path.normpath(os.path.join(own.root, os.path.relpath(real, own.path)))
    for one in mounts:
        if one.device == own.device and one != own and is_within(inner, one.root):
            other = os.path.normpath(os.path.join(one.path, os.path.relpath(inner, one.root)))
            if other != real and os.path.exists(other):
                yield other


def other_kernel_mounts() -> list[str]:
    """Mounts of the kernel's own file systems at unusual places."""
    usual = ("/proc", "/sys", "/dev")
    return [
        one.path
        for one in tuple(read_mounts())
        if one.kind in _KERNEL_TYPES and not any(is_within(one.path, folder) for folder in usual)
    ]
