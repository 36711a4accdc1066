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


def has_ended(facts: Sequence[AnyEvent]) -> bool:
    """Whether the newest opening of a run has come to its end."""
    marks = [fact for fact in facts if isinstance(fact, RunFinished | RunReopened)]
    return bool(marks) and isinstance(marks[-1], RunFinished)


class ConversationTurns:
    """How many passes of each conversation with a chat model count when its run is reopened: those
    whose turn was taken to its end.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self.counted: Counter[str] = Counter()

    def take(self, fact: AnyEvent) -> None:
        if isinstance(fact, TurnTaken):
            self._taken.add(fact.path)
        elif isinstance(fact, IterationFinished) and self._counts(fact):
            self.counted[parent_path(fact.path)] = iteration_number(fact.path) + 1

    def _counts(self, fact: IterationFinished) -> bool:
        return fact.path in self._taken and fact.status != "cancelled"


class RaisedLimits:
    """Loops of the plan that ended at their cap, and how many passes they were allowed since."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._capped: set[str] = set()
        self.most: int | None = None

    def take(self, fact: AnyEvent) -> None:
        if isinstance(fact, RunReopened):
            self.most = fact.passes
        elif isinstance(fact, IterationFinished):
            self._last[parent_path(fact.path)] = fact.status

    def ended(self, fact: StepFinished, inside: str) -> None:
        capped = fact.reason == "max_iterations" and fact.status in ("failed", "exhausted")
        if capped and self._last.get(inside) == "completed":
            self._capped.add(fact.path)
        else:
            self._capped.discard(fact.path)

    def goes_on(self, path: str) -> bool:
        """Whether a step that begins again is a loop that was allowed more passes."""
        return self.most is not None and path in self._capped


class Resumptions:
    """Which beginnings take up a place that ended without completing, in a run that continues."""

    def __init__(self) -> None:
        self._unfinished: set[str] = set()
        self._last: dict[str, str] = {}  # by loop: how its newest pass ended
        self._capped: set[str] = set()  # steps that failed at the cap of their loop

    def take(self, fact: AnyEvent, inside: str) -> bool:
        """Whether this is such a beginning; `inside` is the name that its inside goes by."""
        self._note_cap(fact, inside)
        match fact:
            case RunReopened() if fact.mode != "continue":
                self._unfinished.clear()
            case RunReopened(passes=None):
                self._unfinished -= self._capped
            case StepFinished() | IterationFinished() if fact.status != "completed":
                self._unfinished.add(fact.path)
            case StepSkipped() | StepKept():
                self._unfinished.discard(fact.path)
            case StepStarted() | IterationStarted() if fact.path in self._unfinished:
                self._unfinished.remove(fact.path)
                return True
            case _:
                pass
        return False

    def _note_cap(self, fact: AnyEvent, inside: str) -> None:
        if isinstance(fact, IterationFinished):
            self._last[parent_path(fact.path)] = fact.status
        elif isinstance(fact, StepFinished) and not parent_path(fact.path):
            at_cap = (fact.status, fact.reason) == ("failed", "max_iterations")
            if at_cap and self._last.get(inside) == "completed":
                self._capped.add(fact.path)
            else:
                self._capped.discard(fact.path)


class PlaceNames:
    """The name that places inside a step go by: a step of the plan that begins for the n-th time,
    as a try or after the run was reopened, is `step~n` there.
    """

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()
        self._first: dict[str, int] = {}
        self.completed: set[str] = set()
        self._resumptions = Resumptions()
        self.resumed = False  # whether the last fact takes up a place again

    def take(self, fact: AnyEvent) -> None:
        """Note what a fact says about names."""
        self.resumed = self._resumptions.take(fact, self.inside(getattr(fact, "path", "")))
        if isinstance(fact, StepStarted):
            self._begun[fact.path] += not self.resumed
            self._first[fact.path] = self._begun[fact.path]
        elif isinstance(fact, StepRetried):
            self._begun[fact.path] = fact.attempt
        elif isinstance(fact, StepFinished | IterationFinished) and fact.status == "completed":
            self.completed.add(fact.path)
        elif isinstance(fact, RunReopened) and fact.mode == "restart":
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

    def may_begin_again(self, path: str, fact: RunReopened) -> bool:
        """Whether a reopened run may begin this place a second time."""
        inside = bool(parent_path(path)) and fact.mode != "continue"
        return not inside and path not in self.completed
