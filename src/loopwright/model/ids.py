"""Ids and paths: the names of steps, iterations and items in a run.

A path names one of them: `build` (a step), `dev.0` (iteration 0 of the loop `dev`), `each[3]`
(item 3), `dev.0.review` (a step inside an iteration). Paths are derived, so a run that crashed and
resumed uses the same names. `effect_ids` has the ids of effects.
"""

import re

ID_PATTERN = r"[a-z][a-z0-9_-]{0,62}"
_ID = re.compile(ID_PATTERN)
_PASS_OR_TRY = re.compile(r"\.-?\d+(?=[.\[]|$)|~\d+")
_LOOP = re.compile(r"(?P<loop>.*?)(?:\.-?\d+(?=[.\[~]|$)|\[|$)")
_TRY = re.compile(r"~(\d+)")
ITERATION_PATTERN = r"[0-9]{1,9}(?:~[0-9]{1,9})?"
_NAMED = re.compile(ITERATION_PATTERN)

MAIN = "main"
"""Id of the only step of a definition that is just one action."""


def is_id(text: str) -> bool:
    """Whether a text may be the id of a step or the name of an agent."""
    return _ID.fullmatch(text) is not None


def child_path(parent: str, step: str) -> str:
    return f"{parent}.{step}" if parent else step


def iteration_path(repeat: str, number: int) -> str:
    """Path of an iteration of a counted loop; `number` counts from 0."""
    return f"{repeat}.{number}"


def item_path(repeat: str, index: int) -> str:
    """Path of the iteration for one item of a list; `index` counts from 0."""
    return f"{repeat}[{index}]"


def parent_path(path: str) -> str:
    """Path of the enclosing place; the run itself is the empty path."""
    if path.endswith("]"):
        return path[: path.rindex("[")]
    return path.rpartition(".")[0]


def is_inside(path: str, place: str) -> bool:
    """Whether a path is inside a place; the run itself, the empty path, contains all paths."""
    return not place or path.startswith((f"{place}.", f"{place}["))


def last_id(path: str) -> str:
    """The last id of a step's path."""
    return path.rpartition(".")[2]


def iteration_number(path: str) -> int:
    """Number of an iteration, from 0, taken from its path."""
    if path.endswith("]"):
        return int(path[path.rindex("[") + 1 : -1])
    return int(path.rpartition(".")[2])


def logical_path(path: str) -> str:
    """A step without its iteration and attempt: `dev.0.review` and `dev~2.3.review` are
    `dev.review`. Items stay separate: `each[3].deploy`.
    """
    return _PASS_OR_TRY.sub("", path)


def loop_path(path: str) -> str:
    """The outermost loop around a place, with its attempt: `dev~2` for `dev~2.0.review`."""
    found = _LOOP.match(path)
    assert found is not None
    return found["loop"]


def try_number(path: str) -> int:
    """The attempt of the outermost loop that a place belongs to: 1 for `dev.0`, 2 for `dev~2.0`."""
    tries = _TRY.findall(loop_path(path))
    return int(tries[-1]) if tries else 1


def parse_iteration(text: str) -> tuple[int, int | None] | None:
    """An iteration as people name it: `3`, or `3~1` for the third of the first attempt."""
    if _NAMED.fullmatch(text) is None:
        return None
    number, _, attempt = text.partition("~")
    return int(number), int(attempt) if attempt else None


def iteration_name(number: int | None, attempt: int | None) -> str | None:
    """The name that `parse_iteration` reads."""
    if number is None:
        return None
    return str(number) if attempt is None else f"{number}~{attempt}"


def judge_path(repeat: str) -> str:
    """The name of a loop's judge."""
    return f"{repeat}.judge"
