"""Pages of lists that are short as a rule: everybody gets all of one at once, unless there is much.

A cursor belongs to its list. It names the last entry of a page, not its place, so that what was
added or removed meanwhile neither hides an entry nor shows one twice.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Generic, NamedTuple, TypeVar

import msgspec

from loopwright.server.routes import Asked, Query

MOST = 1_000
_Entry = TypeVar("_Entry")


class PageQuery(Query):
    """Which page of a list, and how much of it."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST)] = MOST
    cursor: str | None = None


class Page(NamedTuple, Generic[_Entry]):
    """Some entries of a list, and the cursor of those that follow; None: these are the last."""

    entries: list[_Entry]
    next: str | None


def paged(
    asked: Asked, kind: str, found: Iterable[_Entry], place: Callable[[_Entry], str]
) -> Page[_Entry]:
    """The page of a list that is asked for, in the order of its places."""
    query, cursors = asked.query(PageQuery), asked.context.cursors
    after = "" if query.cursor is None else cursors.place(kind, query.cursor)
    left = sorted((one for one in found if place(one) > after), key=place)
    page = left[: query.limit]
    more = cursors.after(kind, place(page[-1])) if len(left) > query.limit else None
    return Page(page, more)


def newest_first(at: int | None, name: str) -> str:
    """The place of an entry in a list that begins with the newest."""
    return f"{10**15 - (at or 0):016d} {name}"


def oldest_first(at: int, name: str) -> str:
    """The place of an entry in a list that begins with the oldest."""
    return f"{at:016d} {name}"
