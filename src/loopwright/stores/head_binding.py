"""Bind a database to its head file when it is opened.

Both carry one random identity. A database of an older version, or a copy made by `backup`, has
none: it gets a head file that records it as it is. Any other combination that does not fit is
refused, because an empty or shorter log must never be shown as if it were all there is.
"""

import fcntl
import os
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from loopwright.errors import StorageError
from loopwright.stores.chain import genesis
from loopwright.stores.head_checks import (
    ROWS_AFTER,
    Ask,
    compare_all,
    stored_head,
    table_of,
)
from loopwright.stores.heads import (
    HeadFile,
    HeadTable,
    head_record,
    identity_record,
    name_record,
    newest_position,
    read_identity,
    read_table,
    records_of,
    write_new,
)
from loopwright.stores.place import Place

_T = TypeVar("_T")
META = "heads"
POSITION = "heads_position"
_PUT_POSITION = """
    INSERT INTO meta VALUES (?, ?)
    ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)
"""
_BYTES = 16
_IDENTITY = f"SELECT value FROM meta WHERE key = '{META}'"
_NEWEST = "SELECT coalesce(max(rowid), 0) FROM segment"
REBUILD = (
    "put a backup of both files in their place; if you replaced them yourself, "
    "`loopwright doctor --rebuild-heads` records the database as it is now"
)


def refuse(path: Path, finding: str) -> StorageError:
    """A database and a head file that do not fit together."""
    return StorageError(f"{path}: {finding}", code="damaged", hint=REBUILD)


def prepare_new(place: Place) -> bytes:
    """Before a database is created: the identity that it will have. Refused where a head file has
    runs: their database is missing.
    """
    path = place.heads
    write_new(path, [identity_record(secrets.token_bytes(_BYTES))], replace=False)
    table = read_table(path)
    if table is None or not table.identity:
        raise refuse(path, "this file is not a list of heads")
    lost = sum(1 for key in table.heads if not table.is_forgotten(key))
    # Another process may have created the database meanwhile, and recorded its first runs.
    if lost and not place.path.exists():
        raise refuse(
            place.path, f"the database is missing, but {path.name} has the heads of {lost} runs"
        )
    return table.identity


def bind(place: Place, ask: Ask) -> bool:
    """See to it that database and head file belong together. Answers whether there is a head file:
    a directory that may not be written can be without one.
    """
    identity = stored_identity(ask)
    if identity is None:
        return _adopt(place)
    if not place.heads.exists():
        raise refuse(
            place.heads,
            "the head file of this database is missing, so nobody can tell whether events were "
            "removed",
        )
    if read_identity(place.heads) != identity:
        raise refuse(
            place.path, f"this is not the database that {place.heads.name} was written for"
        )
    _refuse_shortened(place, ask)
    return True


def _refuse_shortened(place: Place, ask: Ask) -> None:
    """The last records tell in most cases that the file goes as far as it once did."""
    found = ask("SELECT value FROM meta WHERE key = ?", POSITION)
    reached = found[0][0] if found and isinstance(found[0][0], int) else 0
    if newest_position(place.heads) >= reached:
        return
    table = read_table(place.heads)
    if table is None or table.position < reached:
        raise refuse(place.heads, "records were removed from the end of this file")


def stored_identity(ask: Ask) -> bytes | None:
    """The identity of a database; None for one that has none yet."""
    found = ask(_IDENTITY)
    try:
        return bytes.fromhex(found[0][0]) if found else None
    except (TypeError, ValueError):
        return b""


def store_identity(db: sqlite3.Connection, identity: bytes) -> None:
    """Inside a transaction: give a database an identity."""
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (META, identity.hex()))


def store_position(db: sqlite3.Connection, position: int) -> None:
    """Inside a transaction: how far the head file goes, durably."""
    db.execute(_PUT_POSITION, (POSITION, position))


def forget_identity(db: sqlite3.Connection) -> None:
    """Let a copy of a database have a head file of its own."""
    db.execute("DELETE FROM meta WHERE key IN (?, ?)", (META, POSITION))


def catch_up(place: Place, ask: Ask, heads: HeadFile) -> None:
    """Record the newest appends, if a process was killed before it recorded them."""
    position = newest_position(place.heads)
    [(newest,)] = ask(_NEWEST)
    if newest <= position:
        return
    for row in ask(ROWS_AFTER, position):
        run, head = stored_head(row)
        heads.append(name_record(genesis(run), run) + head_record(genesis(run), head))


def rebuild(place: Place) -> int:
    """Record the database as it is now, whatever was recorded before. Answers how many runs."""

    def write(db: sqlite3.Connection) -> int:
        _refuse_in_use(place)
        table = table_of(secrets.token_bytes(_BYTES), _ask(db))
        forget_identity(db)
        store_identity(db, table.identity)
        write_new(place.heads, records_of(table), replace=True, mode=_mode(place))
        return len(table.heads)

    return _write(place, write)


def _refuse_in_use(place: Place) -> None:
    """A process that has the file open would go on with the one that is replaced."""
    try:
        handle = os.open(place.heads, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StorageError(
            f"{place.heads}: another process writes to this data directory",
            code="busy",
            hint="stop the server and running commands, then try again",
        ) from error
    finally:
        os.close(handle)


def _adopt(place: Place) -> bool:
    def write(db: sqlite3.Connection) -> None:
        ask = _ask(db)
        if stored_identity(ask) is not None:
            return  # another process was faster
        table = read_table(place.heads)
        if table is not None and table.heads:
            _refuse_others(place, table, ask)
        elif table is None or not table.identity:
            table = table_of(secrets.token_bytes(_BYTES), ask)
            write_new(place.heads, records_of(table), replace=True, mode=_mode(place))
        else:
            table = table_of(table.identity, ask)
            write_new(place.heads, records_of(table), replace=True, mode=_mode(place))
        store_identity(db, table.identity)

    try:
        _write(place, write)
    except OSError:
        return False
    except sqlite3.OperationalError:
        return False
    return True


def _refuse_others(place: Place, table: HeadTable, ask: Ask) -> None:
    """A crash while a database got its head file leaves one that agrees with it."""
    if not table.identity or table.gaps or compare_all(table, ask):
        raise refuse(
            place.path, f"this is not the database that {place.heads.name} was written for"
        )


def _write(place: Place, work: Callable[[sqlite3.Connection], _T]) -> _T:
    with closing(place.open_writer()) as db:
        db.execute("BEGIN IMMEDIATE")
        answer = work(db)
        db.execute("COMMIT")
    return answer


def _ask(db: sqlite3.Connection) -> Ask:
    return lambda statement, *values: db.execute(statement, values).fetchall()


def _mode(place: Place) -> int:
    return os.stat(place.path).st_mode & 0o777
