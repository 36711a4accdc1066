"""The languages people write loops in: text in, Plan or diagnostics out.

One package per dialect, each blind to the others and to the engine. A dialect resolves its own
defaults and placeholders, so that a Plan holds final values only. What two dialects share
belongs in `syntax` or `model`.

May import: syntax, model, errors. Named only by `operations/dialects.py`; start reading there.
"""
