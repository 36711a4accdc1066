"""The sandbox rules of tests that are about something else, and whose agents are no programs."""

from loopwright.model.plan import Plan
from loopwright.model.sandbox import SandboxLevel
from loopwright.operations.workspace_rules import SandboxRules


class PlannedLevels(SandboxRules):
    """Leaves the level of each plan as it is."""

    def decide(self, plan: Plan, chosen: SandboxLevel | None = None) -> Plan:
        assert chosen is None
        return plan
