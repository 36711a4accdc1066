"""The law of retries: a failed call is retried as its step allows.

The retry happens inside the iteration, after its wait. No step completes whose call failed,
unless a message stopped it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateOpened,
    IterationFinished,
    IterationStarted,
    StepFinished,
    StepRetried,
    StepStarted,
)
from loopwright.kernel.messages import CANCELLED
from loopwright.model.actions import CallAgent, RunCommand, RunScript
from loopwright.model.plan import Plan
from loopwright.model.policy import Retry
from tests.support.laws.openings import PlaceNames
from tests.support.laws.plan_lookup import action_at

_PURPOSES = ("agent", "command", "script")


def tries(plan: Plan, events: Sequence[AnyEvent]) -> Iterator[str]:
    """What is wrong with the tries of a run."""
    answers: dict[str, EffectDone | EffectFailed] = {}
    newest: dict[str, str] = {}  # the last try at each place
    earlier: dict[str, int] = {}  # the number of the last one before its place was resumed
    names = PlaceNames()
    wanted = _wanted_by_people(events)
    for event in events:
        names.take(event)
        if names.resumed and isinstance(event, StepStarted | IterationStarted):
            place = names.inside(event.path)
            earlier[place] = _number(newest[place]) if place in newest else 0
        elif isinstance(event, EffectDone | EffectFailed):
            answers[event.effect] = event
        elif isinstance(event, EffectRequested) and _purpose(event.effect) in _PURPOSES:
            since = earlier.get(event.path, 0)
            yield from _next_try(plan, event, answers, newest.get(event.path), since)
            newest[event.path] = event.effect
        elif isinstance(event, StepFinished | IterationFinished):
            place = names.inside(event.path)
            since = earlier.get(place, 0)
            yield from _ended(plan, event, newest.get(place, ""), answers, since)
        elif isinstance(event, StepRetried):
            most = _retry(plan, event.path).attempts + wanted[event.path]
            if names.tries(event.path) > most:
                yield f"{event.path} begins for the {event.attempt}. time"


def _wanted_by_people(events: Sequence[AnyEvent]) -> Counter[str]:
    """How often a person has had a blocked step tried again, whatever its own limit."""
    blocked = {f.gate: f.path for f in events if isinstance(f, GateOpened) and f.about == "blocked"}
    return Counter(
        blocked[event.gate]
        for event in events
        if isinstance(event, GateAnswered)
        and event.decision == "continue"
        and event.gate in blocked
    )


def _next_try(
    plan: Plan,
    event: EffectRequested,
    answers: dict[str, EffectDone | EffectFailed],
    before: str | None,
    since: int,
) -> Iterator[str]:
    number, most = _number(event.effect), _retry(plan, event.path).attempts
    if number != (_number(before) + 1 if before else 1):
        yield f"{event.effect} follows {before}"
    counted = number - since - _parks(event.effect, answers, since)
    if counted > max(most, 1) + _asked_once_more(before, answers):
        yield f"{event.effect} is one of {most} tries"
    if before is not None and number > since + 1:
        if not _is_failure(answers.get(before)):
            yield f"{event.effect} is tried although {before} did not fail"
        if not isinstance(answers.get(f"{event.path}/backoff#{number - 1}"), EffectDone):
            yield f"{event.effect} is tried without a wait"


def _ended(
    plan: Plan,
    event: StepFinished | IterationFinished,
    newest: str,
    answers: dict[str, EffectDone | EffectFailed],
    since: int,
) -> Iterator[str]:
    last = answers.get(newest)
    single = CallAgent | RunCommand | RunScript
    if last is None or not isinstance(action_at(plan, event.path).action, single):
        return
    if event.status == "completed" and _is_failure(last) and event.reason != CANCELLED:
        yield f"{event.path} completed although {last.effect} failed"
    if event.status == "failed" and event.reason == "error" and isinstance(last, EffectFailed):
        retry = _retry(plan, event.path)
        counted = _number(last.effect) - since - _parks(last.effect, answers, since)
        if _is_retried(retry, last.error.type) and counted < retry.attempts:
            yield f"{event.path} gave up after {last.effect}"


def _asked_once_more(before: str | None, answers: dict[str, EffectDone | EffectFailed]) -> bool:
    """An answer that does not fit is asked for once more, whatever the step allows; that this
    one met a used-up allowance first changes nothing.
    """
    last = answers.get(before or "")
    while before and _is_parked(last):
        place, _, number = before.rpartition("#")
        before = f"{place}#{int(number) - 1}"
        last = answers.get(before)
    return isinstance(last, EffectFailed) and last.error.type == "bad_result"


def _parks(effect: str, answers: dict[str, EffectDone | EffectFailed], since: int) -> int:
    """Tries before this one that only met a used-up allowance: they count as none."""
    place, _, number = effect.rpartition("#")
    before = (answers.get(f"{place}#{n}") for n in range(since + 1, int(number)))
    return sum(map(_is_parked, before))


def _is_parked(answer: EffectDone | EffectFailed | None) -> bool:
    return isinstance(answer, EffectFailed) and answer.error.resets_at is not None


def _is_failure(answer: EffectDone | EffectFailed | None) -> bool:
    if isinstance(answer, EffectDone):
        return _purpose(answer.effect) != "agent" and answer.code not in (0, None)
    return isinstance(answer, EffectFailed)


def _retry(plan: Plan, path: str) -> Retry:
    """How often the call or the step at a place may be tried: where any failure begins a whole
    step anew, each call inside of it has one try.
    """
    action, step = action_at(plan, path)
    if step is None or (step.action is not action and "any" in step.retry.on):
        return Retry()
    return step.retry


def _is_retried(retry: Retry, kind: str) -> bool:
    any_does = "any" in retry.on and kind not in ("cancelled", "rejected", "internal")
    return any_does or kind in retry.on


def _purpose(effect: str) -> str:
    return effect.rpartition("/")[2].partition("#")[0]


def _number(effect: str) -> int:
    return int(effect.rpartition("#")[2])
