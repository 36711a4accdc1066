"""Who may come in: roles, and API tokens that are shown once and kept as a hash.

A token is `lwt_ID_SECRET`. The secret has 256 bits of chance, so a plain hash of it is enough and a
request costs no slow one. What a token may do is the least of its own role and of its person's.

A token of a person acts as that person. A token of a program acts as `token:LABEL`, which no person
can be called, and what it makes itself as `token:LABEL/OTHER`: those are the same caller, have no
longer life and no higher role, and end with it.

A process is used by the person who owns it or by a program of a run, which is recognised by the
process tree, whatever its environment says. Commands that only list import this module.
"""

import contextlib
import hashlib
import hmac
import os
import pwd
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

import msgspec

from loopwright.agents.processes.process_tree import InsideRun as InsideRun
from loopwright.agents.processes.process_tree import find_inside_run
from loopwright.errors import (
    Conflict,
    LoopwrightError,
    NotAllowed,
    NotFound,
    NotSignedIn,
    VersionConflict,
)
from loopwright.ports import AuditRow, Clock, EventLog, RecordStore, StoredRecord
from loopwright.views.event_records import request_key

Role: TypeAlias = Literal["viewer", "editor", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "editor", "admin")
"""From the least to the most."""

TOKEN = "token"
PERSON = "person"
PREFIX = "lwt"
FIRST = "first-start"
PROGRAM = "token:"
UNDER = "/"
TRIES = 20
GUARD = ("guard", "people")
DAY_MS = 86_400_000
MAX_DAYS = 3_650
MAX_NAME = 100
DENIED = "Your role does not permit running or modifying workflows"


_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """An authenticated caller."""

    name: str
    role: Role
    by: Literal["token", "session", "socket"] = "token"
    id: str = ""  # of the token or the session; a Unix socket needs neither
    person: str = ""  # whose account it is; empty for programs

    @property
    def root(self) -> str:
        """The identity of the owner, whichever token is used."""
        return root_of(self.name)

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


class PersonRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A person with an account."""

    name: str
    role: Role
    password: str = ""  # a slow hash; empty: not set yet
    active: bool = True
    created_at: int = 0


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An API token as it is kept."""

    id: str
    hash: str
    label: str
    role: Role
    person: str = ""  # empty: made for a program, or at the first start
    created_at: int = 0
    expires_at: int | None = None
    revoked_at: int | None = None
    parent: str = ""  # the token that made it
    root: str = ""  # the name of the program whose token made the first of them

    @property
    def name(self) -> str:
        """Under which name its holder acts."""
        if self.person:
            return self.person
        if self.root:
            return f"{self.root}{UNDER}{self.label}"
        return FIRST if self.label == FIRST else f"{PROGRAM}{self.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token that was just created; its text is shown once and never again."""

    text: str
    token: TokenRecord


class Access:
    """Tokens and the people behind them."""

    def __init__(self, records: RecordStore, clock: Clock, via: str = "cli") -> None:
        self.records = records
        self.clock = clock
        self.via = via

    # -- who asks ------------------------------------------------------------------------------

    def by_token(self, text: str) -> Principal:
        """The owner of this token; NotSignedIn for one that is unknown, expired or revoked."""
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
        return Principal(name=token.name, role=role, by="token", id=token.id, person=token.person)

    def still(self, who: Principal) -> bool:
        """Whether a caller who signed in earlier would still be accepted with the same identity."""
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

    def _active(self, name: str) -> PersonRecord:
        person = self.person(name)
        if person is None:
            raise unknown()
        if not person.active:
            raise deactivated()
        return person

    def person(self, name: str) -> PersonRecord | None:
        record = self.records.record(PERSON, name)
        return None if record is None else msgspec.json.decode(record.body, type=PersonRecord)

    def guard(self) -> tuple[StoredRecord, int]:
        """To be written with what changes accounts, or begins something for one, and to be asked
        for before anything is read that it depends on. So these come one after the other: two
        admins do not each take the other's role, and what ends an account misses nothing of it.
        """
        kind, key = GUARD
        record = self.records.record(kind, key)
        return StoredRecord(kind=kind, key=key, body=b""), 0 if record is None else record.version

    # -- tokens --------------------------------------------------------------------------------

    def first_token(self) -> NewToken | None:
        """The token of the very first start; None when any token was ever made here."""
        if self.records.records(TOKEN, limit=1):
            return None
        token, text = self._made(FIRST, "admin", days=None)
        row = self.row(FIRST, "token.created", token.id, f"{token.role}: {token.label}")
        self.records.change([(_token_record(token), 0)], audit=[row])
        return NewToken(text=text, token=token)

    def new_token(
        self,
        label: str,
        role: Role,
        *,
        by: str,
        person: str = "",
        days: int | None = None,
        guard: tuple[StoredRecord, int] | None = None,
    ) -> NewToken:
        """Make a token; `days` until it expires, None for never."""
        if label.strip() == FIRST and not person:
            raise Conflict(f"{FIRST} is the name of the first token", code="name-taken")
        token, text = self._made(label, role, days=days)
        token = msgspec.structs.replace(token, person=person)
        row = self.row(by, "token.created", token.id, f"{role}: {token.label}")
        guards = [] if guard is None else [guard]
        self.records.change([(_token_record(token), 0), *guards], audit=[row])
        return NewToken(text=text, token=token)

    def child_token(
        self, label: str, role: Role, *, of: Principal, days: int | None = None
    ) -> NewToken:
        """A token that a token makes: for the same person or program, never for longer or more."""
        token, text = self._made(label, role, days=days)

        def work() -> NewToken:
            guard = self.guard()
            record = self.records.record(TOKEN, of.id)
            parent = None if record is None else msgspec.json.decode(record.body, type=TokenRecord)
            if record is None or parent is None or parent.revoked_at is not None:
                raise unknown()
            ends = [one for one in (token.expires_at, parent.expires_at) if one is not None]
            child = msgspec.structs.replace(
                token,
                role=least(role, parent.role),
                person=parent.person,
                expires_at=min(ends, default=None),
                parent=parent.id,
                root="" if parent.person else root_of(parent.name),
            )
            detail = f"{child.role}: {child.label}, by token {parent.id}"
            self.records.change(  # with the parent, which must not be revoked meanwhile
                [(_token_record(child), 0), (_token_record(parent), record.version), guard],
                audit=[self.row(of.name, "token.created", child.id, detail)],
            )
            return NewToken(text=text, token=child)

        return settled(work)

    def _made(self, label: str, role: Role, *, days: int | None) -> tuple[TokenRecord, str]:
        """A token and its text, kept nowhere yet."""
        odd = not label.isprintable() or UNDER in label
        if odd or not label.strip() or len(label) > MAX_NAME:
            hint = f"1 to {MAX_NAME} characters, and no {UNDER}"
            raise LoopwrightError("a token needs a label", code="bad-name", hint=hint)
        if days is not None and not 1 <= days <= MAX_DAYS:
            raise LoopwrightError(
                f"a token lives 1 to {MAX_DAYS} days, not {days}", code="out-of-range"
            )
        now, secret = self.clock.now_ms(), secrets.token_urlsafe(32).replace("_", "-")
        token = TokenRecord(
            id=secrets.token_hex(6),
            hash=digest(secret),
            label=label.strip(),
            role=role,
            created_at=now,
            expires_at=None if days is None else now + days * DAY_MS,
        )
        return token, f"{PREFIX}_{token.id}_{secret}"

    def tokens(self, person: str | None = None) -> list[TokenRecord]:
        return [
            msgspec.json.decode(record.body, type=TokenRecord)
            for record in self.records.records(TOKEN, owner=person)
        ]

    def tokens_of(self, who: Principal) -> list[TokenRecord]:
        """One's own: of a person all, of a program the one it came with and what that made."""
        if who.person:
            return self.tokens(who.person)
        return [token for _, token in self._family(who.id)]

    def revoke(self, token_id: str, *, by: str) -> TokenRecord:
        """Revoke a token and all tokens that it created."""

        def work() -> TokenRecord:
            now, family = self.clock.now_ms(), self._family(token_id)
            if not family:
                raise NotFound(f"no token {token_id!r}", hint="`loopwright token ls` lists them")
            ended = {
                token.id: (record, msgspec.structs.replace(token, revoked_at=now))
                for record, token in family
                if token.revoked_at is None
            }
            if ended:
                self.records.change(
                    [(_token_record(token), record.version) for record, token in ended.values()],
                    audit=[
                        self.row(by, "token.revoked", token.id, token.label)
                        for _, token in ended.values()
                    ],
                )
            return ended[token_id][1] if token_id in ended else family[0][1]

        return settled(work)

    def _family(self, token_id: str) -> list[tuple[StoredRecord, TokenRecord]]:
        """A token and all that it has made, parents before children."""
        records = self.records.records(TOKEN)
        known = [(record, msgspec.json.decode(record.body, type=TokenRecord)) for record in records]
        found = [one for one in known if one[1].id == token_id]
        for _, parent in found:  # it grows under way
            found += [one for one in known if one[1].parent == parent.id]
        return found

    def _token(self, token_id: str) -> TokenRecord | None:
        record = self.records.record(TOKEN, token_id)
        return None if record is None else msgspec.json.decode(record.body, type=TokenRecord)

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


def require(who: Principal, role: Role) -> None:
    """NotAllowed unless the caller has this role or a higher one."""
    if not who.may(role):
        hint = f"this needs the role {role}; {who.name} is {who.role}"
        raise NotAllowed(DENIED, code="role", hint=hint)


def root_of(name: str) -> str:
    """The account of a name that performed an action."""
    return name.partition(UNDER)[0]


def same_somebody(one: str, other: str) -> bool:
    """Whether two names are of the same person or program. Until there were names of programs they
    acted under their bare label, so that is taken for theirs as well.
    """
    return root_of(one).removeprefix(PROGRAM) == root_of(other).removeprefix(PROGRAM)


def settled(work: Callable[[], _Done]) -> _Done:
    """What comes of a change of accounts, tried again whenever another one came in between."""
    for _ in range(TRIES):
        try:
            return work()
        except VersionConflict:
            continue
    raise Conflict("others change accounts just now", code="busy", hint="try again")


def least(one: Role, other: Role) -> Role:
    return min(one, other, key=ROLES.index)


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def deactivated() -> NotAllowed:
    """For a person who has proved their identity and whose account is closed."""
    return NotAllowed("Your account has been deactivated", code="deactivated")


def unknown() -> NotSignedIn:
    """The same answer for whatever is wrong with a token."""
    return NotSignedIn("this token is not known here", hint="`loopwright token create` makes one")


def _token_record(token: TokenRecord) -> StoredRecord:
    return StoredRecord(
        kind=TOKEN, key=token.id, body=msgspec.json.encode(token), owner=token.person
    )


REFUSED_ACTION = "denied"
_ORIGIN = ("origin", "inside-run")
HINT = "a person does that outside of the run; see what an agent can do in docs/security.md"
SHOWN = 200  # characters of what was asked for that are recorded


def find_caller(environment: Mapping[str, str] | None = None) -> InsideRun | None:
    """The run that this process belongs to, or None for a process of a person."""
    return find_inside_run(environment=os.environ if environment is None else environment)


def inside_run_error(inside: InsideRun, what: str, *, hint: str = HINT) -> NotAllowed:
    """The refusal; `what` completes "cannot …"."""
    return NotAllowed(f"{inside.actor} cannot {what}", code="inside-run", hint=hint)


def record_refusal(
    records: RecordStore, inside: InsideRun, what: str, *, at: int, via: str, who: str = ""
) -> None:
    """Write an attempt to the audit log. It is refused also where that cannot be written."""
    name = f", as {who}" if who else ""
    row = AuditRow(
        at=at,
        who=inside.actor,
        action=REFUSED_ACTION,
        subject=what[:SHOWN],
        via=via,
        detail=f"inside-run{name}",
    )
    with contextlib.suppress(LoopwrightError):
        records.change(audit=[row])


def mark_origin(records: RecordStore, inside: InsideRun) -> None:
    """Record that a new data directory was created inside a run."""
    kind, key = _ORIGIN
    body = msgspec.json.encode(inside.runs)
    with contextlib.suppress(LoopwrightError):
        records.change([(StoredRecord(kind=kind, key=key, body=body), 0)])


def is_private(records: RecordStore, inside: InsideRun) -> bool:
    """Whether a data directory was created by a program of the same run."""
    record = records.record(*_ORIGIN)
    if record is None:
        return False
    return not {*msgspec.json.decode(record.body, type=list[str])}.isdisjoint(inside.runs)


def has_run(log: EventLog, run: str) -> bool:
    """Whether a run is in this data directory."""
    return any(row.run == run for row in log.rows(prefix=run, limit=1))


def current_user() -> str:
    """Who acts: the person by the user id of this process, or the agent that it descends from.

    Variables such as USER are not asked, since every program can set them.
    """
    inside = find_caller()
    if inside is not None:
        return inside.actor
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container a number may be all that there is
        return f"uid-{os.getuid()}"


EDITOR: Role = "editor"
_ACTING: ContextVar[Role | None] = ContextVar("acting_role", default=None)


@contextlib.contextmanager
def acting_as(role: Role) -> Iterator[None]:
    """Runs that are started in here are started by a caller with this role."""
    token = _ACTING.set(role)
    try:
        yield
    finally:
        _ACTING.reset(token)


def acting_role() -> Role:
    """The role of the caller; editor if it is not given."""
    return _ACTING.get() or EDITOR


MOST_KNOWN = 10_000


class TooManyRequests(LoopwrightError):
    """A caller has to wait; `headers` tell programs for how long."""

    code = "too-many-requests"

    def __init__(
        self, message: str, *, headers: Mapping[str, str], code: str = "too-many-requests"
    ) -> None:
        super().__init__(message, code=code)
        self.headers = dict(headers)


class Rates:
    """A bucket for each name: `most` at once, and as many again in every `window_ms`."""

    def __init__(self, clock: Clock, most: int, window_ms: int = 1_000) -> None:
        self._clock = clock
        self._most = float(most)
        self._window_ms = window_ms
        self._left: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def count(self, name: str) -> None:
        """Count one; TooManyRequests when the bucket is empty."""
        left, now = self._filled(name)
        if left < 1:
            self._left[name] = (left, now)
            wait_s = max(1, round((1 - left) * self._window_ms / self._most / 1_000 + 0.5))
            raise TooManyRequests(
                f"too many requests; wait {wait_s} s",
                headers={"Retry-After": str(wait_s), **self._fields(wait_s)},
            )
        self._left[name] = (left - 1, now)
        self._left.move_to_end(name)
        while len(self._left) > MOST_KNOWN:  # not all at once: no client can use up the whole limit
            self._left.popitem(last=False)

    def has_left(self, name: str) -> bool:
        """Whether one more would be counted."""
        return self._filled(name)[0] >= 1

    def _filled(self, name: str) -> tuple[float, int]:
        """What is left in a bucket now, and when that is."""
        now = self._clock.now_ms()
        left, then = self._left.get(name, (self._most, now))
        return min(self._most, left + max(now - then, 0) * self._most / self._window_ms), now

    def _fields(self, wait_s: int) -> dict[str, str]:
        """What programs read: nothing is left until then, of so many in a time."""
        window_s = max(1, round(self._window_ms / 1_000))
        return {
            "RateLimit": f'"requests";r=0;t={wait_s}',
            "RateLimit-Policy": f'"requests";q={self._most:.0f};w={window_s}',
        }
