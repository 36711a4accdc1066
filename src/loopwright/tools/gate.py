"""Who may run now: caps for each tool, and tools that want to be alone."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What one tool is held to."""

    seconds: float = 60.0
    at_once: int | None = None  # calls of this tool, in one workspace
    exclusive: bool = False  # alone: after all that came before it, before all that come after


@dataclass(eq=False, slots=True)
class _Ticket:
    tool: str
    limit: Limit
    turn: asyncio.Future[None]


class Gate:
    """Lets calls in, in the order in which they come, as their limits allow."""

    def __init__(self) -> None:
        self._waiting: deque[_Ticket] = deque()
        self._running: Counter[str] = Counter()
        self._alone = False

    @asynccontextmanager
    async def turn(self, tool: str, limit: Limit) -> AsyncIterator[None]:
        """Wait for a place and keep it as long as the block lasts."""
        ticket = _Ticket(tool, limit, asyncio.get_running_loop().create_future())
        self._waiting.append(ticket)
        self._admit()
        try:
            await ticket.turn
        except asyncio.CancelledError:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                self._admit()
            else:
                self._leave(ticket)
            raise
        try:
            yield
        finally:
            self._leave(ticket)

    def _leave(self, ticket: _Ticket) -> None:
        self._running[ticket.tool] -= 1
        self._alone = self._alone and not ticket.limit.exclusive
        self._admit()

    def _admit(self) -> None:
        held_back: deque[_Ticket] = deque()
        while self._waiting and not self._alone:
            ticket = self._waiting.popleft()
            if ticket.limit.exclusive and (held_back or self._running.total()):
                held_back.append(ticket)
                break
            cap = ticket.limit.at_once
            if cap is not None and self._running[ticket.tool] >= cap:
                held_back.append(ticket)
                continue
            self._running[ticket.tool] += 1
            self._alone = ticket.limit.exclusive
            if not ticket.turn.cancelled():
                ticket.turn.set_result(None)
        self._waiting.extendleft(reversed(held_back))
