"""The gateway: chat models of many providers behind the port `ModelClient`.

`client.Gateway` calls models, retries, fails over and enforces the deadlines; `models` has prices,
context windows and the endpoint of a `PROVIDER/NAME`. Only `library/` uses the client library. It
is imported in a thread when a model is first called: importing this package, and starting the
program, does not wait for it.

May import: ports, agents and below; only `operations` imports it. Start reading at `client.py`.
"""
