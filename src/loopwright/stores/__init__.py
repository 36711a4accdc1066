"""Stores: where facts are kept. Each store implements the port `EventLog`, by one contract suite.

`open_sqlite_log` is the real one: one file, one writer thread that commits everything that waits
at once, a hash chain over every run. `MemoryLog` behaves the same and keeps nothing.

May import: ports, kernel, model, errors. Named by `app` and `testing` alone. Start reading at
`sqlite.py`, then `writer.py` (the thread), `group.py` (one commit), `schema.py` (the tables).
"""
