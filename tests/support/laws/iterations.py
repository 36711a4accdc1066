"""The law of iterations (I3, I9): numbered without a gap, and no more than allowed or granted."""

from collections import Counter
from collections.abc import Iterator, Sequence

from loopwright.kernel.events import (
    AnyEvent,
    GateAnswered,
    GateOpened,
    IterationFinished,
    IterationStarted,
    RunEdited,
    RunForked,
    RunReopened,
    StepFinished,
    StepSkipped,
    StepStarted,
)
from loopwright.model.actions import ModelCycle, Repeat
from loopwright.model.ids import iteration_number, parent_path
from loopwright.model.plan import Plan
from tests.support.laws.openings import ConversationTurns, PlaceNames, RaisedLimits
from tests.support.laws.plan_lookup import loop_at


def passes(plan: Plan, events: Sequence[AnyEvent]) -> Iterator[str]:
    """Passes that have another number than the next, or that nobody allowed."""
    count = _Count(plan)
    for event in events:
        count.take(event)
        if isinstance(event, IterationStarted):
            if event.resumed != count.resumed:
                yield f"{event.path} {'is' if event.resumed else 'is not'} said to be resumed"
            elif iteration_number(event.path) >= 0 and not event.resumed:
                yield from count.another(event)


class _Count:
    """Passes made and granted, by the name that their loop goes by."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._made: Counter[str] = Counter()
        self._granted: Counter[str] = Counter()
        self._asked: set[str] = set()
        self._names, self._turns, self._raised = PlaceNames(), ConversationTurns(), RaisedLimits()
        self._edited: int | None = None
        self._stage: str | None = None
        self._mode = ""
        self._half: set[str] = set()  # passes in which a step did not complete
        self._last: dict[str, IterationFinished] = {}

    @property
    def resumed(self) -> bool:
        """Whether the last event takes up a place again."""
        return self._names.resumed

    def take(self, event: AnyEvent) -> None:
        self._names.take(event)
        self._turns.take(event)
        self._raised.take(event)
        self._note(event)
        match event:
            case StepStarted() if not parent_path(event.path) and not self._mode:
                self._begins_again(event.path)
            case StepFinished() if not parent_path(event.path):
                self._raised.ended(event, self._names.inside(event.path))
            case RunForked(passes=int(most)):
                loop = parent_path(event.place)
                self._granted[loop] = most - (self._most(loop) or 0)
            case GateOpened(about="cap"):
                self._asked.add(event.gate)
            case GateAnswered(decision="continue"):
                self._granted[event.path] += event.gate in self._asked

    def _note(self, event: AnyEvent) -> None:
        match event:
            case RunReopened():
                self._stage, self._mode = event.stage, event.mode
                self._allow(event)
            case RunEdited(passes=int(most)):
                self._edited = most
                for path in [one for one in self._granted if not parent_path(one)]:
                    del self._granted[path]
            case StepFinished() | StepSkipped() if event.status != "completed":
                self._half.add(parent_path(event.path))
            case IterationFinished():
                self._last[parent_path(event.path)] = event
            case _:
                pass

    def _allow(self, event: RunReopened) -> None:
        """Whoever resumes a run may say how many iterations there may be: of the loops of the plan,
        and of others that had made all of theirs.
        """
        if not event.mode or event.passes is None:
            return
        self._edited = event.passes
        for path in list(self._made):
            repeat = loop_at(self._plan, path)
            if not parent_path(path) and _is_counted(repeat):
                self._granted[path] = 0
            elif repeat.max is not None:
                more = event.passes - repeat.max
                self._granted[path] = max(self._granted[path], more)

    def _takes_up(self, path: str, before: str) -> None:
        """A loop goes on in the iteration that stopped half-way, or after one that was rejected."""
        last = self._last.get(before)
        if self._stage is None or last is None or last.status == "completed":
            return
        whole = last.path not in self._half
        self._made[path] = iteration_number(last.path) + whole
        most, granted = self._most(path), self._granted[before]
        full = whole and most is not None and self._made[path] >= most + granted
        self._granted[path] = granted + full

    def _begins_again(self, step: str) -> None:
        """A conversation goes on where it was, and a loop that was allowed more iterations."""
        path, before = self._names.inside(step), self._names.before(step)
        turns = self._turns.counted[before]
        if turns:
            self._made[path] = self._turns.counted[path] = turns
            self._granted[path] = self._granted[before]
        if self._raised.goes_on(step):
            self._made[path] = turns or self._made[before]
            more = (self._raised.most or 0) - (self._most(path) or 0)
            self._granted[path] = max(self._granted[before], more)
        self._takes_up(path, before)

    def another(self, event: IterationStarted) -> Iterator[str]:
        path = parent_path(event.path)
        self._made[path] += 1
        made, most = self._made[path], self._most(path)
        if not event.iteration == iteration_number(event.path) + 1 == made:
            yield f"{event.path} is pass {event.iteration}, expected {made}"
        if most is not None and made > most + self._granted[path]:
            yield f"{event.path} is one more than the {most + self._granted[path]} passes allowed"

    def _most(self, path: str) -> int | None:
        repeat = loop_at(self._plan, path)
        if self._edited is not None and not parent_path(path) and _is_counted(repeat):
            return self._edited or None
        return repeat.max if repeat.each is None else repeat.each.max_items


def _is_counted(repeat: Repeat) -> bool:
    return repeat.each is None and not isinstance(repeat.body, ModelCycle)
