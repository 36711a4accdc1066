"""The gateway: chat models of many providers behind the port `ModelClient`.

`client.Gateway` asks, tries again, fails over and keeps the deadlines; `catalogue.Catalogue` knows
prices and context windows; `specs` finds the endpoint of a `PROVIDER/NAME` in the environment.
Only `library/` knows the client library. It is loaded in a thread when a model is first asked:
importing this room, and starting the program, does not wait for it.

May import: ports, agents and below; is named by app alone. Start reading at `client.py`.
"""
