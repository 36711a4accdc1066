"""Invariants of every run of a log after any history, and a list of violations.

The numbers (I1), the chain (I2), the laws of the events (I3, I4, I8, I9, I10, I11, I14, I17),
and that every view agrees with the events (I5): the row, the inbox, the tail from any number.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from loopwright.engine.services import SchemaCheck, TextServices
from loopwright.kernel.decide import settle
from loopwright.kernel.events import (
    AgentChanged,
    AnyEvent,
    CancelRequested,
    GateAnswered,
    RunEdited,
    RunPaused,
    RunResumed,
    RunStarted,
    decode_events,
    encode_events,
)
from loopwright.kernel.fold import apply, fold
from loopwright.kernel.state import State
from loopwright.model.plan import Plan, content_hash, decode_plan
from loopwright.model.record import JsonValue
from loopwright.ports import EventLog, NumberedEvent, RunRow
from loopwright.ports.headline import status_of, wake_time
from loopwright.stores.appends import Digest
from tests.support.laws.run import event_problems
from tests.support.laws.spending import Sums
from tests.support.laws.state_picture import picture


class InspectableLog(EventLog, Protocol):
    """A log that can look at its own storage."""

    def verify(self, run: str, digest: Digest | None = None) -> list[str]: ...


def _any_value_fits(schema: dict[str, JsonValue], value: JsonValue) -> None:
    """The schema check of plans without schemas."""


def check_invariants(log: InspectableLog, check_schema: SchemaCheck = _any_value_fits) -> list[str]:
    """Everything that is wrong with any run of a log, in words."""
    return [
        problem if row.run in problem else f"{row.run}: {problem}"
        for row in log.rows()
        for problem in run_problems(log, row.run, check_schema)
    ]


def run_problems(
    log: InspectableLog, run: str, check_schema: SchemaCheck = _any_value_fits
) -> list[str]:
    """Everything that is wrong with one run."""
    entries = log.read(run)
    problems = [*_numbers(log, run, entries), *log.verify(run, content_hash)]
    events = [numbered.event for numbered in entries]
    if not events or not isinstance(events[0], RunStarted):
        return [*problems, "does not begin with its start"]
    plan = decode_plan(log.blob(events[0].plan))
    problems += event_problems(plan, events)
    if problems:
        return problems  # views of events that are wrong say nothing more
    return [*_fold(plan, events), *_views(log, run, plan, events, check_schema)]


def _numbers(log: EventLog, run: str, entries: Sequence[NumberedEvent]) -> Iterator[str]:
    """The numbers are 1..n, and reading on from any of them gives the rest."""
    if [numbered.seq for numbered in entries] != list(range(1, len(entries) + 1)):
        yield f"the numbers are {[numbered.seq for numbered in entries]}"
    if log.version(run) != len(entries):
        yield f"has version {log.version(run)} and {len(entries)} facts"
    middle = len(entries) // 2
    for after in sorted({0, 1, middle, len(entries) - 1, len(entries)}):
        if log.read(run, after=after) != entries[max(after, 0) :]:
            yield f"reading after {after} does not give the rest"
    if log.read(run, after=1, limit=1) != entries[1:2]:
        yield "reading one fact after the first gives another"


def _fold(plan: Plan, events: Sequence[AnyEvent]) -> Iterator[str]:
    """Folding at once, in two parts, or what was read from disk comes to the same; and what was
    used is the sum of the calls after every event (I10).
    """
    whole = picture(fold(plan, events))
    parts = fold(plan, events[: len(events) // 2])
    sums = Sums()
    for event in events[: len(events) // 2]:
        sums.take(event)
    for event in events[len(events) // 2 :]:
        apply(parts, event)
        sums.take(event)
        if parts.usage != sums.whole:
            yield f"counts {parts.usage} as used where the calls come to {sums.whole}"
    if picture(parts) != whole:
        yield "folding in two parts comes to something else"
    if picture(fold(plan, decode_events(encode_events(list(events))))) != whole:
        yield "folding what was written and read comes to something else"


def _views(
    log: EventLog, run: str, plan: Plan, events: Sequence[AnyEvent], check_schema: SchemaCheck
) -> Iterator[str]:
    """Row and inbox say what the events say."""
    state, row = fold(plan, events), log.row(run)
    shown = {gate.gate: (gate.run, gate.path, gate.digest) for gate in log.gates(run)}
    if shown != {name: (run, gate.path, gate.digest) for name, gate in state.gates.items()}:
        yield f"the inbox shows {sorted(shown)}, open are {sorted(state.gates)}"
    if row.version != len(events):
        yield f"the row has version {row.version} of {len(events)}"
    due = settle(fold(plan, events), TextServices(log.blob, check_schema), state.now)
    # Whoever tells a run something from outside shows it as running, for its driver to look; an
    # edit of an agent or of the run itself leaves what is shown.
    newest = next(f for f in reversed(events) if not isinstance(f, AgentChanged | RunEdited))
    told = isinstance(newest, RunPaused | RunResumed | CancelRequested | GateAnswered)
    allowed = {status_of(state), "running"} if told else {status_of(state)}
    if due and not state.control.paused:
        allowed = {"running"}
    if row.headline.status not in allowed:
        yield f"the row says {row.headline.status}, the facts say {' or '.join(sorted(allowed))}"
    yield from _ends(row, state)


def _ends(row: RunRow, state: State) -> Iterator[str]:
    headline = row.headline
    finished = state.finished
    if finished is not None and (headline.reason, headline.finished_at) != (
        finished.reason,
        finished.at,
    ):
        yield f"the row ends with {headline.reason}, the facts with {finished.reason}"
    if headline.wake_at != wake_time(state):
        yield f"the row wakes at {headline.wake_at}, the timers at {wake_time(state)}"
