"""What is true of every log, whatever happened in the run. Used by tables and by random runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateClosed,
    GateOpened,
    IterationFinished,
    IterationStarted,
    RunFinished,
    RunStarted,
    StepFinished,
    StepRetried,
    StepSkipped,
    StepStarted,
)
from loopwright.model.ids import iteration_number, parent_path

STARTS = (StepStarted, IterationStarted)
ENDS = (StepFinished, IterationFinished)


def broken_laws(events: Sequence[AnyEvent], *, ended: bool = True) -> list[str]:
    """Every law that this log breaks, in words; `ended` says that the run is over."""
    return [
        *_frame(events, ended=ended),
        *_effects(events, ended=ended),
        *_gates(events, ended=ended),
        *_places(events, ended=ended),
        *_numbers(events),
    ]


def _frame(events: Sequence[AnyEvent], *, ended: bool) -> Iterator[str]:
    if not isinstance(events[0], RunStarted):
        yield "the first fact is not run.started"
    finished = [n for n, event in enumerate(events) if isinstance(event, RunFinished)]
    if ended and finished != [len(events) - 1]:
        yield f"run.finished is not the last fact and the only one: {finished} of {len(events)}"
    times = [event.at for event in events]
    if times != sorted(times):
        yield "times go back"


def _effects(events: Sequence[AnyEvent], *, ended: bool) -> Iterator[str]:
    requested: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    for event in events:
        if isinstance(event, EffectRequested):
            requested[event.effect] += 1
        elif isinstance(event, EffectDone | EffectFailed):
            if not requested[event.effect]:
                yield f"{event.effect} is answered before it is requested"
            answered[event.effect] += 1
    yield from (f"{effect} is requested {n} times" for effect, n in requested.items() if n > 1)
    yield from (f"{effect} is answered {n} times" for effect, n in answered.items() if n > 1)
    if ended:
        yield from (f"{effect} is never answered" for effect in requested - answered)


def _gates(events: Sequence[AnyEvent], *, ended: bool) -> Iterator[str]:
    opened: Counter[str] = Counter()
    over: Counter[str] = Counter()
    for event in events:
        if isinstance(event, GateOpened):
            opened[event.gate] += 1
        elif isinstance(event, GateAnswered | GateClosed):
            over[event.gate] += 1
    yield from (f"{gate} is opened {n} times" for gate, n in opened.items() if n > 1)
    yield from (f"{gate} ends {n} times" for gate, n in over.items() if n > 1)
    if ended:
        yield from (f"{gate} is never answered or closed" for gate in opened - over)


def _places(events: Sequence[AnyEvent], *, ended: bool) -> Iterator[str]:
    open_places = {"": ""}  # with the name that places inside go by
    seen: set[str] = set()
    for event in events:
        path = getattr(event, "path", "")
        if isinstance(event, StepStarted | IterationStarted | StepSkipped):
            yield from _begins(path, open_places, seen)
            if not isinstance(event, StepSkipped):
                open_places[path] = path
        elif path not in open_places and path not in open_places.values():
            yield f"{type(event).__name__} at {path}, which is not open"
        elif isinstance(event, (*ENDS, StepRetried)):
            name = open_places.pop(path, path)
            inside = [place for place in open_places if parent_path(place) == name and place]
            if inside:
                yield f"{path} ends before {inside}"
            if isinstance(event, StepRetried):
                open_places[path] = f"{path}~{event.attempt}"
    if ended and set(open_places) != {""}:
        yield f"never ended: {sorted(set(open_places) - {''})}"


def _begins(path: str, open_places: dict[str, str], seen: set[str]) -> Iterator[str]:
    if path in seen:
        yield f"{path} begins or is skipped a second time"
    if parent_path(path) not in open_places.values():
        yield f"{path} begins in a place that is not open"
    seen.add(path)


def _numbers(events: Sequence[AnyEvent]) -> Iterator[str]:
    """Passes are numbered from 1 without a gap, in the order in which they begin."""
    count: Counter[str] = Counter()
    for event in events:
        if isinstance(event, IterationStarted) and iteration_number(event.path) >= 0:
            repeat = parent_path(event.path)
            count[repeat] += 1
            if (
                event.iteration != count[repeat]
                or iteration_number(event.path) + 1 != count[repeat]
            ):
                yield f"{event.path} is pass {event.iteration}, expected {count[repeat]}"
