"""The log in one SQLite file: `log` is the port `EventLog`, composed of `reader` and `writer`."""
