"""Steering a loop of roles: what it is for is changed, and what it stopped at is tried again or
left out. Everything here is told to the loop by a fact, and whoever drives it goes by that.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from loopwright.app.auditing import audit_rows
from loopwright.app.dialects import OF_LOOPS, filled
from loopwright.app.registry import loop_row
from loopwright.app.reopening import NO_CHANGES, Changes, reopen
from loopwright.app.service import CAS_TRIES, Service, row_ended
from loopwright.app.views.loops import loop_status
from loopwright.app.views.role_cycles import stages_of
from loopwright.app.views.summary import current_loop
from loopwright.app.views.words import capped_words
from loopwright.errors import Conflict, LoopwrightError, VersionConflict
from loopwright.kernel.facts import GateOpened, RunEdited
from loopwright.kernel.frames import RepeatBody
from loopwright.kernel.reopening import stopped_half_way
from loopwright.kernel.state import State
from loopwright.model.actions import MAX_PASSES, Decision
from loopwright.model.plan import only_repeat
from loopwright.model.record import JsonValue
from loopwright.ports import Append, RunRow
from loopwright.runtime.senses import stored_text

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
            "this cannot be kept: a number in it is none, or a text holds bytes that are no text",
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
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_PASSES:
        raise LoopwrightError(
            f"max_iterations must be a whole number from 1 to {MAX_PASSES}", code="out-of-range"
        )
    return value


def _metadata(value: JsonValue) -> dict[str, JsonValue]:
    if not isinstance(value, dict):
        raise LoopwrightError("metadata must be an object", code="bad-value")
    for name in OURS:
        if name in value:
            raise LoopwrightError(
                f"metadata.{name} is told by the loop itself and cannot be changed",
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
        fact = RunEdited(
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
            facts=[fact],
            blobs=blobs,
            headline=replace(row.headline, updated_at=fact.at),
            audit=audit_rows(run, [fact], service.via),
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
    loop, body = only_repeat(state.plan), current_loop(state)
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
    service: Service, reference: str, *, note: str = "", by: str = "", changes: Changes = NO_CHANGES
) -> str:
    """Try again what a loop stopped at: the stage that is blocked or has failed, with a note for
    it. What completed in that iteration is kept. After rounds that were rejected too often, the
    next round begins with the note.
    """
    return await _go_on(service, reference, replace(changes, stage="retry", note=note), by=by)


async def skip(
    service: Service, reference: str, *, note: str = "", by: str = "", changes: Changes = NO_CHANGES
) -> str:
    """Leave out the stage that a loop stopped at; the one after it goes on, and is told so."""
    return await _go_on(service, reference, replace(changes, stage="skip", note=note), by=by)


async def _go_on(service: Service, reference: str, changes: Changes, *, by: str) -> str:
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
            f"{row.run} waits after a whole iteration: there is no stage to leave out",
            code="wrong-state",
            hint=f"go on with `retry`, or accept it: loopwright approve {about[0].gate}",
        )
    decision = _AGAIN[changes.stage or "retry"]
    if row.headline.status == "paused":
        service.admit_resume(service.state(row.run), by=by)
    run = await service.answer(about[0].gate, decision, text=changes.note, by=by)
    if row.headline.status == "paused":  # whoever wants a stage again wants the loop to go on
        await service.resume(run, by=by)
    return run


def _is_stop(opened: GateOpened) -> bool:
    """Whether a question is asked because a loop cannot go on by itself."""
    return opened.about in ("blocked", "pass") and "continue" in opened.answers


def _check_ended(service: Service, row: RunRow, changes: Changes) -> None:
    if row.headline.status not in ("failed", "exhausted"):
        return  # whoever reopens it says why not
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
            f"{row.run} was ended after a whole iteration: there is no stage to leave out",
            code="wrong-state",
            hint=f"`loopwright retry {row.run}` tries it again",
        )


def _staged(service: Service, reference: str) -> RunRow:
    """A loop whose passes have stages: without any there is none to try again or to leave out."""
    row = service.log.row(service.find(reference))
    if not stages_of(service.plan(service.facts(row.run)[0].fact)):
        raise Conflict(
            f"{row.run} is no loop of roles: it has no stages",
            code="no-stages",
            hint=f"`loopwright resume {row.run}` continues it",
        )
    return row


def _of_roles(service: Service, reference: str) -> RunRow:
    """Only loops of roles read goal and cap anew with every stage."""
    row = loop_row(service, service.find(reference))
    if row.headline.dialect != OF_LOOPS:
        raise Conflict(
            f"{row.run} is not a loop of roles: only their plans can be edited",
            code="not-editable",
            hint=f"`loopwright fork {row.run} --at N --edit TEXT` starts a new run",
        )
    return row
