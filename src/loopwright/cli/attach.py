"""Attach to runs: drive them until they finish or need input, and show their progress.

Ctrl-C and a termination signal leave a run that another process drives, and stop one that is
driven here.
"""

import asyncio
import contextlib
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from loopwright.cli.gate_prompts import answer_here, ask
from loopwright.cli.run_output import ProgressView, choose_view
from loopwright.cli.terminal import Terminal, exit_code, put_result, say_final_line, worst_exit_code
from loopwright.errors import Conflict, LoopwrightError, NotAllowed, StorageError
from loopwright.kernel.events import EffectDone, EffectFailed
from loopwright.kernel.state import State
from loopwright.model.record import JsonValue
from loopwright.operations.data_directory import lock_holder
from loopwright.operations.run_lists import driver_pid
from loopwright.operations.run_tail import open_feed, wait_for_end
from loopwright.operations.wiring import Local, near
from loopwright.ports import OPEN_STATUSES, Delta, NumberedEvent
from loopwright.ports.headline import status_of
from loopwright.views.progress import Progress
from loopwright.views.status_text import answering, resume_hint, resume_note
from loopwright.views.summary import final_line, summary

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Whether this process is to leave, and with which exit code."""

    def __init__(self, pause: Callable[[], Awaitable[None]]) -> None:
        self._pause = pause
        self._now = asyncio.Event()
        self._tasks: set[asyncio.Future[None]] = set()
        self.pausing = False
        self.code: int | None = None
        self.at_once = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals for as long as this lasts."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.signalled, number)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def signalled(self, number: int) -> None:
        """A signal has come."""
        if number == signal.SIGINT and not self.pausing and not self.at_once:
            self.pausing = True
            task = asyncio.ensure_future(self._pause())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self.leave(128 + number)

    def leave(self, code: int) -> None:
        """Exit as soon as the running calls have been ended."""
        self.code = code
        self._now.set()

    async def unless(self, wait: Awaitable[object]) -> bool:
        """Wait for something, or for the order to leave; True when it came first."""
        waiting = asyncio.ensure_future(wait)
        going = asyncio.ensure_future(self._now.wait())
        try:
            await asyncio.wait({waiting, going}, return_when=asyncio.FIRST_COMPLETED)
            if self._now.is_set():
                return True
            await waiting
            return False
        finally:
            for task in (waiting, going):
                task.cancel()
            await asyncio.gather(waiting, going, return_exceptions=True)


TICK_S = 0.25
SLOW_TICK_S = 2.0  # of many runs at once: events of other processes are seen a little later


class RunCursor(NamedTuple):
    """A run to follow, and the number of the last event that is not shown."""

    run: str
    seen: int


Begin = Callable[[Local], Awaitable[Sequence[RunCursor]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachOptions:
    """How runs are driven and shown."""

    no_wait: bool = False
    jsonl: bool = False
    several: bool = False
    codes: Mapping[str, int] = field(default_factory=dict)  # by status or reason, beside our own


class AttachedRun:
    """One run, driven here and shown."""

    def __init__(
        self,
        here: Local,
        taken: RunCursor,
        view: ProgressView,
        interrupts: Interrupts,
        *,
        tick_s: float = TICK_S,
    ) -> None:
        self.run = run = taken.run
        self.view = view
        self.interrupts = interrupts
        self._shown_seq = taken.seen
        self._tick_s = tick_s
        self._here = here
        first = here.service.events(run, after=0)[0].event
        self.progress = Progress(here.service.plan(first), here.service.read_text)
        self._moved = asyncio.Event()
        self._begun = False
        self._troubles = 0

    def begin(self) -> None:
        """Fold earlier events without showing them, then start the view."""
        for numbered in self._here.service.events(self.run):
            if numbered.seq > self._shown_seq:
                break
            self.progress.take(numbered)
        self.view.begin(self.progress)
        self._begun = True
        self.pull()

    def pull(self, deltas: Sequence[Delta] = ()) -> None:
        """Show the new events of the log, from any process; before `begin` nothing is shown.

        `deltas` is text that was read before: it is shown after the events before it, and before
        the end of the call that wrote it.
        """
        if not self._begun:
            return
        waiting = list(deltas)
        for numbered in self._here.service.events(self.run, after=self.progress.seen):
            if isinstance(numbered.event, EffectDone | EffectFailed):
                effect = numbered.event.effect
                self._hear_all(one for one in waiting if one.effect == effect)
                waiting = [one for one in waiting if one.effect != effect]
            self.show(numbered)
        self._hear_all(waiting)

    def show(self, numbered: NumberedEvent) -> None:
        """Show the next event."""
        self.view.event(numbered, self.progress.take(numbered))
        self._moved.set()

    def _hear_all(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            self.hear(delta)

    def hear(self, delta: Delta) -> None:
        self.progress.hear(delta)
        self.view.said(delta)

    async def ticking(self) -> None:
        """Report what keeps the run from continuing, and let the view update elapsed times."""
        while True:
            await asyncio.sleep(self._tick_s)
            self._print_trouble()
            self.view.tick()

    def _print_trouble(self) -> None:
        problems = self._here.driver.problems
        for run, problem in problems[self._troubles :]:
            if run == self.run and not isinstance(problem, Conflict):
                self.view.note(f"warning: {problem}; it is tried again")
        self._troubles = len(problems)

    async def rest(self) -> bool:
        """Wait until only a person can continue the run; False if the command exits before that."""
        while True:
            self._moved.clear()
            if await self.interrupts.unless(self._here.driver.rest(self.run)):
                return False
            self.pull()
            self._raise_conflict()
            if status_of(self.progress.state) != "running":
                return True
            # Only a timer is pending, or the run is just being taken up again.
            if await self.interrupts.unless(self._moved_or_tick()):
                return False

    async def _moved_or_tick(self) -> None:
        try:
            await asyncio.wait_for(self._moved.wait(), self._tick_s)
        except TimeoutError:
            return

    def _raise_conflict(self) -> None:
        for run, problem in self._here.driver.problems:
            if run == self.run and isinstance(problem, Conflict):
                raise problem

    async def ask(self, terminal: Terminal) -> bool:
        """Ask the person here about the oldest open gate; False when they would rather leave."""
        state = self.progress.state
        gate = self.progress.asked[next(iter(state.gates))]
        output = self._here.service.read_text(gate.output)

        async def show_diff() -> None:
            from loopwright.cli.workspace_changes import show_gate_diff  # noqa: PLC0415 - only then

            await show_gate_diff(terminal, self._here.service, self.run, gate)

        question = asyncio.ensure_future(ask(terminal, gate, output, show_diff=show_diff))
        elsewhere = asyncio.ensure_future(self._answered_elsewhere(gate.gate))
        both = asyncio.wait({question, elsewhere}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if await self.interrupts.unless(both):
                return False
            if elsewhere.done():
                terminal.tell("answered in another place")
                return True
            reply = question.result()
        finally:
            question.cancel()
            elsewhere.cancel()
            await asyncio.gather(question, elsewhere, return_exceptions=True)
        if reply is None:
            return False
        try:
            await answer_here(self._here, terminal, gate.gate, reply, gate.digest)
        except Conflict as conflict:
            terminal.tell(str(conflict), tone="warn")
        except NotAllowed as refusal:  # the gate stays open for another person
            terminal.tell(str(refusal), tone="warn")
            return False
        return True

    async def _answered_elsewhere(self, gate: str) -> None:
        def is_over() -> bool:
            self.pull()
            return gate not in self.progress.state.gates

        await wait_for_end(self._here.service, self.run, is_over=is_over)

    def result(self) -> dict[str, JsonValue]:
        self.pull()
        shown: dict[str, JsonValue] = msgspec.to_builtins(
            summary(self.progress.state, self._here.service.read_text)
        )
        return shown


def drive(terminal: Terminal, begin: Begin, options: AttachOptions) -> int:
    """Drive the run that `begin` returns until it rests; the exit code reports its result."""
    return asyncio.run(_drive(terminal, begin, options))


async def _drive(terminal: Terminal, begin: Begin, options: AttachOptions) -> int:
    attended: list[AttachedRun] = []

    async def pause() -> None:
        for one in attended:
            one.view.note(
                "pausing after this iteration (Ctrl-C again exits at once)\n"
                f"continue it later with:\n  loopwright resume {one.run}"
            )
            try:
                await _pause_here(here, terminal, one.run)
            except LoopwrightError as error:
                one.view.note(str(error))

    def say(text: str) -> None:
        if attended:
            attended[0].view.note(text)
        else:
            terminal.say(text)

    async with near(terminal.settings, say=say, alone=terminal.options.here) as here:
        interrupts = Interrupts(pause)
        with interrupts.listening():
            elsewhere: list[dict[str, JsonValue]] = []
            for taken in await begin(here):
                pid = _driver_elsewhere(here, taken.run)
                if pid is not None:
                    terminal.say(f"{taken.run} is running in process {pid}")
                    terminal.say(f"  loopwright watch {taken.run}   shows it", tone="dim")
                    state = here.service.state(taken.run)
                    elsewhere.append(msgspec.to_builtins(summary(state, here.service.read_text)))
                    continue
                view = choose_view(
                    terminal, taken.run, jsonl=options.jsonl, several=options.several
                )
                tick_s = SLOW_TICK_S if options.several else TICK_S
                attended.append(AttachedRun(here, taken, view, interrupts, tick_s=tick_s))
            if interrupts.pausing:
                await pause()
            codes = await _attend_all(terminal, here, attended, options)
        results = [one.result() for one in attended]
        is_served = here.driver.is_served
    _print_results(terminal, attended, [*results, *elsewhere], options, is_served=is_served)
    return interrupts.code if interrupts.code is not None else worst_exit_code(codes)


async def _pause_here(here: Local, terminal: Terminal, run: str) -> None:
    """Pause a run as the person at this terminal."""
    from loopwright.operations.use_cases.operation import RunReference, local_app, local_caller  # noqa: PLC0415 - only then
    from loopwright.operations.use_cases.runs import pause  # noqa: PLC0415 - only then

    app, caller = local_app(here.service, terminal.settings), local_caller(here.service.via)
    await pause(app, caller, RunReference(run=run))


def _driver_elsewhere(here: Local, run: str) -> int | None:
    """The other process that moves a run on."""
    row = here.log.row(run)
    if row.headline.status not in OPEN_STATUSES or here.driver.is_driving(run):
        return None
    pid = driver_pid(here.log, row)
    return pid if row.owner is not None and row.owner.token != here.driver.token else None


async def _attend_all(
    terminal: Terminal, here: Local, attended: list[AttachedRun], options: AttachOptions
) -> list[int]:
    by_run = {one.run: one for one in attended}

    def written(run: str) -> None:
        one = by_run.get(run)
        if one is not None and feed.version(run) > one.progress.seen:
            # Read errors are reported once, by the code that waits for the run.
            with contextlib.suppress(StorageError):
                one.pull()

    def show_delta(delta: Delta) -> None:
        if delta.run in by_run:
            by_run[delta.run].hear(delta)

    async with open_feed(here.log) as feed:
        ends = [feed.listen(written), here.bus.listen(show_delta)]
        ticks = [asyncio.ensure_future(one.ticking()) for one in attended]
        try:
            return await asyncio.gather(*(_attend(terminal, one, options) for one in attended))
        finally:
            for end in ends:
                end()
            for tick in ticks:
                tick.cancel()
            await asyncio.gather(*ticks, return_exceptions=True)


async def _attend(terminal: Terminal, one: AttachedRun, options: AttachOptions) -> int:
    try:
        return await _attend_one(terminal, one, options)
    except (Conflict, StorageError) as error:  # what is wrong with one ends no other
        if not options.several:
            raise
        one.view.note(f"{one.run}: {error}")
        return 8 if isinstance(error, Conflict) else 1


async def _attend_one(terminal: Terminal, one: AttachedRun, options: AttachOptions) -> int:
    one.begin()
    interrupts = one.interrupts
    try:
        while await one.rest():
            state = one.progress.state
            asking = status_of(state) == "waiting" and terminal.can_ask
            if not asking or options.no_wait or options.several or interrupts.pausing:
                break
            one.view.end()
            interrupts.at_once = True
            if not await one.ask(terminal):
                break
            interrupts.at_once = False
            one.view.begin(one.progress)
    finally:
        one.view.end()
    if interrupts.pausing and status_of(one.progress.state) in ("paused", "waiting"):
        return 128 + signal.SIGINT
    return exit_code(one.result(), options.codes)


def _print_results(
    terminal: Terminal,
    attended: list[AttachedRun],
    results: list[dict[str, JsonValue]],
    options: AttachOptions,
    *,
    is_served: bool,
) -> None:
    for one in attended:
        _print_state(terminal, one, is_served=is_served, several=options.several)
    if options.several:
        if terminal.as_json:
            terminal.put_json({"runs": list(results)})
        return
    if not options.jsonl:
        # the output has no reader; the exit code still counts
        with contextlib.suppress(BrokenPipeError):
            for result in results:
                put_result(terminal, result)


def _print_worktree(terminal: Terminal, state: State) -> None:
    """Where the result of a run with a worktree is, and how to apply it."""
    found = state.started.worktree if state.started is not None else None
    if found is not None:
        terminal.say(f"  cd {shlex.quote(found.folder)}   has the result", tone="dim")
        terminal.say(f"  loopwright apply {state.run}   merges it back", tone="dim")


def _print_state(terminal: Terminal, one: AttachedRun, *, is_served: bool, several: bool) -> None:
    state = one.progress.state
    status = status_of(state)
    is_kept = is_served or lock_holder(terminal.settings.home) is not None  # a server continues it
    interrupted = status == "running" and not is_kept
    line = final_line(state, signs=terminal.has_signs(sys.stderr), left_behind=interrupted)
    say_final_line(terminal, one.run, line, status, several=several)
    if not several and state.finished is not None:
        _print_worktree(terminal, state)
    if status == "waiting":
        for gate in state.gates.values():
            terminal.say(f"  {answering(gate)}")
    elif status == "running" and is_kept and not is_served:
        terminal.say("  the local server continues it in a moment")
    elif status == "running" and is_served:
        terminal.say(f"  it continues on the local server; `loopwright watch {one.run}` shows it")
    elif status in ("paused", "running"):
        terminal.say(f"  loopwright resume {one.run}   continues it")
    elif words := resume_hint(state):
        terminal.say(f"  {words}   {resume_note(state)}", tone="dim")
