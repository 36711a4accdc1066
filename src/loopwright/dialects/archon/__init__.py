"""Archon: a workflow of nodes in YAML, with loops that go on until a signal or a check ends them.

`surface.py` is what may be written, `rules.py` and `graph.py` what must hold between its parts,
`variables.py`, `when.py` and `shell.py` its three small languages, `lower.py` the way to the plan.
Other files that a workflow names are asked for by `wanted` and handed to `lower`.

May import: syntax, model, errors. Start at `surface.py`, then `lower.py`.
"""

from loopwright.dialects.archon.files import PROJECT_FOLDER, ArchonFileProblem, ArchonFileRequest
from loopwright.dialects.archon.lower import lower, wanted
from loopwright.dialects.archon.surface import NAME, json_schema, recognise

__all__ = [
    "NAME",
    "PROJECT_FOLDER",
    "ArchonFileProblem",
    "ArchonFileRequest",
    "json_schema",
    "lower",
    "recognise",
    "wanted",
]
