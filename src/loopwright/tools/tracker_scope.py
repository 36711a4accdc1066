"""The trackers of a stage: its artifacts, todos, sprints, projects and skills, in one scope.

All stages of a session have the same scope, so the next stage finds what an earlier one created.
What the engine itself creates (outputs of stages, a sprint for each iteration) is computed from the
log and cannot be changed here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Protocol

from loopwright.model.record import JsonValue
from loopwright.model.trackers import (
    EVERYBODY,
    MOST_TODOS,
    REVIEW_ROUNDS,
    Item,
    Kind,
    TrackerChange,
    Trackers,
    Values,
    sprint_moved,
    sprint_problem,
)
from loopwright.tools.results import ToolRefusal, as_json


class SkillText(Protocol):
    """A text that describes how to do something."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerScope:
    """The scope that one agent of one run works in."""

    trackers: Trackers
    scope: str
    run: str
    role: str
    now_ms: Callable[[], int]
    project: str = ""
    memory: str = ""  # the scope of memories, which all runs of a workspace share
    # created by the engine, computed from the log
    made: Callable[[Kind], Sequence[Item]] = lambda kind: ()
    skills: Callable[[], Mapping[str, SkillText]] = dict

    # -- what all kinds have in common

    def all(self, kind: Kind) -> list[Item]:
        """All items of a kind: the engine's own, those of the project, those of this scope."""
        shared = self.trackers.all(EVERYBODY, kind) if kind == "sprint" and self.project else []
        of_project = [one for one in shared if one.text("project") == self.project]
        return [*self.made(kind), *of_project, *self.trackers.all(self.scope, kind)]

    def get(self, kind: Kind, item: str) -> Item:
        """One item by its id, or by a prefix that matches only one."""
        found = [one for one in self.all(kind) if item and one.id.startswith(item)]
        exact = [one for one in found if one.id == item]
        if len(exact or found) != 1:
            many = "several" if found else "no"
            raise ToolRefusal(
                "not-found", f"{many} {kind} {item!r} here; {kind}.list has their ids"
            )
        return (exact or found)[0]

    def versions(self, kind: Kind, item: Item) -> list[Item]:
        return self.trackers.versions(self.scope, kind, item.id) or [item]

    def _own(self, change: TrackerChange, kind: Kind, item: str) -> Item:
        """An item that can be changed: what the engine has created is read-only."""
        known = self.get(kind, item)
        found = change.get(known.scope, kind, known.id)
        if found is None:
            raise ToolRefusal("not-yours", f"this {kind} is made by the engine and stays as it is")
        return found

    def _new(self, kind: Kind, key: str, values: Values, number: int = 0) -> Item:
        name = blake2b(f"{key}/{kind}/{number}".encode(), digest_size=16).hexdigest()
        made: Values = {"created_by": self.role, "run": self.run, **values}
        return Item(scope=self.scope, kind=kind, id=name, at=self.now_ms(), values=made)

    def _next(self, item: Item, values: Values) -> Item:
        kept = {**item.values, **values, "updated_by": self.role}
        return Item(scope=item.scope, kind=item.kind, id=item.id, at=self.now_ms(), values=kept)

    def add(self, kind: Kind, key: str, entries: Sequence[Values]) -> str:
        """Create items; the answer has their ids."""

        def work(change: TrackerChange) -> str:
            for values in entries:
                parent = values.get("parent")
                if isinstance(parent, str):
                    self._own(change, kind, parent)
            made = [self._new(kind, key, values, n) for n, values in enumerate(entries)]
            for item in made:
                change.put(item)
            return as_json({"ids": [item.id for item in made]})

        return self.trackers.change(key, work)

    def update(self, kind: Kind, key: str, item: str, values: Values) -> str:
        """Store the next version of an item."""

        def work(change: TrackerChange) -> str:
            found = self._own(change, kind, item)
            change.put(self._next(found, values))
            return as_json({"id": found.id, "version": found.version + 1})

        return self.trackers.change(key, work)

    def drop(self, kind: Kind, key: str, item: str) -> str:
        def work(change: TrackerChange) -> str:
            found = self._own(change, kind, item)
            change.drop(self.scope, kind, found.id)
            return as_json({"id": found.id, "deleted": True})

        return self.trackers.change(key, work)

    # -- what only some have

    def add_todos(self, key: str, todos: Sequence[Values]) -> str:
        if not 0 < len(todos) <= MOST_TODOS:
            raise ToolRefusal("bad-arguments", f"give 1 to {MOST_TODOS} todos in one call")
        plain: Values = {"status": "pending", "priority": "medium"}
        return self.add("todo", key, [{**plain, **todo} for todo in todos])

    def end_todo(self, key: str, item: str) -> str:
        return self.update("todo", key, item, {"status": "completed", "completed_by": self.role})

    def add_sprint(self, key: str, values: Values) -> str:
        plain: Values = {"status": "planned", "review_round": 0, "max_review_rounds": REVIEW_ROUNDS}
        return self.add("sprint", key, [{**plain, "project": self.project, **values}])

    def move_sprint(self, key: str, item: str, to: str, summary: str) -> str:
        def work(change: TrackerChange) -> str:
            found = self._own(change, "sprint", item)
            problem = sprint_problem(found, to)
            if problem is not None:
                raise ToolRefusal("not-possible", problem)
            change.put(self._next(found, sprint_moved(found, to, summary)))
            return as_json({"id": found.id, "status": to})

        return self.trackers.change(key, work)

    def memories(self, query: str = "") -> list[Item]:
        """Memories of this workspace that contain all words of a query."""
        words = query.casefold().split()
        known = self.trackers.all(self.memory, "memory") if self.memory else []
        return [one for one in known if all(word in one.text("text").casefold() for word in words)]

    def remember(self, key: str, text: str) -> str:
        made = replace(self, scope=self.memory).add("memory", key, [{"text": text}])
        return made

    def forget(self, key: str, item: str) -> str:
        return replace(self, scope=self.memory).drop("memory", key, item)

    def projects(self) -> list[JsonValue]:
        """All projects, the one of this run marked."""
        return [
            {"id": one.id, "current": one.id == self.project, **one.values}
            for one in self.trackers.all(EVERYBODY, "project")
        ]

    def skill(self, name: str) -> SkillText:
        known = self.skills()
        if name not in known:
            there = ", ".join(known) or "none"
            raise ToolRefusal("not-found", f"there is no skill {name!r}; there are: {there}")
        return known[name]
