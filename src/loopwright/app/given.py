"""Artifacts of a run or a session as every door has them: made by runs, or given by people."""

from dataclasses import dataclass
from typing import NamedTuple

from loopwright.app.access import Access
from loopwright.app.desks import MOST_RUNS, Desks
from loopwright.app.moments import timestamp
from loopwright.app.service import Service
from loopwright.app.sessions import Sessions
from loopwright.app.settings import Settings
from loopwright.app.uploads import File, Uploads, artifact_item, is_file, not_given
from loopwright.app.views.output_streams import BLOB, output_items
from loopwright.errors import NotFound
from loopwright.kernel.facts import RunStarted
from loopwright.model.plan import stored_content, stored_plan
from loopwright.model.record import JsonValue
from loopwright.model.trackers import Item
from loopwright.ports import AuditRow
from loopwright.stores.sqlite import SqliteLog
from loopwright.stores.trackers import SqliteTrackers

UPLOAD_BYTES = 64_000_000


class Where(NamedTuple):
    """Whose artifacts are meant: those of a session, or of a run alone."""

    scope: str
    run: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Everything about artifacts that a door needs."""

    log: SqliteLog
    desks: Desks
    uploads: Uploads
    access: Access

    def of_run(self, run: str) -> Where:
        """Of the session of a run, where it has one."""
        return Where(self.log.row(run).headline.session or run, run)

    def of_session(self, name: str) -> Where:
        return Where(Sessions(self.log, self.log, self.access).get(name).id, None)

    def all(self, where: Where) -> list[Item]:
        """Each in its newest version: what runs made, what was given, what agents printed."""
        made = self.desks.made(where.scope, "artifact", run=where.run)
        given = self.uploads.trackers.all(where.scope, "artifact")
        return [*made, *given, *self._outputs(where)]

    def _outputs(self, where: Where) -> list[Item]:
        """The output streams of agents, of a run or of the newest runs of a session."""
        runs = (
            [where.run]
            if where.run
            else [row.run for row in reversed(self.log.rows(session=where.scope, limit=MOST_RUNS))]
        )
        found: list[Item] = []
        for run in runs:
            facts = [one.fact for one in self.log.read(run)]
            first = facts[0]
            assert isinstance(first, RunStarted), "every run begins so"
            plan = stored_plan(self.log.blob, first.plan)
            found += output_items(plan, facts, where.scope, several=len(runs) > 1)
        return found

    def content(self, item: Item) -> tuple[bytes, str]:
        """The bytes of an artifact, and their hash."""
        blob = item.text(BLOB)
        return (stored_content(self.log.blob, blob), blob) if blob else self.uploads.content(item)

    def versions(self, where: Where, name: str) -> list[Item]:
        """All versions of an artifact, the newest last."""
        kept = self.uploads.trackers.versions(where.scope, "artifact", name)
        found = kept or [one for one in self.all(where) if name in (one.id, _path(one))]
        if not found:
            raise NotFound(f"no artifact {name[:80]!a}")
        return found

    def version(self, where: Where, name: str, number: int | None) -> Item:
        """One of them; without a number the newest."""
        found = [one for one in self.versions(where, name) if number in (None, one.version)]
        if not found:
            raise NotFound(f"no version {number} of this artifact")
        return found[-1]

    def added(self, where: Where, files: list[File], *, by: str) -> AuditRow:
        """What the record says of who gave them."""
        return self.access.row(by, "artifact.added", where.scope, f"{len(files)} files")

    def remove(self, where: Where, name: str, *, by: str) -> None:
        """Everything of it goes at once: whoever gave a secret by mistake must be able to take it
        back. What a run has made stays with the run.
        """
        item = self._removable(where, name)
        self.uploads.forget([(where.scope, name)], [self._removed(item, by)])

    async def remove_aside(self, where: Where, name: str, *, by: str) -> None:
        """The same; the event loop goes on meanwhile."""
        item = self._removable(where, name)
        await self.uploads.forget_aside([(where.scope, name)], [self._removed(item, by)])

    def _removable(self, where: Where, name: str) -> Item:
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


def told(item: Item) -> dict[str, JsonValue]:
    """An artifact without its content, as programs read it."""
    return {**artifact_item(item), "at": timestamp(item.at)}


def given_in(settings: Settings, service: Service) -> Given:
    """The artifacts of a home that a command has opened by itself."""
    log, uploads = _log(service), uploads_in(settings, service)
    desks = Desks(log=log, trackers=uploads.trackers, clock=service.clock, home=settings.home)
    return Given(log=log, desks=desks, uploads=uploads, access=access_in(service))


def uploads_in(settings: Settings, service: Service) -> Uploads:
    """The files of such a home."""
    trackers = SqliteTrackers(_log(service))
    return Uploads(home=settings.home, trackers=trackers, clock=service.clock)


def access_in(service: Service) -> Access:
    """Who does what there."""
    return Access(_log(service), service.clock)


def _log(service: Service) -> SqliteLog:
    assert isinstance(service.log, SqliteLog), "a home has its log in a file"
    return service.log
