"""Projects, sprints and todos as people view, create and change them, for every interface.

Agents use the same trackers by their tools. A todo belongs to a session, or to a run without one; a
sprint that a person plans belongs to its project, and all runs of the project see it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex

import msgspec

from loopwright.app.given import Given, Where
from loopwright.app.moments import timestamp
from loopwright.app.projects import STATUSES as PROJECT_STATUSES
from loopwright.app.projects import make_project
from loopwright.errors import Conflict, LoopwrightError, NotFound
from loopwright.kernel.facts import RunStarted
from loopwright.model.record import JsonValue
from loopwright.model.trackers import (
    EVERYBODY,
    MOST_REVIEW_ROUNDS,
    PRIORITIES,
    REVIEW_ROUNDS,
    SPRINT_STATUSES,
    TODO_STATUSES,
    Book,
    Item,
    Kind,
    Values,
    slug_of,
    sprint_moved,
    sprint_problem,
)

MOST_RUNS = 200
"""Runs of a project whose sprints are shown, the newest ones."""
MOST_TEXT = 500
Told = dict[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerOperations:
    """What a person does with trackers; every change is in the audit log."""

    given: Given
    by: str

    # -- projects

    def projects(self, status: str = "") -> list[Told]:
        """All projects, the oldest first, or those of a status."""
        if status:
            _check("status", status, PROJECT_STATUSES)
        found = self.given.uploads.trackers.all(EVERYBODY, "project")
        return [shown(one) for one in found if status in ("", one.text("status"))]

    def project(self, reference: str) -> Told:
        """One project by its id or its slug, with its sprints."""
        found = self._project(reference)
        return {**shown(found), "sprints": [*self._sprints_of(found)]}

    def create_project(self, title: str, *, slug: str = "", description: str = "") -> Told:
        """A new project. Without a slug, one is made of the title."""
        trackers = self.given.uploads.trackers
        title = _text("title", title)
        if slug and slug != slug_of(slug):
            raise LoopwrightError(
                f"{slug[:80]!r} cannot be a slug", code="bad-value", hint=f"write {slug_of(slug)}"
            )
        if slug and any(one.text("slug") == slug for one in trackers.all(EVERYBODY, "project")):
            raise Conflict(f"there is a project {slug!r}", code="exists")
        now = self.given.desks.clock.now_ms()
        made = make_project(trackers, title, description=description, slug=slug, now_ms=now)
        row = self.given.access.row(self.by, "project.created", made.id, made.text("slug"))
        self.given.log.change(audit=[row])
        return shown(made)

    def change_project(self, reference: str, changes: Values) -> Told:
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

    def sprints(self, project: str = "", status: str = "") -> list[Told]:
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

    def _sprints_of(self, project: Item) -> list[Told]:
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
        for row in self.given.log.rows(limit=MOST_RUNS):
            first = self.given.log.read(row.run, limit=1)[0].fact
            if isinstance(first, RunStarted) and first.project == project.id:
                found.append(row.run)
        return found

    def _iterations(self, run: str) -> list[Item]:
        made = self.given.desks.made(run, "sprint", run=run)
        return [one for one in made if one.text("run") == run]

    def create_sprint(
        self, project: str, title: str, *, criteria: str = "", max_review_rounds: int | None = None
    ) -> Told:
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

    def move_sprint(self, reference: str, status: str, *, notes: str = "") -> Told:
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

    def todos(self, where: Where, status: str = "") -> list[Told]:
        """The todos of a session, or of a run without one."""
        if status:
            _check("status", status, TODO_STATUSES)
        found = self.given.uploads.trackers.all(where.scope, "todo")
        return [shown(one) for one in found if status in ("", one.text("status"))]

    def add_todo(
        self, where: Where, title: str, *, priority: str = "medium", parent: str = ""
    ) -> Told:
        """Add a todo; agents of the session find it in their list."""
        _check("priority", priority, PRIORITIES)
        values: Values = {"title": _text("title", title), "status": "pending", "priority": priority}
        if parent:
            values["parent"] = self._todo(where, parent).id
        return self._made("todo", where.scope, values)

    def change_todo(self, where: Where, reference: str, changes: Values) -> Told:
        """Change title, status or priority."""
        _check_changes(changes, "todo", status=TODO_STATUSES, priority=PRIORITIES)
        done: Values = {"completed_by": self.by} if changes.get("status") == "completed" else {}
        return self._changed(self._todo(where, reference), lambda _: {**changes, **done}, *changes)

    def remove_todo(self, where: Where, reference: str) -> Told:
        """Delete a todo, with all its versions."""
        found = self._todo(where, reference)

        def work(book: Book) -> str:
            book.drop(found.scope, "todo", found.id)
            return found.id

        self._keep(work, "todo.removed", found.id, found.text("title"))
        return {"deleted": True, "id": found.id}

    def _todo(self, where: Where, reference: str) -> Item:
        known = self.given.uploads.trackers.all(where.scope, "todo")
        found = [one for one in known if reference and _fits(one.id, reference)]
        if len(found) != 1:
            raise NotFound(f"no todo {reference[:80]!r}", hint=f"of {where.run or where.scope}")
        return found[0]

    # -- all of them

    def _made(self, kind: Kind, scope: str, values: Values) -> Told:
        made: Values = {**values, "created_by": self.by}
        name = token_hex(16)
        item = Item(scope=scope, kind=kind, id=name, at=self._now(), values=made)

        def work(book: Book) -> str:
            book.put(item)
            return name

        self._keep(work, f"{kind}.created", name, str(values["title"]))
        return self._read(scope, kind, name)

    def _changed(self, item: Item, changes: Callable[[Item], Values], *names: str) -> Told:
        """Keep the next version of a thing; what changes is decided by its newest version."""

        def work(book: Book) -> str:
            newest = book.get(item.scope, item.kind, item.id)
            if newest is None:
                raise NotFound(f"no {item.kind} {item.id!r}")
            values: Values = {**newest.values, **changes(newest), "updated_by": self.by}
            book.put(msgspec.structs.replace(newest, at=self._now(), values=values))
            return item.id

        self._keep(work, f"{item.kind}.changed", item.id, ", ".join(names))
        return self._read(item.scope, item.kind, item.id)

    def _keep(self, work: Callable[[Book], str], action: str, subject: str, detail: str) -> None:
        row = self.given.access.row(self.by, action, subject, detail)
        self.given.uploads.trackers.change(f"people/{token_hex(16)}", work, [row])

    def _read(self, scope: str, kind: Kind, name: str) -> Told:
        found = self.given.uploads.trackers.get(scope, kind, name)
        assert found is not None, "it was just put there"
        return shown(found)

    def _now(self) -> int:
        return self.given.desks.clock.now_ms()


def shown(item: Item) -> Told:
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
