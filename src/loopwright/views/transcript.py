"""What agents did and wrote in a run: activity entries, model turns, messages, and the transcript.

The transcript contains agents, checks and people in the order of the events.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, TypeAlias, assert_never

import msgspec

from loopwright.kernel.event_parts import (
    ActivityNote,
    AgentCall,
    CallNote,
    CommandCall,
    LookupCall,
    MatchCall,
    ModelCall,
    SleepCall,
    SnapshotCall,
    ToolCall,
)
from loopwright.kernel.events import (
    AnyEvent,
    CheckVerdict,
    EffectActivity,
    EffectDone,
    EffectFailed,
    EffectRepeated,
    EffectRequested,
    GateAnswered,
    GateOpened,
    HistoryCompressed,
    RunFinished,
    TurnTaken,
)
from loopwright.kernel.fold import apply
from loopwright.kernel.frames import CycleBody
from loopwright.kernel.state import State
from loopwright.model.plan import Plan
from loopwright.model.record import Blob, JsonValue, Text
from loopwright.ports import NumberedEvent
from loopwright.ports.headline import is_turn
from loopwright.views.event_records import event_on_wire, text_of
from loopwright.views.formats import shown_evidence
from loopwright.views.iterations import is_in_iteration, iteration_of
from loopwright.views.run_responses import ActivitySummary
from loopwright.views.status_text import check_result, decided
from loopwright.views.summary import ReadText, final_line, seen_output, written

TOOL_CALLS = frozenset({"tool", "command", "edit", "read", "fetch"})
FILES_SHOWN = 20
_MORE = re.compile(r" and \d+ more$")
FAILED_SHOWN = 5
DENIALS_SHOWN = 20
STDERR_SHOWN = 5
WARNINGS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityFilter:
    """The requested entries; a criterion that is not given does not restrict them."""

    effect: str | None = None
    iteration: int | None = None
    attempt: int | None = None  # which try of the loop
    kind: str | None = None

    def takes_call(self, effect: str, path: str, iteration: int | None) -> bool:
        """Whether entries of this call may be requested."""
        if self.effect is not None and effect != self.effect:
            return False
        return is_in_iteration(path, iteration, (self.iteration, self.attempt))


ALL = ActivityFilter()


def repeat_words(attempt: int) -> str:
    """That a call is made again, since the process that drove the run ended during it."""
    return (
        f"attempt {attempt - 1} of the call was interrupted when the process of the run ended; "
        f"the call was made again (attempt {attempt})"
    )


class ActivityItem(msgspec.Struct):
    """One thing that an agent did. Long arguments and results are cut unless they are asked for
    in full; the byte counts are those of what is stored.
    """

    seq: int  # of the event that holds it
    number: int  # counts from 1 within the effect
    effect: str
    path: str
    iteration: int | None
    agent: str
    at: str
    kind: str
    tool: str
    target: str
    ok: bool | None
    code: int | None
    ms: int | None
    text: str
    arguments: str
    arguments_bytes: int
    result: str
    result_bytes: int


def activity_items(
    events: Iterable[NumberedEvent], read: ReadText | None = None, wanted: ActivityFilter = ALL
) -> Iterator[ActivityItem]:
    """The entries of events, in order. With `read`, arguments and results are whole; without, as
    far as the log itself holds them.
    """
    for numbered in events:
        if isinstance(numbered.event, EffectActivity):
            yield from items_of_event(event_on_wire("", numbered), read, wanted)


def items_of_event(
    event: Mapping[str, JsonValue], read: ReadText | None = None, wanted: ActivityFilter = ALL
) -> Iterator[ActivityItem]:
    """The same of one event as it travels."""
    found = msgspec.convert(event, _SentActivity)
    if not wanted.takes_call(found.effect, found.path, found.iteration):
        return
    for entry in found.entries:
        if wanted.kind not in (None, entry.kind):
            continue
        yield ActivityItem(
            seq=found.seq,
            number=entry.number,
            effect=found.effect,
            path=found.path,
            iteration=iteration_of(found.path, found.iteration),
            agent=found.agent,
            at=entry.at,
            kind=entry.kind,
            tool=entry.tool,
            target=entry.target,
            ok=entry.ok,
            code=entry.code,
            ms=entry.ms,
            text=entry.text,
            arguments=(read or text_of)(entry.arguments),
            arguments_bytes=_size(entry.arguments),
            result=(read or text_of)(entry.result),
            result_bytes=_size(entry.result),
        )


class _SentNote(msgspec.Struct):
    """An entry of an event as it travels."""

    number: int
    at: str
    kind: str
    tool: str = ""
    target: str = ""
    ok: bool | None = None
    code: int | None = None
    ms: int | None = None
    text: str = ""
    arguments: Text = ""
    result: Text = ""


class _SentActivity(msgspec.Struct):
    """An event of activity as it travels."""

    seq: int
    effect: str
    path: str
    iteration: int | None = None
    agent: str = ""
    entries: list[_SentNote] = []
    dropped: int = 0


def count_dropped(
    counts: dict[str, int], event: EffectActivity, wanted: ActivityFilter = ALL
) -> None:
    """Add the entries of an event that were not stored to the counts by call."""
    kind = wanted.kind
    dropped = event.dropped if kind is None else event.dropped_by_kind.get(kind, 0)
    if dropped and wanted.takes_call(event.effect, event.path, event.iteration):
        counts[event.effect] = counts.get(event.effect, 0) + dropped


def dropped_in(event: Mapping[str, JsonValue], wanted: ActivityFilter = ALL) -> dict[str, int]:
    """The same of one event as it travels."""
    found = msgspec.convert(event, _SentActivity)
    is_wanted = found.dropped and wanted.takes_call(found.effect, found.path, found.iteration)
    return {found.effect: found.dropped} if is_wanted else {}


def _size(text: Text) -> int:
    return text.size if isinstance(text, Blob) else len(text.encode())


def outcome_words(item: ActivityItem) -> str:
    """How an entry ended, in one word or two: `ok`, `exit 1`, `failed`, or nothing."""
    if item.kind == "denied":
        return "denied"
    if item.code:
        return f"exit {item.code}"
    return "" if item.ok is None else ("ok" if item.ok else "failed")


def note_line(note: ActivityNote) -> str:
    """An entry in one short line, for a status line."""
    words = f"{note.tool} {note.target}".strip() or note.text
    bad = note.kind == "denied" or note.ok is False
    how = "denied" if note.kind == "denied" else (f"exit {note.code}" if note.code else "failed")
    return f"{words} ({how})" if bad else words


def notable_words(event: EffectActivity) -> list[str]:
    """Activity that people see as it happens: denied permissions, statuses and warnings."""
    notable = (note for note in event.entries if note.kind in ("denied", "status", "warning"))
    return [warning_line(note) or note.text or note_line(note) for note in notable]


def warning_line(note: ActivityNote) -> str:
    """A warning about a call as a line; empty for other entries."""
    return f"warning: {note.text}" if note.kind == "warning" else ""


def calls_words(count: int) -> str:
    """`12 tool calls`; nothing for none."""
    return f"{count:,} tool call{'' if count == 1 else 's'}" if count else ""


@dataclass(slots=True)
class ActivityCounts:
    """What agents did, summed up: of one iteration or of a run."""

    tool_calls: int = 0
    dropped: int = 0
    commands: int = 0
    failed_commands: int = 0
    denied: int = 0
    edited: dict[str, None] = field(default_factory=dict)  # in order of the first edit
    failed: list[str] = field(default_factory=list)
    denials: dict[str, None] = field(default_factory=dict)  # as messages, each once
    stderr: list[str] = field(default_factory=list)  # the last line of each call that has any
    warnings: dict[str, None] = field(default_factory=dict)  # each once
    last: str = ""

    def take(self, event: EffectActivity) -> None:
        """Count one more event in."""
        self._count_dropped(event)
        for note in event.entries:
            self.tool_calls += note.kind in TOOL_CALLS
            self.denied += note.kind == "denied"
            if note.kind == "edit" and note.target and note.ok is not False:
                self.edited.update(dict.fromkeys(_MORE.sub("", note.target).split(", ")))
            elif note.kind == "command":
                self._count_command(note)
            elif note.kind == "denied" and len(self.denials) < DENIALS_SHOWN:
                self.denials[note.text or note_line(note)] = None
            elif note.kind == "stderr" and len(self.stderr) < STDERR_SHOWN:
                self.stderr.append(note.text)
            elif note.kind == "warning" and len(self.warnings) < WARNINGS_SHOWN:
                self.warnings[note.text] = None
        shown = [note for note in event.entries if note.kind not in ("stderr", "warning")]
        if shown:
            self.last = note_line(shown[-1])

    def _count_dropped(self, event: EffectActivity) -> None:
        """Count what was not stored; an older version did not store the kinds."""
        kinds = event.dropped_by_kind
        self.dropped += event.dropped
        others = sum(count for kind, count in kinds.items() if kind not in TOOL_CALLS)
        self.tool_calls += event.dropped - others
        self.commands += kinds.get("command", 0)
        self.denied += kinds.get("denied", 0)
        self.failed_commands += event.dropped_failures

    def _count_command(self, note: ActivityNote) -> None:
        self.commands += 1
        if note.ok is False:
            self.failed_commands += 1
            if len(self.failed) < FAILED_SHOWN:
                how = f"exit {note.code}" if note.code is not None else "failed"
                self.failed.append(f"{note.target or note.tool} ({how})")

    def summary(self) -> ActivitySummary:
        return ActivitySummary(
            tool_calls=self.tool_calls,
            files_edited=len(self.edited),
            files=[*islice(self.edited, FILES_SHOWN)],
            commands=self.commands,
            failed_commands=self.failed_commands,
            failed=[*self.failed],
            denied=self.denied,
            denials=[*self.denials],
            stderr=[*self.stderr],
            warnings=[*self.warnings] or msgspec.UNSET,
            dropped=self.dropped,
        )


def counts_words(counts: ActivitySummary) -> str:
    """`12 tool calls, 3 files edited, 4 commands (1 failed)`; nothing for no activity."""
    files, commands, failed = counts.files_edited, counts.commands, counts.failed_commands
    parts = [calls_words(counts.tool_calls)]
    if files:
        parts.append(f"{files:,} file{'' if files == 1 else 's'} edited")
    if commands:
        parts.append(
            f"{commands:,} command{'' if commands == 1 else 's'}"
            + (f" ({failed:,} failed)" if failed else "")
        )
    if counts.denied:
        parts.append(f"{counts.denied:,} denied")
    return ", ".join(part for part in parts if part)


TEXT_CHARS = 200
CALL_ARGUMENT_CHARS = 60


def turn_words(state: State, event: TurnTaken, read: ReadText) -> str:
    """One line for a turn: its words, cut, and its calls."""
    owner = state.owners.get(event.path)
    body = owner.body if owner is not None else None
    answer = body.answer if isinstance(body, CycleBody) else None
    text = " ".join(read(answer.output).split()) if answer is not None else ""
    calls = ", ".join(call_words(note, read) for note in event.calls if note.id)
    parts = [_cut(text, TEXT_CHARS), f"[{calls}]" if calls else ""]
    return " ".join(part for part in parts if part)


def call_words(note: CallNote, read: ReadText) -> str:
    """A call: the tool, and the argument that tells most about it."""
    if note.problem:
        return f"{note.tool} (cannot be run: {_cut(note.problem, CALL_ARGUMENT_CHARS)})"
    held = " (held)" if note.held else ""
    return f"{note.tool}{_telling(read(note.arguments))}{held}"


def _telling(arguments: str) -> str:
    try:
        value: JsonValue = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return ""
    if not isinstance(value, dict):
        return ""
    first = next((value[name] for name in ("path", "argv", "pattern") if name in value), None)
    if isinstance(first, list):
        first = " ".join(str(one) for one in first)
    return f" {_cut(str(first), CALL_ARGUMENT_CHARS)}" if first else ""


def compressed_words(event: HistoryCompressed) -> str:
    """What was done to a conversation that became too long."""
    parts = []
    if event.dropped:
        how = "summed up" if event.summary is not None else "dropped"
        parts.append(f"{event.dropped} old entries {how}")
    if event.trimmed:
        parts.append(f"long results of {len(event.trimmed)} turns cut")
    note = f" ({event.note})" if event.note else ""
    return f"the conversation was made shorter: {', '.join(parts) or 'nothing to drop'}{note}"


def _cut(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


ARGUMENT_CHARS = 200
STDERR_LINES = 10

Kind: TypeAlias = Literal["agent", "command", "tool", "check", "person", "message", "end"]


class LogEntry(msgspec.Struct):
    """One entry of the transcript."""

    kind: Kind
    seq: int
    path: str
    iteration: int | None
    title: str
    text: str


class RunTranscript:
    """Events in, entries out."""

    def __init__(self, plan: Plan, read: ReadText) -> None:
        self._state = State(plan)
        self._read = read
        self._calls: dict[str, EffectRequested] = {}
        self._activity: dict[str, ActivityCounts] = {}

    def take(self, numbered: NumberedEvent) -> LogEntry | None:
        """Fold the next event; returns its entry, if it has one."""
        event = numbered.event
        shown_text = self._entry_text(event)
        apply(self._state, event)
        self._state.queues.agenda.clear()
        if isinstance(event, RunFinished):
            shown_text = ("end", final_line(self._state), event.error.detail if event.error else "")
        if shown_text is None:
            return None
        kind, title, text = shown_text
        return LogEntry(
            kind=kind,
            seq=numbered.seq,
            path=getattr(event, "path", ""),
            iteration=getattr(event, "iteration", None),
            title=title,
            text=text,
        )

    def _entry_text(self, event: AnyEvent) -> tuple[Kind, str, str] | None:
        match event:
            case EffectRequested():
                self._calls[event.effect] = event
                return None
            case EffectActivity():
                self._activity.setdefault(event.effect, ActivityCounts()).take(event)
                return self._reported(event)
            case EffectRepeated():
                return self._repeated(event)
            case EffectDone() | EffectFailed():
                return self._answered(event)
            case CheckVerdict() if is_turn(self._state, event.path):
                return None
            case CheckVerdict():
                text = shown_evidence(event.check, self._read(event.evidence))
                return "check", check_result(self._state, event), text
            case HistoryCompressed():
                return "message", "conversation", compressed_words(event)
            case GateOpened():
                about = f"\n{self._read(event.output)}" if event.call is not None else ""
                return "person", f"asked ({event.gate})", f"{event.message}{about}"
            case GateAnswered():
                return "person", f"{decided(event)} by {event.by or 'somebody'}", event.text
            case _:
                texts = written(event, self._read)
                return None if texts is None else ("message", *texts)

    def _repeated(self, event: EffectRepeated) -> tuple[Kind, str, str] | None:
        """Before the event is applied: it is one more attempt."""
        pending = self._state.pending.get(event.effect)
        if pending is None:
            return None
        agent = getattr(pending.call, "agent", "")
        return "agent", f"agent {agent}: interrupted", repeat_words(pending.repeats + 2)

    def _reported(self, event: EffectActivity) -> tuple[Kind, str, str] | None:
        """What people should see of activity: denied permissions with what allows them,
        warnings, and the end of standard error.
        """
        texts = {
            "permission denied": [
                note.text or note_line(note) for note in event.entries if note.kind == "denied"
            ],
            "warning": [note.text for note in event.entries if note.kind == "warning"],
            "standard error": [
                self._last_lines(note) for note in event.entries if note.kind == "stderr"
            ],
        }
        titles = [title for title, found in texts.items() if found]
        if not titles:
            return None
        request = self._calls.get(event.effect)
        agent = getattr(request.call, "agent", "") if request is not None else ""
        text = "\n".join(line for title in titles for line in texts[title])
        return "agent", f"agent {agent}: {', '.join(titles)}", text

    def _last_lines(self, note: ActivityNote) -> str:
        lines = self._read(note.result).splitlines()
        more = len(lines) - STDERR_LINES
        left_out = [f"({more} lines before; `logs --tools --json` has them)"] if more > 0 else []
        return "\n".join([*left_out, *lines[-STDERR_LINES:]])

    def _answered(
        self, event: EffectDone | EffectFailed
    ) -> tuple[Literal["agent", "command", "tool"], str, str] | None:
        request = self._calls.pop(event.effect, None)
        did = self._activity.pop(event.effect, ActivityCounts())
        output = seen_output(self._state, event, self._read)
        problem = event.error if isinstance(event, EffectFailed) else None
        if problem is not None:
            output = "\n".join(text for text in (output, problem.detail) if text)
        failed = f" failed ({problem.type})" if problem else ""
        if request is None:
            return None
        match request.call:
            case AgentCall(agent=agent) | ModelCall(agent=agent):
                words = counts_words(did.summary())
                return "agent", f"agent {agent}{failed}{f', {words}' if words else ''}", output
            case ToolCall(tool=tool, arguments=arguments):
                return "tool", f"{tool} {self._read(arguments)[:ARGUMENT_CHARS]}{failed}", output
            case CommandCall(argv=argv) if "/check" not in event.effect:
                return "command", f"{shlex.join(argv)}{failed}", output
            case CommandCall() | SleepCall() | LookupCall() | MatchCall() | SnapshotCall():
                return None
            case _:
                assert_never(request.call)
