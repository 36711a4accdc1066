"""Port of live usage: a backend reports what a call has used while the call runs."""

from typing import Protocol

from loopwright.kernel.facts import Usage


class Meter(Protocol):
    """Watches one call against the budgets around it."""

    def report(self, usage: Usage) -> str | None:
        """Record everything that the call has used so far. Returns the budget that is exceeded, in
        words; the backend must then end the call. None: the call may continue.
        """


class UnlimitedMeter:
    """A meter without any budget."""

    def report(self, usage: Usage) -> str | None:
        return None


UNLIMITED = UnlimitedMeter()
