"""What an agent does while it works: entries of activity, and text for the live view.

Losing a part of the live view does no harm; the entries are recorded.
"""

import time
from collections.abc import Callable
from typing import Literal

from loopwright.agents.calls import UNKNOWN_COST
from loopwright.agents.clis.catalogue import denial_words
from loopwright.agents.clis.event_stream import LineSplitter
from loopwright.agents.clis.transcript import Act, LiveEntry, Transcript, note
from loopwright.agents.json_lines import JsonLinesAnswer, ToolUses, entry_of, live_words, tool_of
from loopwright.agents.processes.process import RunningProgram
from loopwright.kernel.event_parts import Failure
from loopwright.kernel.events import Usage
from loopwright.model.plan import Agent
from loopwright.ports import ActivityEntry, Bus, Delta, EffectJob

MonotonicMs = Callable[[], int]


def monotonic_ms() -> int:
    """Milliseconds by a clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


def local_time(seconds: int) -> str:
    """The time of day of a moment, as the clock of this machine shows it; with the day if that is
    not today.
    """
    moment = time.localtime(seconds)
    today = time.localtime()
    same_day = (moment.tm_year, moment.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M" if same_day else "%b %d %H:%M", moment)


class ActivityReport:
    """Passes on the activity and text of one call. `program` names the agent's program."""

    def __init__(self, bus: Bus, job: EffectJob, agent: Agent, program: str) -> None:
        self._bus = bus
        self._job = job
        self._agent = agent
        self._program = program

    def keep_stream(self, chunk: bytes) -> None:
        """Store the agent's own output."""
        self._job.activity.keep_stream(chunk)

    def show(self, words: LiveEntry) -> None:
        """Show something while the agent works."""
        job = self._job
        self._bus.publish(Delta(run=job.run, effect=job.effect, kind=words.kind, text=words.text))

    def record(self, transcript: Transcript) -> None:
        """Record what has been read. A denied permission is shown at once."""
        for act in transcript.drain():
            entry = self._entry(act)
            self._job.activity.record(entry)
            if act.kind == "denied":
                self.show(note(entry.text))

    def _entry(self, act: Act) -> ActivityEntry:
        text = act.text
        if act.kind == "denied" and not text:
            text = denial_words(self._program, self._agent, act.tool, act.target)
        return ActivityEntry(
            kind=act.kind,
            tool=act.tool,
            target=act.target,
            ok=act.ok,
            code=act.code,
            ms=act.ms,
            text=text,
            arguments=act.arguments,
            result=act.result,
        )


class LiveCost:
    """Adds up the usage lines of a running program, and ends it when a budget is exceeded."""

    def __init__(
        self, price: Callable[[str, Usage], Usage], over: Callable[[Usage], Failure | None]
    ) -> None:
        self._spoken = JsonLinesAnswer(price)
        self._over = over
        self._running: RunningProgram | None = None
        self.failure: Failure | None = None

    def begin(self, running: RunningProgram) -> None:
        self._running = running
        running.end_input()
        self._over(UNKNOWN_COST)  # until the program reports it

    @property
    def usage(self) -> Usage | None:
        """What the usage lines add up to, also those that are not among the stored output."""
        return self._spoken.usage

    def add_line(self, raw: bytes) -> None:
        """Process a usage line."""
        self._spoken.add_line(raw)
        if self.failure is None and self._spoken.usage is not None:
            self.failure = self._over(self._spoken.usage)
            if self.failure is not None and self._running is not None:
                self._running.finish(0.0)


class LiveLines:
    """Forwards the JSON lines of one program."""

    def __init__(self, bus: Bus, job: EffectJob, usage: LiveCost, talk: ToolUses | None) -> None:
        self._usage = usage
        self._bus = bus
        self._job = job
        self._talk = talk
        self._split = LineSplitter()

    def __call__(self, chunk: bytes) -> bool:
        """Process bytes; true if the program has submitted its result."""
        self._job.activity.keep_stream(chunk)
        return self._read_lines(self._split.feed(chunk))

    def end(self) -> None:
        """The program has ended: a last line without an end is a line."""
        self._read_lines(self._split.last())

    @property
    def notes(self) -> list[str]:
        """What people should know about the lines of the program."""
        cut = self._split.cut
        lines = "1 line was" if cut == 1 else f"{cut:,} lines were"
        return [f"{lines} too long and not read as an event"] if cut else []

    def _read_lines(self, lines: list[bytes]) -> bool:
        has_result = False
        for raw in lines:
            live = JsonLinesAnswer()
            line = live.add_line(raw)
            has_result = has_result or (line is not None and line.type == "result")
            if line is not None and self._talk is not None:
                has_result = self._talk.handle(line) or has_result
            if line is not None and line.type == "usage":
                self._usage.add_line(raw)
            if line is not None and line.type == "tool":
                entry = entry_of(tool_of(line))
                words = live_words(entry)
                self._publish(words.kind, words.text)
                self._job.activity.record(entry)
            elif live.texts:
                self._publish("text", "".join(live.texts))
        return has_result

    def _publish(self, kind: Literal["text", "tool", "note"], text: str) -> None:
        job = self._job
        self._bus.publish(Delta(run=job.run, effect=job.effect, kind=kind, text=text))
