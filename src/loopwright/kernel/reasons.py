"""Words of facts: why a call is not made, what a message is for, and why one is not read."""

from typing import Literal, TypeAlias

HOME_BUDGET = "home_budget"
"""Why a call is not made: what all runs of one home may use together is used up."""

Intent: TypeAlias = Literal["info", "context_update", "cancel", "reply", "tell"]
DropReason: TypeAlias = Literal[
    "unknown-step",  # no step has this id
    "ambiguous",  # a bare name that fits more than one step
    "container",  # a loop or a graph of steps, which reads nothing itself
    "not-an-agent",  # a command, a gate, a wait
    "not-running",  # only a step under way can be cancelled
    "target-terminal",  # the step has ended and is not called again
    "no-transcript",  # the step has ended without ever having spoken
    "max-wake-cycles",  # called again often enough
    "mailbox-full",
    "mailbox-closed-by-finalize",
    "no-coordinator",
    "coordinator-failed",
    "budget",
    "hold-timeout",
    "workflow-cancelled",
    "run-ended",
]
