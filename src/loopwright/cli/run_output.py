"""How a command shows the progress of a run: the views, and the choice between them.

`choose_view` selects the view: live on a terminal, plain lines otherwise, none with `--quiet`.
The live view is imported only when it is used, because it needs rich.
"""

import os
import sys
from collections.abc import Callable
from typing import Protocol

from loopwright.cli.terminal import Terminal, Tone, as_json, last_lines, one_line
from loopwright.kernel.events import RunFinished
from loopwright.ports import Delta, NumberedEvent
from loopwright.views.event_records import event_on_wire
from loopwright.views.progress import Progress, ProgressLine

EVIDENCE_LINES = 3
LONGEST_LINE = 2_000


class ProgressView(Protocol):
    """Shows one run. A run never depends on its view."""

    def begin(self, progress: Progress) -> None:
        """Everything up to now has been folded; from here on it is live."""

    def event(self, numbered: NumberedEvent, line: ProgressLine | None) -> None:
        """Something happened."""

    def said(self, delta: Delta) -> None:
        """An agent says something."""

    def tick(self) -> None:
        """A moment has passed."""

    def note(self, text: str) -> None:
        """Something about this process, not about the run."""

    def end(self) -> None:
        """Nothing more will be shown, or not until `begin`."""


class SilentView:
    """Shows nothing."""

    def begin(self, progress: Progress) -> None: ...

    def event(self, numbered: NumberedEvent, line: ProgressLine | None) -> None: ...

    def said(self, delta: Delta) -> None: ...

    def tick(self) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...


class PlainView(SilentView):
    """One line on stderr for each thing that matters."""

    def __init__(self, terminal: Terminal, label: str = "") -> None:
        self._terminal = terminal
        self._label = f"{label}  " if label else ""

    def event(self, numbered: NumberedEvent, line: ProgressLine | None) -> None:
        # The end is reported last, with the result.
        if line is not None and not isinstance(numbered.event, RunFinished):
            say_line(self._terminal, line, self._label)

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

    def event(self, numbered: NumberedEvent, line: ProgressLine | None) -> None:
        self._written.end()
        super().event(numbered, line)

    def end(self) -> None:
        self._written.end()


class JsonLinesView(PlainView):
    """Every event on stdout as it arrives; messages go to stderr."""

    def __init__(self, terminal: Terminal, run: str) -> None:
        super().__init__(terminal)
        self._run = run
        self._gone = False

    def event(self, numbered: NumberedEvent, line: ProgressLine | None) -> None:
        super().event(numbered, line)
        if self._gone:
            return
        try:
            sys.stdout.write(as_json(event_on_wire(self._run, numbered)) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self._gone = True  # the output was closed; the run continues


class FailSafeView:
    """A view that may break without harm: after its first failure nothing more is shown."""

    def __init__(self, view: ProgressView) -> None:
        self._view = view

    def begin(self, progress: Progress) -> None:
        self._show(lambda: self._view.begin(progress))

    def event(self, numbered: NumberedEvent, line: ProgressLine | None) -> None:
        self._show(lambda: self._view.event(numbered, line))

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
            self._view = SilentView()


def choose_view(
    terminal: Terminal, run: str, *, jsonl: bool, several: bool = False, text: bool = False
) -> ProgressView:
    """The view for a run. With `text` plain lines have what agents write, too."""
    view = _view(terminal, run, jsonl=jsonl, several=several)
    return FailSafeView(PlainTextView(terminal) if text and type(view) is PlainView else view)


def _view(terminal: Terminal, run: str, *, jsonl: bool, several: bool) -> ProgressView:
    if jsonl:
        return JsonLinesView(terminal, run)
    if terminal.quiet:
        return SilentView()
    if several:
        return PlainView(terminal, run)
    if _may_move(terminal):
        from loopwright.cli.live_display import LiveView  # noqa: PLC0415 - rich is needed here alone

        return LiveView(terminal)
    return PlainView(terminal)


def _may_move(terminal: Terminal) -> bool:
    """Whether stderr is a terminal on which lines may be drawn again."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return not (terminal.as_json and sys.stdout.isatty())
