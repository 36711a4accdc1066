"""Who drives which run: taking and giving back, each for any number of runs at once."""

import sqlite3
from collections.abc import Sequence

from loopwright.ports import Liveness, Owner
from loopwright.stores import refusals
from loopwright.stores.edge import ids
from loopwright.stores.ledger import Ledger
from loopwright.stores.schema import STATUS_IS_OPEN

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
    """The owner out of its four columns."""
    pid, start, boot, token = columns
    if not (isinstance(pid, int) and isinstance(start, int)):
        return None
    return Owner(pid=pid, start=start, boot=str(boot), token=str(token))


def keepers(
    owners: dict[str, Owner | None], claimant: Owner, alive: Liveness
) -> dict[str, Owner | None]:
    """For each run the living owner that keeps it from the claimant, or None. Who has the token of
    an owner was handed its runs.
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


def claim(
    db: sqlite3.Connection, ledger: Ledger, runs: Sequence[str], owner: Owner, alive: Liveness
) -> dict[str, Owner | None]:
    """Inside a transaction: take what no living owner keeps; nobody keeps what has ended."""
    rows = db.execute(_OWNERS, (ids(runs),)).fetchall()
    found = {name: owner_of(columns) if is_open else None for name, is_open, *columns in rows}
    for run in runs:
        if run not in found:
            raise refusals.no_run(run)
    answer = keepers({run: found[run] for run in runs}, owner, alive)
    ours = [run for run, keeper in answer.items() if keeper is None]
    db.execute(_TAKE, (owner.pid, owner.start, owner.boot, owner.token, ids(ours)))
    ledger.killpoint("claim.written")
    _fence(ledger, ours, owner.token)
    return answer


def release(db: sqlite3.Connection, ledger: Ledger, runs: Sequence[str], owner: Owner) -> None:
    """Inside a transaction: give back what is ours among these."""
    db.execute(_GIVE, (owner.token, ids(runs)))
    ledger.killpoint("release.written")
    ours = [run for run in runs if run in ledger.known and ledger.known[run].token == owner.token]
    _fence(ledger, ours, None)


def _fence(ledger: Ledger, runs: Sequence[str], token: str | None) -> None:
    for run in runs:
        known = ledger.known.get(run)
        if known is not None:
            known.token = token
