"""The headline of a run and the rows of lists and inbox, computed from its state and its
events.

It belongs to the ports because the engine writes these rows and views and stores read them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from loopwright.kernel.event_parts import CALLED, NO_USAGE, Usage
from loopwright.kernel.events import (
    AnyEvent,
    EffectActivity,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateClosed,
    GateOpened,
    RunForked,
)
from loopwright.kernel.gates import ends_by_itself
from loopwright.kernel.state import PendingEffect, State
from loopwright.ports import Headline, OpenGate, RunStatus, UsageRow

DAY_MS = 24 * 60 * 60 * 1_000

_GATE_EVENTS = frozenset({GateOpened, GateAnswered, GateClosed})


def status_of(state: State) -> RunStatus:
    """The status of a run in one word."""
    if state.finished is not None:
        return state.finished.outcome
    if state.control.paused:
        return "paused"
    if not state.gates or all(ends_by_itself(gate) for gate in state.gates.values()):
        return "running"
    asking = {gate.effect for gate in state.gates.values() if gate.effect}
    return "running" if len(state.pending) > len(state.queues.timers) + len(asking) else "waiting"


def wake_time(state: State) -> int | None:
    """When the earliest timer of a run is due."""
    return min(state.queues.timers.values()) if state.queues.timers else None


def headline_of(state: State) -> Headline:
    """The current headline of a run."""
    started = state.started
    assert started is not None
    finished = state.finished
    return Headline(
        name=started.name,
        status=status_of(state),
        reason=finished.reason if finished else "",
        dialect=started.dialect,
        workspace=started.workspace,
        started_at=state.times.forked_at or started.at,
        updated_at=state.now,
        finished_at=finished.at if finished else None,
        wake_at=wake_time(state),
        key=started.key,
        session=started.session,
        labels=state.control.labels,
        surface=state.plan.settings.get("surface", ""),
    )


UsageEvent: TypeAlias = EffectActivity | EffectDone | EffectFailed


def usage_row(state: State, pending: PendingEffect, event: UsageEvent) -> UsageRow | None:
    """What an event adds to the usage of its call, as lists add it up; called before the event is
    applied.
    """
    call = pending.call
    if not isinstance(call, CALLED):
        return None
    return _added(UsageRow(run=state.run, agent=call.agent, day=0), event, pending.used)


def _added(row: UsageRow, event: UsageEvent, before: Usage | None) -> UsageRow | None:
    """The answer of a call replaces what was recorded while the call ran, also with nothing."""
    if event.usage is None and (before is None or isinstance(event, EffectActivity)):
        return None
    added = (event.usage or NO_USAGE) - (before or NO_USAGE)
    if before is not None and added == NO_USAGE:
        return None
    return replace(row, day=event.at // DAY_MS, calls=int(before is None), usage=added)


def usage_rows(run: str, events: Iterable[AnyEvent]) -> list[UsageRow]:
    """The usage of a run, from all its events. Usage copied from another run counts there."""
    agents: dict[str, str] = {}
    used: dict[str, Usage] = {}
    found: dict[tuple[str, int], UsageRow] = {}
    for event in events:
        if isinstance(event, RunForked):
            found.clear()
        elif isinstance(event, EffectRequested) and isinstance(event.call, CALLED):
            agents[event.effect] = event.call.agent
        elif isinstance(event, UsageEvent) and event.effect in agents:
            row = UsageRow(run=run, agent=agents[event.effect], day=0)
            added = _added(row, event, used.get(event.effect))
            if event.usage is not None:
                used[event.effect] = event.usage
            if added is None:
                continue
            key = added.agent, added.day
            before = found.get(key, replace(added, calls=0, usage=NO_USAGE))
            found[key] = replace(
                before, calls=before.calls + added.calls, usage=before.usage + added.usage
            )
    return list(found.values())


def gate_changes(run: str, events: Sequence[AnyEvent]) -> tuple[list[OpenGate], list[str]]:
    """Rows that these events add to the inbox and remove from it."""
    opened: dict[str, OpenGate] = {}
    closed: list[str] = []
    for event in events:
        if type(event) not in _GATE_EVENTS:
            continue
        if isinstance(event, GateOpened):
            opened[event.gate] = OpenGate(
                gate=event.gate,
                run=run,
                path=event.path,
                digest=event.digest,
                message=event.message,
                opened_at=event.at,
            )
        elif isinstance(event, GateAnswered | GateClosed) and not opened.pop(event.gate, None):
            closed.append(event.gate)
    return list(opened.values()), closed
