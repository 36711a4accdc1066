"""Sessions: what several loops have in common, under a name. They share trackers, and what happens
to them is told together. A session is made, or there is one because a loop was started with it.
"""

import msgspec

from loopwright.app.access import Access
from loopwright.app.moments import sortable_id
from loopwright.errors import Conflict, NotFound
from loopwright.ports import Card, Cards, EventLog

KIND = "loop-session"
MOST = 500


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session; one that is closed takes no further loops."""

    id: str
    title: str = ""
    by: str = ""
    created_at: int | None = None
    closed_at: int | None = None


class Sessions:
    """The sessions of a data directory."""

    def __init__(self, log: EventLog, cards: Cards, access: Access) -> None:
        self._log = log
        self._cards = cards
        self._access = access

    def all(self) -> list[Session]:
        """Those that were made, newest first."""
        found = [_decoded(card) for card in self._cards.cards(KIND, limit=MOST)]
        return sorted(found, key=lambda one: -(one.created_at or 0))

    def get(self, name: str) -> Session:
        """A session; NotFound if nobody has made it and no loop was started with it."""
        card = self._cards.card(KIND, name) if name else None
        if card is not None:
            return _decoded(card)
        if name and self._log.rows(session=name, limit=1):
            return Session(id=name)
        raise NotFound(f"there is no session {name[:80]!a}", code="session-not-found")

    def make(self, title: str, *, by: str) -> Session:
        now = self._access.clock.now_ms()
        made = Session(id=f"ses_{sortable_id(now)}", title=title, by=by, created_at=now)
        audit = [self._access.row(by, "session.made", made.id)]
        self._cards.change([(_card(made), 0)], audit=audit)
        return made

    def close(self, name: str, *, by: str) -> Session:
        """No further loop is started in it; those that are under way go on."""
        known = self.get(name)
        if known.closed_at is not None:
            raise Conflict(f"{name} is closed", code="session-closed")
        closed = msgspec.structs.replace(known, closed_at=self._access.clock.now_ms())
        audit = [self._access.row(by, "session.closed", name)]
        self._cards.change([(_card(closed), None)], audit=audit)
        return closed

    def check(self, name: str) -> None:
        """NotFound or Conflict unless a loop can be started in it."""
        if self.get(name).closed_at is not None:
            raise Conflict(
                f"{name} is closed", code="session-closed", hint="start the loop in another one"
            )


def _decoded(card: Card) -> Session:
    return msgspec.json.decode(card.body, type=Session)


def _card(session: Session) -> Card:
    return Card(kind=KIND, key=session.id, body=msgspec.json.encode(session))
