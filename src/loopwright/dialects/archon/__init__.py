"""Archon: a workflow of nodes in YAML, with loops that repeat until a signal or a check ends them.

`surface.py` defines the keys of a file, `rules.py` and `references.py` the rules between its parts,
`variables.py` and `shell` its small languages, `lower.py` the translation to the plan.
`requested_files` names other files that a workflow needs, and `lower` receives them.

May import: syntax, model, errors. Start at `surface.py`, then `lower.py`.
"""

from loopwright.dialects.archon.files import PROJECT_FOLDER, ArchonFileProblem, ArchonFileRequest
from loopwright.dialects.archon.lower import lower, requested_files
from loopwright.dialects.archon.surface import NAME, json_schema, recognise

__all__ = [
    "NAME",
    "PROJECT_FOLDER",
    "ArchonFileProblem",
    "ArchonFileRequest",
    "json_schema",
    "lower",
    "recognise",
    "requested_files",
]
