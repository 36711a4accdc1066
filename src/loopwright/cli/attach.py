"""Attach to runs: follow them until they finish or need input, and show their progress.

A run is followed through the client, wherever it is driven. Ctrl-C and a termination signal leave a
run that another process drives, and stop one that is driven here.
"""

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from loopwright.cli.run_output import (
    AttachOptions,
    FailSafeView,
    JsonLinesView,
    PlainTextView,
    PlainView,
    ProgressView,
)
from loopwright.cli.terminal import (
    EXIT_CODES,
    Terminal,
    exit_code,
    put_result,
    say_final_line,
    worst_exit_code,
)
from loopwright.client.client import Client
from loopwright.client.transport import FollowOptions, Keeper, RunFeed
from loopwright.errors import Conflict, LoopwrightError, StorageError
from loopwright.ports import OPEN_STATUSES, Delta
from loopwright.ports.headline import status_of
from loopwright.views.status_text import answering, resume_hint, resume_note
from loopwright.views.summary import final_line

if TYPE_CHECKING:
    from loopwright.kernel.state import State
    from loopwright.views.run_responses import RunSummary

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Whether this process is to leave, and with which exit code."""

    def __init__(self, pause: Callable[[], Awaitable[None]], *, at_once: bool = False) -> None:
        self._pause = pause
        self._now = asyncio.Event()
        self._tasks: set[asyncio.Future[None]] = set()
        self.pausing = False
        self.code: int | None = None
        self.at_once = at_once  # the first Ctrl-C exits: nothing is paused

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
        else:  # exit as soon as the running calls have been ended
            self.code = 128 + number
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

Begin = Callable[[Client], Awaitable[Sequence[RunFeed]]]
"""Starts or resumes runs, and returns their feeds, each from where it is to be shown."""


def feed_options(terminal: Terminal, *, watches: bool = False) -> FollowOptions:
    """What a feed returns besides events: text, where it is shown."""
    text = watches or (is_drawn(terminal) and not terminal.quiet)
    return FollowOptions(text=text, tail=watches, retry=not terminal.options.no_retry)


class AttachedRun:
    """One run, followed and shown."""

    def __init__(
        self, client: Client, feed: RunFeed, view: ProgressView, interrupts: Interrupts
    ) -> None:
        self.run = feed.run
        self.feed = feed
        self.view = view
        self.is_asking = False
        self.client = client
        self.interrupts = interrupts

    @property
    def status(self) -> str:
        """What it does, as far as its events were shown."""
        return status_of(self.feed.progress.state)

    async def rest(self) -> bool:
        """Show what happens until only a person can continue the run; False if the command exits
        before that.
        """
        return not await self.interrupts.unless(self._show())

    async def _show(self) -> None:
        async with aclosing(self.feed.follow()) as found:
            async for one in found:
                if isinstance(one, str):
                    self.view.note(one)
                elif isinstance(one, Delta):
                    self.view.said(one)
                else:
                    self.view.event(one)

    async def ask(self, terminal: Terminal) -> bool:
        """Ask the person here about the oldest open gate; False when they would rather leave."""
        from loopwright.cli.gate_prompts import ask_at_gate  # noqa: PLC0415 - only at a gate

        opened = self.feed.progress.asked[next(iter(self.feed.progress.state.gates))]
        answers: list[bool] = []

        async def ask() -> None:
            answers.append(await ask_at_gate(terminal, self.client, self.run, opened))

        self.is_asking = True
        if await self.interrupts.unless(ask()):
            return False
        self.is_asking = False
        return answers[0]


def follow_runs(terminal: Terminal, begin: Begin, options: AttachOptions) -> int:
    """Follow the runs that `begin` returns until they end or wait; returns the exit code."""
    return asyncio.run(_follow_runs(terminal, begin, options))


async def _follow_runs(terminal: Terminal, begin: Begin, options: AttachOptions) -> int:
    attended: list[AttachedRun] = []

    def say(text: str) -> None:
        if attended:
            attended[0].view.note(text)
        else:
            terminal.say(text)

    is_only_shown = options.watches or bool(terminal.server_url)
    async with terminal.open_client(drives=not options.watches, say=say) as client:
        interrupts = Interrupts(partial(_pause_all, attended), at_once=is_only_shown)
        with interrupts.listening():
            feeds = await _begun(interrupts, begin(client))
            others = await _say_other_drivers(terminal, feeds)
            for feed in feeds:
                if feed.run not in others:
                    view = choose_view(terminal, feed.run, options)
                    attended.append(AttachedRun(client, feed, view, interrupts))
            if interrupts.pausing:
                await _pause_all(attended)
            codes = await _attend_all(terminal, attended, options)
        if is_only_shown and interrupts.code is not None:
            _say_left(terminal, attended)
            return interrupts.code
        results = [await one.feed.read_summary() for one in attended]
        keepers = [one.feed.keeper for one in attended]
    for one, keeper in zip(attended, keepers, strict=True):
        _print_state(terminal, one, keeper, options)
    _print_results(terminal, [*results, *others.values()], options)
    return interrupts.code if interrupts.code is not None else worst_exit_code(codes)


async def _pause_all(attended: Sequence[AttachedRun]) -> None:
    """Pause every run that is followed."""
    from loopwright.operations.use_cases.operation import RunReference  # noqa: PLC0415 - only then
    from loopwright.operations.use_cases.runs import pause  # noqa: PLC0415 - only then

    for one in attended:
        one.view.note(
            "pausing after this iteration (Ctrl-C again exits at once)\n"
            f"continue it later with:\n  loopwright resume {one.run}"
        )
        try:
            await one.client.call(pause, RunReference(run=one.run))
        except LoopwrightError as error:
            one.view.note(str(error))


async def _say_other_drivers(
    terminal: Terminal, feeds: Sequence[RunFeed]
) -> "dict[str, RunSummary]":
    """The runs that another process drives, which are not shown here."""
    found: dict[str, RunSummary] = {}
    for feed in feeds:
        if (pid := feed.other_driver) is not None:
            terminal.say(f"{feed.run} is running in process {pid}")
            terminal.say(f"  loopwright watch {feed.run}   shows it", tone="dim")
            found[feed.run] = await feed.read_summary()
    return found


async def _begun(interrupts: Interrupts, begin: Awaitable[Sequence[RunFeed]]) -> Sequence[RunFeed]:
    """The feeds, or none if the command exits before there are any."""
    found: list[RunFeed] = []

    async def wait() -> None:
        found.extend(await begin)

    await interrupts.unless(wait())
    return found


def _say_left(terminal: Terminal, attended: Sequence[AttachedRun]) -> None:
    """Say that a run is not ended with this command."""
    for one in attended:
        terminal.tell(f"{one.run} keeps {'waiting' if one.is_asking else 'running'}")
        if not one.is_asking:
            terminal.say(f"  loopwright watch {one.run}{terminal.server_suffix}")


async def _attend_all(
    terminal: Terminal, attended: list[AttachedRun], options: AttachOptions
) -> list[int]:
    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for one in attended:
                one.view.tick()

    ticking = asyncio.ensure_future(tick())
    try:
        return await asyncio.gather(*(_attend(terminal, one, options) for one in attended))
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)


async def _attend(terminal: Terminal, one: AttachedRun, options: AttachOptions) -> int:
    try:
        return await _attend_one(terminal, one, options)
    except (Conflict, StorageError) as error:  # what is wrong with one ends no other
        if not options.several:
            raise
        one.view.note(f"{one.run}: {error}")
        return 8 if isinstance(error, Conflict) else 1


async def _attend_one(terminal: Terminal, one: AttachedRun, options: AttachOptions) -> int:
    interrupts = one.interrupts
    one.view.begin(one.feed.progress)
    try:
        while await one.rest():
            asking = one.status == "waiting" and terminal.can_ask
            if not asking or options.no_wait or options.several or interrupts.pausing:
                break
            one.view.end()
            was_at_once, interrupts.at_once = interrupts.at_once, True
            if not await one.ask(terminal):
                break
            interrupts.at_once = was_at_once
            if options.watches and not terminal.server_url:
                await _drive_in_background(terminal, one)
            one.view.begin(one.feed.progress)
    finally:
        one.view.end()
    if interrupts.pausing and one.status in ("paused", "waiting"):
        return 128 + signal.SIGINT
    return await _exit_code(one, options)


async def _drive_in_background(terminal: Terminal, one: AttachedRun) -> None:
    """Continue a run after an answer, if no process drives it."""
    from loopwright.operations.background_runs import drive_in_background  # noqa: PLC0415 - only then
    from loopwright.operations.use_cases.lists import ListRuns, list_runs  # noqa: PLC0415 - the same

    [item] = (await one.client.call(list_runs, ListRuns(match=one.run))).runs
    if item.status in OPEN_STATUSES and item.driver is None:
        drive_in_background(terminal.settings, one.run)


async def _exit_code(one: AttachedRun, options: AttachOptions) -> int:
    """The exit code for the run as it was shown; one that no process drives can be resumed."""
    state = one.feed.progress.state
    if one.status == "running":
        return EXIT_CODES["paused"]
    codes = None
    if options.foreign_codes:
        from loopwright.operations.dialects import exit_codes  # noqa: PLC0415 - rarely needed

        codes = exit_codes(state.plan.dialect)
    return exit_code(one.status, state.finished.reason if state.finished else "", codes)


def _print_results(
    terminal: Terminal, results: "Sequence[RunSummary]", options: AttachOptions
) -> None:
    if options.several:
        if terminal.as_json:
            terminal.put_json({"runs": results})
        return
    if not options.jsonl:
        # the output has no reader; the exit code still counts
        with contextlib.suppress(BrokenPipeError):
            for result in results:
                put_result(terminal, result)


def _print_worktree(terminal: Terminal, state: "State") -> None:
    """Where the result of a run with a worktree is, and how to apply it."""
    found = state.started.worktree if state.started is not None else None
    if found is None:
        return
    if not terminal.server_url:
        terminal.say(f"  cd {shlex.quote(found.folder)}   has the result", tone="dim")
    command = f"loopwright apply {state.run}{terminal.server_suffix}"
    terminal.say(f"  {command}   merges it back", tone="dim")


def _print_state(
    terminal: Terminal, one: AttachedRun, keeper: Keeper, options: AttachOptions
) -> None:
    state, status, suffix = one.feed.progress.state, one.status, terminal.server_suffix
    interrupted = status == "running" and keeper == "none"
    line = final_line(state, signs=terminal.has_signs(sys.stderr), left_behind=interrupted)
    say_final_line(terminal, one.run, line, status, several=options.several)
    if not options.several and state.finished is not None:
        _print_worktree(terminal, state)
    if status == "waiting":
        for gate in state.gates.values():
            terminal.say(f"  {answering(gate, suffix)}")
    elif status == "running" and keeper == "next-server":
        terminal.say("  the local server continues it in a moment")
    elif status == "running" and keeper == "server":
        where = terminal.server_url or "the local server"
        terminal.say(f"  it continues on {where}; `loopwright watch {one.run}{suffix}` shows it")
    elif status in ("paused", "running"):
        terminal.say(f"  loopwright resume {one.run}{suffix}   continues it")
    elif words := resume_hint(state):
        terminal.say(f"  {words}{suffix}   {resume_note(state)}", tone="dim")


def choose_view(terminal: Terminal, run: str, options: AttachOptions) -> ProgressView:
    """The view for a run: live on a terminal, plain lines otherwise, none with `--quiet`. Plain
    lines of a run that is watched have what agents write, too.
    """
    return FailSafeView(_view(terminal, run, options))


def _view(terminal: Terminal, run: str, options: AttachOptions) -> ProgressView:
    if options.jsonl:
        return JsonLinesView(terminal, run)
    if terminal.quiet:
        return ProgressView()
    if options.several:
        return PlainView(terminal, run)
    if is_drawn(terminal):
        from loopwright.cli.live_display import LiveView  # noqa: PLC0415 - rich is needed here alone

        return LiveView(terminal)
    return PlainTextView(terminal) if options.watches else PlainView(terminal)


def is_drawn(terminal: Terminal) -> bool:
    """Whether stderr is a terminal on which lines may be drawn again."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return not (terminal.as_json and sys.stdout.isatty())
