"""What agents do during their calls: recorded in batches, and published on the live bus.

Entries wait in memory until there are enough of them or the first one has waited long enough,
and then share the next append of their run. The answer of a call never overtakes its entries.
The kernel ignores the entries, so recording them cannot change what a run does. What a call has
used so far is recorded with them: it counts also when the call is stopped or its process is
killed. Concurrent calls share what the budgets around them leave.

The output of an agent's program is stored as it arrived, redacted, compressed and bounded. The
live bus passes on what agents print at this moment; it keeps nothing.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from loopwright.engine.redaction import MARGIN_CHARS, Redaction
from loopwright.engine.services import TextServices
from loopwright.kernel.event_parts import ActivityNote, AgentCall, ToolCall
from loopwright.kernel.events import (
    NO_USAGE,
    AnyEvent,
    EffectActivity,
    EffectDone,
    EffectFailed,
    Usage,
)
from loopwright.kernel.fold import apply
from loopwright.kernel.limits import exceeded, remaining
from loopwright.kernel.state import PendingEffect, State
from loopwright.model.record import Text
from loopwright.ports import ActivityEntry, Answer, Clock, Delta, EffectFailure, EffectJob, UsageRow
from loopwright.ports.headline import usage_row


@dataclass(slots=True)
class LiveUsage:
    """The usage of the running calls so far, by effect."""

    state: Callable[[], State]
    used: dict[str, Usage] = field(default_factory=dict)

    def share(self, pending: PendingEffect, job: EffectJob) -> None:
        """Give a starting call what is left after counting the running calls."""
        left = remaining(self.state(), pending.owner, self.used)
        usd = left.usd if job.limits.covered else None
        job.limits = replace(job.limits, remaining_usd=usd, remaining_tokens=left.tokens)

    def count(self, effect: str, usage: Usage) -> str | None:
        """Record the usage of a call so far; returns the limit that it exceeds."""
        self.used[effect] = usage
        state = self.state()
        if not state.plan_index.has_budget:
            return None
        return exceeded(state, state.pending[effect].owner, self.used)


MOST_OUTPUT_BYTES = 16 << 20
LONGEST_LINE = 256 * 1_024
_GZIP = 31  # the window bits of zlib for the gzip format


class OutputStream:
    """Collects bytes; whole lines are redacted together, so that no secret is split in two."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._compressor = zlib.compressobj(wbits=_GZIP)
        self._parts: list[bytes] = []
        self._line = b""
        self._total = 0
        self._finished: bytes | None = None
        self.broken = False

    def add(self, chunk: bytes) -> None:
        """Add bytes."""
        room = MOST_OUTPUT_BYTES - self._total
        self._total += len(chunk)
        if room <= 0 or self._finished is not None or self.broken:
            return
        data = self._line + chunk[:room]
        end = data.rfind(b"\n") + 1
        if not end and len(data) > LONGEST_LINE:
            end = len(data) - MARGIN_CHARS
        self._line = data[end:]
        if end:
            self._write(data[:end])

    def _write(self, data: bytes) -> None:
        self._parts.append(self._compressor.compress(self._redaction.stream(data)))

    def finish(self) -> bytes:
        """Everything, in the gzip format; nothing when there was no output."""
        if self.broken or not self._total:
            return b""
        if self._finished is None:
            self._write(self._line)
            if self._total > MOST_OUTPUT_BYTES:
                cut = self._total - MOST_OUTPUT_BYTES
                self._write(f"\n[cut: {cut:,} of {self._total:,} bytes]\n".encode())
            self._finished = b"".join([*self._parts, self._compressor.flush()])
            self._parts, self._line = [], b""
        return self._finished


FLUSH_ENTRIES = 200
FLUSH_BYTES = 1 << 20
FLUSH_MS = 500
SLOWEST_FLUSH_MS = 5_000
SLOWER_AFTER = 25  # entries of a call: the more it has reported, the longer the next ones may wait

MOST_ENTRIES = 2_000  # of one call
# Beyond them, the first edit of each further file is stored, so that every edited file is named.
MOST_FILES = 2_000
MOST_BYTES = 8 << 20  # arguments and results of one call
VALUE_CHARS = 64 * 1_024  # of the arguments or the result of one entry
TARGET_CHARS = 500
TEXT_CHARS = 300
NAME_CHARS = 100
NOT_STORED = "[not stored: the call has reached its limit of stored activity]"
_MOST_INT = 2**53
_ANSWERS = (EffectDone, EffectFailed)
_NO_SECRETS = Redaction()


class ActiveRun(Protocol):
    """What activity needs from the actor of its run."""

    state: State
    texts: TextServices

    def step(self) -> None: ...


class RunActivity:
    """The activity of the calls of one run."""

    def __init__(self, run: ActiveRun, clock: Clock, live: LiveUsage) -> None:
        self._run = run
        self._live = live
        self._clock = clock
        self._open: dict[str, CallActivity] = {}
        # Calls with something to store or to redact. While it is empty, an append has nothing to
        # add.
        self.calls: dict[str, CallActivity] = {}
        self._stored: dict[str, int] = {}  # the newest number of each effect in the log
        self._timer: Callable[[], None] | None = None
        self._waiting = 0
        self._waiting_bytes = 0
        self.due = False

    def load(self, events: Iterable[AnyEvent]) -> None:
        """Read what the log contains: numbers continue after it, and nothing is stored twice."""
        self._note_stored(events)
        for effect, call in self.calls.items():
            call.forget_stored(self._stored.get(effect, 0))

    def _note_stored(self, events: Iterable[AnyEvent]) -> None:
        for event in events:
            if type(event) is EffectActivity and event.entries:
                self._stored[event.effect] = event.entries[-1].number
            elif self._stored and isinstance(event, _ANSWERS):  # nothing is stored after an answer
                self._stored.pop(event.effect, None)

    def open(self, pending: PendingEffect) -> "CallActivity":
        """The sink of a starting call."""
        call = CallActivity(self, pending, self._stored.get(pending.effect, 0))
        self._open[pending.effect] = call
        self.calls.pop(pending.effect, None)
        if call.before is not None:
            call.join()
        return call

    def join(self, effect: str, call: "CallActivity") -> None:
        """A call takes part in the next appends."""
        if effect in self._open:
            self.calls[effect] = call

    def close(self, effect: str, answer: Answer) -> Answer:
        """A call has its answer: later reports of it are dropped. Returns the answer without the
        secrets that the agent received.
        """
        call = self._open.pop(effect, None)
        if call is None:
            return answer
        call.closed = True
        if effect not in self.calls:
            return answer
        if call.before is not None:  # lost attempts have a cost too
            answer = replace(answer, usage=call.before + (answer.usage or NO_USAGE))
        return call.redacted(answer)

    def discard(self, effect: str) -> None:
        """A call was ended, and its remaining reports are stored or not needed."""
        call = self._open.pop(effect, None)
        if call is not None:
            call.closed = True
        self.calls.pop(effect, None)

    def stop(self) -> None:
        """This process no longer drives the run."""
        self._cancel_timer()
        for call in self._open.values():
            call.closed = True
        self._open.clear()
        self.calls.clear()
        self.due = False

    # -- what calls report -------------------------------------------------------------------------

    def arrived(self, size: int, number: int) -> None:
        """Ensure that an entry is stored soon; `number` counts the entries of its call."""
        self._waiting += 1
        self._waiting_bytes += size
        if self._waiting >= FLUSH_ENTRIES or self._waiting_bytes >= FLUSH_BYTES:
            if not self.due:
                self.due = True
                # Not at once: the actor may be starting this very call.
                with suppress(RuntimeError):  # without a loop, the next append includes it
                    asyncio.get_running_loop().call_soon(self._run.step)
        elif self._timer is None and not self.due:
            delay = FLUSH_MS * (1 + (number - 1) // SLOWER_AFTER)
            self._timer = self._clock.call_after(min(delay, SLOWEST_FLUSH_MS), self._flush)

    def usage_arrived(self) -> None:
        """The usage of a call waits to be stored."""
        if self._timer is None and not self.due:
            self._timer = self._clock.call_after(FLUSH_MS, self._flush)

    def used(self, effect: str, usage: Usage) -> str | None:
        """Count the usage of a call so far; returns the limit that it exceeds."""
        return self._live.count(effect, usage)

    def awaits(self, effect: str) -> bool:
        """Whether the run still waits for the answer of a call."""
        return effect in self._run.state.pending

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def _flush(self) -> None:
        self._timer = None
        self.due = True
        self._run.step()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer()
            self._timer = None

    # -- one append --------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether entries wait to be stored."""
        return any(call.waits for call in self.calls.values())

    def take(self, batch: list[AnyEvent]) -> list[UsageRow]:
        """Add everything that waits to an append, before the answers of its calls. Returns what it
        adds to the usage of the run.
        """
        state = self._run.state
        rows: list[UsageRow | None] = []
        for effect, call in self.calls.items():
            if effect in state.pending:
                event = call.take(self._run.texts)
                if event is not None:
                    rows.append(usage_row(state, state.pending[effect], event))
                    apply(state, event)
                    batch.append(event)
        self._cancel_timer()
        self._waiting = self._waiting_bytes = 0
        self.due = False
        return [row for row in rows if row is not None]

    def attach_streams(self, batch: list[AnyEvent]) -> None:
        """Add the output of agents to the answers of an append."""
        for index, event in enumerate(batch):
            if isinstance(event, _ANSWERS) and event.effect in self.calls:
                call = self.calls[event.effect]
                call.closed = True
                stream = call.stored_stream(self._run.texts)
                if stream is not None and event.stream is None:
                    batch[index] = replace(event, stream=stream)

    def saved(self, batch: list[AnyEvent]) -> None:
        """The append is durable."""
        self._note_stored(batch)
        for call in self.calls.values():
            call.unsaved = None
        for event in batch:
            if isinstance(event, _ANSWERS):
                self.calls.pop(event.effect, None)

    def lost(self) -> None:
        """The append failed: its entries are added to the next one."""
        for call in self.calls.values():
            call.give_back()
        self.due = self.due or self.waits

    def refuse(self) -> bool:
        """Entries that can never be stored are only counted. Returns whether there were any."""
        return any([call.refuse() for call in self.calls.values()])


class CallActivity:
    """The sink of one call. No input can make it fail."""

    # Most calls of scripts and programs report nothing: fields that only others need are set when
    # needed.
    _taken = 0
    _bytes = 0
    _stream: OutputStream | None = None
    _secrets: Callable[[], Mapping[str, str]] | None = None  # not asked for yet
    _redactor = _NO_SECRETS
    _used: Usage | None = None
    _used_taken: Usage | None = None
    unsaved: EffectActivity | None = None
    closed = False
    _joined = False
    _entries: list[ActivityNote]
    _values: dict[int, tuple[str, str]]
    _edited: set[str]
    _dropped: "_Dropped"

    def __init__(self, run: RunActivity, pending: PendingEffect, stored: int) -> None:
        self._run = run
        self._pending = pending
        self._number = stored
        self.before = pending.used  # by attempts that were lost

    def hide(self, values: Callable[[], Mapping[str, str]]) -> None:
        self.join()
        self._secrets = values

    @property
    def _redaction(self) -> Redaction:
        """Removes the secrets of the agent; made when the first text is redacted."""
        if self._secrets is not None:
            values, self._secrets = self._secrets(), None
            if values:
                self._redactor = Redaction(values)
        return self._redactor

    def report(self, usage: Usage) -> str | None:
        """Record the usage of this attempt so far, and add it to earlier attempts."""
        if not self._run.awaits(self._pending.effect):
            return None
        total = usage if self.before is None else self.before + usage
        if not self.closed:
            self.join()
            self._used = total
            self._run.usage_arrived()
        return self._run.used(self._pending.effect, total)

    def join(self) -> None:
        """Take part in the next appends of the run."""
        if not self._joined:
            self._joined = True
            self._entries, self._values = [], {}
            self._edited, self._dropped = set(), _Dropped()
        self._run.join(self._pending.effect, self)

    def record(self, entry: ActivityEntry) -> None:
        if self.closed:
            return
        self.join()
        if self._taken >= MOST_ENTRIES and not self._is_new_file(entry):
            self._dropped.add(entry)
            return
        try:
            self._record(entry)
        except Exception:  # a defect of ours, or of the reported data: the call continues
            self._dropped.add(entry)

    def _is_new_file(self, entry: ActivityEntry) -> bool:
        """Whether this is the first edit of a file in this call."""
        is_edit = entry.kind == "edit" and bool(entry.target) and entry.ok is not False
        return is_edit and entry.target not in self._edited and len(self._edited) < MOST_FILES

    def _record(self, entry: ActivityEntry) -> None:
        arguments, result = self._value(entry.arguments), self._value(entry.result)
        note = ActivityNote(
            number=self._number + 1,
            at=self._run.now_ms(),
            kind=entry.kind,
            tool=self._line(entry.tool, NAME_CHARS),
            target=self._line(entry.target, TARGET_CHARS),
            ok=entry.ok,
            code=_bounded(entry.code),
            ms=_bounded(entry.ms),
            text=self._line(entry.text, TEXT_CHARS),
        )
        self._number += 1
        self._taken += 1
        if self._is_new_file(entry):
            self._edited.add(entry.target)
        self._entries.append(note)
        if arguments or result:
            self._values[note.number] = arguments, result
        self._run.arrived(len(arguments) + len(result), self._taken)

    def _value(self, text: str) -> str:
        if not text:
            return ""
        if self._bytes >= MOST_BYTES:
            return NOT_STORED
        kept = self._redaction.value(text, VALUE_CHARS)
        self._bytes += len(kept)
        return kept

    def redact(self, text: str) -> str:
        redaction = self._redaction
        return redaction.known(text) if text and redaction.forms else text

    def redacted(self, answer: Answer) -> Answer:
        """An answer as it may be stored."""
        redaction = self._redaction
        if not redaction.forms:
            return answer
        tools = tuple(replace(tool, input=self.redact(tool.input)) for tool in answer.tools)
        answer = replace(answer, output=self.redact(answer.output), tools=tools)
        if isinstance(answer, EffectFailure):
            error = replace(answer.error, detail=self.redact(answer.error.detail))
            return replace(answer, error=error)
        result = answer.result and redaction.known_in_result(answer.result)
        return replace(answer, note=self.redact(answer.note), result=result)

    def _line(self, text: str, most: int) -> str:
        return self._redaction.line(text, most) if text else ""

    def keep_stream(self, chunk: bytes) -> None:
        if self.closed:
            return
        if self._stream is None:
            self.join()
            self._stream = OutputStream(self._redaction)
        try:
            self._stream.add(chunk)
        except Exception:  # as above
            self._stream.broken = True

    # -- for the run -------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        return bool(self._entries) or self._new_usage is not None

    @property
    def _new_usage(self) -> Usage | None:
        """Usage that is not stored yet; the answer of a call includes its own."""
        return None if self.closed or self._used == self._used_taken else self._used

    def take(self, texts: TextServices) -> EffectActivity | None:
        """Everything that waits, as an event; kept until it is known to be durable."""
        usage = self._new_usage
        if not self._entries and not self._dropped.count and usage is None:
            return None
        entries = tuple(self._stored(note, texts) for note in self._entries)
        owner, effect = self._pending.owner, self._pending.effect
        call = self._pending.call
        event = EffectActivity(
            at=self._run.now_ms(),
            path=self._pending.path if owner.path else "",
            iteration=owner.iteration,
            effect=effect,
            agent=call.agent if isinstance(call, AgentCall | ToolCall) else "",
            entries=entries,
            dropped=self._dropped.count,
            dropped_by_kind=self._dropped.by_kind,
            dropped_failures=self._dropped.failures,
            usage=usage,
        )
        self._entries, self._dropped = [], _Dropped()
        self._used_taken = usage or self._used_taken
        self._values.clear()
        self.unsaved = event
        return event

    def _stored(self, note: ActivityNote, texts: TextServices) -> ActivityNote:
        arguments, result = self._values.get(note.number, ("", ""))
        if not arguments and not result:
            return note
        return replace(note, arguments=texts.keep(arguments), result=texts.keep(result))

    def give_back(self) -> None:
        event, self.unsaved = self.unsaved, None
        if event is not None:
            self._used_taken = None
            self._entries[:0] = event.entries
            self._dropped.give_back(event)

    def forget_stored(self, number: int) -> None:
        """Drop entries that the log already contains: an append may succeed and be reported as
        failed.
        """
        self._entries = [note for note in self._entries if note.number > number]

    def refuse(self) -> bool:
        refused = bool(self._entries)
        for note in self._entries:
            self._dropped.add(note)
        self._entries = []
        self._values.clear()
        self._stream = None
        return refused

    def stored_stream(self, texts: TextServices) -> Text | None:
        data = self._stream.finish() if self._stream is not None else b""
        return texts.keep_bytes(data) if data else None


class _Dropped:
    """Counts entries that are not stored."""

    def __init__(self) -> None:
        self.count = 0
        self.by_kind: dict[str, int] = {}
        self.failures = 0  # of commands

    def add(self, entry: ActivityEntry | ActivityNote) -> None:
        self.count += 1
        kind = entry.kind if isinstance(entry.kind, str) else "tool"
        self.by_kind[kind] = self.by_kind.get(kind, 0) + 1
        self.failures += kind == "command" and entry.ok is False

    def give_back(self, event: EffectActivity) -> None:
        """Restore the counts of an append that failed."""
        self.count += event.dropped
        self.failures += event.dropped_failures
        for kind, count in event.dropped_by_kind.items():
            self.by_kind[kind] = self.by_kind.get(kind, 0) + count


def _bounded(number: int | None) -> int | None:
    return None if number is None else max(-_MOST_INT, min(number, _MOST_INT))


class LiveBus:
    """Hands deltas to listeners in the same thread; a listener that fails is dropped."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Delta], None]] = []

    def publish(self, delta: Delta) -> None:
        for listener in list(self._listeners):
            try:
                listener(delta)
            except Exception:  # a broken view must never harm a run
                self._remove_listener(listener)

    def listen(self, listener: Callable[[Delta], None]) -> Callable[[], None]:
        """Add a listener; the returned function removes it."""
        self._listeners.append(listener)

        return lambda: self._remove_listener(listener)

    def _remove_listener(self, listener: Callable[[Delta], None]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)
