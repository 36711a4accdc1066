"""Views of the progress of a run: plain lines, JSON lines, and none. The live one needs rich."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from loopwright.cli.terminal import Terminal, Tone, as_json, last_lines, one_line
from loopwright.client.transport import SeenEvent
from loopwright.kernel.events import RunFinished
from loopwright.ports import Delta
from loopwright.views.event_records import event_on_wire
from loopwright.views.progress import Progress, ProgressLine

EVIDENCE_LINES = 3
LONGEST_LINE = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachOptions:
    """How runs are followed and shown."""

    no_wait: bool = False
    jsonl: bool = False
    several: bool = False
    watches: bool = False  # the command drives nothing; text of agents is shown as well
    foreign_codes: bool = False  # exit codes of the system that the definition was written for


class ProgressView:
    """Shows one run; this one shows nothing. A run never depends on its view."""

    def begin(self, progress: Progress) -> None:
        """Everything up to now has been folded; from here on it is live."""

    def event(self, seen: SeenEvent) -> None:
        """Something happened."""

    def said(self, delta: Delta) -> None:
        """An agent says something."""

    def tick(self) -> None:
        """A moment has passed."""

    def note(self, text: str) -> None:
        """Something about this process, not about the run."""

    def end(self) -> None:
        """Nothing more will be shown, or not until `begin`."""


class PlainView(ProgressView):
    """One line on stderr for each thing that matters."""

    def __init__(self, terminal: Terminal, label: str = "") -> None:
        self._terminal = terminal
        self._label = f"{label}  " if label else ""

    def event(self, seen: SeenEvent) -> None:
        # The end is reported last, with the result.
        is_end = seen.numbered is not None and isinstance(seen.numbered.event, RunFinished)
        if seen.line is not None and not is_end:
            say_line(self._terminal, seen.line, self._label)

    def note(self, text: str) -> None:
        self._terminal.say(text)


def say_line(terminal: Terminal, line: ProgressLine, label: str = "") -> None:
    """One event, and the end of its text."""
    tone: Tone = "plain" if line.good is None else ("good" if line.good else "warn")
    terminal.say(f"{label}{one_line(line.text)}", tone=tone)
    for text in last_lines(line.detail, 0 if line.good else EVIDENCE_LINES):
        terminal.say(f"{label}    {text}", tone="dim")


class WrittenLines:
    """Text as agents write it, line by line on stderr."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal, self._rest = terminal, ""

    def take(self, kind: str, text: str) -> None:
        if kind != "text":
            self.end()
            self._show(f"[{text}]")
            return
        *lines, self._rest = f"{self._rest}{text}".split("\n")
        for line in lines:
            self._show(line)
        if len(self._rest) > LONGEST_LINE:
            self.end()

    def end(self) -> None:
        if self._rest.strip():
            self._show(self._rest)
        self._rest = ""

    def _show(self, line: str) -> None:
        if line.strip():
            self._terminal.say(f"  | {one_line(line)}", tone="dim")


class PlainTextView(PlainView):
    """Plain lines, and what agents write between them."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__(terminal)
        self._written = WrittenLines(terminal)

    def said(self, delta: Delta) -> None:
        self._written.take(delta.kind, delta.text)

    def event(self, seen: SeenEvent) -> None:
        self._written.end()
        super().event(seen)

    def end(self) -> None:
        self._written.end()


class JsonLinesView(PlainView):
    """Every event on stdout as it arrives; messages go to stderr."""

    def __init__(self, terminal: Terminal, run: str) -> None:
        super().__init__(terminal)
        self._run = run
        self._gone = False

    def event(self, seen: SeenEvent) -> None:
        super().event(seen)
        if self._gone:
            return
        record = seen.record
        if record is None and seen.numbered is not None:
            record = event_on_wire(self._run, seen.numbered)
        try:
            sys.stdout.write(as_json(record) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self._gone = True  # the output was closed; the run continues


class FailSafeView(ProgressView):
    """A view that may break without harm: after its first failure nothing more is shown."""

    def __init__(self, view: ProgressView) -> None:
        self._view = view

    def begin(self, progress: Progress) -> None:
        self._show(lambda: self._view.begin(progress))

    def event(self, seen: SeenEvent) -> None:
        self._show(lambda: self._view.event(seen))

    def said(self, delta: Delta) -> None:
        self._show(lambda: self._view.said(delta))

    def tick(self) -> None:
        self._show(lambda: self._view.tick())

    def note(self, text: str) -> None:
        self._show(lambda: self._view.note(text))

    def end(self) -> None:
        self._show(lambda: self._view.end())

    def _show(self, action: Callable[[], None]) -> None:
        try:
            action()
        # the terminal may have been closed, and the run matters more than its display
        except Exception:
            self._view = ProgressView()
