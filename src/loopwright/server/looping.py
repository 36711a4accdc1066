"""Loops of assistants as the doors of this server have them: one for HTTP and for sockets."""

import os
from collections import OrderedDict

from loopwright.app.assistants import Assistants, Parting
from loopwright.app.keeping import Beside
from loopwright.app.leaving import Leaving, departures
from loopwright.app.loops import LoopStory, agent_of, is_loop
from loopwright.app.problems import rendered
from loopwright.app.run_request import Start
from loopwright.app.stop_wait import wait_until_stopped
from loopwright.server.context import Context

MOST_KEPT = 256


class Looping:
    """Assistants, their loops, and what becomes of them when people leave."""

    def __init__(self, context: Context) -> None:
        self._context = context
        settings, serving = context.settings, context.serving
        self.assistants = Assistants(
            context.service, context.cards, serving.workspace, settings.agent
        )
        self.leaving = Leaving(context.service, context.cards, departures(os.environ))
        self._kept: OrderedDict[str, LoopStory] = OrderedDict()

    async def start(
        self,
        agent_id: str,
        message: str,
        *,
        by: str,
        parting: Parting | None = None,
        otherwise: Parting | None = None,
        allow_unknown_cost: bool = False,
    ) -> str:
        """Start a loop, and remember whose it is. `otherwise` says what happens when its starter
        leaves, if neither the request nor the assistant does.
        """
        assistant = self.assistants.get(agent_id)
        beside = self.leaving.beside(
            by,
            name=str(assistant.document.get("name", "")),
            parting=parting or assistant.parting or otherwise,
            agent_id=agent_id,
        )
        return await self.assistants.start(
            agent_id, message, by=by, beside=beside, allow_unknown_cost=allow_unknown_cost
        )

    def warnings(self, agent_id: str) -> list[str]:
        """What is doubtful about an assistant, in the words of a run that is just started."""
        found = self.assistants.definition(self.assistants.get(agent_id)).warnings
        return rendered(found)

    def beside(
        self, by: str, start: Start | None = None, *, parting: Parting | None, name: str = ""
    ) -> Beside:
        """What is kept beside a run that somebody starts by another door."""
        agent_id = ""
        if start is not None and is_loop(start.plan.dialect, start.key):
            agent_id = agent_of(start.key)
        called = start.plan.name if start is not None else name
        return self.leaving.beside(by, name=called, parting=parting, agent_id=agent_id)

    def known(self, agent_id: str) -> None:
        """NotFound unless there is such an assistant, or a loop that says it is of one."""
        if self.assistants.newest(agent_id) is None:
            self.assistants.get(agent_id)

    async def stop(self, agent_id: str, *, by: str) -> tuple[str, str]:
        """End a loop, and wait for its end, so that the next may be started; the run, and whether
        it is `stopped` or still `stopping`.
        """
        run = await self.assistants.stop(agent_id, by=by)
        closing = self._context.closing
        state = await wait_until_stopped(self._context.here.log, [run], is_closing=closing.is_set)
        return run, state.word

    async def story(self, agent_id: str) -> LoopStory | None:
        """The loop of an assistant or the last one it had; None if it never had one."""
        row = self.assistants.newest(agent_id)
        return None if row is None else self.story_of(row.run)

    def story_of(self, run: str) -> LoopStory:
        """The story of a loop, up to now."""
        story = self._kept.pop(run, None) or LoopStory(self._context.service, run)
        story.carry_on()
        self._kept[run] = story
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return story
