"""The herald: tells every loop to all tabs of whoever started it, by whichever door that was."""

import asyncio
import contextlib
from collections import OrderedDict
from typing import TypeVar

from loopwright.app.loops import LoopStory, is_loop
from loopwright.errors import LoopwrightError
from loopwright.server import words
from loopwright.server.context import Context
from loopwright.server.notice_words import certificate_of
from loopwright.server.sockets.clients import Client, Clients, tell
from loopwright.server.sockets.line import Line

MOST_KNOWN = 10_000
_V = TypeVar("_V")


class Herald:
    """Follows the loops of people who are connected."""

    def __init__(self, context: Context, clients: Clients, line: Line) -> None:
        self._context, self._clients, self._line = context, clients, line
        self._stories: dict[str, LoopStory] = {}
        self._others: OrderedDict[str, None] = OrderedDict()  # runs that are no loops
        self._ended: OrderedDict[str, int] = OrderedDict()  # up to which fact they were told
        self._moved: dict[str, None] = {}
        self._woken = asyncio.Event()

    def moved(self, run: str) -> None:
        """Something was written to a run."""
        if run not in self._others and self._clients.all():
            self._moved[run] = None
            self._woken.set()

    async def work(self) -> None:
        """Tell what has moved, for as long as the server lives."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._moved:
                run = next(iter(self._moved))
                del self._moved[run]
                with contextlib.suppress(LoopwrightError):  # it is damaged, gone, or the disk full
                    await self._tell(run)

    def forget(self, owner: str) -> None:
        """Nobody listens to the loops of somebody any more."""
        self._stories = {run: one for run, one in self._stories.items() if one.owner != owner}

    async def greet(self, client: Client, runs: list[str]) -> None:
        """Tell somebody who has just come how their loops stand."""
        for run in runs:
            with contextlib.suppress(LoopwrightError):
                story = self._stories.get(run) or LoopStory(self._context.service, run)
                if run not in self._stories:
                    story.carry_on()
                    self._stories[run] = story
                if story.active:
                    for event, data in words.now(story):
                        await tell(self._line, client, event, data)

    async def _tell(self, run: str) -> None:
        story = self._stories.get(run) or self._new(run)
        if story is None:
            return
        since = self._clients.since(story.owner)
        if since is None:
            self._stories.pop(run, None)
            return
        for one in story.carry_on():
            if one.at >= since and one.seq > self._ended.get(run, 0):
                for event, data in words.told(story, one):
                    if event == words.NOTIFICATION and one.name in ("completed", "failed"):
                        data["certificate"] = certificate_of(self._context.service, run)
                    for client in self._clients.of(story.owner):
                        await tell(self._line, client, event, data)
        if not story.active:
            self._stories.pop(run, None)
            _keep(self._ended, run, story.seen)

    def _new(self, run: str) -> LoopStory | None:
        head = self._context.here.log.row(run).headline
        if not is_loop(head.dialect, head.key):
            _keep(self._others, run, None)
            return None
        story = LoopStory(self._context.service, run)
        if self._clients.present(story.owner):
            self._stories[run] = story
        return story


def _keep(known: OrderedDict[str, _V], run: str, value: _V) -> None:
    known[run] = value
    if len(known) > MOST_KNOWN:
        known.popitem(last=False)
