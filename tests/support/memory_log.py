"""A log in plain dictionaries, with the behaviour of the real one, for tests and simulation.

A `MemoryStore` is the disk, a `MemoryLog` is a process that uses it: several logs over one store
are several processes. An append goes through `deliver` twice, once to be committed and once to be
reported. A simulation that drops a delivery has a crash before the commit or after it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from loopwright.errors import LoopwrightError
from loopwright.kernel.events import NO_USAGE, Usage
from loopwright.ports import (
    OPEN_STATUSES,
    Append,
    AuditRow,
    ClosedGate,
    Headline,
    Liveness,
    NumberedEvent,
    OpenGate,
    Owner,
    RunDetails,
    RunListing,
    RunRow,
    RunStatus,
    StoredRecord,
    UsageRow,
    decode_figures,
    encode_figures,
)
from loopwright.stores import appends
from loopwright.stores.appends import (
    Digest,
    Done,
    PendingAppend,
    Segment,
    Subscribers,
    Watcher,
    followed,
    genesis,
    inspect,
    link,
    numbered,
    submit_appends,
    validate_append,
)
from loopwright.stores.sqlite.tables import content_hashes, live_owners, open_run_error

Deliver = Callable[[Callable[[], None]], None]


@dataclass(slots=True)
class _Run:
    headline: Headline
    segments: list[Segment] = field(default_factory=list)
    owner: Owner | None = None
    figures: str = ""
    details: RunDetails | None = None
    used: dict[tuple[str, int], UsageRow] = field(default_factory=dict)  # by agent and day

    @property
    def version(self) -> int:
        return self.segments[-1].last if self.segments else 0


@dataclass(slots=True)
class MemoryStore:
    """What a disk would hold."""

    runs: dict[str, _Run] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    gates: dict[str, OpenGate] = field(default_factory=dict)
    closed_gates: dict[str, ClosedGate] = field(default_factory=dict)
    writes: int = 0
    order: list[str] = field(default_factory=list)  # the run of every append, oldest first
    audit: list[AuditRow] = field(default_factory=list)
    records: list[StoredRecord] = field(default_factory=list)


def _to_running_loop(call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(call)


class MemoryLog:
    """One process's view of a store. `deliver` calls the functions it receives, now or later, in
    order.
    """

    def __init__(
        self,
        *,
        alive: Liveness,
        store: MemoryStore | None = None,
        deliver: Deliver = _to_running_loop,
    ) -> None:
        self._disk = store if store is not None else MemoryStore()
        self.alive = alive
        self._deliver = deliver
        self._telling = Subscribers()
        self._waiting: deque[PendingAppend] = deque()
        self._closed = False
        self._own_writes = 0
        self._seen = self._disk.writes

    def submit(self, append: Append, done: Done) -> None:
        """Queue an append; commit and answer each go through `deliver`."""
        self._store()
        try:
            entry = validate_append(append, done)
        except LoopwrightError as error:
            refusal = error
            self._deliver(lambda: done(refusal))
            return
        self._waiting.append(entry)
        self._deliver(self._commit_next)

    async def append(self, append: Append) -> None:
        """`submit` and wait."""
        await submit_appends(self.submit, append)

    def subscribe(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with run and version after every append; the returned function
        ends that.
        """
        return self._telling.subscribe(watcher)

    def read(
        self, run: str, after: int = 0, limit: int | None = None, *, as_is: bool = False
    ) -> list[NumberedEvent]:
        """Events with numbers above `after`, in order, at most `limit`. `as_is`: even if their hash
        chain is broken.
        """
        after = max(after, 0)
        events: list[NumberedEvent] = []
        segments = self._run(run).segments
        before = genesis(run)
        for segment in segments:
            if segment.last > after:
                found = (
                    numbered(run, segment.seq, segment.body)
                    if as_is
                    else followed(run, before, segment)
                )
                events += [one for one in found if one.seq > after]
            before = segment.chain
        return events if limit is None else events[: max(limit, 0)]

    def version(self, run: str) -> int:
        """Number of the newest event of a run."""
        return self._run(run).version

    def head(self, run: str) -> str:
        """The newest value of the hash chain over the events of a run."""
        segments = self._run(run).segments
        return (segments[-1].chain if segments else genesis(run)).hex()

    def blob(self, digest: str) -> bytes:
        """Content by its hash."""
        body = self._store().blobs.get(digest)
        if body is None:
            raise appends.no_blob_error(digest)
        return body

    def row(self, run: str) -> RunRow:
        """The row of one run."""
        found = self._run(run)
        return RunRow(
            run=run,
            version=found.version,
            headline=found.headline,
            owner=found.owner,
            figures=decode_figures(found.figures),
            details=found.details,
            gates=sum(gate.run == run for gate in self._disk.gates.values()),
        )

    def rows(
        self,
        *,
        statuses: Sequence[RunStatus] = (),
        prefix: str = "",
        limit: int | None = None,
        before: str | None = None,
        session: str | None = None,
        key: str | None = None,
    ) -> list[RunRow]:
        """Rows, newest first."""
        names = list(self._store().runs)
        if before is not None:
            names = names[: names.index(before)] if before in names else []
        found = [
            self.row(name)
            for name, run in ((name, self._disk.runs[name]) for name in reversed(names))
            if name.startswith(prefix)
            and (not statuses or run.headline.status in statuses)
            and session in (None, run.headline.session)
            and key in (None, run.headline.key)
        ]
        return found if limit is None else found[: max(limit, 0)]

    def check_end(self, run: str) -> None:
        """Refuse a run whose newest events were changed."""
        segments = self._run(run).segments
        before = segments[-2].chain if len(segments) > 1 else genesis(run)
        followed(run, before, segments[-1])

    def missing(self) -> list[str]:
        """None: no other process can remove runs from a dictionary."""
        return []

    def gates(self, run: str | None = None) -> list[OpenGate]:
        """Open gates, oldest first."""
        found = (gate for gate in self._store().gates.values() if run in (None, gate.run))
        return sorted(found, key=lambda gate: gate.opened_at)

    def find_gates(self, beginning: str, limit: int) -> list[OpenGate | ClosedGate]:
        """Gates whose ids begin so, open ones first."""
        disk = self._store()
        tables = disk.gates, disk.closed_gates
        found = (table[gate] for table in tables for gate in sorted(table))
        return [one for one in found if one.gate.startswith(beginning)][: max(limit, 0)]

    def usage(self, since_day: int = 0) -> list[UsageRow]:
        """Usage since a day, by run, agent and day."""
        rows = (row for run in self._store().runs.values() for row in run.used.values())
        return [row for row in rows if row.day >= since_day]

    def usage_sum(self, since_day: int = 0, run: str = "", agent: str = "") -> Usage:
        """The sum of usage since a day: of all runs, or of one agent of one run."""
        rows = self.usage(since_day)
        wanted = (row for row in rows if not run or (row.run, row.agent) == (run, agent))
        return sum((row.usage for row in wanted), NO_USAGE)

    def unlisted(self) -> list[str]:
        """None: nothing is older than this log."""
        return []

    def replace_listing(self, run: str, listing: RunListing) -> None:
        """Store what lists show of a run as its events say."""
        found, disk, head = self._run(run), self._disk, listing.headline
        if found.version != listing.version:
            return
        found.used = {(row.agent, row.day): row for row in listing.usage}
        found.headline = replace(found.headline, labels=head.labels, surface=head.surface)
        found.figures, found.details = encode_figures(listing.figures), listing.details
        disk.gates.update({gate.gate: gate for gate in listing.open_gates})
        disk.closed_gates.update({gate.gate: gate for gate in listing.closed_gates})

    def claim(self, runs: Iterable[str], owner: Owner) -> dict[str, Owner | None]:
        """Claim runs for this owner. NotFound, and nothing claimed, if one does not exist."""
        self._flush()
        found = {name: self._run(name) for name in runs}
        kept = {name: _keeper(run.owner, run.headline) for name, run in found.items()}
        answer = live_owners(kept, owner, self.alive)
        for name, keeper in answer.items():
            if keeper is None:
                found[name].owner = owner
        self._wrote()
        return answer

    def release(self, runs: Iterable[str], owner: Owner) -> None:
        """Release runs; runs of other owners are not changed."""
        self._flush()
        for name in runs:
            run = self._store().runs.get(name)
            if run is not None and run.owner is not None and run.owner.token == owner.token:
                run.owner = None
        self._wrote()

    def forget(self, runs: Iterable[str], audit: Sequence[AuditRow] = ()) -> int:
        """See the port."""
        disk, named = self._store(), list(runs)
        for run in named:
            if self._run(run).headline.status in OPEN_STATUSES:
                raise open_run_error(run)
        gone = content_hashes(one.body for run in named for one in disk.runs.pop(run).segments)
        for table in (disk.gates, disk.closed_gates):
            for gate in [gate for gate, row in table.items() if row.run in named]:
                del table[gate]
        left = content_hashes(one.body for run in disk.runs.values() for one in run.segments)
        removed = [name for name in disk.blobs if name.encode() in gone - left]
        for name in removed:
            del disk.blobs[name]
        disk.audit += audit
        self._wrote()
        return len(removed)

    def nudges(self, after: int) -> tuple[list[str], int]:
        """Runs that were changed since the cursor `after`, and the new cursor."""
        disk = self._store()
        order = disk.order
        named = (
            dict.fromkeys(run for run in order[after - 1 :] if run in disk.runs) if after else {}
        )
        return list(named), len(order) + 1

    def changed(self) -> bool:
        """Whether another log over the same store has written since the last call."""
        foreign = self._store().writes - self._own_writes
        changed, self._seen = foreign != self._seen, foreign
        return changed

    def verify(self, run: str, digest: Digest | None = None) -> list[str]:
        """The problems of a run."""
        return inspect(run, self._run(run).segments, self._disk.blobs.get, digest)

    def close(self) -> None:
        """Commit waiting appends and close; further calls fail."""
        if not self._closed:
            self._flush()
            self._closed = True

    def _store(self) -> MemoryStore:
        if self._closed:
            raise appends.closed_error()
        return self._disk

    def _run(self, run: str) -> _Run:
        found = self._store().runs.get(run)
        if found is None:
            raise appends.no_run_error(run)
        return found

    def _wrote(self) -> None:
        self._disk.writes += 1
        self._own_writes += 1

    def _flush(self) -> None:
        while self._waiting:
            self._commit_next()

    def _commit_next(self) -> None:
        if not self._waiting:  # was committed when the log was closed
            return
        entry = self._waiting.popleft()
        refusal = self._refusal(entry.append)
        if refusal is None:
            self._commit(entry)
        self._deliver(lambda: self._telling.tell([(entry, refusal)]))

    def _refusal(self, append: Append) -> LoopwrightError | None:
        disk = self._disk
        run = disk.runs.get(append.run)
        owner = run.owner if run is not None else None
        if append.token is not None and (owner is None or owner.token != append.token):
            return appends.fenced_error(append.run)
        version = run.version if run is not None else 0
        if append.expected != version:
            return appends.stale_error(append, version)
        headline = append.headline
        if headline is not None and headline.key and headline.status in OPEN_STATUSES:
            for name, other in disk.runs.items():
                if name != append.run and _holds(other.headline, headline.key):
                    return appends.key_in_use_error(headline.key, name)
        for gate in append.gates_opened:
            holder = disk.gates.get(gate.gate)
            if holder is not None and holder.run != append.run:
                return appends.gate_answered_error(gate.gate, holder.run)
        return None

    def _commit(self, entry: PendingAppend) -> None:
        append, disk = entry.append, self._disk
        run = disk.runs.get(append.run)
        if append.headline is not None:
            if run is None:
                run = _Run(append.headline, owner=append.owner, details=append.details)
                disk.runs[append.run] = run
            run.headline = replace(append.headline)
        assert run is not None  # the first append has a headline, which validation ensures
        if entry.count:
            run.figures = append.figures or run.figures
            before = run.segments[-1].chain if run.segments else genesis(append.run)
            first, last = run.version + 1, run.version + entry.count
            run.segments.append(Segment(first, last, entry.body, link(before, entry.body)))
            disk.order.append(append.run)
        for digest, body in append.blobs.items():
            disk.blobs[digest] = body
        for row in append.usage:
            known = run.used.get((row.agent, row.day), replace(row, calls=0, usage=NO_USAGE))
            run.used[row.agent, row.day] = replace(
                known, calls=known.calls + row.calls, usage=known.usage + row.usage
            )
        disk.audit += append.audit
        disk.records += append.records
        for gate in append.gates_opened:
            disk.gates[gate.gate] = gate
            disk.closed_gates.pop(gate.gate, None)
        for closed in append.gates_closed:
            if closed.gate in disk.gates and disk.gates[closed.gate].run == append.run:
                del disk.gates[closed.gate]
            if closed.gate not in disk.gates:
                disk.closed_gates.setdefault(closed.gate, closed)
        self._wrote()


def _holds(headline: Headline, key: str) -> bool:
    return headline.key == key and headline.status in OPEN_STATUSES


def _keeper(owner: Owner | None, headline: Headline) -> Owner | None:
    """A run that has ended has no owner."""
    return owner if headline.status in OPEN_STATUSES else None
