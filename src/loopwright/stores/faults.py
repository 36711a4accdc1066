"""What can go wrong below a store, in the product's words, and where a crash may be provoked."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

from loopwright.errors import RESTORE_HINT, LoopwrightError, StorageError

Killpoint = Callable[[str], None]

KILLPOINTS = (
    "begin.before",
    "begin.after",
    "rows.written",
    "blobs.written",
    "segments.written",
    "commit.before",
    "commit.after",
    "heads.written",
    "deliver.before",
    "claim.written",
    "release.written",
    "forget.rows",
    "forget.blobs",
    "create.before",
    "create.filled",
    "create.linked",
    "migrate.begin",
    "migrate.statement",
    "migrate.written",
    "migrate.done",
)
"""Every name a killpoint is called with. A crash at any of them leaves the old or the new state."""


def nothing(_point: str) -> None:
    """The killpoint of every day."""


_ADVICE = {
    sqlite3.SQLITE_FULL: (
        "full",
        "no space is left",
        "free some space or raise the quota, then resume; nothing acknowledged was lost",
    ),
    sqlite3.SQLITE_BUSY: (
        "busy",
        "another process keeps the database locked",
        "end the process that holds it, then try again",
    ),
    sqlite3.SQLITE_READONLY: (
        "read-only",
        "the database cannot be written",
        "check owner and permissions of the data directory",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "unusable",
        "the database cannot be opened",
        "check that the data directory exists and may be read and written",
    ),
    sqlite3.SQLITE_IOERR: (
        "io",
        "reading or writing the disk failed",
        "check the disk; resume when it is well again",
    ),
}
_ADVICE[sqlite3.SQLITE_LOCKED] = _ADVICE[sqlite3.SQLITE_BUSY]
_ADVICE[sqlite3.SQLITE_PERM] = _ADVICE[sqlite3.SQLITE_READONLY]
LOOK_CLOSER = "`loopwright doctor` looks closer"
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def damaged(path: Path, finding: str) -> StorageError:
    """The file is there and cannot be trusted. It is never replaced by an empty one."""
    return StorageError(
        f"{path}: {finding}",
        code="damaged",
        hint=f"{LOOK_CLOSER}; {RESTORE_HINT}",
    )


def newer(path: Path, found: int, known: int) -> StorageError:
    """The file belongs to a later version of the product."""
    return StorageError(
        f"{path} has schema {found}, this version knows {known}",
        code="newer-schema",
        hint="use the newer version of loopwright that wrote it",
    )


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else has the lock."""
    return _primary_code(error) == sqlite3.SQLITE_BUSY


def _primary_code(error: sqlite3.Error) -> int:
    # The lowest byte is the primary code. An error of the Python module itself has none.
    return (getattr(error, "sqlite_errorcode", None) or sqlite3.SQLITE_ERROR) & 0xFF


def as_storage_error(error: BaseException, path: Path) -> LoopwrightError:
    """Any failure below as an error that names the path and the fix."""
    if isinstance(error, LoopwrightError):
        return error
    if isinstance(error, sqlite3.Error):
        code = _primary_code(error)
        if code in _DAMAGE:
            return damaged(path, f"the database is damaged or no database ({error})")
        if code in _ADVICE:
            slug, finding, hint = _ADVICE[code]
            return StorageError(f"{path}: {finding} ({error})", code=slug, hint=hint)
    if isinstance(error, OSError):
        return StorageError(
            f"{path}: {error.strerror or error}",
            code="unusable",
            hint="check that the data directory exists, is yours and has space left",
        )
    return StorageError(f"{path}: {type(error).__name__}: {error}")
