"""Goals: what an evaluator says in plain words about a goal, read strictly.

Its first line is ACHIEVED or NOT_ACHIEVED and nothing else; the rest is why. A first line that says
anything more, or something like it, says nothing: no goal is reached by a manner of speaking.
"""

import re

import msgspec

_MARKS = re.compile(r"[\s*_#`>\"'.!:]+")
_WORDS = {"achieved": True, "notachieved": False}


class Achieved(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a goal is reached, and why."""

    yes: bool
    why: str


def achieved(text: str) -> Achieved | None:
    """What the first line says, or None where it is not one of the two words."""
    lines = text.strip().splitlines()
    if not lines:
        return None
    said = _WORDS.get(_MARKS.sub("", lines[0]).lower().replace("-", ""))
    if said is None:
        return None
    why = "\n".join(lines[1:]).strip()
    return Achieved(yes=said, why=why or lines[0].strip())
