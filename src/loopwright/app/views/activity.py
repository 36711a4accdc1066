"""What agents did in a run: entries as every interface shows them, and counts for summaries."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from loopwright.app.views.iteration_names import is_in_iteration, iteration_of
from loopwright.app.views.summary import ReadText
from loopwright.app.views.wire import fact_on_wire, text_of
from loopwright.kernel.facts import ActivityNote, EffectActivity
from loopwright.model.record import Blob, JsonValue, Text
from loopwright.ports import Numbered

TOOL_CALLS = frozenset({"tool", "command", "edit", "read", "fetch"})
FILES_SHOWN = 20
_MORE = re.compile(r" and \d+ more$")
FAILED_SHOWN = 5
DENIALS_SHOWN = 20
STDERR_SHOWN = 5
WARNINGS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityFilter:
    """Which entries are wanted; what is not given does not matter."""

    effect: str | None = None
    iteration: int | None = None
    attempt: int | None = None  # which try of the loop
    kind: str | None = None

    def takes_call(self, effect: str, path: str, iteration: int | None) -> bool:
        """Whether entries of this call may be wanted."""
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


def activity_items(
    facts: Iterable[Numbered], read: ReadText | None = None, wanted: ActivityFilter = ALL
) -> Iterator[dict[str, JsonValue]]:
    """The entries of events, in order. With `read`, arguments and results are whole; without, as
    far as the log itself holds them.
    """
    for numbered in facts:
        if isinstance(numbered.fact, EffectActivity):
            yield from items_of_event(fact_on_wire("", numbered), read, wanted)


def items_of_event(
    event: Mapping[str, JsonValue], read: ReadText | None = None, wanted: ActivityFilter = ALL
) -> Iterator[dict[str, JsonValue]]:
    """The same of one event as it travels."""
    effect, path, number = str(event["effect"]), str(event["path"]), event.get("iteration")
    iteration = number if isinstance(number, int) else None
    entries = event.get("entries")
    if not isinstance(entries, list) or not wanted.takes_call(effect, path, iteration):
        return
    for entry in entries:
        if not isinstance(entry, dict) or wanted.kind not in (None, entry["kind"]):
            continue
        arguments, result = _text(entry.get("arguments")), _text(entry.get("result"))
        yield {
            "seq": event["seq"],
            "number": entry["number"],
            "effect": effect,
            "path": path,
            "iteration": iteration_of(path, iteration),
            "agent": event.get("agent", ""),
            "at": entry["at"],
            "kind": entry["kind"],
            "tool": entry.get("tool", ""),
            "target": entry.get("target", ""),
            "ok": entry.get("ok"),
            "code": entry.get("code"),
            "ms": entry.get("ms"),
            "text": entry.get("text", ""),
            "arguments": (read or text_of)(arguments),
            "arguments_bytes": _size(arguments),
            "result": (read or text_of)(result),
            "result_bytes": _size(result),
        }


def count_dropped(
    counts: dict[str, int], fact: EffectActivity, wanted: ActivityFilter = ALL
) -> None:
    """Add the entries of an event that were not stored to the counts by call."""
    kind = wanted.kind
    dropped = fact.dropped if kind is None else fact.dropped_by_kind.get(kind, 0)
    if dropped and wanted.takes_call(fact.effect, fact.path, fact.iteration):
        counts[fact.effect] = counts.get(fact.effect, 0) + dropped


def dropped_in(event: Mapping[str, JsonValue], wanted: ActivityFilter = ALL) -> dict[str, int]:
    """The same of one event as it travels."""
    effect, path, number = str(event["effect"]), str(event["path"]), event.get("iteration")
    iteration, dropped = number if isinstance(number, int) else None, event.get("dropped")
    if not isinstance(dropped, int) or not dropped:
        return {}
    return {effect: dropped} if wanted.takes_call(effect, path, iteration) else {}


def noting_dropped(
    facts: Iterable[Numbered], counts: dict[str, int], wanted: ActivityFilter = ALL
) -> Iterator[Numbered]:
    """Hand events on and count what was not stored."""
    for numbered in facts:
        if isinstance(numbered.fact, EffectActivity):
            count_dropped(counts, numbered.fact, wanted)
        yield numbered


def _text(value: JsonValue) -> Text:
    return msgspec.convert(value, Blob) if isinstance(value, dict) else str(value or "")


def _size(text: Text) -> int:
    return text.size if isinstance(text, Blob) else len(text.encode())


def outcome_words(item: Mapping[str, JsonValue]) -> str:
    """How an entry ended, in one word or two: `ok`, `exit 1`, `failed`, or nothing."""
    if item["kind"] == "denied":
        return "denied"
    if item["code"] not in (None, 0):
        return f"exit {item['code']}"
    return "" if item["ok"] is None else ("ok" if item["ok"] else "failed")


def note_line(note: ActivityNote) -> str:
    """An entry in one short line, for a status line."""
    words = f"{note.tool} {note.target}".strip() or note.text
    bad = note.kind == "denied" or note.ok is False
    how = "denied" if note.kind == "denied" else (f"exit {note.code}" if note.code else "failed")
    return f"{words} ({how})" if bad else words


def notable_words(fact: EffectActivity) -> list[str]:
    """What people are shown of activity as it happens: denied permissions, statuses and
    warnings.
    """
    notable = (note for note in fact.entries if note.kind in ("denied", "status", "warning"))
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
    denials: dict[str, None] = field(default_factory=dict)  # in words, each once
    stderr: list[str] = field(default_factory=list)  # the last line of each call that has any
    warnings: dict[str, None] = field(default_factory=dict)  # each once
    last: str = ""

    def take(self, fact: EffectActivity) -> None:
        """Count one more event in."""
        self._take_dropped(fact)
        for note in fact.entries:
            self.tool_calls += note.kind in TOOL_CALLS
            self.denied += note.kind == "denied"
            if note.kind == "edit" and note.target and note.ok is not False:
                self.edited.update(dict.fromkeys(_MORE.sub("", note.target).split(", ")))
            elif note.kind == "command":
                self._take_command(note)
            elif note.kind == "denied" and len(self.denials) < DENIALS_SHOWN:
                self.denials[note.text or note_line(note)] = None
            elif note.kind == "stderr" and len(self.stderr) < STDERR_SHOWN:
                self.stderr.append(note.text)
            elif note.kind == "warning" and len(self.warnings) < WARNINGS_SHOWN:
                self.warnings[note.text] = None
        shown = [note for note in fact.entries if note.kind not in ("stderr", "warning")]
        if shown:
            self.last = note_line(shown[-1])

    def _take_dropped(self, fact: EffectActivity) -> None:
        """Count what was not stored; an older version did not store the kinds."""
        kinds = fact.dropped_by_kind
        self.dropped += fact.dropped
        others = sum(count for kind, count in kinds.items() if kind not in TOOL_CALLS)
        self.tool_calls += fact.dropped - others
        self.commands += kinds.get("command", 0)
        self.denied += kinds.get("denied", 0)
        self.failed_commands += fact.dropped_failures

    def _take_command(self, note: ActivityNote) -> None:
        self.commands += 1
        if note.ok is False:
            self.failed_commands += 1
            if len(self.failed) < FAILED_SHOWN:
                how = f"exit {note.code}" if note.code is not None else "failed"
                self.failed.append(f"{note.target or note.tool} ({how})")

    def as_dict(self) -> dict[str, JsonValue]:
        files: list[JsonValue] = [*islice(self.edited, FILES_SHOWN)]
        return {
            "tool_calls": self.tool_calls,
            "files_edited": len(self.edited),
            "files": files,
            "commands": self.commands,
            "failed_commands": self.failed_commands,
            "failed": [*self.failed],
            "denied": self.denied,
            "denials": [*self.denials],
            "stderr": [*self.stderr],
            **({"warnings": [*self.warnings]} if self.warnings else {}),
            "dropped": self.dropped,
        }


def counts_words(counts: Mapping[str, JsonValue]) -> str:
    """`12 tool calls, 3 files edited, 4 commands (1 failed)`; nothing for no activity."""
    files, commands = int(str(counts["files_edited"])), int(str(counts["commands"]))
    failed, denied = int(str(counts["failed_commands"])), int(str(counts["denied"]))
    parts = [calls_words(int(str(counts["tool_calls"])))]
    if files:
        parts.append(f"{files:,} file{'' if files == 1 else 's'} edited")
    if commands:
        parts.append(
            f"{commands:,} command{'' if commands == 1 else 's'}"
            + (f" ({failed:,} failed)" if failed else "")
        )
    if denied:
        parts.append(f"{denied:,} denied")
    return ", ".join(part for part in parts if part)
