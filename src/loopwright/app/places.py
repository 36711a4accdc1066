"""Places for data: what kind of disk a folder is on, whose it is, and why it cannot be used."""

import errno
import os
import pwd
import re
from pathlib import Path

from loopwright.errors import StorageError

MOUNTS = Path("/proc/self/mountinfo")
# On these two machines may write at a time, each without seeing the locks of the other.
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "fuse.sshfs", "fuse.davfs2", "fuse.rclone")
ELSEWHERE = "name another data directory with --data-dir or LOOPWRIGHT_HOME"
LOCAL = "name a data directory on a local disk with --data-dir or LOOPWRIGHT_HOME"
_ESCAPE = re.compile(r"\\([0-7]{3})")


def nearest(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def disk_kind(folder: Path) -> str:
    """The kind of file system that a folder is on, or would be; empty where nobody can tell."""
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    where, longest, kind = nearest(folder).resolve(), -1, ""
    for line in mounts:
        left, dash, right = line.partition(" - ")
        if not dash:
            continue
        mounted = Path(_ESCAPE.sub(lambda code: chr(int(code[1], 8)), left.split(" ")[4]))
        if len(mounted.parts) >= longest and where.is_relative_to(mounted):
            longest, kind = len(mounted.parts), right.split(" ")[0]
    return kind


def refuse_remote(folder: Path) -> None:
    """StorageError for a folder on a disk of another machine."""
    kind = disk_kind(folder)
    if kind in REMOTE:
        raise StorageError(
            f"{folder} is on a disk of another machine ({kind}), where two writers cannot see each "
            "other's locks",
            code="remote-disk",
            hint=LOCAL,
        )


def unusable(folder: Path, error: OSError) -> StorageError:
    """Why a folder cannot be written, in words that name the cure."""
    if error.errno == errno.ENOSPC:
        return StorageError(
            f"{folder} cannot be used: no space is left on its disk",
            code="full",
            hint="free some space, then start again; nothing acknowledged was lost",
        )
    if error.errno == errno.EROFS:
        return StorageError(
            f"{folder} cannot be used: it is on a disk that can only be read",
            code="read-only",
            hint=f"mount it so that it can be written, or {ELSEWHERE}",
        )
    owner = owned_by(folder)
    if error.errno in (errno.EACCES, errno.EPERM) and owner:
        return StorageError(
            f"{folder} cannot be used: it belongs to {owner}",
            code="foreign",
            hint=f"work as {owner}, or {ELSEWHERE}",
        )
    why = (error.strerror or str(error)).lower()
    return StorageError(f"{folder} cannot be used: {why}", code="unusable", hint=ELSEWHERE)


def owned_by(folder: Path) -> str:
    """Who else a folder belongs to; empty when it is ours."""
    try:
        owner = nearest(folder).stat().st_uid
    except OSError:
        return ""
    if owner == os.geteuid():
        return ""
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return f"user {owner}"
