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


def begins_in_order(plan: Plan, events: Sequence[AnyEvent]) -> Iterator[str]:
    """A step begins only when everything that it needs has ended as its join asks for."""
    ended: dict[str, str] = {}
    for event in events:
        if isinstance(event, RunReopened):
            stays = _STAYS[event.mode]
            ended = {path: status for path, status in ended.items() if status in stays}
        elif isinstance(event, StepFinished | StepSkipped):
            ended[event.path] = event.status
        elif isinstance(event, StepKept):
            if event.reason == "kept" and ended.get(event.of) != "completed":
                yield f"{event.path} keeps what {event.of} never came to"
            ended[event.path] = "completed"
        elif isinstance(event, StepStarted):
            step = action_at(plan, event.path).step
            assert step is not None
            around = parent_path(event.path)
            before = [ended.get(child_path(around, need)) for need in step.needs]
            if None in before:
                yield f"{event.path} begins before {step.needs[before.index(None)]} has ended"
            elif not _joined(step, before):
                yield f"{event.path} begins by {step.join} after {before}"


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


def verdicts(plan: Plan, events: Sequence[AnyEvent]) -> Iterator[str]:
    """Each check of a loop speaks at most once about an iteration, and together they decide it."""
    said: dict[str, dict[int, str]] = {}
    approved: set[str] = set()
    tools = _about_tools(events)
    for event in events:
        if isinstance(event, IterationStarted) and event.resumed:
            before = said.get(event.path, {})
            said[event.path] = {k: v for k, v in before.items() if v not in ("error", "rejected")}
        elif isinstance(event, CheckVerdict):
            about = said.setdefault(event.path, {})
            if event.index in about:
                yield f"check {event.index} speaks twice about {event.path}"
            about[event.index] = event.verdict
        elif isinstance(event, GateAnswered) and event.decision == "approve":
            approved |= {event.path} if event.gate not in tools else set()
        elif isinstance(event, IterationFinished) and event.done and event.path not in approved:
            repeat = loop_at(plan, parent_path(event.path))
            if not _holds(repeat.until, said.get(event.path, {}), 0):
                yield f"{event.path} is done, and its checks said {said.get(event.path, {})}"


def _about_tools(events: Sequence[AnyEvent]) -> set[str]:
    """Gates about what an agent wants to do: a decision there is none about the place."""
    return {
        event.gate for event in events if isinstance(event, GateOpened) and event.about == "tool"
    }


def _holds(check: Check, said: dict[int, str], first: int) -> bool:
    if isinstance(check, AnyOf | AllOf):
        parts = []
        for part in check.parts:
            parts.append(_holds(part, said, first))
            first += len(leaves(part))
        return any(parts) if isinstance(check, AnyOf) else all(parts)
    return not isinstance(check, Cap) and said.get(first) == "pass"


def asked_again(plan: Plan, events: Sequence[AnyEvent]) -> Iterator[str]:
    """Judges are asked twice at most, other checks once; work follows each rejection but the
    last one.
    """
    rejected: Counter[str] = Counter()
    decided: dict[str, str] = {}
    parked: Counter[str] = Counter()
    newest: dict[str, int] = {}
    earlier: dict[str, int] = {}  # the last try before its iteration was resumed
    names, tools = PlaceNames(), _about_tools(events)
    for event in events:
        names.take(event)
        if isinstance(event, GateAnswered) and event.gate not in tools:
            decided[event.path] = event.decision
            rejected[event.path] += event.decision == "reject"
        elif _is_completed(event) and decided.get(names.inside(event.path)) == "reject":
            yield f"{event.path} completed although it was rejected"
        elif isinstance(event, IterationStarted):
            earlier.update(_tried(newest, event))
        elif isinstance(event, EffectFailed) and event.error.resets_at is not None:
            parked[event.effect.rpartition("#")[0]] += 1
        elif isinstance(event, EffectRequested):
            purpose, _, number = event.effect.rpartition("/")[2].partition("#")
            if purpose == "rework":
                yield from _rework(plan, event.path, int(number), rejected[event.path])
            elif purpose.startswith("check"):
                name = event.effect.rpartition("#")[0]
                newest[name] = int(number)
                counted = int(number) - parked[name] - earlier.get(name, 0)
                if counted > _tries(plan, event.path, purpose):
                    yield f"{event.effect} is one too many"


def _is_completed(event: AnyEvent) -> TypeGuard[StepFinished | IterationFinished]:
    return isinstance(event, StepFinished | IterationFinished) and event.status == "completed"


def _tried(newest: dict[str, int], event: IterationStarted) -> dict[str, int]:
    """The last try of each check of an iteration that is resumed."""
    mine = f"{event.path}/"
    return {k: n for k, n in newest.items() if event.resumed and k.startswith(mine)}


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
