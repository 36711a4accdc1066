"""Watching a run: the ways in which what happens is shown while it happens."""

import sys
from collections.abc import Callable
from typing import Protocol

from loopwright.app.views.progress import Line, Progress
from loopwright.app.views.wire import fact_on_wire
from loopwright.cli.door import Door, Tone, as_json
from loopwright.cli.texts import last_lines, one_line
from loopwright.kernel.facts import RunFinished
from loopwright.ports import Delta, Numbered

EVIDENCE_LINES = 3
LONGEST_LINE = 2_000


class View(Protocol):
    """Shows one run. What it shows is a matter of taste; a run never depends on it."""

    def begin(self, progress: Progress) -> None:
        """Everything up to now has been folded; from here on it is live."""

    def fact(self, numbered: Numbered, line: Line | None) -> None:
        """Something happened."""

    def said(self, delta: Delta) -> None:
        """An agent says something."""

    def tick(self) -> None:
        """A moment has passed."""

    def note(self, text: str) -> None:
        """Something about this process, not about the run."""

    def end(self) -> None:
        """Nothing more will be shown, or not until `begin`."""


class Silent:
    """Shows nothing."""

    def begin(self, progress: Progress) -> None: ...

    def fact(self, numbered: Numbered, line: Line | None) -> None: ...

    def said(self, delta: Delta) -> None: ...

    def tick(self) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self) -> None: ...


class Plain(Silent):
    """One line on stderr for each thing that matters."""

    def __init__(self, door: Door, label: str = "") -> None:
        self._door = door
        self._label = f"{label}  " if label else ""

    def fact(self, numbered: Numbered, line: Line | None) -> None:
        # How it ended is told last, with the result.
        if line is not None and not isinstance(numbered.fact, RunFinished):
            say_line(self._door, line, self._label)

    def note(self, text: str) -> None:
        self._door.say(text)


def say_line(door: Door, line: Line, label: str = "") -> None:
    """One thing that happened, and how what it says ends."""
    tone: Tone = "plain" if line.good is None else ("good" if line.good else "warn")
    door.say(f"{label}{one_line(line.text)}", tone=tone)
    for text in last_lines(line.detail, 0 if line.good else EVIDENCE_LINES):
        door.say(f"{label}    {text}", tone="dim")


class WrittenLines:
    """Text as agents write it, line by line on stderr."""

    def __init__(self, door: Door) -> None:
        self._door, self._rest = door, ""

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
            self._door.say(f"  | {one_line(line)}", tone="dim")


class PlainText(Plain):
    """Plain lines, and what agents write between them."""

    def __init__(self, door: Door) -> None:
        super().__init__(door)
        self._written = WrittenLines(door)

    def said(self, delta: Delta) -> None:
        self._written.take(delta.kind, delta.text)

    def fact(self, numbered: Numbered, line: Line | None) -> None:
        self._written.end()
        super().fact(numbered, line)

    def end(self) -> None:
        self._written.end()


class JsonLines(Plain):
    """Every fact on stdout as it comes; talk stays on stderr."""

    def __init__(self, door: Door, run: str) -> None:
        super().__init__(door)
        self._run = run
        self._gone = False

    def fact(self, numbered: Numbered, line: Line | None) -> None:
        super().fact(numbered, line)
        if self._gone:
            return
        try:
            sys.stdout.write(as_json(fact_on_wire(self._run, numbered)) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self._gone = True  # nobody reads any more; the run goes on


class Careful:
    """A view that may break without harm: after its first failure nothing more is shown."""

    def __init__(self, view: View) -> None:
        self._view = view

    def begin(self, progress: Progress) -> None:
        self._show(lambda: self._view.begin(progress))

    def fact(self, numbered: Numbered, line: Line | None) -> None:
        self._show(lambda: self._view.fact(numbered, line))

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
        except Exception:  # the terminal may have gone, and the run is worth more than its picture
            self._view = Silent()
