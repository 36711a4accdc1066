"""Coqui: roles in sequence, repeated until a reviewer approves, a goal is reached or a limit ends
the loop.

`surface.py` defines the keys of a file and the places that parameters fill, `rules.py` the rules
between its parts, `lower.py` the translation to the plan. `builtin/` has the built-in definitions.

May import: syntax, model, errors. Start at `surface.py`, then `lower.py`.
"""

from loopwright.dialects.coqui.lower import NAME, lower
from loopwright.dialects.coqui.rules import described
from loopwright.dialects.coqui.surface import MAX_STEPS, filled, json_schema, recognise

BUILTIN = "builtin"
"""The folder beside this file with the definitions that are always there."""

STAGE_TURNS = (48, MAX_STEPS)
"""How many turns a stage has whose role does not say it, and how many it has at most."""

__all__ = [
    "BUILTIN",
    "NAME",
    "STAGE_TURNS",
    "described",
    "filled",
    "json_schema",
    "lower",
    "recognise",
]
