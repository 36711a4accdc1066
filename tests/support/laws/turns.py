"""The laws of turns: each requested call is made once, as it was requested.

No call that needs an approval is made before a person has approved that very call.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from loopwright.kernel.event_parts import CallNote, ModelCall, ToolCall
from loopwright.kernel.events import (
    AgentChanged,
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateOpened,
    IterationFinished,
    IterationStarted,
    StepFinished,
    TurnTaken,
)
from loopwright.model.actions import CallAgent, ModelCycle, Repeat
from loopwright.model.ids import parent_path
from loopwright.model.plan import Agent, Plan
from tests.support.laws.openings import PlaceNames
from tests.support.laws.plan_lookup import action_at

SUBMIT = "submit_result"


@dataclass(slots=True)
class _Pass:
    """What is known of one iteration with a model."""

    agent: str
    answers: dict[str, EffectDone] = field(default_factory=dict)
    newest: str = ""  # the last call of the model
    turn: TurnTaken | None = None
    gates: dict[int, str] = field(default_factory=dict)
    decided: dict[int, GateAnswered] = field(default_factory=dict)
    asked: dict[int, str] = field(default_factory=dict)
    results: dict[int, int] = field(default_factory=dict)  # how many each call has
    withdrawn: set[int] = field(default_factory=set)  # calls that were ended from outside
    resumed: bool = False
    cut_off: bool = False  # ended from outside after it was resumed, maybe at once

    def note(self, number: int) -> CallNote | None:
        calls = self.turn.calls if self.turn is not None else ()
        return calls[number - 1] if 0 < number <= len(calls) else None

    def give(self, number: int) -> None:
        self.results[number] = self.results.get(number, 0) + 1

    def resume(self) -> None:
        """What was ended from outside is asked for again."""
        self.resumed, self.cut_off = True, False
        self.gates = {n: gate for n, gate in self.gates.items() if n in self.decided}
        for number in self.withdrawn:
            self.asked.pop(number, None)
            self.results[number] -= 1
        self.withdrawn.clear()


def turns(plan: Plan, events: Sequence[AnyEvent]) -> Iterator[str]:
    """What is wrong with the turns of a run."""
    watch = _Watch(plan)
    for event in events:
        yield from watch.take(event)
    for path in watch.passes:
        yield from watch.gated(path)


class _Watch:
    """Reads events in order; nothing here asks the engine."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._agents: dict[str, Agent] = dict(plan.agents)
        self._remembered: set[str] = set()
        self._called: dict[str, tuple[str, int]] = {}  # by gate: the iteration and the call
        self._names = PlaceNames()
        self._last: dict[str, _Pass] = {}  # by loop: its last iteration that was not cut off
        self.passes: dict[str, _Pass] = {}

    def take(self, event: AnyEvent) -> Iterator[str]:
        self._names.take(event)
        match event:
            case AgentChanged(agent=name, becomes=agent):
                self._agents[name] = agent
            case EffectRequested(call=ModelCall(role="turn", agent=agent), path=path):
                yield from self._asks(event, self.passes.setdefault(path, _Pass(agent)))
            case EffectRequested(call=ToolCall() as call):
                yield from self._runs(event, call)
            case EffectDone() | EffectFailed():
                self._answered(event)
            case TurnTaken():
                yield from self._turn(event)
            case GateOpened(call=int()):
                yield from self._opens(event)
            case GateAnswered():
                self._decides(event)
            case IterationStarted() | IterationFinished() if event.path in self.passes:
                yield from self._begins_or_ends(event)
            case StepFinished(status="completed"):
                yield from self._hands_over(event)
            case _:
                pass

    # -- the model -----------------------------------------------------------------------------

    def _asks(self, event: EffectRequested, one: _Pass) -> Iterator[str]:
        """An iteration has one turn; so a model that has given it is not asked again."""
        if one.turn is not None or one.newest in one.answers:
            yield f"{event.effect} is asked although {one.newest} was answered"
        one.newest = event.effect

    def _answered(self, event: EffectDone | EffectFailed) -> None:
        one = self.passes.get(event.path)
        if one is None:
            return
        if isinstance(event, EffectDone) and event.effect == one.newest:
            one.answers[event.effect] = event
        for number, effect in one.asked.items():
            if effect == event.effect:
                one.give(number)
                if isinstance(event, EffectFailed) and event.error.type == "cancelled":
                    one.withdrawn.add(number)

    def _turn(self, event: TurnTaken) -> Iterator[str]:
        """A turn follows the answer that it is read from, once, and holds what has to be held."""
        one = self.passes.get(event.path)
        if one is None or event.effect != one.newest or event.effect not in one.answers:
            yield f"the turn at {event.path} is taken from {event.effect}, which has no answer"
            return
        if one.turn is not None:
            yield f"{event.path} has two turns"
        one.turn = event
        agent = self._agents.get(one.agent, Agent())
        for number, note in enumerate(event.calls, start=1):
            if note.problem or note.tool == SUBMIT:
                one.give(number)
            elif not note.held and self._is_held(note.tool, agent):
                yield f"{event.path}: {note.tool} is not held"

    def _is_held(self, tool: str, agent: Agent) -> bool:
        return tool not in self._remembered and _always(tool, agent.approvals)

    # -- people --------------------------------------------------------------------------------

    def _opens(self, event: GateOpened) -> Iterator[str]:
        one, number = self.passes.get(event.path), event.call or 0
        note = one.note(number) if one is not None else None
        if one is None or note is None or not note.held:
            yield f"{event.gate} asks about call {number} of {event.path}, which is not held"
            return
        if number in one.gates:
            yield f"{event.gate} asks a second time about call {number} of {event.path}"
        one.gates[number] = event.gate
        self._called[event.gate] = event.path, number

    def gated(self, path: str) -> Iterator[str]:
        """Each call that is held has a gate of its own. In an iteration that was resumed and ended
        from outside, maybe before anything was decided about it, the gate may not be open again.
        """
        one = self.passes[path]
        if one.cut_off:
            return
        for number, note in enumerate(one.turn.calls if one.turn else (), start=1):
            if note.held and number not in one.gates:
                yield f"call {number} of {path} is held and nobody is asked"

    def _decides(self, event: GateAnswered) -> None:
        path, number = self._called.get(event.gate, ("", 0))
        if not number or number in self.passes[path].decided:
            return
        one = self.passes[path]
        one.decided[number] = event
        note = one.note(number)
        if event.decision != "approve":
            one.give(number)
        elif event.remember and note is not None:
            self._remembered.add(note.tool)

    # -- tools ---------------------------------------------------------------------------------

    def _runs(self, event: EffectRequested, call: ToolCall) -> Iterator[str]:
        number = _number(event.effect)
        one = self.passes.get(event.path)
        note = one.note(number) if one is not None else None
        if one is None or note is None or note.problem or note.tool == SUBMIT:
            yield f"{event.effect} runs what no turn asks for"
            return
        if number in one.asked:
            yield f"call {number} of {event.path} is run twice"
        one.asked[number] = event.effect
        if (call.tool, call.call) != (note.tool, note.id):
            yield f"{event.effect} runs {call.tool} for {note.tool}"
        said = one.decided.get(number)
        if note.held and (said is None or said.decision != "approve"):
            yield f"{event.effect} runs and nobody has approved it"
        wanted = note.arguments
        if said is not None and said.arguments is not None:
            wanted = said.arguments
        if call.arguments != wanted:
            yield f"{event.effect} runs with {call.arguments!r} instead of {wanted!r}"

    # -- the end -------------------------------------------------------------------------------

    def _begins_or_ends(self, event: IterationStarted | IterationFinished) -> Iterator[str]:
        if isinstance(event, IterationFinished):
            yield from self._ends(event)
        elif event.resumed:
            self.passes[event.path].resume()

    def _ends(self, event: IterationFinished) -> Iterator[str]:
        """An iteration that came to its end has one result for each call of its turn."""
        one = self.passes[event.path]
        if event.status == "cancelled":
            one.cut_off = one.resumed
            return
        self._last[parent_path(event.path)] = one
        if event.status != "completed":
            return
        if one.turn is None:
            yield f"{event.path} completed without a turn"
            return
        wrong = [n + 1 for n in range(len(one.turn.calls)) if one.results.get(n + 1) != 1]
        if wrong:
            yield f"{event.path} completed, and calls {wrong} have {one.results}"

    def _hands_over(self, event: StepFinished) -> Iterator[str]:
        """The result is the first that the last turn handed in."""
        if not _is_conversation(self._plan, event.path):
            return
        last = self._last.get(self._names.inside(event.path))
        if last is None:
            return
        calls = last.turn.calls if last.turn is not None else ()
        handed = [one.arguments for one in calls if one.tool == SUBMIT and not one.problem]
        if event.result != (handed[0] if handed else None):
            yield f"{event.path} ends with {event.result!r}, handed in was {handed}"


def _is_conversation(plan: Plan, path: str) -> bool:
    action = action_at(plan, path).action
    if isinstance(action, Repeat):
        return isinstance(action.body, ModelCycle) and action.each is None
    return isinstance(action, CallAgent)


def _always(tool: str, rules: Mapping[str, str]) -> bool:
    """Whether each call of a tool needs a person, by its own name or a part of it after a dot."""
    return any(
        rule == "always" and f".{long}".endswith(f".{short}")
        for name, rule in rules.items()
        for long, short in ((tool, name), (name, tool))
    )


def _number(effect: str) -> int:
    """Which call of its turn a tool's effect is."""
    return int(effect.rpartition("/tool")[2].partition("#")[0])
