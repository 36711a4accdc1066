"""People with accounts: names, roles, passwords, sessions, and the one-time link of the first."""

import hashlib
import re
import secrets
import unicodedata
from dataclasses import dataclass

import msgspec
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerifyMismatchError

from loopwright.app.access import (
    PERSON,
    ROLES,
    TOKEN,
    Access,
    NewToken,
    Person,
    Role,
    Who,
    digest,
    unknown,
)
from loopwright.errors import Conflict, LoopwrightError, NotAllowed, NotFound, NotSignedIn
from loopwright.ports import Card

SESSION = "session"
LINK = "link"
GUARD = ("guard", "people")
SESSION_MS = 7 * 86_400_000
LINK_MS = 86_400_000
SHORTEST, LONGEST = 8, 128
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
# About 20 ms: a thief has to try each password, an honest person tries one.
_HASHER = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
_NOBODY = _HASHER.hash("nobody")  # so that an unknown name takes as long as a wrong password
SIGN_IN = "name or password is wrong"


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who signed in with a password."""

    person: str
    role: Role  # as it was then; a new role needs a new session
    created_at: int
    expires_at: int


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A link that makes an account, or sets its password anew, once."""

    role: Role
    person: str = ""  # empty: whoever uses it chooses a name
    expires_at: int
    used_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """A session just begun; its secret goes into a cookie and is kept nowhere."""

    secret: str
    who: Who
    expires_at: int


class People:
    """The accounts of a home."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.cards = access.cards
        self.clock = access.clock

    # -- accounts ------------------------------------------------------------------------------

    def all(self) -> list[Person]:
        return [msgspec.json.decode(card.body, type=Person) for card in self.cards.cards(PERSON)]

    def add(self, name: str, role: Role, *, by: str, password: str = "") -> Person:
        """Make an account; without a password it is for tokens, or for a link that sets one."""
        check_name(name)
        person = Person(
            name=name,
            role=role,
            password=_hashed(password) if password else "",
            created_at=self.clock.now_ms(),
        )
        try:
            self._write(person, 0, by=by, action="user.added", detail=role)
        except Conflict as conflict:
            raise Conflict(f"there is a user {name!r} already", code="name-taken") from conflict
        return person

    def set_role(self, name: str, role: Role, *, by: str) -> Person:
        """Another role, from now on: sessions end, tokens have the least of both."""
        person = self._known(name)
        if person.role == role:
            return person
        if role != "admin":
            self._keep_an_admin(person)
        changed = msgspec.structs.replace(person, role=role)
        detail = f"{person.role} to {role}"
        self._write(changed, None, by=by, action="user.role", detail=detail, ends=True)
        return changed

    def set_active(self, name: str, *, active: bool, by: str) -> Person:
        """Close an account or open it again; sessions end at once."""
        person = self._known(name)
        if not active:
            self._keep_an_admin(person)
        changed = msgspec.structs.replace(person, active=active)
        action = "user.activated" if active else "user.deactivated"
        self._write(changed, None, by=by, action=action, ends=not active)
        return changed

    def remove(self, name: str, *, by: str) -> None:
        """Take an account away, with its sessions and tokens."""
        person = self._known(name)
        self._keep_an_admin(person)
        drops = [(PERSON, name), *self._sessions(name)]
        tokens = [(card.kind, card.key) for card in self.cards.cards(TOKEN, owner=name)]
        guard = self._guard()
        row = self.access.row(by, "user.removed", name, person.role)
        self.cards.change([guard], drops=[*drops, *tokens], audit=[row])

    def set_password(self, name: str, password: str, *, by: str) -> None:
        """Another password; everybody who was signed in with the old one is out."""
        person = self._known(name)
        changed = msgspec.structs.replace(person, password=_hashed(password))
        self._write(changed, None, by=by, action="user.password", ends=True)

    def _known(self, name: str) -> Person:
        person = self.access.person(name)
        if person is None:
            raise NotFound(f"no user {name!r}", hint="`loopwright user ls` lists them")
        return person

    def _keep_an_admin(self, person: Person) -> None:
        others = [one for one in self.all() if one.role == "admin" and one.active and one != person]
        if person.role == "admin" and person.active and not others:
            raise Conflict(
                f"{person.name} is the last admin", code="last-admin", hint="make another one first"
            )

    def _guard(self) -> tuple[Card, int]:
        """Changes of roles come one after the other, or two admins could each take the other's."""
        kind, key = GUARD
        card = self.cards.card(kind, key)
        return Card(kind=kind, key=key, body=b""), 0 if card is None else card.version

    def _write(
        self,
        person: Person,
        expected: int | None,
        *,
        by: str,
        action: str,
        detail: str = "",
        ends: bool = False,
    ) -> None:
        card = Card(kind=PERSON, key=person.name, body=msgspec.json.encode(person))
        self.cards.change(
            [(card, expected), self._guard()],
            drops=self._sessions(person.name) if ends else (),
            audit=[self.access.row(by, action, person.name, detail)],
        )

    def _sessions(self, name: str) -> list[tuple[str, str]]:
        return [(card.kind, card.key) for card in self.cards.cards(SESSION, owner=name)]

    def new_token(
        self, label: str, role: Role, *, by: str, person: str, days: int | None
    ) -> NewToken:
        """A token for a program, or for somebody with an account."""
        if person:
            self._known(person)
        return self.access.new_token(label, role, by=by, person=person, days=days)

    # -- signing in ----------------------------------------------------------------------------

    def sign_in(self, name: str, password: str) -> SignedIn:
        """Begin a session. Whatever is wrong, it takes as long and is told the same."""
        person = self.access.person(name) if _NAME.fullmatch(name) else None
        kept = person.password if person is not None and person.password else _NOBODY
        right = _fits(kept, password)
        if person is None or not person.password or not right:
            raise NotSignedIn(SIGN_IN, code="wrong-password")
        if not person.active:
            raise NotAllowed("Your account has been deactivated", code="deactivated")
        now, secret = self.clock.now_ms(), secrets.token_urlsafe(32)
        session = Session(
            person=name, role=person.role, created_at=now, expires_at=now + SESSION_MS
        )
        card = Card(
            kind=SESSION,
            key=digest(secret),
            body=msgspec.json.encode(session),
            owner=name,
            due=session.expires_at,
        )
        row = self.access.row(name, "user.signed_in", name)
        self.cards.change([(card, 0)], audit=[row])
        who = Who(name=name, role=person.role, by="session", id=card.key)
        return SignedIn(secret=secret, who=who, expires_at=session.expires_at)

    def by_session(self, secret: str) -> Who:
        """Whoever has this cookie."""
        who = self._session(digest(secret))
        if who is None:
            raise unknown()
        return who

    def still(self, who: Who) -> bool:
        """Whether somebody who came in a while ago would be let in again, as the same."""
        if who.by == "token":
            return self.access.still(who)
        now = self._session(who.id)
        return now is not None and now.role == who.role

    def _session(self, key: str) -> Who | None:
        card = self.cards.card(SESSION, key)
        if card is None or (card.due or 0) <= self.clock.now_ms():
            return None
        session = msgspec.json.decode(card.body, type=Session)
        person = self.access.person(session.person)
        if person is None or not person.active or person.role != session.role:
            return None
        return Who(name=person.name, role=person.role, by="session", id=key)

    def sign_out(self, who: Who) -> None:
        """End a session."""
        if who.by == "session":
            row = self.access.row(who.name, "user.signed_out", who.name)
            self.cards.change(drops=[(SESSION, who.id)], audit=[row])

    # -- links ---------------------------------------------------------------------------------

    def first_link(self) -> str | None:
        """The code that makes the first admin; None when there are people already."""
        if self.cards.cards(PERSON, limit=1):
            return None
        old = [(card.kind, card.key) for card in self.cards.cards(LINK)]
        self.cards.change(drops=old)
        return self.link("admin", by="first-start")

    def link(self, role: Role, *, by: str, person: str = "") -> str:
        """A code that makes an account, or sets the password of one, once and for a day."""
        if person:
            role = self._known(person).role
        code = secrets.token_urlsafe(24)
        link = Link(role=role, person=person, expires_at=self.clock.now_ms() + LINK_MS)
        card = Card(
            kind=LINK, key=digest(code), body=msgspec.json.encode(link), due=link.expires_at
        )
        row = self.access.row(by, "user.link", person or role)
        self.cards.change([(card, 0)], audit=[row])
        return code

    def use_link(self, code: str, name: str, password: str) -> Person:
        """Make the account, or set its password; the link is used up."""
        card = self.cards.card(LINK, digest(code))
        link = None if card is None else msgspec.json.decode(card.body, type=Link)
        if card is None or link is None or link.used_at is not None:
            raise _no_link()
        if link.expires_at <= self.clock.now_ms():
            raise _no_link()
        check_password(password)
        if link.person and link.person != name:
            raise _no_link()
        check_name(name)
        known = self.access.person(name)
        if known is not None and not link.person:
            raise Conflict(f"there is a user {name!r} already", code="name-taken")
        person = Person(
            name=name,
            role=known.role if known is not None else link.role,
            password=_hashed(password),
            created_at=known.created_at if known is not None else self.clock.now_ms(),
        )
        used = msgspec.structs.replace(link, used_at=self.clock.now_ms())
        spent = Card(kind=LINK, key=card.key, body=msgspec.json.encode(used), due=card.due)
        account = Card(kind=PERSON, key=name, body=msgspec.json.encode(person))
        try:
            self.cards.change(
                [(spent, card.version), (account, None), self._guard()],
                drops=self._sessions(name),
                audit=[self.access.row(name, "user.link_used", name, person.role)],
            )
        except Conflict as conflict:
            raise _no_link() from conflict
        return person


def check_name(name: str) -> None:
    """A name that cannot be mistaken for another: small letters, digits, dots and dashes."""
    if unicodedata.normalize("NFKC", name) != name or _NAME.fullmatch(name) is None:
        raise LoopwrightError(
            f"{name[:80]!a} cannot be the name of a user",
            code="bad-user-name",
            hint="use a-z, 0-9, dots, dashes and underscores, at most 63 of them",
        )


def check_password(password: str) -> None:
    if not SHORTEST <= len(password) <= LONGEST:
        raise LoopwrightError(
            f"a password has {SHORTEST} to {LONGEST} characters", code="bad-password"
        )


def as_role(text: str) -> Role:
    for role in ROLES:
        if role == text:
            return role
    raise LoopwrightError(
        f"no role {text!r}", code="unknown-user-role", hint=f"roles are {', '.join(ROLES)}"
    )


def _hashed(password: str) -> str:
    check_password(password)
    return _HASHER.hash(_folded(password))


def _fits(kept: str, password: str) -> bool:
    try:
        return _HASHER.verify(kept, _folded(password))
    except (VerifyMismatchError, InvalidHashError):
        return False


def _folded(password: str) -> str:
    """One spelling for what looks the same, and a bound for what is hashed slowly."""
    text = unicodedata.normalize("NFKC", password)
    return text if len(text) <= LONGEST else hashlib.sha256(text.encode()).hexdigest()


def _no_link() -> LoopwrightError:
    """The same answer for a link that is unknown, used or too old."""
    return LoopwrightError(
        "this link is not good any more", code="bad-link", hint="ask an admin for a new one"
    )
