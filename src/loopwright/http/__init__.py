"""The HTTP server: routes, server-sent events and Socket.IO over the operations.

A *family* of routes is a table of `Route`s with method, path, role,
body and answer; `route_table` lists the families and makes the OpenAPI description from
them. `application` does the same for every request: origin, sign-in, role, limits, JSON,
errors. `server` starts, drains and stops.

May import: workers, operations and everything below. The command line loads it only to
serve. Start reading at `route_table.py`, then `application.py`.
"""
