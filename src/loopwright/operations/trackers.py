"""Artifacts, projects, sprints and todos of runs and sessions, for every interface.

Agents use the same trackers through tools. A todo belongs to a session, or to a run without
one; a sprint that a person plans belongs to its project, and all runs of the project see it.
Artifacts are made by runs or uploaded by people. The output of agents' programs is an artifact
of its iteration, derived from the events.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from secrets import token_hex
from typing import NamedTuple

import msgspec

from loopwright.errors import Conflict, LoopwrightError, NotFound
from loopwright.kernel.event_parts import AgentCall
from loopwright.kernel.events import AnyEvent, EffectDone, EffectFailed, EffectRequested, RunStarted
from loopwright.model.plan import Plan, stored_content, stored_plan
from loopwright.model.record import Blob, JsonValue
from loopwright.model.trackers import (
    EVERYBODY,
    MOST_REVIEW_ROUNDS,
    PRIORITIES,
    REVIEW_ROUNDS,
    SPRINT_STATUSES,
    TODO_STATUSES,
    Item,
    Kind,
    TrackerChange,
    Values,
    slug_of,
    sprint_moved,
    sprint_problem,
)
from loopwright.operations.accounts.access import Access
from loopwright.operations.agents.tool_grants import MOST_RUNS, TrackerScopes
from loopwright.operations.api_types import ArtifactItem
from loopwright.operations.run_groups import STATUSES as PROJECT_STATUSES
from loopwright.operations.run_groups import TrackerSessions, make_project
from loopwright.operations.runs import Service
from loopwright.operations.settings import Settings
from loopwright.operations.uploads import File, Uploads, is_file, not_given
from loopwright.ports import AuditRow
from loopwright.stores.sqlite.log import SqliteLog
from loopwright.stores.trackers import SqliteTrackers
from loopwright.views.event_records import timestamp
from loopwright.views.iterations import iteration_of

BLOB = "blob"
"""The value of an item that names its content in the log."""
OUTPUT = "agent_output"


def output_items(
    plan: Plan, events: Iterable[AnyEvent], scope: str, *, several: bool = False
) -> list[Item]:
    """One item for each call whose output was kept: `iteration-2/claude.jsonl.gz`. With
    `several`, names begin with the id of the run.
    """
    calls: dict[str, str] = {}
    names: Counter[str] = Counter()
    items: list[Item] = []
    run = ""
    for event in events:
        if isinstance(event, RunStarted):
            run = event.run
        elif isinstance(event, EffectRequested) and isinstance(event.call, AgentCall):
            calls[event.effect] = event.call.agent
        elif isinstance(event, EffectDone | EffectFailed) and isinstance(event.stream, Blob):
            agent = calls.get(event.effect, "")
            name = _name(plan, agent, iteration_of(event.path, event.iteration))
            names[name] += 1
            title = _counted(name, names[name])
            items.append(
                Item(
                    scope=scope,
                    kind="artifact",
                    id=_output_id(run, event.effect),
                    at=event.at,
                    values={
                        "type": OUTPUT,
                        "title": f"{run}/{title}" if several else title,
                        "size": event.stream.size,
                        "by": agent,
                        BLOB: event.stream.blob,
                    },
                )
            )
    return items


def _output_id(run: str, effect: str) -> str:
    return f"out_{blake2b(f'{run}/{effect}'.encode(), digest_size=8).hexdigest()}"


def _name(plan: Plan, agent: str, iteration: int | None) -> str:
    """The iteration and the agent: a coding CLI by its own name, others as the plan names them."""
    known = plan.agents.get(agent)
    spec = known.spec or "" if known is not None else ""
    program, colon, _ = spec.partition(":")
    words = spec.split()
    label = words[0] if words and not colon else agent or "agent"
    safe = "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in label)
    kind = "txt" if program == "command" else "jsonl"
    place = f"iteration-{iteration}/" if iteration is not None else ""
    return f"{place}{safe}.{kind}.gz"


def _counted(name: str, number: int) -> str:
    """The second call of an agent in the same iteration has another name."""
    if number == 1:
        return name
    place, slash, file = name.rpartition("/")
    stem, dot, rest = file.partition(".")
    return f"{place}{slash}{stem}-{number}{dot}{rest}"


UPLOAD_BYTES = 64_000_000


class ArtifactScope(NamedTuple):
    """Whose artifacts are meant: those of a session, or of a run alone."""

    scope: str
    run: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactAccess:
    """Everything that an interface needs for artifacts."""

    log: SqliteLog
    tracker_scopes: TrackerScopes
    uploads: Uploads
    access: Access

    def of_run(self, run: str) -> ArtifactScope:
        """Of the session of a run, where it has one."""
        return ArtifactScope(self.log.row(run).headline.session or run, run)

    def of_session(self, name: str) -> ArtifactScope:
        return ArtifactScope(TrackerSessions(self.log, self.log, self.access).get(name).id, None)

    def all(self, where: ArtifactScope) -> list[Item]:
        """Each in its newest version: what runs made, what was given, what agents printed."""
        made = self.tracker_scopes.made(where.scope, "artifact", run=where.run)
        given = self.uploads.trackers.all(where.scope, "artifact")
        return [*made, *given, *self._outputs(where)]

    def _outputs(self, where: ArtifactScope) -> list[Item]:
        """The output streams of agents, of a run or of the newest runs of a session."""
        runs = (
            [where.run]
            if where.run
            else [row.run for row in reversed(self.log.rows(session=where.scope, limit=MOST_RUNS))]
        )
        found: list[Item] = []
        for run in runs:
            events = [one.event for one in self.log.read(run)]
            first = events[0]
            assert isinstance(first, RunStarted), "every run begins so"
            plan = stored_plan(self.log.blob, first.plan)
            found += output_items(plan, events, where.scope, several=len(runs) > 1)
        return found

    def content(self, item: Item) -> tuple[bytes, str]:
        """The bytes of an artifact, and their hash."""
        blob = item.text(BLOB)
        return (stored_content(self.log.blob, blob), blob) if blob else self.uploads.content(item)

    def versions(self, where: ArtifactScope, name: str) -> list[Item]:
        """All versions of an artifact, the newest last."""
        kept = self.uploads.trackers.versions(where.scope, "artifact", name)
        found = kept or [one for one in self.all(where) if name in (one.id, _path(one))]
        if not found:
            raise NotFound(f"no artifact {name[:80]!a}")
        return found

    def version(self, where: ArtifactScope, name: str, number: int | None) -> Item:
        """One of them; without a number the newest."""
        found = [one for one in self.versions(where, name) if number in (None, one.version)]
        if not found:
            raise NotFound(f"no version {number} of this artifact")
        return found[-1]

    def added(self, where: ArtifactScope, files: list[File], *, by: str) -> AuditRow:
        """What the record says of who gave them."""
        return self.access.row(by, "artifact.added", where.scope, f"{len(files)} files")

    async def remove(self, where: ArtifactScope, name: str, *, by: str) -> None:
        """All of it is deleted at once: a person who uploaded a secret by mistake must be able to
        delete it. Artifacts created by a run stay with the run.
        """
        item = self._removable(where, name)
        await self.uploads.forget_aside([(where.scope, name)], [self._removed(item, by)])

    def _removable(self, where: ArtifactScope, name: str) -> Item:
        item = self.versions(where, name)[-1]
        if not is_file(item):
            raise not_given(name)
        return item

    def _removed(self, item: Item, by: str) -> AuditRow:
        about = f"{item.text('title')} of {item.scope}"
        return self.access.row(by, "artifact.removed", item.id, about)


def _path(item: Item) -> str | None:
    """The name by which the output of an agent can be asked for; other artifacts have ids only."""
    return item.text("title") if item.text(BLOB) else None


def artifact_view(item: Item) -> ArtifactItem:
    """An artifact without its content, as programs read it."""
    size = item.number("size", -1)
    return ArtifactItem(
        id=item.id,
        version=item.version,
        name=item.text("title") or item.id,
        type=item.text("type"),
        size=size if size >= 0 else len(item.text("content").encode()),
        by=item.text("by") or None,
        at=timestamp(item.at),
    )


def artifacts_in(
    settings: Settings, service: Service, access: Access | None = None
) -> ArtifactAccess:
    """The artifacts of a data directory that this process has opened."""
    log, uploads = _log(service), uploads_in(settings, service)
    tracker_scopes = TrackerScopes(
        log=log, trackers=uploads.trackers, clock=service.clock, data_directory=settings.home
    )
    access = access or access_in(service)
    return ArtifactAccess(log=log, tracker_scopes=tracker_scopes, uploads=uploads, access=access)


def uploads_in(settings: Settings, service: Service) -> Uploads:
    """The files of such a data directory."""
    trackers = SqliteTrackers(_log(service))
    return Uploads(home=settings.home, trackers=trackers, clock=service.clock)


def access_in(service: Service) -> Access:
    """Who does what there."""
    return Access(_log(service), service.clock)


def _log(service: Service) -> SqliteLog:
    assert isinstance(service.log, SqliteLog), "a data directory has its log in a file"
    return service.log


SEARCHED_RUNS = 200
"""Runs of a project whose sprints are shown, the newest ones."""
MOST_TEXT = 500
TrackerView = dict[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerOperations:
    """What a person does with trackers; every change is in the audit log."""

    given: ArtifactAccess
    by: str

    # -- projects

    def projects(self, status: str = "") -> list[TrackerView]:
        """All projects, the oldest first, or those of a status."""
        if status:
            _check("status", status, PROJECT_STATUSES)
        found = self.given.uploads.trackers.all(EVERYBODY, "project")
        return [shown(one) for one in found if status in ("", one.text("status"))]

    def project(self, reference: str) -> TrackerView:
        """One project by its id or its slug, with its sprints."""
        found = self._project(reference)
        return {**shown(found), "sprints": [*self._sprints_of(found)]}

    def create_project(self, title: str, *, slug: str = "", description: str = "") -> TrackerView:
        """A new project. Without a slug, one is made of the title."""
        trackers = self.given.uploads.trackers
        title = _text("title", title)
        if slug and slug != slug_of(slug):
            raise LoopwrightError(
                f"{slug[:80]!r} cannot be a slug", code="bad-value", hint=f"write {slug_of(slug)}"
            )
        if slug and any(one.text("slug") == slug for one in trackers.all(EVERYBODY, "project")):
            raise Conflict(f"there is a project {slug!r}", code="exists")
        now = self.given.tracker_scopes.clock.now_ms()
        made = make_project(trackers, title, description=description, slug=slug, now_ms=now)
        row = self.given.access.row(self.by, "project.created", made.id, made.text("slug"))
        self.given.log.change(audit=[row])
        return shown(made)

    def change_project(self, reference: str, changes: Values) -> TrackerView:
        """Change title, description or status."""
        _check_changes(changes, "project", status=PROJECT_STATUSES)
        return self._changed(self._project(reference), lambda _: changes, *changes)

    def _project(self, reference: str) -> Item:
        known = self.given.uploads.trackers.all(EVERYBODY, "project")
        slugs = [one for one in known if reference and one.text("slug") == reference]
        found = slugs or [one for one in known if reference and one.id.startswith(reference)]
        if len(found) != 1:
            there = ", ".join(one.text("slug") for one in known[-10:]) or "none yet"
            raise NotFound(f"no project {reference[:80]!r}", hint=f"there are: {there}")
        return found[0]

    # -- sprints

    def sprints(self, project: str = "", status: str = "") -> list[TrackerView]:
        """The sprints of a project, or of all active projects, the oldest first."""
        if status:
            _check("status", status, SPRINT_STATUSES)
        if project:
            wanted = [self._project(project)]
        else:
            known = self.given.uploads.trackers.all(EVERYBODY, "project")
            wanted = [one for one in known if one.text("status") == "active"]
        found = [one for each in wanted for one in self._sprints_of(each)]
        return [one for one in found if status in ("", one.get("status"))]

    def _sprints_of(self, project: Item) -> list[TrackerView]:
        """Those that people and agents planned, and the iterations of its loops."""
        trackers = self.given.uploads.trackers
        named = trackers.having("sprint", "project")
        places = dict.fromkeys((one.scope, one.id) for one in named if one.text == project.id)
        planned = [trackers.get(scope, "sprint", name) for scope, name in places]
        made = [one for run in self._runs_of(project) for one in self._iterations(run)]
        found = [one for one in (*planned, *made) if one is not None]
        return [
            {**shown(one), "project": project.id} for one in sorted(found, key=lambda one: one.at)
        ]

    def _runs_of(self, project: Item) -> list[str]:
        found = []
        for row in self.given.log.rows(limit=SEARCHED_RUNS):
            first = self.given.log.read(row.run, limit=1)[0].event
            if isinstance(first, RunStarted) and first.project == project.id:
                found.append(row.run)
        return found

    def _iterations(self, run: str) -> list[Item]:
        made = self.given.tracker_scopes.made(run, "sprint", run=run)
        return [one for one in made if one.text("run") == run]

    def create_sprint(
        self, project: str, title: str, *, criteria: str = "", max_review_rounds: int | None = None
    ) -> TrackerView:
        """Plan a sprint of a project."""
        if max_review_rounds is not None and not 1 <= max_review_rounds <= MOST_REVIEW_ROUNDS:
            raise LoopwrightError(
                f"max_review_rounds must be from 1 to {MOST_REVIEW_ROUNDS}", code="out-of-range"
            )
        values: Values = {
            "title": _text("title", title),
            "criteria": criteria,
            "status": "planned",
            "review_round": 0,
            "max_review_rounds": max_review_rounds or REVIEW_ROUNDS,
            "project": self._project(project).id,
        }
        return self._made("sprint", EVERYBODY, values)

    def move_sprint(self, reference: str, status: str, *, notes: str = "") -> TrackerView:
        """Move a sprint to its next status."""
        _check("status", status, SPRINT_STATUSES)

        def moved(sprint: Item) -> Values:
            problem = sprint_problem(sprint, status)
            if problem is not None:
                raise Conflict(problem, code="wrong-state")
            return sprint_moved(sprint, status, notes)

        return self._changed(self._sprint(reference), moved, "status")

    def _sprint(self, reference: str) -> Item:
        trackers = self.given.uploads.trackers
        named = trackers.having("sprint", "title")
        places = {(one.scope, one.id) for one in named if reference and _fits(one.id, reference)}
        if len(places) != 1:
            raise NotFound(
                f"no sprint {reference[:80]!r}",
                hint="iterations of loops are moved by their loop; list sprints for the others",
            )
        [(scope, name)] = places
        found = trackers.get(scope, "sprint", name)
        assert found is not None, "it was listed"
        return found

    # -- todos

    def todos(self, where: ArtifactScope, status: str = "") -> list[TrackerView]:
        """The todos of a session, or of a run without one."""
        if status:
            _check("status", status, TODO_STATUSES)
        found = self.given.uploads.trackers.all(where.scope, "todo")
        return [shown(one) for one in found if status in ("", one.text("status"))]

    def add_todo(
        self, where: ArtifactScope, title: str, *, priority: str = "medium", parent: str = ""
    ) -> TrackerView:
        """Add a todo; agents of the session find it in their list."""
        _check("priority", priority, PRIORITIES)
        values: Values = {"title": _text("title", title), "status": "pending", "priority": priority}
        if parent:
            values["parent"] = self._todo(where, parent).id
        return self._made("todo", where.scope, values)

    def change_todo(self, where: ArtifactScope, reference: str, changes: Values) -> TrackerView:
        """Change title, status or priority."""
        _check_changes(changes, "todo", status=TODO_STATUSES, priority=PRIORITIES)
        done: Values = {"completed_by": self.by} if changes.get("status") == "completed" else {}
        return self._changed(self._todo(where, reference), lambda _: {**changes, **done}, *changes)

    def remove_todo(self, where: ArtifactScope, reference: str) -> str:
        """Delete a todo, with all its versions; its id."""
        found = self._todo(where, reference)

        def work(book: TrackerChange) -> str:
            book.drop(found.scope, "todo", found.id)
            return found.id

        self._keep(work, "todo.removed", found.id, found.text("title"))
        return found.id

    def _todo(self, where: ArtifactScope, reference: str) -> Item:
        known = self.given.uploads.trackers.all(where.scope, "todo")
        found = [one for one in known if reference and _fits(one.id, reference)]
        if len(found) != 1:
            raise NotFound(f"no todo {reference[:80]!r}", hint=f"of {where.run or where.scope}")
        return found[0]

    # -- all of them

    def _made(self, kind: Kind, scope: str, values: Values) -> TrackerView:
        made: Values = {**values, "created_by": self.by}
        name = token_hex(16)
        item = Item(scope=scope, kind=kind, id=name, at=self._now(), values=made)

        def work(book: TrackerChange) -> str:
            book.put(item)
            return name

        self._keep(work, f"{kind}.created", name, str(values["title"]))
        return self._read(scope, kind, name)

    def _changed(self, item: Item, changes: Callable[[Item], Values], *names: str) -> TrackerView:
        """Keep the next version of a thing; what changes is decided by its newest version."""

        def work(book: TrackerChange) -> str:
            newest = book.get(item.scope, item.kind, item.id)
            if newest is None:
                raise NotFound(f"no {item.kind} {item.id!r}")
            values: Values = {**newest.values, **changes(newest), "updated_by": self.by}
            book.put(msgspec.structs.replace(newest, at=self._now(), values=values))
            return item.id

        self._keep(work, f"{item.kind}.changed", item.id, ", ".join(names))
        return self._read(item.scope, item.kind, item.id)

    def _keep(
        self, work: Callable[[TrackerChange], str], action: str, subject: str, detail: str
    ) -> None:
        row = self.given.access.row(self.by, action, subject, detail)
        self.given.uploads.trackers.change(f"people/{token_hex(16)}", work, [row])

    def _read(self, scope: str, kind: Kind, name: str) -> TrackerView:
        found = self.given.uploads.trackers.get(scope, kind, name)
        assert found is not None, "it was just put there"
        return shown(found)

    def _now(self) -> int:
        return self.given.tracker_scopes.clock.now_ms()


def shown(item: Item) -> TrackerView:
    """A thing as programs read it."""
    return {**item.values, "id": item.id, "version": item.version, "at": timestamp(item.at)}


def _fits(name: str, reference: str) -> bool:
    return name.startswith(reference)


def _text(name: str, value: str) -> str:
    text = value.strip()
    if not 0 < len(text) <= MOST_TEXT:
        code = "too-large" if text else "missing-field"
        raise LoopwrightError(f"{name} must have 1 to {MOST_TEXT} characters", code=code)
    return text


def _check(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise LoopwrightError(
            f"there is no {name} {value[:80]!r}",
            code=f"bad-{name}",
            hint=f"there are {', '.join(known)}",
        )


def _check_changes(changes: Values, kind: str, **words: tuple[str, ...]) -> None:
    if not changes:
        raise LoopwrightError(f"nothing of the {kind} is changed", code="missing-field")
    for name, known in words.items():
        if name in changes:
            _check(name, str(changes[name]), known)
    if "title" in changes:
        changes["title"] = _text("title", str(changes["title"]))
