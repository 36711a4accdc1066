"""The world of a simulation: processes over one store, and everything that is watched.

Each process is a real driver and a real service over `MemoryLog`; its commits, the news of them,
its timers and its answers happen when somebody says so, or never, when the process dies before.
`believed_alive` is what others think of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from loopwright.engine.actor import Actor
from loopwright.engine.driver import LocalDriver
from loopwright.engine.services import TextServices
from loopwright.errors import Conflict, LoopwrightError, StorageError
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    RunReopened,
    RunStarted,
)
from loopwright.kernel.fold import fold
from loopwright.model.plan import Agent, Plan, decode_plan
from loopwright.operations.gates import CallAnswer
from loopwright.operations.run_request import RunStart
from loopwright.operations.runs import Service
from loopwright.ports import OPEN_STATUSES, Answer, Append, EffectJob, Owner, RunRow
from loopwright.ports.headline import figures_of, gate_subject
from loopwright.stores.appends import PendingAppend
from loopwright.testing import FakeClock, ScriptedPerformer
from tests.faults.chance import random_plan
from tests.faults.listening import holdings, overheard
from tests.faults.people import question
from tests.faults.replies import random_answer, schema_problem
from tests.faults.talking import edited, edited_arguments
from tests.planned_levels import PlannedLevels
from tests.support.laws.log import check_invariants
from tests.support.laws.state_picture import picture
from tests.support.memory_log import MemoryLog, MemoryStore

HERE = Path(__file__).parent

Plans = Callable[[Random], Plan]


class WatchedLog(MemoryLog):
    """A log that notes what it commits, and that fails when told to."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(
            alive=world.alive, store=world.store, deliver=lambda call: process.mail.append(call)
        )
        self.world = world
        self.fault: str | None = None
        self.in_doubt = False
        self.doubted = False  # ever

    def submit(self, append: Append, done: Callable[[Exception | None], None]) -> None:
        fault, self.fault = self.fault, None
        if fault == "before":
            self._deliver(lambda: done(StorageError("no space is left", code="full")))
            return

        def told(error: Exception | None) -> None:
            if error is None:
                self.world.acknowledged.append(append)
                if fault == "after":
                    self.in_doubt = self.doubted = True
                    error = StorageError("the disk went away", code="io")
            done(error)

        super().submit(append, told)

    def changed(self) -> bool:
        """As with a file: after an append that may or may not be there, everything is new."""
        doubt, self.in_doubt = self.in_doubt, False
        return super().changed() or doubt

    def _commit(self, entry: PendingAppend) -> None:
        self.world.committing(entry.append)
        super()._commit(entry)


class Crowd(ScriptedPerformer):
    """Answers at once or much later, and notes what is asked of it."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__()
        self.world = world
        self.process = process
        self.open: dict[tuple[str, str], EffectJob] = {}

    def perform(self, job: EffectJob) -> Answer | Awaitable[Answer]:
        self.world.performing(self.process, job)
        if self.world.dice.random() < 0.35:
            return random_answer(self.world.dice, job)
        self.open[job.run, job.effect] = job
        return self.hold(job)

    def waiting(self) -> list[EffectJob]:
        self.open = {key: job for key, job in self.open.items() if key in self.held}
        return list(self.open.values())


@dataclass(eq=False)
class Process:
    """One life of one process."""

    owner: Owner
    mail: deque[Callable[[], None]] = field(default_factory=deque)
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    believed_alive: bool = True
    stalled: int = 0
    clock: FakeClock = field(init=False)
    log: WatchedLog = field(init=False)
    crowd: Crowd = field(init=False)
    driver: LocalDriver = field(init=False)
    service: Service = field(init=False)

    def read_mail(self, most: int) -> None:
        """Commits and the news of them, in order."""
        for _ in range(most):
            if self.mail:
                self.mail.popleft()()

    def actors(self) -> list[Actor]:
        return list(self.driver._actors.values())


NOBODY = Process(Owner(pid=0, start=0, boot="", token="nobody"))


class World:
    """The store, the processes, and everything that was found wrong."""

    def __init__(self, seed: int, plans: Plans = random_plan) -> None:
        self.plans = plans
        self.dice = Random(seed)
        self.store = MemoryStore()
        self.now = 1_700_000_000_000
        self.processes: list[Process | None] = [None] * self.dice.choice((1, 2, 2, 3))
        self.problems: list[str] = []
        self.acknowledged: list[Append] = []
        self.decided: Counter[str] = Counter()
        self.lives = 0
        self.requested: dict[tuple[str, str], str | None] = {}  # with whoever did so
        self.answered: set[tuple[str, str]] = set()
        self.performed: dict[tuple[str, str], Process] = {}
        self.keys: dict[str, str] = {}
        self.people = 0
        self.story: list[str] = []

    # -- what is watched ---------------------------------------------------------------------------

    def alive(self, owner: Owner) -> bool:
        return any(p is not None and p.owner == owner and p.believed_alive for p in self.processes)

    def complain(self, problem: str) -> None:
        self.problems.append(problem)
        self.story.append(f"WRONG: {problem}")

    def note(self, process: Process, what: str) -> None:
        self.story.append(f"{self.now} {process.owner.token}: {what}")

    def committing(self, append: Append) -> None:
        self.story.append(
            f"    commit {append.run[-4:]} {append.expected} by {append.token}: "
            f"{[type(event).__name__ for event in append.events]}"
            f" {append.headline.status if append.headline else ''}"
        )
        self._watch(append)

    def _watch(self, append: Append) -> None:
        """Only the newest owner commits as a driver, and nothing is added to a run that ended."""
        run = self.store.runs.get(append.run)
        again = any(isinstance(event, RunReopened) for event in append.events[:1])
        if run is not None and run.headline.status not in OPEN_STATUSES and not again:
            self.complain(f"{append.run} is written to after its end")
        if append.token is not None and (
            run is None or run.owner is None or run.owner.token != append.token
        ):
            self.complain(f"{append.run} is written to by {append.token}, who does not drive it")
        if run is None and append.headline is not None and append.headline.key:
            self._new_key(append.headline.key, append.run)
        for event in append.events:
            self._watch_event(append, event)

    def _watch_event(self, append: Append, event: AnyEvent) -> None:
        run = append.run
        if isinstance(event, EffectRequested):
            self.requested[run, event.effect] = append.token
        elif isinstance(event, EffectDone | EffectFailed):
            self.answered.add((run, event.effect))
            if isinstance(event, EffectFailed) and event.error.type == "internal":
                self.complain(f"{run}: {event.effect} shows a defect: {event.error.detail}")

    def _new_key(self, key: str, run: str) -> None:
        holder = self.keys.get(key)
        if holder and self.store.runs[holder].headline.status in OPEN_STATUSES:
            self.complain(f"{run} is open beside {holder} for {key}")
        self.keys[key] = run

    def performing(self, process: Process, job: EffectJob) -> None:
        """An effect is begun after its request and before its answer, once for each driver."""
        key = job.run, job.effect
        self.note(process, f"begins {job.effect} of {job.run[-4:]}")
        if key not in self.requested:
            self.complain(f"{key} is begun before its request is durable")
        if key in self.answered and process.believed_alive:
            self.complain(f"{key} is begun although its answer is durable")
        if not process.believed_alive:
            return  # a ghost that was not told yet; its answer will be refused
        other = self.performed.get(key)
        own = self.requested.get(key) == process.owner.token and not process.log.doubted
        for problem in overheard(job, begun_before=other is not None, own_request=own):
            self.complain(problem)
        if other is process:
            self.complain(f"{key} is begun twice by one process")
        elif other is not None and self.alive(other.owner):
            self.complain(f"{key} is begun although its owner lives")
        self.performed[key] = process

    # -- processes ---------------------------------------------------------------------------------

    def boot(self, place: int) -> Process:
        """Start a process: it takes up what was left behind."""
        self.lives += 1
        owner = Owner(pid=self.lives, start=self.lives, boot="boot", token=f"life{self.lives}")
        process = Process(owner)
        process.clock = FakeClock(self.now)
        process.log = WatchedLog(self, process)
        process.crowd = Crowd(self, process)
        process.driver = LocalDriver(
            process.log,
            process.crowd,
            clock=process.clock,
            owner=owner,
            check_schema=schema_problem,
        )
        process.service = Service(process.log, process.clock, process.driver, PlannedLevels())
        self.processes[place] = process
        self.note(process, "boots")
        process.driver.open()
        process.service.recover()
        return process

    def crash(self, place: int) -> None:
        """End a process as kill -9 does: nothing that it was about to do happens."""
        process = self.processes[place]
        assert process is not None
        self.processes[place] = None
        self._look_for_defects(process)
        process.mail.clear()
        process.clock.forget()
        for actor in process.actors():
            actor.leave()
        for task in process.tasks:
            task.cancel()

    def _look_for_defects(self, process: Process) -> None:
        """A run that the engine cannot go on with is a mistake of the engine, whatever happened."""
        for _, problem in process.driver.problems:
            if isinstance(problem, Conflict) and problem.code == "defect":
                self.complain(str(problem))

    def running(self) -> list[tuple[int, Process]]:
        return [(n, p) for n, p in enumerate(self.processes) if p is not None]

    def ask(self, process: Process, request: Callable[[], Awaitable[object]]) -> None:
        """A person's request, carried out by one process; refusals are answers too."""

        async def asked() -> None:
            try:
                await request()
            except LoopwrightError:
                pass
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self.complain(f"a request raised {error!r}")

        process.tasks.append(asyncio.ensure_future(asked()))

    def elapse(self, ms: int) -> None:
        """Time passes, for all alike."""
        self.now += ms
        for _, process in self.running():
            process.clock.elapse(ms)

    # -- people ------------------------------------------------------------------------------------

    def start(self, process: Process, plan: Plan) -> None:
        key = self.dice.choice((None, None, "one"))
        start = RunStart(plan=plan, workspace=HERE, key=key, inputs={"n": 3})
        self.ask(process, lambda: process.service.start(start))

    def decide(self, process: Process, gate: str, *, calm: bool = False) -> None:
        """Answer a gate; who was told to have decided it is remembered."""
        self.people += 1
        by = f"person{self.people}"
        asked = question(process.service, gate)
        if asked is not None and asked.call is not None:
            self._decide_call(process, gate, by)
            return
        decision = self.dice.choice(
            ("approve", "reject") if calm else ("approve", "reject", "continue")
        )

        text = "" if self.plans is random_plan else self.dice.choice(("", "look again"))

        async def answer() -> None:
            await process.service.answer(gate, decision, text=text, by=by)
            self.decided[gate] += 1

        self.ask(process, answer)

    def _decide_call(self, process: Process, gate: str, by: str) -> None:
        """Let a call of a model's turn through, as it is or changed, for once or for good."""
        approves = self.dice.random() < 0.6
        arguments = edited_arguments(self.dice) if approves else None
        remember = approves and self.dice.random() < 0.2

        async def answer() -> None:
            await process.service.answer(
                gate,
                "approve" if approves else "reject",
                text="" if approves else "not like this",
                by=by,
                call=CallAnswer(arguments=arguments, remember=remember),
            )
            self.decided[gate] += 1

        self.ask(process, answer)

    def edit(self, process: Process, run: str) -> None:
        """Somebody changes an agent of a run."""
        name, agent = "worker", Agent(system=f"at {self.now}")
        if self.plans is not random_plan:
            plan = process.service.state(run).plan
            name = self.dice.choice(("worker", "clerk", "coder"))
            agent = edited(self.dice, plan.agents[name])
        self.ask(process, lambda: process.service.change_agent(run, name, agent))

    def unfinished(self) -> list[str]:
        """The runs that have not ended, with what lists show of them."""
        return [
            f"{name} is {run.headline.status}"
            for name, run in self.store.runs.items()
            if run.headline.status in OPEN_STATUSES
        ]

    def end(self) -> None:
        """End all processes."""
        for place, _ in self.running():
            self.crash(place)

    # -- the end -----------------------------------------------------------------------------------

    def judge(self) -> None:
        """What is wrong with the store as it stands."""
        log = MemoryLog(alive=self.alive, store=self.store, deliver=lambda call: None)
        self.problems += check_invariants(log, schema_problem)
        for append in self.acknowledged:
            found = [n.event for n in log.read(append.run, append.expected, len(append.events))]
            if found != list(append.events):
                self.complain(f"{append.run}: facts after {append.expected} were told and are lost")
        for row in log.rows():
            events = [numbered.event for numbered in log.read(row.run)]
            self._judge_turns(log, events)
            self._judge_row(log, row, events)
        for gate, times in self.decided.items():
            if times > 1:
                self.complain(f"{times} people were told to have decided {gate}")
        for _, process in self.running():
            for actor in process.actors():
                self._compare(actor, [n.event for n in log.read(actor.run)])

    def _judge_turns(self, log: MemoryLog, events: list[AnyEvent]) -> None:
        started = events[0]
        assert isinstance(started, RunStarted)
        plan = decode_plan(log.blob(started.plan))
        texts = TextServices(log.blob, schema_problem)
        self.problems += holdings(plan, events, texts.read)

    def _judge_row(self, log: MemoryLog, row: RunRow, events: list[AnyEvent]) -> None:
        """What lists show is what the events say, after every append."""
        first = events[0]
        assert isinstance(first, RunStarted)
        state = fold(decode_plan(log.blob(first.plan)), events)
        if row.figures != (should := figures_of(state)):
            self.complain(f"{row.run}: listed with {row.figures}, its events say {should}")
        subjects = {gate.gate: gate.subject for gate in log.gates(row.run)}
        if subjects != {name: gate_subject(state, name) for name in state.gates}:
            self.complain(f"{row.run}: its gates are not listed as its events say")

    def _compare(self, actor: Actor, events: list[AnyEvent]) -> None:
        if actor.busy or len(events) != actor.state.version:
            return
        if picture(actor.state) != picture(fold(actor.plan, events)):
            self.complain(f"{actor.run}: the state in memory is not what the facts say")
