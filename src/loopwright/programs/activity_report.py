"""Report what a coding agent does while it works: as entries of activity and to the live view."""

import time
from collections.abc import Callable, Iterable

from loopwright.agents.clis.denials import denial_words
from loopwright.agents.clis.heard import Heard, Said, note
from loopwright.agents.clis.tool_calls import Act
from loopwright.model.plan import Agent
from loopwright.ports import ActivityEntry, Bus, Delta, Job

STDERR_CHARS = 32 * 1_024
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


def record_stderr(job: Job, text: str) -> None:
    """Record the end of what a program wrote to standard error during a call that succeeded. When
    a call fails, its failure has it.
    """
    said = job.activity.redact(text).strip()
    if not said:
        return
    kept = said
    if len(said) > STDERR_CHARS:  # not from the middle of a line, where half of a secret may be
        kept = said[-STDERR_CHARS:].partition("\n")[2] or "(one long line; not stored)"
    last = kept.rpartition("\n")[2].strip()
    job.activity.record(ActivityEntry(kind="stderr", text=last, result=kept))


def record_warnings(job: Job, texts: Iterable[str]) -> None:
    """Record what people should know about a call; `logs` and `show` print it."""
    for text in texts:
        job.activity.record(ActivityEntry(kind="warning", text=job.activity.redact(text)))


class ActivityReport:
    """Hands on what one call did and said. `program` names the agent's program."""

    def __init__(self, bus: Bus, job: Job, agent: Agent, program: str) -> None:
        self._bus = bus
        self._job = job
        self._agent = agent
        self._program = program

    def keep_stream(self, chunk: bytes) -> None:
        """Keep the agent's own output."""
        self._job.activity.keep_stream(chunk)

    def say(self, said: Said) -> None:
        """Show something while the agent works."""
        job = self._job
        self._bus.publish(Delta(run=job.run, effect=job.effect, kind=said.kind, text=said.text))

    def record(self, heard: Heard) -> None:
        """Record what has been read. A denied permission is shown at once."""
        for act in heard.drain():
            entry = self._entry(act)
            self._job.activity.record(entry)
            if act.kind == "denied":
                self.say(note(entry.text))

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
