"""Public fakes: for each port one that lives in memory and does what it is told.

`FakeClock` is time that somebody sets, `ScriptedPerformer` answers effects by a script or holds
them back, `check_invariants` says what is wrong with the runs of a log, `plans` has small plans.
The log in memory is `loopwright.stores.MemoryLog`, which passes the same contract as the real one.
`wires` has a local server that speaks the wires of model services, for clients of every kind.
Users of the package may rely on them as the tests here do.

May import: every room below app. Start reading at `invariants.py`.
"""

from loopwright.testing.clock import FakeClock
from loopwright.testing.invariants import check_invariants, run_problems
from loopwright.testing.laws import fact_problems
from loopwright.testing.performer import ScriptedPerformer, always, by_effect, by_pass, never
from loopwright.testing.picture import picture

__all__ = [
    "FakeClock",
    "ScriptedPerformer",
    "always",
    "by_effect",
    "by_pass",
    "check_invariants",
    "fact_problems",
    "never",
    "picture",
    "run_problems",
]
