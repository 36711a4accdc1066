"""Requests that may be repeated: the same Idempotency-Key gets the answer of the first time.

What was answered is kept for a day. While the first request is at work a second one is told to
wait; one with another body under the same key is refused.

A server may die after something was done and before its answer was kept. So that a request was
begun is kept before it is, and what it does has its key in the audit rows, which are written with
it: under a key that was begun, either there is such a row and nothing is done again, or nothing was
done at all.
"""

import base64
import hashlib
from collections.abc import Awaitable, Callable

import msgspec
from starlette.responses import Response

from loopwright.app.access import Who
from loopwright.app.auditing import under
from loopwright.ports import AuditRow, Card, Cards, Clock
from loopwright.server.refusals import Refusal

HEADER = "idempotency-key"
REPLY = "reply"
KEPT_MS = 86_400_000
LONGEST = 255


BEGUN = 0
"""In the place of a status: nobody knows the answer yet."""
MOST_ROWS = 1_000

Work = Callable[[], Awaitable[Response]]
Again = Callable[[AuditRow], Awaitable[Response]]
"""The answer to a request that was done, from what stands in the record about it."""


class Reply(msgspec.Struct, frozen=True):
    """What was answered."""

    digest: str
    status: int = BEGUN
    media: str = ""
    body: str = ""
    location: str = ""


class Repeating:
    """Keeps answers by who asked and under which key."""

    def __init__(self, cards: Cards, clock: Clock) -> None:
        self._cards = cards
        self._clock = clock
        self._at_work: set[str] = set()

    async def once(self, who: Who, key: str, asked: bytes, *, work: Work, again: Again) -> Response:
        """Do the work, unless it was done before under this key."""
        check_key(key)
        name = hashlib.sha256(f"{who.name}\0{key}".encode()).hexdigest()
        digest = hashlib.sha256(asked).hexdigest()
        kept = self._kept(name)
        if kept is not None and kept.status != BEGUN:
            return _again(kept, digest)
        if name in self._at_work:
            raise Refusal(
                409,
                "still-at-work",
                "the first request with this Idempotency-Key is still at work",
                headers={"Retry-After": "1"},
            )
        self._at_work.add(name)
        try:
            done = self._done(name) if kept is not None else None
            if done is not None and kept is not None:
                _check(kept, digest)
                response = await again(done)
            else:
                self._put(name, Reply(digest))
                with under(name):
                    response = await work()
            if response.status_code < 500:
                self._keep(name, digest, response)
            return response
        finally:
            self._at_work.discard(name)

    def forget_old(self) -> int:
        """Let go of what was kept for long enough."""
        old = self._cards.cards(REPLY, due_by=self._clock.now_ms(), limit=1_000)
        if old:
            self._cards.change(drops=[(card.kind, card.key) for card in old])
        return len(old)

    def _kept(self, name: str) -> Reply | None:
        card = self._cards.card(REPLY, name)
        if card is None or (card.due or 0) <= self._clock.now_ms():
            return None
        return msgspec.json.decode(card.body, type=Reply)

    def _done(self, name: str) -> AuditRow | None:
        """What a request that was begun and never answered has done first; None: nothing."""
        rows = self._cards.audited(request=name, limit=MOST_ROWS)
        return rows[-1] if rows else None

    def _keep(self, name: str, digest: str, response: Response) -> None:
        reply = Reply(
            digest=digest,
            status=response.status_code,
            media=response.headers.get("content-type", ""),
            body=base64.b64encode(bytes(response.body)).decode(),
            location=response.headers.get("location", ""),
        )
        self._put(name, reply)

    def _put(self, name: str, reply: Reply) -> None:
        due = self._clock.now_ms() + KEPT_MS
        self._cards.change(
            [(Card(kind=REPLY, key=name, body=msgspec.json.encode(reply), due=due), None)]
        )


def check_key(key: str) -> None:
    """A key is short, visible ASCII."""
    if not key or len(key) > LONGEST or not all("!" <= sign <= "~" for sign in key):
        raise Refusal(
            400,
            "bad-idempotency-key",
            f"an Idempotency-Key has 1 to {LONGEST} visible ASCII characters",
        )


def _check(kept: Reply, digest: str) -> None:
    if kept.digest != digest:
        raise Refusal(
            422,
            "key-reused",
            "this Idempotency-Key was used for another request",
            hint="take a new one",
        )


def _again(kept: Reply, digest: str) -> Response:
    _check(kept, digest)
    headers = {"Idempotency-Replayed": "true"}
    if kept.media:
        headers["Content-Type"] = kept.media
    if kept.location:
        headers["Location"] = kept.location
    return Response(base64.b64decode(kept.body), kept.status, headers=headers)
