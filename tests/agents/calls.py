"""Calls as a performer gets them, for the tests of agents that are programs or scripts."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from loopwright.agents.performer import LocalPerformer
from loopwright.agents.sandbox.bubblewrap import Sandbox
from loopwright.engine.activity import LiveBus
from loopwright.engine.services import schema_problem
from loopwright.kernel.event_parts import AgentCall, AnyCall
from loopwright.model.plan import Agent
from loopwright.ports import ActivityEntry, Answer, Delta, EffectJob
from tests.agents.leaping import leap_when, play
from tests.support.jobs import effect_job


def job(workspace: Path, call: AnyCall | None = None, **more: object) -> EffectJob:
    """The first try of the second iteration of `dev`, unless told otherwise."""
    fields: dict[str, object] = {
        "run": "run_1",
        "effect": "dev.1/agent#1",
        "path": "dev.1",
        "iteration": 2,
        "attempt": 1,
        "call": call or AgentCall(agent="worker"),
        "workspace": str(workspace),
        "token": "token-1",
        "prompt": "Do the work.",
        "step": "dev",
        **more,
    }
    return effect_job(**fields)


class Stage:
    """A performer and everything that was heard from it."""

    def __init__(
        self, base: Mapping[str, str] | None = None, sandbox: Sandbox | None = None
    ) -> None:
        self.deltas: list[Delta] = []
        self.speaks = asyncio.Event()
        bus = LiveBus()
        bus.listen(self._hear)
        self.performer = LocalPerformer(bus, schema_problem, base, sandbox=sandbox)

    def _hear(self, delta: Delta) -> None:
        self.deltas.append(delta)
        self.speaks.set()

    def said(self, kind: str = "text") -> str:
        return "".join(delta.text for delta in self.deltas if delta.kind == kind)

    def perform(self, what: EffectJob, *, hour_after: Callable[[], bool] | None = None) -> Answer:
        """Perform to the end, in an event loop of its own. If told so, an hour passes at once when
        something holds.
        """

        async def whole() -> Answer:
            answer = self.performer.perform(what)
            if not isinstance(answer, Awaitable):
                return answer
            if hour_after is None:
                return await answer
            passing = asyncio.create_task(leap_when(hour_after))
            try:
                return await answer
            finally:
                passing.cancel()

        return play(whole())


class RecordedActivity:
    """A sink that keeps everything in lists."""

    def __init__(self) -> None:
        self.entries: list[ActivityEntry] = []
        self.stream = b""

    def hide(self, values: Callable[[], Mapping[str, str]]) -> None:
        """Nothing is hidden: tests compare what was reported."""

    def record(self, entry: ActivityEntry) -> None:
        self.entries.append(entry)

    def redact(self, text: str) -> str:
        return text

    def keep_stream(self, chunk: bytes) -> None:
        self.stream += chunk


def agent(spec: str, **more: object) -> Agent:
    return Agent(spec=spec, **more)  # type: ignore[arg-type]
