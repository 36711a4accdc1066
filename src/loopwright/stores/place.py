"""A database file and how connections to it are made."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from loopwright.errors import StorageError
from loopwright.stores.faults import Killpoint, nothing
from loopwright.stores.schema import STEPS, Step

Durability = Literal["full", "normal"]
Connect = Callable[[str, float], sqlite3.Connection]

_WAL_KEPT = 64 * 2**20
CACHE_KIB = 2048


def connect(uri: str, timeout: float) -> sqlite3.Connection:
    """A connection in autocommit mode that waits for locks and may be used by any thread."""
    return sqlite3.connect(
        uri, timeout=timeout, isolation_level=None, check_same_thread=False, uri=True
    )


def heads_beside(database: Path) -> Path:
    """The head file of a database."""
    return database.with_name(database.name + "-heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What hardly anyone changes. `connect` and `steps` are here for tests of failure."""

    busy_seconds: float = 30.0
    connect: Connect = connect
    steps: tuple[Step, ...] = STEPS
    heads: bool = True  # False: a copy that is only looked at, and gets no head file


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a log lives and how it is treated."""

    path: Path
    durability: Durability = "full"
    killpoint: Killpoint = nothing
    options: Options = field(default_factory=Options)

    @property
    def wal(self) -> Path:
        """The file that holds what is committed and not yet in the database itself."""
        return self.path.with_name(self.path.name + "-wal")

    @property
    def heads(self) -> Path:
        """The file that holds the newest hash of every run."""
        return heads_beside(self.path)

    @property
    def schema(self) -> int:
        """The newest schema known here."""
        return self.options.steps[-1].version

    def open(self, query: str) -> sqlite3.Connection:
        """A connection to the file, which must exist; `query` says how it is opened."""
        uri = f"{self.path.absolute().as_uri()}?{query}"
        return self.options.connect(uri, self.options.busy_seconds)

    def open_writer(self) -> sqlite3.Connection:
        """A connection that commits as durably as was asked for."""
        db = self.open("mode=rw")
        try:
            [[journal]] = db.execute("PRAGMA journal_mode=WAL").fetchall()
            if journal != "wal":
                raise StorageError(
                    f"{self.path}: this file system cannot hold the log (journal: {journal})",
                    code="unusable",
                    hint="put the data directory on a local disk",
                )
            db.execute(f"PRAGMA synchronous={self.durability.upper()}")
            db.execute(f"PRAGMA journal_size_limit={_WAL_KEPT}")
            db.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        except BaseException:
            db.close()
            raise
        return db
