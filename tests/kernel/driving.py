"""A driver without a world: runs go on in memory, one answer at a time, by script.

Answers are functions of the request alone, so a run that is cut anywhere and taken up again from
its events gets the same answers. Whoever needs another order, a double or a late answer, or a stop,
calls the parts by hand. The clock is a number that timers alone move on by more than one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import jsonschema

from loopwright.engine.services import evaluated
from loopwright.kernel.decide import settle
from loopwright.kernel.event_parts import AgentCall, Failure, SleepCall, Snapshot
from loopwright.kernel.events import (
    AnyEvent,
    CancelRequested,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateOpened,
    RunFinished,
    RunPaused,
    RunResumed,
    RunStarted,
    StepFinished,
    Usage,
)
from loopwright.kernel.fold import apply, fold
from loopwright.kernel.state import ExpressionNames, ExpressionValue, State
from loopwright.model.actions import Action, Decision, Step
from loopwright.model.ids import MAIN
from loopwright.model.plan import Plan
from loopwright.model.record import Blob, JsonValue, Text

START = 1_000
INLINE = 200


class Texts:
    """Senses over a dict: texts above `inline` characters are named by their content."""

    def __init__(self, inline: int = INLINE) -> None:
        self.inline = inline
        self.stored: dict[str, str] = {}
        self.reads = 0

    def read(self, text: Text | None) -> str:
        self.reads += 1
        return self.stored[text.blob] if isinstance(text, Blob) else text or ""

    def keep(self, text: str) -> Text:
        if len(text) <= self.inline:
            return text
        name = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        self.stored[name] = text
        return Blob(blob=name, size=len(text), head=text[:400])

    def matches(self, pattern: str, text: str, *, ignore_case: bool) -> str | None:
        found = re.search(pattern, text, re.IGNORECASE if ignore_case else 0)
        return None if found is None else found.group(0)

    def evaluate(
        self, text: str, scope: ExpressionNames, *, wants: Literal["bool", "list"]
    ) -> ExpressionValue:
        return evaluated(text, scope, wants=wants)

    def schema_problem(self, schema: dict[str, JsonValue], value: JsonValue) -> str | None:
        found = next(jsonschema.Draft202012Validator(schema).iter_errors(value), None)
        return None if found is None else found.message


# -- scripts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reply:
    """An answer that worked."""

    text: str = ""
    result: str | None = None
    usage: Usage | None = None
    session: str | None = None
    code: int | None = None
    mark: int | None = None
    snapshot: Snapshot | None = None


@dataclass(frozen=True)
class Fail:
    """An answer that says that it did not work."""

    type: str = "agent"
    detail: str = "it did not work"
    retry_after_ms: int | None = None
    resets_at: int | None = None
    usage: Usage | None = None
    text: str = ""
    mark: int | None = None


ScriptedAnswer: TypeAlias = Reply | Fail | None
"""None: no answer ever comes, only a timer can help."""
Script: TypeAlias = Callable[[EffectRequested], ScriptedAnswer]
People: TypeAlias = Callable[[GateOpened], tuple[Decision, str] | None]
Order: TypeAlias = Callable[[int], int]
"""Which of so many possible answers comes next."""


def say(value: ScriptedAnswer | str | int) -> ScriptedAnswer:
    """A text is a reply, a number is the code of a program."""
    if isinstance(value, str):
        return Reply(value)
    return Reply(code=value) if isinstance(value, int) else value


def by_iteration(
    *values: ScriptedAnswer | str | int, commands: Sequence[ScriptedAnswer | str | int] = (0,)
) -> Script:
    """The n-th pass gets the n-th answer, the last one again and again; commands by their own."""

    def script(request: EffectRequested) -> ScriptedAnswer:
        row = values if isinstance(request.call, AgentCall) else commands
        return say(row[min(max((request.iteration or 1) - 1, 0), len(row) - 1)])

    return script


GOOD = Reply("ok", code=0)


def by_effect(
    table: dict[str, ScriptedAnswer | str | int], default: ScriptedAnswer | str | int = GOOD
) -> Script:
    """Named effects get their own answer, all others the default."""

    def script(request: EffectRequested) -> ScriptedAnswer:
        return say(table.get(request.effect, default))

    return script


def nobody(gate: GateOpened) -> tuple[Decision, str] | None:
    """No one ever answers a gate."""
    return None


def decisions(*answers: tuple[Decision, str] | Decision) -> People:
    """The n-th pass's gate gets the n-th decision, the last one again and again."""

    def people(gate: GateOpened) -> tuple[Decision, str]:
        found = answers[min(max((gate.iteration or 1) - 1, 0), len(answers) - 1)]
        return (found, "") if isinstance(found, str) else found

    return people


def in_turn(*answers: Decision) -> People:
    """The n-th gate that is opened gets the n-th decision, however often it is asked for."""
    left = iter(answers)
    said: dict[str, Decision] = {}

    def people(gate: GateOpened) -> tuple[Decision, str]:
        if gate.gate not in said:
            said[gate.gate] = next(left)
        return said[gate.gate], ""

    return people


# -- the driver ------------------------------------------------------------------------------------


@dataclass
class Driver:
    """One run in memory; `events` is its log, `ends` says where each append ended."""

    plan: Plan
    script: Script = field(default_factory=lambda: by_effect({}))
    people: People = nobody
    order: Order = lambda choices: 0
    texts: Texts = field(default_factory=Texts)
    message: str = "Do the work."
    inputs: dict[str, JsonValue] = field(default_factory=dict)
    events: list[AnyEvent] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    clock: int = START

    def __post_init__(self) -> None:
        self.state: State = fold(self.plan, self.events)
        if self.events:
            self.clock = max(self.clock, self.events[-1].at)

    def start(self) -> Driver:
        """Begin, or go on from the events that were given."""
        if self.events:
            self.append()
        else:
            self.append(
                RunStarted(
                    at=self.clock,
                    run="r_test",
                    plan="p",
                    name=self.plan.name,
                    message=self.texts.keep(self.message),
                    inputs=self.inputs,
                    workspace="/ws",
                )
            )
        return self

    def append(self, *events: AnyEvent) -> list[AnyEvent]:
        """One append: events from outside, and all that follows from them."""
        for event in events:
            apply(self.state, event)
        new = [*events, *settle(self.state, self.texts, self.clock)]
        self.events += new
        if new:
            self.ends.append(len(self.events))
        return new

    def run(self, most: int = 20_000) -> Driver:
        """Go on until the run ends or nothing can move it."""
        if not self.events:
            self.start()
        for _ in range(most):
            if not self.step():
                return self
        raise AssertionError(f"not at rest after {most} answers")

    def step(self) -> bool:
        """Give one answer: a script's, else a person's, else a timer's; False when none is due."""
        if self.state.finished is not None:
            return False
        self.clock += 1
        ready = self.ready()
        if ready:
            self.append(ready[self.order(len(ready))])
            return True
        timers = [(p.call.until, p.effect) for p in self.timers()]
        if not timers:
            return False
        until, effect = min(timers)
        self.fire(effect, max(until, self.clock))
        return True

    def timers(self) -> list[EffectRequested]:
        return [p for p in self.requests() if isinstance(p.call, SleepCall)]

    def fire(self, effect: str, at: int | None = None) -> list[AnyEvent]:
        """Let a timer go off."""
        self.clock = at if at is not None else self.state.pending[effect].call.until
        return self.append(self.answer_event(self.request(effect), Reply()))

    def requests(self) -> list[EffectRequested]:
        """What is pending, in the order of its ids: the same after any way to get here."""
        return [self.request(effect) for effect in sorted(self.state.pending)]

    def request(self, effect: str) -> EffectRequested:
        entry = self.state.pending[effect]
        return EffectRequested(
            at=entry.requested_at,
            path=effect.rpartition("/")[0] if entry.owner.path else "",
            iteration=entry.owner.iteration,
            effect=effect,
            call=entry.call,
        )

    def ready(self) -> list[AnyEvent]:
        """The answers that may come next."""
        found: list[AnyEvent] = []
        for request in self.requests():
            said = None if isinstance(request.call, SleepCall) else self.script(request)
            if said is not None:
                found.append(self.answer_event(request, said))
        for event in self.open_gates():
            decided = self.people(event)
            if decided is not None:
                found.append(self.decision_event(event, *decided))
        return found

    def open_gates(self) -> list[GateOpened]:
        return [
            GateOpened(
                at=gate.opened_at,
                path=gate.path,
                iteration=gate.owner.iteration,
                gate=gate.gate,
                digest=gate.digest,
                message=gate.message,
                answers=gate.answers,
            )
            for gate in sorted(self.state.gates.values(), key=lambda one: (one.path, one.gate))
        ]

    def answer_event(
        self, request: EffectRequested, said: Reply | Fail
    ) -> EffectDone | EffectFailed:
        if isinstance(said, Reply):
            return EffectDone(
                at=self.clock,
                path=request.path,
                iteration=request.iteration,
                effect=request.effect,
                output=self.texts.keep(said.text),
                result=said.result,
                usage=said.usage,
                session=said.session,
                code=said.code,
                mark=said.mark,
                snapshot=said.snapshot,
            )
        return EffectFailed(
            at=self.clock,
            path=request.path,
            iteration=request.iteration,
            effect=request.effect,
            error=Failure(said.type, said.detail, said.retry_after_ms, said.resets_at),
            output=said.text,
            usage=said.usage,
            mark=said.mark,
        )

    def decision_event(self, gate: GateOpened, decision: Decision, text: str = "") -> GateAnswered:
        return GateAnswered(
            at=self.clock,
            path=gate.path,
            iteration=gate.iteration,
            gate=gate.gate,
            decision=decision,
            text=text,
            by="ann",
        )

    # -- by hand -----------------------------------------------------------------------------------

    def answer(self, effect: str, said: ScriptedAnswer | str | int) -> list[AnyEvent]:
        """Answer one pending effect now."""
        value = say(said)
        assert value is not None
        self.clock += 1
        return self.append(self.answer_event(self.request(effect), value))

    def decide(self, decision: Decision, text: str = "") -> list[AnyEvent]:
        """Answer the only open gate."""
        (gate,) = self.open_gates()
        self.clock += 1
        return self.append(self.decision_event(gate, decision, text))

    def pause(self) -> list[AnyEvent]:
        return self.append(RunPaused(at=self.clock))

    def resume(self) -> list[AnyEvent]:
        return self.append(RunResumed(at=self.clock))

    def cancel(self, reason: str = "stopped") -> list[AnyEvent]:
        return self.append(CancelRequested(at=self.clock, reason=reason))

    def cut(self, length: int) -> Driver:
        """A new driver that knows only the first events, as after a crash."""
        return Driver(
            self.plan,
            self.script,
            self.people,
            self.order,
            texts=self.texts,
            message=self.message,
            inputs=self.inputs,
            events=self.events[:length],
        ).start()

    # -- what came of it ---------------------------------------------------------------------------

    @property
    def end(self) -> RunFinished:
        assert self.state.finished is not None, f"still waiting for {sorted(self.state.pending)}"
        return self.state.finished

    @property
    def ended(self) -> tuple[str, str, str]:
        """Outcome, reason, output."""
        return self.end.outcome, self.end.reason, self.texts.read(self.end.output)

    def kinds(self) -> list[str]:
        return [kind(event) for event in self.events]

    def of(self, event_type: type[AnyEvent]) -> list[AnyEvent]:
        return [event for event in self.events if isinstance(event, event_type)]

    def step_end(self, path: str = MAIN) -> StepFinished:
        (found,) = [f for f in self.events if isinstance(f, StepFinished) and f.path == path]
        return found

    @property
    def passes(self) -> int:
        return self.step_end().iterations


def kind(event: AnyEvent) -> str:
    """The name of an event's kind as it stands on disk."""
    return str(type(event).__struct_config__.tag)


def plan_of(action: Action, **more: object) -> Plan:
    """A plan of one step; its limits are `limits_of_step`, those of the run are `limits`."""
    step = {k: more.pop(k) for k in ("retry", "limits_of_step", "on_error") if k in more}
    if "limits_of_step" in step:
        step["limits"] = step.pop("limits_of_step")
    return Plan(name="t", steps=(Step(id=MAIN, action=action, **step),), **more)


def plan_of_steps(*steps: Step, **more: object) -> Plan:
    return Plan(name="t", steps=steps, **more)


def drive(plan: Plan, *args: object, **more: object) -> Driver:
    """Run a plan to its end, or to where only the world could move it on."""
    return Driver(plan, *args, **more).run()


def without_time(events: Iterable[AnyEvent]) -> list[object]:
    """Events as plain values apart from when they happened."""
    return [_plain(event) for event in events]


def _plain(event: AnyEvent) -> tuple[str, tuple[object, ...]]:
    values = [
        SleepCall(until=0) if isinstance(value, SleepCall) else value
        for name in type(event).__struct_fields__
        if name not in ("at", "ms")
        for value in (getattr(event, name),)
    ]
    return kind(event), tuple(values)
