"""Limits for attempts to sign in: for a name from one address, from one address, for a name, and in
total.

Failures of others must not keep the person with the right password out. So a browser that signed in
before proves it with a cookie and has a limit of its own, an address that signed in before has too,
and the first attempts of any address count neither for the name nor in total. What is left to
somebody with very many addresses is bounded by how many passwords are hashed at once.
"""

import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from loopwright.ports import Card, Cards, Clock
from loopwright.server.client_address import address_group
from loopwright.server.rates import Rates

WINDOW_MS = 60_000
FOR_ADDRESS = 4  # times the limit for a name from an address
FOR_NAME = 12
IN_TOTAL = 40
FREE_ATTEMPTS = 2  # of an address in a minute that count for nobody else
MAX_KNOWN = 10_000
KEY = "sign-in-key"
MAX_COOKIE = 200


@dataclass(frozen=True, slots=True)
class Attempt:
    """Who tries to sign in: from where, as whom, and with the cookie of which browser."""

    address: str
    name: str
    device: str = ""


class SignInLimits:
    """Counts attempts. Everything that is kept is bounded."""

    def __init__(self, cards: Cards, clock: Clock, most: int) -> None:
        self._cards = cards
        self._devices = Rates(clock, most, WINDOW_MS)
        self._pairs = Rates(clock, most, WINDOW_MS)
        self._addresses = Rates(clock, most * FOR_ADDRESS, WINDOW_MS)
        self._first = Rates(clock, FREE_ATTEMPTS, WINDOW_MS)
        self._names = Rates(clock, most * FOR_NAME, WINDOW_MS)
        self._total = Rates(clock, most * IN_TOTAL, WINDOW_MS)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def count(self, attempt: Attempt) -> None:
        """Count an attempt; 429 when there were too many. Whether the name exists is not asked."""
        address = address_group(attempt.address)
        name = hashlib.sha256(attempt.name.encode(errors="replace")).hexdigest()
        device = self._device_of(attempt)
        if device:
            self._devices.count(device)
            return
        self._pairs.count(f"{address} {name}")
        if (address, name) in self._known:
            return
        self._addresses.count(address)
        if self._first.has_left(address):
            self._first.count(address)
            return
        self._names.count(name)
        self._total.count("")

    def remember(self, attempt: Attempt) -> str:
        """Remember that somebody signed in; a cookie for their browser."""
        name = hashlib.sha256(attempt.name.encode(errors="replace")).hexdigest()
        known = (address_group(attempt.address), name)
        self._known[known] = None
        self._known.move_to_end(known)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        device = self._device_of(attempt) or secrets.token_hex(16)
        return f"{device}.{self._mark(device, attempt.name)}"

    def _device_of(self, attempt: Attempt) -> str:
        """The browser that signed in as this name before; empty for any other."""
        device, _, mark = attempt.device[:MAX_COOKIE].partition(".")
        wanted = self._mark(device, attempt.name)
        return device if device and hmac.compare_digest(wanted.encode(), mark.encode()) else ""

    def _mark(self, device: str, name: str) -> str:
        text = f"{device}\0{name}".encode(errors="replace")
        return hmac.new(self._key(), text, hashlib.sha256).hexdigest()

    def _key(self) -> bytes:
        """The key of cookies: of this data directory, made when it is first needed."""
        card = self._cards.card(KEY, KEY)
        if card is None:
            card = Card(kind=KEY, key=KEY, body=secrets.token_bytes(32))
            self._cards.change([(card, None)])
        return card.body
