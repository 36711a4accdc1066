"""A picture of one run: everything that lists and pages show of it, folded fact by fact, so that it
can be carried on from where it is.
"""

from collections import deque
from dataclasses import dataclass

from loopwright.app.views.graph import Node, Standing, drawn
from loopwright.app.views.place_words import place_words
from loopwright.app.views.progress import PassSeen, Progress
from loopwright.app.views.resume_words import resume_point
from loopwright.errors import RESTORE_HINT, StorageError
from loopwright.kernel.facts import (
    AnyFact,
    EffectDone,
    GateAnswered,
    MessageDelivered,
    MessageDropped,
    MessageSent,
    RunForked,
    RunReopened,
)
from loopwright.kernel.state import State
from loopwright.ports import RunReader

PASSES_SHOWN = 200
"""The newest passes of a run are shown, however many it has made."""
DECISIONS_SHOWN = 50
RESUMED_SHOWN = 20
DEPENDENCIES_SHOWN = 50
MESSAGES_SHOWN = 50


@dataclass(slots=True)
class Told:
    """A message of a person to the agents of the run, and what became of it."""

    sent: MessageSent
    state: str = "waiting"


@dataclass(frozen=True, slots=True)
class Resumed:
    """That a run was resumed, and where it continued, in words."""

    fact: RunReopened
    point: str


class Picture:
    """One run up to the fact with the number `seen`."""

    def __init__(self, service: RunReader, run: str) -> None:
        first = service.log.read(run, limit=1)
        if not first:
            raise StorageError(f"{run} has no events", code="damaged", hint=RESTORE_HINT)
        self.run = run
        self.progress = Progress(service.plan(first[0].fact), service.read_text, words=False)
        self.forked: RunForked | None = None
        self.resumed: deque[Resumed] = deque(maxlen=RESUMED_SHOWN)
        self.decisions: deque[GateAnswered] = deque(maxlen=DECISIONS_SHOWN)
        self.messages: dict[str, Told] = {}
        self.dependencies: dict[tuple[str, int | None], None] = {}
        self._left_out = 0
        self._standing = Standing()
        self._log = service.log

    @property
    def seen(self) -> int:
        return self.progress.seen

    @property
    def state(self) -> State:
        return self.progress.state

    def carry_on(self, most: int | None = None) -> bool:
        """Take in what is new, at most so many facts; whether there may be more."""
        facts = self._log.read(self.run, after=self.seen, limit=most)
        for numbered in facts:
            self.progress.take(numbered)
            self._standing.take(numbered.fact)
            if isinstance(numbered.fact, RunForked):
                self.forked = numbered.fact
            elif isinstance(numbered.fact, RunReopened):
                self.resumed.append(Resumed(numbered.fact, resume_point(self.state)))
            elif isinstance(numbered.fact, EffectDone) and numbered.fact.snapshot is not None:
                self._note_dependencies(numbered.fact.snapshot.watched, numbered.fact.iteration)
            elif isinstance(numbered.fact, GateAnswered):
                self.decisions.append(numbered.fact)
            else:
                self._note_message(numbered.fact)
        self._forget_old_passes()
        return most is not None and len(facts) == most

    def _note_message(self, fact: AnyFact) -> None:
        """Follow what people tell the agents of the run."""
        match fact:
            case MessageSent(intent="tell"):
                self.messages[fact.message] = Told(fact)
                while len(self.messages) > MESSAGES_SHOWN:
                    del self.messages[next(iter(self.messages))]
            case MessageDelivered():
                for name in fact.messages:
                    if name in self.messages:
                        self.messages[
                            name
                        ].state = f"delivered to {place_words(fact.path) or fact.to}"
            case MessageDropped():
                if fact.message in self.messages:
                    self.messages[fact.message].state = f"dropped: {fact.detail}"
            case _:
                pass

    def _note_dependencies(self, paths: tuple[str, ...], iteration: int | None) -> None:
        """Files that a check names and that changed: the first of them are shown."""
        for path in paths:
            if len(self.dependencies) < DEPENDENCIES_SHOWN:
                self.dependencies[path, iteration] = None

    def _forget_old_passes(self) -> None:
        """Memory follows what is shown, not what has been; now and then is often enough."""
        passes = self.progress.passes
        if len(passes) > 2 * PASSES_SHOWN:
            self._left_out += len(passes) - PASSES_SHOWN
            del passes[:-PASSES_SHOWN]

    @property
    def passes(self) -> list[PassSeen]:
        """The newest passes."""
        return self.progress.passes[-PASSES_SHOWN:]

    @property
    def passes_before(self) -> int:
        """How many passes there were before those."""
        return self._left_out + max(0, len(self.progress.passes) - PASSES_SHOWN)

    def graph(self) -> list[Node]:
        """The steps, and how far each has come."""
        return drawn(self.state.plan, self._standing)
