"""Trackers: artifacts, todos, sprints and projects, and their rules.

An `Item` has a `scope` (the session or run that it belongs to), a `kind` and values. This module
defines which values exist and how they may change; `stores` stores them.
"""

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias, get_args

from loopwright.model.record import JsonValue, Record

Kind: TypeAlias = Literal["artifact", "todo", "sprint", "project", "active", "memory"]
Values: TypeAlias = dict[str, JsonValue]

ArtifactType: TypeAlias = Literal["plan", "document", "code", "config"]
ARTIFACT_TYPES: tuple[str, ...] = get_args(ArtifactType)
LOOP_OUTPUT = "loop_output"
"""The type of artifacts that the engine creates from the outputs of stages; only the engine creates
them.
"""

TODO_STATUSES = ("pending", "in_progress", "completed", "cancelled")
PRIORITIES = ("low", "medium", "high")
MOST_TODOS = 25
"""In one call."""

REVIEW_ROUNDS = 3
MOST_REVIEW_ROUNDS = 5
_MOVES: dict[str, tuple[str, ...]] = {
    "planned": ("in_progress",),
    "in_progress": ("review",),
    "review": ("complete", "rejected"),
    "complete": (),
    "rejected": ("in_progress",),
}
SPRINT_STATUSES = tuple(_MOVES)

EVERYBODY = ""
"""The scope of items that belong to no session: projects."""

_NOT_IN_SLUGS = re.compile(r"[^a-z0-9]+")


class Item(Record, frozen=True, kw_only=True):
    """One item in its newest version, or in an older one."""

    scope: str
    kind: Kind
    id: str
    version: int = 1
    at: int = 0
    values: Values = {}

    def text(self, name: str) -> str:
        value = self.values.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str, default: int) -> int:
        value = self.values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else default


def sprint_problem(sprint: Item, to: str) -> str | None:
    """Why the status of a sprint cannot change in this way."""
    now = sprint.text("status")
    if to not in SPRINT_STATUSES:
        return f"{to!r} is not a status of a sprint; there are {', '.join(SPRINT_STATUSES)}"
    if to not in _MOVES.get(now, ()):
        may = ", ".join(_MOVES.get(now, ())) or "nothing: it has ended"
        return f"a sprint that is {now} cannot become {to}; it can become {may}"
    most = min(sprint.number("max_review_rounds", REVIEW_ROUNDS), MOST_REVIEW_ROUNDS)
    rounds = sprint.number("review_round", 0)
    if to == "review" and rounds >= most:
        return f"it has been reviewed {rounds} times, and {most} is the most"
    return None


def sprint_moved(sprint: Item, to: str, summary: str) -> Values:
    """The values of a sprint after a change of status; a review is counted when it starts."""
    rounds = sprint.number("review_round", 0) + (to == "review")
    told: Values = {"summary": summary} if summary else {}
    return {**sprint.values, "status": to, "review_round": rounds, **told}


def slug_of(title: str) -> str:
    """A name for URLs and folders."""
    return _NOT_IN_SLUGS.sub("-", title.casefold()).strip("-")[:60] or "untitled"


# -- where they are kept --------------------------------------------------------------------------


class ItemText(NamedTuple):
    """Condition: one version of an item has a certain text."""

    scope: str
    id: str
    at: int
    text: str


class TrackerChange(Protocol):
    """The trackers inside one change: everything that is stored here is committed together, or not
    at all.
    """

    def get(self, scope: str, kind: Kind, item: str) -> Item | None: ...

    def all(self, scope: str, kind: Kind) -> list[Item]:
        """Items in the order of their creation."""

    def put(self, item: Item) -> None:
        """Create an item, or store it as the next version; the previous one stays among the
        versions.
        """

    def put_all(self, items: Sequence[Item]) -> None:
        """The same for many, in their order."""

    def having(self, kind: Kind, name: str) -> list[ItemText]:
        """Items of every scope with a text under this name, including older versions."""

    def drop(self, scope: str, kind: Kind, item: str) -> None:
        """Delete an item with all its versions."""


class Trackers(Protocol):
    """Stores artifacts, todos, sprints and projects."""

    def change(self, key: str, work: Callable[[TrackerChange], str]) -> str:
        """Make a change exactly once. The answer of `work` is stored under the key, together with
        the change; for a key that was used before nothing happens, and the stored answer is
        returned. If `work` raises, nothing is stored.
        """

    async def change_aside(self, key: str, work: Callable[[TrackerChange], str]) -> str:
        """The same for a change that takes time: the event loop continues in the meantime."""

    def get(self, scope: str, kind: Kind, item: str) -> Item | None: ...

    def all(self, scope: str, kind: Kind) -> list[Item]: ...

    def versions(self, scope: str, kind: Kind, item: str) -> list[Item]:
        """All versions of an item, the newest last."""

    def having(self, kind: Kind, name: str) -> list[ItemText]:
        """A natural sort key."""
