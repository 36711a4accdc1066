"""Views: what people and programs are shown of a run, folded from its facts. No view decides.

`wire.py` a fact as it travels, `summary.py` a run as one object. May import: everything below app.
"""
