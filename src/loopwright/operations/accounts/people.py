"""People with accounts: names, roles, passwords, sessions, and the one-time link of the first.

A password is stored as a slow hash. One hash takes about 20 ms, which limits guessing. Code
that must not block computes it in a thread.
"""

import hashlib
import re
import secrets
import unicodedata
from dataclasses import dataclass
from typing import NewType

import msgspec
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerifyMismatchError

from loopwright.errors import Conflict, LoopwrightError, NotAllowed, NotFound, NotSignedIn
from loopwright.operations.accounts.access import (
    FIRST,
    PERSON,
    ROLES,
    TOKEN,
    Access,
    NewToken,
    PersonRecord,
    Principal,
    Role,
    deactivated,
    digest,
    settled,
    unknown,
)
from loopwright.operations.problems import wrong_choice
from loopwright.ports import AuditRow, StoredRecord

Hashed = NewType("Hashed", str)
SHORTEST, LONGEST = 8, 128
_HASHER = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
NOBODY = Hashed(_HASHER.hash("nobody"))
"""So that an unknown name takes as long as a wrong password."""


def check_password(password: str) -> None:
    if not SHORTEST <= len(password) <= LONGEST:
        raise LoopwrightError(
            f"a password has {SHORTEST} to {LONGEST} characters", code="bad-password"
        )


def hashed(password: str) -> Hashed:
    check_password(password)
    return Hashed(_HASHER.hash(_folded(password)))


def fits(kept: str, password: str) -> bool:
    try:
        return _HASHER.verify(kept, _folded(password))
    except (VerifyMismatchError, InvalidHashError):
        return False


def _folded(password: str) -> str:
    """One spelling for what looks the same, and a bound for what is hashed slowly."""
    text = unicodedata.normalize("NFKC", password)
    return text if len(text) <= LONGEST else hashlib.sha256(text.encode()).hexdigest()


SESSION = "session"
LINK = "link"
SESSION_MS = 7 * 86_400_000
LINK_MS = 86_400_000
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
SIGN_IN = "name or password is wrong"


class SignInSession(msgspec.Struct, frozen=True, kw_only=True):
    """A person who signed in with a password."""

    person: str
    role: Role  # as it was then; a new role needs a new session
    created_at: int
    expires_at: int


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A link that makes an account, or sets a new password, once."""

    role: Role
    person: str = ""  # empty: the person who uses it chooses a name
    expires_at: int
    used_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """A session just begun; its secret goes into a cookie and is kept nowhere."""

    secret: str
    who: Principal
    expires_at: int


class People:
    """The accounts of a data directory."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.records = access.records
        self.clock = access.clock

    # -- accounts ------------------------------------------------------------------------------

    def all(self) -> list[PersonRecord]:
        return [
            msgspec.json.decode(record.body, type=PersonRecord)
            for record in self.records.records(PERSON)
        ]

    def add(
        self, name: str, role: Role, *, by: str, password: Hashed | None = None
    ) -> PersonRecord:
        """Make an account; without a password it is for tokens, or for a link that sets one."""
        check_name(name)
        now = self.clock.now_ms()
        person = PersonRecord(name=name, role=role, password=password or "", created_at=now)

        def work() -> PersonRecord:
            guard = self.access.guard()
            if self.access.person(name) is not None:
                raise _taken(name)
            row = self.access.row(by, "user.added", name, role)
            self.records.change([(_record(person), 0), guard], audit=[row])
            return person

        return settled(work)

    def change(
        self,
        name: str,
        *,
        by: str,
        role: Role | None = None,
        active: bool | None = None,
        password: Hashed | None = None,
    ) -> PersonRecord:
        """Another role, state or password, all at once. Sessions end with another role or password,
        and count for nothing while an account is closed; tokens have the least of both roles.
        """

        def work() -> PersonRecord:
            guard = self.access.guard()
            person = self._known(name)
            changed = msgspec.structs.replace(
                person,
                role=person.role if role is None else role,
                active=person.active if active is None else active,
                password=person.password if password is None else password,
            )
            if not _is_admin(changed):
                self._keep_an_admin(person)
            rows = self._rows(person, changed, by)
            if rows:
                drops = self._ended(person, changed)
                self.records.change([(_record(changed), None), guard], drops=drops, audit=rows)
            return changed

        return settled(work)

    def _rows(self, person: PersonRecord, changed: PersonRecord, by: str) -> list[AuditRow]:
        """What is recorded about a change."""
        said: list[tuple[str, str]] = []
        if changed.role != person.role:
            said.append(("user.role", f"{person.role} to {changed.role}"))
        if changed.active != person.active:
            said.append(("user.activated" if changed.active else "user.deactivated", ""))
        if changed.password != person.password:
            said.append(("user.password", ""))
        return [self.access.row(by, action, person.name, detail) for action, detail in said]

    def _ended(self, person: PersonRecord, changed: PersonRecord) -> list[tuple[str, str]]:
        """Sessions and links that count no more. The sessions of a closed account are kept so that
        their holders see the reason; a new account of that name does not restore them.
        """
        renewed = changed.password != person.password
        opened = changed.active and not person.active
        drops: list[tuple[str, str]] = []
        if renewed or opened or changed.role != person.role:
            drops += self._sessions(person.name)
        if renewed or not changed.active:
            drops += self._links(person.name)
        return drops

    def remove(self, name: str, *, by: str) -> None:
        """Take an account away, with its sessions, tokens and links."""

        def work() -> None:
            guard = self.access.guard()
            person = self._known(name)
            self._keep_an_admin(person)
            tokens = [
                (record.kind, record.key) for record in self.records.records(TOKEN, owner=name)
            ]
            drops = [(PERSON, name), *self._sessions(name), *self._links(name), *tokens]
            row = self.access.row(by, "user.removed", name, person.role)
            self.records.change([guard], drops=drops, audit=[row])

        settled(work)

    def _known(self, name: str) -> PersonRecord:
        person = self.access.person(name)
        if person is None:
            raise NotFound(f"no user {name!r}", hint="`loopwright user ls` lists them")
        return person

    def _keep_an_admin(self, person: PersonRecord) -> None:
        others = [one for one in self.all() if _is_admin(one) and one.name != person.name]
        if _is_admin(person) and not others:
            raise Conflict(
                f"{person.name} is the last admin", code="last-admin", hint="make another one first"
            )

    def _sessions(self, name: str) -> list[tuple[str, str]]:
        return [(record.kind, record.key) for record in self.records.records(SESSION, owner=name)]

    def _links(self, name: str) -> list[tuple[str, str]]:
        """Links that would set the password of a person."""
        return [
            (record.kind, record.key)
            for record in self.records.records(LINK)
            if msgspec.json.decode(record.body, type=Link).person == name
        ]

    def new_token(
        self, label: str, role: Role, *, by: str, person: str, days: int | None
    ) -> NewToken:
        """A token for a program, or for a person with an account."""

        def work() -> NewToken:
            guard = self.access.guard()
            self._known(person)
            return self.access.new_token(label, role, by=by, person=person, days=days, guard=guard)

        if not person:
            return self.access.new_token(label, role, by=by, days=days)
        return settled(work)

    # -- signing in ----------------------------------------------------------------------------

    def sign_in(self, name: str, password: str) -> SignedIn:
        """Begin a session. A failure takes the same time and has the same message, whatever its
        cause.
        """
        kept = self.password_of(name)
        return self.begin(name, kept if fits(kept, password) else None)

    def password_of(self, name: str) -> Hashed:
        """The hash that a password must match; a hash that never matches if there is none."""
        person = self.access.person(name) if _NAME.fullmatch(name) else None
        return Hashed(person.password) if person is not None and person.password else NOBODY

    def begin(self, name: str, shown: Hashed | None) -> SignedIn:
        """Begin a session for a person whose password matches the stored one, unless that is
        another one by now.
        """
        secret = secrets.token_urlsafe(32)

        def work() -> SignedIn:
            guard = self.access.guard()
            person = self.access.person(name) if _NAME.fullmatch(name) else None
            if person is None or not person.password or person.password != shown:
                raise NotSignedIn(SIGN_IN, code="wrong-password")
            if not person.active:
                raise deactivated()
            now = self.clock.now_ms()
            session = SignInSession(
                person=name, role=person.role, created_at=now, expires_at=now + SESSION_MS
            )
            body, due = msgspec.json.encode(session), session.expires_at
            record = StoredRecord(kind=SESSION, key=digest(secret), body=body, owner=name, due=due)
            row = self.access.row(name, "user.signed_in", name)
            self.records.change([(record, 0), guard], audit=[row])
            who = Principal(name=name, role=person.role, by="session", id=record.key, person=name)
            return SignedIn(secret=secret, who=who, expires_at=due)

        return settled(work)

    def by_session(self, secret: str) -> Principal:
        """The person with this cookie."""
        who = self._session(digest(secret))
        if who is None:
            raise unknown()
        return who

    def still(self, who: Principal) -> bool:
        """Whether a caller who signed in earlier would still be accepted with the same identity."""
        if who.by == "socket":
            return True
        if who.by == "token":
            return self.access.still(who)
        try:
            now = self._session(who.id)
        except NotAllowed:
            return False
        return now is not None and now.role == who.role

    def _session(self, key: str) -> Principal | None:
        record = self.records.record(SESSION, key)
        if record is None or (record.due or 0) <= self.clock.now_ms():
            return None
        session = msgspec.json.decode(record.body, type=SignInSession)
        person = self.access.person(session.person)
        if person is None or person.role != session.role:
            return None
        if not person.active:
            raise deactivated()
        name = person.name
        return Principal(name=name, role=person.role, by="session", id=key, person=name)

    def sign_out(self, who: Principal) -> None:
        """End a session."""
        if who.by == "session":
            row = self.access.row(who.name, "user.signed_out", who.name)
            self.records.change(drops=[(SESSION, who.id)], audit=[row])

    # -- links ---------------------------------------------------------------------------------

    def first_link(self) -> str | None:
        """The code that makes the first admin; None when there are people already."""
        if self.records.records(PERSON, limit=1):
            return None
        old = [(record.kind, record.key) for record in self.records.records(LINK)]
        self.records.change(drops=old)
        return self.link("admin", by=FIRST)

    def link(self, role: Role, *, by: str, person: str = "") -> str:
        """A code that makes an account, or sets the password of one, once and for a day."""
        if person:
            known = self._known(person)
            if not known.active:
                raise Conflict(f"the account of {person} is closed", code="deactivated")
            role = known.role
        code = secrets.token_urlsafe(24)
        link = Link(role=role, person=person, expires_at=self.clock.now_ms() + LINK_MS)
        record = StoredRecord(
            kind=LINK, key=digest(code), body=msgspec.json.encode(link), due=link.expires_at
        )
        row = self.access.row(by, "user.link", person or role)
        self.records.change([(record, 0)], audit=[row])
        return code

    def check_link(self, code: str, name: str) -> Link:
        """The link of a code, for this name; refused alike, whatever is wrong with it."""
        record = self.records.record(LINK, digest(code))
        link = None if record is None else msgspec.json.decode(record.body, type=Link)
        if link is None or link.used_at is not None or link.expires_at <= self.clock.now_ms():
            raise _no_link()
        if link.person:
            known = self.access.person(link.person)
            if link.person != name or known is None or not known.active:
                raise _no_link()
        return link

    def use_link(self, code: str, name: str, password: Hashed) -> PersonRecord:
        """Make the account, or set its password; the link is used up."""

        def work() -> PersonRecord:
            guard = self.access.guard()
            link = self.check_link(code, name)
            check_name(name)
            known = self.access.person(name)
            if known is not None and not link.person:
                raise _taken(name)
            now = self.clock.now_ms()
            person = known or PersonRecord(name=name, role=link.role, created_at=now)
            person = msgspec.structs.replace(person, password=password)
            used = msgspec.structs.replace(link, used_at=now)
            body, key = msgspec.json.encode(used), digest(code)
            spent = StoredRecord(kind=LINK, key=key, body=body, due=link.expires_at)
            others = [one for one in self._links(name) if one != (LINK, key)]
            self.records.change(
                [(spent, None), (_record(person), None), guard],
                drops=[*self._sessions(name), *others],
                audit=[self.access.row(name, "user.link_used", name, person.role)],
            )
            return person

        return settled(work)


def _record(person: PersonRecord) -> StoredRecord:
    return StoredRecord(kind=PERSON, key=person.name, body=msgspec.json.encode(person))


def _is_admin(person: PersonRecord) -> bool:
    return person.role == "admin" and person.active


def _taken(name: str) -> Conflict:
    return Conflict(f"there is a user {name!r} already", code="name-taken")


def check_name(name: str) -> None:
    """A name that cannot be mistaken for another: small letters, digits, dots and dashes."""
    odd = unicodedata.normalize("NFKC", name) != name or _NAME.fullmatch(name) is None
    if odd or name == FIRST:  # the caller with the first token has this name
        raise LoopwrightError(
            f"{name[:80]!a} cannot be the name of a user",
            code="bad-user-name",
            hint="use a-z, 0-9, dots, dashes and underscores, at most 63 of them",
        )


def as_role(text: str) -> Role:
    for role in ROLES:
        if role == text:
            return role
    raise wrong_choice("role", text, ROLES)


def _no_link() -> LoopwrightError:
    """The same answer for a link that is unknown, used or too old."""
    return LoopwrightError(
        "this link is not good any more", code="bad-link", hint="ask an admin for a new one"
    )
