"""Noticing: looks at what was written, keeps what people should know, and sends it to them."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from loopwright.errors import LoopwrightError
from loopwright.server.context import Context
from loopwright.server.enduring import Enduring
from loopwright.server.notice_words import Teller
from loopwright.server.notices import Notice, Notices, gate_of

OTHERS_S = 1.0  # how often is looked at what other processes write
TOGETHER_S = 0.2  # facts that come in this time are looked at together
MOST_AT_RETURN = 100
BY_OTHERS = ("loop.torn_down", "run.torn_down", "loop.manual_approval_required")
"""What everybody who connects is sent anyway."""

Send = Callable[[Notice], Awaitable[bool]]
"""Sends a notice to all connections of its person; whether there was any."""


class Noticing:
    """One for a server."""

    def __init__(self, context: Context) -> None:
        self.notices = Notices(context.here.log, context.cards, context.clock)
        self.present_since: Callable[[str], int | None] = lambda _: None
        self.send: Send | None = None
        self._teller = Teller(context.service, lambda who: self.present_since(who))
        self._woken = asyncio.Event()
        self.close = context.here.log.subscribe(lambda _run, _version: self._woken.set())

    async def work(self) -> None:
        """Look and send, for as long as the server lives."""
        work = Enduring("noticing what happened")
        while True:
            with work.round():
                await self.look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), OTHERS_S)
            await asyncio.sleep(TOGETHER_S)
            self._woken.clear()

    async def look(self) -> list[Notice]:
        """What is new since the last time: written down first, then sent."""
        runs = self.notices.moved()
        made = self.notices.notice(runs, self._teller) if runs else []
        await self._sent([one for one in made if not one.told])
        return made

    async def at_return(self, who: str, send: Send) -> None:
        """Somebody is back: what was sent to nobody meanwhile, if it still is news."""
        waiting = self.notices.untold(who, MOST_AT_RETURN)
        with contextlib.suppress(LoopwrightError):
            told = [one for one in waiting if not self._is_news(one) or await send(one)]
            self.notices.are_told(told)

    def end_of(self, run: str) -> Notice | None:
        """The notice about the end of a run."""
        return self._teller.end_of(run)

    def _is_news(self, notice: Notice) -> bool:
        """Not what was decided meanwhile, and not what sockets tell by themselves."""
        if notice.kind in BY_OTHERS:
            return False
        return gate_of(notice) is None or self.notices.waits(notice)

    async def _sent(self, notices: list[Notice]) -> None:
        if self.send is not None and notices:
            self.notices.are_told([one for one in notices if await self.send(one)])
