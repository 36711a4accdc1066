"""ZenFlow: steps that form a graph, with loops that repeat until a judge agrees or map over a list.

`surface.py` is what may be written, `tree.py` its raw outline, `rules.py`, `graphs.py`,
`judges.py`, `tool_steps.py` and `expressions.py` what must hold between its parts, `units.py` the
files that belong to it, `lower.py` and `loops.py` the way to the plan, `events.py` what happens in
a run.

May import: syntax, model, errors. Start at `surface.py`, then `lower.py`.
"""

from loopwright.dialects.zenflow.events import Rendering
from loopwright.dialects.zenflow.lower import NAME, lower, wanted
from loopwright.dialects.zenflow.outline import ZenflowFileRequest
from loopwright.dialects.zenflow.rules import json_schema
from loopwright.dialects.zenflow.surface import recognise

__all__ = ["NAME", "Rendering", "ZenflowFileRequest", "json_schema", "lower", "recognise", "wanted"]
