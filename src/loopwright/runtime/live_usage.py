"""Live usage of the calls of one run: concurrent calls share what the budgets around them leave."""

from collections.abc import Callable
from dataclasses import dataclass, field

from loopwright.kernel.facts import Usage
from loopwright.kernel.limits import exceeded, remaining
from loopwright.kernel.state import Pending, State
from loopwright.ports import Job


@dataclass(slots=True)
class LiveUsage:
    """What the calls under way have used so far, by effect."""

    state: Callable[[], State]
    used: dict[str, Usage] = field(default_factory=dict)

    def share(self, pending: Pending, job: Job) -> None:
        """Give a call that begins what is left when the calls under way are counted."""
        left = remaining(self.state(), pending.owner, self.used)
        job.remaining_usd = left.usd if job.covered else None
        job.remaining_tokens = left.tokens

    def count(self, effect: str, usage: Usage) -> str | None:
        """Take note of what a call has used so far; the answer is the limit that it exceeds."""
        self.used[effect] = usage
        state = self.state()
        return exceeded(state, state.pending[effect].owner, self.used)
