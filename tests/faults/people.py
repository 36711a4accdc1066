"""What an open gate asks, for people who look before they decide."""

from __future__ import annotations

from loopwright.kernel.events import GateOpened
from loopwright.operations.runs import Service


def question(service: Service, gate: str) -> GateOpened | None:
    """The question of a gate; None when it is no longer open."""
    for row in service.log.gates():
        if row.gate == gate:
            events = [numbered.event for numbered in service.log.read(row.run)]
            return next(f for f in events if isinstance(f, GateOpened) and f.gate == gate)
    return None
