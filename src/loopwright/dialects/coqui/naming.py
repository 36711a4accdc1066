"""Names of stages and agents: as they are written, as far as a plan can have them."""

import re
from collections.abc import Collection

_OTHER = re.compile(r"[^a-z0-9_-]+")
_LONGEST = 56  # leaves room for a number behind it


def stage_ids(names: list[str]) -> list[str]:
    """An id for each stage: its name in small letters, with a number where it is used again."""
    made: list[str] = []
    for name in names:
        made.append(unique(name, made))
    return made


def unique(name: str, taken: Collection[str]) -> str:
    """A name that may be an id, and that is not taken."""
    base = _OTHER.sub("-", name.lower()).strip("-_")[:_LONGEST]
    base = base if base[:1].isalpha() else f"s{base}"
    names = (base, *(f"{base}-{n}" for n in range(2, len(taken) + 3)))
    return next(one for one in names if one not in taken)
