"""ZenFlow: steps that form a graph, with loops that repeat until a judge agrees or map over a list.

`surface.py` defines the keys, `outline.py` what is written and the files that belong to it,
`rules.py` the rules between the parts, `tools.py` steps that use a tool, `lower.py` the translation
to the plan, `events.py` the events of a run in the terms of this dialect.

May import: syntax, model, errors. Start at `surface.py`, then `lower.py`.
"""

from loopwright.dialects.zenflow.events import Rendering
from loopwright.dialects.zenflow.lower import NAME, lower, requested_files
from loopwright.dialects.zenflow.outline import ZenflowFileRequest
from loopwright.dialects.zenflow.rules import json_schema
from loopwright.dialects.zenflow.surface import recognise

__all__ = [
    "NAME",
    "Rendering",
    "ZenflowFileRequest",
    "json_schema",
    "lower",
    "recognise",
    "requested_files",
]
