"""The view of one run: what lists and pages show, the graph of its steps, and outputs of steps.

The view is folded event by event, so it can be continued from any event. Prompts show long
outputs in part; the full output of one step can be read here.
"""

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from loopwright.errors import RESTORE_HINT, NotFound, StorageError
from loopwright.kernel.events import (
    AnyEvent,
    CheckVerdict,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateClosed,
    GateOpened,
    IterationFinished,
    IterationStarted,
    MessageDelivered,
    MessageDropped,
    MessageSent,
    RunForked,
    RunReopened,
    StepFinished,
    StepKept,
    StepSkipped,
    StepStarted,
    TurnTaken,
)
from loopwright.kernel.state import State
from loopwright.model.actions import (
    Action,
    AskPerson,
    CallAgent,
    Each,
    FailStep,
    ModelCycle,
    Repeat,
    RunCommand,
    RunScript,
    Step,
    Steps,
    StopRun,
    Wait,
)
from loopwright.model.checks import Cap, Check, Leaf, ResultPath, SpendCheck, leaves
from loopwright.model.plan import Plan
from loopwright.model.record import LiteralItems, Text
from loopwright.ports import RunReader
from loopwright.syntax.document import suggest
from loopwright.views.formats import place_words
from loopwright.views.progress import IterationSeen, Progress
from loopwright.views.run_responses import GraphNode
from loopwright.views.status_text import resume_point

_PASSES = re.compile(r"~\d+|\.-?\d+(?=\.|\[|~|$)")
_ITEMS = re.compile(r"\[\d+\]")
_LAST_ITEMS = re.compile(r"(?:\[\d+\])+$")
_ASIDE = frozenset({CheckVerdict, EffectDone, EffectFailed, TurnTaken})  # many, and move no step
_OF_ITEMS = {  # the first of these that one of its items has is the status of a step
    "running": "running",
    "waiting": "waiting",
    "failed": "failed",
    "exhausted": "exhausted",
    "cancelled": "cancelled",
    "completed": "ok",
    "skipped": "skipped",
}


def logical(path: str) -> str:
    """The path of a place without the numbers of iterations, items and attempts."""
    return _ITEMS.sub("", _of_item(path))


def _of_item(path: str) -> str:
    """The path of a place with the numbers of items alone: these are under way side by side."""
    return _PASSES.sub("", path)


@dataclass(slots=True)
class GraphStatus:
    """The status of the steps, by the newest iteration of each loop; inside a loop over a list,
    each item has a status.
    """

    status: dict[str, str] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)

    def take(self, event: AnyEvent) -> None:
        if type(event) not in _ASIDE:
            self._take(event)

    def _take(self, event: AnyEvent) -> None:
        place = _of_item(getattr(event, "path", ""))
        path = _LAST_ITEMS.sub("", place)
        match event:
            case StepStarted():
                self.status[path] = "running"
            case StepFinished(status=status) | StepSkipped(status=status):
                self.status[path] = status
            case StepKept():
                self.status[path] = "completed"
            case GateOpened():
                self.status[path] = "waiting"
            case GateAnswered() | GateClosed() | EffectRequested():
                if self.status.get(path) == "waiting":
                    self.status[path] = "running"
            case IterationStarted():
                self._begin_iteration(place, event)
            case IterationFinished():
                loop = logical(place)
                self.done[loop] = self.done.get(loop, 0) + 1
            case RunReopened():
                self._reopened(event)
            case _:
                pass

    def of_items(self) -> dict[str, list[str]]:
        """By the path of a step: the status of each item."""
        found: dict[str, list[str]] = {}
        for path, status in self.status.items():
            found.setdefault(_ITEMS.sub("", path), []).append(status)
        return found

    def _begin_iteration(self, place: str, event: IterationStarted) -> None:
        loop = logical(place)
        self.passes[loop] = max(self.passes.get(loop, 0), event.iteration or 0)
        if event.resumed:
            self.done[loop] = max(0, self.done.get(loop, 0) - 1)
        if not event.path.endswith("]"):  # items are under way side by side
            self.passes[loop] = event.iteration or 0
            if not event.resumed:
                self._forget(place)

    def _forget(self, place: str) -> None:
        """Everything inside of a place."""
        for table in (self.status, self.passes, self.done):
            around = place if table is self.status else logical(place)
            inside = (f"{around}.", f"{around}[")
            for path in [path for path in table if path.startswith(inside)]:
                del table[path]

    def _reopened(self, event: RunReopened) -> None:
        if event.mode == "continue":  # it is set again when the step starts again
            self.status = {p: s for p, s in self.status.items() if s == "completed"}
            return
        whole = event.mode == "restart"
        again = [p for p, s in self.status.items() if "." not in p and (whole or s != "completed")]
        for path in again:
            self._forget(path)
            for table in (self.status, self.passes, self.done):
                table.pop(path, None)


def graph(plan: Plan, events: Iterable[AnyEvent] = ()) -> list[GraphNode]:
    """The steps of a plan, and their status according to the events of a run."""
    standing = GraphStatus()
    for event in events:
        standing.take(event)
    return drawn(plan, standing)


def drawn(plan: Plan, standing: GraphStatus) -> list[GraphNode]:
    """The current steps of a plan."""
    items = standing.of_items()
    return [_node(step, step.id, standing, items) for step in plan.steps]


def _node(
    step: Step, path: str, standing: GraphStatus, items: Mapping[str, list[str]]
) -> GraphNode:
    here = items.get(path, [])
    words = (_passes(step.action, path, standing), _counted(here) if len(here) > 1 else "")
    return GraphNode(
        id=step.id,
        kind=kind_of(step.action),
        needs=list(step.needs),
        status=next((status for status in _OF_ITEMS if status in here), None),
        passes=", ".join(word for word in words if word) or None,
        steps=[
            _node(inner, f"{path}.{inner.id}", standing, items) for inner in _inside(step.action)
        ],
    )


def _counted(statuses: list[str]) -> str:
    """`2 ok, 1 failed`: the items at a step, by status."""
    counts = Counter(_OF_ITEMS.get(status, status) for status in statuses)
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items(), key=_ok_first))


def _ok_first(counted: tuple[str, int]) -> tuple[bool, str]:
    return counted[0] != "ok", counted[0]


def _inside(action: Action) -> Sequence[Step]:
    if isinstance(action, Repeat):
        return _inside(action.body)
    return action.steps if isinstance(action, Steps) else ()


def _passes(action: Action, path: str, standing: GraphStatus) -> str:
    """`2/4` for the second of at most four iterations; for a list, the number of finished items."""
    if not isinstance(action, Repeat):
        return ""
    if action.each is None:
        made, most = standing.passes.get(path, 0), action.max
        if not made:
            plural = "" if most == 1 else "s"
            return f"up to {most} iteration{plural}" if most is not None else "iterations"
        return f"iteration {made}/{most}" if most is not None else f"iteration {made}"
    values = action.each.items
    known = len(values.values) if isinstance(values, LiteralItems) else standing.passes.get(path)
    if path not in standing.passes:
        return f"{known} items" if known is not None else f"up to {action.each.max_items} items"
    return f"{standing.done.get(path, 0)}/{'?' if known is None else known} items"


def kind_of(action: Action) -> str:
    """What a step does, in a few words."""
    match action:
        case CallAgent(agent=agent) | ModelCycle(agent=agent):
            return f"agent {agent}"
        case RunCommand(argv=argv):
            return f"command {argv[0]}"
        case RunScript(interpreter=interpreter):
            return f"script ({interpreter})"
        case AskPerson():
            return "asks a person"
        case Wait(ms=ms):
            return f"waits {ms / 1_000:g} s"
        case StopRun():
            return "ends the run"
        case FailStep():
            return "fails"
        case Steps(steps=steps):
            return f"{len(steps)} steps"
        case Repeat():
            return _loop(action)
        case _:
            assert_never(action)


def _loop(action: Repeat) -> str:
    body = action.body if isinstance(action.body, Repeat) else None
    inside = "" if _inside(action.body) else f"{kind_of(body or action.body)}, "
    if action.each is not None:
        return f"{inside}for each item{_at_once(action.each)}"
    until = f"until {check_words(action.until)}" if not isinstance(action.until, Cap) else ""
    return f"{inside}{until}".removesuffix(", ") or "repeats"


def _at_once(each: Each) -> str:
    return f", {each.parallel} at once" if each.parallel else ""


def check_words(check: Check) -> str:
    """What ends a loop, in a few words."""
    return " + ".join(_leaf(leaf) for leaf in leaves(check))


def _leaf(leaf: Leaf) -> str:
    name = str(type(leaf).__struct_config__.tag)
    argv = getattr(leaf, "argv", None)
    if argv:
        return f"{name} {argv[0]}"
    if isinstance(leaf, SpendCheck):
        return f"{name} {leaf.usd:g} USD"
    if isinstance(leaf, ResultPath):
        return f"{name} {'.'.join(map(str, leaf.path))}".rstrip()
    for what in ("pattern", "word", "text", "agent", "field", "tool"):
        detail = getattr(leaf, what, "")
        if detail:
            return f"{name} {' '.join(str(detail).split())}"
    return name


ITERATIONS_SHOWN = 200
"""The maximum number of iterations that are shown, the newest ones."""
DECISIONS_SHOWN = 50
RESUMED_SHOWN = 20
DEPENDENCIES_SHOWN = 50
MESSAGES_SHOWN = 50


@dataclass(slots=True)
class MessageView:
    """A message of a person to the agents of the run, and what became of it."""

    sent: MessageSent
    state: str = "waiting"


@dataclass(frozen=True, slots=True)
class Resumed:
    """That a run was resumed, and where it continued, as a message."""

    event: RunReopened
    point: str


class RunView:
    """One run up to the event with the number `seen`."""

    def __init__(self, service: RunReader, run: str) -> None:
        first = service.log.read(run, limit=1)
        if not first:
            raise StorageError(f"{run} has no events", code="damaged", hint=RESTORE_HINT)
        self.run = run
        self.progress = Progress(service.plan(first[0].event), service.read_text, words=False)
        self.forked: RunForked | None = None
        self.resumed: deque[Resumed] = deque(maxlen=RESUMED_SHOWN)
        self.decisions: deque[GateAnswered] = deque(maxlen=DECISIONS_SHOWN)
        self.messages: dict[str, MessageView] = {}
        self.dependencies: dict[tuple[str, int | None], None] = {}
        self._left_out = 0
        self._standing = GraphStatus()
        self._log = service.log

    @property
    def seen(self) -> int:
        return self.progress.seen

    @property
    def state(self) -> State:
        return self.progress.state

    def carry_on(self, most: int | None = None) -> bool:
        """Fold new events, up to a maximum number; returns whether there may be more."""
        events = self._log.read(self.run, after=self.seen, limit=most)
        for numbered in events:
            self.progress.take(numbered)
            self._standing.take(numbered.event)
            if isinstance(numbered.event, RunForked):
                self.forked = numbered.event
            elif isinstance(numbered.event, RunReopened):
                self.resumed.append(Resumed(numbered.event, resume_point(self.state)))
            elif isinstance(numbered.event, EffectDone) and numbered.event.snapshot is not None:
                self._note_dependencies(numbered.event.snapshot.watched, numbered.event.iteration)
            elif isinstance(numbered.event, GateAnswered):
                self.decisions.append(numbered.event)
            else:
                self._note_message(numbered.event)
        self._forget_old_iterations()
        return most is not None and len(events) == most

    def _note_message(self, event: AnyEvent) -> None:
        """Follow what people tell the agents of the run."""
        match event:
            case MessageSent(intent="tell"):
                self.messages[event.message] = MessageView(event)
                while len(self.messages) > MESSAGES_SHOWN:
                    del self.messages[next(iter(self.messages))]
            case MessageDelivered():
                for name in event.messages:
                    if name in self.messages:
                        self.messages[
                            name
                        ].state = f"delivered to {place_words(event.path) or event.to}"
            case MessageDropped():
                if event.message in self.messages:
                    self.messages[event.message].state = f"dropped: {event.detail}"
            case _:
                pass

    def _note_dependencies(self, paths: tuple[str, ...], iteration: int | None) -> None:
        """Files that a check names and that changed: the first of them are shown."""
        for path in paths:
            if len(self.dependencies) < DEPENDENCIES_SHOWN:
                self.dependencies[path, iteration] = None

    def _forget_old_iterations(self) -> None:
        """Memory depends on what is shown, not on the past; doing this occasionally is enough."""
        passes = self.progress.passes
        if len(passes) > 2 * ITERATIONS_SHOWN:
            self._left_out += len(passes) - ITERATIONS_SHOWN
            del passes[:-ITERATIONS_SHOWN]

    @property
    def passes(self) -> list[IterationSeen]:
        """The newest iterations."""
        return self.progress.passes[-ITERATIONS_SHOWN:]

    @property
    def iterations_before(self) -> int:
        """The number of earlier iterations."""
        return self._left_out + max(0, len(self.progress.passes) - ITERATIONS_SHOWN)

    def graph(self) -> list[GraphNode]:
        """The steps, and how far each has come."""
        return drawn(self.state.plan, self._standing)


MOST_NAMED = 12
SPEAKING = (StepFinished, StepKept, IterationFinished, EffectDone)


class RunOutput(msgspec.Struct):
    """The whole output of a step or an iteration."""

    run: str
    path: str
    output: str


class Outputs:
    """The outputs of the steps and iterations of a run, event by event; of several attempts, the
    last.
    """

    def __init__(self, service: RunReader, run: str) -> None:
        self._service, self._run = service, run
        self._found: dict[str, Text] = {}

    def take(self, event: AnyEvent) -> None:
        if isinstance(event, SPEAKING) and event.output:
            self._found[event.path] = event.output

    def at(self, path: str) -> RunOutput:
        """The output of one place, as `show --output` has it."""
        found = self._found
        if path in found:
            output = self._service.read_text(found[path])
            return RunOutput(self._run, path, output)
        near = suggest(path, found)
        few = ", ".join(list(found)[:MOST_NAMED])
        hint = f"did you mean {near}?" if near else f"there are {few}" if few else None
        raise NotFound(f"{self._run} has no output at {path!r}", code="no-output", hint=hint)
