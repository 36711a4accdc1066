"""Openings of a run: how a reopened run is distinguished from itself before, for the laws."""

from collections import Counter
from collections.abc import Sequence

from loopwright.kernel.events import (
    AnyEvent,
    IterationFinished,
    IterationStarted,
    RunFinished,
    RunReopened,
    StepFinished,
    StepKept,
    StepRetried,
    StepSkipped,
    StepStarted,
    TurnTaken,
)
from loopwright.model.ids import iteration_number, parent_path


def has_ended(events: Sequence[AnyEvent]) -> bool:
    """Whether the newest opening of a run has come to its end."""
    marks = [event for event in events if isinstance(event, RunFinished | RunReopened)]
    return bool(marks) and isinstance(marks[-1], RunFinished)


class ConversationTurns:
    """How many iterations of each conversation with a chat model count when its run is reopened:
    those whose turn was taken to its end.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self.counted: Counter[str] = Counter()

    def take(self, event: AnyEvent) -> None:
        if isinstance(event, TurnTaken):
            self._taken.add(event.path)
        elif isinstance(event, IterationFinished) and self._counts(event):
            self.counted[parent_path(event.path)] = iteration_number(event.path) + 1

    def _counts(self, event: IterationFinished) -> bool:
        return event.path in self._taken and event.status != "cancelled"


class RaisedLimits:
    """Loops of the plan that ended at their cap, and how many iterations they were allowed
    since.
    """

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._capped: set[str] = set()
        self.most: int | None = None

    def take(self, event: AnyEvent) -> None:
        if isinstance(event, RunReopened):
            self.most = event.passes
        elif isinstance(event, IterationFinished):
            self._last[parent_path(event.path)] = event.status

    def ended(self, event: StepFinished, inside: str) -> None:
        capped = event.reason == "max_iterations" and event.status in ("failed", "exhausted")
        if capped and self._last.get(inside) == "completed":
            self._capped.add(event.path)
        else:
            self._capped.discard(event.path)

    def goes_on(self, path: str) -> bool:
        """Whether a step that begins again is a loop that was allowed more iterations."""
        return self.most is not None and path in self._capped


class Resumptions:
    """Which beginnings take up a place that ended without completing, in a run that continues."""

    def __init__(self) -> None:
        self._unfinished: set[str] = set()
        self._last: dict[str, str] = {}  # by loop: how its newest iteration ended
        self._capped: set[str] = set()  # steps that failed at the cap of their loop

    def take(self, event: AnyEvent, inside: str) -> bool:
        """Whether this is such a beginning; `inside` is the name that its inside goes by."""
        self._note_cap(event, inside)
        match event:
            case RunReopened() if event.mode != "continue":
                self._unfinished.clear()
            case RunReopened(passes=None):
                self._unfinished -= self._capped
            case StepFinished() | IterationFinished() if event.status != "completed":
                self._unfinished.add(event.path)
            case StepSkipped() | StepKept():
                self._unfinished.discard(event.path)
            case StepStarted() | IterationStarted() if event.path in self._unfinished:
                self._unfinished.remove(event.path)
                return True
            case _:
                pass
        return False

    def _note_cap(self, event: AnyEvent, inside: str) -> None:
        if isinstance(event, IterationFinished):
            self._last[parent_path(event.path)] = event.status
        elif isinstance(event, StepFinished) and not parent_path(event.path):
            at_cap = (event.status, event.reason) == ("failed", "max_iterations")
            if at_cap and self._last.get(inside) == "completed":
                self._capped.add(event.path)
            else:
                self._capped.discard(event.path)


class PlaceNames:
    """The name that places inside a step go by: a step of the plan that begins for the n-th time,
    as a try or after the run was reopened, is `step~n` there.
    """

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()
        self._first: dict[str, int] = {}
        self.completed: set[str] = set()
        self._resumptions = Resumptions()
        self.resumed = False  # whether the last event takes up a place again

    def take(self, event: AnyEvent) -> None:
        """Note what an event says about names."""
        self.resumed = self._resumptions.take(event, self.inside(getattr(event, "path", "")))
        if isinstance(event, StepStarted):
            self._begun[event.path] += not self.resumed
            self._first[event.path] = self._begun[event.path]
        elif isinstance(event, StepRetried):
            self._begun[event.path] = event.attempt
        elif isinstance(event, StepFinished | IterationFinished) and event.status == "completed":
            self.completed.add(event.path)
        elif isinstance(event, RunReopened) and event.mode == "restart":
            self.completed = {path for path in self.completed if parent_path(path)}

    def inside(self, path: str) -> str:
        count = self._begun[path]
        return f"{path}~{count}" if count > 1 else path

    def tries(self, path: str) -> int:
        """How often a step has been tried since the run was last reopened."""
        return self._begun[path] - self._first.get(path, 1) + 1

    def before(self, path: str) -> str:
        """The name that places inside a step went by when it began the last time."""
        count = self._begun[path] - 1
        return f"{path}~{count}" if count > 1 else path

    def may_begin_again(self, path: str, event: RunReopened) -> bool:
        """Whether a reopened run may begin this place a second time."""
        inside = bool(parent_path(path)) and event.mode != "continue"
        return not inside and path not in self.completed
