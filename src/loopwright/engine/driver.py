"""The local driver: all runs of one process, on one event loop.

A run that waits only for a person or a timer is not kept in memory: its row and its log are
enough. The driver reads what other processes have written (answers, pauses, stops) from the log
itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from loopwright.engine.actor import Actor
from loopwright.engine.services import SchemaCheck, TextServices
from loopwright.errors import Conflict, StorageError
from loopwright.kernel.effects import vanished
from loopwright.kernel.event_parts import Worktree
from loopwright.kernel.events import AnyEvent, Outcome, RunStarted
from loopwright.kernel.state import State
from loopwright.model.plan import Plan, stored_plan
from loopwright.ports import (
    Clock,
    EffectJob,
    EventLog,
    Headline,
    Owner,
    Performer,
    Question,
    RunRow,
)

POLL_MS = 200
SHORT_WAIT_MS = 60_000
RETRY_LOADING_MS = 30_000
PROBLEMS_KEPT = 100
PLANS_KEPT = 200
# Errors of a run that a later attempt will not fix.
HOPELESS = frozenset({"closed", "damaged", "newer-schema"})


class LocalDriver:
    """Drives runs of a log with one performer."""

    server_pid: int | None = None  # of a server that drives instead of this process

    def __init__(
        self,
        log: EventLog,
        performer: Performer,
        *,
        clock: Clock,
        owner: Owner,
        check_schema: SchemaCheck,
    ) -> None:
        self.log = log
        self.performer = performer
        self.clock = clock
        self.owner = owner
        self.token = owner.token
        self.problems: list[tuple[str, Exception]] = []  # the newest
        self.problem_count = 0
        self._check_schema = check_schema
        self._actors: dict[str, Actor] = {}
        self._timers: dict[str, Callable[[], None]] = {}
        self._plans: dict[str, Plan] = {}
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._cursor = 0
        self._poll: Callable[[], None] | None = None
        self._missed = False
        self._ended: Callable[[str], None] = lambda run: None
        self._save: Callable[[Worktree], Awaitable[None]] | None = None
        self._saving: set[asyncio.Future[None]] = set()
        self._closed = False
        self._mine: set[str] = set()
        self.looked_at = clock.now_ms()  # time of the last round

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def is_served(self) -> bool:
        """Whether that server is running now."""
        return False

    def stranded(self) -> list[str]:
        """Runs that the server left, and that no process drives."""
        return []

    @property
    def first_owner(self) -> Owner | None:
        """The owner of a run from its first event on."""
        return self.owner

    # -- taking up runs ----------------------------------------------------------------------------

    def open(self) -> None:
        """Start listening for events of other processes."""
        _, self._cursor = self.log.nudges(0)
        self._schedule_poll()

    def wake(self, run: str) -> None:
        """Load a run, or let it read new events. Refused if another process drives it."""
        actor, row = self._actors.get(run), self.log.row(run)
        if actor is not None and row.owner is not None and row.owner.token == self.token:
            actor.absorb()
            return
        self._claim([run], refuse=True)
        if actor is not None:  # a process that has ended since then took the run from it
            del self._actors[run]
            actor.leave()
        self._load(run, row)

    def take(self, run: str) -> None:
        """Claim a run that has ended, before it is reopened: the process that reopens it
        drives it.
        """
        self._claim([run], refuse=True)
        self._mine.add(run)

    def recover(self, rows: Iterable[RunRow]) -> list[str]:
        """Load every run of these rows that no living process drives; returns which.

        Runs that only wait for a person are only claimed, so that their answers arrive here.
        """
        found = {row.run: row for row in rows if row.run not in self._actors}
        mine = self._claim(list(found))
        self._mine.update(mine)
        working = [run for run in mine if has_work(found[run].headline)]
        return [run for run in working if self._taken_up(run, found[run])]

    def _taken_up(self, run: str, row: RunRow | None = None) -> bool:
        """Load a run; an error is reported as trouble and does not affect other runs."""
        try:
            self._load(run, row or self.log.row(run))
        except Exception as error:
            self.trouble(run, error)
            if isinstance(error, StorageError) and error.code not in HOPELESS:
                again = self.clock.call_after(RETRY_LOADING_MS, lambda: self._due(run))
                self._timers[run] = again
            return False
        return True

    def _claim(self, runs: list[str], *, refuse: bool = False) -> list[str]:
        answers = self.log.claim(runs, self.owner) if runs else {}
        for run, other in answers.items():
            if other is not None and refuse:
                raise already_driven(run, other)
        return [run for run, other in answers.items() if other is None]

    def _load(self, run: str, row: RunRow | None = None) -> None:
        self._unpark(run)
        events = [numbered.event for numbered in self.log.read(run)]
        died = row is not None and row.owner is not None and row.owner.token != self.token
        if row is not None and row.version != len(events):  # it was changed in the meantime
            row = self.log.row(run)
        fits = row is not None and row.version == len(events)
        headline = row.headline if row and fits else None
        self._begin(run, self._plan(events[0]), events, headline, died=died)

    def _begin(
        self,
        run: str,
        plan: Plan,
        events: list[AnyEvent],
        headline: Headline | None,
        *,
        died: bool = False,
        state: State | None = None,
    ) -> None:
        actor = Actor(self, run, plan, TextServices(self.log.blob, self._check_schema))
        actor.load(events, headline, state)
        if died:  # its previous driver has ended, and so have all its running effects
            actor.inbox += vanished(actor.state, self.clock.now_ms())
        self._mine.add(run)
        self._actors[run] = actor
        actor.step()

    def shared_plan(self, name: str, plan: Plan) -> Plan:
        """The plan of this name, if runs have one already: equal plans share one object."""
        plan = self._plans.setdefault(name, plan)
        self._forget_plans()
        return plan

    def adopt(self, first: RunStarted, headline: Headline, state: State) -> None:
        """Drive a run that was just created, with this driver as its owner. The state becomes that
        of its actor.
        """
        if first.run not in self._actors:  # a scan of all runs may have found it before
            self._begin(first.run, state.plan, [first], headline, state=state)

    def _plan(self, first: AnyEvent) -> Plan:
        """The plan that a run was started with; equal plans share one object."""
        if not isinstance(first, RunStarted):
            raise StorageError("a run has no beginning", code="damaged")
        if first.plan not in self._plans:
            self._plans[first.plan] = stored_plan(self.log.blob, first.plan)
            self._forget_plans()
        return self._plans[first.plan]

    def _forget_plans(self) -> None:
        """Drop the oldest plans; a run that is being driven keeps its own."""
        while len(self._plans) > PLANS_KEPT:
            del self._plans[next(iter(self._plans))]

    # -- what actors tell --------------------------------------------------------------------------

    def resting(self, actor: Actor) -> None:
        """Release a run that has ended or that only waits."""
        if self._actors.get(actor.run) is not actor:
            return
        finished = actor.state.finished is not None
        waiting = bool(actor.state.gates) or actor.state.control.paused
        if not finished and not waiting and self._wakes_soon(actor):
            return
        del self._actors[actor.run]
        actor.leave()
        if finished:
            self._mine.discard(actor.run)
            if actor.state.finished is not None and actor.state.plan.pass_env:
                self._note_end(actor.run, actor.state.finished.outcome)
            self._save_worktree(actor.state.started)
        elif actor.state.queues.timers:
            self._park(actor)
        self._notify(actor.run)
        actor.release()

    def end_through(
        self, ended: Callable[[str], None], save: Callable[[Worktree], Awaitable[None]]
    ) -> None:
        """The function that is called with each run that received variables and cannot be resumed
        any more, and the one that commits the files of a worktree when its run has ended.
        """
        self._ended, self._save = ended, save

    def _note_end(self, run: str, outcome: Outcome) -> None:
        if outcome == "completed":
            self._ended(run)

    def _save_worktree(self, started: RunStarted | None) -> None:
        if self._save is None or started is None or started.worktree is None:
            return
        task = asyncio.ensure_future(self._save(started.worktree))
        self._saving.add(task)
        task.add_done_callback(self._saving.discard)

    def asks(self, actor: Actor) -> None:
        """A run whose agent waits for a person is idle, but stays loaded."""
        self._notify(actor.run)

    async def ask(self, job: EffectJob, question: Question) -> bool:
        """Open a gate about an action of one of our effects."""
        actor = self._actors.get(job.run)
        return actor is not None and await actor.ask(job.effect, question)

    def _wakes_soon(self, actor: Actor) -> bool:
        """A short wait is not worth folding the whole log again."""
        due = min(actor.state.queues.timers.values(), default=0)
        return due - self.clock.now_ms() < SHORT_WAIT_MS

    def trouble(self, run: str, problem: Exception) -> None:
        self._note_problem(run, problem)
        if isinstance(problem, Conflict):
            self._actors.pop(run, None)
            self._mine.discard(run)
            self._notify(run)

    def _note_problem(self, run: str, problem: Exception) -> None:
        """Keep the newest problems, without their tracebacks: those refer to everything that the
        run had in memory.
        """
        self.problem_count += 1
        self.problems.append((run, problem.with_traceback(None)))
        del self.problems[:-PROBLEMS_KEPT]

    def _park(self, actor: Actor) -> None:
        due, run = min(actor.state.queues.timers.values()), actor.run
        self._timers[run] = self.clock.call_at(due, lambda: self._due(run))

    def _unpark(self, run: str) -> None:
        end = self._timers.pop(run, None)
        if end is not None:
            end()

    def _due(self, run: str) -> None:
        self._timers.pop(run, None)
        if not self._closed and run not in self._actors:
            self._taken_up(run)

    # -- waiting and watching ----------------------------------------------------------------------

    async def rest(self, run: str) -> None:
        """Wait until this driver has nothing to do for a run: it ended, or it waits."""
        actor = self._actors.get(run)
        if actor is None or actor.only_asks:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(run, []).append(waiter)
        await waiter

    def _notify(self, run: str) -> None:
        for waiter in self._waiters.pop(run, ()):
            if not waiter.done():
                waiter.set_result(None)

    def is_driving(self, run: str) -> bool:
        return run in self._actors

    def _schedule_poll(self) -> None:
        self._poll = self.clock.call_after(POLL_MS, self._look)

    def _look(self) -> None:
        """Read the events that other processes appended to our runs."""
        if self._closed:
            return
        self.looked_at = self.clock.now_ms()
        try:
            if self._missed or self.log.changed():
                self._missed = True  # until all of it was read
                runs, cursor = self.log.nudges(self._cursor)
                for run in runs:
                    self._nudged(run)
                self._cursor, self._missed = cursor, False
        except StorageError as error:  # reading continues: the disk may recover
            self._note_problem("", error)
        self._schedule_poll()

    def _nudged(self, run: str) -> None:
        actor = self._actors.get(run)
        if actor is not None:
            actor.absorb()
            return
        row = self.log.row(run)
        mine = row.owner is not None and row.owner.token == self.token
        if mine and row.headline.status == "running":
            self._taken_up(run, row)

    # -- the end -----------------------------------------------------------------------------------

    async def close(self) -> None:
        """End all running effects, without an event: the next start continues from here."""
        self._closed = True
        if self._poll is not None:
            self._poll()
        for run in list(self._timers):
            self._unpark(run)
        actors, self._actors = list(self._actors.values()), {}
        for actor in actors:
            actor.flush()
            actor.leave()
        ending = [*self._saving, *(task for actor in actors for task in actor.ending)]
        if ending:
            await asyncio.wait(ending)
        for actor in actors:
            self._notify(actor.run)
        mine, self._mine = self._mine, set()
        self.log.release(mine, self.owner)


def already_driven(run: str, other: Owner) -> Conflict:
    return Conflict(
        f"{run} is driven by process {other.pid} on this machine",
        code="already-driven",
        hint="`tell`, `pause` and `stop` reach it there; to drive it here, end that process first",
    )


def has_work(headline: Headline) -> bool:
    """Whether a run needs its driver now or at a certain time, and not only a person."""
    return headline.status == "running" or headline.wake_at is not None
