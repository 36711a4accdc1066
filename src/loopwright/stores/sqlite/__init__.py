"""The log in one SQLite file: `log` is the port `EventLog`, put together from `reader` and
`writer`.
"""
