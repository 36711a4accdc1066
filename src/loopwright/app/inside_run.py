"""What a process inside a run can ask of Loopwright: start runs, look at its own, and no more.

An agent is outside of the trust boundary. Whatever descends from a program of a run is recognised
by the process tree (`programs/lineage.py`), whatever variables it has. It cannot answer gates, use
accounts, tokens and settings, or control runs of others. What it tries is refused (`inside-run`)
and written to the audit log of the data directory.

A data directory that was created inside a run belongs to that run: its programs do there what they
like. The tests of a program that uses Loopwright need that.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from loopwright.app.nesting import claimed_run, is_own_run, is_stage_of_loop
from loopwright.errors import LoopwrightError, NotAllowed
from loopwright.ports import AuditRow, Card, Cards, Clock, EventLog
from loopwright.programs.lineage import InsideRun, find_inside_run
from loopwright.programs.socket_peers import UNKNOWN_PEER, find_tcp_peer, find_unix_peer

__all__ = [
    "UNKNOWN_PEER",
    "AgentRights",
    "InsideRun",
    "find_caller",
    "find_tcp_peer",
    "find_unix_peer",
    "has_run",
    "inside_run_error",
    "is_private",
    "mark_origin",
    "record_refusal",
]

DENIED = "denied"
_ORIGIN = ("origin", "inside-run")
HINT = "a person does that outside of the run; see what an agent can do in docs/security.md"
SHOWN = 200  # characters of what was asked for that are recorded


def find_caller(environment: Mapping[str, str] | None = None) -> InsideRun | None:
    """The run that this process belongs to, or None for a process of a person."""
    return find_inside_run(environment=os.environ if environment is None else environment)


def inside_run_error(inside: InsideRun, what: str, *, hint: str = HINT) -> NotAllowed:
    """The refusal; `what` completes "cannot …"."""
    return NotAllowed(f"{inside.actor} cannot {what}", code="inside-run", hint=hint)


def record_refusal(
    cards: Cards, inside: InsideRun, what: str, *, at: int, via: str, who: str = ""
) -> None:
    """Write an attempt to the audit log. It is refused also where that cannot be written."""
    name = f", as {who}" if who else ""
    row = AuditRow(
        at=at,
        who=inside.actor,
        action=DENIED,
        subject=what[:SHOWN],
        via=via,
        detail=f"inside-run{name}",
    )
    with suppress(LoopwrightError):
        cards.change(audit=[row])


def mark_origin(cards: Cards, inside: InsideRun) -> None:
    """Record that a new data directory was created inside a run."""
    kind, key = _ORIGIN
    body = msgspec.json.encode(inside.runs)
    with suppress(LoopwrightError):
        cards.change([(Card(kind=kind, key=key, body=body), 0)])


def is_private(cards: Cards, inside: InsideRun) -> bool:
    """Whether a data directory was created by a program of the same run."""
    card = cards.card(*_ORIGIN)
    if card is None:
        return False
    return not {*msgspec.json.decode(card.body, type=list[str])}.isdisjoint(inside.runs)


def has_run(log: EventLog, run: str) -> bool:
    """Whether a run is in this data directory."""
    return any(row.run == run for row in log.rows(prefix=run, limit=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRights:
    """What a process inside a run may do in the data directory of the run."""

    inside: InsideRun
    log: EventLog
    cards: Cards
    clock: Clock
    via: str

    def refuse(self, what: str, subject: str = "") -> NoReturn:
        """Refuse, and record it; `what` completes "cannot …"."""
        at = self.clock.now_ms()
        record_refusal(self.cards, self.inside, f"{what} {subject}".strip(), at=at, via=self.via)
        raise inside_run_error(self.inside, what)

    def check_start(self) -> None:
        """Refuse to start a run for a stage of a loop of roles: such loops have no loops inside."""
        if is_stage_of_loop(self.log, self.inside):
            self.refuse("start a run: stages of a loop do not start loops")

    def is_own(self, run: str) -> bool:
        """Whether a run is the one around the process, or was started below it."""
        return is_own_run(self.log, claimed_run(self.log, self.inside), run)

    def check_own(self, run: str, what: str) -> None:
        """Refuse what concerns a run of somebody else."""
        if not self.is_own(run):
            self.refuse(what, run)

    def check_child(self, run: str, what: str) -> None:
        """Refuse what concerns any run but those that were started below the process."""
        if run in self.inside.runs or not self.is_own(run):
            self.refuse(what, run)
