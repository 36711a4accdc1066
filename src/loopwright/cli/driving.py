"""Driving runs from the command line until they rest, and showing them meanwhile."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loopwright.app.service import current_user
from loopwright.app.views.progress import Progress
from loopwright.app.views.summary import summary
from loopwright.app.views.words import headline
from loopwright.app.wiring import Local, local
from loopwright.cli.asking import ask
from loopwright.cli.door import Door, Tone
from loopwright.cli.leaving import Leaving
from loopwright.cli.outcomes import exit_code, put_result, worst
from loopwright.cli.showing import choose_view
from loopwright.cli.watching import View
from loopwright.errors import Conflict, LoopwrightError
from loopwright.ports import Delta
from loopwright.runtime.headline import status_of

if TYPE_CHECKING:
    from loopwright.model.record import JsonValue

TICK_S = 0.25

Begin = Callable[[Local], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How runs are driven and shown."""

    no_wait: bool = False
    jsonl: bool = False
    several: bool = False


class Attendance:
    """One run, driven here and shown."""

    def __init__(self, here: Local, run: str, view: View, leaving: Leaving) -> None:
        self.run = run
        self.view = view
        self._here = here
        self._leaving = leaving
        first = here.service.facts(run, after=0)[0].fact
        self.progress = Progress(here.service.plan(first), here.service.read_text)
        self._moved = asyncio.Event()
        self._troubles = 0

    def begin(self, *, from_start: bool) -> None:
        """Fold what is there and let the view begin; a new run is told from its first fact."""
        if not from_start:
            for numbered in self._here.service.facts(self.run):
                self.progress.take(numbered)
        self.view.begin(self.progress)
        self.pull()

    def pull(self) -> None:
        """Take in what is new in the log, whoever wrote it."""
        for numbered in self._here.service.facts(self.run, after=self.progress.seen):
            self.view.fact(numbered, self.progress.take(numbered))
            self._moved.set()

    def written(self, run: str, version: int) -> None:
        if run == self.run and version > self.progress.seen:
            self.pull()

    def hear(self, delta: Delta) -> None:
        if delta.run == self.run:
            self.progress.hear(delta)
            self.view.said(delta)

    async def ticking(self) -> None:
        """Look for what others wrote, and let the view show that time passes."""
        while True:
            await asyncio.sleep(TICK_S)
            if self._here.log.version(self.run) > self.progress.seen:
                self.pull()
            self._tell_trouble()
            self.view.tick()

    def _tell_trouble(self) -> None:
        problems = self._here.driver.problems
        for run, problem in problems[self._troubles :]:
            if run == self.run and not isinstance(problem, Conflict):
                self.view.note(f"warning: {problem}; it is tried again")
        self._troubles = len(problems)

    async def rest(self) -> bool:
        """Wait until nothing but a person can move the run on; False when we leave before that."""
        while True:
            self._moved.clear()
            if await self._leaving.unless(self._here.driver.rest(self.run)):
                return False
            self.pull()
            self._raise_conflict()
            if status_of(self.progress.state) != "running":
                return True
            # Only a timer is pending, or the run is just being taken up again.
            if await self._leaving.unless(self._moved_or_tick()):
                return False

    async def _moved_or_tick(self) -> None:
        try:
            await asyncio.wait_for(self._moved.wait(), TICK_S)
        except TimeoutError:
            return

    def _raise_conflict(self) -> None:
        for run, problem in self._here.driver.problems:
            if run == self.run and isinstance(problem, Conflict):
                raise problem

    async def ask(self, door: Door) -> bool:
        """Ask the person here about the oldest open gate; False when they would rather leave."""
        state = self.progress.state
        gate = self.progress.asked[next(iter(state.gates))]
        output = self._here.service.read_text(gate.output)
        question = asyncio.ensure_future(ask(door, gate, output))
        elsewhere = asyncio.ensure_future(self._answered_elsewhere(gate.gate))
        both = asyncio.wait({question, elsewhere}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if await self._leaving.unless(both):
                return False
            if elsewhere.done():
                door.tell("answered elsewhere")
                return True
            reply = question.result()
        finally:
            question.cancel()
            elsewhere.cancel()
            await asyncio.gather(question, elsewhere, return_exceptions=True)
        if reply is None:
            return False
        try:
            await self._here.service.answer(
                gate.gate, reply.decision, text=reply.text, by=current_user(), digest=gate.digest
            )
        except Conflict as conflict:
            door.tell(str(conflict), tone="warn")
        return True

    async def _answered_elsewhere(self, gate: str) -> None:
        while gate in self.progress.state.gates:
            await asyncio.sleep(TICK_S)
            if self._here.log.version(self.run) > self.progress.seen:
                self.pull()

    def result(self) -> "dict[str, JsonValue]":
        self.pull()
        return summary(self.progress.state, self._here.service.read_text)


def drive(door: Door, begin: Begin, manner: Manner, *, from_start: bool = False) -> int:
    """Drive what `begin` takes up until it rests; the exit code says how that ended."""
    return asyncio.run(_drive(door, begin, manner, from_start=from_start))


async def _drive(door: Door, begin: Begin, manner: Manner, *, from_start: bool) -> int:
    attended: list[Attendance] = []

    async def pause() -> None:
        for one in attended:
            one.view.note(
                f"pausing after this pass; `loopwright resume {one.run}` goes on. "
                "Ctrl-C again leaves at once."
            )
            try:
                await here.service.pause(one.run, by=current_user())
            except LoopwrightError as error:
                one.view.note(str(error))

    async with local(door.settings) as here:
        leaving = Leaving(pause)
        with leaving.listening():
            for run in await begin(here):
                view = choose_view(door, run, jsonl=manner.jsonl, several=manner.several)
                attended.append(Attendance(here, run, view, leaving))
            codes = await _attend_all(door, here, attended, manner, from_start=from_start)
        results = [one.result() for one in attended]
    _tell_results(door, attended, results, manner)
    return leaving.code if leaving.code is not None else worst(codes)


async def _attend_all(
    door: Door, here: Local, attended: list[Attendance], manner: Manner, *, from_start: bool
) -> list[int]:
    ends = [here.log.subscribe(one.written) for one in attended]
    ends += [here.bus.listen(one.hear) for one in attended]
    ticks = [asyncio.ensure_future(one.ticking()) for one in attended]
    try:
        return await asyncio.gather(
            *(_attend(door, one, manner, from_start=from_start) for one in attended)
        )
    finally:
        for end in ends:
            end()
        for tick in ticks:
            tick.cancel()
        await asyncio.gather(*ticks, return_exceptions=True)


async def _attend(door: Door, one: Attendance, manner: Manner, *, from_start: bool) -> int:
    one.begin(from_start=from_start)
    leaving = one._leaving
    try:
        while await one.rest():
            state = one.progress.state
            asking = status_of(state) == "waiting" and door.can_ask
            if not asking or manner.no_wait or manner.several or leaving.pausing:
                break
            one.view.end()
            leaving.at_once = True
            if not await one.ask(door):
                break
            leaving.at_once = False
            one.view.begin(one.progress)
    finally:
        one.view.end()
    if leaving.pausing and status_of(one.progress.state) in ("paused", "waiting"):
        return 128 + signal.SIGINT
    return exit_code(one.result())


def _tell_results(
    door: Door,
    attended: list[Attendance],
    results: "list[dict[str, JsonValue]]",
    manner: Manner,
) -> None:
    for one in attended:
        _tell_state(door, one)
    if manner.several:
        if door.as_json:
            door.put_json({"runs": list(results)})
        return
    if not manner.jsonl:
        for result in results:
            put_result(door, result)


def _tell_state(door: Door, one: Attendance) -> None:
    state = one.progress.state
    status = status_of(state)
    tones: dict[str, Tone] = {"completed": "good", "failed": "bad", "exhausted": "warn"}
    door.say(f"{one.run}: {headline(state)}", tone=tones.get(status, "plain"))
    if status == "waiting":
        for gate in state.gates:
            door.say(f"  loopwright approve {gate}   (or reject, or continue with a text)")
    elif status in ("paused", "running"):
        door.say(f"  loopwright resume {one.run}   takes it up again")
