"""The model: the plan of a loop as frozen records with closed unions.

May import: errors. Imported by every package above. No clock, disk, network or task. Start
reading at `plan.py`, then `actions.py` (Repeat is the one loop), `checks.py`, `policy.py`.
Dialects translate into these records and the kernel decides over them; nothing here executes.
"""
