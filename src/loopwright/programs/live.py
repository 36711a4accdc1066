"""What a program says while it says it, handed on to whoever looks. Losing some harms nothing."""

from codecs import getincrementaldecoder
from collections.abc import Callable
from typing import Literal

from loopwright.agents.clis.stream import Lines
from loopwright.kernel.facts import Failure, Usage
from loopwright.ports import Bus, Delta, Job
from loopwright.programs.cost import UNKNOWN_COST
from loopwright.programs.jsonl import Spoken, tool_of
from loopwright.programs.process import Running
from loopwright.programs.reported_tools import entry_of, live_words
from loopwright.programs.talking import Conversation


class LiveCost:
    """Adds up the usage lines of a program under way, and ends it when a budget is exceeded."""

    def __init__(
        self, price: Callable[[str, Usage], Usage], over: Callable[[Usage], Failure | None]
    ) -> None:
        self._spoken = Spoken(price)
        self._over = over
        self._running: Running | None = None
        self.failure: Failure | None = None

    def begin(self, running: Running) -> None:
        self._running = running
        running.end_input()
        self._over(UNKNOWN_COST)  # until the program reports it

    @property
    def usage(self) -> Usage | None:
        """What the usage lines add up to, also those that are not among the stored output."""
        return self._spoken.usage

    def take(self, raw: bytes) -> None:
        """Take a usage line in."""
        self._spoken.take(raw)
        if self.failure is None and self._spoken.usage is not None:
            self.failure = self._over(self._spoken.usage)
            if self.failure is not None and self._running is not None:
                self._running.finish(0.0)


class Live:
    """Hands on the output of one program."""

    def __init__(
        self,
        bus: Bus,
        job: Job,
        *,
        lines: bool,
        talk: Conversation | None = None,
        usage: LiveCost | None = None,
    ) -> None:
        self._usage = usage
        self._bus = bus
        self._job = job
        self._lines = lines
        self._talk = talk
        self._split = Lines()
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")

    def __call__(self, chunk: bytes) -> bool:
        """Take the next bytes; true when the program has given its result."""
        self._job.activity.keep_stream(chunk)
        if self._lines:
            return self._take_lines(self._split.feed(chunk))
        text = self._decoder.decode(chunk)
        if text:
            self._tell("text", text)
        return False

    def end(self) -> None:
        """The program has ended: a last line without an end is a line."""
        if self._lines:
            self._take_lines(self._split.last())

    @property
    def notes(self) -> list[str]:
        """What people should know about the lines of the program."""
        cut = self._split.cut
        lines = "1 line was" if cut == 1 else f"{cut:,} lines were"
        return [f"{lines} too long and not read as an event"] if cut else []

    def _take_lines(self, lines: list[bytes]) -> bool:
        has_result = False
        for raw in lines:
            live = Spoken()
            line = live.take(raw)
            has_result = has_result or (line is not None and line.type == "result")
            if line is not None and self._talk is not None:
                has_result = self._talk.take(line) or has_result
            if line is not None and line.type == "usage" and self._usage is not None:
                self._usage.take(raw)
            if line is not None and line.type == "tool":
                entry = entry_of(tool_of(line))
                said = live_words(entry)
                self._tell(said.kind, said.text)
                self._job.activity.record(entry)
            elif live.texts:
                self._tell("text", "".join(live.texts))
        return has_result

    def _tell(self, kind: Literal["text", "tool", "note"], text: str) -> None:
        job = self._job
        self._bus.publish(Delta(run=job.run, effect=job.effect, kind=kind, text=text))
