"""Aldo: one agent as data, run in a bounded loop of model calls and tools, or composed of other
agents.

`surface.py` defines the keys of a file, `rules.py` the rules between its parts, `files.py` and
`loader.py` the files that belong to it, `lower.py` the translation to the plan. `events.py` and
`results.py` render events in the terms of this dialect, for its own routes.

May import: syntax, model, errors. Start at `surface.py`, then `lower.py`.
"""

from loopwright.dialects.aldo.events import Rendering
from loopwright.dialects.aldo.files import LOOKS_AROUND, AldoFileProblem, AldoFileRequest
from loopwright.dialects.aldo.lower import NAME, lower, requested_files
from loopwright.dialects.aldo.surface import json_schema, recognise

__all__ = [
    "LOOKS_AROUND",
    "NAME",
    "AldoFileProblem",
    "AldoFileRequest",
    "Rendering",
    "json_schema",
    "lower",
    "recognise",
    "requested_files",
]
