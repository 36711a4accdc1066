"""Events of a run in the forms in which interfaces return them, among them that of the system that
its definition was written for.

Also follows the loop of an assistant event by event, with the events and states of its system.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias, cast

import msgspec

from loopwright.dialects.rondoflow.events import (
    AssistantIteration,
    End,
    RondoflowEvent,
    event_of_end,
    events_of_iteration,
    loop_state,
)
from loopwright.errors import LoopwrightError
from loopwright.kernel.bodies.repeat import learning_of
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    GateAnswered,
    GateClosed,
    GateOpened,
    IterationFinished,
    IterationStarted,
    RunFinished,
    RunPaused,
    RunReopened,
    RunResumed,
    RunStarted,
)
from loopwright.model.ids import AGENT_CALL, MAIN, last_id
from loopwright.model.plan import only_repeat
from loopwright.model.record import Blob, JsonValue
from loopwright.operations.dialects import ASSISTANTS, assistant_key, rendering
from loopwright.operations.runs import Service
from loopwright.ports import NumberedEvent
from loopwright.views.event_records import event_on_wire, timestamp

LEARNING_CHARS = 300
AT_ONCE = 2_000
ENGINE_EVENTS: dict[str, tuple[str, ...]] = {
    "iteration": ("iteration", "maxIterations", "output"),
    "progress": ("iteration", "learning"),
    "manual_approval_required": ("iteration", "output", "loopId"),
    "completed": ("totalIterations", "finalOutput"),
    "failed": ("iteration", "error"),
}
"""The events of a loop in its own system, each with the fields of its payload."""


@dataclass(frozen=True, slots=True)
class LoopStoryEvent:
    """Something that happened to a loop: `iteration`, `progress`, `manual_approval_required`,
    `completed`, `failed` as their system has them, with the output of the iteration also in
    `progress`; `started`, `paused`, `resumed`, `stopped` are ours. `part` counts the notifications
    of one event of the log from 0.
    """

    seq: int
    at: int
    name: str
    payload: dict[str, JsonValue]
    part: int = 0

    def engine_payload(self) -> dict[str, JsonValue] | None:
        """The payload that this event has in its own system; None where it is ours."""
        fields = ENGINE_EVENTS.get(self.name)
        return None if fields is None else {name: self.payload[name] for name in fields}


class LoopStory:
    """One loop up to the event with the number `seen`."""

    def __init__(self, service: Service, run: str) -> None:
        self.run = run
        self._log, self._read = service.log, service.read_text
        first = service.events(run)[0].event
        assert isinstance(first, RunStarted)
        self.plan = service.plan(first)
        loop = only_repeat(self.plan)
        self._max = (loop.max if loop else None) or 0
        self.owner = first.by
        self.agent_id = agent_of(first.key) if is_loop(first.dialect, first.key) else run
        self.seen = 0
        self.iteration = 0
        self.status = "running"
        self.learnings: list[str] = []
        self.reviews: dict[str, dict[str, JsonValue]] = {}
        self.asked: dict[str, LoopStoryEvent] = {}  # the events that opened reviews
        self.questions: dict[str, dict[str, JsonValue]] = {}  # that are about no iteration
        self.last_output = ""
        self.final_output: str | None = None
        self.error: str | None = None

    def carry_on(self) -> list[LoopStoryEvent]:
        """Take in what is new, and tell it."""
        story_events: list[LoopStoryEvent] = []
        while events := self._log.read(self.run, after=self.seen, limit=AT_ONCE):
            for numbered in events:
                story_events += self.take(numbered)
        return story_events

    def take(self, numbered: NumberedEvent) -> list[LoopStoryEvent]:
        """Take in the next event."""
        self.seen = numbered.seq
        seq, event = numbered.seq, numbered.event
        story_events: list[LoopStoryEvent] = []
        part = 0
        for name, body in self._payloads(event):
            one = LoopStoryEvent(seq, event.at, name, body, part)
            story_events.append(one)
            part += name in ENGINE_EVENTS and name != "iteration"
            if name == "manual_approval_required":
                self.asked[str(body["loopId"])] = one
        return story_events

    @property
    def active(self) -> bool:
        return self.status in ("running", "paused", "waiting")

    def state(self) -> dict[str, JsonValue]:
        """The state of the loop as its system answers a question for it."""
        found = loop_state(
            self.plan,
            agent_id=self.agent_id,
            status=self.status,
            learnings=self.learnings,
            iteration=self.iteration,
        )
        return cast("dict[str, JsonValue]", found)

    def _payloads(self, event: AnyEvent) -> Iterator[tuple[str, dict[str, JsonValue]]]:
        match event:
            case RunStarted() | RunReopened():
                self.status, self.final_output, self.error = "running", None, None
                if isinstance(event, RunReopened) and event.mode == "restart":
                    self.iteration, self.learnings = 0, []
                continues = isinstance(event, RunReopened) and event.mode == "continue"
                yield ("resumed" if continues else "started"), {}
            case IterationStarted() if is_pass(event.path):
                self.iteration = event.iteration or 0
            case EffectDone() | IterationFinished() if _is_work(event):
                yield from self._pass(self._read(event.output))
            case GateOpened():
                yield from self._review(event)
            case GateAnswered() | GateClosed():
                self.reviews.pop(event.gate, None)
                self.questions.pop(event.gate, None)
            case RunPaused() | RunResumed():
                self.status = "paused" if isinstance(event, RunPaused) else "running"
                yield ("paused" if self.status == "paused" else "resumed"), {}
            case RunFinished():
                yield from self._end(event)
            case _:
                return

    def _pass(self, output: str) -> Iterator[tuple[str, dict[str, JsonValue]]]:
        """Report once that the work of an iteration is done."""
        if len(self.learnings) >= self.iteration:
            return
        learning = learning_of(output, self.iteration, LEARNING_CHARS)
        self.learnings.append(learning)
        self.last_output = output
        done = AssistantIteration(
            iteration=self.iteration,
            max_iterations=self._max,
            output=output,
            learning=learning,
        )
        for name, payload in _events(events_of_iteration(done)):
            yield name, {**payload, "output": output}

    def _review(self, event: GateOpened) -> Iterator[tuple[str, dict[str, JsonValue]]]:
        if event.about != "pass":
            self.questions[event.gate] = {
                "loopId": event.gate,
                "iteration": self.iteration,
                "output": event.message,
            }
            return
        output = self.last_output if event.output is None else self._read(event.output)
        yield from self._pass(output)
        done = AssistantIteration(
            iteration=self.iteration,
            max_iterations=self._max,
            output=output,
            learning="",
            review=event.gate,
        )
        review = list(_events(events_of_iteration(done)))[-1]
        self.reviews[event.gate] = review[1]
        yield review

    def _end(self, logged: RunFinished) -> Iterator[tuple[str, dict[str, JsonValue]]]:
        self.status = logged.outcome
        self.reviews.clear()
        self.questions.clear()
        output = self._read(logged.output)
        self.final_output = output or self.last_output
        end = End(
            outcome=logged.outcome,
            reason=logged.reason,
            iterations=self.iteration,
            output=output,
            error=logged.error.detail or logged.error.type if logged.error else "",
        )
        event = event_of_end(end)
        if event is None:
            self.error = logged.reason
            yield "stopped", {"reason": logged.reason}
            return
        error = event.payload.get("error")
        self.error = None if error is None else str(error)
        yield from _events([event])


def is_loop(dialect: str, key: str | None) -> bool:
    """Whether a run is the loop of an assistant."""
    return dialect == ASSISTANTS and key is not None


def agent_of(key: str | None) -> str:
    """The assistant whose loop has this key."""
    return (key or "").removeprefix(assistant_key(""))


def is_pass(path: str) -> bool:
    """Whether a path is an iteration of the loop itself."""
    return path.count(".") == 1 and last_id(path).isdecimal()


def _is_work(event: EffectDone | IterationFinished) -> bool:
    """Whether an event contains the result of an iteration: the answer of its program, or the end
    of a conversation.
    """
    if not is_pass(event.path):
        return False
    if isinstance(event, IterationFinished):
        return event.status == "completed"
    return event.purpose == AGENT_CALL


def _events(events: Iterable[RondoflowEvent]) -> Iterator[tuple[str, dict[str, JsonValue]]]:
    return ((one.name, {**one.payload}) for one in events)


class DialectEventFeed:
    """Follows one run event by event, from the first on. Where a dialect has no words of its own
    its events are sent unchanged, unless `own` texts are required.
    """

    def __init__(self, service: Service, run: str, *, own: bool = True) -> None:
        plan = service.plan((service.log.read(run, limit=1) or service.events(run))[0].event)
        self._story = LoopStory(service, run) if plan.dialect == ASSISTANTS else None
        rendered = rendering(plan, lambda text: service.read_text(_text(text)))
        if rendered is None and self._story is None and own:
            raise LoopwrightError(
                f"the dialect {plan.dialect} has no events of its own",
                code="no-events",
                hint=f"`loopwright events {run}` shows the events",
            )
        self.run = run
        self._rendered = rendered

    def take(self, numbered: NumberedEvent) -> list[dict[str, JsonValue]]:
        """What the next event is in the words of the dialect; `seq` is its number."""
        if self._story is not None:
            story_events = ((one, one.engine_payload()) for one in self._story.take(numbered))
            return [_of_loop(self.run, one, body) for one, body in story_events if body is not None]
        if self._rendered is None:
            return [_as_it_is(self.run, numbered)]
        events = self._rendered.events(msgspec.to_builtins(numbered.event))
        if self._rendered.is_flat:
            return [
                {
                    "type": event.type,
                    "timestamp": timestamp(event.at),
                    "runId": self.run,
                    **event.payload,
                    "seq": numbered.seq,
                }
                for event in events
            ]
        return [
            {
                "run": self.run,
                "seq": numbered.seq,
                "at": timestamp(event.at),
                "type": event.type,
                "path": event.path,
                "payload": event.payload,
            }
            for event in events
        ]


def _of_loop(run: str, one: LoopStoryEvent, payload: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {
        "run": run,
        "seq": one.seq,
        "at": timestamp(one.at),
        "type": one.name,
        "path": MAIN,
        "payload": payload,
    }


def _as_it_is(run: str, numbered: NumberedEvent) -> dict[str, JsonValue]:
    event = event_on_wire(run, numbered)
    first: dict[str, JsonValue] = {name: event.pop(name) for name in ("run", "seq", "at")}
    return {**first, "type": event.pop("kind"), "path": event.pop("path"), "payload": event}


def dialect_events_after(
    service: Service, run: str, log_events: Iterable[NumberedEvent], after: int
) -> Iterator[dict[str, JsonValue]]:
    """The events of a run, of which `events` are all from the first; those up to `after` are left
    out. `seq` is the number of the event that an event tells.
    """
    teller = DialectEventFeed(service, run)
    for numbered in log_events:
        events = teller.take(numbered)
        if numbered.seq > after:
            yield from events


def _text(value: JsonValue) -> str | Blob | None:
    """A text as an event contains it."""
    return msgspec.convert(value, Blob) if isinstance(value, dict) else str(value or "")


View: TypeAlias = Literal["events", "words", "transcript", "dialect"]
"""How the events of a run are returned: as records, as records with the line that a terminal shows
(`told`), as entries of the transcript, or as the system of its definition names them.
"""

Records: TypeAlias = list[dict[str, JsonValue]]


def event_view(service: Service, run: str, view: View) -> Callable[[NumberedEvent], Records]:
    """A function that returns the records of an event. Unless the view is `events`, it has to be
    called with every event, from the first.
    """
    match view:
        case "events":
            return lambda one: [event_on_wire(run, one)]
        case "words":
            return _in_words(service, run)
        case "transcript":
            return _in_transcript(service, run)
        case "dialect":
            from loopwright.operations.loops.dialect_events import DialectEventFeed  # noqa: PLC0415 - rarely needed

            return DialectEventFeed(service, run).take


def _in_words(service: Service, run: str) -> Callable[[NumberedEvent], Records]:
    from loopwright.views.progress import Progress  # noqa: PLC0415 - needed by this view only

    progress = Progress(service.plan(_first(service, run).event), service.read_text)

    def take(one: NumberedEvent) -> Records:
        line = progress.take(one)
        words: dict[str, JsonValue] = {"told": asdict(line)} if line is not None else {}
        return [event_on_wire(run, one) | words]

    return take


def _in_transcript(service: Service, run: str) -> Callable[[NumberedEvent], Records]:
    from loopwright.views.transcript import RunTranscript  # noqa: PLC0415 - needed by this view only

    transcript = RunTranscript(service.plan(_first(service, run).event), service.read_text)

    def take(one: NumberedEvent) -> Records:
        entry = transcript.take(one)
        return [] if entry is None else [msgspec.structs.asdict(entry)]

    return take


def _first(service: Service, run: str) -> NumberedEvent:
    found = service.log.read(run, limit=1) or service.events(run)  # which reports what is wrong
    return found[0]
