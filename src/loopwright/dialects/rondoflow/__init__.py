"""RondoFlow: an assistant document whose loop settings make one assistant try again and again.

`surface.py` is the document, `patterns.py` its regular expressions, `lower.py` the way to the
plan. `events.py` renders what happened in the words of this dialect, for its own door.

May import: syntax, model, errors. Start at `surface.py`, then `lower.py`.
"""

from loopwright.dialects.rondoflow.lower import NAME, lower
from loopwright.dialects.rondoflow.recognise import recognise
from loopwright.dialects.rondoflow.schema import json_schema

__all__ = ["NAME", "json_schema", "lower", "recognise"]
