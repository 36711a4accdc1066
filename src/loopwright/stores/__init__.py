"""Stores: where facts are kept. Each store implements the port `EventLog`, by one contract suite.

`open_sqlite_log` is the real one: one file, one writer thread that commits everything that waits
at once, a hash chain over every run. `MemoryLog` behaves the same and keeps nothing.

May import: ports, kernel, model, errors. Named by `app` and `testing` alone. Start reading at
`sqlite.py`, then `writer.py` (the thread), `group.py` (one commit), `schema.py` (the tables).
"""

from loopwright.stores.faults import KILLPOINTS
from loopwright.stores.memory import MemoryLog, MemoryStore
from loopwright.stores.opening import open_sqlite_log, rebuild_heads
from loopwright.stores.place import Options
from loopwright.stores.sqlite import SqliteLog
from loopwright.stores.trackers import MemoryTrackers, SqliteTrackers

__all__ = [
    "KILLPOINTS",
    "MemoryLog",
    "MemoryStore",
    "MemoryTrackers",
    "Options",
    "SqliteLog",
    "SqliteTrackers",
    "open_sqlite_log",
    "rebuild_heads",
]
