"""The native language: the plan itself, written by people in YAML 1.2 or JSON.

`surface.py` (with `parts.py` and `fields.py`) defines the keys, `rules.py` and `references.py` the
rules between the parts, `lower.py` translates to the plan and `export.py` back.

May import: syntax, model, errors. Start at `surface.py`, then `lower.py`.
"""

from loopwright.dialects.native.export import NotExpressible, export
from loopwright.dialects.native.lower import lower
from loopwright.dialects.native.surface import NAME, json_schema, recognise

__all__ = ["NAME", "NotExpressible", "export", "json_schema", "lower", "recognise"]
