"""Opening a log: create it, bring it up to date, or say clearly why it cannot be used."""

import os
import sqlite3
import tempfile
from contextlib import suppress
from pathlib import Path

from loopwright.errors import StorageError
from loopwright.ports import Liveness
from loopwright.stores.faults import (
    Killpoint,
    as_storage_error,
    damaged,
    newer,
    nothing,
)
from loopwright.stores.head_binding import bind, catch_up, prepare_new, rebuild, store_identity
from loopwright.stores.head_recorder import HeadRecorder
from loopwright.stores.heads import HeadFile
from loopwright.stores.place import Durability, Options, Place
from loopwright.stores.reader import Reader
from loopwright.stores.schema import APPLICATION, migrate
from loopwright.stores.sqlite import SqliteLog

_MAGIC = b"SQLite format 3\0"


def open_sqlite_log(
    path: Path | str,
    *,
    alive: Liveness,
    durability: Durability = "full",
    create: bool = True,
    killpoint: Killpoint = nothing,
    options: Options | None = None,
) -> SqliteLog:
    """Open the log in that file; its directory must exist. `alive` is asked from the writer's
    thread. A directory that may only be read gives a log that can only be read.
    """
    place = Place(
        path=Path(path), durability=durability, killpoint=killpoint, options=options or Options()
    )
    try:
        if not place.path.exists():
            _refuse_remains(place)
            if not create:
                raise StorageError(
                    f"{place.path} does not exist",
                    code="no-log",
                    hint="start a run first, or name another data directory",
                )
            _create(place)
        _refuse_foreign_file(place.path)
        reader = Reader(place)
    except (OSError, sqlite3.Error) as error:
        raise as_storage_error(error, place.path) from error
    try:
        _bring_up_to_date(place, reader)
        return SqliteLog(place, reader, alive, _heads(place, reader))
    except BaseException as error:
        reader.close()
        if isinstance(error, OSError | sqlite3.Error):
            raise as_storage_error(error, place.path) from error
        raise


def rebuild_heads(path: Path) -> int:
    """Record a database as it is now, whatever was recorded before; answers how many runs."""
    place = Place(path=path)
    try:
        _refuse_foreign_file(path)
        reader = Reader(place)
        try:
            _bring_up_to_date(place, reader)
        finally:
            reader.close()
        return rebuild(place)
    except (OSError, sqlite3.Error) as error:
        raise as_storage_error(error, path) from error


def _refuse_remains(place: Place) -> None:
    if not place.path.parent.is_dir():
        raise StorageError(
            f"{place.path.parent} is not a directory",
            code="unusable",
            hint="create it, or name another data directory",
        )
    for suffix in ("-wal", "-journal"):
        remains = place.path.with_name(place.path.name + suffix)
        if remains.exists() and remains.stat().st_size:
            raise damaged(remains, "the database that this belongs to is missing")


def _heads(place: Place, reader: Reader) -> HeadRecorder | None:
    """The head file of a database, and what was not recorded in it."""
    if not place.options.heads or not bind(place, reader.ask):
        return None
    reader.use_heads()
    heads = HeadFile(place.heads)
    with suppress(StorageError):  # what cannot be read is told to whoever reads it
        catch_up(place, reader.ask, heads)
    heads.close()
    return HeadRecorder(place)


def _create(place: Place) -> None:
    """Build a complete database beside the place, then put it there unless one has appeared: a
    crash leaves none or a whole one, and of many processes that start at once, one wins.
    """
    folder = place.path.parent
    place.killpoint("create.before")
    handle, name = tempfile.mkstemp(prefix=f".{place.path.name}.", suffix=".new", dir=folder)
    os.close(handle)
    new = Path(name)
    try:
        db = sqlite3.connect(new, isolation_level=None)
        try:
            db.execute("PRAGMA synchronous=OFF")  # synced once, below, before anyone sees it
            db.execute(f"PRAGMA application_id={APPLICATION}")
            migrate(db, place.options.steps, place.killpoint)
            store_identity(db, prepare_new(place))
            db.execute("PRAGMA journal_mode=WAL")
        finally:
            db.close()
        _sync(new)
        place.killpoint("create.filled")
        os.link(new, place.path)
    except FileExistsError:
        return
    finally:
        new.unlink(missing_ok=True)
    place.killpoint("create.linked")
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _refuse_foreign_file(path: Path) -> None:
    if path.is_dir():
        raise damaged(path, "is a directory")
    with path.open("rb") as file:
        head = file.read(len(_MAGIC))
    if not head:
        raise damaged(path, "the file is empty")
    if head != _MAGIC:
        raise damaged(path, "the file is no database")


def _bring_up_to_date(place: Place, reader: Reader) -> None:
    """Refuse what is not ours or newer, migrate what is older."""
    application, schema = reader.identity()
    if application != APPLICATION or not schema:
        raise damaged(place.path, "this database is not a log of loopwright")
    if schema > place.schema:
        raise newer(place.path, schema, place.schema)
    if schema < place.schema:
        writer = place.open_writer()
        try:
            migrate(writer, place.options.steps, place.killpoint)
        finally:
            writer.close()
