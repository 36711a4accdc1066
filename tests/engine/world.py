"""Processes without processes: drivers over one store in memory, a clock that is set by hand, and
a log whose appends can be made to fail.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import jsonschema

from loopwright.engine.driver import LocalDriver
from loopwright.kernel.events import AnyEvent
from loopwright.kernel.fold import fold
from loopwright.kernel.state import State
from loopwright.model.plan import Plan, decode_plan
from loopwright.model.record import JsonValue
from loopwright.operations.run_request import RunStart
from loopwright.operations.runs import Service
from loopwright.ports import Append, NumberedEvent, Owner, Performer
from loopwright.testing import FakeClock, ScriptedPerformer
from loopwright.testing.fakes import PerformerScript
from tests.planned_levels import PlannedLevels
from tests.support.memory_log import MemoryLog, MemoryStore

_T = TypeVar("_T")


def run(body: Coroutine[object, object, _T]) -> _T:
    """An async test in a plain one. A hanging one is a failure, not a hanging suite."""
    return asyncio.run(asyncio.wait_for(body, 60))


async def quiet(turns: int = 60) -> None:
    """Let everything happen that is already on its way."""
    for _ in range(turns):
        await asyncio.sleep(0)


def no_schema(schema: dict[str, JsonValue], value: JsonValue) -> str | None:
    found = next(jsonschema.Draft202012Validator(schema).iter_errors(value), None)
    return None if found is None else found.message


class UnreliableLog(MemoryLog):
    """A log that refuses appends and reads when told to, each entry of a queue once."""

    def __init__(self, store: MemoryStore, alive: Callable[[Owner], bool]) -> None:
        super().__init__(store=store, alive=alive)
        self.refusals: deque[Exception | None] = deque()
        self.unreadable: deque[Exception | None] = deque()
        self.appends: list[Append] = []

    def submit(self, append: Append, done: Callable[[Exception | None], None]) -> None:
        refusal = self.refusals.popleft() if self.refusals else None
        if refusal is not None:
            asyncio.get_running_loop().call_soon(done, refusal)
            return
        self.appends.append(append)
        super().submit(append, done)

    def read(self, run: str, after: int = 0, limit: int | None = None) -> list[NumberedEvent]:
        problem = self.unreadable.popleft() if self.unreadable else None
        if problem is not None:
            raise problem
        return super().read(run, after, limit)


class Process:
    """One process: its log, performer, driver and service."""

    def __init__(self, world: "World", pid: int, performer: Performer) -> None:
        self.owner = Owner(pid=pid, start=pid, boot="boot", token=f"token-{pid}")
        self.clock = FakeClock(world.now)
        self.log = UnreliableLog(world.store, world.is_alive)
        self.performer = performer
        self.driver = LocalDriver(
            self.log, performer, clock=self.clock, owner=self.owner, check_schema=no_schema
        )
        self.service = Service(self.log, self.clock, self.driver, PlannedLevels())
        self.looker = Service(self.log, self.clock, None, PlannedLevels())
        self.driver.open()

    @property
    def scripted(self) -> ScriptedPerformer:
        assert isinstance(self.performer, ScriptedPerformer)
        return self.performer

    async def start(self, plan: Plan, message: str = "Do it.", **more: object) -> str:
        start = RunStart(plan=plan, workspace=Path("/"), message=message, **more)  # type: ignore[arg-type]
        return await self.service.start(start)

    async def finish(self, plan: Plan, **more: object) -> State:
        """Start and drive until the run rests."""
        name = await self.start(plan, **more)
        await self.driver.rest(name)
        return self.state(name)

    async def tick(self, ms: int = 200) -> None:
        """Let time pass, and then everything that follows from it."""
        self.clock.advance(ms)
        await quiet()

    def events(self, run: str) -> list[AnyEvent]:
        return [numbered.event for numbered in self.log.read(run)]

    def kinds(self, run: str) -> list[str]:
        return [str(type(event).__struct_config__.tag) for event in self.events(run)]

    def state(self, run: str) -> State:
        events = self.events(run)
        return fold(decode_plan(self.log.blob(events[0].plan)), events)  # type: ignore[union-attr]

    def status(self, run: str) -> str:
        return self.log.row(run).headline.status


class World:
    """A disk and the processes that use it."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.now = FakeClock().now
        self.dead: set[str] = set()
        self._pids = 100

    def is_alive(self, owner: Owner) -> bool:
        return owner.token not in self.dead

    def process(
        self, script: PerformerScript | None = None, performer: Performer | None = None
    ) -> Process:
        self._pids += 1
        return Process(self, self._pids, performer or ScriptedPerformer(script))

    def kill(self, process: Process) -> None:
        """The process is gone without a word; what it was waiting for never comes."""
        self.dead.add(process.owner.token)
        self.now = max(self.now, process.clock.now)
        process.clock.forget()
        for actor in process.driver._actors.values():
            actor.gone = True
