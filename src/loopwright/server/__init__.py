"""The server: runs, gates and facts over HTTP. A door like `cli`, so every use case is in `app`.

What it serves is a table. A *family* (`families/*.py`) is a set of `Route`s that share a shape of
answers and errors; each names its method, path, role, body and answer. `dispatch.py` does the same
for all of them: Host and Origin, who asks, role, limits, repeated requests, JSON, errors. To add
routes, write a module with a `FAMILY` and name it in `families/__init__.py`; a handler gets an
`Asked` with the `Context` (service, access, feed, clock, settings) and returns a value or a
response. The description of the API and the matrix of roles are made from the table.

May import: app and what lies below it, never cli, which loads it by name since it is heavy.
Start reading at `routes.py`, then `dispatch.py`, `serving.py` (start, drain, stop), `feed.py`.
"""
