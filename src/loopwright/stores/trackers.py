"""Trackers in the database of the log.

A change and its receipt are one transaction, in order with the appends of the log.
"""

import sqlite3
from collections.abc import Callable, Sequence

import msgspec

from loopwright.errors import LoopwrightError
from loopwright.model.trackers import Item, ItemText, Kind, TrackerChange, Values
from loopwright.ports import AuditRow
from loopwright.stores.sqlite import tables
from loopwright.stores.sqlite.log import SqliteLog

_FIELDS = "scope, kind, id, version, at, body"
_ONE = f"SELECT {_FIELDS} FROM item WHERE scope = ? AND kind = ? AND id = ?"
_ALL = f"SELECT {_FIELDS} FROM item WHERE scope = ? AND kind = ? ORDER BY number"
_BEFORE = f"""
    SELECT {_FIELDS} FROM item_before WHERE scope = ? AND kind = ? AND id = ? ORDER BY version
"""
_KEEP = f"""
    INSERT INTO item_before SELECT {_FIELDS} FROM item WHERE scope = ? AND kind = ? AND id = ?
"""
_PUT = """
    INSERT INTO item (scope, kind, id, version, at, body) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (scope, kind, id)
    DO UPDATE SET version = excluded.version, at = excluded.at, body = excluded.body
"""
_VERSIONS = "SELECT id, version FROM item WHERE scope = ? AND kind = ?"
_HAVING = " UNION ALL ".join(
    f"""
    SELECT * FROM (
        SELECT scope, id, at, json_extract(CAST(body AS TEXT), '$.' || ?2) AS found FROM {table}
        WHERE kind = ?1
    ) WHERE typeof(found) = 'text'
    """
    for table in ("item_before", "item")
)
FEW = 20  # fewer are written one by one
_RECEIPT = "SELECT answer FROM receipt WHERE key = ?"
_DECODER = msgspec.json.Decoder(Values)
Row = tuple[str, Kind, str, int, int, bytes]
Place = tuple[str, Kind, str]


def _item(row: Row) -> Item:
    scope, kind, name, version, at, body = row
    values = _DECODER.decode(body)
    return Item(scope=scope, kind=kind, id=name, version=version, at=at, values=values)


class _Page:
    """The trackers inside one transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def get(self, scope: str, kind: Kind, item: str) -> Item | None:
        rows = self._db.execute(_ONE, (scope, kind, item)).fetchall()
        return _item(rows[0]) if rows else None

    def all(self, scope: str, kind: Kind) -> list[Item]:
        return [_item(row) for row in self._db.execute(_ALL, (scope, kind)).fetchall()]

    def put(self, item: Item) -> None:
        place = (item.scope, item.kind, item.id)
        known = self.get(*place)
        if known is not None:
            self._db.execute(_KEEP, place)
        version = known.version + 1 if known is not None else 1
        body = msgspec.json.encode(item.values)
        self._db.execute(_PUT, (*place, version, item.at, body))

    def put_all(self, items: Sequence[Item]) -> None:
        batch: dict[Place, Item] = {}
        for item in items:
            place = (item.scope, item.kind, item.id)
            if place in batch:
                self._put_several(batch)
                batch = {}
            batch[place] = item
        self._put_several(batch)

    def _put_several(self, items: dict[Place, Item]) -> None:
        """Each once: so one query is enough to know their versions."""
        if len(items) < FEW:
            for item in items.values():
                self.put(item)
            return
        known: dict[Place, int] = {}
        for scope, kind in dict.fromkeys((scope, kind) for scope, kind, _ in items):
            for name, version in self._db.execute(_VERSIONS, (scope, kind)):
                known[scope, kind, name] = version
        self._db.executemany(_KEEP, [place for place in items if place in known])
        self._db.executemany(
            _PUT,
            (
                (*place, known.get(place, 0) + 1, item.at, msgspec.json.encode(item.values))
                for place, item in items.items()
            ),
        )

    def having(self, kind: Kind, name: str) -> list[ItemText]:
        return [ItemText(*row) for row in self._db.execute(_HAVING, (kind, name)).fetchall()]

    def drop(self, scope: str, kind: Kind, item: str) -> None:
        for table in ("item", "item_before"):
            statement = f"DELETE FROM {table} WHERE scope = ? AND kind = ? AND id = ?"
            self._db.execute(statement, (scope, kind, item))


class _Refused(LoopwrightError):
    """An exception of the change itself, on its way out of the transaction."""

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why


def _answer(work: Callable[[TrackerChange], str], page: _Page) -> str:
    try:
        return work(page)
    except sqlite3.Error:
        raise
    except Exception as why:
        raise _Refused(why) from why


def _once(
    key: str, work: Callable[[TrackerChange], str], audit: Sequence[AuditRow]
) -> Callable[[sqlite3.Connection], str]:
    tables.check_write((), audit)

    def once(db: sqlite3.Connection) -> str:
        known = db.execute(_RECEIPT, (key,)).fetchall()
        if known:
            return str(known[0][0])
        answer = _answer(work, _Page(db))
        db.execute("INSERT INTO receipt VALUES (?, ?)", (key, answer))
        tables.insert_audit(db, audit)
        return answer

    return once


class SqliteTrackers:
    """Trackers in the database of the log. Use them as the log, from one event loop. A change by a
    person has its audit rows in the same transaction.
    """

    def __init__(self, log: SqliteLog) -> None:
        self._log = log

    def change(
        self, key: str, work: Callable[[TrackerChange], str], audit: Sequence[AuditRow] = ()
    ) -> str:
        try:
            return self._log.transact(_once(key, work, audit))
        except _Refused as refused:
            raise refused.why from None

    async def change_aside(
        self, key: str, work: Callable[[TrackerChange], str], audit: Sequence[AuditRow] = ()
    ) -> str:
        try:
            return await self._log.transact_aside(_once(key, work, audit))
        except _Refused as refused:
            raise refused.why from None

    def get(self, scope: str, kind: Kind, item: str) -> Item | None:
        rows = self._log.query(_ONE, scope, kind, item)
        return _item(rows[0]) if rows else None

    def all(self, scope: str, kind: Kind) -> list[Item]:
        return [_item(row) for row in self._log.query(_ALL, scope, kind)]

    def versions(self, scope: str, kind: Kind, item: str) -> list[Item]:
        newest = self.get(scope, kind, item)
        older = [_item(row) for row in self._log.query(_BEFORE, scope, kind, item)]
        return [*older, newest] if newest is not None else []

    def having(self, kind: Kind, name: str) -> list[ItemText]:
        return [ItemText(*row) for row in self._log.query(_HAVING, kind, name)]
