"""A database file: how connections are made, its tables and migrations, and its errors.

A migration step is one transaction: a crash in it leaves the version before it. Steps are only
ever added. Errors of SQLite become errors of the product that name the path and the fix.
Killpoints name the places at which tests provoke a crash.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from loopwright.errors import RESTORE_HINT, LoopwrightError, StorageError
from loopwright.ports import OPEN_STATUSES

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
"""Every name of a killpoint. A crash at any of them leaves the old or the new state."""


def ignore_killpoint(_point: str) -> None:
    """The killpoint that does nothing."""


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


def damaged_error(path: Path, finding: str) -> StorageError:
    """The file exists and cannot be trusted. It is never replaced by an empty one."""
    return StorageError(
        f"{path}: {finding}",
        code="damaged",
        hint=f"{LOOK_CLOSER}; {RESTORE_HINT}",
    )


def newer_schema_error(path: Path, found: int, known: int) -> StorageError:
    """The file belongs to a later version of the product."""
    return StorageError(
        f"{path} has schema {found}, this version knows {known}",
        code="newer-schema",
        hint="use the newer version of loopwright that wrote it",
    )


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection has the lock."""
    return _primary_code(error) == sqlite3.SQLITE_BUSY


def is_read_only(error: sqlite3.Error) -> bool:
    """Whether the file, or its folder, may only be read."""
    return _primary_code(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


def _primary_code(error: sqlite3.Error) -> int:
    # The lowest byte is the primary code. An error of the Python module itself has none.
    return (getattr(error, "sqlite_errorcode", None) or sqlite3.SQLITE_ERROR) & 0xFF


def as_storage_error(error: BaseException, path: Path) -> LoopwrightError:
    """Any failure of SQLite as an error that names the path and the fix."""
    if isinstance(error, LoopwrightError):
        return error
    if isinstance(error, sqlite3.Error):
        code = _primary_code(error)
        if code in _DAMAGE:
            return damaged_error(path, f"the database is damaged or no database ({error})")
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


APPLICATION = 0x4C6F6F70  # "Loop": distinguishes our files from any other SQLite database


class Migration(NamedTuple):
    """The statements that create `version` from the previous one."""

    version: int
    statements: tuple[str, ...]


# `segment` has a rowid on purpose: rows of one commit share pages whatever run they belong to. A
# table clustered by run wrote a page for every run of a group, three to six times slower at 200.
# The key of a `blob` is the hash of its body.
MIGRATIONS = (
    Migration(
        1,
        (
            "CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
            """CREATE TABLE run (
                id INTEGER PRIMARY KEY,
                name TEXT NOT NULL UNIQUE,
                title TEXT NOT NULL,
                status TEXT NOT NULL,
                reason TEXT NOT NULL,
                dialect TEXT NOT NULL,
                workspace TEXT NOT NULL,
                started_at INTEGER NOT NULL,
                updated_at INTEGER NOT NULL,
                finished_at INTEGER,
                wake_at INTEGER,
                key TEXT,
                owner_pid INTEGER,
                owner_start INTEGER,
                owner_boot TEXT,
                owner_token TEXT
            )""",
            "CREATE INDEX run_status ON run (status, id)",
            """CREATE UNIQUE INDEX run_open_key ON run (key)
                WHERE status IN ('running', 'paused', 'waiting') AND key IS NOT NULL""",
            """CREATE TABLE segment (
                run INTEGER NOT NULL,
                seq INTEGER NOT NULL,
                last INTEGER NOT NULL,
                body BLOB NOT NULL,
                chain BLOB NOT NULL,
                PRIMARY KEY (run, seq)
            )""",
            """CREATE TABLE gate (
                gate TEXT PRIMARY KEY,
                run INTEGER NOT NULL,
                path TEXT NOT NULL,
                digest TEXT NOT NULL,
                message TEXT NOT NULL,
                opened_at INTEGER NOT NULL
            )""",
            "CREATE INDEX gate_run ON gate (run)",
            "CREATE TABLE blob (hash TEXT PRIMARY KEY, body BLOB NOT NULL)",
        ),
    ),
    # Small records of a server beside the runs: people, tokens, stored definitions; and the audit
    # log.
    Migration(
        2,
        (
            """CREATE TABLE card (
                kind TEXT NOT NULL,
                key TEXT NOT NULL,
                version INTEGER NOT NULL,
                owner TEXT NOT NULL,
                due INTEGER,
                body BLOB NOT NULL,
                PRIMARY KEY (kind, key)
            ) WITHOUT ROWID""",
            "CREATE INDEX card_owner ON card (kind, owner, key)",
            "CREATE INDEX card_due ON card (kind, due) WHERE due IS NOT NULL",
            """CREATE TABLE audit (
                id INTEGER PRIMARY KEY,
                at INTEGER NOT NULL,
                who TEXT NOT NULL,
                via TEXT NOT NULL,
                action TEXT NOT NULL,
                subject TEXT NOT NULL,
                detail TEXT NOT NULL,
                request TEXT NOT NULL
            )""",
            "CREATE INDEX audit_subject ON audit (subject, id)",
        ),
    ),
    # Trackers: `item` has the newest version of each item, `item_before` the older ones. A
    # `receipt` records that the change under a key was made, and its answer.
    Migration(
        3,
        (
            "ALTER TABLE run ADD COLUMN session TEXT NOT NULL DEFAULT ''",
            "CREATE INDEX run_session ON run (session, id) WHERE session != ''",
            """CREATE TABLE item (
                number INTEGER PRIMARY KEY,
                scope TEXT NOT NULL,
                kind TEXT NOT NULL,
                id TEXT NOT NULL,
                version INTEGER NOT NULL,
                at INTEGER NOT NULL,
                body BLOB NOT NULL,
                UNIQUE (scope, kind, id)
            )""",
            """CREATE TABLE item_before (
                scope TEXT NOT NULL,
                kind TEXT NOT NULL,
                id TEXT NOT NULL,
                version INTEGER NOT NULL,
                at INTEGER NOT NULL,
                body BLOB NOT NULL,
                PRIMARY KEY (scope, kind, id, version)
            ) WITHOUT ROWID""",
            "CREATE TABLE receipt (key TEXT PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID",
        ),
    ),
    # The usage of runs, written with their events. An older run has `metered` 0 until its events
    # have been added up once.
    Migration(
        4,
        (
            "ALTER TABLE run ADD COLUMN labels TEXT NOT NULL DEFAULT '[]'",
            "ALTER TABLE run ADD COLUMN surface TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE run ADD COLUMN metered INTEGER NOT NULL DEFAULT 0",
            "CREATE INDEX run_unmetered ON run (id) WHERE metered = 0",
            """CREATE TABLE usage (
                run INTEGER NOT NULL,
                agent TEXT NOT NULL,
                day INTEGER NOT NULL,
                calls INTEGER NOT NULL,
                input_tokens INTEGER NOT NULL,
                output_tokens INTEGER NOT NULL,
                usd REAL NOT NULL,
                unpriced INTEGER NOT NULL,
                cache_read_tokens INTEGER NOT NULL,
                cache_write_tokens INTEGER NOT NULL,
                PRIMARY KEY (run, agent, day)
            ) WITHOUT ROWID""",
            "CREATE INDEX usage_day ON usage (day)",
        ),
    ),
    # Tamper evidence: `revision` counts the changes of what lists show of a run, `chain` is a hash
    # over a row of the audit log and all rows before it.
    Migration(
        5,
        (
            "ALTER TABLE run ADD COLUMN revision INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE audit ADD COLUMN chain BLOB",
        ),
    ),
    # What lists show, written with the events: the figures are in the row of the events that
    # changed them, because a change of the row of the run in each iteration takes much longer.
    # Closed gates stay, so that a late answer is refused with the decision. Older runs are folded
    # once (`metered` 0).
    Migration(
        6,
        (
            "ALTER TABLE segment ADD COLUMN figures TEXT",
            "ALTER TABLE run ADD COLUMN details TEXT",
            "ALTER TABLE gate ADD COLUMN subject TEXT",
            "ALTER TABLE gate ADD COLUMN closed_at INTEGER",
            "ALTER TABLE gate ADD COLUMN decision TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE gate ADD COLUMN decided_by TEXT NOT NULL DEFAULT ''",
            "DROP INDEX gate_run",
            "CREATE INDEX gate_open ON gate (run, opened_at) WHERE closed_at IS NULL",
            "UPDATE run SET metered = 0",
        ),
    ),
)

STATUS_IS_OPEN = "status IN ({})".format(", ".join(f"'{status}'" for status in OPEN_STATUSES))
"""The condition of the index on keys, word for word: SQLite uses the index only then."""


def schema_of(db: sqlite3.Connection) -> int:
    """The version of the tables; 0 for a database without any."""
    [[tables]] = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'meta'").fetchall()
    if not tables:
        return 0
    found = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchall()
    return int(found[0][0]) if found else 0


def migrate(db: sqlite3.Connection, steps: Sequence[Migration], killpoint: Killpoint) -> None:
    """Bring the tables to the newest version, one transaction for each step."""
    for step in steps:
        db.execute("BEGIN IMMEDIATE")
        killpoint("migrate.begin")
        # Read again under the lock: another process may have been faster.
        if schema_of(db) >= step.version:
            db.execute("ROLLBACK")
            continue
        for statement in step.statements:
            db.execute(statement)
            killpoint("migrate.statement")
        db.execute("INSERT OR REPLACE INTO meta VALUES ('schema', ?)", (step.version,))
        killpoint("migrate.written")
        db.execute("COMMIT")
        killpoint("migrate.done")


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
class DatabaseOptions:
    """Rarely used options. `connect` and `steps` are for tests of failures."""

    busy_seconds: float = 30.0
    connect: Connect = connect
    steps: tuple[Migration, ...] = MIGRATIONS
    heads: bool = True  # False: a copy that is only inspected, and gets no head file


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabasePlace:
    """The location of a log and its options."""

    path: Path
    durability: Durability = "full"
    killpoint: Killpoint = ignore_killpoint
    options: DatabaseOptions = field(default_factory=DatabaseOptions)

    @property
    def wal(self) -> Path:
        """The file with committed data that is not in the database itself yet."""
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
        """A connection that commits with the requested durability."""
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
