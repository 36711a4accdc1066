"""The kernel: a pure decider over facts. Facts fold into a state, the state decides new facts.

May import: model, errors. No clock, no disk, no net, no task, no dice: times arrive in facts, ids
are derived from paths. Start reading at `facts.py`, then `fold.py` and `answers.py` (what a fact
changes), `decide.py` (settle), `outcome.py` (how a body ends), `proceed.py` (what is asked next).
`checks.py` asks checks, `limits.py` holds the stop rules, `close.py` ends what is open.
"""
