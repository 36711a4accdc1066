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


def histories(plan: Plan, facts: Sequence[AnyEvent]) -> Iterator[str]:
    """What is wrong with the conversations of a run."""
    watch = _Watch(plan)
    for fact in facts:
        yield from watch.take(fact)


class _Watch:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._names = PlaceNames()
        self._entries: defaultdict[str, list[str]] = defaultdict(list)  # by loop
        self._answers: dict[str, EffectDone | EffectFailed] = {}
        self._turns: dict[str, TurnTaken] = {}
        self._about: dict[str, str] = {}
        self._said: dict[str, GateAnswered] = {}  # about a pass, the last decision
        self._cuts: defaultdict[str, list[int]] = defaultdict(list)  # after which try
        self._newest: dict[str, int] = {}
        self._threads = Threads(plan)
        self._mode = ""
        self._unfinished: dict[str, list[str]] = {}  # by pass: the entries before its end
        self._resumed: dict[str, int] = {}  # by pass: the last try before it was resumed

    def take(self, fact: AnyEvent) -> Iterator[str]:
        self._names.take(fact)
        self._entries.update({} if self._names.resumed else self._threads.take(fact))
        match fact:
            case RunReopened() | IterationStarted() | StepStarted():
                self._begins(fact)
            case EffectRequested(call=ModelCall(role="turn")):
                yield from self._asks(fact)
            case EffectDone() | EffectFailed():
                self._answers[fact.effect] = fact
            case TurnTaken():
                self._turns[fact.path] = fact
            case GateOpened():
                self._about[fact.gate] = fact.about
            case GateAnswered():
                self._decides(fact)
            case MessageDelivered(path=path) if path and self._is_cycle(path):
                self._entries[parent_path(path)] += ["user"] * len(fact.messages)
            case HistoryCompressed():
                yield from self._cut(fact)
            case IterationFinished():
                self._remember(fact)
            case _:
                pass

    def _begins(self, fact: RunReopened | IterationStarted | StepStarted) -> None:
        if isinstance(fact, RunReopened):
            self._mode = fact.mode
        elif isinstance(fact, IterationStarted):
            if fact.resumed:
                self._resume(fact.path)
        elif not parent_path(fact.path) and not self._mode:
            before = self._entries[self._names.before(fact.path)]
            self._entries[self._names.inside(fact.path)] = list(before)  # it goes on where it was

    def _resume(self, path: str) -> None:
        """A pass continues: the conversation is what it was before the pass ended."""
        self._resumed[path] = self._newest.get(path, 0)
        if path in self._unfinished:
            self._entries[parent_path(path)] = self._unfinished.pop(path)
            self._threads.keep(parent_path(path), self._entries[parent_path(path)])

    def _is_cycle(self, path: str) -> bool:
        return isinstance(action_at(self._plan, path).action, ModelCycle)

    # -- tries ---------------------------------------------------------------------------------

    def _asks(self, fact: EffectRequested) -> Iterator[str]:
        """Each try follows the failure of the one before: after a cut when it did not fit, else
        after a wait.
        """
        number = int(fact.effect.rpartition("#")[2])
        before = self._newest.get(fact.path, 0)
        self._newest[fact.path] = number
        if number != before + 1:
            yield f"{fact.effect} follows try {before}"
        if before == self._resumed.get(fact.path, 0):
            return
        last = self._answers.get(f"{fact.path}/model#{before}")
        if not isinstance(last, EffectFailed):
            yield f"{fact.effect} is tried although {before} did not fail"
        elif last.error.type == "overflow":
            if before not in self._cuts[fact.path]:
                yield f"{fact.effect} is tried with a history that did not fit"
        elif not isinstance(self._answers.get(f"{fact.path}/backoff#{before}"), EffectDone):
            yield f"{fact.effect} is tried without a wait"

    def _overflowed(self, path: str) -> bool:
        last = self._answers.get(f"{path}/model#{self._newest.get(path, 0)}")
        return isinstance(last, EffectFailed) and last.error.type == "overflow"

    def _overflows(self, fact: HistoryCompressed) -> list[int]:
        """The tries of this pass that were followed by a cut, since they did not fit."""
        return [number for number in self._cuts[fact.path] if number]

    # -- the history ---------------------------------------------------------------------------

    def _decides(self, fact: GateAnswered) -> None:
        about = self._about.get(fact.gate)
        if about == "pass":
            self._said[fact.path] = fact
        elif about == "cap" and fact.decision == "continue" and fact.text:
            loop = action_at(self._plan, fact.path).action
            if isinstance(loop, Repeat) and isinstance(loop.body, ModelCycle):
                self._entries[fact.path].append("user")

    def _remember(self, fact: IterationFinished) -> None:
        turn = self._turns.get(fact.path)
        if fact.status == "cancelled" or turn is None:
            return
        if fact.status != "completed":
            self._unfinished[fact.path] = list(self._entries[parent_path(fact.path)])
        loop = loop_at(self._plan, parent_path(fact.path))
        assert isinstance(loop.body, ModelCycle)
        entries = self._entries[parent_path(fact.path)]
        answer = self._answers[turn.effect]
        says = isinstance(answer, EffectDone) and answer.result is not None
        if says and (answer.output or turn.calls):
            entries.append("model")
        if turn.calls:
            entries.append("tools")
        elif not fact.done and loop.body.nudge:
            entries.append("user")
        said = self._said.get(fact.path)
        if said is not None and (said.text or self._goes_on(loop, fact, said)):
            entries.append("user")
        self._threads.keep(parent_path(fact.path), entries)

    def _goes_on(self, loop: Repeat, fact: IterationFinished, said: GateAnswered) -> bool:
        rule = loop.gate
        if rule is None or fact.done:
            return False
        return rule.approve_continues and said.decision == "approve"

    def _cut(self, fact: HistoryCompressed) -> Iterator[str]:
        loop, place = parent_path(fact.path), f"the history at {fact.path}"
        entries = self._entries[loop]
        if fact.dropped + fact.kept != len(entries):
            yield f"{place} has {len(entries)} entries, {fact.dropped} go and {fact.kept} stay"
        if self._overflowed(fact.path) and self._newest[fact.path] - 1 in self._overflows(fact):
            yield f"{place} is cut a second time since it did not fit"
        left = entries[fact.dropped :]
        if not fact.dropped and not fact.trimmed and not self._overflowed(fact.path):
            yield f"{place} is cut and stays as it was"
        if not left:
            yield f"{place} is empty after a cut"
        elif left[0] == "tools" and fact.dropped:
            yield f"{place} begins with results after a cut"
        if any(number >= len(left) or left[number] != "tools" for number in fact.trimmed):
            yield f"{place}: {fact.trimmed} are not results"
        if fact.summary is not None:
            left.insert(0, "summary")
            if not fact.dropped:
                yield f"{place} has a summary of nothing"
        self._entries[loop] = left
        self._cuts[fact.path].append(self._newest.get(fact.path, 0))
