"""What lists and the inbox show of a run, computed from its state and its events: the read model.

It belongs to the ports because the engine writes these rows and views and stores read them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import msgspec

from loopwright.kernel.effects import SHORTAGE
from loopwright.kernel.event_parts import CALLED
from loopwright.kernel.events import (
    NO_USAGE,
    AnyEvent,
    CheckVerdict,
    EffectActivity,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateClosed,
    GateOpened,
    IterationFinished,
    IterationStarted,
    RunForked,
    StepFinished,
    StepSkipped,
    StepStarted,
    TurnTaken,
    Usage,
)
from loopwright.kernel.fold import apply
from loopwright.kernel.frames import (
    CycleBody,
    GateState,
    IterationOwner,
    LeafBody,
    Owner,
    RepeatBody,
)
from loopwright.kernel.gates import ends_by_itself
from loopwright.kernel.reopened_runs import at_cap
from loopwright.kernel.snapshots import has_unrecorded
from loopwright.kernel.state import PendingEffect, State, cap, iterations_made
from loopwright.model.actions import CallAgent
from loopwright.model.ids import BackoffPurpose, CheckBackoffPurpose
from loopwright.ports import (
    DAY_MS,
    NO_SUBJECT,
    AskedCall,
    ClosedGate,
    GateSubject,
    Headline,
    ListedFigures,
    OpenGate,
    RunStatus,
    UsageRow,
    encode_figures,
)

_GATE_EVENTS = frozenset({GateOpened, GateAnswered, GateClosed})
_FREQUENT = frozenset(
    {
        *(CheckVerdict, EffectActivity, EffectDone, EffectFailed, EffectRequested),
        *(IterationFinished, IterationStarted, StepFinished, StepSkipped, StepStarted, TurnTaken),
    }
)
"""Events after which a run that is one loop is in the same loop as before, with the same maximum,
unless the loop has ended.
"""


def status_of(state: State) -> RunStatus:
    """The status of a run in one word."""
    if state.finished is not None:
        return state.finished.outcome
    if state.control.paused:
        return "paused"
    if not state.gates or all(ends_by_itself(gate) for gate in state.gates.values()):
        return "running"
    return "running" if has_calls(state) else "waiting"


def has_calls(state: State) -> bool:
    """Whether calls are under way, besides timers and calls that a gate asks about."""
    asking = {gate.effect for gate in state.gates.values() if gate.effect}
    return len(state.pending) > len(state.queues.timers) + len(asking)


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


def iterations(state: State) -> int:
    """Count the iterations of the outermost loop, or of all loops that ended."""
    loop = state.plan_index.loop
    total = 0
    for step in state.plan.steps:
        ended = state.root.body.results.get(step.id) if state.started else None
        owner = state.root.body.active.get(step.id) if state.started else None
        if isinstance(step.action, CallAgent):
            continue  # older versions recorded the turns of a chat model here
        if ended is not None:
            total += ended.iterations
        elif owner is not None:
            total += iterations_made(owner.body)
    return total if loop is not None or total else 0


def current_loop(state: State) -> RepeatBody | None:
    """The loop that is under way at the top of the run, for a headline."""
    for owner in state.root.body.active.values() if state.started else ():
        if isinstance(owner.body, RepeatBody) and not owner.body.talk.answers_call:
            return owner.body
    return None


def most_iterations(state: State) -> int | None:
    """The maximum number of iterations of a run's loop, including those that a person allowed."""
    running = current_loop(state)
    if running is not None:
        return cap(running)
    loop = state.plan_index.loop
    capped = at_cap(state)
    if loop is not None and len(capped) == 1:
        return next(iter(capped.values())).most
    most = loop.max if loop is not None else None
    if most is not None and state.control.passes is not None:
        most = state.control.passes or None
    # An ended loop has no body any more that knows what was granted to it.
    return None if most is None else max(most, state.reopenings.raised or 0, iterations(state))


def waits_for(state: State) -> str | None:
    """What a run waits for that neither an agent nor a person gives it: `waiting for file
    descriptors`, or `rate limited`.
    """
    for effect in state.queues.timers:
        pending = state.pending.get(effect)
        if pending is None or not isinstance(pending.purpose, BackoffPurpose | CheckBackoffPurpose):
            continue
        answer = _last_failure(pending.owner)
        if not isinstance(answer, EffectFailed):
            continue
        if answer.error.type == SHORTAGE:
            return answer.error.detail.partition(":")[0]
        if answer.error.type == "rate_limited":
            return "rate limited"
    return None


def _last_failure(owner: Owner) -> EffectDone | EffectFailed | None:
    """The answer after which a check, or the call of a place, waits."""
    if isinstance(owner, IterationOwner) and owner.checks.answer is not None:
        return owner.checks.answer
    return owner.body.failure if isinstance(owner.body, LeafBody | CycleBody) else None


def run_usage(state: State) -> Usage:
    """The usage of a run. A program that has just been called, without recorded usage, is a call of
    unknown cost.
    """
    unknown = sum(pending.has_unknown_cost for pending in state.pending.values())
    used = state.usage
    return msgspec.structs.replace(used, unpriced=used.unpriced + unknown) if unknown else used


def _changed(state: State) -> tuple[str, int, int, int] | None:
    """What the whole run changed, as far as its snapshots tell."""
    latest = state.snapshots.latest
    if latest is None or (not latest.total.files and has_unrecorded(state)):
        return None  # that nothing changed is not known
    total = latest.total
    return latest.tree, total.files, total.insertions, total.deletions


def figures_of(state: State) -> ListedFigures:
    """The current figures of a run."""
    used = run_usage(state)
    return ListedFigures(
        iterations=iterations(state),
        max=most_iterations(state),
        is_called=bool(state.agents.served or used.tokens or used.usd or used.unpriced),
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        usd=used.usd,
        unpriced=used.unpriced,
        waits_for=waits_for(state),
        changed=_changed(state),
    )


def figures_after(state: State, events: Iterable[AnyEvent]) -> str:
    """The figures of a run after further events, as stores hold them. They are applied to the
    state.
    """
    for event in events:
        apply(state, event)
    return encode_figures(figures_of(state))


ListedChanges: TypeAlias = tuple[str, Sequence[OpenGate], Sequence[ClosedGate]]
"""The encoded figures, and the gates that open and close."""


class ListedRun:
    """What lists show of a run that is driven. After most events of a loop only the number of its
    iterations has changed, so only this is computed and written again.
    """

    def __init__(self) -> None:
        self._text = ""
        self._rest = ""  # of the text, after the number of iterations
        self._iterations = 0
        self._usage = NO_USAGE
        self._loop: RepeatBody | None = None  # under way; None: compute everything

    def forget(self) -> None:
        """Compute everything next time: the state has changed in other ways."""
        self._loop = None

    def take(self, state: State, batch: Sequence[AnyEvent]) -> ListedChanges:
        """What has changed with these events, which the state includes."""
        if not _FREQUENT.issuperset(map(type, batch)):
            return self._encode(state), *gate_changes(state, batch)
        loop = self._loop
        if (
            loop is None
            or state.usage is not self._usage
            or state.queues.timers
            or state.snapshots.on
            or not state.root.body.active  # the loop has ended
        ):
            return self._encode(state), (), ()
        for pending in state.pending.values():
            if pending.spec:  # the call may have an unknown cost
                return self._encode(state), (), ()
        made = loop.finished + len(loop.active)
        if made != self._iterations:
            self._iterations = made
            self._text = f"[{made}{self._rest}"
        return self._text, (), ()

    def _encode(self, state: State) -> str:
        figures = figures_of(state)
        self._text = text = msgspec.json.encode(figures).decode()  # as `encode_figures`
        self._rest = text[text.index(",") :]
        self._iterations = figures.iterations
        self._usage = state.usage
        is_plain = figures.is_called and figures.unpriced == state.usage.unpriced
        self._loop = current_loop(state) if is_plain and len(state.plan.steps) == 1 else None
        return text


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


def gate_changes(
    state: State, events: Sequence[AnyEvent]
) -> tuple[list[OpenGate], list[ClosedGate]]:
    """Rows that these events, which the state includes, add to the inbox and remove from it."""
    opened: dict[str, OpenGate] = {}
    closed: list[ClosedGate] = []
    for event in events:
        if type(event) not in _GATE_EVENTS:
            continue
        if isinstance(event, GateOpened):
            opened[event.gate] = OpenGate(
                gate=event.gate,
                run=state.run,
                path=event.path,
                digest=event.digest,
                message=event.message,
                opened_at=event.at,
                subject=gate_subject(state, event.gate),
            )
        elif isinstance(event, GateAnswered | GateClosed):
            opened.pop(event.gate, None)
            closed.append(closed_gate(state.run, event))
    return list(opened.values()), closed


def closed_gate(run: str, event: GateAnswered | GateClosed) -> ClosedGate:
    """The row of a gate that an event closes."""
    if isinstance(event, GateAnswered):
        return ClosedGate(event.gate, run, event.at, event.decision, event.by)
    return ClosedGate(event.gate, run, event.at)


def gate_subject(state: State, name: str) -> GateSubject:
    """What an open gate is about, besides its message."""
    gate = state.gates.get(name)
    if gate is None:
        return NO_SUBJECT
    call = asked_call(gate)
    if call is None and gate.snapshot is None:
        return NO_SUBJECT
    return GateSubject(call=call, snapshot=gate.snapshot)


def asked_call(gate: GateState) -> AskedCall | None:
    """The tool call that an open gate asks about; None for every other gate."""
    body = gate.owner.body
    if gate.call is None or not isinstance(body, CycleBody) or body.turn is None:
        return None
    note = body.turn.calls[gate.call - 1]
    return AskedCall(id=note.id, tool=note.tool, arguments=note.arguments, held=note.held)


def iterations_text(state: State) -> str:
    """`3/10`, or nothing for a run without a single loop."""
    if state.plan_index.loop is None:
        return ""
    most = most_iterations(state)
    return f"{iterations(state)}/{most}" if most else str(iterations(state))


def is_turn(state: State, path: str) -> bool:
    """Whether a place is a turn of an agent's conversation, and not an iteration of a
    definition.
    """
    owner = state.owners.get(path)
    return isinstance(owner, IterationOwner) and owner.parent.talk.answers_call
