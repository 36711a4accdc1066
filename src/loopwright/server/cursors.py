"""Cursors: where a page ended, in a form that only this home can have made."""

import base64
import contextlib
import hashlib
import hmac
import secrets

from loopwright.errors import VersionConflict
from loopwright.ports import Card, Cards
from loopwright.server.refusals import Refusal

SECRET = ("secret", "cursors")
_TAG = 8


class Cursors:
    """Signs and reads cursors with a secret of the home, so that they outlive a restart."""

    def __init__(self, cards: Cards) -> None:
        kind, key = SECRET
        if cards.card(kind, key) is None:
            made = Card(kind=kind, key=key, body=secrets.token_bytes(32))
            with contextlib.suppress(VersionConflict):  # another process may be first
                cards.change([(made, 0)])
        card = cards.card(kind, key)
        assert card is not None, "it was just made"
        self._secret = card.body

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


def _bad() -> Refusal:
    return Refusal(400, "bad-cursor", "this cursor is not from here", hint="begin without one")
