"""The live view of a run on a terminal.

Finished iterations are printed once and stay in the scroll-back. Below them the current state
is redrawn in place: goal, iterations, text of the agent, checks and cost. It fits the terminal,
down to a single line, and shows nothing by colour alone.
"""

import sys
import time

from rich.console import Console, Group
from rich.live import Live as Area
from rich.text import Text

from loopwright.cli.formats import duration, tokens
from loopwright.cli.run_output import ProgressView
from loopwright.cli.terminal import Terminal, cut, last_lines, one_line
from loopwright.client.transport import SeenEvent
from loopwright.kernel.events import (
    AnyEvent,
    EffectActivity,
    EffectFailed,
    EffectRepeated,
    TurnTaken,
)
from loopwright.model.ids import SnapshotPurpose
from loopwright.ports import Delta
from loopwright.ports.headline import iterations, iterations_text, most_iterations, status_of
from loopwright.views.formats import cost_text, evidence_below, labelled, money, place_words
from loopwright.views.progress import CheckSeen, IterationSeen, Progress
from loopwright.views.status_text import goal

REDRAW_S = 0.1
SMALL_ROWS, SMALL_COLUMNS = 8, 40
MOST_TEXT_LINES = 10
EVIDENCE_LINES = 3
_STYLE = {"pass": "green", "fail": "yellow"}


class LiveView(ProgressView):
    """Shows one run on a terminal."""

    def __init__(self, terminal: Terminal, console: Console | None = None) -> None:
        self._console = console or Console(
            file=sys.stderr,
            no_color=not terminal.has_color(sys.stderr),
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=False,
        )
        self._signs = terminal.has_signs(sys.stderr)
        self._area: Area | None = None
        self._progress: Progress | None = None
        self._printed = 0
        self._drawn_at = 0.0
        self._note = ""

    # -- what the drive tells ----------------------------------------------------------------------

    def begin(self, progress: Progress) -> None:
        if self._progress is None:
            self._printed = sum(seen.status != "running" for seen in progress.passes)
        self._progress = progress
        self._area = Area(
            self._picture(),
            console=self._console,
            auto_refresh=False,
            transient=True,
            vertical_overflow="crop",
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._area.start()

    def event(self, seen: SeenEvent) -> None:
        self._print_finished()
        line, event = seen.line, seen.numbered.event if seen.numbered is not None else None
        is_warning = isinstance(event, EffectActivity | EffectRepeated) or _is_snapshot_failure(
            event
        )
        if line is not None and self._area is not None:
            words = [line.text, *line.detail.splitlines()] if is_warning else []
            for one in [line.text] if isinstance(event, TurnTaken) else words:
                text = Text(cut(one_line(one), self._console.width), "yellow" if is_warning else "")
                self._console.print(text, overflow="crop", no_wrap=True)
        self._draw()

    def said(self, delta: Delta) -> None:
        self._draw()

    def tick(self) -> None:
        self._draw()

    def note(self, text: str) -> None:
        self._note = text
        self._draw(now=True)

    def end(self) -> None:
        if self._area is not None:
            self._print_finished()
            self._area.stop()
            self._area = None

    # -- drawing -----------------------------------------------------------------------------------

    def _draw(self, *, now: bool = False) -> None:
        moment = time.monotonic()
        if self._area is None or (not now and moment - self._drawn_at < REDRAW_S):
            return
        self._drawn_at = moment
        self._area.update(self._picture(), refresh=True)

    def _print_finished(self) -> None:
        """Print each finished iteration once, above the live display."""
        progress = self._progress
        if progress is None or self._area is None:
            return
        while self._printed < len(progress.passes):
            seen = progress.passes[self._printed]
            if seen.status == "running":
                return
            self._printed += 1
            lines = self._iteration_lines(seen, self._console.width)
            self._console.print(Group(*lines), overflow="crop", no_wrap=True)

    def _iteration_lines(self, seen: IterationSeen, width: int) -> list[Text]:
        good = seen.done
        sign = ("✓" if good else "·") if self._signs else ("+" if good else "-")
        text = f"{sign} {place_words(seen.path) or f'iteration {seen.number}'}"
        if seen.status != "completed":
            text += f" ({seen.status})"
        lines = [Text(cut(f"{text}: {one_line(seen.learning)}", width), "green" if good else "")]
        for check in seen.checks:
            lines += self._check_lines(check, width)
        return lines

    def _check_lines(self, check: CheckSeen, width: int) -> list[Text]:
        sign = (
            ("✓" if check.verdict == "pass" else "✗") if self._signs else check.verdict[0].upper()
        )
        said = labelled(check.label, check.verdict, check.evidence, check.by)
        text = f"    {sign} {one_line(said)}"
        lines = [Text(cut(text, width), _STYLE.get(check.verdict, "red"))]
        if check.verdict != "pass":
            tail = last_lines(evidence_below(check.label, check.evidence), EVIDENCE_LINES)
            lines += [Text(cut(f"      {one_line(line)}", width), "dim") for line in tail]
        return lines

    def _picture(self) -> Group:
        progress = self._progress
        assert progress is not None
        width, height = self._console.size
        if height < SMALL_ROWS or width < SMALL_COLUMNS:
            return Group(Text(cut(self._one_line(progress), max(width - 1, 1)), no_wrap=True))
        head = self._head(progress, width)
        foot = self._foot(progress, width)
        checks = [
            line
            for check in (progress.newest.checks if progress.newest else [])
            for line in self._check_lines(check, width)
        ]
        room = min(MOST_TEXT_LINES, max(1, height - len(head) - len(foot) - len(checks) - 2))
        said = last_lines(progress.said, room)
        bar = "│" if self._signs else "|"
        body = [Text(cut(f"  {bar} {one_line(line)}", width)) for line in said]
        lines = [*head, *body, *checks[: max(0, height - len(head) - len(body) - len(foot) - 1)]]
        return Group(*lines, *foot)

    def _head(self, progress: Progress, width: int) -> list[Text]:
        state = progress.state
        lines = [Text(cut(one_line(goal(state)), width), "bold")]
        made, most = iterations(state), most_iterations(state)
        label = f"iteration {made}/{most}" if most else f"iteration {made}"
        activity = f"  {one_line(progress.activity)}" if progress.activity else ""
        if most:
            lines.append(Text(cut(f"{self._bar(made, most, width)} {label}{activity}", width)))
        else:
            lines.append(Text(cut(f"{label}{activity}" if made else activity.strip(), width)))
        if progress.status:
            lines.append(Text(cut(f"  status: {one_line(progress.status)}", width), "yellow"))
        return lines

    def _bar(self, made: int, most: int, width: int) -> str:
        cells = max(8, min(30, width // 3))
        full = round(cells * min(made, most) / most)
        filled, empty = ("█", "░") if self._signs else ("#", "-")
        return filled * full + empty * (cells - full)

    def _foot(self, progress: Progress, width: int) -> list[Text]:
        parts = [progress.state.run, self._elapsed(progress), *self._spent(progress)]
        dot = " · " if self._signs else " | "
        lines = [Text(cut(dot.join(part for part in parts if part), width), "dim")]
        notes = self._note.splitlines()
        return [*lines, *(Text(cut(one_line(note), width), "yellow") for note in notes)]

    def _spent(self, progress: Progress) -> list[str]:
        usage, limits = progress.state.usage, progress.state.plan.limits
        used = usage.input_tokens + usage.output_tokens
        parts = []
        if usage.usd or usage.unpriced or limits.usd is not None:
            of = f" of {money(limits.usd)}" if limits.usd is not None else ""
            words = "cost " if usage.unpriced and not usage.usd else ""
            parts.append(f"{words}{cost_text(usage.usd, usage.unpriced)}{of}")
        if used or limits.tokens is not None:
            of = f" of {tokens(limits.tokens)}" if limits.tokens is not None else ""
            parts.append(f"{tokens(used)}{of} tokens")
        return parts

    @staticmethod
    def _elapsed(progress: Progress) -> str:
        return duration(int(time.time() * 1_000) - progress.started_at)

    def _one_line(self, progress: Progress) -> str:
        status = status_of(progress.state)
        passes = iterations_text(progress.state)
        return f"{passes} {status} {self._elapsed(progress)}".strip()


def _is_snapshot_failure(event: AnyEvent | None) -> bool:
    return isinstance(event, EffectFailed) and isinstance(event.purpose, SnapshotPurpose)
