"""Live usage of the calls of one run: concurrent calls share what the budgets around them leave."""

from collections.abc import Callable
from dataclasses import dataclass, field

from loopwright.kernel.calls import CALLED
from loopwright.kernel.facts import Usage
from loopwright.kernel.limits import exceeded, remaining
from loopwright.kernel.state import Pending, State
from loopwright.ports import Job, Meter


@dataclass(slots=True)
class LiveUsage:
    """What the calls under way have used so far, by effect."""

    state: Callable[[], State]
    used: dict[str, Usage] = field(default_factory=dict)

    def watch(self, pending: Pending, job: Job, record: Callable[[Usage], Usage]) -> None:
        """Give a call that begins what is left when the calls under way are counted. `record`
        makes what the call has used durable and returns it with the attempts before this one.
        """
        state = self.state()
        if not isinstance(pending.call, CALLED):
            return
        job.meter = CallMeter(self, pending.effect, record)
        if state.has_budget:
            left = remaining(state, pending.owner, self.used)
            job.remaining_usd = left.usd if job.covered else None
            job.remaining_tokens = left.tokens

    def forget(self, effect: str) -> None:
        """The call has ended; its usage is part of the log from now on."""
        self.used.pop(effect, None)


@dataclass(slots=True)
class CallMeter(Meter):
    """The meter of one call."""

    live: LiveUsage
    effect: str
    record: Callable[[Usage], Usage]

    def report(self, usage: Usage) -> str | None:
        state = self.live.state()
        pending = state.pending.get(self.effect)
        if pending is None:
            return None
        self.live.used[self.effect] = self.record(usage)
        return exceeded(state, pending.owner, self.live.used)
