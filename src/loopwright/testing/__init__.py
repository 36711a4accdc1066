"""Public fakes, controlled by the test.

`FakeClock` is a clock that the test sets, `ScriptedPerformer` answers effects by a script or delays
them. `models` has a chat model without a service, and `wires` a local server that implements the
protocols of model services.

May import: every package below operations. Start reading at `fakes.py`.
"""

from loopwright.testing.fakes import (
    FakeClock,
    ScriptedPerformer,
    always,
    by_effect,
    by_iteration,
    never,
)

__all__ = [
    "FakeClock",
    "ScriptedPerformer",
    "always",
    "by_effect",
    "by_iteration",
    "never",
]
