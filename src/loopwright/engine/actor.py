"""An actor drives one run: fold, settle, append, perform. It is the only way to advance a run.

Everything happens in the thread of the event loop. At most one append is in progress; answers
that arrive meanwhile wait in the inbox and share the next append. So the answer of one effect
and the request of the next are one commit.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Protocol, TypeAlias

from loopwright.engine import effects
from loopwright.engine.activity import LiveUsage, RunActivity
from loopwright.engine.effects import EffectQuestions, job_for, question_event
from loopwright.engine.run_tools import CallTools, RunTools
from loopwright.engine.services import TextServices
from loopwright.errors import Conflict, StorageError, VersionConflict
from loopwright.kernel.decide import settle
from loopwright.kernel.event_parts import (
    CALLED,
    AgentCall,
    CommandCall,
    ModelCall,
    SleepCall,
    SnapshotCall,
    ToolCall,
)
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRepeated,
    EffectRequested,
    GateOpened,
)
from loopwright.kernel.fold import apply, fold
from loopwright.kernel.state import PendingEffect, State, release_frames
from loopwright.model.plan import Plan
from loopwright.ports import (
    Answer,
    Append,
    Clock,
    EffectFailure,
    EffectJob,
    EffectSuccess,
    EventLog,
    Headline,
    JobOrigin,
    Performer,
    Question,
    RunRow,
    RunStatus,
    UsageRow,
)
from loopwright.ports.headline import (
    ListedRun,
    headline_of,
    status_of,
    usage_row,
    wake_time,
)

RETRY_STORAGE_MS = (1_000, 2_000, 5_000, 10_000, 30_000)
# Errors of a store about the data: another attempt would fail in the same way.
UNSTORABLE = frozenset({"bad-append", "bad-fact", "bad-number", "bad-text", "too-large"})

_ANSWERS = (EffectSuccess, EffectFailure)
# Looked up by type for each call, which is faster than testing each class in turn.
_TALKING = frozenset((AgentCall, ToolCall))
_ENDED = (EffectDone, EffectFailed)
_METERED = frozenset(CALLED)
_ACTIVE = frozenset((AgentCall, CommandCall, ModelCall, SnapshotCall, ToolCall))
Incoming: TypeAlias = EffectDone | EffectFailed | EffectRepeated | GateOpened
Shown: TypeAlias = tuple[RunStatus, int | None, tuple[str, ...]]


def _shown(headline: Headline) -> Shown:
    return headline.status, headline.wake_at, headline.labels


class ActorServices(Protocol):
    """What an actor needs from its driver."""

    log: EventLog
    performer: Performer
    clock: Clock
    token: str

    def resting(self, actor: "Actor") -> None:
        """The actor is idle."""

    def asks(self, actor: "Actor") -> None:
        """The run cannot continue until a person has decided."""

    def trouble(self, run: str, problem: Exception) -> None:
        """An error in the storage of this run; a Conflict ends the driving."""


class Actor:
    """One run in memory."""

    def __init__(self, around: ActorServices, run: str, plan: Plan, texts: TextServices) -> None:
        self.around = around
        self.run = run
        self.plan = plan
        self.texts = texts
        self.state: State  # `load` makes it
        self.inbox: list[Incoming] = []
        self.asking = EffectQuestions()
        self.under_way: dict[str, Callable[[], None]] = {}
        self.ending: set[asyncio.Future[None]] = set()
        self._withdrawn: set[asyncio.Future[None]] = set()  # those of them that were cancelled
        self.tools = RunTools(self, around.clock)
        self.live = LiveUsage(lambda: self.state)
        self.activity = RunActivity(self, around.clock, self.live)
        self.busy = False
        self.gone = False
        self._unsaved: list[Incoming] = []
        self._batch: list[AnyEvent] = []
        self._requested: list[str] = []  # effects of the batch that begin when it is durable
        self._failed: list[str] = []  # effects of the batch that end then
        self._usage: list[UsageRow] = []
        self._blobs: Mapping[str, bytes] = {}
        self._shown: Shown | None = None  # the headline of the run in lists; None: not known
        self._listed = ListedRun()
        self._look_again = False
        self._ahead: dict[str, EffectJob | Answer] = {}
        self._failures = 0
        self._fresh_state = False
        self._answered_at: int | None = None
        self._origin: JobOrigin | None = None

    # -- incoming events----------------------------------------------------------------------------

    def load(
        self,
        events: Iterable[AnyEvent] | None = None,
        headline: Headline | None = None,
        state: State | None = None,
    ) -> None:
        """Fold everything in the log; `headline` and `state` are those of these events."""
        events = None if events is None else list(events)
        if events is None:
            events = [numbered.event for numbered in self.around.log.read(self.run)]
            row = self.around.log.row(self.run)
            headline = row.headline if row.version == len(events) else None
        self.state = fold(self.plan, events) if state is None else state
        self.activity.load(events)
        self._ahead.clear()
        self._listed.forget()
        self._fresh_state = True
        self._shown = _shown(headline) if headline else None

    def absorb(self) -> None:
        """Fold events that other processes have appended; a busy actor does so after its own
        append.
        """
        if self.busy or self.gone:
            self._look_again = True
            return
        new = self.around.log.read(self.run, after=self.state.version)
        for numbered in new:
            apply(self.state, numbered.event)
        if new:
            self._listed.forget()
            row = self.around.log.row(self.run)
            if self._is_lost(row):
                return
            self._shown = _shown(row.headline)
        self.step()

    def _is_lost(self, row: RunRow) -> bool:
        """Whether another process drives this run now: its effects are not ours to start."""
        if row.owner is not None and row.owner.token == self.around.token:
            return False
        words = f"{self.run} is driven by another process now"
        self.around.trouble(self.run, Conflict(words, code="fenced"))
        self.leave()
        return True

    def answer(self, pending: PendingEffect, answer: Answer) -> None:
        """Add the answer of an effect; an answer that is no longer awaited is dropped."""
        if pending.effect not in self.under_way or self.gone:
            return
        answer = self.activity.close(pending.effect, answer)
        self.inbox.append(
            effects.answer_event(pending, answer, self.texts, self.around.clock.now_ms())
        )
        self.step()

    # -- fold, settle, append ----------------------------------------------------------------------

    def step(self, at: int | None = None) -> None:
        """Advance as far as the known events allow, and make it durable; `at` is the time."""
        if self.busy or self.gone:
            return
        state, batch = self.state, self._batch
        version = state.version
        self._usage = []
        try:
            if self.tools.requested:
                self.tools.record(batch)
            if self.activity.calls:
                self._usage += self.activity.take(batch)
            self._take_answers(batch)
            batch += settle(state, self.texts, at or self.around.clock.now_ms())
            if self.activity.calls:
                self.activity.attach_streams(batch)
        except Exception as error:  # a defect of ours: this run cannot continue, all others can
            self._give_up(error)
            return
        headline = self._changed_headline() if batch or self._shown is not None else None
        if not batch and headline is None:
            if self.tools.is_used:
                self.tools.saved(batch)
            self.perform()
            return
        self.busy = True
        self._blobs = self.texts.take_fresh()
        figures, opened, closed = self._listed.take(state, batch)
        self.around.log.submit(
            Append(
                run=self.run,
                expected=version,
                events=batch,
                blobs=self._blobs,
                headline=headline,
                figures=figures,
                gates_opened=opened,
                gates_closed=closed,
                usage=self._usage,
                token=self.around.token,
            ),
            self._appended,
        )
        self._prepare(batch)

    def _take_answers(self, batch: list[AnyEvent]) -> None:
        self._unsaved, self.inbox = self.inbox, []
        for event in self._unsaved:
            if not isinstance(event, GateOpened):
                self.under_way.pop(event.effect, None)
                self.live.used.pop(event.effect, None)  # the answer includes its own
                if self.tools.is_used:
                    self.tools.forget(event.effect)
            elif event.gate in self.state.gates:
                continue
            if event.effect in self.state.pending:
                pending = self.state.pending[event.effect]
                if isinstance(event, _ENDED) and (event.usage or pending.used):
                    row = usage_row(self.state, pending, event)
                    self._usage += [] if row is None else [row]
                apply(self.state, event)
                batch.append(event)

    def _prepare(self, batch: list[AnyEvent]) -> None:
        """While the disk is busy, prepare the next jobs; the state does not change until then."""
        for event in batch:
            if type(event) is EffectRequested:
                self._requested.append(event.effect)
                pending = self.state.pending.get(event.effect)
                if pending is not None and type(event.call) is not SleepCall:
                    self._ahead[event.effect] = self._prepared(pending)
            elif type(event) is EffectFailed:
                self._failed.append(event.effect)

    def _prepared(self, pending: PendingEffect) -> EffectJob | Answer:
        """The job of an effect, or the answer of one that cannot be requested."""
        try:
            if self._origin is None:
                self._origin = effects.origin_of(self.state, self.around.token)
            return job_for(self.state, pending, self.texts, self._origin)
        except Exception as error:  # a defect of ours must end the effect, not the driver
            return effects.defect(error)

    def _changed_headline(self) -> Headline | None:
        """The headline, if lists would show something new."""
        shown = status_of(self.state), wake_time(self.state), self.state.control.labels
        if shown == self._shown:
            return None
        self._shown = shown
        return headline_of(self.state)

    def _appended(self, error: Exception | None) -> None:
        self.busy = False
        if self.gone:
            return
        if error is None:
            self._failures = 0
            self._unsaved, self._blobs = [], {}
            if self.tools.is_used:
                self.tools.saved(self._batch)
            if self.activity.calls:
                self.activity.saved(self._batch)
            self.perform()
        else:
            self._not_appended(error)

    def _not_appended(self, error: Exception) -> None:
        """Start again from the durable events; unsaved answers are added again."""
        self._batch, self._requested, self._failed = [], [], []
        self.inbox = self._unsaved + self.inbox
        self.tools.lost()
        self.activity.lost()
        self.texts.give_back(self._blobs)
        self._unsaved, self._blobs, self._shown = [], {}, None
        if isinstance(error, VersionConflict):
            self._start_over()
        elif isinstance(error, Conflict):
            self.around.trouble(self.run, error)
            self.leave()
        elif isinstance(error, StorageError) and error.code in UNSTORABLE:
            self._refuse_answers(error)
        elif isinstance(error, StorageError):
            self._wait_for_storage(error)
        else:
            raise error

    def _start_over(self) -> None:
        self.busy = False
        if self.gone:
            return
        try:
            self.load()
            lost = self._is_lost(self.around.log.row(self.run))
        except StorageError as error:
            self._wait_for_storage(error)
            return
        if not lost:
            self.step()

    def _wait_for_storage(self, error: StorageError) -> None:
        """Busy until then: the state is ahead of the log, so nothing may depend on it."""
        self.busy = True
        self.around.trouble(self.run, error)
        wait = RETRY_STORAGE_MS[min(self._failures, len(RETRY_STORAGE_MS) - 1)]
        self._failures += 1
        self.around.clock.call_after(wait, self._start_over)

    def _refuse_answers(self, error: StorageError) -> None:
        """Answers that can never be stored become failures; so the run continues by its own
        rules.
        """
        if self.activity.refuse():  # it may have been that event, which nothing depends on
            self._start_over()
            return
        answers = (event for event in self.inbox if isinstance(event, _ENDED))
        failed: list[Incoming] = [effects.refused_answer(event, error) for event in answers]
        asked = self.tools.refuse(error.code)
        if not asked and (not failed or failed == self.inbox):
            self._give_up(error)
            return
        self.inbox = failed
        self._start_over()

    def _give_up(self, error: Exception) -> None:
        detail = f"{self.run} cannot continue: {type(error).__name__}: {error}"
        self.around.trouble(self.run, Conflict(detail, code="defect"))
        self.leave()

    # -- effects -----------------------------------------------------------------------------------

    def perform(self) -> None:
        """Start effects that are pending and not running; end those that are running and not
        pending.
        """
        pending, under_way = self.state.pending, self.under_way
        self._batch = []
        requested, self._requested = self._requested, []
        ended, self._failed = self._failed, []
        again, self._fresh_state = self._fresh_state, False
        mine: Collection[str] = ()
        if again:
            mine, requested, ended = requested, list(pending), list(under_way)
        for effect in ended:
            if effect in under_way and effect not in pending:
                under_way.pop(effect)()
                self.activity.discard(effect)
        for effect in requested:
            if effect in pending and effect not in under_way:
                self._begin(pending[effect], again=again and effect not in mine)
        if self.asking.waiting:
            self.asking.tell(self.state)
        if not self.busy:
            self._go_on()

    def _go_on(self) -> None:
        """Process what has arrived in the meantime, else become idle."""
        if self.inbox or self.tools.requested or self.activity.due:
            at, self._answered_at = self._answered_at, None
            self.step(at)
        elif self._look_again:  # before becoming idle: recent messages must not wait
            self._look_again = False
            self.absorb()
        else:
            if self.idle:
                self.around.resting(self)
            if self.asking.waiting and self.only_asks:
                self.around.asks(self)

    def _begin(self, pending: PendingEffect, *, again: bool) -> None:
        call = pending.call
        if type(call) is SleepCall:
            self._sleep(pending, call)
            return
        job = self._ahead.pop(pending.effect, None) or self._prepared(pending)
        if isinstance(job, EffectJob):
            job.again = again
            kind = type(call)
            if kind in _TALKING:
                job.talk = CallTools(self.tools, pending.effect)
                if pending.effect in self.state.mail.sent_by:
                    self.tools.remember(pending.effect)
            if kind in _ACTIVE:
                sink = self.activity.open(pending)
                job.activity = sink
                if kind in _METERED:
                    job.meter = sink
                    if self.state.plan_index.has_budget:
                        self.live.share(pending, job)
        answer: Answer | Awaitable[Answer]
        if self._withdrawn and type(call) is SnapshotCall:
            answer = self._begun_later(job)
        else:
            answer = effects.begun(self.around.performer, job)
        if not isinstance(answer, _ANSWERS):
            task = asyncio.ensure_future(self._wait_for(pending, answer))
            self.ending.add(task)
            task.add_done_callback(self._ended)
            self.under_way[pending.effect] = lambda: self._withdraw(task)
        else:
            self._answered(pending, answer)

    def _sleep(self, pending: PendingEffect, call: SleepCall) -> None:
        clock = self.around.clock
        if call.until <= clock.now_ms():
            self._answered(pending, EffectSuccess())
            return
        wake = clock.call_at(call.until, lambda: self.answer(pending, EffectSuccess()))
        self.under_way[pending.effect] = wake

    async def _begun_later(self, job: EffectJob | Answer) -> Answer:
        """Start a snapshot when the withdrawn programs have ended: until then they may write."""
        if self._withdrawn:
            await asyncio.wait(self._withdrawn)
        answer = effects.begun(self.around.performer, job)
        return answer if isinstance(answer, _ANSWERS) else await answer

    def _withdraw(self, task: "asyncio.Future[None]") -> None:
        effects.cancel(task)
        if not task.done():
            self._withdrawn.add(task)

    def _answered(self, pending: PendingEffect, answer: Answer) -> None:
        """An effect that has its answer at once: the step that follows has the same time."""
        answer = self.activity.close(pending.effect, answer)
        self._answered_at = at = self.around.clock.now_ms()
        self.inbox.append(effects.answer_event(pending, answer, self.texts, at))
        self.under_way[pending.effect] = effects.nothing_to_end

    async def _wait_for(self, pending: PendingEffect, answer: Awaitable[Answer]) -> None:
        try:
            outcome = await answer
        except asyncio.CancelledError:
            raise
        except Exception as error:  # as above
            outcome = effects.defect(error)
        self.answer(pending, outcome)

    def _ended(self, task: "asyncio.Future[None]") -> None:
        self.ending.discard(task)
        self._withdrawn.discard(task)
        if not self.gone and self.idle:
            self.around.resting(self)

    async def ask(self, effect: str, question: Question) -> bool:
        """Open a gate about an action of an effect. If no one can answer, the request is denied."""
        pending = self.state.pending.get(effect)
        if pending is None or self.gone:
            return False
        event = question_event(self.run, pending, question, self.around.clock.now_ms())
        decided = self.asking.known(self.state, event.gate, effect)
        if decided is not None:
            return decided
        answer = self.asking.wait(event.gate, effect)
        if event.gate not in (pending.gates or {}):
            self.inbox.append(event)
        asyncio.get_running_loop().call_soon(self.step)
        return await answer

    @property
    def only_asks(self) -> bool:
        """Whether all running effects wait for a person."""
        if self.busy or self.inbox or not self.state.gates:
            return False
        return status_of(self.state) == "waiting"

    def flush(self) -> None:
        """Store the reports of agents so far, before the run is released."""
        if self.activity.waits:
            self.step()

    def leave(self) -> None:
        """Stop driving without adding an event; running effects are ended and stay pending."""
        self.gone = True
        for end in self.under_way.values():
            end()
        self.under_way.clear()
        self.tools.close()
        self.activity.stop()

    def release(self) -> None:
        """Remove the reference cycles of a released run, so that its memory is freed at once: texts
        of a run may be megabytes.
        """
        if self.state.started is not None:
            release_frames(self.state.root)
        del self.tools, self.live, self.activity

    @property
    def idle(self) -> bool:
        """Whether only timers and people can advance this run."""
        return (
            not self.busy
            and not self.inbox
            and not self.tools.requested
            and not self.ending
            and len(self.state.pending) == len(self.state.queues.timers)
        )
