"""Runs that an older version recorded: what lists show of them, computed once from their events."""

from collections.abc import Sequence

from loopwright.errors import NotFound, StorageError
from loopwright.kernel.events import GateAnswered, GateClosed, GateOpened, RunStarted
from loopwright.kernel.fold import fold
from loopwright.model.plan import stored_plan
from loopwright.ports import EventLog, RunListing
from loopwright.ports.headline import (
    closed_gate,
    figures_of,
    gate_changes,
    headline_of,
    usage_rows,
)
from loopwright.views.run_responses import details_of


def listing_of(log: EventLog, run: str) -> RunListing:
    """Everything that lists show of a run, from its events."""
    events = [one.event for one in log.read(run)]
    first = events[0] if events else None
    if not isinstance(first, RunStarted):
        raise StorageError(f"the log of {run} has no beginning", code="damaged")
    plan = stored_plan(log.blob, first.plan)
    try:
        state = fold(plan, events)
    except (LookupError, ValueError) as error:
        words = f"the events of {run} cannot be followed: {error}"
        raise StorageError(words, code="damaged") from error
    opened = [one for one in events if isinstance(one, GateOpened) and one.gate in state.gates]
    return RunListing(
        version=len(events),
        headline=headline_of(state),
        figures=figures_of(state),
        details=details_of(plan, first),
        usage=usage_rows(run, events),
        open_gates=gate_changes(state, opened)[0],
        closed_gates=[
            closed_gate(run, one)
            for one in events
            if isinstance(one, GateAnswered | GateClosed) and one.gate not in state.gates
        ],
    )


def store_listings(log: EventLog, runs: Sequence[str]) -> list[str]:
    """Store the listing of each run in a transaction of its own, so that an interruption loses
    nothing. Returns damaged runs. Where nothing can be written, nothing is stored.
    """
    left: list[str] = []
    for run in runs:
        try:
            log.replace_listing(run, listing_of(log, run))
        except (StorageError, NotFound) as error:
            if error.code == "read-only":
                break
            left.append(run)
    return left
