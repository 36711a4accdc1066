"""What runs have used: a small table, written in the transaction of the events that it sums up."""

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from loopwright.errors import StorageError
from loopwright.kernel.facts import Usage
from loopwright.ports import Headline, UsageRow
from loopwright.stores import refusals

_ADD = """
    INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (run, agent, day) DO UPDATE SET
        calls = calls + excluded.calls,
        input_tokens = input_tokens + excluded.input_tokens,
        output_tokens = output_tokens + excluded.output_tokens,
        usd = round(usd + excluded.usd, 9),
        unpriced = unpriced + excluded.unpriced,
        cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens,
        cache_write_tokens = cache_write_tokens + excluded.cache_write_tokens
"""
SINCE = """
    SELECT r.name, u.agent, u.day, u.calls, u.input_tokens, u.output_tokens, u.usd, u.unpriced,
           u.cache_read_tokens, u.cache_write_tokens
    FROM usage u JOIN run r ON r.id = u.run WHERE u.day >= ? ORDER BY u.run, u.agent, u.day
"""
_SUM = """
    SELECT sum(u.input_tokens), sum(u.output_tokens), sum(u.usd), sum(u.unpriced),
           sum(u.cache_read_tokens), sum(u.cache_write_tokens)
    FROM usage u
"""
SUM = f"{_SUM} WHERE u.day >= ?"
SUM_OF_CALLER = f"{_SUM} JOIN run r ON r.id = u.run WHERE u.day >= ? AND r.name = ? AND u.agent = ?"
UNMETERED = "SELECT name FROM run WHERE metered = 0 ORDER BY id"


def add(db: sqlite3.Connection, run: int, rows: Sequence[UsageRow]) -> None:
    """Add to what is stored of a run."""
    for row in rows:
        used = row.usage
        values = (
            *(run, row.agent, row.day, row.calls),
            *(used.input_tokens, used.output_tokens, used.usd, used.unpriced),
            *(used.cache_read_tokens, used.cache_write_tokens),
        )
        db.execute(_ADD, values)


def put(
    db: sqlite3.Connection, name: str, version: int, headline: Headline, rows: Sequence[UsageRow]
) -> None:
    """Inside a transaction: store the usage of a run as its events say, up to `version`. A run
    that has moved on meanwhile stays as it is, to be added up again.
    """
    found = db.execute(
        "SELECT id, (SELECT max(last) FROM segment WHERE run = run.id) FROM run WHERE name = ?",
        (name,),
    ).fetchall()
    if not found:
        raise refusals.no_run(name)
    [(run, newest)] = found
    if newest != version:
        return
    db.execute("DELETE FROM usage WHERE run = ?", (run,))
    add(db, run, rows)
    labels = labels_text(headline.labels)
    db.execute(
        "UPDATE run SET metered = 1, labels = ?, surface = ?, revision = revision + 1 WHERE id = ?",
        (labels, headline.surface, run),
    )


def labels_text(labels: Sequence[str]) -> str:
    """Labels as a column has them."""
    return msgspec.json.encode(list(labels)).decode()


def labels_of(text: object) -> tuple[str, ...]:
    """The labels of a column."""
    try:
        return tuple(msgspec.json.decode(str(text), type=list[str]))
    except msgspec.MsgspecError as error:
        raise StorageError("the labels of a run are damaged", code="damaged") from error


def sum_of(columns: Sequence[Any]) -> Usage:
    """A row of sums; without any usage they are null."""
    read, written, usd, unpriced, cached, cache_written = (one or 0 for one in columns)
    return Usage(read, written, round(float(usd), 9), unpriced, cached, cache_written)


def row_of(columns: Sequence[Any]) -> UsageRow:
    """A row of the table."""
    run, agent, day, calls, read, written, usd, unpriced, cached, cache_written = columns
    return UsageRow(
        run=run,
        agent=agent,
        day=day,
        calls=calls,
        usage=Usage(read, written, usd, unpriced, cached, cache_written),
    )
