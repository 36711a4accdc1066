"""A graph of steps: which of them are ready, under way, or have ended, and whether a step whose
dependencies have ended runs at all.

`outcome`, `next_events` and `close` decide: they return a result or events. `resume` folds: it
changes the body. A graph has no effects of its own.
"""

from collections import deque
from collections.abc import Mapping
from typing import assert_never

import msgspec

from loopwright.kernel.event_parts import Failure
from loopwright.kernel.events import AnyEvent, StepKept, StepSkipped, StepStarted
from loopwright.kernel.frames import CarriedResult, IterationOwner, Owner, Result, StepsBody
from loopwright.kernel.limits import is_out_of_time
from loopwright.kernel.references import resolve, scope_at
from loopwright.kernel.state import KernelServices, State
from loopwright.model.actions import UNREADABLE, Cel, Compare, Condition, EveryOf, SomeOf, Step
from loopwright.model.ids import child_path
from loopwright.model.plan import Plan
from loopwright.model.record import Blob, JsonValue

# -- deciding --------------------------------------------------------------------------------------


def outcome(body: StepsBody, services: KernelServices) -> Result | None:
    """A graph ends with its last step, or at once when a failure aborts it."""
    action = body.index.action
    if body.failed is not None and action.on_failure == "abort":
        return _steps_result(body)
    if len(body.results) < len(action.steps):
        return None
    ended = _steps_result(body)
    if action.output != "list":
        return ended
    outputs = [services.read(body.results[step.id].output) for step in action.steps]
    listed = services.keep(msgspec.json.encode(outputs).decode())
    return msgspec.structs.replace(ended, output=listed, result=None)


def _speaker(body: StepsBody) -> Result | None:
    """The step whose output is that of the graph: the one that it names, the last that completed,
    or the first that completed with words and that no other step needs.
    """
    steps, returns = body.index.action.steps, body.index.action.returns
    if returns is not None:
        named = body.results.get(returns)
        return named if named is not None and named.status == "completed" else None
    if body.index.action.output != "sink":
        ended = (body.results.get(step.id) for step in reversed(steps))
        return next((one for one in ended if one is not None and one.status == "completed"), None)
    sinks = [body.results.get(s.id) for n, s in enumerate(steps) if not body.index.dependents[n]]
    done = [one for one in sinks if one is not None and one.status == "completed"]
    return next((one for one in done if one.output), done[0] if done else None)


def _steps_result(body: StepsBody) -> Result:
    """The worst result of the steps, with the text of the step that decided it."""
    speaker = _speaker(body)
    output = speaker.output if speaker is not None else None
    result = speaker.result if speaker is not None else None
    worst = _worst(body)
    if worst is None and body.index.action.given is not None and not _has_completed(body):
        return _nothing_completed(Result("failed"))
    if worst is None:
        return Result("completed", _completed_reason(body), output=output, result=result)
    keep = worst.output if len(body.index.action.steps) == 1 else output
    kept = worst.result if len(body.index.action.steps) == 1 else result
    return Result(worst.status, worst.reason, output=keep, result=kept, error=worst.error)


def _has_completed(body: StepsBody) -> bool:
    return any(result.status == "completed" for result in body.results.values())


def _completed_reason(body: StepsBody) -> str:
    """One step's reason is the graph's reason; of several, or of one that only was allowed to
    fail, none speaks for all.
    """
    reasons = [result.reason for result in body.results.values() if result.status == "completed"]
    return reasons[0] if len(body.results) == len(reasons) == 1 else "done"


def _worst(body: StepsBody) -> Result | None:
    action = body.index.action
    for status in ("failed", "exhausted", "cancelled"):
        for step in action.steps:
            ended = body.results.get(step.id)
            if ended is None or ended.status != status or step.on_error == "continue":
                continue
            named = len(action.steps) > 1 or action.given is not None
            return _naming(step.id, ended) if named else ended
    return None


def _naming(step: str, ended: Result) -> Result:
    """A failure whose error names the step; the innermost step is named."""
    failed = ended.status == "failed" and ended.error is not None
    if not failed or ended.error is None or ended.error.detail.startswith("step '"):
        return ended
    detail = f"step '{step}' failed: {ended.error.detail}"
    error = msgspec.structs.replace(ended.error, detail=detail)
    return msgspec.structs.replace(ended, error=error)


def run_result(plan: Plan, body: StepsBody, ended: Result) -> Result:
    """The result of a group of steps, by the rule of its plan."""
    statuses = [result.status for result in body.results.values()]
    if plan.outcome == "worst" or body.owner.deadline_hit:
        return ended
    bad = [status for status in statuses if status in ("failed", "exhausted", "cancelled")]
    if plan.outcome == "partial" and bad and "completed" in statuses:
        return msgspec.structs.replace(ended, status="failed", reason="partial")
    if plan.outcome == "partial" and bad:
        return msgspec.structs.replace(ended, status="failed")
    if plan.outcome == "some_completed" and not bad and "completed" not in statuses:
        return _nothing_completed(ended)
    if plan.outcome == "some_completed":
        named = (_naming(name, one) for name, one in body.results.items() if one.error is not None)
        worst = next((one for one in named if one.status == ended.status), None)
        return ended if worst is None else msgspec.structs.replace(ended, error=worst.error)
    return ended


def _nothing_completed(ended: Result) -> Result:
    error = Failure("nothing_completed", "no step completed")
    return msgspec.structs.replace(ended, status="failed", reason="nothing_completed", error=error)


def next_events(state: State, body: StepsBody, services: KernelServices) -> list[AnyEvent]:
    """The steps that begin, or that are left out, now."""
    if state.control.paused or not body.ready or is_out_of_time(body):
        return []
    events: list[AnyEvent] = []
    keeps = body.owner.parent.carry.keeps if isinstance(body.owner, IterationOwner) else {}
    for number in body.ready:
        step = body.index.action.steps[number]
        path = child_path(body.owner.inside, step.id)
        if step.id in keeps:
            events.append(_kept(state, body, path, keeps[step.id], services))
        elif not _may_start(step, [body.results[need] for need in step.needs]):
            events.append(_skipped(state, body, step, path))
        elif step.when is not None:
            events.append(_under_condition(state, body, step, path, services))
        else:
            events.append(StepStarted(at=state.now, path=path, iteration=body.owner.iteration))
    return events


def _kept(
    state: State, body: StepsBody, path: str, carried: CarriedResult, services: KernelServices
) -> StepKept:
    """A step that is not run again, since it completed before or a person leaves it out."""
    at, iteration, ended = state.now, body.owner.iteration, carried.ended
    if ended is not None:
        return StepKept(
            at=at,
            path=path,
            iteration=iteration,
            of=carried.of,
            output=ended.output,
            result=ended.result,
        )
    words = f"SKIPPED by a person: {carried.note}" if carried.note else "SKIPPED by a person"
    return StepKept(
        at=at, path=path, iteration=iteration, output=services.keep(words), reason="skipped"
    )


def _under_condition(
    state: State, body: StepsBody, step: Step, path: str, services: KernelServices
) -> AnyEvent:
    """A condition is evaluated once, when everything before the step has ended."""
    assert step.when is not None
    at, iteration = state.now, body.owner.iteration
    condition = evaluate_condition(state, body.owner, step.when, services)
    if isinstance(condition, ConditionValue):
        if condition.yes:
            return StepStarted(at=at, path=path, iteration=iteration)
        return StepSkipped(at=at, path=path, iteration=iteration, reason="condition")
    error = Failure(type="condition", detail=condition.why)
    return StepSkipped(
        at=at,
        path=path,
        iteration=iteration,
        reason="condition",
        status="skipped" if step.when_error == "skip" else "failed",
        error=error,
    )


def _skipped(state: State, body: StepsBody, step: Step, path: str) -> StepSkipped:
    """Under `cascade` what a failure spoils is cancelled, else it is only left out."""
    cascade = body.index.action.on_failure == "cascade"
    spoiled = any(_spoils(body, need) for need in step.needs)
    return StepSkipped(
        at=state.now,
        path=path,
        iteration=body.owner.iteration,
        reason="dependency",
        status="cancelled" if cascade and spoiled else "skipped",
    )


def _spoils(body: StepsBody, need: str) -> bool:
    tolerated = body.index.action.steps[body.index.at[need]].on_error == "continue"
    return body.results[need].status not in ("completed", "skipped") and not tolerated


def _may_start(step: Step, before: list[Result]) -> bool:
    """Whether what a step needs ended in a way that lets it start."""
    good = sum(result.status == "completed" for result in before)
    skipped = sum(result.status == "skipped" for result in before)
    bad = len(before) - good - skipped
    match step.join:
        case "all_success":
            return good == len(before)
        case "finished_ok":
            return good + sum(map(_left_out_on_purpose, before)) == len(before)
        case "one_success":
            return good > 0 or not before
        case "none_failed_min_one_success":
            return bad == 0 and (good > 0 or not before)
        case "all_done":
            return True
        case never:
            assert_never(never)


def _left_out_on_purpose(result: Result) -> bool:
    """Skipped by a condition; what was skipped for a failure before it spoils what follows."""
    return result.status == "skipped" and result.reason != "dependency"


def close(state: State, body: StepsBody, why: str) -> list[AnyEvent]:
    """The steps that never began, when the steps under way have been closed."""
    return [
        StepSkipped(
            at=state.now,
            path=child_path(body.owner.inside, step.id),
            iteration=body.owner.iteration,
            reason=why,
            status="cancelled",
        )
        for step in body.index.action.steps
        if step.id not in body.results and step.id not in body.active
    ]


# -- folding ---------------------------------------------------------------------------------------


def resume(body: StepsBody) -> None:
    """Let the steps of a graph that did not complete be ready again. A step that was skipped stays
    so when everything that it needs stays as it is.
    """
    steps = body.index.action.steps
    kept = {name for name, ended in body.results.items() if ended.status == "completed"}
    while more := {one.id for one in steps if _stays_skipped(one, body.results, kept)}:
        kept |= more
    body.results = {name: ended for name, ended in body.results.items() if name in kept}
    reset_graph(body)


def _stays_skipped(step: Step, results: Mapping[str, Result], kept: set[str]) -> bool:
    if step.id in kept or step.id not in results or results[step.id].status != "skipped":
        return False
    return bool(step.needs) and kept.issuperset(step.needs)


def reset_graph(body: StepsBody) -> None:
    """Find out which steps are ready, from those that have a result."""
    body.failed = None
    body.missing = [_missing(step, body.results) for step in body.index.action.steps]
    body.ready = deque(number for number, missing in enumerate(body.missing) if missing == 0)


def _missing(step: Step, results: Mapping[str, Result]) -> int:
    """How many ends a step waits for; what has completed waits for none, however many come."""
    return -1 if step.id in results else sum(need not in results for need in step.needs)


class ConditionValue(msgspec.Struct, frozen=True):
    """The condition has an answer."""

    yes: bool


class UndecidedCondition(msgspec.Struct, frozen=True):
    """The condition cannot be evaluated, and why."""

    why: str


def evaluate_condition(
    state: State, owner: Owner, condition: Condition, services: KernelServices
) -> ConditionValue | UndecidedCondition:
    """Whether a condition holds, seen from a place."""
    match condition:
        case Cel():
            return _cel(state, owner, condition, services)
        case Compare():
            return _compare(state, owner, condition, services)
        case EveryOf(parts=parts):
            return _combined(state, owner, parts, services, decided_by=False)
        case SomeOf(parts=parts):
            return _combined(state, owner, parts, services, decided_by=True)
        case _:
            assert_never(condition)


def _combined(
    state: State,
    owner: Owner,
    parts: tuple[Condition, ...],
    services: KernelServices,
    *,
    decided_by: bool,
) -> ConditionValue | UndecidedCondition:
    for part in parts:
        result = evaluate_condition(state, owner, part, services)
        if isinstance(result, UndecidedCondition) or result.yes is decided_by:
            return result
    return ConditionValue(not decided_by)


def _cel(
    state: State, owner: Owner, condition: Cel, services: KernelServices
) -> ConditionValue | UndecidedCondition:
    result = services.evaluate(condition.text, scope_at(state, owner, services), wants="bool")
    if result.missing and condition.missing == "false":
        return ConditionValue(yes=False)
    if result.problem:
        return UndecidedCondition(result.problem)
    return ConditionValue(result.value is True)


def _compare(
    state: State, owner: Owner, condition: Compare, services: KernelServices
) -> ConditionValue | UndecidedCondition:
    found = resolve(state, owner, condition.ref, services)
    left = services.read(found) if isinstance(found, Blob) else found
    if condition.op in ("==", "!="):
        same = _text(left) == _text(condition.value)
        return ConditionValue(same is (condition.op == "=="))
    one, other = _number(left), _number(condition.value)
    written = str(condition.value)
    if condition.ref.of == "run" and written.startswith(UNREADABLE):
        return UndecidedCondition(f"{written.removeprefix(UNREADABLE)} is not a condition")
    if one is None or other is None:
        shown = _text(left)[:60]
        return UndecidedCondition(
            f"{shown!r} {condition.op} {_text(condition.value)!r} needs two numbers"
        )
    match condition.op:
        case "<":
            return ConditionValue(one < other)
        case ">":
            return ConditionValue(one > other)
        case "<=":
            return ConditionValue(one <= other)
        case _:
            return ConditionValue(one >= other)


def _text(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def _number(value: JsonValue) -> float | None:
    if isinstance(value, bool) or value is None or isinstance(value, list | dict):
        return None
    try:
        return float(value)
    except ValueError:
        return None
