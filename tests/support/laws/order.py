"""The laws of order and of verdicts.

A step begins after the steps that it needs, a check returns one verdict for an iteration, and
no iteration is done that neither its checks nor a person passed.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from loopwright.kernel.events import (
    AnyEvent,
    CheckVerdict,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateOpened,
    IterationFinished,
    IterationStarted,
    RunReopened,
    StepFinished,
    StepKept,
    StepSkipped,
    StepStarted,
)
from loopwright.model.actions import AskPerson, Step
from loopwright.model.checks import AllOf, AnyOf, Cap, Check, Goal, Judge, leaves
from loopwright.model.ids import child_path, parent_path
from loopwright.model.plan import Plan
from tests.support.laws.openings import PlaceNames
from tests.support.laws.plan_lookup import action_at, loop_at

JUDGE_TRIES = 2
_STAYS = {"": ("completed",), "continue": ("completed", "skipped"), "restart": ()}
"""What a step of a reopened run may rely on."""


def begins_in_order(plan: Plan, facts: Sequence[AnyEvent]) -> Iterator[str]:
    """A step begins only when everything that it needs has ended as its join asks for."""
    ended: dict[str, str] = {}
    for fact in facts:
        if isinstance(fact, RunReopened):
            stays = _STAYS[fact.mode]
            ended = {path: status for path, status in ended.items() if status in stays}
        elif isinstance(fact, StepFinished | StepSkipped):
            ended[fact.path] = fact.status
        elif isinstance(fact, StepKept):
            if fact.reason == "kept" and ended.get(fact.of) != "completed":
                yield f"{fact.path} keeps what {fact.of} never came to"
            ended[fact.path] = "completed"
        elif isinstance(fact, StepStarted):
            step = action_at(plan, fact.path).step
            assert step is not None
            around = parent_path(fact.path)
            before = [ended.get(child_path(around, need)) for need in step.needs]
            if None in before:
                yield f"{fact.path} begins before {step.needs[before.index(None)]} has ended"
            elif not _joined(step, before):
                yield f"{fact.path} begins by {step.join} after {before}"


def _joined(step: Step, before: Sequence[str | None]) -> bool:
    completed, skipped = before.count("completed"), before.count("skipped")
    match step.join:
        case "all_success":
            return completed == len(before)
        case "one_success":
            return completed > 0 or not before
        case "finished_ok" | "none_failed_min_one_success":
            return completed + skipped == len(before)
        case "all_done":
            return True


def verdicts(plan: Plan, facts: Sequence[AnyEvent]) -> Iterator[str]:
    """Each check of a loop speaks at most once about a pass, and together they decide it."""
    said: dict[str, dict[int, str]] = {}
    approved: set[str] = set()
    tools = _about_tools(facts)
    for fact in facts:
        if isinstance(fact, IterationStarted) and fact.resumed:
            before = said.get(fact.path, {})
            said[fact.path] = {k: v for k, v in before.items() if v not in ("error", "rejected")}
        elif isinstance(fact, CheckVerdict):
            about = said.setdefault(fact.path, {})
            if fact.index in about:
                yield f"check {fact.index} speaks twice about {fact.path}"
            about[fact.index] = fact.verdict
        elif isinstance(fact, GateAnswered) and fact.decision == "approve":
            approved |= {fact.path} if fact.gate not in tools else set()
        elif isinstance(fact, IterationFinished) and fact.done and fact.path not in approved:
            repeat = loop_at(plan, parent_path(fact.path))
            if not _holds(repeat.until, said.get(fact.path, {}), 0):
                yield f"{fact.path} is done, and its checks said {said.get(fact.path, {})}"


def _about_tools(facts: Sequence[AnyEvent]) -> set[str]:
    """Gates about what an agent wants to do: a decision there is none about the place."""
    return {fact.gate for fact in facts if isinstance(fact, GateOpened) and fact.about == "tool"}


def _holds(check: Check, said: dict[int, str], first: int) -> bool:
    if isinstance(check, AnyOf | AllOf):
        parts = []
        for part in check.parts:
            parts.append(_holds(part, said, first))
            first += len(leaves(part))
        return any(parts) if isinstance(check, AnyOf) else all(parts)
    return not isinstance(check, Cap) and said.get(first) == "pass"


def asked_again(plan: Plan, facts: Sequence[AnyEvent]) -> Iterator[str]:
    """Judges are asked twice at most, other checks once; work follows each rejection but the
    last one.
    """
    rejected: Counter[str] = Counter()
    decided: dict[str, str] = {}
    parked: Counter[str] = Counter()
    newest: dict[str, int] = {}
    earlier: dict[str, int] = {}  # the last try before its pass was resumed
    names, tools = PlaceNames(), _about_tools(facts)
    for fact in facts:
        names.take(fact)
        if isinstance(fact, GateAnswered) and fact.gate not in tools:
            decided[fact.path] = fact.decision
            rejected[fact.path] += fact.decision == "reject"
        elif _is_completed(fact) and decided.get(names.inside(fact.path)) == "reject":
            yield f"{fact.path} completed although it was rejected"
        elif isinstance(fact, IterationStarted):
            earlier.update(_tried(newest, fact))
        elif isinstance(fact, EffectFailed) and fact.error.resets_at is not None:
            parked[fact.effect.rpartition("#")[0]] += 1
        elif isinstance(fact, EffectRequested):
            purpose, _, number = fact.effect.rpartition("/")[2].partition("#")
            if purpose == "rework":
                yield from _rework(plan, fact.path, int(number), rejected[fact.path])
            elif purpose.startswith("check"):
                name = fact.effect.rpartition("#")[0]
                newest[name] = int(number)
                counted = int(number) - parked[name] - earlier.get(name, 0)
                if counted > _tries(plan, fact.path, purpose):
                    yield f"{fact.effect} is one too many"


def _is_completed(fact: AnyEvent) -> TypeGuard[StepFinished | IterationFinished]:
    return isinstance(fact, StepFinished | IterationFinished) and fact.status == "completed"


def _tried(newest: dict[str, int], fact: IterationStarted) -> dict[str, int]:
    """The last try of each check of a pass that is resumed."""
    mine = f"{fact.path}/"
    return {k: n for k, n in newest.items() if fact.resumed and k.startswith(mine)}


def _rework(plan: Plan, path: str, number: int, rejected: int) -> Iterator[str]:
    ask = action_at(plan, path).action
    assert isinstance(ask, AskPerson)
    most = ask.on_reject.attempts if ask.on_reject is not None else 0
    if number != rejected or number >= most:
        yield f"{path} is worked on for the {number}. time after {rejected} of {most} rejections"


def _tries(plan: Plan, path: str, purpose: str) -> int:
    repeat = loop_at(plan, parent_path(path))
    leaf = leaves(repeat.until)[int(purpose.removeprefix("check"))]
    return JUDGE_TRIES if isinstance(leaf, Judge | Goal) else 1
