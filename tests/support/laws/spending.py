"""The law of budgets (I10): usage is the sum of the calls; an exhausted budget stops work.

No work begins in a step whose budget, or an enclosing budget, is exhausted. A call reports its
usage when it has ended, so the last one may exceed the budget; nothing is reserved for it
before. A judge is asked all the same: its iteration is already paid for.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from loopwright.kernel.event_parts import AgentCall, ModelCall
from loopwright.kernel.events import (
    NO_USAGE,
    AnyEvent,
    EffectActivity,
    EffectDone,
    EffectFailed,
    EffectRequested,
    RunReopened,
    Usage,
)
from loopwright.model.actions import Action, CallAgent, Repeat
from loopwright.model.ids import last_id, parent_path
from loopwright.model.plan import Plan
from loopwright.model.policy import Limits
from tests.support.laws.plan_lookup import action_at, loop_at

_DECIMALS = 9  # of a dollar, as the engine counts them
_TRY = re.compile(r"~\d+")


class Sums:
    """Running sums: of each step over all its tries, of everything else by its own path."""

    def __init__(self) -> None:
        self._used: defaultdict[str, Usage] = defaultdict(Usage)
        self._of_steps: defaultdict[str, Usage] = defaultdict(Usage)
        self._live: dict[str, Usage] = {}  # by call under way: what it has reported so far

    def take(self, event: AnyEvent) -> None:
        """Add what a call used; steps of a run that was reopened count anew."""
        if isinstance(event, RunReopened) and event.mode != "continue":
            self._of_steps.clear()
        if isinstance(event, EffectActivity) and event.usage is not None:
            self._add(event.path, event.usage - self._live.get(event.effect, NO_USAGE))
            self._live[event.effect] = event.usage
        if isinstance(event, EffectDone | EffectFailed):
            live = self._live.pop(event.effect, NO_USAGE)
            self._add(event.path, (event.usage or NO_USAGE) - live)

    def _add(self, path: str, usage: Usage) -> None:
        if usage == NO_USAGE:
            return
        for place in _around(path):
            self._used[place] = _sum(self._used[place], usage)
            step = _step(place)
            self._of_steps[step] = _sum(self._of_steps[step], usage)

    def renew(self, plan: Plan) -> None:
        """A run that continues has a new budget: what places inside have used up begins anew."""
        for place in [one for one in self._used if one]:
            action, step = action_at(plan, place)
            own = step is not None and _TRY.sub("", last_id(place)) == step.id
            if own and step is not None and _is_used_up(step.limits, self._of_steps[_step(place)]):
                self._of_steps[_step(place)] = Usage()
            is_loop = isinstance(action, Repeat) or _is_conversation(plan, action)
            if is_loop and _is_used_up(loop_at(plan, place).limits, self._used[place]):
                self._used[place] = Usage()

    @property
    def whole(self) -> Usage:
        """What the run has used."""
        return self._used[""]

    def budgets(self, plan: Plan, place: str) -> Iterator[tuple[Limits, Usage]]:
        """What is allowed at a place, each with what was used of it."""
        if not place:
            yield plan.limits, self._used[place]
            return
        action, step = action_at(plan, place)
        if step is not None and _TRY.sub("", last_id(place)) == step.id:
            yield step.limits, self._of_steps[_step(place)]
        if isinstance(action, Repeat) or _is_conversation(plan, action):
            yield loop_at(plan, place).limits, self._used[place]


def spending(plan: Plan, events: Sequence[AnyEvent]) -> Iterator[str]:
    """Calls that begin where nothing is left to spend."""
    sums = Sums()
    for event in events:
        sums.take(event)
        if isinstance(event, RunReopened) and event.limits is not None:
            plan = msgspec.structs.replace(plan, limits=event.limits)
            if event.mode == "continue":
                sums.renew(plan)
        if not isinstance(event, EffectRequested) or not _is_work(event):
            continue
        for place in _around(event.path):
            for limits, used in sums.budgets(plan, place):
                if _is_used_up(limits, used):
                    yield f"{event.effect} begins after the budget of {place or 'the run'} is spent"


def _is_work(event: EffectRequested) -> bool:
    if isinstance(event.call, AgentCall):
        return event.call.role == "worker"
    return isinstance(event.call, ModelCall)


def _is_conversation(plan: Plan, action: Action) -> bool:
    if not isinstance(action, CallAgent) or action.agent not in plan.agents:
        return False
    return plan.agents[action.agent].is_chat


def _is_used_up(limits: Limits, used: Usage) -> bool:
    tokens = used.input_tokens + used.output_tokens
    by_tokens = limits.tokens is not None and tokens >= limits.tokens
    return by_tokens or (limits.usd is not None and used.usd >= limits.usd)


def _sum(one: Usage, other: Usage) -> Usage:
    return msgspec.structs.replace(
        one,
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        usd=round(one.usd + other.usd, _DECIMALS),
        unpriced=one.unpriced + other.unpriced,
    )


def _step(place: str) -> str:
    """A step without its own tries, which share what it may use. What begins anew because a step
    around it does has all of its own again, as in a new pass.
    """
    around, own = parent_path(place), _TRY.sub("", last_id(place))
    return f"{around}.{own}" if around else own


def _around(path: str) -> Iterator[str]:
    """A place and all around it, the run last."""
    while path:
        yield path
        path = parent_path(path)
    yield ""
