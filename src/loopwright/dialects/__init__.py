"""The languages in which people write loops: a text becomes a plan or diagnostics.

One package for each dialect; it imports neither the others nor the engine. A dialect resolves its
own defaults and placeholders, so a plan has only final values. What two dialects share belongs in
`syntax` or `model`.

May import: syntax, model, errors. Named only by `operations/dialects.py`; start reading there.
"""
