"""Stores: where events are stored. Each store implements the port `EventLog`, and passes one
contract suite.

`open_sqlite_log` is the real one: one file, one writer thread that commits all waiting appends at
once, a hash chain over every run.

May import: ports, kernel, model, errors. Imported only by `operations` and `testing`. Start reading
at `sqlite/log.py`, then `sqlite/writer.py` (the thread) and `sqlite/connection.py` (the tables).
"""
