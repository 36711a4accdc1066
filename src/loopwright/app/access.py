"""Who may come in: roles, and API tokens that are shown once and kept as a hash.

A token is `lwt_ID_SECRET`. The secret has 256 bits of chance, so a plain hash of it is enough and a
request costs no slow one. What a token may do is the least of its own role and of its person's.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from loopwright.app.auditing import request_key
from loopwright.errors import LoopwrightError, NotAllowed, NotFound, NotSignedIn
from loopwright.ports import AuditRow, Card, Cards, Clock

Role: TypeAlias = Literal["viewer", "editor", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "editor", "admin")
"""From the least to the most."""

TOKEN = "token"
PERSON = "person"
PREFIX = "lwt"
FIRST = "first-start"
DAY_MS = 86_400_000
MAX_DAYS = 3_650
MAX_NAME = 100
DENIED = "Your role does not permit running or modifying workflows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """Somebody who has shown who they are."""

    name: str
    role: Role
    by: Literal["token", "session"] = "token"
    id: str = ""  # of the token or the session

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody with an account."""

    name: str
    role: Role
    password: str = ""  # a slow hash; empty: not set yet
    active: bool = True
    created_at: int = 0


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """An API token as it is kept."""

    id: str
    hash: str
    label: str
    role: Role
    person: str = ""  # empty: made for a program, or at the first start
    created_at: int = 0
    expires_at: int | None = None
    revoked_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token just made; its text is told once and never again."""

    text: str
    token: Token


class Access:
    """Tokens and the people behind them."""

    def __init__(self, cards: Cards, clock: Clock, via: str = "cli") -> None:
        self.cards = cards
        self.clock = clock
        self.via = via

    # -- who asks ------------------------------------------------------------------------------

    def by_token(self, text: str) -> Who:
        """Whoever holds this token; NotSignedIn for one that is unknown, expired or revoked."""
        parts = text.split("_")
        token = self._token(parts[1]) if len(parts) == 3 and parts[0] == PREFIX else None
        secret = parts[2] if len(parts) == 3 else ""
        known = token.hash if token is not None else digest("")
        same = hmac.compare_digest(known, digest(secret))
        if token is None or not same or token.revoked_at is not None:
            raise unknown()
        if token.expires_at is not None and token.expires_at <= self.clock.now_ms():
            raise NotSignedIn("the token has expired", code="expired", hint="make a new one")
        role = token.role
        if token.person:
            role = least(role, self._active(token.person).role)
        return Who(name=token.person or token.label, role=role, by="token", id=token.id)

    def still(self, who: Who) -> bool:
        """Whether somebody who came in a while ago would be let in again, as the same."""
        token = self._token(who.id) if who.by == "token" else None
        if token is None or token.revoked_at is not None:
            return False
        if token.expires_at is not None and token.expires_at <= self.clock.now_ms():
            return False
        try:
            role = least(token.role, self._active(token.person).role) if token.person else None
        except NotAllowed:
            return False
        return role in (None, who.role)

    def _active(self, name: str) -> Person:
        person = self.person(name)
        if person is None:
            raise unknown()
        if not person.active:
            raise deactivated()
        return person

    def person(self, name: str) -> Person | None:
        card = self.cards.card(PERSON, name)
        return None if card is None else msgspec.json.decode(card.body, type=Person)

    # -- tokens --------------------------------------------------------------------------------

    def first_token(self) -> NewToken | None:
        """The token of the very first start; None when any token was ever made here."""
        if self.cards.cards(TOKEN, limit=1):
            return None
        return self.new_token(FIRST, "admin", by=FIRST)

    def new_token(
        self, label: str, role: Role, *, by: str, person: str = "", days: int | None = None
    ) -> NewToken:
        """Make a token; `days` until it expires, None for never."""
        if not label.strip() or len(label) > MAX_NAME or not label.isprintable():
            raise LoopwrightError(
                "a token needs a label", code="bad-name", hint=f"1 to {MAX_NAME} characters"
            )
        if days is not None and not 1 <= days <= MAX_DAYS:
            raise LoopwrightError(
                f"a token lives 1 to {MAX_DAYS} days, not {days}", code="out-of-range"
            )
        now, secret = self.clock.now_ms(), secrets.token_urlsafe(32).replace("_", "-")
        token = Token(
            id=secrets.token_hex(6),
            hash=digest(secret),
            label=label.strip(),
            role=role,
            person=person,
            created_at=now,
            expires_at=None if days is None else now + days * DAY_MS,
        )
        self.cards.change(
            [(_token_card(token), 0)],
            audit=[self.row(by, "token.created", token.id, f"{role}: {token.label}")],
        )
        return NewToken(text=f"{PREFIX}_{token.id}_{secret}", token=token)

    def tokens(self, person: str | None = None) -> list[Token]:
        return [
            msgspec.json.decode(card.body, type=Token)
            for card in self.cards.cards(TOKEN, owner=person)
        ]

    def revoke(self, token_id: str, *, by: str) -> Token:
        """End a token, now and for good."""
        token = self._token(token_id)
        if token is None:
            raise NotFound(f"no token {token_id!r}", hint="`loopwright token ls` lists them")
        if token.revoked_at is None:
            token = msgspec.structs.replace(token, revoked_at=self.clock.now_ms())
            audit = [self.row(by, "token.revoked", token.id, token.label)]
            self.cards.change([(_token_card(token), None)], audit=audit)
        return token

    def _token(self, token_id: str) -> Token | None:
        card = self.cards.card(TOKEN, token_id)
        return None if card is None else msgspec.json.decode(card.body, type=Token)

    def row(self, who: str, action: str, subject: str, detail: str = "") -> AuditRow:
        """An audit row of something that happens now."""
        return AuditRow(
            at=self.clock.now_ms(),
            who=who,
            action=action,
            subject=subject,
            via=self.via,
            detail=detail,
            request=request_key(),
        )


def require(who: Who, role: Role) -> None:
    """NotAllowed unless somebody has this role or more."""
    if not who.may(role):
        hint = f"it takes the role {role}, {who.name} has {who.role}"
        raise NotAllowed(DENIED, code="role", hint=hint)


def least(one: Role, other: Role) -> Role:
    return min(one, other, key=ROLES.index)


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def deactivated() -> NotAllowed:
    """For whoever has shown who they are, and has a closed account."""
    return NotAllowed("Your account has been deactivated", code="deactivated")


def unknown() -> NotSignedIn:
    """The same answer for whatever is wrong with a token."""
    return NotSignedIn("this token is not known here", hint="`loopwright token create` makes one")


def _token_card(token: Token) -> Card:
    return Card(kind=TOKEN, key=token.id, body=msgspec.json.encode(token), owner=token.person)
