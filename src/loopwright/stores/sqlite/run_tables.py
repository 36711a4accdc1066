"""Tables beside the events of runs: which process drives each run, and what runs have used.

Ownership is claimed and released for any number of runs at once. Usage is written in the
transaction of the events that it sums up.
"""

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from loopwright.errors import StorageError
from loopwright.kernel.event_parts import Usage
from loopwright.ports import Headline, Liveness, Owner, UsageRow
from loopwright.stores import append_validation
from loopwright.stores.append_validation import ids
from loopwright.stores.sqlite.connection import STATUS_IS_OPEN
from loopwright.stores.sqlite.write_connection import WriteConnection

_OWNERS = f"""
    SELECT name, {STATUS_IS_OPEN}, owner_pid, owner_start, owner_boot, owner_token FROM run
    WHERE name IN (SELECT value FROM json_each(?))
"""
_TAKE = """
    UPDATE run SET owner_pid = ?, owner_start = ?, owner_boot = ?, owner_token = ?
    WHERE name IN (SELECT value FROM json_each(?))
"""
_GIVE = """
    UPDATE run
    SET owner_pid = NULL, owner_start = NULL, owner_boot = NULL, owner_token = NULL
    WHERE owner_token = ? AND name IN (SELECT value FROM json_each(?))
"""


def owner_of(columns: Sequence[object]) -> Owner | None:
    """The owner from its four columns."""
    pid, start, boot, token = columns
    if not (isinstance(pid, int) and isinstance(start, int)):
        return None
    return Owner(pid=pid, start=start, boot=str(boot), token=str(token))


def living_owners(
    owners: dict[str, Owner | None], claimant: Owner, alive: Liveness
) -> dict[str, Owner | None]:
    """For each run the living owner that keeps it from the claimant, or None. A claimant with the
    token of an owner was handed its runs.
    """
    verdicts = {
        owner: owner.token != claimant.token and alive(owner)
        for owner in set(owners.values())
        if owner is not None
    }
    return {
        run: owner if owner is not None and verdicts[owner] else None
        for run, owner in owners.items()
    }


def claim_runs(
    db: sqlite3.Connection,
    ledger: WriteConnection,
    runs: Sequence[str],
    owner: Owner,
    alive: Liveness,
) -> dict[str, Owner | None]:
    """Inside a transaction: claim runs without a living owner; a run that has ended has no
    owner.
    """
    rows = db.execute(_OWNERS, (ids(runs),)).fetchall()
    found = {name: owner_of(columns) if is_open else None for name, is_open, *columns in rows}
    for run in runs:
        if run not in found:
            raise append_validation.no_run_error(run)
    answer = living_owners({run: found[run] for run in runs}, owner, alive)
    ours = [run for run, keeper in answer.items() if keeper is None]
    db.execute(_TAKE, (owner.pid, owner.start, owner.boot, owner.token, ids(ours)))
    ledger.killpoint("claim.written")
    _fence(ledger, ours, owner.token)
    return answer


def release_runs(
    db: sqlite3.Connection, ledger: WriteConnection, runs: Sequence[str], owner: Owner
) -> None:
    """Inside a transaction: release our own runs among these."""
    db.execute(_GIVE, (owner.token, ids(runs)))
    ledger.killpoint("release.written")
    ours = [run for run in runs if run in ledger.known and ledger.known[run].token == owner.token]
    _fence(ledger, ours, None)


def _fence(ledger: WriteConnection, runs: Sequence[str], token: str | None) -> None:
    for run in runs:
        known = ledger.known.get(run)
        if known is not None:
            known.token = token


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
USAGE_SINCE = """
    SELECT r.name, u.agent, u.day, u.calls, u.input_tokens, u.output_tokens, u.usd, u.unpriced,
           u.cache_read_tokens, u.cache_write_tokens
    FROM usage u JOIN run r ON r.id = u.run WHERE u.day >= ? ORDER BY u.run, u.agent, u.day
"""
_SUM = """
    SELECT sum(u.input_tokens), sum(u.output_tokens), sum(u.usd), sum(u.unpriced),
           sum(u.cache_read_tokens), sum(u.cache_write_tokens)
    FROM usage u
"""
USAGE_SUM = f"{_SUM} WHERE u.day >= ?"
CALLER_USAGE_SUM = (
    f"{_SUM} JOIN run r ON r.id = u.run WHERE u.day >= ? AND r.name = ? AND u.agent = ?"
)
UNMETERED_RUNS = "SELECT name FROM run WHERE metered = 0 ORDER BY id"


def add_usage(db: sqlite3.Connection, run: int, rows: Sequence[UsageRow]) -> None:
    """Add to the stored usage of a run."""
    for row in rows:
        used = row.usage
        values = (
            *(run, row.agent, row.day, row.calls),
            *(used.input_tokens, used.output_tokens, used.usd, used.unpriced),
            *(used.cache_read_tokens, used.cache_write_tokens),
        )
        db.execute(_ADD, values)


def put_usage(
    db: sqlite3.Connection, name: str, version: int, headline: Headline, rows: Sequence[UsageRow]
) -> None:
    """Inside a transaction: store the usage of a run according to its events, up to `version`. A
    run that has changed in the meantime is not updated and will be added up again.
    """
    found = db.execute(
        "SELECT id, (SELECT max(last) FROM segment WHERE run = run.id) FROM run WHERE name = ?",
        (name,),
    ).fetchall()
    if not found:
        raise append_validation.no_run_error(name)
    [(run, newest)] = found
    if newest != version:
        return
    db.execute("DELETE FROM usage WHERE run = ?", (run,))
    add_usage(db, run, rows)
    labels = labels_text(headline.labels)
    db.execute(
        "UPDATE run SET metered = 1, labels = ?, surface = ?, revision = revision + 1 WHERE id = ?",
        (labels, headline.surface, run),
    )


def labels_text(labels: Sequence[str]) -> str:
    """Labels in the format of the column."""
    return msgspec.json.encode(list(labels)).decode()


def labels_of(text: object) -> tuple[str, ...]:
    """The labels of a column."""
    try:
        return tuple(msgspec.json.decode(str(text), type=list[str]))
    except msgspec.MsgspecError as error:
        raise StorageError("the labels of a run are damaged", code="damaged") from error


def usage_sum_of(columns: Sequence[Any]) -> Usage:
    """A row of sums; without any usage they are null."""
    read, written, usd, unpriced, cached, cache_written = (one or 0 for one in columns)
    return Usage(read, written, round(float(usd), 9), unpriced, cached, cache_written)


def usage_row_of(columns: Sequence[Any]) -> UsageRow:
    """A row of the table."""
    run, agent, day, calls, read, written, usd, unpriced, cached, cache_written = columns
    return UsageRow(
        run=run,
        agent=agent,
        day=day,
        calls=calls,
        usage=Usage(read, written, usd, unpriced, cached, cache_written),
    )
