"""Pages of lists. A cursor names the last entry of a page, not its position, so entries that are
added or removed meanwhile are neither skipped nor repeated.
"""

import base64
import contextlib
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from loopwright.errors import LoopwrightError, VersionConflict
from loopwright.ports import RecordStore, StoredRecord

SECRET = ("secret", "cursors")
MOST = 1_000
_TAG = 8
_Entry = TypeVar("_Entry")


class Cursors:
    """Signs and reads cursors with a secret of the data directory, so that they outlive a
    restart.
    """

    def __init__(self, records: RecordStore) -> None:
        kind, key = SECRET
        if records.record(kind, key) is None:
            made = StoredRecord(kind=kind, key=key, body=secrets.token_bytes(32))
            with contextlib.suppress(VersionConflict):  # another process may be first
                records.change([(made, 0)])
        record = records.record(kind, key)
        assert record is not None, "it was just made"
        self._secret = record.body

    def after(self, kind: str, place: str) -> str:
        """The cursor of the page that follows this place."""
        text = f"{kind}:{place}".encode()
        return base64.urlsafe_b64encode(self._tag(text) + text).decode().rstrip("=")

    def place(self, kind: str, cursor: str) -> str:
        """Where a page ended; 400 for what we did not make."""
        try:
            raw = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
            tag, text = raw[:_TAG], raw[_TAG:]
            words = text.decode()
        except (ValueError, UnicodeError) as error:
            raise _bad() from error
        if not hmac.compare_digest(tag, self._tag(text)) or not words.startswith(f"{kind}:"):
            raise _bad()
        return words.removeprefix(f"{kind}:")

    def _tag(self, text: bytes) -> bytes:
        return hmac.new(self._secret, text, hashlib.sha256).digest()[:_TAG]


def _bad() -> LoopwrightError:
    return LoopwrightError(
        "this cursor belongs to another list", code="bad-cursor", hint="begin without one"
    )


class ListPage(NamedTuple, Generic[_Entry]):
    """Some entries of a list, and the cursor of those that follow; None: these are the last."""

    entries: list[_Entry]
    next: str | None


def page_of(
    cursors: Callable[[], Cursors],
    kind: str,
    found: Iterable[_Entry],
    place: Callable[[_Entry], str],
    *,
    limit: int,
    cursor: str | None,
) -> ListPage[_Entry]:
    """A page of a list, in the order of its places."""
    after = "" if cursor is None else cursors().place(kind, cursor)
    left = sorted((one for one in found if place(one) > after), key=place)
    page = left[:limit]
    more = cursors().after(kind, place(page[-1])) if len(left) > limit else None
    return ListPage(page, more)


def newest_first(at: int | None, name: str) -> str:
    """The place of an entry in a list that begins with the newest."""
    return f"{10**15 - (at or 0):016d} {name}"


def oldest_first(at: int, name: str) -> str:
    """The place of an entry in a list that begins with the oldest."""
    return f"{at:016d} {name}"
