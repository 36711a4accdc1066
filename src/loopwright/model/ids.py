"""Ids and paths: how a place in a run is named, and nothing else.

A path names one place: `build` (a step), `dev.0` (pass 0 of the repeat `dev`), `each[3]` (item 3),
`dev.0.review` (a step inside a pass). An effect id adds what is asked for and the attempt:
`dev.0.review/agent#1`. Ids are derived, so a crashed and resumed run names everything as before.
"""

import re

ID_PATTERN = r"[a-z][a-z0-9_-]{0,62}"
_ID = re.compile(ID_PATTERN)
_PASS_OR_TRY = re.compile(r"\.-?\d+(?=[.\[]|$)|~\d+")

MAIN = "main"
"""Id of the only step of a definition that is just one action."""


def is_id(text: str) -> bool:
    """Whether a text may be the id of a step or the name of an agent."""
    return _ID.fullmatch(text) is not None


def child_path(parent: str, step: str) -> str:
    return f"{parent}.{step}" if parent else step


def pass_path(repeat: str, number: int) -> str:
    """Path of a pass of a counted repeat; `number` counts from 0."""
    return f"{repeat}.{number}"


def item_path(repeat: str, index: int) -> str:
    """Path of a pass over one item of a list; `index` counts from 0."""
    return f"{repeat}[{index}]"


def parent_path(path: str) -> str:
    """Path of the place that holds this one; the run itself is the empty path."""
    if path.endswith("]"):
        return path[: path.rindex("[")]
    return path.rpartition(".")[0]


def last_id(path: str) -> str:
    """The last id of a step's path."""
    return path.rpartition(".")[2]


def pass_number(path: str) -> int:
    """Number of a pass, from 0, read off its path."""
    if path.endswith("]"):
        return int(path[path.rindex("[") + 1 : -1])
    return int(path.rpartition(".")[2])


def logical_path(path: str) -> str:
    """A step whatever the pass or the try: `dev.0.review` and `dev~2.3.review` are `dev.review`.
    Items stay apart: `each[3].deploy`.
    """
    return _PASS_OR_TRY.sub("", path)


def judge_path(repeat: str) -> str:
    """How the judge of a loop is named."""
    return f"{repeat}.judge"


def effect_id(path: str, purpose: str, attempt: int) -> str:
    return f"{path}/{purpose}#{attempt}"
