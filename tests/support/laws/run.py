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
from loopwright.model.ids import parent_path
from loopwright.model.plan import Plan
from tests.support.laws.histories import histories
from tests.support.laws.iterations import passes
from tests.support.laws.messages import letters
from tests.support.laws.openings import PlaceNames, has_ended
from tests.support.laws.order import asked_again, begins_in_order, verdicts
from tests.support.laws.plan_lookup import loop_at
from tests.support.laws.retries import tries
from tests.support.laws.spending import spending
from tests.support.laws.turns import turns

_REOPENED = {
    "": ("failed", "exhausted"),
    "continue": ("failed", "exhausted", "cancelled"),
    "restart": ("failed", "exhausted", "cancelled"),
}
_BEGINNINGS = (StepStarted, StepRetried, IterationStarted, EffectRequested, GateOpened)


def fact_problems(plan: Plan, facts: Sequence[AnyEvent]) -> list[str]:
    """Every law that these facts break, in words; a run that has not ended may have open ends."""
    ended = has_ended(facts)
    return [
        *_frame(facts),
        *_effects(facts, ended=ended),
        *_timers(facts),
        *_gates(facts, ended=ended),
        *_places(facts, ended=ended),
        *passes(plan, facts),
        *_side_by_side(plan, facts),
        *tries(plan, facts),
        *spending(plan, facts),
        *begins_in_order(plan, facts),
        *verdicts(plan, facts),
        *asked_again(plan, facts),
        *letters(facts, ended=ended),
        *turns(plan, facts),
        *histories(plan, facts),
    ]


def _frame(facts: Sequence[AnyEvent]) -> Iterator[str]:
    """A run begins once; it ends once, or once more for each time that it was reopened after it
    had failed, met a limit or was stopped; after a stop nothing begins but the last snapshot (I8,
    I14).
    """
    stopped = False
    for number, fact in enumerate(facts):
        if isinstance(fact, RunStarted) != (number == 0):
            yield f"fact {number + 1} is {type(fact).__name__}"
        before = facts[number - 1] if number else None
        if isinstance(before, RunFinished) and not isinstance(fact, RunReopened):
            yield f"fact {number + 1} comes after the end of the run"
        if isinstance(fact, RunReopened):
            if getattr(before, "outcome", "") not in _REOPENED[fact.mode]:
                yield f"fact {number + 1} reopens a run that has not failed"
            stopped = False
        stopped = stopped or isinstance(fact, CancelRequested)
        if stopped and isinstance(fact, _BEGINNINGS) and not _is_last_snapshot(fact):
            yield f"{type(fact).__name__} at {fact.path} after the stop"


def _is_last_snapshot(fact: AnyEvent) -> bool:
    """Whether a fact asks for the snapshot that a stop leaves time for."""
    if not isinstance(fact, EffectRequested) or not isinstance(fact.call, SnapshotCall):
        return False
    return not fact.path and fact.call.within_ms > 0


def _effects(facts: Sequence[AnyEvent], *, ended: bool) -> Iterator[str]:
    """Each effect is requested once, then answered once (I4)."""
    requested: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    for fact in facts:
        if isinstance(fact, EffectRequested):
            requested[fact.effect] += 1
        elif isinstance(fact, EffectDone | EffectFailed):
            answered[fact.effect] += 1
            if not requested[fact.effect]:
                yield f"{fact.effect} is answered and was not requested"
    yield from (f"{effect} is requested {n} times" for effect, n in requested.items() if n > 1)
    yield from (f"{effect} is answered {n} times" for effect, n in answered.items() if n > 1)
    if ended:
        yield from (f"{effect} is never answered" for effect in requested - answered)


def _timers(facts: Sequence[AnyEvent]) -> Iterator[str]:
    """A timer never fires early (I17); that it fires once is said of every effect."""
    due: dict[str, int] = {}
    for fact in facts:
        if isinstance(fact, EffectRequested) and isinstance(fact.call, SleepCall):
            due[fact.effect] = fact.call.until
        elif isinstance(fact, EffectDone) and fact.at < due.get(fact.effect, fact.at):
            yield f"{fact.effect} fired {due[fact.effect] - fact.at} ms early"


def _gates(facts: Sequence[AnyEvent], *, ended: bool) -> Iterator[str]:
    """Each gate is opened once and ends once, by a decision that it takes (I11)."""
    opened: dict[str, GateOpened] = {}
    over: Counter[str] = Counter()
    for fact in facts:
        if isinstance(fact, GateOpened):
            if fact.gate in opened:
                yield f"{fact.gate} is opened twice"
            opened[fact.gate] = fact
        elif isinstance(fact, GateAnswered | GateClosed):
            over[fact.gate] += 1
            if fact.gate not in opened:
                yield f"{fact.gate} ends and was not opened"
            elif isinstance(fact, GateAnswered) and fact.decision not in opened[fact.gate].answers:
                yield f"{fact.gate} was answered with {fact.decision}"
    yield from (f"{gate} ends {n} times" for gate, n in over.items() if n > 1)
    if ended:
        yield from (f"{gate} is never answered or closed" for gate in opened if not over[gate])


def _is_older_deadline(fact: AnyEvent, open_places: Mapping[str, str]) -> bool:
    """The time of a step is that of all its tries: its timer keeps the name of the first."""
    if not isinstance(fact, EffectDone | EffectFailed) or "/deadline#" not in fact.effect:
        return False
    return fact.path.rpartition("~")[0] in open_places


def _places(facts: Sequence[AnyEvent], *, ended: bool) -> Iterator[str]:
    """Places begin once inside open ones, and end once, after everything in them (I3)."""
    open_places = {"": ""}  # with the name that places inside go by
    seen: set[str] = set()
    names = PlaceNames()
    for fact in facts:
        path = getattr(fact, "path", "")
        names.take(fact)
        if isinstance(fact, RunReopened):
            seen = {place for place in seen if not names.may_begin_again(place, fact)}
        if isinstance(fact, StepStarted | IterationStarted | StepSkipped | StepKept):
            yield from _begins(path, open_places, seen)
            if not isinstance(fact, StepSkipped | StepKept):
                open_places[path] = names.inside(path)
        elif (
            path not in open_places
            and path not in open_places.values()
            and not _is_older_deadline(fact, open_places)
        ):
            yield f"{type(fact).__name__} at {path}, which is not open"
        elif isinstance(fact, StepFinished | StepRetried | IterationFinished):
            name = open_places.pop(path, path)
            left = [place for place in open_places if place and parent_path(place) == name]
            if left:
                yield f"{path} ends before {sorted(left)}"
            if isinstance(fact, StepRetried):
                open_places[path] = names.inside(path)
    if ended and set(open_places) != {""}:
        yield f"never ended: {sorted(set(open_places) - {''})}"


def _begins(path: str, open_places: dict[str, str], seen: set[str]) -> Iterator[str]:
    if path in seen:
        yield f"{path} begins or is skipped a second time"
    if parent_path(path) not in open_places.values():
        yield f"{path} begins in a place that is not open"
    seen.add(path)


def _side_by_side(plan: Plan, facts: Sequence[AnyEvent]) -> Iterator[str]:
    """No more calls and passes are under way at once than the plan allows."""
    calls: set[str] = set()
    passes: Counter[str] = Counter()
    for fact in facts:
        if isinstance(fact, EffectRequested) and _takes_a_place(fact):
            calls.add(fact.effect)
            if plan.parallel is not None and len(calls) > plan.parallel:
                yield f"{fact.effect} is call {len(calls)} at once of {plan.parallel}"
        elif isinstance(fact, EffectDone | EffectFailed):
            calls.discard(fact.effect)
        elif isinstance(fact, IterationStarted):
            path = parent_path(fact.path)
            passes[path] += 1
            if passes[path] > _most_at_once(plan, path):
                yield f"{fact.path} is pass {passes[path]} at once"
        elif isinstance(fact, IterationFinished):
            passes[parent_path(fact.path)] -= 1


def _takes_a_place(fact: EffectRequested) -> bool:
    """The coordinator listens beside the others."""
    return isinstance(fact.call, AgentCall | ModelCall) and fact.call.role != "coordinator"


def _most_at_once(plan: Plan, path: str) -> int:
    repeat = loop_at(plan, path)
    return 1 if repeat.each is None else repeat.each.parallel or repeat.each.max_items
