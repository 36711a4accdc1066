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

_GATE_FACTS = frozenset({GateOpened, GateAnswered, GateClosed})


def status_of(state: State) -> RunStatus:
    """The status of a run in one word."""
    if state.finished is not None:
        return state.finished.outcome
    if state.control.paused:
        return "paused"
    if all(ends_by_itself(gate) for gate in state.gates.values()):
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


def usage_row(state: State, pending: PendingEffect, fact: UsageEvent) -> UsageRow | None:
    """What an event adds to the usage of its call, as lists add it up; called before the event is
    applied.
    """
    call = pending.call
    if not isinstance(call, CALLED):
        return None
    return _added(UsageRow(run=state.run, agent=call.agent, day=0), fact, pending.used)


def _added(row: UsageRow, fact: UsageEvent, before: Usage | None) -> UsageRow | None:
    """The answer of a call replaces what was recorded while the call ran, also with nothing."""
    if fact.usage is None and (before is None or isinstance(fact, EffectActivity)):
        return None
    added = (fact.usage or NO_USAGE) - (before or NO_USAGE)
    if before is not None and added == NO_USAGE:
        return None
    return replace(row, day=fact.at // DAY_MS, calls=int(before is None), usage=added)


def usage_rows(run: str, facts: Iterable[AnyEvent]) -> list[UsageRow]:
    """The usage of a run, from all its events. Usage copied from another run counts there."""
    agents: dict[str, str] = {}
    used: dict[str, Usage] = {}
    found: dict[tuple[str, int], UsageRow] = {}
    for fact in facts:
        if isinstance(fact, RunForked):
            found.clear()
        elif isinstance(fact, EffectRequested) and isinstance(fact.call, CALLED):
            agents[fact.effect] = fact.call.agent
        elif isinstance(fact, UsageEvent) and fact.effect in agents:
            row = UsageRow(run=run, agent=agents[fact.effect], day=0)
            added = _added(row, fact, used.get(fact.effect))
            if fact.usage is not None:
                used[fact.effect] = fact.usage
            if added is None:
                continue
            key = added.agent, added.day
            before = found.get(key, replace(added, calls=0, usage=NO_USAGE))
            found[key] = replace(
                before, calls=before.calls + added.calls, usage=before.usage + added.usage
            )
    return list(found.values())


def gate_changes(run: str, facts: Sequence[AnyEvent]) -> tuple[list[OpenGate], list[str]]:
    """Rows that these events add to the inbox and remove from it."""
    opened: dict[str, OpenGate] = {}
    closed: list[str] = []
    for fact in facts:
        if type(fact) not in _GATE_FACTS:
            continue
        if isinstance(fact, GateOpened):
            opened[fact.gate] = OpenGate(
                gate=fact.gate,
                run=run,
                path=fact.path,
                digest=fact.digest,
                message=fact.message,
                opened_at=fact.at,
            )
        elif isinstance(fact, GateAnswered | GateClosed) and not opened.pop(fact.gate, None):
            closed.append(fact.gate)
    return list(opened.values()), closed
