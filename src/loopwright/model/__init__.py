"""The model: what a loop *is*, as frozen records with closed unions.

May import: errors. Imported by everyone above. No clock, no disk, no net, no task.
Start reading at `plan.py`, then `actions.py` (Repeat is the one loop), `checks.py`, `policy.py`.
Dialects translate into these records; the kernel decides over them; nothing here executes.
"""
