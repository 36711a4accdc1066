"""RondoFlow: an assistant document whose loop settings make one assistant repeat its task.

`surface.py` finds the assistants of a document and defines the keys of one, `lower.py` translates
it to the plan. `events.py` renders events in the terms of this dialect.

May import: syntax, model, errors. Start at `surface.py`, then `lower.py`.
"""

from loopwright.dialects.rondoflow.lower import NAME, assistant_id, lower, requested_files
from loopwright.dialects.rondoflow.surface import json_schema, recognise

__all__ = ["NAME", "assistant_id", "json_schema", "lower", "recognise", "requested_files"]
