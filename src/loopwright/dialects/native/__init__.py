"""The native language: the plan itself, written by people in YAML 1.2 or JSON.

`surface.py` (with `parts.py` and `fields.py`) is what may be written, `rules.py` and `names.py`
what must hold between its parts, `lower.py` the way to the plan and `export.py` the way back.

May import: syntax, model, errors. Start at `surface.py`, then `lower.py`.
"""

from loopwright.dialects.native.export import NotExpressible, export
from loopwright.dialects.native.lower import lower
from loopwright.dialects.native.surface import NAME, json_schema, recognise

__all__ = ["NAME", "NotExpressible", "export", "json_schema", "lower", "recognise"]
