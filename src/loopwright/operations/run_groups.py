"""What runs belong to: projects, sessions, and keys and names that are unique among open runs.

Runs of a session share trackers and one event stream. A session is created explicitly, or when
a loop is started in it. At most one open run has a given key.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import Literal, TypeAlias

import msgspec

from loopwright.errors import Conflict, LoopwrightError, NotFound
from loopwright.model.plan import Plan
from loopwright.model.trackers import EVERYBODY, Item, TrackerChange, Trackers, Values, slug_of
from loopwright.operations.accounts.access import Access
from loopwright.ports import OPEN_STATUSES, EventLog, RecordStore, RunRow, StoredRecord
from loopwright.views.event_records import sortable_id

ACTIVE = "project"
STATUSES = ("active", "completed", "archived")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectChoice:
    """The requested project of a loop."""

    definition: str
    goal: str
    session: str = ""
    id: str = ""
    slug: str = ""


def project_for(trackers: Trackers, options: ProjectChoice, *, now_ms: int, key: str = "") -> Item:
    """The project that is named, else the active one of the session, else a new one."""
    if options.id and options.slug:
        raise LoopwrightError(
            "name a project by its id or by its slug, not by both", code="two-projects"
        )
    known = trackers.all(EVERYBODY, "project")
    if options.id or options.slug:
        for one in known:
            if (options.id and one.id == options.id) or (
                options.slug and one.text("slug") == options.slug
            ):
                return one
        raise NotFound(f"there is no project {options.id or options.slug!r}", hint=_hint(known))
    active = active_project(trackers, options.session)
    return active or _made_for(trackers, options, now_ms=now_ms, key=key or token_hex(16))


def _hint(known: list[Item]) -> str:
    there = ", ".join(one.text("slug") for one in known[:10]) or "none yet"
    return f"leave it out to have one made; there are: {there}"


def _made_for(trackers: Trackers, options: ProjectChoice, *, now_ms: int, key: str) -> Item:
    values: Values = {
        "title": f"Loop: {options.definition}",
        "slug": f"loop-{slug_of(options.definition)}",
        "description": options.goal,
        "status": "active",
    }
    return _created(trackers, key, values, now_ms=now_ms)


def make_project(
    trackers: Trackers, title: str, *, description: str = "", slug: str = "", now_ms: int
) -> Item:
    """A project of a person. Without a slug, it is derived from the title."""
    values: Values = {
        "title": title,
        "slug": slug or slug_of(title),
        "description": description,
        "status": "active",
    }
    return _created(trackers, token_hex(16), values, now_ms=now_ms)


def _created(trackers: Trackers, key: str, values: Values, *, now_ms: int) -> Item:
    """Store a project; its slug gets a suffix if another project has it."""
    name = blake2b(f"{key}/project".encode(), digest_size=16).hexdigest()

    def work(change: TrackerChange) -> str:
        slug = values["slug"]
        if any(one.text("slug") == slug for one in change.all(EVERYBODY, "project")):
            slug = f"{slug}-{name[:8]}"
        stored = {**values, "slug": slug}
        change.put(Item(scope=EVERYBODY, kind="project", id=name, at=now_ms, values=stored))
        return name

    made = trackers.get(EVERYBODY, "project", trackers.change(f"project/{key}", work))
    assert made is not None, "it was put there"
    return made


def active_project(trackers: Trackers, session: str) -> Item | None:
    """The project that a session works on."""
    chosen = trackers.get(session, "active", ACTIVE) if session else None
    return trackers.get(EVERYBODY, "project", chosen.text("id")) if chosen is not None else None


KIND = "loop-session"
MOST = 500


class TrackerSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session; a closed one accepts no further loops."""

    id: str
    title: str = ""
    by: str = ""
    created_at: int | None = None
    closed_at: int | None = None


class TrackerSessions:
    """The sessions of a data directory."""

    def __init__(self, log: EventLog, records: RecordStore, access: Access) -> None:
        self._log = log
        self._records = records
        self._access = access

    def all(self) -> list[TrackerSession]:
        """Those that were made, newest first."""
        found = [_decoded(record) for record in self._records.records(KIND, limit=MOST)]
        return sorted(found, key=lambda one: -(one.created_at or 0))

    def get(self, name: str) -> TrackerSession:
        """A session; NotFound if it was not created and no loop was started with it."""
        record = self._records.record(KIND, name) if name else None
        if record is not None:
            return _decoded(record)
        if name and self._log.rows(session=name, limit=1):
            return TrackerSession(id=name)
        raise NotFound(f"there is no session {name[:80]!a}", code="session-not-found")

    def make(self, title: str, *, by: str) -> TrackerSession:
        now = self._access.clock.now_ms()
        made = TrackerSession(id=f"ses_{sortable_id(now)}", title=title, by=by, created_at=now)
        audit = [self._access.row(by, "session.made", made.id)]
        self._records.change([(_record(made), 0)], audit=audit)
        return made

    def close(self, name: str, *, by: str) -> TrackerSession:
        """No further loop is started in it; active loops continue."""
        known = self.get(name)
        if known.closed_at is not None:
            raise Conflict(f"{name} is closed", code="session-closed")
        closed = msgspec.structs.replace(known, closed_at=self._access.clock.now_ms())
        audit = [self._access.row(by, "session.closed", name)]
        self._records.change([(_record(closed), None)], audit=audit)
        return closed

    def check(self, name: str) -> None:
        """NotFound or Conflict unless a loop can be started in it."""
        if self.get(name).closed_at is not None:
            raise Conflict(
                f"{name} is closed", code="session-closed", hint="start the loop in another one"
            )


def _decoded(record: StoredRecord) -> TrackerSession:
    return msgspec.json.decode(record.body, type=TrackerSession)


def _record(session: TrackerSession) -> StoredRecord:
    return StoredRecord(kind=KIND, key=session.id, body=msgspec.json.encode(session))


OnDisconnect: TypeAlias = Literal["keep", "teardown"]
"""What happens to a run after the person who started it disconnects: it continues, or it is ended
after a while.
"""

TORN_DOWN = "torn_down"
"""Why a run was ended whose starter was away."""

CANDIDATES = 5  # runs that are named where a reference fits several
Beside: TypeAlias = Callable[[str], Sequence[StoredRecord]]
"""The records that are written together with the first event of a run, by its id."""


def alone(_run: str) -> Sequence[StoredRecord]:
    """Nothing is kept beside it."""
    return ()


def key_of(plan: Plan, workspace: Path, given: str | None) -> str | None:
    """What a run keeps for itself: what its definition is called, or the folder it works in."""
    if given is not None or plan.exclusive is None:
        return given
    return f"workspace {workspace.resolve()}"


def taken(log: EventLog, key: str, refusal: Conflict) -> Conflict:
    """The refusal of a key, with who has it, in which state, and how to get it."""
    held = [row for row in log.rows(statuses=OPEN_STATUSES) if row.headline.key == key]
    if not held:  # it has ended meanwhile
        return refusal
    row = held[0]
    return Conflict(
        f"{row.run} ({row.headline.name}) holds {key}: it is {_state(log, row)}",
        code=refusal.code,
        hint=f"`loopwright resume {row.run}` continues it, `loopwright stop {row.run}` ends it",
    )


def _state(log: EventLog, row: RunRow) -> str:
    status = row.headline.status
    if status == "running" and (row.owner is None or not log.alive(row.owner)):
        return "left behind by a process that is gone"
    return {"waiting": "waiting for a person"}.get(status, status)


def ambiguous(reference: str, runs: Sequence[str]) -> Conflict:
    """A reference that fits several runs, of which some are named."""
    listed = ", ".join(runs[:CANDIDATES]) + (", …" if len(runs) > CANDIDATES else "")
    return Conflict(
        f"{reference!r} fits more than one run: {listed}",
        code="ambiguous",
        hint="write more of the id or its end, or `last` for the newest run",
    )
