"""People who decide about one call of a model's turn: as it is, changed, for good, or not."""

from __future__ import annotations

from dataclasses import replace

from loopwright.app.service import Service
from loopwright.errors import Conflict, VersionConflict
from loopwright.kernel.facts import GateAnswered, GateOpened
from loopwright.model.actions import Decision
from loopwright.ports import Append
from loopwright.runtime.senses import stored_text

TRIES = 50


def question(service: Service, gate: str) -> GateOpened | None:
    """What an open gate asks; None when it is no longer open."""
    for row in service.log.gates():
        if row.gate == gate:
            facts = [numbered.fact for numbered in service.log.read(row.run)]
            return next(f for f in facts if isinstance(f, GateOpened) and f.gate == gate)
    return None


async def answer_call(
    service: Service,
    gate: str,
    decision: Decision,
    *,
    by: str,
    arguments: str | None = None,
    remember: bool = False,
) -> None:
    """Decide about a call, once: Conflict when somebody has done so already."""
    kept, blobs = stored_text(arguments or "")
    for _ in range(TRIES):
        [run] = [row.run for row in service.log.gates() if row.gate == gate] or [""]
        opened = question(service, gate)
        if opened is None:
            raise Conflict(f"{gate} is not open", code="already-resolved")
        row = service.log.row(run)
        fact = GateAnswered(
            at=service.clock.now_ms(),
            path=opened.path,
            iteration=opened.iteration,
            gate=gate,
            decision=decision,
            by=by,
            arguments=None if arguments is None else kept,
            remember=remember,
        )
        shown = "paused" if row.headline.status == "paused" else "running"
        append = Append(
            run=run,
            expected=row.version,
            facts=[fact],
            blobs=blobs if arguments is not None else {},
            headline=replace(row.headline, status=shown, updated_at=fact.at),
            gates_closed=[gate],
        )
        try:
            await service.log.append(append)
        except VersionConflict:
            continue
        if service.driver is not None:
            service.look(run)
        return
    raise Conflict("the run changes too fast", code="busy")
