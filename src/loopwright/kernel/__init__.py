"""The kernel: pure functions. Events fold into a state, and the state decides new events.

May import: model, errors. No clock, disk, network, task or randomness: times arrive in events,
and ids are derived from paths. Start reading at `events.py`, then `fold.py` (how an
event changes the state), `decide.py` (settle) and `bodies/` (how a body ends and what it
requests next). `checks.py` evaluates checks, `limits.py` has the stop rules, `effects.py`
opens and closes effects.
"""
