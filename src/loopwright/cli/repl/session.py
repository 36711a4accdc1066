"""State of a prompt: the local runs, and the runs whose progress it prints."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from loopwright.cli.run_output import FailSafeView, PlainView, ProgressView
from loopwright.cli.terminal import Terminal, Tone, last_lines, one_line
from loopwright.client.transport import SeenEvent
from loopwright.operations.run_request import RunStart
from loopwright.operations.run_start import launch_run
from loopwright.operations.run_workspaces import start_notes
from loopwright.operations.use_cases.operation import App, Caller, local_app, local_caller
from loopwright.operations.wiring import Local
from loopwright.ports import Delta
from loopwright.ports.headline import status_of
from loopwright.syntax.document import suggest
from loopwright.views.progress import Progress
from loopwright.views.status_text import answering
from loopwright.views.summary import final_line

OUTPUT_LINES = 20
SHORT = 6  # of the end of an id, which is what tells two runs of one day apart
_SYNONYMS = {
    **dict.fromkeys(("show", "watch", "info", "inspect", "logs", "get"), "status"),
    **dict.fromkeys(("run", "new", "create"), "start"),
    **dict.fromkeys(("cancel", "kill", "end", "abort"), "stop"),
    **dict.fromkeys(("continue", "restart"), "resume"),
    **dict.fromkeys(("message", "say", "send"), "tell"),
    **dict.fromkeys(("ls", "list", "all"), ""),
}
"""What people write instead of the second word of a command."""
_TONES: dict[str, Tone] = {"completed": "good", "failed": "bad", "exhausted": "warn"}


def short_run_id(run: str) -> str:
    """A run as it is named in lines; every command takes this too."""
    return run[-SHORT:]


def suggest_command(words: Sequence[str], known: Sequence[str]) -> str | None:
    """The command that was probably meant: by another word for the same, else by its spelling."""
    first, second = words[0], words[1] if len(words) > 1 else ""
    meant = f"{first} {_SYNONYMS[second]}".strip() if second in _SYNONYMS else ""
    return meant if meant in known else suggest(" ".join(words[:2]), known)


class ShownRun:
    """A run in this process: its events are printed as they happen."""

    def __init__(self, terminal: Terminal, here: Local, run: str, *, seen: int = 0) -> None:
        self.run = run
        self._terminal = terminal
        self._here = here
        self.progress = Progress(
            here.service.plan(here.service.events(run)[0].event), here.service.read_text
        )
        for numbered in here.service.events(run):
            if numbered.seq <= seen:
                self.progress.take(numbered)
        self._view: ProgressView = FailSafeView(PlainView(terminal, short_run_id(run)))
        self._partial_line = ""
        self._status = ""

    def pull(self) -> None:
        """Print what is new."""
        for numbered in self._here.service.events(self.run, after=self.progress.seen):
            self._flush()
            self._view.event(SeenEvent(numbered, self.progress.take(numbered)))
        status = status_of(self.progress.state)
        if status != self._status:
            self._status = status
            self._print_status(status)

    def hear(self, delta: Delta) -> None:
        """The output of an agent is printed line by line, as its lines become complete."""
        if delta.kind != "text":
            return
        *whole, self._partial_line = (self._partial_line + delta.text).split("\n")
        for line in whole:
            self._print_line(line)

    def _flush(self) -> None:
        if self._partial_line:
            self._print_line(self._partial_line)
            self._partial_line = ""

    def _print_line(self, line: str) -> None:
        if line.strip():
            self._terminal.say(f"{short_run_id(self.run)}  | {one_line(line)}", tone="dim")

    def _line(self) -> str:
        return final_line(self.progress.state, signs=self._terminal.has_signs(sys.stderr))

    def _print_status(self, status: str) -> None:
        state = self.progress.state
        if status == "waiting":
            self._terminal.say(f"{short_run_id(self.run)}  {self._line()}", tone="warn")
            for gate in state.gates.values():
                self._terminal.say(f"{short_run_id(self.run)}    {answering(gate)}")
        elif status not in ("running", "paused"):
            self._flush()
            self._terminal.say(f"{self.run}: {self._line()}", tone=_TONES.get(status, "plain"))
            output = self._here.service.read_text(state.finished.output) if state.finished else ""
            for line in last_lines(output, OUTPUT_LINES):
                self._terminal.put(line)


class ReplSession:
    """One prompt: commands act on `here`, and the runs that they start are shown from then on."""

    def __init__(self, terminal: Terminal, here: Local, agents: tuple[str, ...]) -> None:
        self.terminal = terminal
        self.here = here
        self.agents = agents
        self.failures: list[int] = []  # exit codes of the commands that failed
        self._shown: dict[str, ShownRun] = {}
        self._ends: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        self._ends = [
            self.here.log.subscribe(lambda run, _: self._written(run)),
            self.here.bus.listen(self._show_delta),
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for end in self._ends:
            end()

    @property
    def app(self) -> App:
        """What operations work with here."""
        return local_app(self.here.service, self.terminal.settings)

    @property
    def caller(self) -> Caller:
        """The person at the prompt, or the agent that this process descends from."""
        return local_caller(self.here.service.via)

    async def start(self, start: RunStart) -> str:
        """Start a run in this process, and show it from its first event."""
        run = await launch_run(self.here.service, start)
        for note in start_notes(self.here.service, run):
            self.terminal.tell(note, tone="warn" if note.startswith("warning") else "plain")
        self.show(run)
        return run

    def show(self, run: str, *, seen: int = 0) -> None:
        """Print what happens to a run from now on."""
        self._shown[run] = shown = ShownRun(self.terminal, self.here, run, seen=seen)
        shown.pull()

    async def leave(self, *, wait: bool) -> None:
        """Stop showing. If no person can come back, started runs are followed to their end."""
        if wait:
            await asyncio.gather(*(self.here.driver.rest(run) for run in self._shown))
            for shown in self._shown.values():
                shown.pull()
        left = [run for run in self._shown if self.here.driver.is_driving(run)]
        for run in left:
            if self.here.driver.is_served:
                self.terminal.say(f"{run} continues on the server")
            else:
                self.terminal.say(f"{run} stops here; `loopwright resume {run}` continues it")

    def _written(self, run: str) -> None:
        if run in self._shown:
            self._shown[run].pull()

    def _show_delta(self, delta: Delta) -> None:
        if delta.run in self._shown:
            self._shown[delta.run].hear(delta)
