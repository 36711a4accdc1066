"""Links that answer one gate, once: for people who are told of it where they have no account.

A link is a code of 256 bits that is kept as a hash, good for a day. It opens a page and decides
nothing by being opened, since programs open links too.
"""

import base64
import contextlib
import hashlib
import hmac
import secrets

import msgspec

from loopwright.app.service import Service
from loopwright.errors import Conflict, LoopwrightError, NotAllowed, NotFound, VersionConflict
from loopwright.kernel.facts import GateOpened
from loopwright.model.actions import Decision
from loopwright.ports import Card, Cards, Clock

LINK = "gate-link"
SECRET = ("secret", "gate-links")
LIFE_MS = 86_400_000
KEEP_MS = 7 * 86_400_000  # how long a link that is over says so


class GateLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link as it is kept."""

    gate: str
    run: str
    digest: str
    sent_to: str
    expires_at: int
    used_at: int | None = None


class LinkOver(LoopwrightError):
    """A link that had its time."""

    code = "link-expired"


class GateLinks:
    """The links of a home."""

    def __init__(self, cards: Cards, clock: Clock) -> None:
        self._cards = cards
        self._clock = clock

    def code_for(self, delivery: str) -> str:
        """The code of the link in a message: made again whenever the message is sent, so that it
        is kept nowhere.
        """
        digest = hmac.new(self._secret(), delivery.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def card_for(self, delivery: str, run: str, opened: GateOpened, sent_to: str) -> Card:
        """A new link, to be written together with its message."""
        until = self._clock.now_ms() + LIFE_MS
        link = GateLink(
            gate=opened.gate, run=run, digest=opened.digest, sent_to=sent_to, expires_at=until
        )
        key = _hashed(self.code_for(delivery))
        return Card(kind=LINK, key=key, body=msgspec.json.encode(link), due=until + KEEP_MS)

    def look(self, code: str) -> GateLink:
        """A link that still counts; Conflict when it was used, LinkOver when its time is over."""
        card = self._cards.card(LINK, _hashed(code))
        if card is None:
            raise NotFound("there is no such link", hint="`loopwright inbox` lists what waits")
        link = msgspec.json.decode(card.body, type=GateLink)
        if link.used_at is not None:
            raise Conflict("this link was used already", code="link-used")
        if link.expires_at <= self._clock.now_ms():
            raise LinkOver("this link is too old", hint="`loopwright inbox` lists what waits")
        return link

    async def answer(self, service: Service, code: str, decision: Decision, text: str) -> str:
        """Answer the gate of a link; the run. The gate takes one answer, so the link does too."""
        link = self.look(code)
        if service.four_eyes and decision == "approve":  # it was sent before that was asked for
            raise NotAllowed(
                "nobody knows who follows a link, and here somebody else has to approve",
                code="self-approval",
                hint="sign in; the setting is four_eyes",
            )
        by = f"link:{link.sent_to}"
        run = await service.answer(link.gate, decision, text=text, by=by, digest=link.digest)
        used = msgspec.structs.replace(link, used_at=self._clock.now_ms())
        due = link.expires_at + KEEP_MS
        card = Card(kind=LINK, key=_hashed(code), body=msgspec.json.encode(used), due=due)
        self._cards.change([(card, None)])
        return run

    def forget_old(self) -> None:
        due = self._cards.cards(LINK, due_by=self._clock.now_ms(), limit=1_000)
        if due:
            self._cards.change(drops=[(LINK, card.key) for card in due])

    def _secret(self) -> bytes:
        kind, key = SECRET
        if self._cards.card(kind, key) is None:
            made = Card(kind=kind, key=key, body=secrets.token_bytes(32))
            with contextlib.suppress(VersionConflict):  # another process may be first
                self._cards.change([(made, 0)])
        card = self._cards.card(kind, key)
        assert card is not None, "it was just made"
        return card.body


def _hashed(code: str) -> str:
    return hashlib.sha256(code.encode(errors="surrogatepass")).hexdigest()
