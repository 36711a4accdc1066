"""Loops of roles: which runs are loops, current status, history, edits, retry and skip.

Every run whose plan repeats something is a loop, whichever interface started it and whichever
dialect its definition has. Status and history are computed from the events; nothing is stored
beside them. An edit is an event as well, and the driver of the loop acts on it.
"""

import json
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from loopwright.engine.services import stored_text
from loopwright.errors import Conflict, LoopwrightError, NotFound, StorageError, VersionConflict
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    GateOpened,
    RunEdited,
    RunStarted,
    Usage,
)
from loopwright.kernel.frames import RepeatBody
from loopwright.kernel.reopened_runs import stopped_half_way
from loopwright.kernel.state import State
from loopwright.model.actions import MAX_ITERATIONS, Action, CallAgent, Decision, Repeat, Steps
from loopwright.model.plan import Plan
from loopwright.model.record import JsonValue
from loopwright.operations.dialects import ASSISTANTS, OF_LOOPS, filled
from loopwright.operations.run_control import NO_CHANGES, ResumeChanges, reopen
from loopwright.operations.runs import CAS_TRIES, Service, row_ended
from loopwright.ports import Append, RunRow
from loopwright.ports.headline import current_loop, figures_after
from loopwright.views.event_records import audit_rows, event_on_wire, timestamp
from loopwright.views.formats import usage_amounts
from loopwright.views.role_loops import (
    CurrentStage,
    IterationCounts,
    IterationsUsed,
    IterationTiming,
    LiveLoop,
    LoopFigures,
    LoopIdentity,
    LoopIteration,
    LoopPosition,
    LoopSpend,
    LoopStage,
    LoopTimings,
    Seen,
    StageCost,
    StageCounts,
    cycles_of,
    loop_status,
    seen,
    stages_of,
)
from loopwright.views.status_text import capped_words
from loopwright.views.status_text import goal as goal_of

ALWAYS = (ASSISTANTS, OF_LOOPS)  # languages that have nothing else
MOST_KNOWN = 10_000
_KNOWN: OrderedDict[str, bool] = OrderedDict()  # by the name of the plan, which is what it says


def loop_row(service: Service, run: str) -> RunRow:
    """A loop by its whole id; NotFound for a run that repeats nothing too."""
    row = service.log.row(run)
    if not is_loop(service, row):
        raise NotFound(f"{row.run} is not a loop: it repeats nothing")
    return row


def is_loop(service: Service, row: RunRow) -> bool:
    """Whether a run has a loop; False if its events cannot be read."""
    if row.headline.dialect in ALWAYS:
        return True
    try:
        first = service.log.read(row.run, limit=1)
        return (
            bool(first) and isinstance(first[0].event, RunStarted) and _is(service, first[0].event)
        )
    except StorageError:
        return False


def _is(service: Service, started: RunStarted) -> bool:
    known = _KNOWN.get(started.plan)
    if known is None:
        known = any(_repeats(step.action) for step in service.plan(started).steps)
        _KNOWN[started.plan] = known
        if len(_KNOWN) > MOST_KNOWN:
            _KNOWN.popitem(last=False)
    return known


def _repeats(action: Action) -> bool:
    if isinstance(action, Steps):
        return any(_repeats(step.action) for step in action.steps)
    return isinstance(action, Repeat)


RECENT = 50
_STAGE_DEPTH = 3  # `main.0.plan`: the loop, the iteration, the stage


@dataclass(slots=True)
class StageSpend:
    """Usage by iteration and stage, and of all other agents."""

    known: frozenset[str]
    stages: dict[tuple[int, str], Usage] = field(default_factory=dict)
    judging: Usage = field(default_factory=Usage)
    other: Usage = field(default_factory=Usage)  # of a loop whose passes have no stages

    def take(self, path: str, used: Usage) -> None:
        parts = path.split(".")
        if not self.known:
            self.other = self.other + used
            return
        if not _in_stage(parts, self.known):
            self.judging = self.judging + used
            return
        key = int(parts[1]) + 1, parts[2].partition("~")[0]
        self.stages[key] = self.stages.get(key, Usage()) + used


def _in_stage(parts: Sequence[str], known: frozenset[str]) -> bool:
    long_enough = len(parts) >= _STAGE_DEPTH and parts[1].isdecimal()
    return long_enough and parts[2].partition("~")[0] in known


def spending(plan: Plan, events: Iterable[AnyEvent]) -> StageSpend:
    """What the calls of a loop have used, each where it was made; tries count together."""
    seen_loop = StageSpend(frozenset(one.id for one in stages_of(plan)))
    for event in events:
        if isinstance(event, EffectDone | EffectFailed) and event.usage is not None:
            seen_loop.take(event.path, event.usage)
    return seen_loop


def live(service: Service, reference: str) -> LiveLoop:
    """The state of a loop."""
    row = loop_row(service, service.find(reference))
    numbered = service.events(row.run)
    events = [one.event for one in numbered]
    state = service.state(row.run)
    seen_loop = seen(state.plan, events, service.read_text)
    spent = spending(state.plan, events)
    until = row.headline.finished_at or service.clock.now_ms()
    return LiveLoop(
        loop=LoopIdentity(
            id=row.run,
            definition=row.headline.name,
            status=loop_status(row),
            goal=goal_of(state),
            labels=[*state.control.labels],
            metadata={**state.control.metadata, "dispatch": seen_loop.dispatch(loop_status(row))},
        ),
        position=LoopPosition(
            iteration=seen_loop.iteration,
            max_iterations=seen_loop.most,
            stage=seen_loop.stage,
            stage_count=len(seen_loop.stages),
        ),
        current_stage=_current(state, seen_loop, events),
        budget=LoopSpend(
            **_figures([*spent.stages.values(), spent.other]),
            judging_tokens=_tokens(spent.judging),
            iterations=IterationsUsed(used=seen_loop.iteration, max=seen_loop.most),
            elapsed_seconds=round((until - row.headline.started_at) / 1_000, 3),
        ),
        stages=_stages(state, cycles_of(state.plan, events, service.read_text), spent),
        recent_events=[event_on_wire(row.run, one) for one in numbered[-RECENT:][::-1]],
    )


def _stages(state: State, cycles: Sequence[LoopIteration], spent: StageSpend) -> list[StageCost]:
    """Every stage of every iteration; also one that was repeated since, because of its cost."""
    plan = {one.id: one for one in stages_of(state.plan)}
    shown: dict[tuple[int, str], LoopStage] = {
        (cycle.number, stage.id): stage for cycle in cycles for stage in cycle.stages
    }
    rows: list[StageCost] = []
    for key in sorted({*shown, *spent.stages}, key=lambda key: (key[0], plan[key[1]].index)):
        stage = shown.get(key) or plan[key[1]]
        status = stage.status if key in shown else "replaced"
        view = {**msgspec.structs.asdict(stage.view()), "status": status}
        figures = _figures([spent.stages.get(key, Usage())])
        rows.append(StageCost(**view, iteration=key[0], **figures))
    return rows


def _current(state: State, seen_loop: Seen, events: Sequence[AnyEvent]) -> CurrentStage | None:
    """The active stage, its agent, and the time of its last output."""
    if not seen_loop.stages or seen_loop.stages[seen_loop.stage].status != "running":
        return None
    stage = seen_loop.stages[seen_loop.stage]
    agent = state.plan.agents.get(_agent(state, stage.id))
    last = max(
        (event.at for event in events if _is_inside(event, seen_loop.asked)), default=seen_loop.at
    )
    return CurrentStage(
        **msgspec.structs.asdict(stage.view()),
        model=(agent.model or agent.spec) if agent is not None else None,
        task_id=seen_loop.task,
        stage_id=seen_loop.asked,
        last_event_at=timestamp(last),
    )


def _agent(state: State, stage: str) -> str:
    loop = state.plan_index.loop
    steps = loop.body.steps if loop is not None and isinstance(loop.body, Steps) else ()
    calls = {one.id: one.action.agent for one in steps if isinstance(one.action, CallAgent)}
    return calls.get(stage, "")


def _is_inside(event: AnyEvent, place: str) -> bool:
    path = str(getattr(event, "path", ""))
    return bool(place) and (path == place or path.startswith(f"{place}."))


def _figures(used: Iterable[Usage]) -> dict[str, Any]:
    total = Usage()
    for one in used:
        total = total + one
    return {
        "tokens": _tokens(total),
        **msgspec.structs.asdict(usage_amounts(total)),
    }


def _tokens(used: Usage) -> int:
    return used.input_tokens + used.output_tokens


def figures(service: Service, reference: str) -> LoopFigures:
    """Totals of a loop: they follow from its history alone."""
    row = _row(service, reference)
    cycles = _cycles(service, row)
    stages = [stage for one in cycles for stage in one.stages]
    spent = [one.seconds for one in cycles]
    until = row.headline.finished_at or service.clock.now_ms()
    return LoopFigures(
        loop_id=row.run,
        status=loop_status(row),
        current_iteration=cycles[-1].number if cycles else 1,
        iterations=IterationCounts(len(cycles), Counter(one.status for one in cycles)),
        stages=StageCounts(
            total=len(stages),
            by_status=Counter(one.status for one in stages),
            by_role=Counter(one.role for one in stages),
        ),
        timings=LoopTimings(
            total_iteration_seconds=sum(spent),
            average_iteration_seconds=sum(spent) / len(spent) if spent else 0,
            iteration_timings=[
                IterationTiming(one.number, one.seconds, len(one.stages), one.completed)
                for one in cycles
            ],
        ),
        duration_seconds=(until - row.headline.started_at) / 1_000,
    )


class ForgottenLoop(msgspec.Struct):
    """A loop that was forgotten."""

    deleted: bool
    id: str


def forget(service: Service, reference: str, *, by: str) -> ForgottenLoop:
    """Forget a loop that has ended."""
    row = _row(service, reference)
    if not row_ended(row):
        message = f"{row.run} is {loop_status(row)}: stop it first"
        raise Conflict(message, code="wrong-state")
    service.forget([row.run], by=by)
    return ForgottenLoop(deleted=True, id=row.run)


def _row(service: Service, reference: str) -> RunRow:
    return loop_row(service, service.find(reference))


def _cycles(service: Service, row: RunRow) -> list[LoopIteration]:
    events = [one.event for one in service.events(row.run)]
    now = row.headline.finished_at or service.clock.now_ms()
    return cycles_of(service.plan(events[0]), events, service.read_text, now=now)


FIELDS = ("goal", "max_iterations", "metadata", "labels")
OURS = ("dispatch",)  # of metadata: what the engine says there about its own work
_AGAIN: dict[str, Decision] = {"retry": "continue", "skip": "approve"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopEdit:
    """What shall be different about a loop from its next stage on; None leaves a thing as it is."""

    goal: str | None = None
    max_iterations: int | None = None
    unlimited: bool = False  # it has no cap any more
    metadata: Mapping[str, JsonValue] | None = None
    labels: Sequence[str] | None = None


def edit_of(body: JsonValue) -> LoopEdit:
    """An edit as programs write it: an object with some of the four fields, and no other."""
    if not isinstance(body, dict) or not body:
        raise LoopwrightError(
            f"nothing to change: say one of {', '.join(FIELDS)}", code="missing-field"
        )
    unknown = [name for name in body if name not in FIELDS]
    if unknown:
        raise LoopwrightError(
            f"{unknown[0]} cannot be changed; there are {', '.join(FIELDS)}", code="unknown-field"
        )
    try:
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise LoopwrightError(
            "this cannot be kept: a number in it is none, or a text holds bytes that are not text",
            code="bad-value",
        ) from error
    return LoopEdit(
        goal=_goal(body["goal"]) if "goal" in body else None,
        max_iterations=_most(body.get("max_iterations")),
        unlimited="max_iterations" in body and body["max_iterations"] is None,
        metadata=_metadata(body["metadata"]) if "metadata" in body else None,
        labels=_labels(body["labels"]) if "labels" in body else None,
    )


def _goal(value: JsonValue) -> str:
    if not isinstance(value, str) or not value.strip():
        raise LoopwrightError("goal must be a text that says something", code="missing-field")
    return value


def _most(value: JsonValue) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_ITERATIONS:
        raise LoopwrightError(
            f"max_iterations must be a whole number from 1 to {MAX_ITERATIONS}", code="out-of-range"
        )
    return value


def _metadata(value: JsonValue) -> dict[str, JsonValue]:
    if not isinstance(value, dict):
        raise LoopwrightError("metadata must be an object", code="bad-value")
    for name in OURS:
        if name in value:
            raise LoopwrightError(
                f"metadata.{name} is set by the loop itself and cannot be changed",
                code="bad-value",
                hint="keep yours under another name; what is left out stays as it is",
            )
    return value


def _labels(value: JsonValue) -> list[str]:
    good = isinstance(value, list) and all(isinstance(one, str) and one.strip() for one in value)
    if not isinstance(value, list) or not good:
        raise LoopwrightError("labels must be a list of texts, none empty", code="bad-value")
    return list(dict.fromkeys(str(one).strip() for one in value))


# -- editing ---------------------------------------------------------------------------------------


async def edit(service: Service, reference: str, wanted: LoopEdit, *, by: str = "") -> str:
    """Change a loop that is open; its next stage sees it so. All of it counts, or nothing."""
    run = _of_roles(service, reference).run
    if service.rights is not None:
        service.rights.refuse("edit a run", run)
    for _ in range(CAS_TRIES):
        row = service.log.row(run)
        if row_ended(row):
            raise Conflict(f"{run} has ended: {loop_status(row)}", code="ended")
        state = service.state(run)
        _check_most(state, wanted)
        goal = None if wanted.goal is None else _filled(state, wanted.goal)
        message, blobs = stored_text(goal or "")
        event = RunEdited(
            at=service.clock.now_ms(),
            message=None if goal is None else message,
            passes=0 if wanted.unlimited else wanted.max_iterations,
            metadata=None if wanted.metadata is None else dict(wanted.metadata),
            labels=None if wanted.labels is None else tuple(wanted.labels),
            by=by,
        )
        append = Append(
            run=run,
            expected=row.version,
            events=[event],
            blobs=blobs,
            headline=replace(row.headline, updated_at=event.at),
            figures=figures_after(state, [event]),
            audit=audit_rows(run, [event], service.via),
        )
        try:
            await service.log.append(append)
        except VersionConflict:
            continue
        if service.driver is not None:
            service.look(run)
        return run
    raise Conflict("the loop changes too fast; try again", code="busy")


def _filled(state: State, goal: str) -> str:
    assert state.started is not None
    return filled(state.plan.dialect, goal, state.started.inputs)


def _check_most(state: State, wanted: LoopEdit) -> None:
    loop, body = state.plan_index.loop, current_loop(state)
    if wanted.unlimited and loop is not None and loop.at_cap == "complete":
        raise Conflict(
            f"{state.run} ends by the number of its iterations alone: it needs one",
            code="needs-a-cap",
            hint="give a number, or stop the loop",
        )
    begun = 0 if body is None else _begun(body)
    if wanted.max_iterations is not None and wanted.max_iterations < begun:
        raise Conflict(
            f"max_iterations {wanted.max_iterations}: {state.run} is in iteration {begun}",
            code="below-current",
            hint=f"give {begun} or more, or stop the loop",
        )


def _begun(body: RepeatBody) -> int:
    return body.finished + len(body.active)


# -- what it stopped at ----------------------------------------------------------------------------


async def retry(
    service: Service,
    reference: str,
    *,
    note: str = "",
    by: str = "",
    changes: ResumeChanges = NO_CHANGES,
) -> str:
    """Try again what a loop stopped at: the stage that is blocked or has failed, with a note for
    it. What completed in that iteration is kept. After rounds that were rejected too often, the
    next round begins with the note.
    """
    return await _go_on(service, reference, replace(changes, stage="retry", note=note), by=by)


async def skip(
    service: Service,
    reference: str,
    *,
    note: str = "",
    by: str = "",
    changes: ResumeChanges = NO_CHANGES,
) -> str:
    """Skip the stage that a loop stopped at; the next one continues, and its prompt says so."""
    return await _go_on(service, reference, replace(changes, stage="skip", note=note), by=by)


async def _go_on(service: Service, reference: str, changes: ResumeChanges, *, by: str) -> str:
    row = _staged(service, reference)
    changes = replace(changes, note=changes.note.encode(errors="replace").decode())
    if row_ended(row):
        _check_ended(service, row, changes)
        await reopen(service, row.run, by=by, changes=changes)
        return row.run
    gates = service.log.gates(row.run)
    opened = [service.opened(gate) for gate in gates]
    about = [one for one in opened if _is_stop(one)]
    if len(about) != 1:
        waits = " and waits for another decision" if gates else ""
        raise Conflict(
            f"{row.run} is {loop_status(row)}{waits}: nothing of it is blocked or has failed",
            code="wrong-state",
            hint="`loopwright inbox` lists what waits for a decision" if gates else None,
        )
    if changes.stage == "skip" and about[0].about == "pass":
        raise Conflict(
            f"{row.run} waits after a whole iteration: there is no stage to skip",
            code="wrong-state",
            hint=f"continue with `retry`, or accept it: loopwright approve {about[0].gate}",
        )
    decision = _AGAIN[changes.stage or "retry"]
    if row.headline.status == "paused":
        service.admit_resume(service.state(row.run), by=by)
    run = await service.answer(about[0].gate, decision, text=changes.note, by=by)
    if row.headline.status == "paused":  # a request to repeat a stage also resumes the loop
        await service.resume(run, by=by)
    return run


def _is_stop(opened: GateOpened) -> bool:
    """Whether a gate is open because a loop cannot continue by itself."""
    return opened.about in ("blocked", "pass") and "continue" in opened.answers


def _check_ended(service: Service, row: RunRow, changes: ResumeChanges) -> None:
    if row.headline.status not in ("failed", "exhausted"):
        return  # reopening it reports the reason
    state = service.state(row.run)
    half = stopped_half_way(state)
    if not half:
        words = capped_words(state) or "it did not stop in the middle of an iteration"
        raise Conflict(
            f"{row.run}: {words}",
            code="not-half-way",
            hint=f"`loopwright resume {row.run}` continues it",
        )
    if changes.stage == "skip" and all(one.stuck is None for one in half.values()):
        raise Conflict(
            f"{row.run} ended after a whole iteration: there is no stage to skip",
            code="wrong-state",
            hint=f"`loopwright retry {row.run}` tries it again",
        )


def _staged(service: Service, reference: str) -> RunRow:
    """A loop whose passes have stages: without any there is none to try again or to leave out."""
    row = service.log.row(service.find(reference))
    if not stages_of(service.plan(service.events(row.run)[0].event)):
        raise Conflict(
            f"{row.run} is not a loop of roles: it has no stages",
            code="no-stages",
            hint=None
            if row.headline.status == "completed"
            else f"`loopwright resume {row.run}` continues it",
        )
    return row


def _of_roles(service: Service, reference: str) -> RunRow:
    """Only loops of roles read goal and cap again with every stage."""
    row = loop_row(service, service.find(reference))
    if row.headline.dialect != OF_LOOPS:
        raise Conflict(
            f"{row.run} is not a loop of roles: only their plans can be edited",
            code="not-editable",
            hint=f"`loopwright fork {row.run} --at N --edit TEXT` starts a new run",
        )
    return row
