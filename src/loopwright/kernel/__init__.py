"""The kernel: a pure decider over facts. Facts fold into a state, the state decides new facts.

May import: model, errors. No clock, no disk, no net, no task, no dice: times arrive in facts, ids
are derived from paths. Start reading at `facts.py`, then `state.py` (fold), `decide.py` (settle).
Each action has its own module; `checks.py` asks checks, `limits.py` holds the stop rules.
"""
