"""What lists show of a run, read off its state, and which rows of the inbox an append changes."""

from collections.abc import Sequence

from loopwright.kernel.facts import AnyFact, GateAnswered, GateClosed, GateOpened
from loopwright.kernel.state import State
from loopwright.ports import Headline, OpenGate, RunStatus

_GATE_FACTS = frozenset({GateOpened, GateAnswered, GateClosed})


def status_of(state: State) -> RunStatus:
    """The status of a run in one word."""
    if state.finished is not None:
        return state.finished.outcome
    if state.paused:
        return "paused"
    asking = {gate.effect for gate in state.gates.values() if gate.effect}
    working = len(state.pending) > len(state.timers) + len(asking)
    return "waiting" if state.gates and not working else "running"


def wake_time(state: State) -> int | None:
    """When the earliest timer of a run is due."""
    return min(state.timers.values()) if state.timers else None


def headline_of(state: State) -> Headline:
    """The headline of a run as it stands."""
    started = state.started
    assert started is not None
    finished = state.finished
    return Headline(
        name=started.name,
        status=status_of(state),
        reason=finished.reason if finished else "",
        dialect=started.dialect,
        workspace=started.workspace,
        started_at=started.at,
        updated_at=state.now,
        finished_at=finished.at if finished else None,
        wake_at=wake_time(state),
        key=started.key,
        session=started.session,
    )


def gate_changes(run: str, facts: Sequence[AnyFact]) -> tuple[list[OpenGate], list[str]]:
    """Rows that these facts add to the inbox and take from it."""
    opened: dict[str, OpenGate] = {}
    closed: list[str] = []
    for fact in facts:
        if type(fact) not in _GATE_FACTS:
            continue
        if isinstance(fact, GateOpened):
            opened[fact.gate] = OpenGate(
                gate=fact.gate,
                run=run,
                path=fact.path,
                digest=fact.digest,
                message=fact.message,
                opened_at=fact.at,
            )
        elif isinstance(fact, GateAnswered | GateClosed) and not opened.pop(fact.gate, None):
            closed.append(fact.gate)
    return list(opened.values()), closed
