"""What is known of a loop afterwards: its iterations, its figures, and forgetting it.

Everything told here is read off its facts; nothing is stored beside them.
"""

from collections import Counter
from collections.abc import Iterable

from loopwright.app.registry import loop_row
from loopwright.app.service import Service, row_ended
from loopwright.app.views.loops import loop_status
from loopwright.app.views.role_cycles import Cycle, cycles_of
from loopwright.errors import Conflict, NotFound
from loopwright.model.record import JsonValue
from loopwright.ports import RunRow


def history(service: Service, reference: str) -> dict[str, JsonValue]:
    """Every iteration with its stages, in their order."""
    row = _row(service, reference)
    shown: list[JsonValue] = [one.as_dict(row.run) for one in _cycles(service, row)]
    return {"loop_id": row.run, "status": loop_status(row), "history": shown, "count": len(shown)}


def iteration(service: Service, reference: str, wanted: str) -> dict[str, JsonValue]:
    """One iteration by its id; not one of another loop."""
    row = _row(service, reference)
    for one in _cycles(service, row):
        if one.name(row.run) == wanted:
            return one.as_dict(row.run)
    raise NotFound(f"{row.run} has no iteration {wanted!r}")


def figures(service: Service, reference: str) -> dict[str, JsonValue]:
    """Totals of a loop: they follow from its history alone."""
    row = _row(service, reference)
    cycles = _cycles(service, row)
    stages = [stage for one in cycles for stage in one.stages]
    spent = [one.seconds for one in cycles]
    timings: list[JsonValue] = [
        {
            "iteration": one.number,
            "duration_seconds": one.seconds,
            "stage_count": len(one.stages),
            "completed_stages": one.completed,
        }
        for one in cycles
    ]
    return {
        "loop_id": row.run,
        "status": loop_status(row),
        "current_iteration": cycles[-1].number if cycles else 1,
        "iterations": {"total": len(cycles), "by_status": _count(one.status for one in cycles)},
        "stages": {
            "total": len(stages),
            "by_status": _count(one.status for one in stages),
            "by_role": _count(one.role for one in stages),
        },
        "timings": {
            "total_iteration_seconds": sum(spent),
            "average_iteration_seconds": sum(spent) / len(spent) if spent else 0,
            "iteration_timings": timings,
        },
    }


def forget(service: Service, reference: str, *, by: str) -> dict[str, JsonValue]:
    """Forget a loop that has ended."""
    row = _row(service, reference)
    if not row_ended(row):
        message = f"{row.run} is {loop_status(row)}: stop it first"
        raise Conflict(message, code="wrong-state")
    service.forget([row.run], by=by)
    return {"deleted": True, "id": row.run}


def _row(service: Service, reference: str) -> RunRow:
    return loop_row(service, service.find(reference))


def _cycles(service: Service, row: RunRow) -> list[Cycle]:
    facts = [one.fact for one in service.facts(row.run)]
    now = row.headline.finished_at or service.clock.now_ms()
    return cycles_of(service.plan(facts[0]), facts, service.read_text, now=now)


def _count(values: Iterable[str]) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    for one, count in Counter(values).items():
        found[one] = count
    return found
