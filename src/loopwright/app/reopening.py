"""Going on with a run that has ended without completing: the same run, only what is missing."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from loopwright.app.auditing import audit_rows
from loopwright.app.binding import bind_agents
from loopwright.app.keeping import taken
from loopwright.app.nesting import check_wall
from loopwright.app.preflight import preflight_agents
from loopwright.app.preparing import agent_choices, tightened
from loopwright.app.rights import rights_of, with_rights
from loopwright.app.service import CAS_TRIES, Service, row_ended
from loopwright.app.views.words import capped_words
from loopwright.errors import Conflict, LoopwrightError, VersionConflict
from loopwright.kernel.facts import AgentChanged, AnyFact, RunReopened
from loopwright.kernel.reopening import REOPENED, at_cap
from loopwright.kernel.state import State
from loopwright.ports import Append, RunRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What shall be different when a run goes on: other agents, another budget, more passes. With
    `stage`, a loop goes on in the pass in which it stopped, and `note` is what it is told there.
    """

    agents: Sequence[str] = ()
    budget: str | None = None
    passes: int | None = None
    stage: Literal["retry", "skip"] | None = None
    note: str = ""

    def __bool__(self) -> bool:
        return self != NO_CHANGES


NO_CHANGES = Changes()


def has_ended(service: Service, run: str) -> bool:
    return row_ended(service.log.row(run))


async def reopen(
    service: Service, run: str, *, by: str = "", changes: Changes = NO_CHANGES
) -> None:
    """Let a run that failed or met a limit go on; its id, what completed and was spent stay."""
    for _ in range(CAS_TRIES):
        row = service.log.row(run)
        _check(row)
        check_wall(service.log, run, os.environ)
        if service.driver is not None:
            service.driver.take(run)
        state = service.state(run)
        _check_passes(state, changes.passes)
        facts = _facts(state, at=service.clock.now_ms(), by=by, changes=changes)
        headline = replace(
            row.headline,
            status="running",
            reason="",
            finished_at=None,
            updated_at=facts[0].at,
        )
        try:
            await service.log.append(
                Append(
                    run=run,
                    expected=row.version,
                    facts=facts,
                    headline=headline,
                    audit=audit_rows(run, facts, service.via),
                )
            )
        except VersionConflict:
            continue
        except Conflict as refusal:
            raise taken(service.log, headline.key or "", refusal) from refusal
        if service.driver is not None:
            service.look(run)
        return
    raise Conflict("the run changes too fast; try again", code="busy")


def _check(row: RunRow) -> None:
    status = row.headline.status
    if not row_ended(row):
        raise Conflict(f"{row.run} has not ended: it is {status}", code="not-ended")
    if status not in REOPENED:
        why = "there is nothing left to do" if status == "completed" else "it was stopped for good"
        raise Conflict(
            f"{row.run} has ended: {status} ({row.headline.reason}), {why}",
            code="ended",
            hint="start a new run",
        )


def _check_passes(state: State, wanted: int | None) -> None:
    """A loop that stopped at its cap goes on only where it may make more passes than before."""
    capped, words = at_cap(state), capped_words(state)
    if wanted is None:
        if words and not _begins_anew(state) and not _failed_elsewhere(state):
            raise Conflict(f"{state.run}: {words}", code="at-cap", hint="or start a new run")
        return
    if not capped:
        raise Conflict(
            f"--max is for a loop that stopped at its cap, and none of {state.run} did",
            code="not-at-cap",
            hint=f"leave out --max: loopwright resume {state.run}",
        )
    made = max(kept.passes for kept in capped.values())
    if wanted <= made:
        raise LoopwrightError(
            f"--max {wanted}: {made} passes were made already",
            code="bad-max",
            hint=f"give more than that: --max {2 * made}",
        )


def _begins_anew(state: State) -> bool:
    """Whether a loop counts as failed at its cap: then it is tried again as a whole."""
    finished = state.finished
    failed = finished is not None and finished.outcome == "failed"
    return failed and not all(kept.talk for kept in at_cap(state).values())


def _failed_elsewhere(state: State) -> bool:
    """Whether something did not complete that is no loop at its cap: there is work without it."""
    capped = at_cap(state)
    return any(
        result.status in REOPENED and name not in capped
        for name, result in state.root.body.results.items()
    )


def _facts(state: State, *, at: int, by: str, changes: Changes) -> list[AnyFact]:
    plan = state.plan
    limits = tightened(plan.limits, changes.budget) if changes.budget else None
    opened = RunReopened(
        at=at,
        by=by,
        limits=limits,
        passes=changes.passes,
        stage=changes.stage,
        note=changes.note,
    )
    return [opened, *changed_agents(state, changes.agents, at=at, by=by)]


def changed_agents(state: State, given: Sequence[str], *, at: int, by: str) -> list[AnyFact]:
    """Agents that have something else behind them from now on: `SPEC` for all, or `NAME=SPEC`."""
    plan = state.plan
    default, named = agent_choices(given)
    if not default and not named:
        return []
    here = Path.cwd()
    bound = bind_agents(plan, default=default, named=named, base=here, cwd=here)
    bound = with_rights(bound, rights_of(plan))
    changed = {
        name: agent for name, agent in bound.agents.items() if agent != plan.agents.get(name)
    }
    if state.started is not None:
        preflight_agents(changed, Path(state.started.workspace))
    return [
        AgentChanged(at=at, agent=name, becomes=agent, by=by) for name, agent in changed.items()
    ]
