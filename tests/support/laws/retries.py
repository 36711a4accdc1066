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


def tries(plan: Plan, facts: Sequence[AnyEvent]) -> Iterator[str]:
    """What is wrong with the tries of a run."""
    answers: dict[str, EffectDone | EffectFailed] = {}
    newest: dict[str, str] = {}  # the last try at each place
    earlier: dict[str, int] = {}  # the number of the last one before its place was resumed
    names = PlaceNames()
    wanted = _wanted_by_people(facts)
    for fact in facts:
        names.take(fact)
        if names.resumed and isinstance(fact, StepStarted | IterationStarted):
            place = names.inside(fact.path)
            earlier[place] = _number(newest[place]) if place in newest else 0
        elif isinstance(fact, EffectDone | EffectFailed):
            answers[fact.effect] = fact
        elif isinstance(fact, EffectRequested) and _purpose(fact.effect) in _PURPOSES:
            since = earlier.get(fact.path, 0)
            yield from _next_try(plan, fact, answers, newest.get(fact.path), since)
            newest[fact.path] = fact.effect
        elif isinstance(fact, StepFinished | IterationFinished):
            place = names.inside(fact.path)
            since = earlier.get(place, 0)
            yield from _ended(plan, fact, newest.get(place, ""), answers, since)
        elif isinstance(fact, StepRetried):
            most = _retry(plan, fact.path).attempts + wanted[fact.path]
            if names.tries(fact.path) > most:
                yield f"{fact.path} begins for the {fact.attempt}. time"


def _wanted_by_people(facts: Sequence[AnyEvent]) -> Counter[str]:
    """How often a person has had a blocked step tried again, whatever its own limit."""
    blocked = {f.gate: f.path for f in facts if isinstance(f, GateOpened) and f.about == "blocked"}
    return Counter(
        blocked[fact.gate]
        for fact in facts
        if isinstance(fact, GateAnswered) and fact.decision == "continue" and fact.gate in blocked
    )


def _next_try(
    plan: Plan,
    fact: EffectRequested,
    answers: dict[str, EffectDone | EffectFailed],
    before: str | None,
    since: int,
) -> Iterator[str]:
    number, most = _number(fact.effect), _retry(plan, fact.path).attempts
    if number != (_number(before) + 1 if before else 1):
        yield f"{fact.effect} follows {before}"
    counted = number - since - _parks(fact.effect, answers, since)
    if counted > max(most, 1) + _asked_once_more(before, answers):
        yield f"{fact.effect} is one of {most} tries"
    if before is not None and number > since + 1:
        if not _is_failure(answers.get(before)):
            yield f"{fact.effect} is tried although {before} did not fail"
        if not isinstance(answers.get(f"{fact.path}/backoff#{number - 1}"), EffectDone):
            yield f"{fact.effect} is tried without a wait"


def _ended(
    plan: Plan,
    fact: StepFinished | IterationFinished,
    newest: str,
    answers: dict[str, EffectDone | EffectFailed],
    since: int,
) -> Iterator[str]:
    last = answers.get(newest)
    single = CallAgent | RunCommand | RunScript
    if last is None or not isinstance(action_at(plan, fact.path).action, single):
        return
    if fact.status == "completed" and _is_failure(last) and fact.reason != CANCELLED:
        yield f"{fact.path} completed although {last.effect} failed"
    if fact.status == "failed" and fact.reason == "error" and isinstance(last, EffectFailed):
        retry = _retry(plan, fact.path)
        counted = _number(last.effect) - since - _parks(last.effect, answers, since)
        if _is_retried(retry, last.error.type) and counted < retry.attempts:
            yield f"{fact.path} gave up after {last.effect}"


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
