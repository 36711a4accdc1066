"""The tables, and the steps that lead from each version of them to the next.

A step is one transaction: a crash in it leaves the version before it. Steps are only ever added.
"""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from loopwright.ports import OPEN_STATUSES
from loopwright.stores.faults import Killpoint

APPLICATION = 0x4C6F6F70  # "Loop": tells our files from any other SQLite database


class Step(NamedTuple):
    """The statements that make `version` out of the one before it."""

    version: int
    statements: tuple[str, ...]


# `segment` has a rowid on purpose: rows of one commit share pages whatever run they belong to. A
# table clustered by run wrote a page for every run of a group, three to six times slower at 200.
# `gate` holds open gates only. The key of a `blob` is the hash of its body.
STEPS = (
    Step(
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
    # What a server keeps beside the runs: people, tokens, stored definitions; and who did what.
    Step(
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
    # Trackers: `item` has the newest version of each thing, `item_before` the older ones. A
    # `receipt` says that the change under a key was made, and what was answered.
    Step(
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
    # What runs have used, written with their events. A run from before has `metered` 0 until its
    # events have been added up once.
    Step(
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
    # over a row of the audit log and all before it.
    Step(
        5,
        (
            "ALTER TABLE run ADD COLUMN revision INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE audit ADD COLUMN chain BLOB",
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


def migrate(db: sqlite3.Connection, steps: Sequence[Step], killpoint: Killpoint) -> None:
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
