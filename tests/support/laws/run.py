"""Laws of the events of one run: what must be true, checked on the events and the plan alone.

Nothing here asks the engine: iterations, steps and attempts are counted again, so that a
mistake of the engine cannot hide itself.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from loopwright.kernel.event_parts import AgentCall, ModelCall, SleepCall, SnapshotCall
from loopwright.kernel.events import (
    AnyEvent,
    CancelRequested,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateClosed,
    GateOpened,
    IterationFinished,
    IterationStarted,
    RunFinished,
    RunReopened,
    RunStarted,
    StepFinished,
    StepKept,
    StepRetried,
    StepSkipped,
    StepStarted,
)
from loopwright.model.actions import Steps
from loopwright.model.ids import child_path, iteration_number, parent_path
from loopwright.model.plan import Plan
from tests.support.laws.histories import histories
from tests.support.laws.iterations import passes
from tests.support.laws.messages import letters
from tests.support.laws.openings import PlaceNames, has_ended
from tests.support.laws.order import asked_again, begins_in_order, verdicts
from tests.support.laws.plan_lookup import action_at, loop_at
from tests.support.laws.retries import tries
from tests.support.laws.spending import spending
from tests.support.laws.turns import turns

_REOPENED = {
    "": ("failed", "exhausted"),
    "continue": ("failed", "exhausted", "cancelled"),
    "restart": ("failed", "exhausted", "cancelled"),
}
_BEGINNINGS = (StepStarted, StepRetried, IterationStarted, EffectRequested, GateOpened)


def event_problems(plan: Plan, events: Sequence[AnyEvent]) -> list[str]:
    """Every law that these events break, in words; a run that has not ended may have open ends."""
    ended = has_ended(events)
    return [
        *_frame(events),
        *_effects(events, ended=ended),
        *_timers(events),
        *_gates(events, ended=ended),
        *_places(events, ended=ended),
        *steps_left_open(plan, events),
        *passes(plan, events),
        *_side_by_side(plan, events),
        *tries(plan, events),
        *spending(plan, events),
        *begins_in_order(plan, events),
        *verdicts(plan, events),
        *asked_again(plan, events),
        *letters(events, ended=ended),
        *turns(plan, events),
        *histories(plan, events),
    ]


def _frame(events: Sequence[AnyEvent]) -> Iterator[str]:
    """A run begins once; it ends once, or once more for each time that it was reopened after it
    had failed, met a limit or was stopped; after a stop nothing begins but the last snapshot (I8,
    I14).
    """
    stopped = False
    for number, event in enumerate(events):
        if isinstance(event, RunStarted) != (number == 0):
            yield f"fact {number + 1} is {type(event).__name__}"
        before = events[number - 1] if number else None
        if isinstance(before, RunFinished) and not isinstance(event, RunReopened):
            yield f"fact {number + 1} comes after the end of the run"
        if isinstance(event, RunReopened):
            if getattr(before, "outcome", "") not in _REOPENED[event.mode]:
                yield f"fact {number + 1} reopens a run that has not failed"
            stopped = False
        stopped = stopped or isinstance(event, CancelRequested)
        if stopped and isinstance(event, _BEGINNINGS) and not _is_last_snapshot(event):
            yield f"{type(event).__name__} at {event.path} after the stop"


def _is_last_snapshot(event: AnyEvent) -> bool:
    """Whether an event asks for the snapshot that a stop leaves time for."""
    if not isinstance(event, EffectRequested) or not isinstance(event.call, SnapshotCall):
        return False
    return not event.path and event.call.within_ms > 0


def _effects(events: Sequence[AnyEvent], *, ended: bool) -> Iterator[str]:
    """Each effect is requested once, then answered once (I4)."""
    requested: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    for event in events:
        if isinstance(event, EffectRequested):
            requested[event.effect] += 1
        elif isinstance(event, EffectDone | EffectFailed):
            answered[event.effect] += 1
            if not requested[event.effect]:
                yield f"{event.effect} is answered and was not requested"
    yield from (f"{effect} is requested {n} times" for effect, n in requested.items() if n > 1)
    yield from (f"{effect} is answered {n} times" for effect, n in answered.items() if n > 1)
    if ended:
        yield from (f"{effect} is never answered" for effect in requested - answered)


def _timers(events: Sequence[AnyEvent]) -> Iterator[str]:
    """A timer never fires early (I17); that it fires once is said of every effect."""
    due: dict[str, int] = {}
    for event in events:
        if isinstance(event, EffectRequested) and isinstance(event.call, SleepCall):
            due[event.effect] = event.call.until
        elif isinstance(event, EffectDone) and event.at < due.get(event.effect, event.at):
            yield f"{event.effect} fired {due[event.effect] - event.at} ms early"


def _gates(events: Sequence[AnyEvent], *, ended: bool) -> Iterator[str]:
    """Each gate is opened once and ends once, by a decision that it takes (I11)."""
    opened: dict[str, GateOpened] = {}
    over: Counter[str] = Counter()
    for event in events:
        if isinstance(event, GateOpened):
            if event.gate in opened:
                yield f"{event.gate} is opened twice"
            opened[event.gate] = event
        elif isinstance(event, GateAnswered | GateClosed):
            over[event.gate] += 1
            if event.gate not in opened:
                yield f"{event.gate} ends and was not opened"
            elif (
                isinstance(event, GateAnswered) and event.decision not in opened[event.gate].answers
            ):
                yield f"{event.gate} was answered with {event.decision}"
    yield from (f"{gate} ends {n} times" for gate, n in over.items() if n > 1)
    if ended:
        yield from (f"{gate} is never answered or closed" for gate in opened if not over[gate])


def _is_older_deadline(event: AnyEvent, open_places: Mapping[str, str]) -> bool:
    """The time of a step is that of all its tries: its timer keeps the name of the first."""
    if not isinstance(event, EffectDone | EffectFailed) or "/deadline#" not in event.effect:
        return False
    return event.path.rpartition("~")[0] in open_places


def _places(events: Sequence[AnyEvent], *, ended: bool) -> Iterator[str]:
    """Places begin once inside open ones, and end once, after everything in them (I3)."""
    open_places = {"": ""}  # with the name that places inside go by
    seen: set[str] = set()
    names = PlaceNames()
    for event in events:
        path = getattr(event, "path", "")
        names.take(event)
        if isinstance(event, RunReopened):
            seen = {place for place in seen if not names.may_begin_again(place, event)}
        if isinstance(event, StepStarted | IterationStarted | StepSkipped | StepKept):
            yield from _begins(path, open_places, seen)
            if not isinstance(event, StepSkipped | StepKept):
                open_places[path] = names.inside(path)
        elif (
            path not in open_places
            and path not in open_places.values()
            and not _is_older_deadline(event, open_places)
        ):
            yield f"{type(event).__name__} at {path}, which is not open"
        elif isinstance(event, StepFinished | StepRetried | IterationFinished):
            name = open_places.pop(path, path)
            left = [place for place in open_places if place and parent_path(place) == name]
            if left:
                yield f"{path} ends before {sorted(left)}"
            if isinstance(event, StepRetried):
                open_places[path] = names.inside(path)
    if ended and set(open_places) != {""}:
        yield f"never ended: {sorted(set(open_places) - {''})}"


def _begins(path: str, open_places: dict[str, str], seen: set[str]) -> Iterator[str]:
    if path in seen:
        yield f"{path} begins or is skipped a second time"
    if parent_path(path) not in open_places.values():
        yield f"{path} begins in a place that is not open"
    seen.add(path)


def steps_left_open(plan: Plan, events: Sequence[AnyEvent]) -> Iterator[str]:
    """When a graph ends, each of its steps has begun or was skipped, whatever ended the graph."""
    noted: set[str] = set()
    names = PlaceNames()
    for event in events:
        path = getattr(event, "path", "")
        inside = names.inside(path)
        names.take(event)
        if isinstance(event, StepStarted | StepSkipped | StepKept):
            noted.add(path)
        elif isinstance(event, StepFinished | StepRetried | IterationFinished | RunFinished):
            left = [one for one in _steps_of(plan, event) if child_path(inside, one) not in noted]
            if left:
                yield f"{path or 'the run'} ends and says nothing about {left}"


def _steps_of(plan: Plan, event: AnyEvent) -> list[str]:
    """The steps of the graph that ends; none of another action. A look before the first iteration
    begins nothing.
    """
    if isinstance(event, IterationFinished) and iteration_number(event.path) < 0:
        return []
    action = action_at(plan, getattr(event, "path", "")).action
    return [step.id for step in action.steps] if isinstance(action, Steps) else []


def _side_by_side(plan: Plan, events: Sequence[AnyEvent]) -> Iterator[str]:
    """No more calls and passes are under way at once than the plan allows."""
    calls: set[str] = set()
    passes: Counter[str] = Counter()
    for event in events:
        if isinstance(event, EffectRequested) and _takes_a_place(event):
            calls.add(event.effect)
            if plan.parallel is not None and len(calls) > plan.parallel:
                yield f"{event.effect} is call {len(calls)} at once of {plan.parallel}"
        elif isinstance(event, EffectDone | EffectFailed):
            calls.discard(event.effect)
        elif isinstance(event, IterationStarted):
            path = parent_path(event.path)
            passes[path] += 1
            if passes[path] > _most_at_once(plan, path):
                yield f"{event.path} is pass {passes[path]} at once"
        elif isinstance(event, IterationFinished):
            passes[parent_path(event.path)] -= 1


def _takes_a_place(event: EffectRequested) -> bool:
    """The coordinator listens beside the others."""
    return isinstance(event.call, AgentCall | ModelCall) and event.call.role != "coordinator"


def _most_at_once(plan: Plan, path: str) -> int:
    repeat = loop_at(plan, path)
    return 1 if repeat.each is None else repeat.each.parallel or repeat.each.max_items
