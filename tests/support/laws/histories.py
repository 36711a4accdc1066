"""The laws of conversations: retries of a model, and shortened histories.

A model is asked again as its step allows, and a shortened history never separates a call from
its result.

The history is counted again from the events, entry by entry, by kind alone.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from loopwright.kernel.event_parts import ModelCall
from loopwright.kernel.events import (
    AnyEvent,
    EffectDone,
    EffectFailed,
    EffectRequested,
    GateAnswered,
    GateOpened,
    HistoryCompressed,
    IterationFinished,
    IterationStarted,
    MessageDelivered,
    RunReopened,
    StepStarted,
    TurnTaken,
)
from loopwright.model.actions import ModelCycle, Repeat
from loopwright.model.ids import parent_path
from loopwright.model.plan import Plan
from tests.support.laws.openings import PlaceNames
from tests.support.laws.plan_lookup import action_at, loop_at
from tests.support.laws.threads import Threads


def histories(plan: Plan, events: Sequence[AnyEvent]) -> Iterator[str]:
    """What is wrong with the conversations of a run."""
    watch = _Watch(plan)
    for event in events:
        yield from watch.take(event)


class _Watch:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._names = PlaceNames()
        self._entries: defaultdict[str, list[str]] = defaultdict(list)  # by loop
        self._answers: dict[str, EffectDone | EffectFailed] = {}
        self._turns: dict[str, TurnTaken] = {}
        self._about: dict[str, str] = {}
        self._said: dict[str, GateAnswered] = {}  # about an iteration, the last decision
        self._cuts: defaultdict[str, list[int]] = defaultdict(list)  # after which try
        self._newest: dict[str, int] = {}
        self._threads = Threads(plan)
        self._mode = ""
        self._unfinished: dict[str, list[str]] = {}  # by pass: the entries before its end
        self._resumed: dict[str, int] = {}  # by pass: the last try before it was resumed

    def take(self, event: AnyEvent) -> Iterator[str]:
        self._names.take(event)
        self._entries.update({} if self._names.resumed else self._threads.take(event))
        match event:
            case RunReopened() | IterationStarted() | StepStarted():
                self._begins(event)
            case EffectRequested(call=ModelCall(role="turn")):
                yield from self._asks(event)
            case EffectDone() | EffectFailed():
                self._answers[event.effect] = event
            case TurnTaken():
                self._turns[event.path] = event
            case GateOpened():
                self._about[event.gate] = event.about
            case GateAnswered():
                self._decides(event)
            case MessageDelivered(path=path) if path and self._is_cycle(path):
                self._entries[parent_path(path)] += ["user"] * len(event.messages)
            case HistoryCompressed():
                yield from self._cut(event)
            case IterationFinished():
                self._remember(event)
            case _:
                pass

    def _begins(self, event: RunReopened | IterationStarted | StepStarted) -> None:
        if isinstance(event, RunReopened):
            self._mode = event.mode
        elif isinstance(event, IterationStarted):
            if event.resumed:
                self._resume(event.path)
        elif not parent_path(event.path) and not self._mode:
            before = self._entries[self._names.before(event.path)]
            self._entries[self._names.inside(event.path)] = list(before)  # it goes on where it was

    def _resume(self, path: str) -> None:
        """An iteration continues: the conversation is what it was before the iteration ended."""
        self._resumed[path] = self._newest.get(path, 0)
        if path in self._unfinished:
            self._entries[parent_path(path)] = self._unfinished.pop(path)
            self._threads.keep(parent_path(path), self._entries[parent_path(path)])

    def _is_cycle(self, path: str) -> bool:
        return isinstance(action_at(self._plan, path).action, ModelCycle)

    # -- tries ---------------------------------------------------------------------------------

    def _asks(self, event: EffectRequested) -> Iterator[str]:
        """Each try follows the failure of the one before: after a cut when it did not fit, else
        after a wait.
        """
        number = int(event.effect.rpartition("#")[2])
        before = self._newest.get(event.path, 0)
        self._newest[event.path] = number
        if number != before + 1:
            yield f"{event.effect} follows try {before}"
        if before == self._resumed.get(event.path, 0):
            return
        last = self._answers.get(f"{event.path}/model#{before}")
        if not isinstance(last, EffectFailed):
            yield f"{event.effect} is tried although {before} did not fail"
        elif last.error.type == "overflow":
            if before not in self._cuts[event.path]:
                yield f"{event.effect} is tried with a history that did not fit"
        elif not isinstance(self._answers.get(f"{event.path}/backoff#{before}"), EffectDone):
            yield f"{event.effect} is tried without a wait"

    def _overflowed(self, path: str) -> bool:
        last = self._answers.get(f"{path}/model#{self._newest.get(path, 0)}")
        return isinstance(last, EffectFailed) and last.error.type == "overflow"

    def _overflows(self, event: HistoryCompressed) -> list[int]:
        """The tries of this iteration that were followed by a cut, since they did not fit."""
        return [number for number in self._cuts[event.path] if number]

    # -- the history ---------------------------------------------------------------------------

    def _decides(self, event: GateAnswered) -> None:
        about = self._about.get(event.gate)
        if about == "pass":
            self._said[event.path] = event
        elif about == "cap" and event.decision == "continue" and event.text:
            loop = action_at(self._plan, event.path).action
            if isinstance(loop, Repeat) and isinstance(loop.body, ModelCycle):
                self._entries[event.path].append("user")

    def _remember(self, event: IterationFinished) -> None:
        turn = self._turns.get(event.path)
        if event.status == "cancelled" or turn is None:
            return
        if event.status != "completed":
            self._unfinished[event.path] = list(self._entries[parent_path(event.path)])
        loop = loop_at(self._plan, parent_path(event.path))
        assert isinstance(loop.body, ModelCycle)
        entries = self._entries[parent_path(event.path)]
        answer = self._answers[turn.effect]
        says = isinstance(answer, EffectDone) and answer.result is not None
        if says and (answer.output or turn.calls):
            entries.append("model")
        if turn.calls:
            entries.append("tools")
        elif not event.done and loop.body.nudge:
            entries.append("user")
        said = self._said.get(event.path)
        if said is not None and (said.text or self._goes_on(loop, event, said)):
            entries.append("user")
        self._threads.keep(parent_path(event.path), entries)

    def _goes_on(self, loop: Repeat, event: IterationFinished, said: GateAnswered) -> bool:
        rule = loop.gate
        if rule is None or event.done:
            return False
        return rule.approve_continues and said.decision == "approve"

    def _cut(self, event: HistoryCompressed) -> Iterator[str]:
        loop, place = parent_path(event.path), f"the history at {event.path}"
        entries = self._entries[loop]
        if event.dropped + event.kept != len(entries):
            yield f"{place} has {len(entries)} entries, {event.dropped} go and {event.kept} stay"
        if self._overflowed(event.path) and self._newest[event.path] - 1 in self._overflows(event):
            yield f"{place} is cut a second time since it did not fit"
        left = entries[event.dropped :]
        if not event.dropped and not event.trimmed and not self._overflowed(event.path):
            yield f"{place} is cut and stays as it was"
        if not left:
            yield f"{place} is empty after a cut"
        elif left[0] == "tools" and event.dropped:
            yield f"{place} begins with results after a cut"
        if any(number >= len(left) or left[number] != "tools" for number in event.trimmed):
            yield f"{place}: {event.trimmed} are not results"
        if event.summary is not None:
            left.insert(0, "summary")
            if not event.dropped:
                yield f"{place} has a summary of nothing"
        self._entries[loop] = left
        self._cuts[event.path].append(self._newest.get(event.path, 0))
